\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN;
SELECT count(*) FROM camel_messageprocessed WHERE processorname = 'inventory.reserve-stock' AND messageid = :m::text;
INSERT INTO camel_messageprocessed VALUES ('inventory.reserve-stock', :m::text, now());
COMMIT;
BEGIN;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
COMMIT;
