--
-- Storage: three generations of one shape, each with one unique index
--
CREATE EXTENSION idem_inbox;

-- the library and the SQL objects belong together
SELECT idem_version() LIKE extversion || '.%' AS same_version
FROM pg_extension WHERE extname = 'idem_inbox';

-- three tables, one shape
SELECT count(DISTINCT relname) AS generations, count(DISTINCT shape) AS shapes
FROM (SELECT c.relname,
			 array_agg((a.attnum, a.attname, a.atttypid, a.attnotnull,
						a.attstorage, a.atthasdef)::text ORDER BY a.attnum) AS shape
	  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	  WHERE c.relname LIKE 'idem\_generation\__' AND a.attnum > 0
	  GROUP BY c.relname) s;
SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull
FROM pg_attribute
WHERE attrelid = 'idem_generation_1'::regclass AND attnum > 0
ORDER BY attnum;

-- one unique index and one small partial index each
SELECT indexrelid::regclass, indisunique, indisprimary,
	   pg_get_indexdef(indexrelid)
FROM pg_index
WHERE indrelid::regclass::text LIKE 'idem\_generation\__'
ORDER BY indexrelid::regclass::text;

-- logical replication finds a row by its primary key
SELECT relname, relpersistence, relreplident
FROM pg_class
WHERE relname ~ '^idem_' AND relkind = 'r'
ORDER BY relname;
SELECT relname AS without_primary_key
FROM pg_class c
WHERE relname ~ '^idem_' AND relkind = 'r'
  AND NOT EXISTS (SELECT FROM pg_index
				  WHERE indrelid = c.oid AND indisprimary);

-- pg_dump keeps the rows of every table and the position of every sequence
SELECT unnest(extconfig)::regclass::text AS dumped, unnest(extcondition) = '' AS whole
FROM pg_extension WHERE extname = 'idem_inbox'
ORDER BY 1;
SELECT c.oid::regclass AS not_dumped
FROM pg_extension e
	 JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = e.oid AND d.deptype = 'e'
	 JOIN pg_class c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
WHERE e.extname = 'idem_inbox' AND c.relkind IN ('r', 'S', 'p', 'm')
  AND c.oid <> ALL (e.extconfig);

-- a restore would insert again what the install script inserted
SELECT (SELECT count(*) FROM idem_consumer) AS consumers,
	   (SELECT count(*) FROM idem_ring) AS ring,
	   (SELECT count(*) FROM idem_generation_1) AS generation_1,
	   (SELECT count(*) FROM idem_generation_2) AS generation_2,
	   (SELECT count(*) FROM idem_generation_3) AS generation_3;

-- everything that people meet says what it is
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
FROM pg_extension e
	 JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = e.oid AND d.deptype = 'e'
WHERE e.extname = 'idem_inbox'
  AND d.classid IN ('pg_class'::regclass, 'pg_proc'::regclass,
					'pg_operator'::regclass, 'pg_type'::regclass)
  AND coalesce(obj_description(d.objid, d.classid::regclass::text), '') = ''
  AND NOT (d.classid = 'pg_proc'::regclass
		   AND (d.objid::regproc::text LIKE 'idem_message_id%'
				OR d.objid::regprocedure::text = 'text(idem_message_id)'))
  AND NOT (d.classid = 'pg_type'::regclass
		   AND EXISTS (SELECT FROM pg_type t
					   WHERE t.oid = d.objid AND (t.typrelid <> 0 OR t.typelem <> 0)))
  AND NOT (d.classid = 'pg_class'::regclass
		   AND EXISTS (SELECT FROM pg_class c
					   WHERE c.oid = d.objid AND c.relkind IN ('S', 'i')))
ORDER BY 1;

