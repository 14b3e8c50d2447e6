--
-- idem_claim: one message, one consumer, once
--
CREATE EXTENSION idem_inbox;

SELECT enum_range(NULL::idem_outcome);

SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_claim('m-1', 'inventory.reserve');
-- another message, another consumer
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT idem_claim('m-1', 'mail.confirm');
SELECT message_id, consumer, state, completed_at >= received_at AS completed,
	   attempt, lease_until, fingerprint, result
FROM idem_inbox ORDER BY message_id, consumer;

-- times are the server's, at the claim
BEGIN;
SELECT idem_claim('m-time', 'inventory.reserve');
SELECT received_at BETWEEN now() AND clock_timestamp() AS now
FROM idem_inbox WHERE message_id = 'm-time';
COMMIT;

-- named parameters, as a consumer may write it
SELECT idem_claim(message_id => 'm-1', consumer => 'inventory.reserve',
				  fingerprint => NULL, max_wait => NULL);

-- both or neither
CREATE TABLE stock_item (title text, reserved int);
INSERT INTO stock_item VALUES ('Dune', 0);
BEGIN;
SELECT idem_claim('m-3', 'inventory.reserve');
UPDATE stock_item SET reserved = reserved + 2;
ROLLBACK;
SELECT count(*) FROM idem_inbox WHERE message_id = 'm-3';
BEGIN;
SELECT idem_claim('m-3', 'inventory.reserve');
UPDATE stock_item SET reserved = reserved + 2;
COMMIT;
BEGIN;
SELECT idem_claim('m-3', 'inventory.reserve');
COMMIT;
SELECT * FROM stock_item;
DROP TABLE stock_item;

-- the same key twice in one transaction, and in one statement
BEGIN;
SELECT idem_claim('m-4', 'inventory.reserve');
SELECT idem_claim('m-4', 'inventory.reserve');
COMMIT;
SELECT idem_claim('m-4', 'inventory.reserve');
SELECT id, idem_claim(id, 'inventory.reserve')
FROM (VALUES ('m-5'), ('m-6'), ('m-5'), ('m-6')) AS batch(id);

-- in other statements
WITH claim AS (SELECT idem_claim('m-7', 'inventory.reserve') AS outcome)
SELECT CASE outcome WHEN 'claimed' THEN 'works' WHEN 'duplicate' THEN 'acks' END
FROM claim;
DO $$
BEGIN
	IF idem_claim('m-7', 'inventory.reserve') <> 'duplicate' THEN
		RAISE EXCEPTION 'a message was processed twice';
	END IF;
END
$$;
PREPARE claim(text, text) AS SELECT idem_claim($1, $2);
EXECUTE claim('m-8', 'inventory.reserve');
EXECUTE claim('m-8', 'inventory.reserve');
DEALLOCATE claim;
-- a cursor that stays open while the transaction goes on
BEGIN;
DECLARE batch CURSOR FOR
	SELECT id, idem_claim(id, 'inventory.reserve')
	FROM (VALUES ('m-9'), ('m-10')) AS batch(id);
FETCH batch;
SELECT idem_claim('m-10', 'inventory.reserve');
FETCH batch;
COMMIT;

--
-- Savepoints
--
BEGIN;
SAVEPOINT s;
SELECT idem_claim('s-1', 'inventory.reserve');
ROLLBACK TO SAVEPOINT s;
SELECT idem_claim('s-1', 'inventory.reserve');
COMMIT;
SELECT idem_claim('s-1', 'inventory.reserve');

BEGIN;
SAVEPOINT s;
SELECT idem_claim('s-2', 'inventory.reserve');
RELEASE SAVEPOINT s;
SELECT idem_claim('s-2', 'inventory.reserve');
SAVEPOINT s;
SELECT idem_claim('s-3', 'inventory.reserve');
SAVEPOINT t;
SELECT idem_claim('s-3', 'inventory.reserve');
SELECT idem_claim('s-4', 'inventory.reserve');
RELEASE SAVEPOINT t;
ROLLBACK TO SAVEPOINT s;
SELECT idem_claim('s-4', 'inventory.reserve');
COMMIT;
SELECT message_id FROM idem_inbox WHERE message_id >= 's-2' ORDER BY message_id;

-- a handler that swallows its error takes back the claim as well
DO $$
BEGIN
	BEGIN
		ASSERT idem_claim('s-5', 'inventory.reserve') = 'claimed';
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		ASSERT idem_claim('s-5', 'inventory.reserve') = 'claimed';
	END;
	ASSERT idem_claim('s-5', 'inventory.reserve') = 'duplicate';
END
$$;
SELECT count(*) FROM idem_inbox WHERE message_id = 's-5';

