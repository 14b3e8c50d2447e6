--
-- idem_complete(): declares this transaction's claims finished
--
CREATE EXTENSION idem_inbox;

-- counts and stores
BEGIN;
SELECT idem_complete();
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT idem_complete('{"reserved": 2}'::jsonb);
SELECT idem_complete('{"reserved": 3}'::jsonb);
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT idem_complete();
SELECT idem_complete();
COMMIT;
SELECT message_id, state, attempt, result FROM idem_inbox ORDER BY message_id;
-- a duplicate can answer as the first one did
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT result FROM idem_status('m-1', 'inventory.reserve');
-- nothing is left for the next transaction
SELECT idem_complete();
BEGIN;
SELECT idem_claim('m-4', 'inventory.reserve');
ROLLBACK;
SELECT idem_complete();

-- a duplicate is no claim, nor is the first phase of a two-phase record
BEGIN;
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_begin('m-5', 'inventory.reserve');
SELECT idem_complete('"done"'::jsonb);
COMMIT;
SELECT state, result FROM idem_status('m-5', 'inventory.reserve');

-- savepoints: what was rolled back is neither claimed nor declared
BEGIN;
SELECT idem_claim('s-1', 'inventory.reserve');
SAVEPOINT s;
SELECT idem_claim('s-2', 'inventory.reserve');
ROLLBACK TO SAVEPOINT s;
SELECT idem_complete('1'::jsonb);
COMMIT;
BEGIN;
SELECT idem_claim('s-3', 'inventory.reserve');
SAVEPOINT s;
SELECT idem_claim('s-4', 'inventory.reserve');
SELECT idem_complete('2'::jsonb);
ROLLBACK TO SAVEPOINT s;
SELECT idem_complete('3'::jsonb);
SELECT idem_complete('4'::jsonb);
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('s-5', 'inventory.reserve');
SAVEPOINT t;
SELECT idem_claim('s-6', 'inventory.reserve');
RELEASE SAVEPOINT t;
SELECT idem_complete('5'::jsonb);
RELEASE SAVEPOINT s;
SELECT idem_complete('6'::jsonb);
SAVEPOINT s;
SELECT idem_claim('s-7', 'inventory.reserve');
RELEASE SAVEPOINT s;
SELECT idem_complete('7'::jsonb);
COMMIT;
-- declared in a savepoint that is released, then rolled back with its parent
BEGIN;
SELECT idem_claim('s-8', 'inventory.reserve');
SAVEPOINT s;
SAVEPOINT t;
SELECT idem_complete('8'::jsonb);
RELEASE SAVEPOINT t;
ROLLBACK TO SAVEPOINT s;
SELECT idem_complete('9'::jsonb);
COMMIT;
SELECT message_id, result FROM idem_inbox WHERE message_id >= 's-' ORDER BY message_id;

-- claims that were forgotten meanwhile
BEGIN;
SELECT idem_claim('g-1', 'inventory.reserve');
SELECT idem_claim('g-2', 'inventory.reserve');
SELECT idem_forget('g-1', 'inventory.reserve');
SELECT idem_complete('1'::jsonb) >= 1 AS completed;
COMMIT;
SELECT message_id, result FROM idem_inbox WHERE message_id >= 'g-' AND message_id < 'h';

-- several consumers, in PL/pgSQL with a handler
DO $$
BEGIN
	ASSERT idem_claim('h-1', 'inventory.reserve') = 'claimed';
	BEGIN
		ASSERT idem_claim('h-1', 'mail.confirm') = 'claimed';
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	ASSERT idem_claim('h-1', 'billing.charge') = 'claimed';
	ASSERT idem_complete('"h"'::jsonb) = 2;
END
$$;
SELECT consumer, result FROM idem_inbox WHERE message_id = 'h-1' ORDER BY consumer;

-- claims in the sealed generation's time and after the turn
BEGIN;
SELECT idem_claim('r-1', 'inventory.reserve');
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_claim('r-2', 'inventory.reserve');
SELECT idem_complete('"r"'::jsonb);
DELETE FROM idem_ring;
COMMIT;
SELECT tableoid::regclass, message_id, detail FROM idem_generation_1
WHERE message_id >= 'r-' AND message_id < 's'
UNION ALL
SELECT tableoid::regclass, message_id, detail FROM idem_generation_2;
TRUNCATE idem_generation_2;

-- as many claims as a transaction likes, but a result for 1000 at most
BEGIN;
SELECT count(*) FROM generate_series(1, 1000) i
WHERE idem_claim('n-' || i, 'inventory.reserve') = 'claimed';
SELECT idem_complete('"thousand"'::jsonb);
COMMIT;
SELECT count(*) FROM idem_inbox WHERE result = '"thousand"';
BEGIN;
SELECT count(*) FROM generate_series(1001, 2001) i
WHERE idem_claim('n-' || i, 'inventory.reserve') = 'claimed';
SAVEPOINT s;
SELECT idem_complete('"too many"'::jsonb);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO SAVEPOINT s;
SELECT idem_complete();
SELECT idem_complete();
COMMIT;
SELECT count(*) AS records, count(result) AS results FROM idem_inbox
WHERE message_id >= 'n-' AND message_id < 'o';

DROP EXTENSION idem_inbox;
