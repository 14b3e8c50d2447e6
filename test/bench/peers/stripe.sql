\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM idempotency_key WHERE user_id = 1 AND key = :m::text;
INSERT INTO idempotency_key (key, locked_at, params, recovery_point, user_id) VALUES (:m::text, now(), '{"copies": 2}', 'started', 1);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
UPDATE idempotency_key SET recovery_point = 'charged' WHERE user_id = 1 AND key = :m::text;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE idempotency_key SET response_code = 200, response_body = '{}', locked_at = NULL, recovery_point = 'finished' WHERE user_id = 1 AND key = :m::text;
COMMIT;
