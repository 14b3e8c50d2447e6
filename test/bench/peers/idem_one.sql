\set m random(1, 1000000000000000)
\set item random(1, 10000)
WITH claim AS (SELECT idem_claim(:m::text, 'inventory.reserve-stock') AS outcome) UPDATE stock_item SET reserved = reserved + 1 FROM claim WHERE outcome = 'claimed' AND id = :item;
