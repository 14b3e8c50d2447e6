"""The claim scenes through PgBouncer in transaction mode: three server
connections for all clients, another one for each transaction."""
import os
import threading

import psycopg

from lib import connect, equal, finish, ok, wait_until

CONSUMER = "pgbouncer"
direct = connect()


def client():
    # 1.18 does not know of prepared statements, so psycopg must not make any
    return connect(host="127.0.0.1", port=int(os.environ["BOUNCER_PORT"]), user="anybody",
                   prepare_threshold=None)


def listens():
    try:
        client().close()
        return True
    except psycopg.OperationalError:
        return False


def value(session, sql, *arguments):
    return session.execute(sql, arguments).fetchone()[0]


def claim(session, message_id, **options):
    extra = "".join(f", {name} => %s" for name in options)
    return value(session, f"SELECT idem_claim(%s, %s{extra})", message_id, CONSUMER,
                 *options.values())


def waits():
    return value(direct, """SELECT count(*) FROM pg_stat_activity
        WHERE query LIKE '%%idem_%%' AND cardinality(pg_blocking_pids(pid)) > 0""") == 1


def second_copy(end):
    """The outcome of a copy that waits for the first one's transaction."""
    message_id = f"wait-{end}"
    outcomes = []
    a.execute("BEGIN")
    first = claim(a, message_id)
    thread = threading.Thread(target=lambda: outcomes.append(claim(b, message_id)))
    thread.start()
    wait_until(waits, "the second copy waits")
    a.execute(end)
    thread.join()
    return first, outcomes[0]


wait_until(listens, "PgBouncer")
a, b, c = client(), client(), client()

# that the clients do share connections, or else this would show nothing
pids = set()
for session in (a, b, c) * 3:
    pids.add(value(session, "SELECT pg_backend_pid()"))
ok(len(pids) == 1, "clients share a server connection", pids)

equal(second_copy("COMMIT"), ("claimed", "duplicate"), "a copy waits; duplicate after COMMIT")
equal(second_copy("ROLLBACK"), ("claimed", "claimed"), "a copy waits; claimed after ROLLBACK")
equal(claim(c, "wait-COMMIT"), "duplicate", "a third client: duplicate")

a.execute("BEGIN")
claim(a, "held")
equal(claim(b, "held", max_wait="0"), "busy", "max_wait 0: busy at once")
equal(claim(b, "held", max_wait="50 ms"), "busy", "max_wait: busy")
with b.transaction():
    equal((claim(b, "held", max_wait="0"), claim(b, "free", max_wait="0")), ("busy", "claimed"),
          "the transaction is alive after busy")
a.execute("ROLLBACK")
equal(claim(b, "held", max_wait="0"), "claimed", "claimed after the holder's ROLLBACK")

a.execute("BEGIN")
a.execute("SAVEPOINT s")
claim(a, "savepoint")
a.execute("ROLLBACK TO s")
equal(claim(b, "savepoint", max_wait="0"), "claimed", "a claim gone with its savepoint is free")
a.execute("COMMIT")

a.execute("BEGIN")
claim(a, "left open")
a.close()
wait_until(lambda: claim(b, "left open", max_wait="100 ms") == "claimed",
           "a client that is gone frees its claim", 10)
ok(True, "a client that is gone frees its claim")
a = client()

with a.transaction():
    outcomes = [row[0] for row in a.execute(
        "SELECT outcome FROM idem_claim_many(%s, %s)",
        (["batch-1", "free", "batch-1"], CONSUMER))]
equal(outcomes, ["claimed", "duplicate", "duplicate"], "a batch")

BEGIN = "SELECT idem_begin(%s, %s, lease => %s)"
equal(value(a, BEGIN, "phases", CONSUMER, "0"), "claimed", "two phases: begun by one client")
equal(value(b, BEGIN, "phases", CONSUMER, "0"), "needs_reconciliation", "seen by the second")
equal(value(c, "SELECT idem_takeover(%s, %s, '1 min')", "phases", CONSUMER), 2,
      "taken over by the third")
equal(value(b, BEGIN, "phases", CONSUMER, "0"), "in_progress", "which has a lease")
equal(value(a, "SELECT idem_complete(%s, %s, attempt => 2)", "phases", CONSUMER), True,
      "completed through any connection")
equal(claim(b, "phases"), "duplicate", "duplicate")

# The result belongs to the transaction's claims, not to the connection's.
a.execute("BEGIN")
claim(a, "answer")
equal(value(a, "SELECT idem_complete('1'::jsonb)"), 1, "a result for this transaction's claim")
a.execute("COMMIT")
equal(value(b, "SELECT idem_complete('2'::jsonb)"), 0, "the next client has no claim to answer")
equal(value(c, "SELECT idem_result(%s, %s)", "answer", CONSUMER), 1, "the result is the first's")

with a.transaction():
    a.execute("SET LOCAL idem_inbox.require_complete = on")
    claim(a, "strict")
    a.execute("SELECT idem_complete()")
equal({value(s, "SHOW idem_inbox.require_complete") for s in (a, b, c)}, {"off"},
      "SET LOCAL ends with the transaction")
equal(value(direct, """SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"""), 0,
      "no lock is left on a server connection")
finish()
