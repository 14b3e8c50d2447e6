#!/usr/bin/python3
"""Declares the exchange and the queues that the examples consume from, and
publishes orders to them, a fifth of them twice.

    publish.py EXCHANGE COUNT [QUEUE...]

Each queue is bound to the exchange and gets every message.  What a consumer
rejects goes to the queue "dead-letters".  A message in QUEUE.retry comes back
to QUEUE after half a second: RabbitMQ has no delayed redelivery of its own.
"""
import json
import os
import random
import sys
import uuid

import pika

exchange, count, queues = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()

channel.exchange_declare("dead", "fanout", durable=True)
channel.queue_declare("dead-letters", durable=True)
channel.queue_bind("dead-letters", "dead")
channel.exchange_declare(exchange, "fanout", durable=True)
for queue in queues:
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": "dead"})
    channel.queue_bind(queue, exchange)
    channel.queue_declare(
        queue + ".retry",
        durable=True,
        arguments={
            "x-message-ttl": 500,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        },
    )

messages = []
for order_id in range(1, count * 4 // 5 + 1):
    # made once, sent at every try: what an outbox row's key would be
    message_id = str(uuid.UUID(int=random.getrandbits(128), version=4))
    messages.append((message_id, {
        "specversion": "1.0",
        "type": "OrderPlaced",
        "source": "/bookstore",
        "id": message_id,
        "data": {"order_id": order_id, "title": "Dune", "copies": 2},
    }))
messages += random.sample(messages, count - len(messages))
random.shuffle(messages)

for message_id, event in messages:
    channel.basic_publish(
        exchange,
        "",
        json.dumps(event),
        pika.BasicProperties(message_id=message_id, delivery_mode=2),
    )
connection.close()
