\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
INSERT INTO plain_inbox VALUES (:m::text, 'inventory.reserve-stock') ON CONFLICT DO NOTHING;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
