#!/usr/bin/python3
"""Claims what the broker delivered, up to 100 messages, in one call and works
in one transaction; the commit is shared by all of them.

    AMQP_URL=amqp://... PGHOST=... batch.py QUEUE
"""
import os
import sys

import pika
import psycopg

SIZE = 100
queue = sys.argv[1]
database = psycopg.connect("", autocommit=True)


def process(batch):
    """Returns the outcomes, in the order of the batch."""
    ids = [properties.message_id for _, properties, _ in batch]
    bodies = [body.decode() for _, _, body in batch]
    with database.transaction():
        outcomes = [
            outcome
            for (outcome,) in database.execute(
                """SELECT outcome FROM idem_claim_many(%s, %s,
                       ARRAY(SELECT idem_fingerprint(body::jsonb)
                             FROM unnest(%s::text[]) WITH ORDINALITY AS u (body, nr)
                             ORDER BY nr))""",
                (ids, queue, bodies),
            )
        ]
        claimed = [body for body, outcome in zip(bodies, outcomes) if outcome == "claimed"]
        database.execute(
            """INSERT INTO reservation
               SELECT %s, (d->>'order_id')::int, d->>'title', (d->>'copies')::int
               FROM (SELECT body::jsonb->'data' FROM unnest(%s::text[]) AS u (body))
                   AS message (d)""",
            (queue, claimed),
        )
    return outcomes


def process_alone_if_need_be(batch):
    """One bad message must not take the others with it to the dead letters."""
    try:
        return process(batch)
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeDecodeError) as error:
        if len(batch) == 1:
            print(batch[0][1].message_id, error, file=sys.stderr)
            return ["poison"]
        return [process_alone_if_need_be([message])[0] for message in batch]


broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
broker.basic_qos(prefetch_count=SIZE)
batch = []
for message in broker.consume(queue, inactivity_timeout=0.1):
    if message[0] is not None:
        batch.append(message)
    if batch and (message[0] is None or len(batch) == SIZE):
        for (method, _, _), outcome in zip(batch, process_alone_if_need_be(batch)):
            if outcome in ("claimed", "duplicate"):
                broker.basic_ack(method.delivery_tag)
            else:
                broker.basic_reject(method.delivery_tag, requeue=outcome == "busy")
        batch = []
