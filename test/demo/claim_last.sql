-- A consumer that does the work first and claims last.  Still right, but the
-- second copy does the work in vain, and waits with a row of the stock locked.

BEGIN;
UPDATE stock_item SET reserved = reserved + 2 WHERE book_id = :'dune';
SELECT idem_claim(:'message', 'inventory.reserve-stock') AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\! eval "$at_mark"
\if :claimed
	COMMIT;
\else
	ROLLBACK;
\endif

\echo :outcome
