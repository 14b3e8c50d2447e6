-- A consumer with the inbox: claim first, then the work, in one transaction.

BEGIN;
SELECT idem_claim(:'message', 'inventory.reserve-stock') AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\if :claimed
	UPDATE stock_item SET reserved = reserved + 2 WHERE book_id = :'dune';
\endif
\! eval "$at_mark"
COMMIT;

\echo :outcome
