\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
INSERT INTO received_messages VALUES ('inventory.reserve-stock', :m::text, 0);
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
