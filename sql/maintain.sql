--
-- idem_maintain: the ring turns, one step at a call
--
CREATE EXTENSION idem_inbox;
SET idem_inbox.retention = '1 h';

-- Others on the server, such as autovacuum, may be in the way for a moment.
CREATE PROCEDURE maintain(INOUT step text DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		step := idem_maintain();
		COMMIT;
		EXIT WHEN step <> 'waiting';
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
CREATE VIEW generation_row AS
	SELECT generation, message_id, completed_at IS NULL AS in_progress,
		   completed_at = '-infinity' AS placeholder
	FROM (SELECT 1 AS generation, * FROM idem_generation_1
		  UNION ALL
		  SELECT 2, * FROM idem_generation_2
		  UNION ALL
		  SELECT 3, * FROM idem_generation_3) r
	ORDER BY message_id, generation;

-- as created: no row, and the first call makes one
SELECT count(*) FROM idem_ring;
SELECT "table", role, next_step FROM idem_generation ORDER BY "table";
CALL maintain();
SELECT current, next_open, previous_sealed, horizon IS NOT NULL AS horizon,
	   current_age, previous_age, sealed_at
FROM idem_ring;
CALL maintain();

-- a turn
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_begin('m-2', 'inventory.reserve');
UPDATE idem_ring SET current_age = '59 min 50 s';
CALL maintain();
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
SELECT "table", role, next_step FROM idem_generation ORDER BY "table";
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT idem_begin('m-4', 'inventory.reserve');
SELECT * FROM generation_row;
SELECT message_id, state FROM idem_inbox ORDER BY message_id;

-- which goes on by itself, as soon as nobody is under the view before
CALL maintain();
SELECT "table", role, next_step FROM idem_generation ORDER BY "table";
SELECT id, idem_claim(id, 'inventory.reserve')
FROM (VALUES ('m-1'), ('m-2'), ('m-3'), ('m-4'), ('m-5')) AS delivery(id);
CALL maintain();
UPDATE idem_ring SET previous_age = '59 min 50 s';
CALL maintain();
SELECT idem_claim('m-1', 'inventory.reserve');

-- expired: what is completed goes, what is in progress stays
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
SELECT * FROM generation_row;
CALL maintain();
SELECT * FROM generation_row;
SELECT "table", role, next_step FROM idem_generation ORDER BY "table";
SELECT id, idem_claim(id, 'inventory.reserve')
FROM (VALUES ('m-1'), ('m-2'), ('m-3'), ('m-4'), ('m-5')) AS delivery(id);
SELECT idem_complete('m-2', 'inventory.reserve');
CALL maintain();

-- previous counts from its seal, current from its opening
SELECT current_age < '1 min' AS young, previous_age FROM idem_ring;
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
SELECT "table", role, next_step FROM idem_generation ORDER BY "table";
SELECT * FROM generation_row;

--
-- Retention of the setting: per session, per database
--
UPDATE idem_ring SET current_age = '1 day';
SET idem_inbox.retention = '2d';
CALL maintain();
SET idem_inbox.retention = '1d';
CALL maintain();
CALL maintain();
SELECT current_database() AS db \gset
ALTER DATABASE :"db" SET idem_inbox.retention = '3d';
\c -
UPDATE idem_ring SET previous_age = '2 days 23:59';
CALL maintain();
-- in a session that uses the library only now
\c -
UPDATE idem_ring SET previous_age = '3 days';
\c -
CALL maintain();
CALL maintain();
SHOW idem_inbox.retention;
ALTER DATABASE :"db" RESET idem_inbox.retention;
\c -
UPDATE idem_ring SET current_age = '13 days';
CALL maintain();
SHOW idem_inbox.retention;
DELETE FROM idem_generation_1;
DELETE FROM idem_generation_2;
DELETE FROM idem_generation_3;

--
-- Retention of a consumer, longer than the setting
--
SET idem_inbox.retention = '1 h';
DELETE FROM idem_ring;
ALTER TABLE idem_generation_1 SET (autovacuum_enabled = off);
ALTER TABLE idem_generation_2 SET (autovacuum_enabled = off);
ALTER TABLE idem_generation_3 SET (autovacuum_enabled = off);
SELECT idem_register('ledger.book', retention => '1 day');
SELECT idem_register('cache.fill', retention => '1 min');
SELECT idem_register('mail.confirm');
SELECT count(*) FROM generate_series(1, 2500) i
WHERE idem_claim('l-' || i, 'ledger.book') = 'claimed';
SELECT idem_claim('c-1', 'cache.fill'), idem_claim('i-1', 'inventory.reserve');

-- all that a record holds is moved, out of line or not
SELECT idem_claim('l-fingerprint', 'ledger.book', '\x0123');
SELECT idem_begin('l-result', 'ledger.book', '\x4567');
SELECT string_agg(sha512(i::text::bytea)::text, '') AS large
FROM generate_series(1, 50) i \gset
SELECT idem_complete('l-result', 'ledger.book', to_jsonb(:'large'::text));
SELECT idem_begin('l-lease', 'mail.confirm', '\x89', lease => '1 day');
CREATE TABLE before AS SELECT * FROM idem_generation_1;
SELECT pg_relation_size(reltoastrelid) > 0 AS out_of_line
FROM pg_class WHERE oid = 'idem_generation_1'::regclass;

CALL maintain();
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
SELECT count(*) FROM idem_generation_2;
CALL maintain();
CALL maintain();
SELECT count(*) FROM idem_generation_2;
CALL maintain();
SELECT "table", role FROM idem_generation ORDER BY "table";
-- what is gone, and what has changed
SELECT message_id FROM before
EXCEPT SELECT message_id FROM idem_generation_2 ORDER BY message_id;
SELECT count(*) FROM (TABLE before INTERSECT TABLE idem_generation_2) s;
SELECT count(*) FROM generate_series(1, 2500) i
WHERE idem_claim('l-' || i, 'ledger.book') = 'duplicate';
SELECT idem_claim('l-fingerprint', 'ledger.book', '\x0123'),
	   idem_claim('l-lease', 'mail.confirm'),
	   idem_claim('c-1', 'cache.fill'), idem_claim('i-1', 'inventory.reserve');
SELECT result = to_jsonb(:'large'::text) AS result
FROM idem_status('l-result', 'ledger.book');

-- a turn later they are past their own retention, or not
UPDATE idem_generation_2 SET received_at = received_at - interval '1 day'
WHERE message_id IN ('l-1', 'l-2', 'l-3');
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
CALL maintain();
CALL maintain();
SELECT count(*) FROM idem_inbox WHERE consumer = 'ledger.book';
SELECT id, idem_claim(id, 'ledger.book')
FROM (VALUES ('l-1'), ('l-2'), ('l-3'), ('l-4')) AS delivery(id);

-- the policy changes between two steps: it holds from then on
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
SELECT idem_register('ledger.book', retention => '1 min');
SELECT count(*) FROM idem_generation_1 WHERE message_id <> 'l-lease';
CALL maintain();
SELECT count(*) FROM idem_inbox WHERE consumer = 'ledger.book';
SELECT idem_register('ledger.book', retention => '100 years');
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
UPDATE idem_consumer SET retention = NULL WHERE name = 'ledger.book';
CALL maintain();
SELECT count(*) FROM idem_inbox WHERE consumer = 'ledger.book';
-- a retention that ends after the end of time, as plain SQL may write it
UPDATE idem_consumer SET retention = '250000 years' WHERE name = 'ledger.book';
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_consumer SET retention = '1000000 years' WHERE name = 'ledger.book';
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
SELECT count(*) FROM idem_inbox WHERE consumer = 'ledger.book';
UPDATE idem_consumer SET retention = NULL WHERE name = 'ledger.book';
DROP TABLE before;

--
-- Indexes that a user made on a generation
--
DELETE FROM idem_generation_1;
DELETE FROM idem_generation_2;
DELETE FROM idem_generation_3;
DELETE FROM idem_ring;
CREATE UNIQUE INDEX by_text ON idem_generation_2 ((message_id::text COLLATE "C"), consumer_id);
CREATE INDEX by_time ON idem_generation_2 (received_at) WHERE completed_at > '-infinity';
CREATE INDEX by_brin ON idem_generation_1 USING brin (received_at);
SELECT idem_claim('u-1', 'mail.confirm'), idem_begin('u-2', 'mail.confirm');
CALL maintain();
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
SELECT idem_complete('u-2', 'mail.confirm'), idem_claim('u-3', 'mail.confirm');
CALL maintain();
SET enable_seqscan = off;
SELECT message_id FROM idem_generation_2 WHERE message_id::text = 'u-2';
SELECT message_id FROM idem_generation_2 WHERE received_at > now() - interval '1 hour'
	AND completed_at > '-infinity' ORDER BY message_id;
SELECT count(*) FROM idem_generation_1 WHERE received_at > now() - interval '1 hour';
RESET enable_seqscan;
DROP INDEX by_text, by_time, by_brin;

--
-- A cursor of the very session that maintains
--
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
BEGIN;
DECLARE records CURSOR FOR SELECT message_id FROM idem_inbox ORDER BY message_id;
DECLARE rows CURSOR FOR SELECT message_id FROM idem_generation_2;
FETCH records;
FETCH rows;
SELECT idem_maintain();
FETCH records;
FETCH rows;
COMMIT;
CALL maintain();
SELECT * FROM generation_row;

--
-- A step whose subtransaction fails
--
UPDATE idem_ring SET current_age = '1 h';
DO $$
BEGIN
	BEGIN
		RAISE INFO '%', idem_maintain() IN ('opened', 'waiting');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'rolled back';
	END;
END
$$;
SELECT role FROM idem_generation WHERE role = 'next';
CALL maintain();
SELECT role FROM idem_generation WHERE role = 'next';

--
-- Who may, and when
--
BEGIN READ ONLY;
SELECT idem_maintain();
ROLLBACK;
CREATE ROLE regress_idem_scheduler;
SET ROLE regress_idem_scheduler;
SELECT idem_maintain();
SELECT count(*) FROM idem_generation;
RESET ROLE;
-- EXECUTE is all that it takes
GRANT EXECUTE ON FUNCTION idem_maintain() TO regress_idem_scheduler;
SET ROLE regress_idem_scheduler;
SELECT idem_maintain() IN ('sealed', 'waiting') AS maintained;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idem_maintain() FROM regress_idem_scheduler;
-- pg_monitor looks on
GRANT pg_monitor TO regress_idem_scheduler;
SET ROLE regress_idem_scheduler;
SELECT count(*) FROM idem_generation;
RESET ROLE;
DROP ROLE regress_idem_scheduler;

DROP VIEW generation_row;
DROP PROCEDURE maintain;
DROP EXTENSION idem_inbox;
