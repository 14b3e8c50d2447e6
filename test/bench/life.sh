#!/bin/bash
# WAL over a record's whole life, and its place on disk, beside the inbox
# written by hand with its DELETE and VACUUM.

set -eu
. "$(dirname "$0")/lib.sh"

rows=${ROWS:-300000}

turn()
{
    local step=

    until [ "$step" = emptied ]; do
        sql -c "UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year'"
        step=$(sql -c "SELECT idem_maintain()")
    done
}
# wal_of COMMAND...: bytes of WAL that it writes
wal_of()
{
    local before

    before=$(sql -c "SELECT pg_current_wal_insert_lsn()")
    "$@" >/dev/null
    sql -c "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$before')"
}
claim_all() { sql -c "SELECT count(*) FROM ids WHERE idem_claim(m, 'inventory.reserve-stock') = 'claimed'" -c "SELECT idem_maintain()"; }
insert_all() { sql -c "DO \$\$ DECLARE id text; BEGIN FOR id IN SELECT m FROM ids LOOP INSERT INTO plain_inbox VALUES (id, 'inventory.reserve-stock') ON CONFLICT DO NOTHING; END LOOP; END \$\$"; }
delete_all() { sql -c "DELETE FROM plain_inbox" -c "VACUUM plain_inbox"; }
nothing() { :; }
checkpoint() { sql -c CHECKPOINT; }

cat <<EOF
## A record's whole life

$rows messages, claimed one by one and expired: by a turn of the ring, or by
DELETE and VACUUM in the inbox written by hand (primary key, index on
\`received_at\`). The first change of a page after a checkpoint logs the whole
page, so it matters whether one comes between; it does where a retention is
days and checkpoints are minutes apart, so that is what the bar is for.

| ids | checkpoint before expiry | WAL per message | by hand | ratio | bar |
|---|---|---|---|---|---|
EOF
for kind in uuid7 uuid4 offsets; do
    sql -c "CREATE TABLE ids AS SELECT $kind(i) AS m FROM generate_series(1, $rows) i"
    for between in nothing checkpoint; do
        empty_ring
        sql -c "TRUNCATE plain_inbox" -c "SELECT idem_maintain()" -c CHECKPOINT >/dev/null
        ours=$(wal_of claim_all)
        plain=$(wal_of insert_all)
        if [ $between = nothing ]; then
            sizes=$(sql -c "SELECT format('| %s | %s | %s | %s | %s', '$kind',
                pg_table_size('idem_generation_1') / $rows, pg_indexes_size('idem_generation_1') / $rows,
                pg_table_size('plain_inbox') / $rows, pg_indexes_size('plain_inbox') / $rows)")
            ours_size=$(sql -c "SELECT pg_total_relation_size('idem_generation_1') / $rows::float")
            plain_size=$(sql -c "SELECT pg_total_relation_size('plain_inbox') / $rows::float")
            ratio=$(calc "$ours_size / $plain_size")
            printf '%s | %.2f | %s | %.2f | %s |\n' "$sizes" "$ratio" \
                "$(verdict "$ratio" '<=' 0.55)" "$(calc "1.5 * $ratio")" \
                "$(verdict "$(calc "1.5 * $ratio")" '<=' 0.8)" >>"$work/sizes"
        fi
        $between >/dev/null
        ours=$(calc "($ours + $(wal_of turn)) / $rows")
        plain=$(calc "($plain + $(wal_of delete_all)) / $rows")
        ratio=$(calc "$ours / $plain")
        printf '| %s | %s | %.0f bytes | %.0f bytes | %.2f | %s |\n' "$kind" \
            "$([ $between = nothing ] && echo no || echo yes)" "$ours" "$plain" "$ratio" \
            "$([ $between = nothing ] || verdict "$ratio" '<=' 0.35)"
        echo "$kind-$between $ours $plain" >>"$results/life.dat"
    done
    sql -c "DROP TABLE ids"
done
cat <<EOF

Bytes on disk for each record, as just filled. A record stays between one and
two retentions, 1.5 on average, where DELETE could remove it after one: so
*per retained record* the ring needs 1.5 times as much, if DELETE and VACUUM
keep up and leave no bloat.

| ids | table | index | by hand: table | indexes | ratio per record stored | bar | per retained record | bar |
|---|---|---|---|---|---|---|---|---|
$(cat "$work/sizes")

Command: \`make bench BENCH=life\`. Exact figures, one round.
EOF
empty_ring
sql -c "TRUNCATE plain_inbox"
