# What the measurements share.

here=$(cd "$(dirname "$0")" && pwd)
results=${results:-$(mktemp -d)}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

sql()
{
    psql -XqAt -v ON_ERROR_STOP=1 "$@"
}

# calc EXPRESSION [FORMAT]
calc()
{
    awk "BEGIN { printf \"${2:-%.3f}\", $1 }"
}

# median: of the numbers in standard input, one a line
median()
{
    sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# verdict RATIO OPERATOR BAR: the bar, and whether the ratio meets it
verdict()
{
    awk -v r="$1" -v op="$2" -v bar="$3" 'BEGIN {
        met = op == "<=" ? r <= bar : r >= bar
        printf "%s %.2f: %s", op == "<=" ? "≤" : "≥", bar, met ? "met" : "**missed**" }'
}

# alternate ROUNDS OURS THEIRS: runs the two commands in turn, each of which
# prints a number; sets ours, theirs and ratio (ours to theirs) to medians.
alternate()
{
    local i a b

    : >"$work/ours"; : >"$work/theirs"; : >"$work/ratios"
    for i in $(seq "$1"); do
        b=$($3)
        a=$($2)
        echo "$a" >>"$work/ours"
        echo "$b" >>"$work/theirs"
        calc "$a / $b" >>"$work/ratios"; echo >>"$work/ratios"
    done
    ours=$(median <"$work/ours")
    theirs=$(median <"$work/theirs")
    ratio=$(median <"$work/ratios")
}

# tps SCRIPT CLIENTS [ARGUMENT...]: transactions per second of pgbench
tps()
{
    local script=$1 clients=$2 output

    shift 2
    output=$(pgbench -n -M prepared -c "$clients" -j 2 \
        -T "${SECONDS_EACH:-2}" "$@" -f "$script" 2>&1) ||
        { echo "$output" >&2; return 1; }
    sed -n 's/^tps = \([0-9.]*\).*/\1/p' <<<"$output"
}

# empty_ring: no record, nothing sealed
empty_ring()
{
    sql -c "TRUNCATE idem_ring, idem_generation_1, idem_generation_2, idem_generation_3"
}

sql <<'SQL'
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem_inbox;
-- ids as brokers and producers make them
CREATE OR REPLACE FUNCTION uuid7(i bigint) RETURNS text LANGUAGE sql AS $$
	SELECT (lpad(to_hex(1764547200000 + i / 10), 12, '0') || '7' ||
			substr(md5(i::text), 1, 3) || '8' || substr(md5(i::text), 4, 15))::uuid::text
$$;
CREATE OR REPLACE FUNCTION uuid4(i bigint) RETURNS text LANGUAGE sql AS
	'SELECT gen_random_uuid()::text';
CREATE OR REPLACE FUNCTION offsets(i bigint) RETURNS text LANGUAGE sql AS
	'SELECT format(''orders-%s-%s'', i % 12, 1000000000 + i / 12)';
-- user and system time of this backend, in clock ticks of 10 ms
CREATE OR REPLACE FUNCTION cpu() RETURNS int LANGUAGE sql AS $$
	SELECT f[14]::int + f[15]::int
	FROM string_to_array(pg_read_file('/proc/self/stat'), ' ') f
$$;
-- the inbox as people write it by hand, with the index that its clean-up needs
CREATE TABLE IF NOT EXISTS plain_inbox (
	message_id	text,
	consumer	text,
	received_at	timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (message_id, consumer)
);
CREATE INDEX IF NOT EXISTS plain_inbox_received_at ON plain_inbox (received_at);
SQL
