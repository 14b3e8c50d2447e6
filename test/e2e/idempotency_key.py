"""HTTP requests with an Idempotency-Key: retries, copies at once, other
content, a server that is killed."""
import http.client
import json
import os
import threading

from lib import EXAMPLES, Consumer, connect, equal, finish, ok, wait_until

PORT = int(os.environ["HTTP_PORT"])
os.environ["PORT"] = str(PORT)


def post(key, order, account="7"):
    """Returns the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    headers = {"X-Account": account}
    if key:
        headers["Idempotency-Key"] = key
    body = order if isinstance(order, str) else json.dumps(order)
    connection.request("POST", "/orders", body, headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def at_once(key, order, copies):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(post(key, order)))
               for _ in range(copies)]
    for thread in threads:
        thread.start()
    return threads, answers


def listens():
    try:
        return post(None, "")
    except OSError:
        return False


def orders(title):
    return database.execute(
        "SELECT count(*) FROM placed_order WHERE title = %s", (title,)).fetchone()[0]


database = connect()
server = Consumer("http", 1, ["node", EXAMPLES + "/node/http.js"])
try:
    wait_until(listens, "the HTTP server", 20)
    dune = {"title": "Dune", "copies": 2}
    equal(post(None, dune)[0], 400, "no key: 400")
    first = post("k1", dune)
    equal(first[0], 201, "a first request: 201")
    equal(post("k1", dune), first, "its retry: the same answer")
    equal(post("k1", '{"copies":2,\n"title":"Dune"}'), first, "written by another serializer: too")
    equal(orders("Dune"), 1, "one order")
    equal(post("k1", {"title": "Dune", "copies": 3})[0], 422, "another request under the key: 422")
    equal(post("k1", dune), first, "which changes nothing")
    other = post("k1", dune, account="8")
    ok(other[0] == 201 and other != first, "another account's key of the same name: an order",
       other)
    equal(post("k2", "{")[0], 400, "no JSON: 400")
    equal(post("k2", {"title": "Emma", "copies": 1})[0], 201, "which leaves the key free")

    # hold up the first one's work, as long as this lock is held
    holder = connect()
    with holder.transaction():
        holder.execute("LOCK placed_order IN SHARE MODE")
        threads, answers = at_once("k3", {"title": "Ubik", "copies": 1}, 5)
        wait_until(lambda: len(answers) == 4, "four answers while the first is at work")
        equal({status for status, _ in answers}, {409}, "copies meanwhile: 409")
    for thread in threads:
        thread.join()
    equal(sorted(status for status, _ in answers), [201, 409, 409, 409, 409],
          "the first one: 201")
    equal(post("k3", {"title": "Ubik", "copies": 1}), next(a for a in answers if a[0] == 201),
          "a later retry: its answer")
    equal(orders("Ubik"), 1, "one order")

    with holder.transaction():
        holder.execute("LOCK placed_order IN SHARE MODE")
        lost = []

        def lose():
            try:
                post("k4", {"title": "Solaris", "copies": 1})
            except (OSError, http.client.HTTPException) as error:
                lost.append(error)

        thread = threading.Thread(target=lose)
        thread.start()
        wait_until(lambda: database.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'http 1'"
            " AND wait_event_type = 'Lock'").fetchone()[0] == 1, "a request at work")
        server.kill()
        thread.join()
    equal(len(lost), 1, "the server is killed in the middle of a request: no answer")
    server.start()
    wait_until(listens, "the HTTP server", 20)
    wait_until(lambda: database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'http 1'"
        " AND state = 'active'").fetchone()[0] == 0, "the killed request's transaction to end")
    equal(post("k4", {"title": "Solaris", "copies": 1})[0], 201, "its retry: 201")
    equal(orders("Solaris"), 1, "one order")
finally:
    server.kill()
finish()
