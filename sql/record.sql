--
-- Two-phase records: begin, complete, status, seen, forget
--
CREATE EXTENSION idem_inbox;

CREATE VIEW records AS
SELECT message_id, state, attempt,
	   completed_at IS NOT NULL AS completed,
	   lease_until IS NOT NULL AS leased, result
FROM idem_inbox ORDER BY message_id;

-- a lease of 0, the default: what is left over needs reconciliation at once
SHOW idem_inbox.lease;
SELECT idem_begin('m-1', 'mail.confirm');
SELECT idem_begin('m-1', 'mail.confirm');
SELECT idem_claim('m-1', 'mail.confirm');
SELECT idem_seen('m-1', 'mail.confirm');
SELECT state, received_at <= clock_timestamp() AS received, completed_at, attempt,
	   lease_until <= clock_timestamp() AS lease_over, fingerprint, result
FROM idem_status('m-1', 'mail.confirm');
SELECT * FROM records;

-- complete: true once, then false; the first result stays
SELECT idem_complete('m-1', 'mail.confirm', '{"sent": 1}');
SELECT idem_complete('m-1', 'mail.confirm', '{"sent": 2}');
SELECT idem_claim('m-1', 'mail.confirm');
SELECT idem_begin('m-1', 'mail.confirm');
SELECT idem_seen('m-1', 'mail.confirm');
SELECT state, completed_at >= received_at AS completed, attempt, fingerprint, result
FROM idem_status('m-1', 'mail.confirm');

-- no result, a JSON null
SELECT idem_begin('m-2', 'mail.confirm');
SELECT idem_complete('m-2', 'mail.confirm');
SELECT idem_begin('m-3', 'mail.confirm');
SELECT idem_complete('m-3', 'mail.confirm', 'null');
SELECT message_id, result IS NULL AS none, result FROM records ORDER BY message_id;

-- both phases in one transaction
BEGIN;
SELECT idem_begin('m-4', 'mail.confirm');
SELECT idem_complete('m-4', 'mail.confirm', '"sent"');
SELECT idem_complete('m-4', 'mail.confirm', '"sent"');
SELECT idem_begin('m-4', 'mail.confirm');
COMMIT;
SELECT idem_claim('m-4', 'mail.confirm');

-- a completion that rolls back
BEGIN;
SELECT idem_begin('m-5', 'mail.confirm');
SAVEPOINT s;
SELECT idem_complete('m-5', 'mail.confirm', '"sent"');
ROLLBACK TO SAVEPOINT s;
COMMIT;
SELECT * FROM records WHERE message_id = 'm-5';
SELECT idem_complete('m-5', 'mail.confirm', '"sent"');

-- a record that was claimed in one transaction is complete
SELECT idem_claim('m-6', 'mail.confirm');
SELECT idem_complete('m-6', 'mail.confirm', '"too late"');
SELECT state, attempt, lease_until, result FROM idem_status('m-6', 'mail.confirm');

