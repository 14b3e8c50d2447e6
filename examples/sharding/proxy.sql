-- The proxy: knows where the shards are, and holds nothing.  Its database
-- needs PL/Proxy (Debian: postgresql-15-plproxy), not idem_inbox.
--
--     psql -v shard0='host=a dbname=bookstore' -v shard1='host=b dbname=bookstore' -f proxy.sql
CREATE EXTENSION plproxy;

-- A power of two of them.  After a fail-over, no session need reconnect:
--     ALTER SERVER bookstore OPTIONS (SET p1 'host=c dbname=bookstore')
CREATE SERVER bookstore FOREIGN DATA WRAPPER plproxy OPTIONS (
	p0 :'shard0',
	p1 :'shard1'
);
CREATE USER MAPPING FOR CURRENT_USER SERVER bookstore;

-- The title is the key by which the work is divided, and it is in the message.
-- So every copy of a message gets to the same shard, and to its inbox.
CREATE FUNCTION reserve_stock(title text, message_id text, order_id int, copies int) RETURNS text
LANGUAGE plproxy AS $$
	CLUSTER 'bookstore';
	RUN ON hashtext(title);
$$;

CREATE FUNCTION add_stock(title text, on_hand int) RETURNS void
LANGUAGE plproxy AS $$
	CLUSTER 'bookstore';
	RUN ON hashtext(title);
$$;

-- Reads all shards, each with a snapshot of its own.
CREATE FUNCTION stock() RETURNS TABLE (title text, on_hand int, reserved int)
LANGUAGE plproxy AS $$
	CLUSTER 'bookstore';
	RUN ON ALL;
	SELECT title, on_hand, reserved FROM stock_item;
$$;
