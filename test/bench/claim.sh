#!/bin/bash
# What a claim costs beside the INSERT ... ON CONFLICT DO NOTHING that people
# write by hand, run from a saved plan: processor time of one backend for
# 300,000 claims in one query, the two alternating; WAL, bytes and memory.

set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gcc -O2 -fPIC -shared -I"$(pg_config --includedir-server)" \
    -o "$work/baseline.so" "$here/baseline.c"

rounds=${ROUNDS:-7}

psql -Xq -v ON_ERROR_STOP=1 <<SQL
CREATE EXTENSION IF NOT EXISTS idem_inbox;
CREATE TABLE plain (
	message_id	text,
	consumer	text,
	PRIMARY KEY (message_id, consumer)
);
CREATE FUNCTION plain_claim_c(text, text) RETURNS bool
	AS '$work/baseline', 'plain_claim' LANGUAGE C;
CREATE FUNCTION plain_claim_sql(text, text) RETURNS bool LANGUAGE sql AS
	'INSERT INTO plain VALUES (\$1, \$2) ON CONFLICT DO NOTHING RETURNING true';
-- user and system time of this backend, in clock ticks
CREATE FUNCTION cpu() RETURNS int LANGUAGE sql AS \$\$
	SELECT f[14]::int + f[15]::int
	FROM string_to_array(pg_read_file('/proc/self/stat'), ' ') f
\$\$;
CREATE TABLE uuids AS
	SELECT gen_random_uuid()::text AS m, 'inventory.reserve-stock'::text AS c
	FROM generate_series(1, 300000);
CREATE TABLE serials AS
	SELECT 'order-' || i AS m, 'inventory.reserve-stock'::text AS c
	FROM generate_series(1, 300000) i;
VACUUM ANALYZE uuids, serials;
SQL

# measure TABLE FUNCTION: processor time in ticks
measure()
{
    psql -XqAt -v ON_ERROR_STOP=1 <<SQL
TRUNCATE plain, idem_generation_1;
CHECKPOINT;
CHECKPOINT;
SELECT cpu() AS before \gset
SELECT count(*) AS claimed FROM $1 WHERE $2 \gset
SELECT CASE WHEN :claimed = 300000 THEN cpu() - :before END;
SQL
}

median()
{
    sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

for ids in uuids serials; do
    for function in c sql; do
        for round in $(seq "$rounds"); do
            theirs=$(measure $ids "plain_claim_$function(m, c)")
            ours=$(measure $ids "idem_claim(m, c) = 'claimed'")
            awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.2f\n", a / b }'
        done >"$work/ratios"
        printf '300,000 claims, %s: %s of the time of %s with a saved INSERT (median of %s: %s)\n' \
            "$ids" "$(median <"$work/ratios")" \
            "$([ $function = c ] && echo "a C function" || echo "an SQL function")" \
            "$rounds" "$(sort -n "$work/ratios" | paste -sd ' ')"
    done
done

# WAL, into new pages, which need no full-page images;
# bytes on disk of 300,000 records; memory.
psql -XqAt -v ON_ERROR_STOP=1 <<'SQL'
TRUNCATE plain, idem_generation_1;
CHECKPOINT;
SELECT pg_current_wal_insert_lsn() AS before \gset
SELECT count(*) AS claimed FROM uuids WHERE plain_claim_c(m, c) \gset
SELECT pg_current_wal_insert_lsn() AS between \gset
SELECT count(*) AS claimed FROM uuids WHERE idem_claim(m, c) = 'claimed' \gset
SELECT pg_current_wal_insert_lsn() AS after \gset
SELECT format('WAL per claim: %s bytes, by hand %s bytes',
	round(pg_wal_lsn_diff(:'after', :'between') / 300000),
	round(pg_wal_lsn_diff(:'between', :'before') / 300000));
SELECT format('bytes per record: table %s, index %s; by hand: table %s, index %s',
	pg_table_size('idem_generation_1') / 300000,
	pg_relation_size('idem_generation_1_pkey') / 300000,
	pg_table_size('plain') / 300000,
	pg_indexes_size('plain') / 300000);
SELECT pg_current_wal_insert_lsn() AS before \gset
SELECT count(*) AS duplicates FROM uuids WHERE idem_claim(m, c) = 'duplicate' \gset
SELECT format('%s duplicates: %s bytes of WAL, transaction id: %s', :duplicates,
	pg_wal_lsn_diff(pg_current_wal_insert_lsn(), :'before'),
	COALESCE(pg_current_xact_id_if_assigned()::text, 'none'));
TRUNCATE idem_generation_1;
BEGIN;
SELECT count(*) AS claimed FROM uuids WHERE idem_claim(m, c) = 'claimed' AND m < '1' \gset
SELECT sum(used_bytes) AS before FROM pg_backend_memory_contexts \gset
SELECT count(*) AS claimed FROM uuids WHERE idem_claim(m, c) = 'claimed' AND m > '1' \gset
SELECT format('backend memory after %s more claims in one transaction: %s bytes more',
	:claimed, sum(used_bytes) - :before) FROM pg_backend_memory_contexts;
COMMIT;
SQL
psql -Xq -c 'DROP TABLE plain, uuids, serials' \
    -c 'DROP FUNCTION plain_claim_c, plain_claim_sql, cpu' \
    -c 'DROP EXTENSION idem_inbox'
