#!/bin/bash
# The statements that other systems send for a message, at 8 clients.

set -eu
. "$(dirname "$0")/lib.sh"

rounds=${ROUNDS:-3}
clients=8
if [ -z "$(sql -c "SELECT to_regclass('stock_item')")" ]; then
    sql -f "$here/peers.sql" >/dev/null
fi
sql -c "ALTER SYSTEM SET fsync = on" -c "SELECT pg_reload_conf()" -c CHECKPOINT >/dev/null

# the same over a network that takes half a millisecond
for script in "$here"/peers/*.sql; do
    sed 's/^\([A-Z]\)/\\sleep 500 us\n\1/' "$script" >"$work/$(basename "$script")"
done

cat <<EOF
## Beside what other systems send

The statements that they send for one message, replayed by pgbench with
$clients clients, commits on disk; one UPDATE is the work. *Statements* counts those of
the client, *commits* those that write. Over a *network*: half a millisecond
before each statement.

| system | statements | commits | per second | idem_inbox to it | bar | network, per second | idem_inbox to it |
|---|---|---|---|---|---|---|---|
EOF

# compare NAME SCRIPT COMMITS OURS [BAR]
compare()
{
    local script=$2 statements near far

    statements=$(grep -c '^[A-Z]' "$here/peers/$script.sql")
    eval "run_ours() { tps '$here/peers/$4.sql' $clients; }
          run_theirs() { tps '$here/peers/$script.sql' $clients; }
          far_ours() { tps '$work/$4.sql' $clients; }
          far_theirs() { tps '$work/$script.sql' $clients; }"
    alternate "$rounds" run_ours run_theirs
    near=$theirs near_ratio=$ratio
    alternate 1 far_ours far_theirs
    printf '| %s | %d | %d | %.0f | %.2f | %s | %.0f | %.2f |\n' "$1" "$statements" "$3" \
        "$near" "$near_ratio" "${5:+$(verdict "$near_ratio" '>=' "$5")}" "$theirs" "$ratio"
    echo "\"$1\" $near_ratio $ratio" >>"$results/peers.dat"
}

compare "no deduplication" floor 1 idem 0.9
compare "by hand" plain 1 idem 1
compare "Eventuate Tram" eventuate 1 idem
compare "Spring Integration metadata store" spring 1 idem
compare "Wolverine, eager" wolverine_eager 1 idem
compare "Wolverine, durable inbox" wolverine 2 idem 1.5
compare "Brighter" brighter 2 idem 1.5
compare "Camel JDBC, eager" camel 2 idem 1.5
compare "NServiceBus outbox" nservicebus 2 idem 1.5
compare "idempotency key as Stripe's" stripe 3 idem 1.5
compare "MassTransit consumer outbox" masstransit 4 idem 1.5
compare "by hand in two phases, beside \`idem_begin\`" two_phase 3 idem_two_phase
cat <<EOF

Command: \`make bench BENCH=peers\`. Median of $rounds rounds of
${SECONDS_EACH:-2} s, one round over the network. What the systems do
beside SQL (outgoing messages, serialization) is not measured.
EOF
sql -c "ALTER SYSTEM RESET fsync" -c "SELECT pg_reload_conf()" >/dev/null
