--
-- Different content under a known id.  Its NOTIFY is in the isolation tests.
--
CREATE EXTENSION idem_inbox;

CREATE VIEW quarantined AS
SELECT q.message_id, c.name AS consumer, q.fingerprint, q.known_fingerprint, q.deliveries,
	   q.first_at < q.last_at AS again, q.dismissed_at IS NOT NULL AS dismissed
FROM idem_quarantine q JOIN idem_consumer c USING (consumer_id)
ORDER BY q.message_id, c.name, q.fingerprint;

SELECT idem_claim('m-1', 'orders', '\x01');
SELECT idem_claim('m-1', 'orders', '\x01');
SELECT * FROM quarantined;
-- an answer, no error: the transaction goes on
BEGIN;
SELECT idem_claim('m-1', 'orders', '\x02');
SELECT idem_claim('m-2', 'orders', '\x02');
COMMIT;
SELECT * FROM quarantined;
SELECT idem_claim('m-2', 'orders', '\x02');
-- the record stays as it was
SELECT state, fingerprint FROM idem_status('m-1', 'orders');
SELECT idem_claim('m-1', 'orders', '\x01');

-- the tenth redelivery counts up and adds no row
CREATE TABLE redelivery AS SELECT n FROM generate_series(2, 10) n;
SELECT n, idem_claim('m-1', 'orders', '\x02') FROM redelivery;
SELECT * FROM quarantined;
-- also within one statement
SELECT n, idem_claim('m-2', 'orders', '\x05') FROM redelivery LIMIT 2;
SELECT * FROM quarantined WHERE message_id = 'm-2';
-- each content is one row, also if one is the beginning of the other
SELECT idem_claim('m-1', 'orders', '\x0100');
SELECT idem_claim('m-1', 'orders', decode(repeat('03', 64), 'hex'));
-- of each message, of each consumer
SELECT idem_claim('m-2', 'orders', '\x01');
SELECT idem_claim('m-1', 'billing', '\x02');
SELECT idem_claim('m-1', 'billing', '\x01');
SELECT message_id, consumer, left(fingerprint::text, 8) AS fingerprint, known_fingerprint, deliveries
FROM quarantined;
-- who delivered last, and when
SELECT delivered_to ->> 'role' = current_user AS role,
	   delivered_to ->> 'application_name' = current_setting('application_name') AS application_name,
	   last_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS last_at
FROM idem_quarantine WHERE deliveries = 10;

-- rolled back with its transaction, or its savepoint
BEGIN;
SELECT idem_claim('m-1', 'orders', '\x04');
SELECT idem_claim('m-1', 'orders', '\x02');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('m-1', 'orders', '\x04');
ROLLBACK TO SAVEPOINT s;
SELECT idem_claim('m-1', 'orders', '\x02');
COMMIT;
SELECT fingerprint, deliveries FROM quarantined
WHERE message_id = 'm-1' AND consumer = 'orders' AND fingerprint IN ('\x02', '\x04');

--
-- Before any other outcome, for both kinds of claim
--
SELECT idem_begin('b-1', 'orders', '\x01', lease => '1 hour');
SELECT idem_begin('b-1', 'orders', '\x02'), idem_claim('b-1', 'orders', '\x02');
SELECT idem_begin('b-1', 'orders', '\x01'), idem_claim('b-1', 'orders', '\x01');
SELECT idem_begin('b-2', 'orders', '\x01');
SELECT idem_begin('b-2', 'orders', '\x02'), idem_claim('b-2', 'orders', '\x02');
SELECT idem_begin('b-2', 'orders', '\x01'), idem_claim('b-2', 'orders', '\x01');
SELECT idem_complete('b-2', 'orders');
SELECT idem_begin('b-2', 'orders', '\x02'), idem_claim('b-2', 'orders', '\x02');
SELECT idem_begin('b-2', 'orders', '\x01'), idem_claim('b-2', 'orders', '\x01');
SELECT message_id, fingerprint, deliveries FROM quarantined WHERE message_id IN ('b-1', 'b-2');
-- also with max_wait, and within one transaction
SELECT idem_claim('b-2', 'orders', '\x02', max_wait => '0');
BEGIN;
SELECT idem_claim('b-3', 'orders', '\x01');
SELECT idem_claim('b-3', 'orders', '\x02');
COMMIT;
-- and from the sealed generation
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_claim('b-3', 'orders', '\x02'), idem_claim('b-3', 'orders', '\x01');
SELECT message_id, fingerprint, deliveries FROM quarantined WHERE message_id IN ('b-2', 'b-3');
DELETE FROM idem_ring;

