"""Two shards behind PL/Proxy.  One of them is lost in the middle of the load
and replaced by its synchronous standby; everything is delivered again, through
the same sessions of the proxy, and has its effect once."""
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


def reached(condition):
    try:
        wait_until(condition, "", 10)
        return True
    except TimeoutError:
        return False


def test():
    shards = [Server("shard0"), Server("shard1")]
    for number, shard in enumerate(shards):
        subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-v", f"shard={number}",
                        "-f", EXAMPLES + "/sharding/shard.sql", shard.conninfo], check=True)
    standby = Server("standby1", primary=shards[1])
    lost = shards[1]
    lost.session.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby1'")
    # as strict as "on", and lets a paused replay hold up the answers
    lost.session.execute("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
    lost.session.execute("SELECT pg_reload_conf()")
    wait_until(lambda: lost.value(
        "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1, "the standby")

    connect().execute("CREATE DATABASE proxy")
    subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-v", f"shard0={shards[0].conninfo}",
                    "-v", f"shard1={lost.conninfo}", "-f", EXAMPLES + "/sharding/proxy.sql",
                    "dbname=proxy"], check=True)
    sessions = [connect(dbname="proxy") for _ in range(CLIENTS + LATE_CLIENTS)]
    proxy = connect(dbname="proxy")
    proxy.execute("SELECT add_stock('Volume ' || n, 100) FROM generate_series(1, %s) n", (TITLES,))

    messages = [{"message_id": f"order-{n}/placed", "order_id": n, "copies": n % 3 + 1,
                 "title": f"Volume {random.randint(1, TITLES)}"} for n in range(1, DISTINCT + 1)]
    everything = messages + random.sample(messages, COUNT - DISTINCT)
    random.shuffle(everything)
    deliveries, late = a_queue(everything[COUNT // 8:]), a_queue(everything[:COUNT // 8])
    clients = [Client(session, deliveries) for session in sessions[:CLIENTS]]

    # The standby has their commits, but none of them is answered ...
    wait_until(lambda: len(answers(clients)) > COUNT // 4, "the load")
    standby.session.execute("SELECT pg_wal_replay_pause()")
    wait_until(lambda: standby.value("SELECT pg_get_wal_replay_pause_state()") == "paused", "pause")
    ok(reached(lambda: lost.wait_events()["SyncRep"] > 0
               and sum(lost.wait_events().values()) == CLIENTS),
       "no commit is answered that the standby has not confirmed", lost.wait_events())
    waiting = lost.wait_events()["SyncRep"]
    wait_until(lambda: standby.value("SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn",
                                     lost.value("SELECT pg_current_wal_flush_lsn()")), "the WAL")
    # ... and nothing at all of these.
    standby.stop()
    clients += [Client(session, late) for session in sessions[CLIENTS:]]
    ok(reached(lambda: lost.wait_events()["SyncRep"] > waiting),
       "nor one that the standby has not got", lost.wait_events())
    killed = time.monotonic()
    lost.kill()

    standby.start()
    standby.pg_ctl("promote")
    wait_until(lambda: not standby.value("SELECT pg_is_in_recovery()"), "the promotion")
    shards[1] = standby
    join(clients)
    down = [answer for answer in answers(clients) if answer[2] > killed]
    failed = [message for client in clients for message in client.failed]
    acknowledged = {order_id for order_id, _, _ in answers(clients)}
    done = [shard.reservations() for shard in shards]
    print(f"# {len(acknowledged)} messages acknowledged, {len(failed)} deliveries failed, "
          f"{len(down)} answered by the other shard meanwhile")
    for error in {error.splitlines()[0] for client in clients for error in client.errors}:
        print("#", error)
    ok(len(down) > 0, "the other shard goes on meanwhile")
    equal(acknowledged - set(done[0]) - set(done[1]), set(), "no acknowledged message is lost")
    unanswered = {message["order_id"] for message in failed} & set(done[1]) - acknowledged
    ok(len(unanswered) > 0, "some were done, but nobody was told", unanswered)

    proxy.execute(f"ALTER SERVER bookstore OPTIONS (SET p1 '{standby.conninfo}')")
    again = a_queue(failed + everything)
    clients = [Client(session, again) for session in sessions]
    join(clients)
    equal([error for client in clients for error in client.errors][:3], [],
          "the sessions of the proxy find the new server")
    outcomes = Counter((order_id, outcome) for order_id, outcome, _ in answers(clients))
    equal({outcome for _, outcome in outcomes} - {"claimed", "duplicate"}, set(), "the outcomes")
    left = set(range(1, DISTINCT + 1)) - set(done[0]) - set(done[1])
    equal({order_id for order_id, outcome in outcomes if outcome == "claimed"} ^ left, set(),
          "what was done is a duplicate, the rest is claimed")

    done = [shard.reservations() for shard in shards]
    print("# messages per shard", *map(len, done))
    both = done[0] + done[1]
    equal({n: both[n] for n in range(1, DISTINCT + 1) if both[n] != 1}, {},
          "every effect exactly once")
    equal({message["order_id"] for message in failed} & set(done[0]), set(),
          "no call to the other shard had failed")
    equal([len(shard_done) > DISTINCT // 4 for shard_done in done], [True, True],
          "both shards have their share")
    expected = Counter()
    for message in messages:
        expected[message["title"]] += message["copies"]
    equal(Counter(dict(proxy.execute("SELECT title, reserved FROM stock() WHERE reserved > 0"))),
          expected, "the counters are right")
    equal([shard.value("SELECT count(*) FROM idem_inbox") for shard in shards],
          [len(shard_done) for shard_done in done], "each record is in the shard of its work")

    def deliver(**changes):
        return Client(proxy, a_queue([messages[0] | changes]))

    client = deliver(copies=7)
    join([client])
    equal([outcome for _, outcome, _ in client.answers], ["mismatch"], "other content: mismatch")
    # A copy has the title of the first one; this message's id is not unique.
    elsewhere = next(message["title"] for message in messages
                     if (message["order_id"] in done[0]) != (messages[0]["order_id"] in done[0]))
    client = deliver(title=elsewhere)
    join([client])
    equal([outcome for _, outcome, _ in client.answers], ["claimed"],
          "with the key of another shard it is another message")
    client = deliver(title="unknown", message_id="unknown")
    join([client])
    ok("foreign key" in "".join(client.errors), "a title that no shard has", client.errors)
    equal(sum(shard.value("SELECT count(*) FROM idem_inbox WHERE message_id = 'unknown'")
              for shard in shards), 0, "leaves no record")


try:
    test()
finally:
    for server in list(Server.running):
        server.stop()
finish()
