-- idem_claim_many(): a broker's batch in one call.
CREATE EXTENSION idem_inbox;
SELECT idem_register('orders');

-- one row an element, in the order given, whatever the order of the ids
SELECT * FROM idem_claim_many(ARRAY['m-3', 'm-1', 'm-2'], 'orders');
SELECT * FROM idem_claim_many(ARRAY['m-2', 'm-5', 'm-1', 'm-4'], 'orders') WITH ORDINALITY;
SELECT message_id, consumer, state FROM idem_inbox ORDER BY 1;
-- the same id twice: claimed, then a duplicate
SELECT * FROM idem_claim_many(ARRAY['t-2', 't-1', 't-2', 't-1', 't-1'], 'orders');
-- mixed with what idem_claim() and idem_begin() have done
SELECT idem_claim('x-1', 'orders'), idem_begin('x-2', 'orders'),
	   idem_begin('x-3', 'orders', lease => '1 hour');
SELECT * FROM idem_claim_many(ARRAY['x-4', 'x-3', 'x-2', 'x-1', 'x-0'], 'orders');
-- other consumers have records of their own
SELECT * FROM idem_claim_many(ARRAY['m-1', 't-1'], 'billing');
-- UUIDs and other ids
SELECT * FROM idem_claim_many(ARRAY['0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11', 'u',
									'0192F0C1-7B1E-7CC2-9D5E-5D0F2B8F6C11', ' u', 'U',
									'0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11'], 'orders');
SELECT outcome, count(*) FROM idem_claim_many(ARRAY[repeat('x', 1024), repeat('x', 1023)], 'orders') GROUP BY 1;

-- nothing, and other arrays that are empty
SELECT * FROM idem_claim_many('{}', 'orders');
SELECT * FROM idem_claim_many(ARRAY[]::text[], 'orders', ARRAY[]::bytea[]);
-- bounds do not matter
SELECT * FROM idem_claim_many('[5:6]={b-5,b-6}', 'orders') WITH ORDINALITY;

-- larger than what is claimed at once; every third one is there already
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'l-' || i FROM generate_series(3, 1000, 3) i), 'orders')
WHERE outcome = 'claimed';
SELECT outcome, count(*), bool_and((outcome = 'duplicate') = (n % 3 = 0)) AS right_ones,
	   bool_and(message_id = 'l-' || n) AS in_order
FROM idem_claim_many(ARRAY(SELECT 'l-' || i FROM generate_series(1, 1000) i), 'orders')
	 WITH ORDINALITY AS b(message_id, outcome, n)
GROUP BY 1 ORDER BY 1;
SELECT outcome, count(*) FROM idem_claim_many(ARRAY(SELECT 'l-' || i FROM generate_series(1, 1000) i), 'orders')
GROUP BY 1;
SELECT count(*), count(DISTINCT message_id) FROM idem_inbox WHERE message_id::text LIKE 'l-%';

-- fingerprints
SELECT * FROM idem_claim_many(ARRAY['f-1', 'f-2', 'f-3', 'f-1', 'f-3'], 'orders',
							  ARRAY['\x01', NULL, '\x03', '\x01', '\x04']::bytea[]);
SELECT * FROM idem_claim_many(ARRAY['f-3', 'f-2', 'f-1', 'f-4'], 'orders',
							  ARRAY['\x03', '\x02', '\x02', '\x04']::bytea[]);
SELECT message_id, fingerprint FROM idem_inbox WHERE message_id::text LIKE 'f-%' ORDER BY 1;
SELECT message_id, known_fingerprint, fingerprint, deliveries FROM idem_quarantine ORDER BY 1;

-- indexes that somebody has added are served, too
CREATE INDEX by_time ON idem_generation_1 (received_at);
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'i-' || i FROM generate_series(1, 200) i), 'orders')
WHERE outcome = 'claimed';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM idem_generation_1 WHERE received_at > '-infinity' AND message_id::text LIKE 'i-%';
RESET enable_seqscan;
RESET enable_bitmapscan;
DROP INDEX by_time;

-- all of it rolls back, with a transaction or a savepoint
BEGIN;
SELECT count(*) FROM idem_claim_many(ARRAY['r-1', 'r-2', 'r-3'], 'orders');
SAVEPOINT s;
SELECT count(*) FROM idem_claim_many(ARRAY['r-4', 'r-5'], 'orders');
ROLLBACK TO s;
SELECT * FROM idem_claim_many(ARRAY['r-4', 'r-3'], 'orders');
SELECT * FROM idem_claims();
SELECT idem_complete('{"total": 4}');
COMMIT;
SELECT message_id, result FROM idem_inbox WHERE message_id::text LIKE 'r-%' ORDER BY 1;

-- an unknown consumer is registered, or not
SELECT * FROM idem_claim_many(ARRAY['n-1', 'n-2'], 'orders.new');
SET idem_inbox.auto_register = off;
SELECT * FROM idem_claim_many(ARRAY['n-1', 'n-2'], 'orders.unknown');
RESET idem_inbox.auto_register;

-- errors name the element; nothing is claimed then
SELECT * FROM idem_claim_many(ARRAY['e-1', NULL, 'e-3'], 'orders');
SELECT * FROM idem_claim_many(ARRAY['e-1', 'e-2', ''], 'orders');
SELECT * FROM idem_claim_many(ARRAY['e-1', repeat('x', 1025)], 'orders');
SELECT * FROM idem_claim_many(NULL, 'orders');
SELECT * FROM idem_claim_many(ARRAY['e-1'], NULL);
SELECT * FROM idem_claim_many(ARRAY['e-1'], '');
SELECT * FROM idem_claim_many(ARRAY[ARRAY['e-1'], ARRAY['e-2']], 'orders');
SELECT * FROM idem_claim_many(ARRAY['e-1', 'e-2'], 'orders', ARRAY['\x01']::bytea[]);
SELECT * FROM idem_claim_many(ARRAY['e-1'], 'orders', ARRAY['']::bytea[]);
SELECT * FROM idem_claim_many(ARRAY['e-1'], 'orders', max_wait => '-1 s');
SELECT count(*) FROM idem_inbox WHERE message_id::text LIKE 'e-%';
BEGIN READ ONLY;
SELECT * FROM idem_claim_many(ARRAY['e-1'], 'orders');
ROLLBACK;

-- another owner's consumer
CREATE ROLE regress_idem_registrar;
SELECT idem_register('orders', owner => 'regress_idem_registrar');
CREATE ROLE regress_idem_stranger;
GRANT EXECUTE ON FUNCTION idem_claim_many TO regress_idem_stranger;
SET ROLE regress_idem_stranger;
SELECT * FROM idem_claim_many(ARRAY['e-1'], 'orders');
SELECT * FROM idem_claim_many(ARRAY['e-1'], 'stranger');
RESET ROLE;

DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_stranger, regress_idem_registrar;
