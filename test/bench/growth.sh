#!/bin/bash
# Whether a claim's cost grows with what is retained: 10,000, 1,000,000 and
# 10,000,000 records in the current generation, in the window of a turn, and in
# the sealed one.

set -eu
. "$(dirname "$0")/lib.sh"

claims=200000
rounds=${ROUNDS:-3}
sizes=${SIZES:-10000 1000000 10000000}

# claim KIND: median of ticks for so many new messages, in microseconds each
claim()
{
    for i in $(seq "$rounds"); do
        # ids that no round before has had, rolled back or not
        sql <<SQL
CREATE TEMP TABLE ids AS SELECT $1($(date +%s%6N) + i) AS m FROM generate_series(1, $claims) i;
BEGIN;
SELECT cpu() AS before \\gset
SELECT count(*) AS claimed FROM ids WHERE idem_claim(m, 'inventory.reserve-stock') = 'claimed' \\gset
SELECT (cpu() - :before) * 10000.0 / :claimed;
ROLLBACK;
SQL
    done | median
}

# step NAME: a step of the ring
step()
{
    local done=

    until [ "$done" = "$1" ]; do
        sql -c "UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year'"
        done=$(sql -c "SELECT idem_maintain()")
    done
}

cat <<EOF
## Growth

Microseconds of processor time for a claim, $claims new messages in one
backend, by what is retained already (UUIDv7, written straight into the
generation's table). In the window of a turn a claim writes a placeholder, too;
after it, it looks into the sealed generation first.

| retained | ids claimed | current holds them | ratio to the fewest | bar | window of a turn | ratio to before | bar | sealed holds them | ratio to the fewest | bar |
|---|---|---|---|---|---|---|---|---|---|---|
EOF
filled=0
empty_ring
sql -c "SELECT idem_register('inventory.reserve-stock')" -c "SELECT idem_maintain()" >/dev/null
for size in $sizes; do
    sql >/dev/null <<SQL
INSERT INTO idem_generation_1 (received_at, completed_at, consumer_id, message_id)
SELECT now(), now(), c.consumer_id, uuid7(i)
FROM generate_series($filled + 1, $size) i, (SELECT consumer_id FROM idem_consumer WHERE name = 'inventory.reserve-stock') c;
VACUUM ANALYZE idem_generation_1;
CHECKPOINT;
SQL
    filled=$size
    for kind in uuid7 uuid4; do
        eval "current_$kind=$(claim $kind)"
    done
    step opened
    for kind in uuid7 uuid4; do
        eval "window_$kind=$(claim $kind)"
    done
    step sealed
    for kind in uuid7 uuid4; do
        eval "sealed_$kind=$(claim $kind)"
        eval "current=\$current_$kind window=\$window_$kind sealed=\$sealed_$kind"
        eval "first_$kind=\${first_$kind:-$current} sealed_first_$kind=\${sealed_first_$kind:-$sealed}"
        eval "first=\$first_$kind sealed_first=\$sealed_first_$kind"
        r1=$(calc "$current / $first") r2=$(calc "$window / $current") r3=$(calc "$sealed / $sealed_first")
        printf '| %d | %s | %.2f | %.2f | %s | %.2f | %.2f | %s | %.2f | %.2f | %s |\n' \
            "$size" "$kind" "$current" "$r1" "$(verdict "$r1" '<=' 1.3)" \
            "$window" "$r2" "$(verdict "$r2" '<=' 2)" \
            "$sealed" "$r3" "$(verdict "$r3" '<=' 1.3)"
        echo "$size $current $sealed" >>"$results/growth_$kind.dat"
    done
    # back to where it was
    sql -c "TRUNCATE idem_ring" -c "SELECT idem_maintain()" \
        -c "TRUNCATE idem_generation_2, idem_generation_3" >/dev/null
done
cat <<EOF

Command: \`make bench BENCH=growth\`. Median of $rounds rounds, fsync off,
all of it in shared buffers (2 GB).
EOF
empty_ring
