"""What monitoring/ shows of an inbox in which this and that has happened: the
exporter's metrics, Prometheus' alerts, the cheat sheet.  All of it as a role
that is in pg_monitor and no more."""
import json
import os
import re
import shutil
import subprocess
import urllib.request

from lib import SANDBOX, TOP, connect, equal, finish, ok, wait_until

HOST = f"127.0.0.1:{os.environ['PGPORT']}"
EXPORTER, ANOTHER_EXPORTER, PROMETHEUS = (
    f"127.0.0.1:{os.environ[name]}" for name in ("EXPORTER_PORT", "ANOTHER_EXPORTER_PORT", "PROMETHEUS_PORT"))
MONITORING = TOP + "/monitoring"
running = []
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(address, path):
    with direct.open(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def answers(address, path):
    try:
        get(address, path)
        return True
    except OSError:
        return False


def start(name, *command, **environment):
    with open(f"{SANDBOX}/{name}.log", "w", encoding="utf-8") as log:
        running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=SANDBOX,
                                        env={**os.environ, **environment}))


def metrics():
    """Those of this extension, by name and labels but the server's and the database's."""
    found = {}
    for line in get(EXPORTER, "/metrics").splitlines():
        match = re.match(r"idem_inbox_(\w+)\{(.*)\} (\S+)$", line)
        if match:
            found[match[1], *(value for name, value in re.findall(r'(\w+)="([^"]*)"', match[2])
                              if name not in ("server", "datname"))] = float(match[3])
    return found


def happen(inbox):
    """One of each of what an operator wants to see."""
    inbox.execute("CREATE EXTENSION idem_inbox")
    inbox.execute("CREATE TABLE effect (message_id text)")
    for message in ("m-1", "m-2", "m-3", "m-1", "m-2"):
        with inbox.transaction():
            (outcome,) = inbox.execute("SELECT idem_claim(%s, 'ledger', idem_fingerprint(%s))",
                                       (message, message)).fetchone()
            if outcome == "claimed":
                inbox.execute("INSERT INTO effect VALUES (%s)", (message,))
    inbox.execute("SELECT idem_claim('m-3', 'ledger', idem_fingerprint('other'))")
    for _ in range(5):
        inbox.execute("BEGIN")
        inbox.execute("SELECT idem_claim('poison', 'ledger')")
        inbox.execute("ROLLBACK")
    inbox.execute("SELECT idem_begin('half-done', 'mail', lease => '0')")
    inbox.execute("SELECT idem_begin('half-done', 'mail')")
    inbox.execute("SELECT idem_maintain()")


def check_metrics():
    for dbname, address in (("monitoring", EXPORTER), ("another", ANOTHER_EXPORTER)):
        start("exporter-" + dbname, "prometheus-postgres-exporter", f"--web.listen-address={address}",
              f"--extend.query-path={MONITORING}/queries.yaml", "--disable-default-metrics",
              "--disable-settings-metrics",
              DATA_SOURCE_NAME=f"postgresql://exporter@{HOST}/{dbname}?sslmode=disable")
        wait_until(lambda address=address: answers(address, "/metrics"), "the exporter answers")
    found = metrics()
    for name, value in {
        ("consumer_claimed_total", "ledger"): 3,
        ("consumer_duplicate_total", "ledger"): 2,
        ("consumer_mismatch_total", "ledger"): 1,
        ("consumer_rolled_back_total", "ledger"): 5,
        ("consumer_claimed_total", "mail"): 1,
        ("consumer_needs_reconciliation_total", "mail"): 1,
        ("attention_records", "ledger", "mismatch"): 1,
        ("attention_records", "mail", "lease ran out"): 1,
        ("failing_messages", "ledger"): 1,
        ("failing_times_max", "ledger"): 5,
        ("step_waiting", "age", "open"): 1,
        ("generation_age_seconds", "idem_generation_1", "current"): 0,
        ("maintenance_interval_seconds",): 60,
        ("waiting_sessions",): 0,
    }.items():
        equal(found.get(name), value, "metric " + " ".join(name))
    ok(found.get(("generation_bytes", "idem_generation_1", "current"), 0) > 8192, "the size is there", found)
    ok(not any("m-" in label or "poison" in label for name in found for label in name),
       "no label names a message", found)


