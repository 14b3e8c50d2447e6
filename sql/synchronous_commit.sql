--
-- The commit of phase one is synchronous, whatever the session says: a claim
-- lost in a fail-over would let the side effect happen twice.  That it waits
-- for a standby as well is seen in test/t.
--
CREATE EXTENSION idem_inbox;

-- what a transaction wrote before it committed is on disk afterwards
CREATE FUNCTION begin_message(id text) RETURNS text
LANGUAGE sql SET synchronous_commit = off
AS $$ SELECT idem_begin(id, 'mail.confirm')::text $$;
CREATE TABLE work (done text);
SET synchronous_commit = off;

BEGIN;
SELECT idem_begin('m-1', 'mail.confirm');
INSERT INTO work VALUES ('m-1');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;
-- the session's setting is as before
SHOW synchronous_commit;

-- in a statement of its own
SELECT idem_begin('m-2', 'mail.confirm'), pg_current_wal_insert_lsn() AS written \gset
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;

-- after a savepoint, in a handler, in a function with a setting of its own,
-- and whatever is set afterwards
BEGIN;
SAVEPOINT s;
SELECT idem_begin('m-3', 'mail.confirm');
RELEASE SAVEPOINT s;
INSERT INTO work VALUES ('m-3');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;
BEGIN;
DO $$
BEGIN
	PERFORM idem_begin('m-4', 'mail.confirm');
EXCEPTION WHEN others THEN
	RAISE;
END
$$;
INSERT INTO work VALUES ('m-4');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;
BEGIN;
SELECT begin_message('m-5');
INSERT INTO work VALUES ('m-5');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;
BEGIN;
SELECT idem_begin('m-6', 'mail.confirm');
SET LOCAL synchronous_commit = off;
INSERT INTO work VALUES ('m-6');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS on_disk;
SHOW synchronous_commit;

-- a change of the session's own setting that was made in the transaction
BEGIN;
SET synchronous_commit = local;
SELECT idem_begin('m-7', 'mail.confirm');
COMMIT;
SHOW synchronous_commit;
BEGIN;
SET synchronous_commit = remote_apply;
SELECT idem_begin('m-8', 'mail.confirm');
COMMIT;
SHOW synchronous_commit;
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT idem_begin('m-9', 'mail.confirm');
ROLLBACK;
SHOW synchronous_commit;
RESET synchronous_commit;

DROP FUNCTION begin_message;
DROP TABLE work;
DROP EXTENSION idem_inbox;
