--
-- The schema chosen at CREATE EXTENSION; search_path does not matter
--
CREATE SCHEMA "Odd; schema";
-- a function of the library, but no extension
CREATE FUNCTION orphan(text, text) RETURNS bool AS '$libdir/idem_inbox', 'idem_seen' LANGUAGE C;
SELECT orphan('m-1', 'inventory.reserve');
DROP FUNCTION orphan;
CREATE EXTENSION idem_inbox SCHEMA "Odd; schema";
SELECT count(*) AS elsewhere
FROM pg_extension e
	 JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = e.oid AND d.deptype = 'e'
	 JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE e.extname = 'idem_inbox' AND p.pronamespace <> e.extnamespace;

-- not in the search_path at all
SET search_path = '';
SELECT "Odd; schema".idem_claim('m-1', 'inventory.reserve');
SELECT "Odd; schema".idem_claim('m-1', 'inventory.reserve');
SELECT "Odd; schema".idem_begin('m-2', 'inventory.reserve', lease => '1 hour');
SELECT "Odd; schema".idem_complete('m-2', 'inventory.reserve', '1');
SELECT state, result FROM "Odd; schema".idem_status('m-2', 'inventory.reserve');
SELECT "Odd; schema".idem_register('inventory.reserve', lease => '1 hour');
SELECT message_id, consumer, state FROM "Odd; schema".idem_inbox ORDER BY received_at;
RESET search_path;

-- a search_path full of traps, pg_catalog last
CREATE SCHEMA evil;
CREATE FUNCTION evil.trap() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a trap was called';
END
$$;
CREATE FUNCTION evil.trap_text(text, text) RETURNS bool
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT true $$;
CREATE FUNCTION evil.trap_int(int, int) RETURNS bool
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT true $$;
CREATE FUNCTION evil.trap_timestamptz(timestamptz, timestamptz) RETURNS bool
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT true $$;
CREATE OPERATOR evil.= (FUNCTION = evil.trap_text, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.= (FUNCTION = evil.trap_int, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR evil.> (FUNCTION = evil.trap_timestamptz, LEFTARG = timestamptz, RIGHTARG = timestamptz);
CREATE FUNCTION evil.now() RETURNS timestamptz
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT pg_catalog.now() $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT pg_catalog.now() $$;
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT 1::bigint $$;
CREATE FUNCTION evil.octet_length(text) RETURNS int
LANGUAGE sql AS $$ SELECT evil.trap(); SELECT 1 $$;
CREATE TABLE evil.idem_consumer (consumer_id int, name text, retention interval,
								 lease interval, owner name, created_at timestamptz);
CREATE TABLE evil.idem_ring (current int2, next_open bool, previous_sealed bool);
CREATE TABLE evil.idem_generation_1 (LIKE "Odd; schema".idem_generation_1);
CREATE TYPE evil.idem_outcome AS ENUM ('duplicate');
CREATE TYPE evil.idem_message_id AS (x int);
CREATE TEMP TABLE idem_consumer (LIKE evil.idem_consumer);
CREATE TEMP TABLE idem_generation_1 (LIKE evil.idem_generation_1);

SET search_path = pg_temp, evil, "Odd; schema", pg_catalog;
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT idem_claim('m-3', 'mail.confirm');
SELECT idem_begin('m-4', 'mail.confirm');
SELECT idem_seen('m-3', 'mail.confirm');
SELECT state FROM idem_status('m-4', 'mail.confirm');
SELECT idem_complete('m-4', 'mail.confirm');
SELECT idem_register('mail.welcome', lease => '1 hour', retention => '1 year');
SELECT idem_forget('m-4', 'mail.confirm');
BEGIN;
SELECT idem_claim('m-5', 'mail.welcome');
SELECT idem_complete('1'::jsonb);
COMMIT;
SELECT message_id, consumer, state FROM idem_inbox
WHERE message_id OPERATOR("Odd; schema".=) 'm-3';
RESET search_path;
SELECT (SELECT count(*) FROM evil.idem_consumer) AS consumers,
	   (SELECT count(*) FROM evil.idem_generation_1) AS records,
	   (SELECT count(*) FROM pg_temp.idem_consumer) AS temp_consumers,
	   (SELECT count(*) FROM pg_temp.idem_generation_1) AS temp_records;
SELECT name FROM "Odd; schema".idem_consumer ORDER BY name;

-- a schema with a new name is still the same; the extension does not move
ALTER SCHEMA "Odd; schema" RENAME TO inbox;
SELECT inbox.idem_claim('m-3', 'inventory.reserve');
SELECT inbox.idem_claim('m-6', 'inventory.reserve');
ALTER EXTENSION idem_inbox SET SCHEMA evil;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
RESET client_min_messages;
DROP TABLE pg_temp.idem_consumer, pg_temp.idem_generation_1;

--
-- Dropped and created again, in a session that remembers
--
DROP SCHEMA inbox CASCADE;
SELECT inbox.idem_claim('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
CREATE EXTENSION idem_inbox;
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_register('mail.confirm', lease => '1 hour');
SELECT idem_begin('m-1', 'mail.confirm');
CREATE FUNCTION process(id text) RETURNS text LANGUAGE plpgsql
AS $$ BEGIN RETURN idem_claim(id, 'inventory.reserve'); END $$;
SELECT process('m-1'), process('m-2');
DROP EXTENSION idem_inbox;
\set VERBOSITY terse
SELECT process('m-1');
\set VERBOSITY default
CREATE EXTENSION idem_inbox;
SELECT process('m-1'), process('m-2'), process('m-2');
SELECT idem_begin('m-1', 'mail.confirm');
SELECT idem_begin('m-1', 'mail.confirm');
-- the same within a transaction, and a drop that rolls back
BEGIN;
SELECT process('m-3');
DROP EXTENSION idem_inbox;
CREATE EXTENSION idem_inbox;
SELECT process('m-3'), process('m-3');
SELECT count(*) FROM idem_inbox;
ROLLBACK;
SELECT process('m-2'), process('m-3');
BEGIN;
SELECT process('m-4');
SAVEPOINT s;
DROP EXTENSION idem_inbox;
ROLLBACK TO SAVEPOINT s;
SELECT process('m-4');
SELECT idem_complete();
COMMIT;
SELECT process('m-4');
DROP FUNCTION process;
-- claims of an extension that is gone before the transaction ends
BEGIN;
SELECT idem_claim('m-5', 'inventory.reserve');
SELECT idem_begin('m-6', 'inventory.reserve');
DROP EXTENSION idem_inbox;
CREATE EXTENSION idem_inbox;
SELECT idem_claim('m-5', 'inventory.reserve');
COMMIT;
SELECT message_id FROM idem_inbox;

DROP EXTENSION idem_inbox;
