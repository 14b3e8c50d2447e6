-- A consumer with the inbox that also has the inbox compare the content.

BEGIN;
SELECT idem_claim(:'message', 'inventory.reserve-stock',
				  fingerprint => decode(md5(:'content'), 'hex')) AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\if :claimed
	UPDATE stock_item
	SET reserved = reserved + (:'content'::jsonb ->> 'copies')::int
	WHERE book_id = :'dune';
\endif
COMMIT;

\echo :outcome
