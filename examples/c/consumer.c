/*
 * Claims a message, does its work and commits, then acknowledges.
 *
 *     AMQP_HOST=... AMQP_PORT=... PGHOST=... consumer QUEUE
 *
 * The queue's name serves as the consumer's name.  On an error that is not the
 * message's fault the process ends, which returns what it has not acknowledged
 * to the queue; a supervisor starts it again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>
#include <amqp.h>
#include <amqp_tcp_socket.h>

static PGconn *database;

static void
die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

/*
 * Runs a statement.  Returns its first value, or "" if it has none; NULL if it
 * failed because of the data (class 22 or 23), as it would each time.
 */
static char *
run(const char *sql, int n, const char *const *values)
{
	static char value[64];
	PGresult   *result = PQexecParams(database, sql, n, NULL, values,
									  NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	value[0] = '\0';
	if (status == PGRES_TUPLES_OK && PQntuples(result) > 0)
		snprintf(value, sizeof(value), "%s", PQgetvalue(result, 0, 0));
	else if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
	{
		fprintf(stderr, "%s", PQerrorMessage(database));
		if (!state || (strncmp(state, "22", 2) && strncmp(state, "23", 2)))
			exit(1);
		PQclear(result);
		return NULL;
	}
	PQclear(result);
	return value;
}

/* Returns the outcome, or NULL for a message that can never be processed. */
static char *
process(const char *message_id, const char *queue, const char *body)
{
	static char outcome[64];
	const char *claim[] = {message_id, queue, body};
	const char *work[] = {queue, body};
	char	   *answer;

	run("BEGIN", 0, NULL);
	answer = run("SELECT idem_claim($1, $2, idem_fingerprint($3::jsonb))",
				 3, claim);
	if (answer)
		strcpy(outcome, answer);
	if (answer && strcmp(answer, "claimed") == 0)
		answer = run("INSERT INTO reservation"
					 " SELECT $1, (d->>'order_id')::int, d->>'title',"
					 " (d->>'copies')::int"
					 " FROM (SELECT $2::jsonb->'data') AS message (d)",
					 2, work);
	if (!answer)
	{
		run("ROLLBACK", 0, NULL);
		return NULL;
	}
	run("COMMIT", 0, NULL);
	return outcome;
}

/* A string with its terminating zero; the broker's have none. */
static char *
text(amqp_bytes_t bytes)
{
	char	   *copy = malloc(bytes.len + 1);

	if (!copy)
		die("out of memory");
	memcpy(copy, bytes.bytes, bytes.len);
	copy[bytes.len] = '\0';
	return copy;
}

int
main(int argc, char **argv)
{
	const char *queue = argc == 2 ? argv[1] : "";
	amqp_connection_state_t broker = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(broker);

	database = PQconnectdb("");
	if (PQstatus(database) != CONNECTION_OK)
		die(PQerrorMessage(database));

	if (amqp_socket_open(socket, getenv("AMQP_HOST"), atoi(getenv("AMQP_PORT"))) ||
		amqp_login(broker, "/", 0, AMQP_DEFAULT_FRAME_SIZE, 60,
				   AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
		AMQP_RESPONSE_NORMAL ||
		!amqp_channel_open(broker, 1) ||
		!amqp_basic_qos(broker, 1, 0, 20, 0) ||
		!amqp_basic_consume(broker, 1, amqp_cstring_bytes(queue),
							amqp_empty_bytes, 0, 0, 0, amqp_empty_table))
		die("no connection to the broker");

	for (;;)
	{
		amqp_envelope_t envelope;
		amqp_basic_properties_t *properties = &envelope.message.properties;
		char	   *message_id = NULL;
		char	   *body;
		char	   *outcome;

		amqp_maybe_release_buffers(broker);
		if (amqp_consume_message(broker, &envelope, NULL, 0).reply_type !=
			AMQP_RESPONSE_NORMAL)
			die("the connection to the broker is gone");

		if (properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
			message_id = text(properties->message_id);
		body = text(envelope.message.body);
		outcome = process(message_id, queue, body);

		if (outcome && (strcmp(outcome, "claimed") == 0 ||
						strcmp(outcome, "duplicate") == 0))
			amqp_basic_ack(broker, 1, envelope.delivery_tag, 0);
		else
			/* not again: to the dead letters */
			amqp_basic_reject(broker, 1, envelope.delivery_tag,
							  outcome && strcmp(outcome, "mismatch") != 0);

		free(message_id);
		free(body);
		amqp_destroy_envelope(&envelope);
	}
}