-- the attempt is the fencing token
SELECT idem_begin('m-7', 'mail.confirm');
SELECT idem_complete('m-7', 'mail.confirm', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-7', 'mail.confirm', attempt => 0);
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM records WHERE message_id = 'm-7';
SELECT idem_complete('m-7', 'mail.confirm', attempt => 1);
-- also of a completed record, and of one that never had an attempt
SELECT idem_complete('m-7', 'mail.confirm', attempt => 1);
SELECT idem_complete('m-7', 'mail.confirm', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-6', 'mail.confirm', attempt => 1);
\echo :LAST_ERROR_SQLSTATE

-- without a record
SELECT idem_complete('m-8', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', 'nobody');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM idem_status('m-8', 'mail.confirm');
SELECT count(*) FROM idem_status('m-1', 'nobody');
SELECT idem_seen('m-8', 'mail.confirm'), idem_seen('m-1', 'nobody');
SELECT idem_forget('m-8', 'mail.confirm'), idem_forget('m-1', 'nobody');
-- asking registers nobody
SELECT name FROM idem_consumer;

--
-- Leases: of the call, else of the consumer, else of the setting
--
SELECT idem_begin('l-1', 'mail.confirm', lease => '1 hour');
SELECT idem_begin('l-1', 'mail.confirm');
SELECT idem_claim('l-1', 'mail.confirm');
SELECT state, lease_until - received_at BETWEEN '59 min' AND '61 min' AS one_hour
FROM idem_status('l-1', 'mail.confirm');
-- the lease runs out
UPDATE idem_generation_1 SET lease_until = clock_timestamp() WHERE message_id = 'l-1';
SELECT idem_begin('l-1', 'mail.confirm');
SELECT state FROM idem_status('l-1', 'mail.confirm');
SELECT state FROM idem_inbox WHERE message_id = 'l-1';

SET idem_inbox.lease = '1h';
SELECT idem_begin('l-2', 'mail.confirm');
SELECT idem_begin('l-2', 'mail.confirm');
SELECT idem_begin('l-3', 'mail.confirm', lease => '0');
SELECT idem_begin('l-3', 'mail.confirm');
SELECT idem_register('mail.confirm', lease => '0');
SELECT idem_begin('l-4', 'mail.confirm');
SELECT idem_begin('l-4', 'mail.confirm');
RESET idem_inbox.lease;
SELECT idem_register('mail.confirm', lease => '1 hour');
SELECT idem_begin('l-5', 'mail.confirm');
SELECT idem_begin('l-5', 'mail.confirm');
SELECT idem_begin('l-6', 'mail.confirm', lease => '0');
SELECT idem_begin('l-6', 'mail.confirm');
UPDATE idem_consumer SET lease = NULL WHERE name = 'mail.confirm';
SELECT idem_begin('l-7', 'mail.confirm');
SELECT idem_begin('l-7', 'mail.confirm');
-- the lease of an attempt stays as it was
SELECT idem_begin('l-5', 'mail.confirm');
-- months as the calendar counts them
SELECT idem_begin('l-8', 'mail.confirm', lease => '1 month');
SELECT lease_until = received_at + '1 month' AS one_month
FROM idem_status('l-8', 'mail.confirm');

--
-- Forget: the message is processed again
--
SELECT idem_forget('m-1', 'mail.confirm');
SELECT idem_forget('m-1', 'mail.confirm');
SELECT idem_seen('m-1', 'mail.confirm');
SELECT idem_claim('m-1', 'mail.confirm');
SELECT idem_forget('l-8', 'mail.confirm');
SELECT idem_begin('l-8', 'mail.confirm');
BEGIN;
SELECT idem_claim('f-1', 'mail.confirm');
SELECT idem_forget('f-1', 'mail.confirm');
SELECT idem_claim('f-1', 'mail.confirm');
SELECT idem_forget('f-1', 'mail.confirm');
COMMIT;
SELECT count(*) FROM idem_inbox WHERE message_id = 'f-1';
BEGIN;
SELECT idem_forget('m-2', 'mail.confirm');
SELECT idem_claim('m-2', 'mail.confirm');
ROLLBACK;
SELECT idem_claim('m-2', 'mail.confirm');

-- from the sealed generation
SELECT idem_begin('p-1', 'mail.confirm', '\x01');
SELECT idem_claim('p-2', 'mail.confirm');
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT state, fingerprint FROM idem_status('p-1', 'mail.confirm');
SELECT idem_complete('p-1', 'mail.confirm', '1', attempt => 1);
SELECT idem_seen('p-1', 'mail.confirm');
SELECT state, result FROM idem_status('p-1', 'mail.confirm');
SELECT idem_forget('p-2', 'mail.confirm');
SELECT idem_claim('p-2', 'mail.confirm');
DELETE FROM idem_ring;

--
-- What this transaction has not committed
--
BEGIN;
SELECT idem_claim('u-1', 'mail.confirm');
SELECT idem_seen('u-1', 'mail.confirm');
SELECT state FROM idem_status('u-1', 'mail.confirm');
COMMIT;
SELECT idem_seen('u-1', 'mail.confirm');

DROP VIEW records;
DROP EXTENSION idem_inbox;
