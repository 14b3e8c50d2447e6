#!/bin/bash
# What it costs to expire a million records while two clients go on claiming:
# a turn of the ring, beside DELETE and VACUUM in an inbox as people write it
# by hand.  Claims are timed one by one; those of the seconds before and after
# the expiry, in the same run, tell what they take without it.

set -eu
. "$(dirname "$0")/lib.sh"

rows=${ROWS:-1000000}
quiet=3		# seconds before and after

sql >/dev/null <<SQL
SET client_min_messages = warning;
ALTER SYSTEM SET fsync = on;
SELECT pg_reload_conf();
CREATE EXTENSION IF NOT EXISTS pgstattuple;

-- a step as soon as it can be taken; the time that it takes, commit included
CREATE PROCEDURE turn(INOUT step text, INOUT ms float8 DEFAULT 0) LANGUAGE plpgsql AS \$\$
DECLARE
	wanted text := step;
	start timestamptz;
BEGIN
	LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		start := clock_timestamp();
		step := idem_maintain();
		COMMIT;
		EXIT WHEN step = wanted;
		PERFORM pg_sleep(0.001);
	END LOOP;
	ms := 1000 * extract(epoch FROM clock_timestamp() - start);
END
\$\$;
SQL

echo "SELECT idem_claim(gen_random_uuid()::text, 'inventory.reserve-stock');" \
    >"$work/ring.sql"
echo "INSERT INTO plain_inbox VALUES (gen_random_uuid()::text, 'inventory.reserve-stock') ON CONFLICT DO NOTHING;" \
    >"$work/plain.sql"

fill_ring()
{
    sql >/dev/null <<SQL
TRUNCATE idem_ring, idem_generation_1, idem_generation_2, idem_generation_3;
CHECKPOINT;
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, $rows)),
									 'inventory.reserve-stock') WHERE outcome = 'claimed';
SELECT idem_maintain();
SQL
}

fill_plain()
{
    sql >/dev/null <<SQL
TRUNCATE plain_inbox;
CHECKPOINT;
INSERT INTO plain_inbox SELECT gen_random_uuid()::text, 'inventory.reserve-stock'
FROM generate_series(1, $rows);
SQL
    cutoff=$(sql -c "SELECT clock_timestamp()")
}

expire_ring()
{
    local step

    took=0
    for step in opened sealed emptied; do
        took=$(calc "$took + $(sql -c "CALL turn('$step')" | cut -d '|' -f 2) / 1000" %.6f)
    done
}

expire_plain()
{
    took=$(date +%s.%N)
    sql -c "DELETE FROM plain_inbox WHERE received_at < '$cutoff'"
    dead_before_vacuum=$(sql -c \
        "SELECT dead_tuple_count FROM pgstattuple('plain_inbox')")
    sql -c "VACUUM plain_inbox"
    took=$(calc "$(date +%s.%N) - $took")
}

# latencies FROM TO: claims that ended in that time, and their latencies in
# milliseconds: median, 99th percentile, maximum.
latencies()
{
    cat "$work"/log.* |
        awk -v a="$1" -v b="$2" '{ t = $5 + $6 / 1e6 } t >= a && t < b { print $3 }' |
        sort -n |
        awk '{ v[NR] = $1 / 1000 }
             END { printf "%d %.2f %.2f %.2f", NR, v[int(NR / 2) + 1],
                   v[int(NR * 0.99) + 1], v[NR] }'
}

# measure NAME TABLES CHECKPOINT WHAT: expires NAME while two clients claim
# there; the first change of a page after a checkpoint logs the whole page.
measure()
{
    local name=$1 tables=$2 begin end client wal before after

    "fill_$name"
    dead_before_vacuum=0
    if [ "$3" = yes ]; then
        sql -c CHECKPOINT
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

    printf '| %s | %s | %.3f s | %.2f MB | %d; %d | %d → %d MB | %s | %s |\n' \
        "$4" "$3" "$took" "$(calc "$wal / 1048576")" "$dead_before_vacuum" "$dead" \
        $((before / 1048576)) $((after / 1048576)) \
        "$(printf '%s; %.2f, %.2f, %.2f ms' $(latencies 0 "$begin"))" \
        "$(printf '%s; %.2f, %.2f, %.2f ms' $(latencies "$begin" "$(calc "$end + 0.2")"))"
    rm -f "$work"/log.*
}

generations='{idem_generation_1,idem_generation_2,idem_generation_3}'
cat <<EOF
## Expiry

$rows records expire while two clients go on claiming, commits on disk: a turn
of the ring (open, seal, empty), beside DELETE and VACUUM in the inbox written
by hand. The time is that of the three steps with their commits; between them
the ring waits a moment for older transactions. WAL includes that of the claims. Claims are timed one by one: how many
they were; median, 99th percentile and slowest.

| what | after a checkpoint | time | WAL | dead rows: before VACUUM; left | size | claims without it | claims during it, and 0.2 s after |
|---|---|---|---|---|---|---|---|
EOF
measure ring $generations no "a turn of the ring"
ring=$took
measure ring $generations yes "a turn of the ring"
measure plain '{plain_inbox}' no "DELETE and VACUUM"
plain=$took
measure plain '{plain_inbox}' yes "DELETE and VACUUM"
ratio=$(calc "$ring / $plain")
cat <<EOF

Time of the turn beside DELETE and VACUUM, no checkpoint before: $ratio; bar
$(verdict "$ratio" '<=' 0.01). What the turn takes goes into removing files and
two commits on disk; it hardly depends on how many records there are.

Command: \`make bench BENCH=expire\`. One round.
EOF
sql -c "ALTER SYSTEM RESET fsync" -c "SELECT pg_reload_conf()" \
    -c "DROP PROCEDURE turn" -c "TRUNCATE plain_inbox" >/dev/null
empty_ring
