-- The bookstore: what its database holds before the first message arrives.

CREATE EXTENSION idem_inbox;

CREATE TABLE stock_item (
	book_id		uuid PRIMARY KEY,
	title		text NOT NULL,
	on_hand		int NOT NULL,
	reserved	int NOT NULL DEFAULT 0,
	CHECK (reserved BETWEEN 0 AND on_hand)
);
INSERT INTO stock_item (book_id, title, on_hand) VALUES (:'dune', 'Dune', 10);

-- for the scene "natural key"
CREATE TABLE reservation (
	order_id	bigint,
	book_id		uuid REFERENCES stock_item,
	copies		int NOT NULL,
	UNIQUE (order_id, book_id)
);

-- for the scene "check-then-process"
CREATE TABLE processed_message (
	message_id	text PRIMARY KEY
);
