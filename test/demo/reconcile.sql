-- Finds out how far an attempt got that was left half-done: takes it over, so
-- that nobody else does, and asks the provider by the idempotency key.

SELECT idem_takeover(:'message', :'consumer') AS attempt \gset
\if :{?attempt}
\else
	\echo somebody else takes care of it
	\quit
\endif

\set answer `"$provider" query "$message"`
SELECT CASE :'answer' WHEN 'executed' THEN 'complete'
					  WHEN 'unknown' THEN 'abandon' END AS call \gset
SELECT :'call' = 'complete' AS complete \gset
\if :complete
	SELECT idem_complete(:'message', :'consumer', attempt => :attempt) AS done \gset
\else
	SELECT idem_abandon(:'message', :'consumer', attempt => :attempt) AS done \gset
\endif

\echo takeover -> attempt :attempt; provider asked by idempotency key: :answer -> :call
