-- One shard: the work, the inbox beside it, and the function that the proxy
-- calls.
--
--     psql -v shard=0 -f shard.sql       on the first server, 1 on the second
CREATE EXTENSION idem_inbox;

CREATE TABLE stock_item (
	title	 text PRIMARY KEY,
	on_hand	 int NOT NULL,
	reserved int NOT NULL DEFAULT 0,
	-- The proxy's route once more: what is sent to the wrong shard is an error.
	CHECK ((hashtext(title) & 1) = :shard)
);

-- No key on purpose, as in ../schema.sql: only the inbox prevents a second row.
CREATE TABLE reservation (
	order_id int NOT NULL,
	title	 text NOT NULL REFERENCES stock_item,
	copies	 int NOT NULL
);

CREATE FUNCTION add_stock(title text, on_hand int) RETURNS void
LANGUAGE sql
BEGIN ATOMIC
	INSERT INTO stock_item VALUES (title, on_hand);
END;

-- PL/Proxy sends each call as a statement in autocommit, so a statement is all
-- that can be in one transaction: the function claims and works.  Its result
-- is what the consumer tells its broker.
CREATE FUNCTION reserve_stock(title text, message_id text, order_id int, copies int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	outcome idem_outcome := idem_claim(message_id, 'inventory.reserve-stock',
		idem_fingerprint(jsonb_build_array(title, order_id, copies)));
BEGIN
	IF outcome = 'claimed' THEN
		INSERT INTO reservation VALUES (order_id, title, copies);
		UPDATE stock_item SET reserved = reserved + copies
		WHERE stock_item.title = reserve_stock.title;
	END IF;
	RETURN outcome;
END $$;
