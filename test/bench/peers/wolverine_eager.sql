\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
INSERT INTO wolverine_incoming (id, status, owner_id, body, message_type, keep_until) VALUES (lpad(:m::text, 32, '0')::uuid, 'Handled', 0, '{"copies": 2}', 'order', now() + interval '5 min');
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
