\set m random(1, 1000000000000000)
\set item random(1, 10000)
INSERT INTO two_phase VALUES (:m::text, 'inventory.reserve-stock') ON CONFLICT DO NOTHING RETURNING message_id;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
UPDATE two_phase SET done = true WHERE message_id = :m::text AND consumer = 'inventory.reserve-stock';