-- PL/pgSQL procedures that commit
CREATE PROCEDURE process(ids text[]) LANGUAGE plpgsql AS $$
DECLARE
	id text;
BEGIN
	FOREACH id IN ARRAY ids LOOP
		RAISE INFO '% is %', id, idem_claim(id, 'inventory.reserve');
		IF id = 'p-2' THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END
$$;
CALL process('{p-1,p-2,p-1,p-2,p-3}');
DROP PROCEDURE process;
SELECT message_id FROM idem_inbox WHERE message_id >= 'p-' AND message_id < 'q'
ORDER BY message_id;

--
-- Different content under a known id: mismatch, before any other outcome
--
SELECT idem_claim('f-1', 'inventory.reserve', '\x01');
SELECT idem_claim('f-1', 'inventory.reserve', '\x01');
SELECT idem_claim('f-1', 'inventory.reserve', '\x02');
SELECT idem_claim('f-1', 'inventory.reserve', '\x0100');
-- who does not say what the content is gets no mismatch
SELECT idem_claim('f-1', 'inventory.reserve');
SELECT idem_claim('f-2', 'inventory.reserve');
SELECT idem_claim('f-2', 'inventory.reserve', '\x01');
-- a byte that a C string would end at
SELECT idem_claim('f-3', 'inventory.reserve', '\x00');
SELECT idem_claim('f-3', 'inventory.reserve', '\x00');
SELECT idem_claim('f-3', 'inventory.reserve', '\x0001');
-- of each consumer by itself
SELECT idem_claim('f-1', 'mail.confirm', '\x02');
-- before in_progress and needs_reconciliation
SELECT idem_begin('f-4', 'mail.confirm', '\x01');
SELECT idem_claim('f-4', 'mail.confirm', '\x02');
SELECT idem_claim('f-4', 'mail.confirm', '\x01');
SELECT idem_begin('f-5', 'mail.confirm', '\x01', lease => '1 hour');
SELECT idem_begin('f-5', 'mail.confirm', '\x02');
SELECT idem_begin('f-5', 'mail.confirm', '\x01');
-- of a claim in the same transaction
BEGIN;
SELECT idem_claim('f-6', 'inventory.reserve', '\x01');
SELECT idem_claim('f-6', 'inventory.reserve', '\x02');
COMMIT;
-- in the sealed generation
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_claim('f-1', 'inventory.reserve', '\x02');
SELECT idem_claim('f-1', 'inventory.reserve', '\x01');
DELETE FROM idem_ring;
-- the first content stays
SELECT message_id, consumer, fingerprint FROM idem_inbox
WHERE message_id >= 'f-' AND message_id < 'g' ORDER BY message_id, consumer;

--
-- A duplicate writes nothing: no WAL, no transaction id, no lock left behind
--
CREATE FUNCTION wal_records(statement text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, WAL, FORMAT JSON) ' || statement INTO plan;
	RETURN plan->0->'Plan'->>'WAL Records';
END
$$;
SELECT wal_records($$SELECT idem_claim('w-1', 'inventory.reserve')$$) > 0 AS claim_writes;
-- whoever reads a row first may set its hint bits
SELECT idem_claim('w-1', 'inventory.reserve');
SELECT wal_records($$SELECT idem_claim('w-1', 'inventory.reserve')$$) AS wal_of_a_duplicate;
SELECT wal_records($$SELECT idem_begin('w-1', 'inventory.reserve')$$) AS wal_of_a_duplicate;
BEGIN;
SELECT idem_claim('w-1', 'inventory.reserve');
SELECT idem_begin('w-1', 'inventory.reserve');
SELECT pg_current_xact_id_if_assigned();
SELECT count(*) AS locks FROM pg_locks
WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'idem%';
COMMIT;
-- a claim has a transaction id, and locks the generation that it writes
BEGIN;
SELECT idem_claim('w-2', 'inventory.reserve');
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS has_xid;
SELECT relation::regclass, mode FROM pg_locks
WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'idem\_generation\__'
ORDER BY relation::regclass::text;
COMMIT;
-- no lock on the sealed generation is left behind
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
BEGIN;
SELECT idem_claim('w-1', 'inventory.reserve');
SELECT pg_current_xact_id_if_assigned();
SELECT count(*) AS locks FROM pg_locks
WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'idem%';
SELECT idem_claim('w-3', 'inventory.reserve');
SELECT relation::regclass, mode FROM pg_locks
WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'idem\_generation\__'
ORDER BY relation::regclass::text;
COMMIT;
DROP FUNCTION wal_records;

-- busy says that another transaction holds the message: not this one
BEGIN;
SELECT idem_claim('b-1', 'inventory.reserve', max_wait => '0');
SELECT idem_claim('b-1', 'inventory.reserve', max_wait => '0');
COMMIT;

DROP EXTENSION idem_inbox;
