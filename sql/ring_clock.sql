--
-- The ring's clock: nothing expires early, wherever the recorded times are
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
-- ages and times to the minute
CREATE VIEW clock AS
	SELECT date_trunc('minute', current_age) AS current_age,
		   date_trunc('minute', previous_age) AS previous_age,
		   date_trunc('minute', skipped) AS skipped,
		   counted_at BETWEEN now() - interval '1 minute' AND now() AS counted_now,
		   opened_at <= now() AS opened, sealed_at <= now() AS sealed
	FROM idem_ring;

SELECT idem_register('ledger.book', retention => '1 day');
SELECT idem_claim('m-1', 'inventory.reserve'), idem_claim('m-1', 'ledger.book'),
	   idem_begin('m-2', 'inventory.reserve');
CALL maintain();
SELECT * FROM clock;

-- the clock was ahead: no time has passed, and a future time is set to now
UPDATE idem_ring SET current_age = '59 min',
	counted_at = now() + interval '10 years', opened_at = now() + interval '10 years';
CALL maintain();
SELECT * FROM clock;
SELECT role, age < '1 h' AS young, opened_at <= now() AS opened
FROM idem_generation WHERE role = 'current';

-- the clock was behind, or the server was down: ten naptimes count, no more
SHOW idem_inbox.naptime;
UPDATE idem_ring SET current_age = '0', counted_at = now() - interval '9 min 30 s';
CALL maintain();
SELECT current_age BETWEEN '9 min 30 s' AND '9 min 50 s' AS counted, skipped FROM idem_ring;
UPDATE idem_ring SET current_age = '0', counted_at = now() - interval '1000 days';
CALL maintain();
SELECT current_age = '10 min' AS counted FROM idem_ring;
SELECT * FROM clock;
UPDATE idem_ring SET skipped = '0', current_age = '49 min', counted_at = now() - interval '1000 days';
CALL maintain();
SELECT current_age = '59 min' AS counted FROM idem_ring;
SELECT idem_claim('m-1', 'inventory.reserve');

-- the other recorded times are for people only
UPDATE idem_ring SET skipped = '0', current_age = '30 min', opened_at = now() - interval '1000 days';
CALL maintain();
UPDATE idem_ring SET opened_at = '-infinity', counted_at = 'infinity';
CALL maintain();
SELECT * FROM clock;
UPDATE idem_ring SET opened_at = 'infinity', counted_at = '-infinity';
CALL maintain();
SELECT current_age <= '41 min' AS young FROM idem_ring;

-- records from a past or a future are none the older or younger
UPDATE idem_generation_1 SET received_at = received_at - interval '10 years',
	completed_at = completed_at - interval '10 years'
WHERE consumer_id = (SELECT consumer_id FROM idem_consumer WHERE name = 'inventory.reserve');
UPDATE idem_ring SET skipped = '0', current_age = '1 h';
CALL maintain();
CALL maintain();
SELECT idem_claim('m-1', 'inventory.reserve'), idem_claim('m-1', 'ledger.book'),
	   idem_claim('m-2', 'inventory.reserve');

-- the same with the sealed generation's age
UPDATE idem_ring SET previous_age = '59 min',
	counted_at = now() + interval '10 years', sealed_at = now() + interval '10 years';
CALL maintain();
SELECT * FROM clock;
UPDATE idem_ring SET previous_age = '49 min', current_age = '0',
	counted_at = now() - interval '1000 days', sealed_at = now() - interval '1000 days';
CALL maintain();
SELECT previous_age = '59 min' AS counted FROM idem_ring;
SELECT * FROM clock;
SELECT idem_claim('m-1', 'inventory.reserve'), idem_claim('m-1', 'ledger.book');

-- what was not counted does not make a record older for its own retention:
-- it was received an hour before the server went down for 1000 days
UPDATE idem_generation_1 SET received_at = now() - interval '1000 days 1 hour'
WHERE consumer_id = (SELECT consumer_id FROM idem_consumer WHERE name = 'ledger.book');
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
SELECT id, consumer, idem_claim(id, consumer)
FROM (VALUES ('m-1', 'ledger.book'), ('m-1', 'inventory.reserve'), ('m-2', 'inventory.reserve')) AS delivery(id, consumer);

-- ... also if a later run finds the clock ahead
UPDATE idem_ring SET counted_at = now() + interval '1000 days', current_age = '1 h';
CALL maintain();
UPDATE idem_ring SET current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
SELECT idem_claim('m-1', 'ledger.book'), idem_claim('m-2', 'inventory.reserve');

-- a record that says it comes from the future stays, too
SELECT idem_claim('m-3', 'ledger.book');
UPDATE idem_generation_3 SET received_at = now() + interval '1000 days'
WHERE message_id = 'm-3';
UPDATE idem_ring SET skipped = '0', current_age = '1 h';
CALL maintain();
CALL maintain();
UPDATE idem_ring SET previous_age = '1 h';
CALL maintain();
CALL maintain();
SELECT idem_claim('m-3', 'ledger.book');

DROP VIEW clock;
DROP PROCEDURE maintain;
DROP EXTENSION idem_inbox;