--
-- A plain claim is small and does not enter the partial index
--
SELECT idem_claim('0192f0c1-0000-7000-8000-000000000001', 'inventory.reserve');
SELECT pg_column_size(g.*) AS row_bytes, pg_column_size(message_id) AS id_bytes
FROM idem_generation_1 g;
-- an empty B-tree is one page
SELECT pg_relation_size('idem_generation_1_pkey') / current_setting('block_size')::int AS key_pages,
	   pg_relation_size('idem_generation_1_unfinished') / current_setting('block_size')::int AS unfinished_pages;
SELECT idem_begin('m-begun', 'inventory.reserve');
SELECT pg_relation_size('idem_generation_1_unfinished') / current_setting('block_size')::int AS unfinished_pages;
SET enable_seqscan = off;
SELECT message_id FROM idem_generation_1 WHERE completed_at IS NULL;
EXPLAIN (COSTS OFF)
SELECT message_id FROM idem_generation_1
WHERE completed_at IS NULL AND consumer_id = 1 ORDER BY received_at;
RESET enable_seqscan;
SELECT idem_forget('0192f0c1-0000-7000-8000-000000000001', 'inventory.reserve'),
	   idem_forget('m-begun', 'inventory.reserve');

--
-- The view finds a message by index in all three generations
--
SELECT count(*) FROM generate_series(1, 3000) i
WHERE idem_claim('m-' || i, 'inventory.reserve') = 'claimed';
SELECT idem_claim('m-4242', 'mail.confirm');
-- as the ring will turn; statistics for a stable plan
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT count(*) FROM generate_series(3001, 6000) i
WHERE idem_claim('m-' || i, 'inventory.reserve') = 'claimed';
UPDATE idem_ring SET current = 3;
SELECT count(*) FROM generate_series(6001, 9000) i
WHERE idem_claim('m-' || i, 'inventory.reserve') = 'claimed';
SELECT tableoid::regclass, count(*)
FROM (SELECT tableoid FROM idem_generation_1
	  UNION ALL SELECT tableoid FROM idem_generation_2
	  UNION ALL SELECT tableoid FROM idem_generation_3) g
GROUP BY 1 ORDER BY 1;
VACUUM ANALYZE idem_generation_1, idem_generation_2, idem_generation_3, idem_consumer;

EXPLAIN (COSTS OFF)
SELECT * FROM idem_inbox
WHERE message_id = 'm-4242' AND consumer = 'inventory.reserve';
SELECT message_id, consumer, state FROM idem_inbox
WHERE message_id = 'm-4242' AND consumer = 'inventory.reserve';

-- a parameter of type text, as most drivers send it
PREPARE record_of(text, text) AS
SELECT message_id, consumer, state FROM idem_inbox
WHERE message_id = $1 AND consumer = $2;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE record_of('m-4242', 'inventory.reserve');
EXECUTE record_of('m-42', 'inventory.reserve');
EXECUTE record_of('m-4242', 'inventory.reserve');
EXECUTE record_of('m-8888', 'inventory.reserve');
EXECUTE record_of('m-8888', 'mail.confirm');
RESET plan_cache_mode;
DEALLOCATE record_of;

-- people search as in text
SELECT message_id FROM idem_inbox
WHERE message_id::text LIKE 'm-424%' AND consumer = 'mail.confirm';

--
-- A claim probes the sealed generation and inserts into the current one
--
TRUNCATE idem_generation_1, idem_generation_2, idem_generation_3, idem_ring;
SELECT idem_claim('m-1', 'inventory.reserve');
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_claim('m-1', 'mail.confirm');
SELECT idem_begin('m-2', 'inventory.reserve');
UPDATE idem_ring SET current = 3;
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT idem_complete('m-2', 'inventory.reserve');
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT 1 AS generation, message_id FROM idem_generation_1
UNION ALL
SELECT 2, message_id FROM idem_generation_2
UNION ALL
SELECT 3, message_id FROM idem_generation_3
ORDER BY 1, 2;
-- the ring's state can go back to its default
DELETE FROM idem_ring;
SELECT idem_claim('m-1', 'inventory.reserve');

DROP EXTENSION idem_inbox;
