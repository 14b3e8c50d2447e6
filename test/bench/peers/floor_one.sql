\set m random(1, 1000000000000000)
\set item random(1, 10000)
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
