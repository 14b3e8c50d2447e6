-- A consumer that looks whether it knows the message, and notes it down when
-- the work is done, each in a transaction of its own.

SELECT EXISTS (SELECT FROM processed_message
			   WHERE message_id = :'message') AS known \gset
\if :known
	\quit
\endif

UPDATE stock_item SET reserved = reserved + 2 WHERE book_id = :'dune';
\! eval "$at_mark"
INSERT INTO processed_message (message_id) VALUES (:'message');
