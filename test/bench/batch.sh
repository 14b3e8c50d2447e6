#!/bin/bash
# A batch of 1,000 in one call, beside INSERT ... SELECT unnest ... ON CONFLICT.

set -eu
. "$(dirname "$0")/lib.sh"

batches=${BATCHES:-200}
rounds=${ROUNDS:-5}

# measure STATEMENT: microseconds of processor time per message
measure()
{
    sql <<SQL
TRUNCATE plain_inbox, idem_generation_1;
CHECKPOINT;
SELECT cpu() AS before \\gset
DO \$\$
DECLARE
	batch record;
BEGIN
	FOR batch IN SELECT ids FROM batches LOOP
		$1
	END LOOP;
END
\$\$;
SELECT (cpu() - :before) * 10000.0 / ($batches * 1000);
SQL
}

ours()
{
    measure "PERFORM count(*) FROM idem_claim_many(batch.ids, 'inventory.reserve-stock') WHERE outcome = 'claimed';"
}

plain()
{
    measure "INSERT INTO plain_inbox SELECT m, 'inventory.reserve-stock' FROM unnest(batch.ids) m ON CONFLICT DO NOTHING;"
}

cat <<EOF
## A batch of 1,000

\`idem_claim_many()\` beside \`INSERT … SELECT unnest(…) ON CONFLICT DO NOTHING\`,
$batches batches of 1,000 new messages each in one backend; by hand as above.

| ids | µs per message | by hand, µs | rows per second, ratio | bar |
|---|---|---|---|---|
EOF
for kind in uuid7 uuid4 offsets; do
    sql -c "CREATE TABLE batches AS
            SELECT b, array_agg($kind(b * 1000 + i)) AS ids
            FROM generate_series(1, $batches) b, generate_series(1, 1000) i GROUP BY b"
    alternate "$rounds" ours plain
    ratio=$(calc "1 / $ratio")
    printf '| %s | %.2f | %.2f | %.2f | %s |\n' "$kind" "$ours" "$theirs" "$ratio" \
        "$(verdict "$ratio" '>=' 2)"
    echo "$kind $ratio" >>"$results/batch.dat"
    sql -c "DROP TABLE batches"
done
cat <<EOF

Command: \`make bench BENCH=batch\`. Median of $rounds rounds, fsync off.
EOF
sql -c "TRUNCATE plain_inbox"
empty_ring
