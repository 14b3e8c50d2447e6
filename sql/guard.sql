-- Guards against misuse: lone claims, claims that were not completed, writes
-- without a claim.
CREATE EXTENSION idem_inbox;
SELECT idem_register('orders'), idem_register('billing');
CREATE TABLE work (message_id text, amount int);

--
-- idem_inbox.lone_claim
--
SHOW idem_inbox.lone_claim;
SET idem_inbox.lone_claim = warning;
-- autocommit, and nothing else
SELECT idem_claim('l-1', 'orders');
SELECT * FROM idem_claim_many(ARRAY['l-2', 'l-3'], 'orders');
SELECT idem_claim('l-4', 'new consumer');
DO $$ BEGIN PERFORM idem_claim('l-5', 'orders'); END $$;
-- more than are remembered
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'n-' || i FROM generate_series(1, 1100) i), 'orders');
-- no claim was made
SELECT idem_claim('l-1', 'orders');
SELECT idem_seen('l-1', 'orders');
-- two-phase records are begun like that
SELECT idem_begin('l-6', 'orders');
SELECT idem_complete('l-6', 'orders');
-- a transaction, also an empty one
BEGIN;
SELECT idem_claim('l-7', 'orders');
COMMIT;
-- several statements in one message, none of which writes
SELECT idem_claim('l-8', 'orders')\; SELECT 1;
-- a statement that also writes
WITH claim AS (SELECT idem_claim('l-9', 'orders') AS outcome)
INSERT INTO work SELECT 'l-9', 1 FROM claim WHERE outcome = 'claimed';
CREATE FUNCTION handle(message_id text) RETURNS idem_outcome LANGUAGE plpgsql AS $$
DECLARE
	outcome idem_outcome := idem_claim(message_id, 'orders');
BEGIN
	IF outcome = 'claimed' THEN
		UPDATE work SET amount = amount + 1;
	END IF;
	RETURN outcome;
END
$$;
SELECT handle('l-10');
DO $$ BEGIN PERFORM idem_claim('l-11', 'orders'); DELETE FROM work WHERE amount > 100; TRUNCATE work; END $$;
DO $$ BEGIN PERFORM idem_claim('l-12', 'orders'); CREATE TEMP TABLE scratch (i int); END $$;
DO $$ BEGIN PERFORM idem_claim('l-13', 'orders'); INSERT INTO scratch VALUES (1); END $$;
-- a write that was rolled back is none
DO $$
BEGIN
	PERFORM idem_claim('l-14', 'orders');
	BEGIN
		INSERT INTO work VALUES ('l-14', 1);
		RAISE EXCEPTION 'the handler failed';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
END
$$;
-- a claim that was rolled back is none either
DO $$
BEGIN
	PERFORM idem_claim('l-15', 'orders');
	RAISE EXCEPTION 'the handler failed';
EXCEPTION WHEN raise_exception THEN
	NULL;
END
$$;
-- the procedure commits between claim and work
CREATE PROCEDURE handle_badly(message_id text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_claim(message_id, 'orders');
	COMMIT;
	INSERT INTO work VALUES (message_id, 1);
END
$$;
CALL handle_badly('l-16');
-- without statistics nobody knows
SET track_counts = off;
SELECT idem_claim('l-17', 'orders');
RESET track_counts;
-- an error: nothing is claimed
SET idem_inbox.lone_claim = error;
SELECT idem_claim('l-18', 'orders');
SELECT idem_seen('l-18', 'orders');
SELECT handle('l-19');
INSERT INTO work VALUES ('', 0);
SELECT handle('l-20');
SET idem_inbox.lone_claim = off;
SELECT idem_claim('l-21', 'orders');
SET idem_inbox.lone_claim = nonsense;

--
-- idem_inbox.require_complete
--
SHOW idem_inbox.require_complete;
SET idem_inbox.require_complete = on;
SELECT idem_claim('c-1', 'orders');
BEGIN;
SELECT idem_claim('c-1', 'orders');
INSERT INTO work VALUES ('c-1', 1);
COMMIT;
SELECT count(*) FROM work WHERE message_id = 'c-1';
SELECT idem_seen('c-1', 'orders');
BEGIN;
SELECT idem_claim('c-1', 'orders');
SELECT idem_complete();
COMMIT;
SELECT idem_seen('c-1', 'orders');
-- no claim of its own: nothing to complete
BEGIN;
SELECT idem_claim('c-1', 'orders');
COMMIT;
-- what is claimed after the call needs another
BEGIN;
SELECT idem_claim('c-2', 'orders'), idem_claim('c-2', 'billing');
SELECT idem_complete('{"ok": true}');
SELECT idem_claim('c-3', 'orders');
COMMIT;
BEGIN;
SELECT idem_claim('c-2', 'orders');
SELECT idem_complete();
SELECT idem_claim('c-3', 'billing');
SELECT idem_complete();
COMMIT;
-- a rollback to a savepoint takes the call back, or the claim
BEGIN;
SELECT idem_claim('c-4', 'orders');
SAVEPOINT s;
SELECT idem_complete();
ROLLBACK TO s;
COMMIT;
BEGIN;
SELECT idem_claim('c-4', 'orders');
SELECT idem_complete();
SAVEPOINT s;
SELECT idem_claim('c-5', 'orders');
ROLLBACK TO s;
SAVEPOINT s;
SELECT idem_claim('c-6', 'orders');
SELECT idem_complete();
RELEASE s;
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('c-7', 'orders');
RELEASE s;
COMMIT;
-- a handler that swallows its own error
DO $$
BEGIN
	PERFORM idem_claim('c-8', 'orders');
	BEGIN
		PERFORM 1 / 0;
		PERFORM idem_complete();
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
END
$$;
SELECT idem_seen('c-8', 'orders');
-- many
BEGIN;
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'd-' || i FROM generate_series(1, 1100) i), 'orders');
SELECT idem_complete();
COMMIT;
BEGIN;
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'd-' || i FROM generate_series(1, 2200) i), 'orders');
COMMIT;
-- a two-phase record is completed in a transaction of its own
SELECT idem_begin('c-9', 'orders');
SELECT idem_complete('c-9', 'orders');
-- by message is the other kind
BEGIN;
SELECT idem_claim('c-10', 'orders');
SELECT idem_complete('c-10', 'orders');
COMMIT;
-- what counts is the setting at the commit
BEGIN;
SELECT idem_claim('c-11', 'orders');
SET LOCAL idem_inbox.require_complete = off;
COMMIT;
RESET idem_inbox.require_complete;