def check_alerts():
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        result = subprocess.run(("promtool", *command), cwd=MONITORING, capture_output=True,
                                text=True, check=False)
        ok(result.returncode == 0, "promtool " + " ".join(command), result.stdout + result.stderr)

    shutil.copy(MONITORING + "/alerts.yml", SANDBOX)
    with open(SANDBOX + "/prometheus.yml", "w", encoding="utf-8") as config:
        config.write(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - {{job_name: inbox, static_configs: [{{targets: ['{EXPORTER}', '{ANOTHER_EXPORTER}']}}]}}
""")
    start("prometheus", "prometheus", f"--config.file={SANDBOX}/prometheus.yml",
          f"--storage.tsdb.path={SANDBOX}/prometheus", f"--web.listen-address={PROMETHEUS}")

    def pending():
        if not answers(PROMETHEUS, "/-/ready"):
            return set()
        return {(labels["alertname"], labels.get("consumer", labels["datname"]), labels.get("reason"))
                for labels in (alert["labels"] for alert in json.loads(get(PROMETHEUS, "/api/v1/alerts"))["data"]["alerts"])}

    expected = {("IdemInboxAttention", "ledger", "mismatch"),
                ("IdemInboxAttention", "mail", "lease ran out"),
                ("IdemInboxMessageFails", "ledger", None),
                # the extension is there, and that is all
                ("IdemInboxNotMaintained", "another", None)}
    wait_until(lambda: expected <= pending(), "the alerts are there")
    equal(pending(), expected, "these alerts, and no others")


def check_cheat_sheet(inbox):
    inbox.execute("BEGIN")
    inbox.execute("SELECT idem_claim('held', 'ledger')")
    holder = inbox.info.backend_pid
    waiter = subprocess.Popen(("psql", "-Xq", "-d", "monitoring", "-c", "SELECT idem_claim('held', 'ledger')"),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(waiter)
    watcher = connect(dbname="monitoring")
    wait_until(lambda: watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0],
               "the second claim waits")
    equal(metrics()["waiting_sessions",], 1, "the exporter sees it wait")
    result = subprocess.run(("psql", "-XAt", "-v", "ON_ERROR_STOP=1", "-U", "exporter", "-d", "monitoring",
                             "-f", MONITORING + "/cheatsheet.sql"), capture_output=True, text=True, check=False)
    inbox.execute("ROLLBACK")
    equal((result.returncode, result.stderr), (0, ""), "the cheat sheet runs")
    sections = re.split(r"^\d\. .*\n", result.stdout, flags=re.MULTILINE)[1:]
    for number, pattern, name in (
        (1, r"^mismatch\|ledger\|m-3\|.*idem_resolve\('m-3', 'ledger', 'dismiss'\)", "a mismatch, and how to settle it"),
        (1, r"^lease ran out\|mail\|half-done\|", "an attempt left half-done"),
        (2, r"^ledger\|poison\|5\|", "a message that fails"),
        (3, rf"^\d+\|[^|]+\|{holder}\|", "who waits for whom"),
        (4, r"^ledger\|3\|2\|40\.0\|5\|1\|", "what a consumer does"),
        (5, r"^idem_generation_2\|spare\|.*\|open\|age: due in", "what the ring waits for"),
    ):
        ok(re.search(pattern, sections[number - 1], re.MULTILINE), f"query {number}: {name}", sections[number - 1])


database = connect()
for name in ("monitoring", "another"):
    database.execute(f"DROP DATABASE IF EXISTS {name}")
    database.execute(f"CREATE DATABASE {name}")
connect(dbname="another").execute("CREATE EXTENSION idem_inbox")
database.execute("CREATE ROLE exporter LOGIN IN ROLE pg_monitor")
try:
    session = connect(dbname="monitoring")
    happen(session)
    check_metrics()
    check_alerts()
    check_cheat_sheet(session)
finally:
    for process in running:
        process.kill()
        process.wait()
finish()
