-- What the examples work on.  No key on purpose: were a message processed
-- twice, there would be two rows, and only the inbox is there to prevent it.
CREATE EXTENSION IF NOT EXISTS idem_inbox;

CREATE TABLE reservation (
	consumer text NOT NULL,
	order_id int NOT NULL,
	title	 text NOT NULL,
	copies	 int NOT NULL
);

-- of the HTTP example
CREATE TABLE placed_order (
	order_id int GENERATED ALWAYS AS IDENTITY,
	title	 text NOT NULL,
	copies	 int NOT NULL
);
