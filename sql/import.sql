-- idem_import(): records of another inbox.
CREATE EXTENSION idem_inbox;
CREATE TABLE old_inbox (message_id text, consumer text, received_at timestamptz);
INSERT INTO old_inbox
SELECT 'm-' || i, 'inventory.reserve', '2026-01-01 12:00 UTC'::timestamptz + i * interval '1 day'
FROM generate_series(1, 5) i;

-- one is claimed here already
SELECT idem_claim('m-3', 'inventory.reserve');
SELECT message_id, idem_import(message_id, consumer, received_at) FROM old_inbox ORDER BY 1;
SELECT message_id, state, received_at AT TIME ZONE 'UTC' AS received_at,
	   completed_at = received_at AS completed_then, attempt, result
FROM idem_inbox WHERE message_id <> 'm-3' ORDER BY 1;
SELECT received_at > now() - interval '1 hour' AS stays FROM idem_status('m-3', 'inventory.reserve');
-- again: nothing to bring
SELECT count(*) FILTER (WHERE idem_import(message_id, consumer, received_at)) FROM old_inbox;
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_seen('m-1', 'inventory.reserve');

-- not known when; in the future
SELECT idem_import('n-1', 'inventory.reserve'), idem_import('n-2', 'inventory.reserve', now() + interval '1 year');
SELECT message_id, received_at BETWEEN now() - interval '1 hour' AND clock_timestamp() AS now
FROM idem_inbox WHERE message_id::text LIKE 'n-%' ORDER BY 1;
-- the fingerprint serves later deliveries, and is none itself
SELECT idem_import('f-1', 'inventory.reserve', NULL, '\x01');
SELECT idem_claim('f-1', 'inventory.reserve', '\x02');
SELECT idem_import('f-1', 'inventory.reserve', NULL, '\x03');
SELECT deliveries FROM idem_quarantine;
-- what is in progress stays in progress
SELECT idem_begin('b-1', 'inventory.reserve');
SELECT idem_import('b-1', 'inventory.reserve', '2026-01-01');
SELECT state FROM idem_status('b-1', 'inventory.reserve');
-- it is no claim
BEGIN;
SET LOCAL idem_inbox.require_complete = on;
SELECT idem_import('c-1', 'inventory.reserve');
SELECT * FROM idem_claims();
COMMIT;
SET idem_inbox.lone_claim = error;
SELECT idem_import('c-2', 'inventory.reserve');
SET idem_inbox.lone_claim = off;
-- rolled back
BEGIN;
SELECT idem_import('r-1', 'inventory.reserve');
ROLLBACK;
SELECT idem_claim('r-1', 'inventory.reserve');

-- errors
SELECT idem_import('', 'inventory.reserve');
SELECT idem_import(NULL, 'inventory.reserve');
SELECT idem_import('e-1', 'inventory.reserve', 'infinity');
SELECT idem_import('e-1', 'inventory.reserve', '-infinity');
SELECT idem_import('e-1', 'inventory.reserve', NULL, '');
SET idem_inbox.auto_register = off;
SELECT idem_import('e-1', 'unknown');

DROP TABLE old_inbox;
DROP EXTENSION idem_inbox;
