\set m random(1, 1000000000000000)
\set item random(1, 10000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM inbox_state WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid FOR UPDATE;
INSERT INTO inbox_state (message_id, consumer_id, lock_id, received, receive_count) VALUES (lpad(:m::text, 32, '0')::uuid, lpad('1', 32, '0')::uuid, gen_random_uuid(), now(), 0);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM inbox_state WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid FOR UPDATE;
UPDATE inbox_state SET lock_id = gen_random_uuid(), receive_count = receive_count + 1 WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
UPDATE stock_item SET reserved = reserved + 1 WHERE id = :item;
UPDATE inbox_state SET consumed = now() WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM inbox_state WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid FOR UPDATE;
UPDATE inbox_state SET lock_id = gen_random_uuid() WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
SELECT * FROM outbox_message WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid AND sequence > 0 ORDER BY sequence LIMIT 10;
UPDATE inbox_state SET delivered = now() WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM inbox_state WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid FOR UPDATE;
UPDATE inbox_state SET lock_id = gen_random_uuid() WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
DELETE FROM outbox_message WHERE message_id = lpad(:m::text, 32, '0')::uuid AND consumer_id = lpad('1', 32, '0')::uuid;
COMMIT;
