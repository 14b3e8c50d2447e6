"""Two shards behind PL/Proxy.  One of them is lost in the middle of the load
and replaced by its synchronous standby; everything is delivered again, through
the same sessions of the proxy, and has its effect once.  Then the two become
four, and still know every message."""
import os
import queue
import random
import signal
import subprocess
import threading
import time
from collections import Counter

import psycopg

from lib import EXAMPLES, SANDBOX, connect, equal, finish, ok, wait_until

COUNT = int(os.environ.get("MESSAGES") or 5000) * 2 // 5
DISTINCT = COUNT * 4 // 5
TITLES = COUNT // 2
CLIENTS, LATE_CLIENTS = 4, 2
PORT = os.environ["PGPORT"]  # of all servers: their socket directories differ


class Server:
    running = []

    def __init__(self, name, primary=None):
        self.name, self.home = name, f"{SANDBOX}/{name}"
        self.conninfo = f"host={self.home} port={PORT} user=postgres dbname=postgres"
        os.mkdir(self.home)
        if primary:
            self.run("pg_basebackup", "-D", self.data(), "-R", "-c", "fast", "-d", primary.conninfo)
        else:
            self.run("initdb", "-D", self.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8",
                     "--locale=C", "-N")
        with open(SANDBOX + "/load.conf", encoding="utf-8") as load, \
                open(self.data() + "/postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(load.read() + f"cluster_name = '{name}'\nport = {PORT}\n"
                       f"unix_socket_directories = '{self.home}'\nlisten_addresses = ''\n"
                       "fsync = off\n")
        self.start()

    def data(self):
        return self.home + "/data"

    def run(self, *command):
        with open(f"{self.home}/log", "a", encoding="utf-8") as log:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def pg_ctl(self, *command):
        self.run("pg_ctl", "-D", self.data(), "-w", "-s", *command)

    def start(self):
        self.pg_ctl("-l", f"{self.home}/server.log", "start")
        Server.running.append(self)
        self.session = psycopg.connect(self.conninfo, autocommit=True)

    def stop(self):
        Server.running.remove(self)
        self.pg_ctl("-m", "immediate", "stop")

    def kill(self):
        """As if the machine were gone: the postmaster first, which would start
        again, then all of its processes."""
        Server.running.remove(self)
        with open(self.data() + "/postmaster.pid", encoding="utf-8") as file:
            pids = [int(file.readline())]
        pids += [pid for pid, in self.session.execute("SELECT pid FROM pg_stat_activity")]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def value(self, sql, *arguments):
        return self.session.execute(sql, arguments).fetchone()[0]

    def wait_events(self):
        """What the proxy's calls are waiting for."""
        return Counter(event for event, in self.session.execute(
            """SELECT wait_event FROM pg_stat_activity
               WHERE state = 'active' AND backend_type = 'client backend'
                 AND pid <> pg_backend_pid()"""))

    def reservations(self):
        return Counter(order_id for order_id, in self.session.execute(
            "SELECT order_id FROM reservation"))


class Client(threading.Thread):
    """A consumer: calls, and acknowledges what has been answered; what has
    failed it leaves to be redelivered."""

    def __init__(self, session, deliveries):
        super().__init__(daemon=True)
        self.session, self.deliveries = session, deliveries
        self.answers, self.failed, self.errors = [], [], []
        self.start()

    def run(self):
        while True:
            try:
                message = self.deliveries.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = self.session.execute(
                    "SELECT reserve_stock(%(title)s, %(message_id)s, %(order_id)s, %(copies)s)",
                    message).fetchone()[0]
                self.answers.append((message["order_id"], outcome, time.monotonic()))
            except psycopg.Error as error:
                self.failed.append(message)
                self.errors.append(str(error))


def join(clients):
    for client in clients:
        client.join(120)
        if client.is_alive():
            raise TimeoutError("a client hangs")


def a_queue(messages):
    deliveries = queue.Queue()
    for message in random.sample(messages, len(messages)):
        deliveries.put(message)
    return deliveries


def answers(clients):
    return [answer for client in clients for answer in client.answers]


def errors(clients):
    return [error.splitlines()[0] for client in clients for error in client.errors]


def deliver(sessions, messages):
    deliveries = a_queue(messages)
    clients = [Client(session, deliveries) for session in sessions]
    join(clients)
    return clients


def effects(shards):
    return [shard.reservations() for shard in shards]


def reached(condition):
    try:
        wait_until(condition, "", 10)
        return True
    except TimeoutError:
        return False


def psql(conninfo, *arguments, **options):
    return subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", conninfo, *arguments],
                          check=True, **options)


