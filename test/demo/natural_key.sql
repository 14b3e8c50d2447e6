-- A consumer with the inbox whose work has a key of its own: one order
-- reserves a book once, whatever messages say so.

BEGIN;
SELECT idem_claim(:'message', 'inventory.reserve-stock') AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\if :claimed
	WITH new AS (
		INSERT INTO reservation (order_id, book_id, copies)
		VALUES (:order_id, :'dune', 2)
		ON CONFLICT (order_id, book_id) DO NOTHING
		RETURNING book_id, copies)
	UPDATE stock_item SET reserved = reserved + new.copies
	FROM new WHERE stock_item.book_id = new.book_id;
\endif
COMMIT;

\echo :outcome
