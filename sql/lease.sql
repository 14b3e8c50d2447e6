--
-- Leases and attempts: extend, takeover, abandon, and what fences them
--
CREATE EXTENSION idem_inbox;

CREATE VIEW records AS
SELECT message_id, state, attempt,
	   date_trunc('minute', lease_until - clock_timestamp() + '30 s') AS lease, result
FROM idem_inbox ORDER BY message_id;

-- an attempt's lease runs out
CREATE FUNCTION expire(id text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem_generation_1 SET lease_until = clock_timestamp() WHERE message_id = id
$$;

--
-- The lease: of the call, else the consumer's, else the setting's
--
SHOW idem_inbox.lease;
SELECT idem_begin('b-0', 'mail.confirm');
SET idem_inbox.lease = '10min';
SELECT idem_begin('b-1', 'mail.confirm');
SELECT idem_register('mail.confirm', lease => '20 min');
SELECT idem_begin('b-2', 'mail.confirm');
SELECT idem_begin('b-3', 'mail.confirm', lease => '30 min');
SELECT idem_begin('b-4', 'mail.confirm', lease => '0');
SELECT message_id, lease FROM records WHERE lease >= '0' ORDER BY message_id;
-- likewise for extend and takeover
SELECT idem_extend('b-4', 'mail.confirm', NULL) > clock_timestamp();
SELECT idem_extend('b-3', 'mail.confirm', '40 min') > clock_timestamp();
SELECT message_id, lease FROM records WHERE message_id IN ('b-3', 'b-4');
SELECT expire('b-2'), expire('b-3');
SELECT idem_takeover('b-2', 'mail.confirm');
SELECT idem_takeover('b-3', 'mail.confirm', '50 min');
UPDATE idem_consumer SET lease = NULL WHERE name = 'mail.confirm';
SELECT idem_takeover('b-0', 'mail.confirm');
SELECT * FROM records;
RESET idem_inbox.lease;
SELECT idem_extend('b-0', 'mail.confirm', NULL) <= clock_timestamp();

-- a redelivery while the lease runs, and after it
SELECT idem_begin('l-1', 'mail.confirm', lease => '1 hour');
SELECT idem_begin('l-1', 'mail.confirm'), idem_claim('l-1', 'mail.confirm');
SELECT state FROM idem_status('l-1', 'mail.confirm');
SELECT idem_seen('l-1', 'mail.confirm');
SELECT expire('l-1');
SELECT idem_begin('l-1', 'mail.confirm'), idem_claim('l-1', 'mail.confirm');
SELECT state FROM idem_status('l-1', 'mail.confirm');
SELECT idem_seen('l-1', 'mail.confirm');
-- the clock is the moment's, not the transaction's
BEGIN;
SELECT idem_begin('l-2', 'mail.confirm', lease => '0');
SELECT idem_begin('l-2', 'mail.confirm');
SELECT lease_until >= received_at AND lease_until > now() AS now FROM idem_status('l-2', 'mail.confirm');
COMMIT;

--
-- Extend
--
SELECT idem_begin('e-1', 'mail.confirm');
SELECT idem_begin('e-1', 'mail.confirm');
-- the answer is what is recorded; an attempt whose lease ran out may still
-- extend it while nobody has taken over
SELECT idem_extend('e-1', 'mail.confirm', '1 hour', attempt => 1) AS until \gset
SELECT lease_until = :'until' AS recorded FROM idem_status('e-1', 'mail.confirm');
SELECT :'until'::timestamptz - clock_timestamp() BETWEEN '59 min' AND '61 min' AS from_now;
SELECT idem_begin('e-1', 'mail.confirm');
-- from now, not from the end of the last one; also shorter
SELECT idem_extend('e-1', 'mail.confirm', '10 min') < :'until';
SELECT * FROM records WHERE message_id = 'e-1';
SELECT idem_extend('e-1', 'mail.confirm', '0') <= clock_timestamp();
SELECT idem_begin('e-1', 'mail.confirm');
-- rolled back
BEGIN;
SELECT idem_extend('e-1', 'mail.confirm', '1 hour') IS NOT NULL;
ROLLBACK;
SELECT idem_begin('e-1', 'mail.confirm');

--
-- Takeover
--
SELECT idem_begin('t-1', 'mail.confirm', lease => '1 hour');
-- not while the lease runs
SELECT idem_takeover('t-1', 'mail.confirm');
SELECT * FROM records WHERE message_id = 't-1';
SELECT expire('t-1');
-- the next number, with a lease of its own; no second one while that runs
SELECT idem_takeover('t-1', 'mail.confirm', '1 hour');
SELECT idem_takeover('t-1', 'mail.confirm', '1 hour');
SELECT * FROM records WHERE message_id = 't-1';
SELECT idem_begin('t-1', 'mail.confirm');
SELECT expire('t-1');
SELECT idem_begin('t-1', 'mail.confirm');
SELECT idem_takeover('t-1', 'mail.confirm', '1 hour');
SELECT idem_takeover('t-1', 'mail.confirm', '1 hour') IS NULL AS lost;
-- without a lease each call in turn takes over
SELECT idem_begin('t-2', 'mail.confirm');
SELECT idem_takeover('t-2', 'mail.confirm');
SELECT idem_takeover('t-2', 'mail.confirm');
-- a take-over that rolls back
BEGIN;
SELECT idem_takeover('t-2', 'mail.confirm', '1 hour');
ROLLBACK;
SELECT * FROM records WHERE message_id = 't-2';
-- nothing to take over: completed, claimed in one transaction, no record
SELECT idem_complete('t-2', 'mail.confirm');
SELECT idem_takeover('t-2', 'mail.confirm') IS NULL AS completed;
SELECT idem_claim('t-3', 'mail.confirm');
SELECT idem_takeover('t-3', 'mail.confirm') IS NULL AS completed;
SELECT idem_takeover('t-4', 'mail.confirm') IS NULL AS no_record;
SELECT idem_takeover('t-1', 'nobody') IS NULL AS no_record;
SELECT name FROM idem_consumer;

--
-- Fencing: whoever names an older attempt, or one that never was, changes
-- nothing
--
CREATE TABLE before AS SELECT * FROM idem_inbox WHERE message_id = 't-1';
SELECT attempt FROM before;
SELECT idem_complete('t-1', 'mail.confirm', '"late"', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-1', 'mail.confirm', '2 hours', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('t-1', 'mail.confirm', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('t-1', 'mail.confirm', attempt => 4);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-1', 'mail.confirm', '2 hours', attempt => 4);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('t-1', 'mail.confirm', attempt => 4);
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) AS unchanged FROM idem_inbox JOIN before USING
	(message_id, consumer, state, received_at, attempt, lease_until);
