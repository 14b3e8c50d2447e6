-- What sqlsmith finds: the extension, a table with arguments for its functions,
-- and of the server's own functions only some, so that the extension's are
-- called often.
CREATE EXTENSION idem_inbox;
SELECT idem_register('ledger', retention => '90 days', lease => '5 min');
SELECT idem_claim('m-' || i, 'ledger', idem_fingerprint(i::text)) FROM generate_series(1, 200) i;
SELECT idem_begin('b-' || i, 'mail', lease => CASE WHEN i % 2 = 0 THEN '0' ELSE '1 hour' END::interval)
FROM generate_series(1, 50) i;
SELECT idem_claim('m-1', 'ledger', idem_fingerprint('other'));

CREATE TABLE argument (
	message_id text, consumer text, max_wait interval, fingerprint bytea,
	payload jsonb, n int, at timestamptz, message_ids text[],
	fingerprints bytea[]
);
INSERT INTO argument VALUES
	('m-1', 'ledger', '0', idem_fingerprint('1'), '{"a": [1, 2.0]}', 1, now(), '{m-1,new-1,m-2}', NULL),
	('b-1', 'mail', '1 ms', NULL, '{"source": "a", "id": "b"}', 2, '2020-01-01', '{}', '{}'),
	('new', 'unknown', '-1 s', '', 'null', -1, 'infinity', '{NULL,""}', '{NULL,NULL}'),
	('', '', '178000000 years', '\x00', '"text"', 2147483647, '-infinity', '{{a,b},{c,d}}', '{"\\x00"}'),
	(repeat('x', 1025), repeat('y', 2000), NULL, decode(repeat('ab', 65), 'hex'), NULL, NULL, NULL, NULL, NULL);

CREATE ROLE smith LOGIN;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO smith;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO smith;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO smith;
UPDATE idem_consumer SET owner = 'smith';

-- sqlsmith reads pg_proc without a schema.
CREATE SCHEMA smith;
CREATE VIEW smith.pg_proc AS
SELECT oid, proname, pronamespace, prorettype, proargtypes, prokind,
	   false AS proretset
FROM pg_catalog.pg_proc p
WHERE proname LIKE 'idem\_%' AND prorettype <> 'trigger'::regtype
   OR pronamespace = 'pg_catalog'::regnamespace AND NOT proretset
	  AND proname IN ('concat', 'md5', 'now', 'length', 'repeat', 'to_jsonb',
					  'jsonb_build_array', 'make_interval', 'array_append',
					  'convert_to', 'abs', 'min', 'max', 'count');
GRANT USAGE ON SCHEMA smith TO smith;
GRANT SELECT ON smith.pg_proc TO smith;
ALTER ROLE smith SET search_path = smith, pg_catalog, public;
