\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
INSERT INTO int_metadata_store SELECT :m::text, 'x', 'inventory.reserve-stock' FROM int_metadata_store WHERE metadata_key = :m::text AND region = 'inventory.reserve-stock' HAVING count(*) = 0 ON CONFLICT DO NOTHING;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
