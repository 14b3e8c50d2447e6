"""A Redis stream: what a consumer that died has left behind is delivered
again, by XAUTOCLAIM, and has its effect once."""
import json
import os
import random
import uuid

import redis

from lib import EXAMPLES, Consumer, Killer, connect, equal, finish, wait_until

COUNT = (int(os.environ.get("MESSAGES") or 5000)) // 5
STREAM = "stream"

broker = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def answers():
    try:
        return broker.ping()
    except redis.ConnectionError:
        return False


wait_until(answers, "Redis")
messages = [
    {"message_id": str(uuid.uuid4()),
     "body": json.dumps({"data": {"order_id": n, "title": "Dune", "copies": 2}})}
    for n in range(1, COUNT * 4 // 5 + 1)
]
messages += random.sample(messages, COUNT - len(messages))
random.shuffle(messages)
for message in messages:
    broker.xadd(STREAM, message)

# A consumer that starts again has another name, so that nobody but XAUTOCLAIM
# delivers what the killed one had read.
command = ["/usr/bin/python3", EXAMPLES + "/python/redis_stream.py", STREAM, "{generation}"]
consumers = [Consumer(STREAM, slot, command) for slot in (1, 2)]
killer = Killer(consumers)
database = connect()
try:
    def drained():
        killer.step()
        for consumer in consumers:
            consumer.revive()
        group = (broker.xinfo_groups(STREAM) if broker.exists(STREAM) else []) or [{}]
        return (group[0].get("last-delivered-id") == broker.xinfo_stream(STREAM)["last-generated-id"]
                and group[0]["pending"] == 0)

    wait_until(drained, "the stream is not drained", 90)
    killer.stop()
    print("# killed", killer.kills)
    equal(killer.missed(), [], "killed during its work, and during its commit")
    number = COUNT * 4 // 5
    equal(database.execute(
        "SELECT count(*), count(DISTINCT order_id), min(order_id), max(order_id)"
        " FROM reservation WHERE consumer = %s", (STREAM,)).fetchone(),
        (number, number, 1, number), "every effect exactly once")

    broker.xadd(STREAM, dict(messages[0], body='{"data": {}}'))
    broker.xadd(STREAM, {"message_id": "poison", "body": "{"})
    broker.xadd(STREAM, {"body": messages[0]["body"]})
    wait_until(lambda: broker.xlen(STREAM + ".dead") >= 3 and drained(), "dead letters", 20)
    equal(broker.xlen(STREAM + ".dead"), 3, "other content, no JSON, no id: among the dead")
    equal(database.execute("SELECT count(*) FROM reservation WHERE consumer = %s",
                           (STREAM,)).fetchone()[0], number, "none of them had an effect")
finally:
    for consumer in consumers:
        consumer.kill()
finish()
