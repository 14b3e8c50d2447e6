--
-- The type idem_message_id: text for people, bytes for the index
--
CREATE EXTENSION idem_inbox;

-- text in, text out; a canonical lower-case UUID is kept in 17 bytes
CREATE TABLE id (n serial, given text);
INSERT INTO id (given) VALUES
	('m-1'), ('a'), (' '), ('trailing '), (' leading'), (E'line\nbreak'), (E'm-1\n'),
	('0192f0c1-0000-7000-8000-000000000001'),
	('0192F0C1-0000-7000-8000-000000000001'),
	('0192f0c1-0000-7000-8000-00000000000A'),
	('00000000-0000-0000-0000-000000000000'),
	('ffffffff-ffff-ffff-ffff-ffffffffffff'),
	('0192f0c1000070008000000000000001'),
	('{0192f0c1-0000-7000-8000-000000000001}'),
	('0192f0c1-0000-7000-8000-0000000000012'),
	('0192f0c1-0000-7000-8000-00000000000'),
	('0192f0c10-000-7000-8000-000000000001'),
	('0192f0c1-0000-7000-8000-00000000000g'),
	('0192f0c1-0000-7000-8000_000000000001'),
	('-192f0c1-0000-7000-8000-000000000001'),
	('urn:uuid:0192f0c1-0000-7000-8000-000000000001'),
	('0192f0c1-0000-7000-8000-000000000001 '),
	('01hy0c2000e000800000000001'),
	('0123456789abcdef'), (E'\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10'),
	(E'\x01'), (E'\x01m-1'), (E'\x7f'),
	(U&'caf\00e9'), (U&'cafe\0301'), (U&'\+01F4E6'), (U&'\5E97'), ('NULL'), ('\x00'), ('"quoted"'), ('{a,b}');
SELECT quote_literal(given) AS given, given::idem_message_id::text = given AS same,
	   octet_length(given) AS bytes,
	   CASE WHEN pg_column_size(given::idem_message_id) = 4 + 17
				 AND octet_length(given) = 36 THEN 'uuid'
			WHEN pg_column_size(given::idem_message_id) = 4 + 1 + octet_length(given)
			THEN 'bytes' END AS kept_as
FROM id ORDER BY n;
-- input and output, binary send, the text function, arrays and rows
SELECT count(*) AS wrong
FROM id
WHERE format('%s', given::idem_message_id) <> given
   OR convert_from(idem_message_id_send(given), 'UTF8') <> given
   OR text(idem_message_id(given)) <> given
   OR (ARRAY[given::idem_message_id]::text[])[1] <> given
   OR (ARRAY[given::idem_message_id]::text::idem_message_id[])[1] <> given;

-- all of them are different ids
SELECT count(*), count(DISTINCT given::idem_message_id) FROM id;
SELECT given, idem_claim(given, 'inventory.reserve') FROM id
WHERE given IN ('a', 'trailing ', E'm-1\n', 'm-1') ORDER BY n;
SELECT count(*) FROM id WHERE idem_claim(given, 'inventory.reserve') = 'claimed';
SELECT count(*) FROM id WHERE idem_claim(given, 'inventory.reserve') = 'duplicate';
SELECT idem_claim('A', 'inventory.reserve'), idem_claim('trailing', 'inventory.reserve');

-- byte order, UUIDs first; total
SELECT given::idem_message_id AS id FROM id
WHERE given !~ '^[0-9a-f]{8}-' AND given ~ '^[!-~]+$' ORDER BY id LIMIT 8;
SELECT count(*) AS wrong
FROM id a, id b,
	 LATERAL (SELECT a.given::idem_message_id AS x, b.given::idem_message_id AS y) v
WHERE (x < y) <> (idem_message_id_cmp(x, y) < 0)
   OR (x <= y) <> (idem_message_id_cmp(x, y) <= 0)
   OR (x = y) <> (a.given = b.given COLLATE "C")
   OR (x <> y) = (x = y)
   OR (x >= y) <> (y <= x)
   OR (x > y) <> (y < x)
   OR sign(idem_message_id_cmp(x, y)) <> - sign(idem_message_id_cmp(y, x))
   OR (x < y)::int + (x = y)::int + (x > y)::int <> 1;
