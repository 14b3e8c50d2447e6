--
-- Time that was skipped makes no record older, nor one that came later younger
--
CREATE EXTENSION idem_inbox;
SET idem_inbox.retention = '1d';
SELECT idem_register('ledger.book', retention => '30 days');
SELECT idem_claim('m-1', 'ledger.book');
UPDATE idem_generation_1 SET received_at = now() - interval '60 days';

-- skipped, perhaps, since the record was received
INSERT INTO idem_ring (current, previous_sealed, previous_age, skipped, turned_at, turned_skipped)
VALUES (2, true, '1 day', '600 days',
	ARRAY[now() - interval '200 days', now() - interval '10 days'],
	ARRAY[interval '300 days', interval '600 days']);
SELECT idem_maintain();
SELECT count(*) FROM idem_generation_2;

-- skipped before it was received
TRUNCATE idem_generation_2;
SELECT idem_claim('m-1', 'ledger.book');
UPDATE idem_generation_2 SET received_at = now() - interval '60 days';
INSERT INTO idem_ring (current, previous_sealed, previous_age, skipped, turned_at, turned_skipped)
VALUES (3, true, '1 day', '600 days',
	ARRAY[now() - interval '200 days', now() - interval '100 days'],
	ARRAY[interval '300 days', interval '600 days']);
SELECT idem_maintain();
SELECT idem_claim('m-1', 'ledger.book');

-- a turn notes what has been skipped by then; the latest hundred are kept
UPDATE idem_ring SET current_age = '1 day', counted_at = now() - interval '1 day',
	turned_at = array_fill(now() - interval '1 day', ARRAY[100]),
	turned_skipped = array_fill(interval '0', ARRAY[100]);
SELECT idem_maintain();
SELECT idem_maintain();
SELECT cardinality(turned_at) AS turns, cardinality(turned_skipped) AS skipped,
	   turned_at[100] = counted_at AS noted,
	   turned_skipped[100] = ring.skipped AND ring.skipped > interval '600 days' AS counted
FROM idem_ring ring;

DROP EXTENSION idem_inbox;
