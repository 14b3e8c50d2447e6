-- Another consumer whose work cannot be rolled back: it charges a card.  Its
-- mark is before the charge.

SELECT idem_begin(:'message', 'payment.charge-card') AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\if :claimed
	\! eval "$at_mark"
	\! "$provider" execute "$message" "charge: 2 copies of Dune"
	SELECT idem_complete(:'message', 'payment.charge-card') AS done \gset
\endif

\echo :outcome
