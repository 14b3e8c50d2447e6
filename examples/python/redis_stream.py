#!/usr/bin/python3
"""The same consumer on a Redis stream.

    REDIS_URL=redis://... PGHOST=... redis_stream.py STREAM NAME

An entry that was read and not acknowledged stays with the NAME that read it;
XAUTOCLAIM hands those of a dead consumer to a living one, and so delivers
them again.  The message id is a field that the producer set: the entry's own
id is new each time the producer sends.
"""
import os
import sys

import psycopg
import redis

stream, name = sys.argv[1:]
IDLE = 1000  # milliseconds after which an entry's reader counts as dead
database = psycopg.connect("", autocommit=True)
broker = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def process(entry):
    message_id, body = entry.get("message_id"), entry.get("body")
    with database.transaction():
        outcome = database.execute(
            "SELECT idem_claim(%s, %s, idem_fingerprint(%s::jsonb))", (message_id, stream, body)
        ).fetchone()[0]
        if outcome == "claimed":
            database.execute(
                """INSERT INTO reservation
                   SELECT %s, (d->>'order_id')::int, d->>'title', (d->>'copies')::int
                   FROM (SELECT %s::jsonb->'data') AS message (d)""",
                (stream, body),
            )
    return outcome


def handle(entry_id, entry):
    try:
        outcome = process(entry)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        print(entry_id, error, file=sys.stderr)
        outcome = "poison"
    if outcome in ("mismatch", "poison"):
        broker.xadd(stream + ".dead", entry)
    if outcome not in ("busy", "in_progress"):
        broker.xack(stream, stream, entry_id)


try:
    broker.xgroup_create(stream, stream, id="0", mkstream=True)
except redis.ResponseError as error:
    if not str(error).startswith("BUSYGROUP"):
        raise
while True:
    # first what the dead have left behind, then what is new
    left_behind = broker.xautoclaim(stream, stream, name, IDLE, count=20)[1]
    new = broker.xreadgroup(stream, name, {stream: ">"}, count=20, block=200)
    for entry_id, entry in left_behind + (new[0][1] if new else []):
        handle(entry_id, entry)
