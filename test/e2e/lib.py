"""What the end-to-end tests share: results, waiting, processes to kill."""
import os
import signal
import subprocess
import sys
import time

import psycopg

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = TOP + "/examples"
SANDBOX = os.environ["SANDBOX"]
failures = 0


def ok(condition, name, detail=""):
    global failures
    print("ok -" if condition else "not ok -", name, flush=True)
    if not condition:
        failures += 1
        print("#", detail, flush=True)


def equal(got, expected, name):
    ok(got == expected, name, f"got {got!r}, expected {expected!r}")


def finish():
    sys.exit(1 if failures else 0)


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def connect(**options):
    return psycopg.connect("", autocommit=True, **options)


class Consumer:
    """A program that is started again whenever it has ended."""

    def __init__(self, name, slot, command):
        self.name, self.slot, self.command = name, slot, command
        self.started = 0
        self.process = None
        self.start()

    def application(self):
        return f"{self.name} {self.slot}"

    def start(self):
        self.started += 1
        command = [a.format(generation=f"{self.slot}.{self.started}") for a in self.command]
        environment = dict(os.environ, PGAPPNAME=self.application())
        if "JDBC_URL" in environment:
            environment["JDBC_URL"] += "&ApplicationName=" + self.application().replace(" ", "+")
        with open(f"{SANDBOX}/{self.name}.{self.slot}.log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stderr=log, stdout=log, env=environment, start_new_session=True
            )

    def kill(self):
        # the group: amqp-consume with the psql that it has run
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def revive(self):
        if self.process.poll() is not None:
            self.start()


class Killer:
    """Kills consumers with SIGKILL: while their work is going on, while their
    COMMIT is on its way (it succeeds, but the acknowledgement is never sent),
    and at any time.  A trigger makes some of the work, and some of the
    commits, wait until this has seen it."""

    SETUP = """
        CREATE UNLOGGED TABLE IF NOT EXISTS seen (pid int, xact_start timestamptz, kind text);
        CREATE OR REPLACE FUNCTION wait_to_be_seen() RETURNS trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = public AS $$
        BEGIN
            IF random() < (CASE NEW.consumer WHEN 'shell' THEN 0.1 ELSE 0.01 END) THEN
                FOR i IN 1..100 LOOP
                    EXIT WHEN EXISTS (SELECT FROM seen WHERE pid = pg_backend_pid()
                                      AND xact_start = transaction_timestamp() AND kind = TG_NAME);
                    PERFORM pg_sleep(0.05);
                END LOOP;
            END IF;
            RETURN NEW;
        END $$;
        CREATE OR REPLACE TRIGGER work BEFORE INSERT ON reservation
            FOR EACH ROW EXECUTE FUNCTION wait_to_be_seen();
        DROP TRIGGER IF EXISTS commit ON reservation;
        CREATE CONSTRAINT TRIGGER commit AFTER INSERT ON reservation
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_to_be_seen()"""

    def __init__(self, consumers, most=3):
        self.consumers = {c.application(): c for c in consumers}
        self.most = most
        self.kills = {(c.name, kind): 0 for c in consumers for kind in ("work", "commit")}
        self.database = connect()
        self.database.execute(self.SETUP)

    def stop(self):
        self.database.execute("DROP TRIGGER work ON reservation; DROP TRIGGER commit ON reservation")

    def step(self):
        for pid, xact_start, application, query in self.database.execute(
            """SELECT pid, xact_start, application_name, query FROM pg_stat_activity
               WHERE wait_event = 'PgSleep'"""
        ).fetchall():
            kind = "commit" if query.upper().startswith("COMMIT") else "work"
            consumer = self.consumers.get(application)
            if consumer and self.kills[consumer.name, kind] < self.most:
                consumer.kill()
                self.kills[consumer.name, kind] += 1
            self.database.execute("INSERT INTO seen VALUES (%s, %s, %s)", (pid, xact_start, kind))

    def missed(self):
        return [key for key, number in self.kills.items() if number == 0]
