#!/bin/bash
# What it costs to expire a million records while two clients go on claiming:
# a turn of the ring, beside DELETE and VACUUM in an inbox as people write it
# by hand.  Claims are timed one by one; those of the seconds before and after
# the expiry, in the same run, tell what they take without it.

set -eu

rows=${ROWS:-1000000}
quiet=5		# seconds before and after
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

sql()
{
    psql -XqAt -v ON_ERROR_STOP=1 "$@"
}

calc()
{
    awk "BEGIN { printf \"%.3f\", $1 }"
}

sql >/dev/null <<SQL
ALTER SYSTEM SET fsync = on;
SELECT pg_reload_conf();
CREATE EXTENSION IF NOT EXISTS pgstattuple;
CREATE EXTENSION IF NOT EXISTS idem_inbox;
CREATE TABLE plain_inbox (
	message_id	text,
	consumer	text,
	received_at	timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (message_id, consumer)
);
CREATE INDEX ON plain_inbox (received_at);

-- a step as soon as it can be taken
CREATE PROCEDURE turn(INOUT step text) LANGUAGE plpgsql AS \$\$
DECLARE
	wanted text := step;
BEGIN
	LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		step := idem_maintain();
		COMMIT;
		EXIT WHEN step = wanted;
		PERFORM pg_sleep(0.001);
	END LOOP;
END
\$\$;
SQL

echo "SELECT idem_claim(gen_random_uuid()::text, 'inventory.reserve');" \
    >"$work/ring.sql"
echo "INSERT INTO plain_inbox VALUES (gen_random_uuid(), 'inventory.reserve') ON CONFLICT DO NOTHING;" \
    >"$work/plain.sql"

fill_ring()
{
    sql >/dev/null <<SQL
TRUNCATE idem_ring, idem_generation_1, idem_generation_2, idem_generation_3;
CHECKPOINT;
SELECT count(*) FROM generate_series(1, $rows)
WHERE idem_claim(gen_random_uuid()::text, 'inventory.reserve') = 'claimed';
SELECT idem_maintain();
SQL
}

fill_plain()
{
    sql >/dev/null <<SQL
TRUNCATE plain_inbox;
CHECKPOINT;
INSERT INTO plain_inbox SELECT gen_random_uuid(), 'inventory.reserve'
FROM generate_series(1, $rows);
SQL
    cutoff=$(sql -c "SELECT clock_timestamp()")
}

expire_ring()
{
    local step

    for step in opened sealed emptied; do
        sql -c "CALL turn('$step')" >/dev/null
    done
}

expire_plain()
{
    sql -c "DELETE FROM plain_inbox WHERE received_at < '$cutoff'"
    dead_before_vacuum=$(sql -c \
        "SELECT dead_tuple_count FROM pgstattuple('plain_inbox')")
    sql -c "VACUUM plain_inbox"
}

# latencies FROM TO: claims that ended in that time, and their latencies in
# milliseconds: median, 99.9th percentile, maximum.
latencies()
{
    cat "$work"/log.* |
        awk -v a="$1" -v b="$2" '{ t = $5 + $6 / 1e6 } t >= a && t < b { print $3 }' |
        sort -n |
        awk '{ v[NR] = $1 / 1000 }
             END { printf "%d %.2f %.2f %.2f", NR, v[int(NR / 2) + 1],
                   v[int(NR * 0.999) + 1], v[NR] }'
}

# measure NAME TABLES [checkpoint]: expires NAME while two clients claim there;
# the first change of a page after a checkpoint logs the whole page.
measure()
{
    local name=$1 tables=$2 begin end client wal dead before after

    "fill_$name"
    dead_before_vacuum=
    if [ "${3:-}" ]; then
        echo "  soon after a checkpoint:"
        sql -c CHECKPOINT
    else
        echo "  with no checkpoint since the records came:"
    fi
    before=$(sql -c "SELECT sum(pg_total_relation_size(t)) FROM unnest('$tables'::regclass[]) t")
    (cd "$work" && exec pgbench -n -c 2 -j 2 -M prepared -T 3600 -l \
        --log-prefix="$work/log" -f "$name.sql" >/dev/null 2>&1) &
    client=$!
    sleep $quiet
    wal=$(sql -c "SELECT pg_current_wal_lsn()")
    begin=$(date +%s.%N)
    "expire_$name"
    end=$(date +%s.%N)
    wal=$(sql -c "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '$wal')")
    sleep $quiet
    # ended this way, pgbench writes its log to the end
    sql -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'" >/dev/null
    wait "$client" || true
    dead=$(sql -c "SELECT sum((pgstattuple(t)).dead_tuple_count) FROM unnest('$tables'::regclass[]) t")
    after=$(sql -c "SELECT sum(pg_total_relation_size(t)) FROM unnest('$tables'::regclass[]) t")

    printf '    time %.2f s, WAL %.2f MB (with that of the claims), dead tuples left %d%s, size %d -> %d MB\n' \
        "$(calc "$end - $begin")" "$(calc "$wal / 1048576")" "$dead" \
        "${dead_before_vacuum:+ ($dead_before_vacuum before VACUUM)}" \
        $((before / 1048576)) $((after / 1048576))
    printf '    claims without it: %d, median %.2f ms, 99.9 %% within %.2f ms, slowest %.2f ms\n' \
        $(latencies 0 "$begin")
    printf '    claims during it:  %d, median %.2f ms, 99.9 %% within %.2f ms, slowest %.2f ms\n' \
        $(latencies "$begin" "$(calc "$end + 0.2")")
    printf '    claims after it:   %d, median %.2f ms, 99.9 %% within %.2f ms, slowest %.2f ms\n' \
        $(latencies "$(calc "$end + 0.2")" 9999999999)
    rm -f "$work"/log.*
}

generations='{idem_generation_1,idem_generation_2,idem_generation_3}'
echo "expiring $rows records while 2 clients claim:"
echo "a turn of the ring (open, seal, empty)"
measure ring $generations
measure ring $generations checkpoint
echo "DELETE and VACUUM of a plain inbox with an index on received_at"
measure plain '{plain_inbox}'
measure plain '{plain_inbox}' checkpoint
sql -c "ALTER SYSTEM RESET fsync" -c "SELECT pg_reload_conf()" >/dev/null
