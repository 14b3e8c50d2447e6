\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
SELECT dispatched, operations FROM outbox_data WHERE message_id = :m::text;
COMMIT;
BEGIN;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
INSERT INTO outbox_data (message_id, operations, version) VALUES (:m::text, '[{"id": 1}]', '3.0.0');
COMMIT;
UPDATE outbox_data SET dispatched = true, dispatched_at = now(), operations = '[]' WHERE message_id = :m::text;
