#!/usr/bin/python3
"""Claims a message, does its work and commits, then acknowledges.

    AMQP_URL=amqp://... PGHOST=... consumer.py QUEUE

The queue's name serves as the consumer's name.  On an error that is not the
message's fault the process ends, which returns what it has not acknowledged
to the queue; a supervisor (systemd, Kubernetes) starts it again.
"""
import os
import sys

import pika
import psycopg

queue = sys.argv[1]
# One transaction for each "with database.transaction()"; without that, psycopg
# would begin one at the first statement and keep it open.
database = psycopg.connect("", autocommit=True)


def process(message_id, body):
    with database.transaction():
        outcome = database.execute(
            "SELECT idem_claim(%s, %s, idem_fingerprint(%s::jsonb))", (message_id, queue, body)
        ).fetchone()[0]
        if outcome == "claimed":
            database.execute(
                """INSERT INTO reservation
                   SELECT %s, (d->>'order_id')::int, d->>'title', (d->>'copies')::int
                   FROM (SELECT %s::jsonb->'data') AS message (d)""",
                (queue, body),
            )
    return outcome  # the commit has succeeded


def on_message(channel, method, properties, body):
    try:
        outcome = process(properties.message_id, body.decode())
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeDecodeError) as error:
        # The message's own fault: it would fail again at every delivery.
        print(properties.message_id, error, file=sys.stderr)
        outcome = "poison"
    if outcome in ("claimed", "duplicate"):
        channel.basic_ack(method.delivery_tag)
    elif outcome in ("mismatch", "poison"):
        channel.basic_reject(method.delivery_tag, requeue=False)  # to the dead letters
    else:
        channel.basic_reject(method.delivery_tag, requeue=True)


broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
broker.basic_qos(prefetch_count=20)
broker.basic_consume(queue, on_message)
broker.start_consuming()