def make_shard(server, number):
    psql(server.conninfo, "-v", f"shard={number}", "-f", EXAMPLES + "/sharding/shard.sql")


def make_cluster():
    """Two shards, the second one with a standby, and the proxy."""
    shards = [Server("shard0"), Server("shard1")]
    for number, shard in enumerate(shards):
        make_shard(shard, number)
    standby = Server("standby1", primary=shards[1])
    shards[1].session.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby1'")
    # as strict as "on", and lets a paused replay hold up the answers
    shards[1].session.execute("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
    shards[1].session.execute("SELECT pg_reload_conf()")
    wait_until(lambda: shards[1].value("SELECT count(*) FROM pg_stat_replication"
                                       " WHERE sync_state = 'sync'") == 1, "the standby")

    connect().execute("CREATE DATABASE proxy")
    psql("dbname=proxy", "-v", f"shard0={shards[0].conninfo}", "-v",
         f"shard1={shards[1].conninfo}", "-f", EXAMPLES + "/sharding/proxy.sql")
    return shards, standby


def lose(lost, standby, deliveries, late):
    """Loses a shard under the load; its standby takes over."""
    clients = [Client(session, deliveries) for session in sessions[:CLIENTS]]
    wait_until(lambda: len(answers(clients)) > COUNT // 4, "the load")

    # The standby gets these commits, but cannot say so ...
    standby.session.execute("SELECT pg_wal_replay_pause()")
    wait_until(lambda: standby.value("SELECT pg_get_wal_replay_pause_state()") == "paused", "pause")
    ok(reached(lambda: lost.wait_events()["SyncRep"] > 0
               and sum(lost.wait_events().values()) == CLIENTS),
       "no commit is answered that the standby has not confirmed", lost.wait_events())
    waiting = lost.wait_events()["SyncRep"]
    wait_until(lambda: standby.value("SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn",
                                     lost.value("SELECT pg_current_wal_flush_lsn()")), "the WAL")
    # ... and never gets these.
    standby.stop()
    clients += [Client(session, late) for session in sessions[CLIENTS:]]
    ok(reached(lambda: lost.wait_events()["SyncRep"] > waiting),
       "nor one that the standby has not got", lost.wait_events())
    killed = time.monotonic()
    lost.kill()

    standby.start()
    standby.pg_ctl("promote")
    wait_until(lambda: not standby.value("SELECT pg_is_in_recovery()"), "the promotion")
    join(clients)
    ok(any(when > killed for _, _, when in answers(clients)), "the other shard goes on meanwhile")
    return clients


def fail_over(shards, standby, messages):
    everything = messages + random.sample(messages, COUNT - DISTINCT)
    random.shuffle(everything)
    clients = lose(shards[1], standby, a_queue(everything[COUNT // 8:]),
                   a_queue(everything[:COUNT // 8]))
    shards[1] = standby
    done = effects(shards)
    failed = [message for client in clients for message in client.failed]
    failed_ids = {message["order_id"] for message in failed}
    acknowledged = {order_id for order_id, _, _ in answers(clients)}
    print(f"# {len(acknowledged)} messages acknowledged, {len(failed)} deliveries failed:",
          *set(errors(clients)), sep="\n# ")
    equal(acknowledged - set(done[0]) - set(done[1]), set(), "no acknowledged message is lost")
    ok(failed_ids & set(done[1]) - acknowledged, "some were done, but nobody was told")

    proxy.execute(f"ALTER SERVER bookstore OPTIONS (SET p1 '{standby.conninfo}')")
    clients = deliver(sessions, failed + everything)
    equal(errors(clients)[:3], [], "the sessions of the proxy find the new server")
    outcomes = {(order_id, outcome) for order_id, outcome, _ in answers(clients)}
    equal({outcome for _, outcome in outcomes} - {"claimed", "duplicate"}, set(), "the outcomes")
    left = {message["order_id"] for message in messages} - set(done[0]) - set(done[1])
    equal({order_id for order_id, outcome in outcomes if outcome == "claimed"} ^ left, set(),
          "what was done is a duplicate, the rest is claimed")

    done = effects(shards)
    print("# messages per shard", *map(len, done))
    both = done[0] + done[1]
    equal({n: both[n] for n in range(1, DISTINCT + 1) if both[n] != 1}, {},
          "every effect exactly once")
    equal(failed_ids & set(done[0]), set(), "no call to the other shard had failed")
    equal([len(shard_done) > DISTINCT // 4 for shard_done in done], [True, True],
          "both shards have their share")
    expected = Counter()
    for message in messages:
        expected[message["title"]] += message["copies"]
    equal(Counter(dict(proxy.execute("SELECT title, reserved FROM stock() WHERE reserved > 0"))),
          expected, "the counters are right")
    equal([shard.value("SELECT count(*) FROM idem_inbox") for shard in shards],
          [len(shard_done) for shard_done in done], "each record is in the shard of its work")


def deviate(shards, messages):
    """Messages that are not what they should be."""
    def outcome(**changes):
        clients = deliver([proxy], [messages[0] | changes])
        return [outcome for _, outcome, _ in answers(clients)] or errors(clients)

    equal(outcome(copies=7), ["mismatch"], "other content: mismatch")
    # A copy has the title of the first one; this message's id is not unique.
    done = shards[0].reservations()
    elsewhere = next(message["title"] for message in messages
                     if (message["order_id"] in done) != (messages[0]["order_id"] in done))
    equal(outcome(title=elsewhere), ["claimed"],
          "with the key of another shard it is another message")
    ok("foreign key" in outcome(title="unknown", message_id="unknown")[0],
       "a title that no shard has is an error")
    equal(sum(shard.value("SELECT count(*) FROM idem_inbox WHERE message_id = 'unknown'")
              for shard in shards), 0, "which leaves no record")


def double(shards):
    """From two shards to four, while nothing is delivered.  Shard n of two
    holds what is shard n's and shard n + 2's of four."""
    # one as a physical copy ...
    copy = Server("shard2", primary=shards[0])
    wait_until(lambda: copy.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn",
                                  shards[0].value("SELECT pg_current_wal_flush_lsn()")), "replay")
    copy.pg_ctl("promote")
    # ... and one by hand: the work by its key, but the inbox as a whole
    fresh = Server("shard3")
    make_shard(fresh, 1)
    psql(fresh.conninfo, "-c", "CREATE TABLE old_inbox (message_id text, consumer text,"
                               " received_at timestamptz, fingerprint bytea)")
    for table, query in (
            ("stock_item", "SELECT * FROM stock_item WHERE hashtext(title) & 3 = 3"),
            ("reservation", "SELECT * FROM reservation WHERE hashtext(title) & 3 = 3"),
            ("old_inbox", "SELECT message_id, consumer, received_at, fingerprint FROM idem_inbox"
                          " WHERE state = 'completed'")):
        rows = psql(shards[1].conninfo, "-c", f"COPY ({query}) TO STDOUT",
                    stdout=subprocess.PIPE).stdout
        psql(fresh.conninfo, "-c", f"COPY {table} FROM STDIN", input=rows)
    fresh.session.execute("SELECT idem_import(message_id, consumer, received_at, fingerprint)"
                          " FROM old_inbox")

    shards += [copy, fresh]
    for number, shard in enumerate(shards):
        for table in ("reservation", "stock_item"):
            shard.session.execute(f"DELETE FROM {table} WHERE hashtext(title) & 3 <> {number}")
    proxy.execute(f"""ALTER SERVER bookstore OPTIONS (ADD p2 '{copy.conninfo}',
                                                      ADD p3 '{fresh.conninfo}')""")


def reshard(shards, messages):
    before = sum(effects(shards), Counter())
    double(shards)
    equal(sum(effects(shards), Counter()), before, "four shards hold what two held")
    clients = deliver(sessions, messages)
    equal((errors(clients)[:3], {outcome for _, outcome, _ in answers(clients)}),
          ([], {"duplicate"}), "and know what was done")
    new = [message | {"message_id": f"new-{message['order_id']}"} for message in messages]
    clients = deliver(sessions, new)
    equal((errors(clients)[:3], {outcome for _, outcome, _ in answers(clients)}),
          ([], {"claimed"}), "and do what is new")
    done = effects(shards)
    print("# effects per shard", *(sum(shard_done.values()) for shard_done in done))
    equal(sum(done, Counter()), before + Counter(range(1, DISTINCT + 1)), "once")
    equal([len(shard_done) > DISTINCT // 10 for shard_done in done], [True] * 4, "in all of them")


try:
    all_shards, shard1_standby = make_cluster()
    sessions = [connect(dbname="proxy") for _ in range(CLIENTS + LATE_CLIENTS)]
    proxy = connect(dbname="proxy")
    proxy.execute("SELECT add_stock('Volume ' || n, 100) FROM generate_series(1, %s) n", (TITLES,))
    orders = [{"message_id": f"order-{n}/placed", "order_id": n, "copies": n % 3 + 1,
               "title": f"Volume {random.randint(1, TITLES)}"} for n in range(1, DISTINCT + 1)]
    fail_over(all_shards, shard1_standby, orders)
    deviate(all_shards, orders)
    reshard(all_shards, orders)
finally:
    for server in list(Server.running):
        server.stop()
finish()
