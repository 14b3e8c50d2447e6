\set m random(1, 1000000000000000)
\set item random(1, 10000)
SELECT idem_begin(:m::text, 'inventory.reserve-stock', lease => '1 minute');
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
SELECT idem_complete(:m::text, 'inventory.reserve-stock', attempt => 1);
