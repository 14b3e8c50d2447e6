\set m random(1, 1000000000000000)
\set item random(1, 10000)
SELECT pg_current_xact_id();
