#!/bin/bash
# Many copies of one message at once, and many clients of one consumer.

set -eu
. "$(dirname "$0")/lib.sh"

rounds=${ROUNDS:-5}
sql -c "SELECT idem_register('inventory.reserve-stock')" >/dev/null

echo "SELECT idem_claim('\$ID', 'inventory.reserve-stock');" >"$work/ours.sql"
echo "INSERT INTO plain_inbox VALUES ('\$ID', 'inventory.reserve-stock') ON CONFLICT DO NOTHING;" >"$work/theirs.sql"

# answer SIDE: milliseconds from the commit of the one that holds a message
# until 32 copies that wait for it have their answers
answer()
{
    local id=copy-$RANDOM$RANDOM begin pid

    sed "s/\\\$ID/$id/" "$work/$1.sql" >"$work/$1.one.sql"
    mkfifo "$work/holder"
    psql -Xq <"$work/holder" >/dev/null &
    exec 3>"$work/holder"
    { echo "BEGIN;"; cat "$work/$1.one.sql"; } >&3
    until [ "$(sql -c "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")" = 1 ]; do :; done
    pgbench -n -c 32 -j 2 -t 1 -f "$work/$1.one.sql" >/dev/null 2>&1 &
    pid=$!
    until [ "$(sql -c "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")" = 32 ]; do :; done
    begin=$(date +%s%N)
    echo "COMMIT;" >&3
    wait $pid
    calc "($(date +%s%N) - $begin) / 1e6"
    exec 3>&-
    wait
    rm "$work/holder"
}
ours_32() { answer ours; }
theirs_32() { answer theirs; }

cat >"$work/hot_ours.sql" <<'EOF'
\set m random(1, 1000000000000000)
SELECT idem_claim(:m::text, 'inventory.reserve-stock');
EOF
cat >"$work/hot_theirs.sql" <<'EOF'
\set m random(1, 1000000000000000)
INSERT INTO plain_inbox VALUES (:m::text, 'inventory.reserve-stock') ON CONFLICT DO NOTHING;
EOF
hot_ours() { tps "$work/hot_ours.sql" 8; }
hot_theirs() { tps "$work/hot_theirs.sql" 8; }

cat <<EOF
## Crowds

| what | idem_inbox | by hand | ratio |
|---|---|---|---|
EOF
alternate "$rounds" ours_32 theirs_32
printf '| 32 copies wait for one open transaction: ms from its commit to the last answer | %.1f | %.1f | %.2f |\n' "$ours" "$theirs" "$ratio"
alternate "$rounds" hot_ours hot_theirs
printf '| 8 clients of one consumer, new messages: claims per second | %.0f | %.0f | %.2f |\n' "$ours" "$theirs" "$ratio"
cat <<EOF

Command: \`make bench BENCH=crowd\`. Median of $rounds rounds, fsync off.
EOF
empty_ring
sql -c "TRUNCATE plain_inbox"
