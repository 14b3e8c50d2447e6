#!/bin/bash
# Whole transactions: claim, work, commit, beside the same without any
# deduplication and with the inbox written by hand.

set -eu
. "$(dirname "$0")/lib.sh"

rounds=${ROUNDS:-3}
sql -f "$here/peers.sql" >/dev/null

# durable MODE: fsync and synchronous commits, or not waiting for the disk
durable()
{
    if [ "$1" = fsync ]; then
        sql -c "ALTER SYSTEM SET fsync = on" -c "ALTER SYSTEM SET synchronous_commit = on"
    else
        sql -c "ALTER SYSTEM SET fsync = on" -c "ALTER SYSTEM SET synchronous_commit = off"
    fi
    sql -c "SELECT pg_reload_conf()" -c CHECKPOINT >/dev/null
}

for side in commit floor idem plain floor_one idem_one; do
    eval "run_$side() { tps '$here/peers/$side.sql' \$clients; }"
done

cat <<EOF
## Whole transactions

BEGIN, claim, one UPDATE, COMMIT through pgbench (prepared statements, unix
socket, on the machine that also runs the server); transactions per second. The
*handler* is the same without any claim, *by hand* has INSERT … ON CONFLICT DO
NOTHING in the claim's place, *one statement* is \`WITH claim AS (SELECT
idem_claim(…) …) UPDATE …\` beside the UPDATE alone. The limit is a
transaction that writes nothing but its commit record. 300,000 records are
there before.

| commits | clients | limit | handler | idem_inbox | to handler | bar | to by hand | bar | one statement | to handler |
|---|---|---|---|---|---|---|---|---|---|---|
EOF
for mode in fsync async; do
    durable $mode
    for clients in 1 2 8 32; do
        limit=$(run_commit)
        alternate "$rounds" run_idem run_floor
        idem=$ours floor=$theirs to_floor=$ratio
        alternate "$rounds" run_idem run_plain
        to_plain=$ratio
        alternate "$rounds" run_idem_one run_floor_one
        printf '| %s | %d | %.0f | %.0f | %.0f | %.2f | %s | %.2f | %s | %.0f | %.2f |\n' \
            "$([ $mode = fsync ] && echo "on disk" || echo "synchronous_commit = off")" \
            "$clients" "$limit" "$floor" "$idem" \
            "$to_floor" "$(verdict "$to_floor" '>=' 0.9)" \
            "$to_plain" "$(verdict "$to_plain" '>=' 1)" "$ours" "$ratio"
        echo "$clients $to_floor $to_plain $ratio" >>"$results/transaction_$mode.dat"
    done
done
cat <<EOF

Command: \`make bench BENCH=transaction\`. Median of $rounds rounds of
${SECONDS_EACH:-2} s.
EOF
sql -c "ALTER SYSTEM RESET fsync" -c "ALTER SYSTEM RESET synchronous_commit" \
    -c "SELECT pg_reload_conf()" >/dev/null
