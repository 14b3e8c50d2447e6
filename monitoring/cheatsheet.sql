-- The five queries that an operator runs, all of them as a member of pg_monitor.
-- psql -f monitoring/cheatsheet.sql, or one of them by hand.

\echo 1. What needs a person, and the call that settles it?
SELECT reason, consumer, message_id, date_trunc('second', age) AS age, attempt, deliveries, resolve
FROM idem_attention ORDER BY since LIMIT 20;

\echo 2. Which messages fail again and again?
SELECT consumer, message_id, times, last_at FROM idem_failing ORDER BY times DESC, last_at DESC LIMIT 20;

\echo 3. Who waits for whom in a claim?
SELECT w.pid AS waits, now() - w.query_start AS for_long, b.pid AS holds,
       CASE b.pid WHEN 0 THEN 'a prepared transaction: see pg_prepared_xacts' ELSE h.application_name END AS application_name,
       h.state, now() - h.xact_start AS open_for, left(h.query, 60) AS last_query
FROM pg_stat_activity w
     LEFT JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b(pid) ON true  -- a claim with max_wait does not tell for whom
     LEFT JOIN pg_stat_activity h ON h.pid = b.pid
WHERE w.datname = current_database() AND w.state = 'active' AND w.query ~* 'idem_(claim|begin)'
  AND w.wait_event_type IN ('Lock', 'Extension')
ORDER BY h.xact_start LIMIT 20;

\echo 4. What do the consumers do?
SELECT consumer, claimed, duplicate, round(100.0 * duplicate / nullif(claimed + duplicate, 0), 1) AS duplicate_percent,
       rolled_back, mismatch, waits, round(waited_ms) AS waited_ms, last_claim
FROM idem_stats ORDER BY claimed DESC LIMIT 20;

\echo 5. Does the ring turn, and what does it wait for?
SELECT "table", role, date_trunc('second', age) AS age, rows_estimate, pg_size_pretty(bytes) AS size, next_step, waits_for
FROM idem_generation;