-- the holder goes on
SELECT idem_extend('t-1', 'mail.confirm', '2 hours', attempt => 3) IS NOT NULL;
SELECT idem_complete('t-1', 'mail.confirm', '"sent"', attempt => 3);
-- an older attempt is told so afterwards, too; the holder that it is done
SELECT idem_complete('t-1', 'mail.confirm', '"late"', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('t-1', 'mail.confirm', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-1', 'mail.confirm', '1 hour', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-1', 'mail.confirm', '1 hour', attempt => 3);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-1', 'mail.confirm', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM records WHERE message_id = 't-1';
-- the error leaves a savepoint's transaction usable
BEGIN;
SAVEPOINT s;
SELECT idem_complete('b-2', 'mail.confirm', attempt => 1);
ROLLBACK TO SAVEPOINT s;
SELECT idem_complete('b-2', 'mail.confirm', attempt => 2);
COMMIT;
-- a record that was claimed in one transaction has no attempts
SELECT idem_extend('t-3', 'mail.confirm', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('t-3', 'mail.confirm', '1 hour', attempt => 1);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('t-3', 'mail.confirm', attempt => 1);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('t-3', 'mail.confirm');
SELECT idem_claim('t-3', 'mail.confirm');

--
-- Abandon: the message can be claimed again
--
SELECT idem_begin('a-1', 'mail.confirm', '\x01', lease => '1 hour');
SELECT idem_abandon('a-1', 'mail.confirm', attempt => 1);
SELECT idem_abandon('a-1', 'mail.confirm', attempt => 1);
SELECT count(*) FROM idem_status('a-1', 'mail.confirm');
-- nothing is remembered of it, its content neither
SELECT idem_claim('a-1', 'mail.confirm', '\x02');
SELECT idem_begin('a-2', 'mail.confirm');
SELECT idem_takeover('a-2', 'mail.confirm', '1 hour');
SELECT idem_abandon('a-2', 'mail.confirm', attempt => 2);
SELECT idem_begin('a-2', 'mail.confirm');
-- completed: too late
SELECT idem_complete('a-2', 'mail.confirm');
SELECT idem_abandon('a-2', 'mail.confirm');
SELECT idem_begin('a-2', 'mail.confirm');
-- no record, no consumer
SELECT idem_abandon('a-3', 'mail.confirm'), idem_abandon('a-1', 'nobody');
-- rolled back
SELECT idem_begin('a-4', 'mail.confirm', lease => '1 hour');
BEGIN;
SELECT idem_abandon('a-4', 'mail.confirm');
SELECT idem_begin('a-4', 'mail.confirm');
ROLLBACK;
SELECT * FROM records WHERE message_id = 'a-4';
-- and claimed again in the same transaction
BEGIN;
SELECT idem_abandon('a-4', 'mail.confirm');
SELECT idem_claim('a-4', 'mail.confirm');
COMMIT;
SELECT * FROM records WHERE message_id = 'a-4';

--
-- All of it in one transaction
--
BEGIN;
SELECT idem_begin('x-1', 'mail.confirm');
SELECT idem_extend('x-1', 'mail.confirm', '0') IS NOT NULL;
SELECT idem_takeover('x-1', 'mail.confirm');
SELECT idem_complete('x-1', 'mail.confirm', attempt => 2);
SELECT idem_takeover('x-1', 'mail.confirm') IS NULL AS completed;
COMMIT;
SELECT * FROM records WHERE message_id = 'x-1';

--
-- In a sealed generation, and while the next one is being opened
--
SELECT idem_begin('p-1', 'mail.confirm'), idem_begin('p-2', 'mail.confirm');
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_takeover('p-1', 'mail.confirm', '1 hour');
SELECT idem_begin('p-1', 'mail.confirm');
SELECT idem_extend('p-1', 'mail.confirm', '2 hours', attempt => 2) IS NOT NULL;
SELECT idem_complete('p-1', 'mail.confirm', attempt => 1);
SELECT idem_complete('p-1', 'mail.confirm', attempt => 2);
SELECT idem_begin('p-1', 'mail.confirm');
SELECT idem_abandon('p-2', 'mail.confirm');
SELECT idem_begin('p-2', 'mail.confirm');
SELECT tableoid::regclass, message_id FROM idem_generation_2;
UPDATE idem_ring SET previous_sealed = false, next_open = true;
SELECT idem_begin('p-3', 'mail.confirm');
SELECT idem_takeover('p-3', 'mail.confirm', '1 hour');
SELECT idem_extend('p-3', 'mail.confirm', '2 hours', attempt => 2) IS NOT NULL;
SELECT idem_abandon('p-3', 'mail.confirm', attempt => 2);
SELECT idem_begin('p-3', 'mail.confirm');
SELECT idem_complete('p-3', 'mail.confirm', attempt => 1);
SELECT idem_begin('p-3', 'mail.confirm');
SELECT message_id, state FROM records WHERE message_id::text LIKE 'p-%';
DELETE FROM idem_ring;

--
-- Errors
--
SELECT idem_extend('none', 'mail.confirm', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('e-1', 'nobody', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('e-1', 'mail.confirm', '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_takeover('e-1', 'mail.confirm', '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('e-2', 'mail.confirm', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend('e-1', 'mail.confirm', '300000 years');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_extend(NULL, 'mail.confirm', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_takeover('e-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_takeover('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
BEGIN READ ONLY;
SELECT idem_extend('e-1', 'mail.confirm', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT idem_takeover('e-1', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT idem_abandon('e-1', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

--
-- Another owner's consumer: nothing, by any of the functions
--
CREATE ROLE regress_idem_owner;
CREATE ROLE regress_idem_other;
GRANT EXECUTE ON FUNCTION idem_begin, idem_extend, idem_takeover, idem_abandon
TO regress_idem_owner, regress_idem_other;
SET ROLE regress_idem_owner;
SELECT idem_begin('m-1', 'payment.charge');
SELECT idem_extend('m-1', 'payment.charge', '0', 1) IS NOT NULL;
SELECT idem_takeover('m-1', 'payment.charge');
RESET ROLE;
SET ROLE regress_idem_other;
SELECT idem_extend('m-1', 'payment.charge', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_takeover('m-1', 'payment.charge');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_abandon('m-1', 'payment.charge');
\echo :LAST_ERROR_SQLSTATE
-- not even that there is no record
SELECT idem_takeover('m-2', 'payment.charge');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT state, attempt FROM idem_status('m-1', 'payment.charge');
REVOKE EXECUTE ON FUNCTION idem_begin, idem_extend, idem_takeover, idem_abandon
FROM regress_idem_owner;
SET ROLE regress_idem_owner;
SELECT idem_extend('m-1', 'payment.charge', '1 hour');
SELECT idem_takeover('m-1', 'payment.charge');
SELECT idem_abandon('m-1', 'payment.charge');
RESET ROLE;

DROP VIEW records;
DROP TABLE before;
DROP FUNCTION expire;
DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_owner, regress_idem_other;
