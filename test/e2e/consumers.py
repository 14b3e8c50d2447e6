"""Five languages on one RabbitMQ: every effect once, whoever dies when."""
import asyncio
import collections
import json
import os
import queue
import random
import subprocess
import time

import aiosmtpd.controller
import pika
import psycopg

from lib import EXAMPLES, SANDBOX, Consumer, Killer, connect, equal, finish, ok, wait_until

MANY = int(os.environ.get("MESSAGES") or 5000)
FEW = MANY // 10  # for those that start a process, or send a mail, for each
PYTHON = "/usr/bin/python3"
COMMANDS = {
    "python": [PYTHON, EXAMPLES + "/python/consumer.py", "python"],
    "batch": [PYTHON, EXAMPLES + "/python/batch.py", "batch"],
    "node": ["node", EXAMPLES + "/node/consumer.js", "node"],
    "java": ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "Consumer", "java"],
    "c": [SANDBOX + "/consumer", "c"],
    "shell": [EXAMPLES + "/shell/consumer", "shell"],
    "mail": [PYTHON, EXAMPLES + "/python/mail.py", "mail"],
}
LANGUAGES = ["python", "batch", "node", "java", "c"]
EXCHANGES = {"orders": LANGUAGES, "few": ["shell", "mail"]}


class MailSink:
    """Writes the log of a mail server, and is slow from time to time: before
    it has taken a mail, or after."""

    def __init__(self):
        self.slow = queue.Queue()

    async def be_slow(self, when):
        if random.random() < max(0.05, 20 / FEW):
            self.slow.put(when)
            await asyncio.sleep(0.3)

    async def handle_MAIL(self, server, session, envelope, address, options):
        await self.be_slow("begun")
        envelope.mail_from = address
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        for line in envelope.content.decode().splitlines():
            if line.lower().startswith("message-id:"):
                with open(os.environ["MAIL_LOG"], "a", encoding="utf-8") as log:
                    log.write(f"cleanup: message-id={line.split(':', 1)[1].strip()}\n")
        await self.be_slow("sent")
        return "250 OK"


def queues():
    listing = subprocess.run(
        ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "--no-table-headers", "list_queues",
         "name", "messages"], capture_output=True, text=True, check=True)
    return {name: int(n) for name, n in (line.split() for line in listing.stdout.splitlines())}


def publish(exchange, message_id, body):
    channel.basic_publish(exchange, "", body, pika.BasicProperties(message_id=message_id))


open(os.environ["MAIL_LOG"], "w", encoding="utf-8").close()
sink = MailSink()
controller = aiosmtpd.controller.Controller(
    sink, hostname="127.0.0.1", port=int(os.environ["SMTP_PORT"]))
controller.start()

for exchange, names in EXCHANGES.items():
    subprocess.run([EXAMPLES + "/publish.py", exchange, str(MANY if exchange == "orders" else FEW),
                    *names], check=True)
equal(queues()["java"], MANY, f"{MANY} messages are published")

expected = {name: MANY * 4 // 5 for name in LANGUAGES} | {"shell": FEW * 4 // 5}
consumers = [Consumer(name, slot, command) for name, command in COMMANDS.items()
             for slot in (1, 2)]
killer = Killer([c for c in consumers if c.name != "mail"])
mail_kills = collections.Counter()
some_time = 0
restarted = False
looked = 0
before = {}
began = time.monotonic()
try:
    while True:
        for consumer in consumers:
            consumer.revive()
        try:
            killer.step()
            done = dict(killer.database.execute(
                "SELECT consumer, count(*) FROM reservation GROUP BY 1").fetchall())
        except psycopg.OperationalError:
            killer.database = connect()
            continue
        try:
            when = sink.slow.get_nowait()
            if mail_kills[when] < 4:
                for consumer in consumers:
                    if consumer.name == "mail":
                        consumer.kill()
                mail_kills[when] += 1
        except queue.Empty:
            pass
        # and at any time
        if time.monotonic() - began > some_time and some_time < 12:
            some_time += 0.5
            random.choice(consumers).kill()
        if not restarted and sum(done.values()) > sum(expected.values()) / 3:
            subprocess.run(["pg_ctl", "-s", "-w", "-m", "immediate", "-l",
                            SANDBOX + "/server.log", "restart"], check=True)
            restarted = True
        # nothing has changed for two seconds
        if done != before:
            before, looked = done, time.monotonic()
        elif time.monotonic() > looked + 2:
            looked = time.monotonic()
            if not any(queues().values()):
                break
        if time.monotonic() > began + 200:
            print("#", done, queues())
            break
        time.sleep(0.02)

    print(f"# {time.monotonic() - began:.0f} s; killed", killer.kills, dict(mail_kills))
    ok(restarted, "the server was restarted meanwhile, without a shutdown")
    equal(killer.missed(), [], "each was killed during its work, and during its commit")
    ok(all(mail_kills[when] for when in ("begun", "sent")),
       "the mailer was killed before the mail was sent, and after", dict(mail_kills))
    killer.stop()

    equal({n for n in queues().values()}, {0}, "the queues are empty")
    database = connect()
    for name, number in expected.items():
        equal(database.execute(
            """SELECT count(*), count(DISTINCT order_id), min(order_id), max(order_id),
                      sum(copies)
               FROM reservation WHERE consumer = %s""", (name,)).fetchone(),
            (number, number, 1, number, 2 * number), f"{name}: every effect exactly once")
        equal(database.execute("SELECT count(*) FROM idem_inbox WHERE consumer = %s",
                               (name,)).fetchone()[0], number, f"{name}: and one record each")
    with open(os.environ["MAIL_LOG"], encoding="utf-8") as log:
        mails = collections.Counter(log)
    equal((len(mails), set(mails.values())), (FEW * 4 // 5, {1}), "mail: every mail exactly once")
    equal(database.execute(
        """SELECT count(*) FILTER (WHERE completed_at IS NULL), max(attempt) > 1
           FROM idem_inbox WHERE consumer = 'mail'""").fetchone(),
        (0, True), "mail: all are completed, some by a second attempt")

    # what is the message's fault
    before = database.execute("SELECT count(*) FROM reservation").fetchone()[0]
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
    for exchange, names in EXCHANGES.items():
        message_id = database.execute(
            """SELECT message_id FROM idem_inbox WHERE consumer = %s
               AND message_id::text NOT LIKE '[%%' LIMIT 1""",
            ("mail" if exchange == "few" else names[0],)).fetchone()[0]
        event = {"specversion": "1.0", "type": "OrderPlaced", "source": "/bookstore",
                 "id": message_id, "data": {"order_id": 1, "title": "Dune", "copies": 3}}
        publish(exchange, message_id, json.dumps(event))
        publish(exchange, "poison", "{")
        del event["id"]
        publish(exchange, None, json.dumps(event))

    def dead():
        for consumer in consumers:
            consumer.revive()
        return queues()["dead-letters"] >= 3 * len(COMMANDS)

    wait_until(dead, "dead letters", 30)
    equal({name: n for name, n in queues().items() if n}, {"dead-letters": 3 * len(COMMANDS)},
          "other content, no JSON, no id: in the dead letters")
    equal(database.execute(
        "SELECT array_agg(DISTINCT consumer ORDER BY consumer) FROM idem_attention"
        " WHERE reason = 'mismatch'").fetchone()[0], sorted(COMMANDS),
        "idem_attention shows each consumer's mismatch")
    equal(database.execute("SELECT count(*) FROM reservation").fetchone()[0], before,
          "none of them had an effect")
finally:
    for consumer in consumers:
        consumer.kill()
    controller.stop()
finish()
