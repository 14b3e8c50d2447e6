#!/usr/bin/python3
"""Sends a mail for each message: what cannot be rolled back takes two phases.

    AMQP_URL=amqp://... PGHOST=... SMTP_PORT=25 MAIL_LOG=/var/log/mail.log mail.py QUEUE

The Message-ID of the mail is made from the message's id, so the mail server's
log tells whether an attempt that died got as far as sending.  The lease is
longer than all time limits on the way to the mail server together: when it
has run out, nothing of the old attempt is on its way any more.
"""
import email.message
import json
import os
import smtplib
import sys

import pika
import psycopg

LEASE = "3 seconds"  # minutes, with a mail server that may be slow
SMTP_TIMEOUT = 1
queue = sys.argv[1]
database = psycopg.connect("", autocommit=True)  # each call a transaction


def call(function, *arguments):
    marks = ", ".join(["%s"] * len(arguments))
    return database.execute(f"SELECT {function}({marks})", arguments).fetchone()[0]


def send(message_id, body):
    mail = email.message.EmailMessage()
    mail["Message-ID"] = f"<{message_id}@bookstore.example>"
    mail["From"] = "orders@bookstore.example"
    mail["To"] = "reader@example.org"
    mail["Subject"] = f"Your order {json.loads(body)['data']['order_id']}"
    mail.set_content("We have received your order.")
    with smtplib.SMTP("127.0.0.1", int(os.environ["SMTP_PORT"]), timeout=SMTP_TIMEOUT) as server:
        server.send_message(mail)


def was_sent(message_id):
    """Asks the mail server; Postfix, too, logs message-id=<...>."""
    with open(os.environ["MAIL_LOG"], encoding="utf-8") as log:
        return any(f"message-id=<{message_id}@bookstore.example>" in line for line in log)


def process(message_id, body):
    json.loads(body)["data"]["order_id"]  # fail before anything is begun
    outcome = database.execute(
        "SELECT idem_begin(%s, %s, idem_fingerprint(%s::jsonb), lease => %s)",
        (message_id, queue, body, LEASE),
    ).fetchone()[0]
    attempt = 1
    if outcome == "needs_reconciliation":
        attempt = call("idem_takeover", message_id, queue, LEASE)
        if attempt is None:
            return "in_progress"  # somebody else has taken it over
    elif outcome != "claimed":
        return outcome
    if attempt == 1 or not was_sent(message_id):
        send(message_id, body)
    database.execute(
        "SELECT idem_complete(%s, %s, attempt => %s)", (message_id, queue, attempt)
    )
    return "claimed"


def on_message(channel, method, properties, body):
    try:
        outcome = process(properties.message_id, body.decode())
    except (psycopg.DataError, ValueError, LookupError, TypeError) as error:
        print(properties.message_id, error, file=sys.stderr)
        outcome = "poison"
    if outcome in ("mismatch", "poison"):
        channel.basic_reject(method.delivery_tag, requeue=False)
        return
    if outcome in ("in_progress", "busy"):
        channel.basic_publish("", queue + ".retry", body, properties)  # comes back later
    channel.basic_ack(method.delivery_tag)


broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
broker.confirm_delivery()
broker.basic_qos(prefetch_count=20)
broker.basic_consume(queue, on_message)
broker.start_consuming()
