--
-- Indexes that a user adds to a generation, and values out of line
--
CREATE EXTENSION idem_inbox;

-- a plain one, one on an expression, a partial one, a hash index, BRIN
CREATE INDEX user_received ON idem_generation_1 (received_at);
CREATE INDEX user_prefix ON idem_generation_1 ((pg_catalog.substr(message_id::text, 1, 2)));
CREATE INDEX user_digest ON idem_generation_1 (fingerprint) WHERE fingerprint IS NOT NULL;
CREATE INDEX user_attempt ON idem_generation_1 USING hash (attempt);
CREATE INDEX user_brin ON idem_generation_1 USING brin (completed_at);

SELECT idem_claim('a-' || i, 'inventory.reserve',
				  CASE WHEN i % 2 = 0 THEN decode(to_hex(i + 16), 'hex') END)
FROM generate_series(1, 4) i;
SELECT idem_begin('b-1', 'inventory.reserve');
BEGIN;
SELECT idem_claim('c-1', 'inventory.reserve', '\xff');
ROLLBACK;
-- a completion adds a new version to the indexes that its columns are in
SELECT idem_complete('b-1', 'inventory.reserve', '{"sent": true}');

SET enable_seqscan = off;
EXPLAIN (COSTS OFF)
SELECT message_id FROM idem_generation_1 WHERE substr(message_id::text, 1, 2) = 'a-';
SELECT message_id FROM idem_generation_1
WHERE substr(message_id::text, 1, 2) = 'a-' ORDER BY message_id;
SELECT message_id, detail FROM idem_generation_1
WHERE substr(message_id::text, 1, 2) = 'b-';
SELECT message_id FROM idem_generation_1
WHERE substr(message_id::text, 1, 2) = 'c-';
EXPLAIN (COSTS OFF)
SELECT message_id FROM idem_generation_1 WHERE fingerprint = '\x12';
SELECT message_id FROM idem_generation_1 WHERE fingerprint = '\x12';
SELECT message_id FROM idem_generation_1 WHERE fingerprint = '\xff';
EXPLAIN (COSTS OFF)
SELECT count(*) FROM idem_generation_1 WHERE received_at > '-infinity';
SELECT count(*) FROM idem_generation_1 WHERE received_at > '-infinity';
EXPLAIN (COSTS OFF)
SELECT message_id FROM idem_generation_1 WHERE attempt = 1;
SELECT message_id, completed_at IS NOT NULL AS completed
FROM idem_generation_1 WHERE attempt = 1;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
EXPLAIN (COSTS OFF)
SELECT count(*) FROM idem_generation_1 WHERE completed_at > '-infinity';
SELECT count(*) FROM idem_generation_1 WHERE completed_at > '-infinity';
RESET enable_indexscan;
RESET enable_indexonlyscan;
RESET enable_seqscan;

-- A user's own unique index is a rule for the business; its violation is an
-- error, never taken for a duplicate.
CREATE UNIQUE INDEX user_unique ON idem_generation_1 (fingerprint);
SELECT idem_claim('d-1', 'inventory.reserve', '\x12');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('d-1', 'inventory.reserve', '\x13');
SELECT idem_claim('d-1', 'inventory.reserve', '\x13');

-- an index that fails fails the claim, and leaves nothing
CREATE INDEX user_fails ON idem_generation_1 ((1 / (pg_catalog.length(message_id::text) - 1)));
SELECT idem_claim('e', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
DROP INDEX user_fails;
SELECT idem_claim('e', 'inventory.reserve');

-- an exclusion constraint
ALTER TABLE idem_generation_1 ADD CONSTRAINT user_exclusion
	EXCLUDE USING btree ((pg_catalog.upper(message_id::text)) WITH =);
SELECT idem_claim('D-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE idem_generation_1 DROP CONSTRAINT user_exclusion;
SELECT idem_claim('D-1', 'inventory.reserve');

-- indexes that come and go in a session that has already claimed
DROP INDEX user_received, user_prefix, user_digest, user_attempt, user_brin, user_unique;
SELECT idem_claim('f-1', 'inventory.reserve', '\x12');
REINDEX TABLE idem_generation_1;
SELECT idem_claim('f-1', 'inventory.reserve', '\x12');
SELECT idem_claim('f-2', 'inventory.reserve');
VACUUM FULL idem_generation_1;
SELECT idem_claim('f-2', 'inventory.reserve');
SELECT idem_claim('f-3', 'inventory.reserve');
TRUNCATE idem_generation_1;
SELECT idem_claim('f-3', 'inventory.reserve');

--
-- A result that is too long for a row is kept out of line
--
SET idem_inbox.max_result = '2MB';
SELECT jsonb_agg(md5(i::text)) AS result FROM generate_series(1, 30000) i \gset
SELECT idem_begin('long', 'inventory.reserve');
SELECT idem_complete('long', 'inventory.reserve', :'result');
SELECT result = :'result' AS same, pg_column_size(result) > 100000 AS long
FROM idem_status('long', 'inventory.reserve');
SELECT result = :'result' AS same FROM idem_inbox WHERE message_id = 'long';
SELECT idem_claim('long', 'inventory.reserve');
SELECT idem_complete('long', 'inventory.reserve', '1');
BEGIN;
SELECT idem_claim('long-' || i, 'inventory.reserve') FROM generate_series(1, 3) i;
SELECT idem_complete(:'result'::jsonb);
COMMIT;
SELECT message_id, result = :'result' AS same FROM idem_inbox
WHERE message_id >= 'long-' ORDER BY message_id;
-- a record with a long result is deleted, and what lies out of line with it
SELECT idem_forget('long', 'inventory.reserve');
SELECT idem_forget('long-' || i, 'inventory.reserve') FROM generate_series(1, 3) i;
SELECT reltoastrelid::regclass AS toast FROM pg_class
WHERE oid = 'idem_generation_1'::regclass \gset
SELECT count(*) FROM :toast;

-- the longest id and fingerprint
SELECT idem_claim(repeat('x', 1024), 'inventory.reserve',
				  decode(repeat('ab', 64), 'hex'));
SELECT idem_claim(repeat('x', 1024), 'inventory.reserve',
				  decode(repeat('ab', 64), 'hex'));
SELECT idem_claim(repeat('x', 1024), 'inventory.reserve',
				  decode(repeat('ab', 63) || 'ac', 'hex'));

DROP EXTENSION idem_inbox;
