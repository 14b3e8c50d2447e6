#!/bin/bash
# What a claim costs inside one backend, beside INSERT ... ON CONFLICT DO
# NOTHING run from a saved plan: processor time of one query over 200,000
# messages, the two alternating.

set -eu
. "$(dirname "$0")/lib.sh"

rows=${ROWS:-200000}
rounds=${ROUNDS:-5}
gcc -O2 -fPIC -shared -I"$(pg_config --includedir-server)" \
    -o "$work/baseline.so" "$here/baseline.c"
sql <<SQL
CREATE TABLE bare_inbox (message_id text, consumer text, PRIMARY KEY (message_id, consumer));
CREATE FUNCTION plain_claim(text, text) RETURNS bool AS '$work/baseline' LANGUAGE C;
CREATE FUNCTION bare_claim(text, text) RETURNS bool AS '$work/baseline' LANGUAGE C;
SQL
for kind in uuid7 uuid4 offsets; do
    sql -c "CREATE TABLE ids_$kind AS SELECT $kind(i) AS m, 'inventory.reserve-stock'::text AS c
            FROM generate_series(1, $rows) i" -c "VACUUM ANALYZE ids_$kind"
done

# measure CONDITION: ticks for new messages, or for the same ones again
measure()
{
    local again=''

    if [ "$outcome" = duplicates ]; then
        again="SELECT count(*) AS filled FROM ids_$kind WHERE $1 \\gset"
    fi
    sql <<SQL
TRUNCATE plain_inbox, bare_inbox, idem_generation_1;
CHECKPOINT;
$again
SELECT cpu() AS before \\gset
SELECT count(*) FILTER (WHERE $1) AS claimed FROM ids_$kind \\gset
SELECT CASE WHEN :claimed = CASE '$outcome' WHEN 'duplicates' THEN 0 ELSE $rows END
			THEN cpu() - :before END;
SQL
}

ours() { measure "idem_claim(m, c) = 'claimed'"; }
plain() { measure "plain_claim(m, c)"; }
bare() { measure "bare_claim(m, c)"; }

cat <<EOF
## A claim inside one backend

Processor time of one query over $rows messages, beside a C function that runs
\`INSERT … ON CONFLICT DO NOTHING\` from a saved plan. By hand: primary key
(message_id, consumer), \`received_at\` with an index for the clean-up. Bare: the
same without \`received_at\`, so nothing can ever be deleted by age.

| messages | ids | µs per claim | by hand, µs | ratio | bar | ratio to bare |
|---|---|---|---|---|---|---|
EOF
for outcome in new duplicates; do
    for kind in uuid7 uuid4 offsets; do
        alternate "$rounds" ours bare
        bare_ratio=$ratio
        alternate "$rounds" ours plain
        printf '| %s | %s | %.2f | %.2f | %.2f | %s | %.2f |\n' "$outcome" "$kind" \
            "$(calc "$ours * 10000 / $rows")" "$(calc "$theirs * 10000 / $rows")" \
            "$ratio" "$(verdict "$ratio" '<=' 0.5)" "$bare_ratio"
        echo "\"$outcome $kind\" $ratio $bare_ratio" >>"$results/claim.dat"
    done
done
cat <<EOF

Command: \`make bench BENCH=claim\`. Median of $rounds rounds, fsync off.
EOF
sql -c "DROP TABLE bare_inbox, ids_uuid7, ids_uuid4, ids_offsets" \
    -c "DROP FUNCTION plain_claim, bare_claim" -c "TRUNCATE plain_inbox"
empty_ring