--
-- Without a fingerprint, the record's or the delivery's, there is no mismatch
--
SELECT idem_claim('n-1', 'orders');
SELECT idem_claim('n-1', 'orders', '\x01'), idem_begin('n-1', 'orders', '\x02');
SELECT idem_begin('n-2', 'orders');
SELECT idem_claim('n-2', 'orders', '\x01'), idem_begin('n-2', 'orders', '\x02');
SELECT idem_claim('n-3', 'orders', '\x01');
SELECT idem_claim('n-3', 'orders'), idem_begin('n-3', 'orders');
SELECT count(*) FROM quarantined WHERE message_id::text ~ '^n';
-- the record does not learn one either
SELECT idem_claim('n-1', 'orders', '\x02');
SELECT fingerprint IS NULL AS none FROM idem_status('n-1', 'orders');
-- once abandoned or forgotten, the id may have another content
SELECT idem_begin('n-4', 'orders', '\x01');
SELECT idem_abandon('n-4', 'orders');
SELECT idem_begin('n-4', 'orders', '\x02');
SELECT idem_forget('n-4', 'orders');
SELECT idem_begin('n-4', 'orders', '\x03');

-- the longest names, also where the notification has no room for them
SELECT idem_claim(repeat('m', 1024), repeat('c', 1024), '\x01'), idem_claim(repeat(chr(7), 1024), repeat(chr(7), 1024), '\x01');
SELECT idem_claim(repeat('m', 1024), repeat('c', 1024), '\x02'), idem_claim(repeat(chr(7), 1024), repeat(chr(7), 1024), '\x02');

-- as applications compute it
SELECT idem_claim('j-1', 'orders', idem_fingerprint('{"book": "Dune", "copies": 2}'::jsonb));
SELECT idem_claim('j-1', 'orders', idem_fingerprint('{"copies":2.0,"book":"Dune"}'::jsonb));
SELECT idem_claim('j-1', 'orders', idem_fingerprint('{"book": "Dune", "copies": 3}'::jsonb));

-- a LOG line each time
SET client_min_messages = log;
SELECT idem_claim('m-1', 'orders', '\x02');
SELECT idem_claim('m-1', 'orders', '\x01');
RESET client_min_messages;

--
-- A person dismisses it; delivered again, it is back
--
SELECT reason, message_id, deliveries FROM idem_attention WHERE message_id = 'b-3';
SELECT idem_resolve('b-3', 'orders', 'dismiss');
SELECT count(*) FROM idem_attention WHERE message_id = 'b-3';
SELECT * FROM quarantined WHERE message_id = 'b-3';
SELECT idem_claim('b-3', 'orders', '\x02');
SELECT * FROM quarantined WHERE message_id = 'b-3';
SELECT reason, message_id, deliveries FROM idem_attention WHERE message_id = 'b-3';

--
-- What is not delivered again for twice the retention is deleted when a
-- generation is emptied, and so are old decisions
--
CREATE PROCEDURE turn_until(wanted text) LANGUAGE plpgsql AS $$
DECLARE
	step text;
BEGIN
	UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
	COMMIT;
	-- another transaction, such as autovacuum's, may be in the way
	FOR i IN 1 .. 6000 LOOP
		step := idem_maintain();
		COMMIT;
		EXIT WHEN step = wanted;
		PERFORM pg_sleep(0.01);
	END LOOP;
	ASSERT step = wanted, step;
END
$$;
TRUNCATE idem_quarantine, idem_resolution;
SELECT idem_claim('m-1', 'orders', f) FROM (VALUES ('\x02'::bytea), ('\x03'), ('\x04')) v (f);
SELECT idem_resolve('m-1', 'orders', 'dismiss'), idem_resolve('m-1', 'billing', 'dismiss');
SHOW idem_inbox.retention;
UPDATE idem_quarantine SET first_at = first_at - interval '100 days';
UPDATE idem_quarantine SET last_at = now() - interval '27 days 23:50' WHERE fingerprint = '\x02';
UPDATE idem_quarantine SET last_at = now() - interval '28 days 00:10' WHERE fingerprint = '\x03';
UPDATE idem_resolution SET resolved_at = now() - interval '27 days 23:50' WHERE consumer = 'orders';
UPDATE idem_resolution SET resolved_at = now() - interval '28 days 00:10' WHERE consumer = 'billing';
CALL turn_until('nothing');
CALL turn_until('opened');
CALL turn_until('sealed');
SELECT count(*) FROM idem_quarantine;
SELECT count(*) FROM idem_resolution;
CALL turn_until('emptied');
SELECT fingerprint FROM quarantined;
SELECT consumer FROM idem_resolution;

--
-- Not for PUBLIC, nor for a consumer
--
CREATE ROLE regress_idem_registrar;
SELECT idem_register('orders', owner => 'regress_idem_registrar');
CREATE ROLE regress_idem_owner;
GRANT EXECUTE ON FUNCTION idem_claim TO regress_idem_owner;
SET ROLE regress_idem_owner;
SELECT idem_claim('m-1', 'other', '\x01');
SELECT idem_claim('m-1', 'other', '\x02');
SELECT idem_claim('m-1', 'orders', '\x03');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_quarantine;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT consumer, deliveries FROM quarantined;

-- errors
SELECT idem_claim('m-1', 'orders', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', 'orders', decode(repeat('00', 65), 'hex'));
\echo :LAST_ERROR_SQLSTATE

DROP VIEW quarantined;
DROP TABLE redelivery;
DROP PROCEDURE turn_until;
DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_owner, regress_idem_registrar;
