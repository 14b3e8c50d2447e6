\set m random(1, 1000000000000000)
\set item random(1, 10000)
SELECT command_id FROM brighter_inbox WHERE command_id = :m::text AND context_key = 'inventory.reserve-stock' LIMIT 1;
BEGIN;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
INSERT INTO brighter_inbox VALUES (:m::text, 'order', '{"copies": 2}', now(), 'inventory.reserve-stock');