WITH sorted AS (
	SELECT given, row_number() OVER (ORDER BY given::idem_message_id) AS by_id,
		   row_number() OVER (ORDER BY given ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' DESC,
							  given COLLATE "C") AS by_bytes
	FROM id)
SELECT count(*) AS wrong FROM sorted WHERE by_id <> by_bytes;
SELECT idem_message_id 'a' < 'B' AS lower_before_upper, idem_message_id 'a' < 'aa' AS prefix_first,
	   idem_message_id 'z' < U&'\00e9' AS ascii_first,
	   idem_message_id 'ffffffff-ffff-ffff-ffff-ffffffffffff' < ' ' AS uuid_first;

-- in an index, sorted, merged, as a key
CREATE TABLE keyed (id idem_message_id PRIMARY KEY);
INSERT INTO keyed SELECT given FROM id;
INSERT INTO keyed VALUES ('m-1');
INSERT INTO keyed VALUES ('M-1');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM keyed WHERE id >= 'm' AND id < 'n' ORDER BY id;
SELECT * FROM keyed WHERE id >= 'm' AND id < 'n' ORDER BY id;
SELECT * FROM keyed WHERE id = '0192f0c1-0000-7000-8000-000000000001';
RESET enable_seqscan;
RESET enable_bitmapscan;
SET enable_hashjoin = off;
SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM keyed a FULL JOIN keyed b ON a.id = b.id;
SELECT count(*) FROM keyed a FULL JOIN keyed b ON a.id = b.id;
RESET enable_hashjoin;
RESET enable_nestloop;
DROP TABLE keyed;
-- the operator class holds for every pair, as amvalidate sees it
SELECT amvalidate(oid) FROM pg_opclass WHERE opcname = 'idem_message_id_ops';

-- casts: text becomes an id by itself, an id becomes text where it is assigned
SELECT castsource::regtype, casttarget::regtype, castcontext FROM pg_cast
WHERE 'idem_message_id'::regtype IN (castsource, casttarget)
ORDER BY castsource::regtype::text;
SELECT idem_message_id 'm-1' = 'm-1'::text, 'm-1'::text = idem_message_id 'm-1',
	   idem_message_id 'm-1' = 'm-1'::varchar, 'm-1'::name::text = idem_message_id 'm-1';
SELECT idem_message_id 'm-1' || '' = 'm-1';
CREATE TEMP TABLE text_ids (id text, v varchar);
INSERT INTO text_ids SELECT message_id, message_id FROM idem_inbox WHERE message_id = 'm-1';
SELECT * FROM text_ids;
SELECT idem_claim(message_id::text, 'mail.confirm') FROM idem_inbox WHERE message_id = 'm-1';
-- a uuid column
SELECT idem_claim('0192F0C1-0000-7000-8000-000000000002'::uuid::text, 'inventory.reserve');
SELECT idem_claim('0192f0c1-0000-7000-8000-000000000002', 'inventory.reserve');

-- what is no id
SELECT ''::idem_message_id;
\echo :LAST_ERROR_SQLSTATE
SELECT ''::text::idem_message_id;
\echo :LAST_ERROR_SQLSTATE
SELECT repeat('x', 1025)::idem_message_id;
\echo :LAST_ERROR_SQLSTATE
SELECT repeat(U&'\5E97', 400)::idem_message_id;
\echo :LAST_ERROR_SQLSTATE
SELECT length(repeat('x', 1024)::idem_message_id::text);
SELECT NULL::text::idem_message_id IS NULL AS strict;

-- COPY
CREATE TABLE copied (id idem_message_id);
COPY copied FROM stdin;
m-1
0192f0c1-0000-7000-8000-000000000001
line\nbreak
\.
COPY copied TO stdout;
DROP TABLE copied;

DROP TABLE id;
DROP EXTENSION idem_inbox;
