#!/bin/bash
# A backend's memory after a million claims, in one transaction and in many.

set -eu
. "$(dirname "$0")/lib.sh"

claims=${ROWS:-1000000}

# grown BEGIN COMMIT: bytes that a session's memory grows by over the claims
grown()
{
    sql <<SQL
SET idem_inbox.lone_claim = off;
$1
SELECT count(*) AS warm FROM generate_series(1, 2000) i WHERE idem_claim('warm-' || i, 'inventory.reserve-stock') = 'claimed' \\gset
SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \\gset
SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \\gset
$2
SELECT sum(total_bytes) - :before FROM pg_backend_memory_contexts;
$3
SQL
}
many="SELECT count(*) AS claimed FROM generate_series(1, $claims) i WHERE idem_claim('m-' || i, 'inventory.reserve-stock') = 'claimed' \\gset"

cat <<EOF
## Memory

| $claims claims | the session's memory grows by |
|---|---|
EOF
printf '| in one transaction | %s bytes |\n' "$(grown "BEGIN;" "$many" "ROLLBACK;")"
printf '| in a hundred transactions of one session | %s bytes |\n' \
    "$(grown "" "$(for i in $(seq 100); do
        echo "SELECT count(*) AS claimed FROM generate_series($i * $claims / 100 + 1, ($i + 1) * $claims / 100) i WHERE idem_claim('n-' || i, 'inventory.reserve-stock') = 'claimed' \\gset"
    done)" "")"
cat <<EOF

Command: \`make bench BENCH=memory\`. All memory contexts of the backend.
EOF
empty_ring
