-- What somebody does first with the package, on a server that preloads it.
\set ON_ERROR_STOP on
CREATE EXTENSION idem_inbox;
SELECT 'version: ' || idem_version();
BEGIN;
SELECT 'first: ' || idem_claim('m-1', 'smoke');
COMMIT;
BEGIN;
SELECT 'again: ' || idem_claim('m-1', 'smoke');
COMMIT;
SELECT 'counted: ' || claimed || ' ' || duplicate FROM idem_stats WHERE consumer = 'smoke';
SELECT 'launcher: ' || count(*) FROM pg_stat_activity WHERE backend_type = 'idem_inbox launcher';
DROP EXTENSION idem_inbox;
SELECT 'left: ' || count(*) FROM pg_class WHERE relname LIKE 'idem%';
