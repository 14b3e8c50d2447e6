-- The inboxes of other systems, in the shape that their statements need, each
-- with 300,000 records of its past; see peers/*.sql.
SET client_min_messages = warning;

CREATE TABLE stock_item (id int PRIMARY KEY, reserved bigint NOT NULL DEFAULT 0)
	WITH (fillfactor = 50);
INSERT INTO stock_item SELECT i FROM generate_series(1, 10000) i;

INSERT INTO plain_inbox SELECT (random() * 1e15)::bigint::text, 'inventory.reserve-stock'
FROM generate_series(1, 300000) ON CONFLICT DO NOTHING;

-- by hand, in two phases
CREATE TABLE two_phase (
	message_id text, consumer text, done boolean NOT NULL DEFAULT false,
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (message_id, consumer)
);
CREATE INDEX ON two_phase (received_at);
INSERT INTO two_phase SELECT message_id, consumer, true FROM plain_inbox;

-- Eventuate Tram
CREATE TABLE received_messages (
	consumer_id varchar(200), message_id varchar(200), creation_time bigint,
	PRIMARY KEY (consumer_id, message_id)
);
INSERT INTO received_messages SELECT consumer, message_id, 0 FROM plain_inbox;

-- NServiceBus, SQL persistence, outbox
CREATE TABLE outbox_data (
	message_id varchar(200) PRIMARY KEY, operations jsonb NOT NULL,
	dispatched boolean NOT NULL DEFAULT false, dispatched_at timestamptz,
	version varchar(23) NOT NULL
);
CREATE INDEX ON outbox_data (dispatched_at) WHERE dispatched;
CREATE INDEX ON outbox_data (dispatched);
INSERT INTO outbox_data SELECT message_id, '[]', true, now(), '3.0.0' FROM plain_inbox;

-- MassTransit, Entity Framework, consumer outbox
CREATE TABLE inbox_state (
	id bigserial PRIMARY KEY, message_id uuid NOT NULL, consumer_id uuid NOT NULL,
	lock_id uuid NOT NULL, received timestamptz NOT NULL, receive_count int NOT NULL,
	expiration timestamptz, consumed timestamptz, delivered timestamptz,
	last_sequence bigint,
	UNIQUE (message_id, consumer_id)
);
CREATE INDEX ON inbox_state (delivered);
CREATE TABLE outbox_message (
	sequence bigserial PRIMARY KEY, message_id uuid, consumer_id uuid, body text
);
CREATE INDEX ON outbox_message (message_id, consumer_id, sequence);
INSERT INTO inbox_state (message_id, consumer_id, lock_id, received, receive_count, delivered)
SELECT lpad(message_id, 32, '0')::uuid, lpad('1', 32, '0')::uuid, gen_random_uuid(), now(), 1, now()
FROM plain_inbox;

-- Wolverine
CREATE TABLE wolverine_incoming (
	id uuid PRIMARY KEY, status varchar(25) NOT NULL, owner_id int NOT NULL,
	execution_time timestamptz, attempts int DEFAULT 0, body bytea NOT NULL,
	message_type varchar(250) NOT NULL, received_at varchar(250), keep_until timestamptz
);
INSERT INTO wolverine_incoming (id, status, owner_id, body, message_type, keep_until)
SELECT lpad(message_id, 32, '0')::uuid, 'Handled', 0, '{}', 'order', now() FROM plain_inbox;

-- Brighter
CREATE TABLE brighter_inbox (
	command_id varchar(256), command_type varchar(256), command_body text,
	"timestamp" timestamptz, context_key varchar(256),
	PRIMARY KEY (command_id, context_key)
);
INSERT INTO brighter_inbox SELECT message_id, 'order', '{}', now(), consumer FROM plain_inbox;

-- Camel, JDBC idempotent repository, with a primary key
CREATE TABLE camel_messageprocessed (
	processorname varchar(255), messageid varchar(100), createdat timestamp,
	PRIMARY KEY (processorname, messageid)
);
INSERT INTO camel_messageprocessed SELECT consumer, message_id, now() FROM plain_inbox;

-- Spring Integration, JDBC metadata store
CREATE TABLE int_metadata_store (
	metadata_key varchar(255), metadata_value varchar(4000), region varchar(100),
	PRIMARY KEY (metadata_key, region)
);
INSERT INTO int_metadata_store SELECT message_id, 'x', consumer FROM plain_inbox;

-- an idempotency key as Stripe's engineers described it, one step
CREATE TABLE idempotency_key (
	id bigserial PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(),
	key varchar(100) NOT NULL, locked_at timestamptz, params jsonb NOT NULL,
	recovery_point varchar(50) NOT NULL, response_code int, response_body jsonb,
	user_id bigint NOT NULL,
	UNIQUE (user_id, key)
);
INSERT INTO idempotency_key (key, params, recovery_point, response_code, user_id)
SELECT message_id, '{}', 'finished', 200, 1 FROM plain_inbox;

SELECT count(*) FROM (SELECT idem_claim(message_id, consumer) FROM plain_inbox) c;
VACUUM ANALYZE;
