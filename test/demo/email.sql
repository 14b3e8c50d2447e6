-- A consumer whose work cannot be rolled back: it sends a mail.  The record of
-- the attempt is committed before the mail is sent.

SELECT idem_begin(:'message', 'mail.confirm-order') AS outcome \gset
SELECT :'outcome' = 'claimed' AS claimed \gset
\if :claimed
	\! "$provider" execute "$message" "mail: your order has been placed"
	\! eval "$at_mark"
	SELECT idem_complete(:'message', 'mail.confirm-order') AS done \gset
\endif

\echo :outcome