--
-- idem_claims()
--
SELECT * FROM idem_claims();
BEGIN;
SELECT idem_claim('s-2', 'orders'), idem_begin('s-1', 'billing'), idem_claim('s-2', 'orders');
SAVEPOINT s;
SELECT idem_claim('s-3', 'orders');
SELECT * FROM idem_claims();
ROLLBACK TO s;
SELECT * FROM idem_claims() WITH ORDINALITY;
COMMIT;
SELECT * FROM idem_claims();

--
-- idem_require_claim()
--
CREATE TABLE ledger (amount int);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON ledger
	FOR EACH ROW EXECUTE FUNCTION idem_require_claim('billing', 'billing.refund');
INSERT INTO ledger VALUES (1);
BEGIN;
SELECT idem_claim('t-1', 'billing');
INSERT INTO ledger VALUES (1), (2);
UPDATE ledger SET amount = 3 WHERE amount = 2;
DELETE FROM ledger WHERE amount = 1;
COMMIT;
TABLE ledger;
UPDATE ledger SET amount = 4;
DELETE FROM ledger;
TABLE ledger;
-- another consumer's claim, a duplicate, a claim that was rolled back
BEGIN;
SELECT idem_claim('t-1', 'orders');
UPDATE ledger SET amount = 4;
ROLLBACK;
BEGIN;
SELECT idem_claim('t-1', 'billing');
UPDATE ledger SET amount = 4;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('t-2', 'billing');
ROLLBACK TO s;
UPDATE ledger SET amount = 4;
ROLLBACK;
-- after it was released
BEGIN;
SAVEPOINT s;
SELECT idem_claim('t-2', 'billing.refund');
RELEASE s;
UPDATE ledger SET amount = 4;
COMMIT;
-- a two-phase message: with its beginning, its take-over, its completion
BEGIN;
SELECT idem_begin('t-3', 'billing');
UPDATE ledger SET amount = 5;
COMMIT;
BEGIN;
SELECT idem_takeover('t-3', 'billing');
UPDATE ledger SET amount = 6;
COMMIT;
BEGIN;
SELECT idem_complete('t-3', 'billing');
UPDATE ledger SET amount = 7;
COMMIT;
BEGIN;
SELECT idem_complete('t-3', 'billing');
UPDATE ledger SET amount = 8;
COMMIT;
TABLE ledger;
DROP TRIGGER guard ON ledger;
-- statements, of any consumer, TRUNCATE too; an empty statement is one
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	FOR EACH STATEMENT EXECUTE FUNCTION idem_require_claim();
TRUNCATE ledger;
DELETE FROM ledger WHERE false;
BEGIN;
SELECT idem_claim('t-4', 'whatever');
INSERT INTO ledger VALUES (9);
TRUNCATE ledger;
INSERT INTO ledger VALUES (9);
COMMIT;
DROP TRIGGER guard ON ledger;
-- afterwards, and at the commit
CREATE TRIGGER guard AFTER UPDATE ON ledger
	FOR EACH ROW EXECUTE FUNCTION idem_require_claim('unknown consumer');
UPDATE ledger SET amount = 10;
DROP TRIGGER guard ON ledger;
CREATE CONSTRAINT TRIGGER guard AFTER UPDATE ON ledger
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION idem_require_claim('orders', 'billing', 'shipping');
UPDATE ledger SET amount = 11;
BEGIN;
UPDATE ledger SET amount = 12;
SELECT idem_claim('t-5', 'orders');
COMMIT;
TABLE ledger;
-- not a trigger
SELECT idem_require_claim();
-- who writes needs no right to the consumer, and gets none
CREATE ROLE regress_idem_writer;
GRANT UPDATE ON ledger TO regress_idem_writer;
SET ROLE regress_idem_writer;
UPDATE ledger SET amount = 13;
SELECT * FROM idem_claims();
CREATE TEMP TABLE mine (i int);
CREATE TRIGGER guard BEFORE INSERT ON mine
	FOR EACH ROW EXECUTE FUNCTION idem_require_claim();
RESET ROLE;

DROP OWNED BY regress_idem_writer;
DROP ROLE regress_idem_writer;
DROP PROCEDURE handle_badly;
DROP FUNCTION handle;
DROP TABLE work, ledger;

-- the extension goes with the claim
SET idem_inbox.lone_claim = error;
SET idem_inbox.require_complete = on;
DO $$ BEGIN PERFORM idem_claim('x-1', 'orders'); DROP EXTENSION idem_inbox; END $$;
