\set m random(1, 1000000000000000)
\set item random(1, 10000)
INSERT INTO wolverine_incoming (id, status, owner_id, body, message_type) VALUES (lpad(:m::text, 32, '0')::uuid, 'Incoming', 1, '{"copies": 2}', 'order');
BEGIN;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
UPDATE wolverine_incoming SET status = 'Handled', keep_until = now() + interval '5 min' WHERE id = lpad(:m::text, 32, '0')::uuid;
COMMIT;
