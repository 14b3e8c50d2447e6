/* idem_inbox--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idem_inbox" to load this file. \quit

--
-- The outcome of a claim: what a consumer tells its broker.
--
CREATE TYPE idem_outcome AS ENUM (
	'claimed',
	'duplicate',
	'busy',
	'in_progress',
	'needs_reconciliation',
	'mismatch'
);
COMMENT ON TYPE idem_outcome IS
'outcome of a claim: claimed = do the work, commit, acknowledge; duplicate = acknowledge; busy, in_progress = retry later; needs_reconciliation = ask the external system first; mismatch = dead-letter and alert';

--
-- A message id: text for people, bytes in memcmp order for the index.
--
CREATE TYPE idem_message_id;

CREATE FUNCTION idem_message_id_in(cstring) RETURNS idem_message_id
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_out(idem_message_id) RETURNS cstring
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_recv(internal) RETURNS idem_message_id
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_send(idem_message_id) RETURNS bytea
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE TYPE idem_message_id (
	INPUT = idem_message_id_in,
	OUTPUT = idem_message_id_out,
	RECEIVE = idem_message_id_recv,
	SEND = idem_message_id_send,
	INTERNALLENGTH = VARIABLE,
	ALIGNMENT = int4,
	STORAGE = main
);
COMMENT ON TYPE idem_message_id IS
'a message''s id, 1 to 1024 bytes, compared byte for byte; a canonical lower-case UUID takes 17 bytes, anything else its length plus one';

CREATE FUNCTION idem_message_id(text) RETURNS idem_message_id
	AS 'MODULE_PATHNAME', 'idem_message_id_from_text'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION text(idem_message_id) RETURNS text
	AS 'MODULE_PATHNAME', 'idem_message_id_to_text'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_lt(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_le(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_eq(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_ne(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_ge(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_gt(idem_message_id, idem_message_id) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION idem_message_id_cmp(idem_message_id, idem_message_id) RETURNS int4
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE OPERATOR < (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_lt, COMMUTATOR = >, NEGATOR = >=,
	RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);
CREATE OPERATOR <= (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_le, COMMUTATOR = >=, NEGATOR = >,
	RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);
CREATE OPERATOR = (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_eq, COMMUTATOR = =, NEGATOR = <>,
	RESTRICT = eqsel, JOIN = eqjoinsel, MERGES
);
CREATE OPERATOR <> (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_ne, COMMUTATOR = <>, NEGATOR = =,
	RESTRICT = neqsel, JOIN = neqjoinsel
);
CREATE OPERATOR >= (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_ge, COMMUTATOR = <=, NEGATOR = <,
	RESTRICT = scalargesel, JOIN = scalargejoinsel
);
CREATE OPERATOR > (
	LEFTARG = idem_message_id, RIGHTARG = idem_message_id,
	FUNCTION = idem_message_id_gt, COMMUTATOR = <, NEGATOR = <=,
	RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);
COMMENT ON OPERATOR < (idem_message_id, idem_message_id) IS 'earlier in byte order';
COMMENT ON OPERATOR <= (idem_message_id, idem_message_id) IS 'earlier in byte order, or the same id';
COMMENT ON OPERATOR = (idem_message_id, idem_message_id) IS 'the same id, byte for byte';
COMMENT ON OPERATOR <> (idem_message_id, idem_message_id) IS 'another id';
COMMENT ON OPERATOR >= (idem_message_id, idem_message_id) IS 'later in byte order, or the same id';
COMMENT ON OPERATOR > (idem_message_id, idem_message_id) IS 'later in byte order';

CREATE OPERATOR CLASS idem_message_id_ops
	DEFAULT FOR TYPE idem_message_id USING btree AS
	OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
	FUNCTION 1 idem_message_id_cmp(idem_message_id, idem_message_id),
	FUNCTION 4 btequalimage(oid);
COMMENT ON OPERATOR CLASS idem_message_id_ops USING btree IS
'message ids in byte order, UUIDs before other ids';

-- Text becomes a message id by itself, so that "message_id = $1" with a text
-- parameter uses the index; the way back must not, or "=" would be ambiguous.
CREATE CAST (text AS idem_message_id)
	WITH FUNCTION idem_message_id(text) AS IMPLICIT;
CREATE CAST (varchar AS idem_message_id)
	WITH FUNCTION idem_message_id(text) AS IMPLICIT;
CREATE CAST (idem_message_id AS text)
	WITH FUNCTION text(idem_message_id) AS ASSIGNMENT;

--
-- Storage: the consumers, the ring's state, the ring's three generations.
-- Whatever the library finds by name has it said here: PostgreSQL would choose
-- another name where somebody's object has it, and the library take that.
--
CREATE TABLE idem_consumer (
	consumer_id	int4 GENERATED BY DEFAULT AS IDENTITY
				(SEQUENCE NAME idem_consumer_consumer_id_seq)
				CONSTRAINT idem_consumer_pkey PRIMARY KEY,
	name		text COLLATE "C" NOT NULL
				CONSTRAINT idem_consumer_name_key UNIQUE
				CHECK (pg_catalog.octet_length(name) BETWEEN 1 AND 1024),
	retention	interval CHECK (retention >= '1 second'),
	lease		interval CHECK (lease >= '0'),
	owner		name NOT NULL,
	created_at	timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
COMMENT ON TABLE idem_consumer IS
'consumers, numbered, with their policies; edit with idem_register() or plain SQL';
COMMENT ON COLUMN idem_consumer.retention IS
'how long records are kept if longer than idem_inbox.retention; NULL: as long as that setting says';
COMMENT ON COLUMN idem_consumer.lease IS
'lease of a two-phase attempt that names none; NULL: the setting idem_inbox.lease';
COMMENT ON COLUMN idem_consumer.owner IS
'the role whose members may act for this consumer, by name';

-- One row at most. Without a row the ring stands as created: generation 1 is
-- current, nothing is sealed. The install script inserts none, so that a
-- restored dump brings its own.
CREATE TABLE idem_ring (
	only_row		bool CONSTRAINT idem_ring_pkey PRIMARY KEY
					DEFAULT true CHECK (only_row),
	current			int2 NOT NULL DEFAULT 1 CHECK (current BETWEEN 1 AND 3),
	next_open		bool NOT NULL DEFAULT false,
	previous_sealed	bool NOT NULL DEFAULT false,
	horizon			xid8,
	snapshot_horizon xid8,
	current_age		interval NOT NULL DEFAULT '0',
	previous_age	interval NOT NULL DEFAULT '0',
	skipped			interval NOT NULL DEFAULT '0',
	turned_at		timestamptz[] NOT NULL DEFAULT '{}',
	turned_skipped	interval[] NOT NULL DEFAULT '{}',
	counted_at		timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	opened_at		timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	sealed_at		timestamptz,
	CHECK (NOT (next_open AND previous_sealed))
) USING heap;
COMMENT ON TABLE idem_ring IS
'the state of the ring of generations, one row; written by idem_maintain()';
COMMENT ON COLUMN idem_ring.skipped IS
'time that passed without being counted as age, since the ring began';
COMMENT ON COLUMN idem_ring.turned_at IS
'when the latest turns were, and in turned_skipped what had been skipped by then';

-- Column order keeps a plain claim of a UUID at 64 bytes: fixed-width columns
-- first, the nullable ones cost nothing when NULL. Eight columns at most, so
-- that the null bitmap stays inside the 24-byte tuple header.
CREATE TABLE idem_generation_1 (
	received_at		timestamptz NOT NULL,
	completed_at	timestamptz,
	lease_until		timestamptz,
	consumer_id		int4 NOT NULL,
	attempt			int4,
	message_id		idem_message_id NOT NULL,
	fingerprint		bytea,
	detail			jsonb,
	CONSTRAINT idem_generation_1_pkey PRIMARY KEY (consumer_id, message_id)
) USING heap;
CREATE TABLE idem_generation_2 (
	received_at		timestamptz NOT NULL,
	completed_at	timestamptz,
	lease_until		timestamptz,
	consumer_id		int4 NOT NULL,
	attempt			int4,
	message_id		idem_message_id NOT NULL,
	fingerprint		bytea,
	detail			jsonb,
	CONSTRAINT idem_generation_2_pkey PRIMARY KEY (consumer_id, message_id)
) USING heap;
CREATE TABLE idem_generation_3 (
	received_at		timestamptz NOT NULL,
	completed_at	timestamptz,
	lease_until		timestamptz,
	consumer_id		int4 NOT NULL,
	attempt			int4,
	message_id		idem_message_id NOT NULL,
	fingerprint		bytea,
	detail			jsonb,
	CONSTRAINT idem_generation_3_pkey PRIMARY KEY (consumer_id, message_id)
) USING heap;
CREATE INDEX idem_generation_1_unfinished ON idem_generation_1
	(consumer_id, received_at) WHERE completed_at IS NULL;
CREATE INDEX idem_generation_2_unfinished ON idem_generation_2
	(consumer_id, received_at) WHERE completed_at IS NULL;
CREATE INDEX idem_generation_3_unfinished ON idem_generation_3
	(consumer_id, received_at) WHERE completed_at IS NULL;
COMMENT ON TABLE idem_generation_1 IS 'records, a member of the ring; read the view idem_inbox';
COMMENT ON TABLE idem_generation_2 IS 'records, a member of the ring; read the view idem_inbox';
COMMENT ON TABLE idem_generation_3 IS 'records, a member of the ring; read the view idem_inbox';

-- Deliveries with other content than their record's: one row a content.
CREATE TABLE idem_quarantine (
	consumer_id		int4 NOT NULL,
	message_id		idem_message_id NOT NULL,
	fingerprint		bytea NOT NULL,
	known_fingerprint bytea NOT NULL,
	deliveries		int8 NOT NULL,
	first_at		timestamptz NOT NULL,
	last_at			timestamptz NOT NULL,
	delivered_to	jsonb NOT NULL,
	dismissed_at	timestamptz,
	CONSTRAINT idem_quarantine_pkey
		PRIMARY KEY (consumer_id, message_id, fingerprint)
) USING heap;
COMMENT ON TABLE idem_quarantine IS
'deliveries whose fingerprint differs from the record''s, counted; read idem_attention, dismiss with idem_resolve(). A row not delivered again for twice idem_inbox.retention is deleted';

-- What people decided with idem_resolve().
CREATE TABLE idem_resolution (
	resolved_at	timestamptz NOT NULL,
	consumer	text COLLATE "C" NOT NULL,
	message_id	idem_message_id NOT NULL,
	action		text NOT NULL,
	changed		bool NOT NULL,
	role		name NOT NULL
) USING heap;
-- No key, but a subscription must find the rows that are deleted.
ALTER TABLE idem_resolution REPLICA IDENTITY FULL;
COMMENT ON TABLE idem_resolution IS
'decisions taken with idem_resolve(), by whom and when; kept for twice idem_inbox.retention';

SELECT pg_catalog.pg_extension_config_dump('idem_consumer', '');
SELECT pg_catalog.pg_extension_config_dump('idem_consumer_consumer_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem_ring', '');
SELECT pg_catalog.pg_extension_config_dump('idem_generation_1', '');
SELECT pg_catalog.pg_extension_config_dump('idem_generation_2', '');
SELECT pg_catalog.pg_extension_config_dump('idem_generation_3', '');
SELECT pg_catalog.pg_extension_config_dump('idem_quarantine', '');
SELECT pg_catalog.pg_extension_config_dump('idem_resolution', '');

-- Backends cache the consumers and the ring's view; whoever writes these
-- tables (a person, a restore, a subscription) must make them read anew.
CREATE FUNCTION idem_invalidate() RETURNS trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_invalidate() IS
'trigger: makes every backend forget what it cached of this table';

CREATE TRIGGER idem_invalidate
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idem_consumer
	FOR EACH STATEMENT EXECUTE FUNCTION idem_invalidate();
CREATE TRIGGER idem_invalidate
	AFTER INSERT OR DELETE OR TRUNCATE
	   OR UPDATE OF current, next_open, previous_sealed ON idem_ring
	FOR EACH STATEMENT EXECUTE FUNCTION idem_invalidate();
-- A restore brings its own state, though maintenance may have come by first.
CREATE FUNCTION idem_replace_ring() RETURNS trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_replace_ring() IS
'trigger: a state that is inserted takes the place of the one that is there';
CREATE TRIGGER idem_replace_ring
	BEFORE INSERT ON idem_ring
	FOR EACH ROW EXECUTE FUNCTION idem_replace_ring();
ALTER TABLE idem_ring ENABLE ALWAYS TRIGGER idem_replace_ring;
-- Logical replication applies rows with only ALWAYS triggers, row by row.
CREATE TRIGGER idem_invalidate_row
	AFTER INSERT OR UPDATE OR DELETE ON idem_consumer
	FOR EACH ROW EXECUTE FUNCTION idem_invalidate();
ALTER TABLE idem_consumer ENABLE REPLICA TRIGGER idem_invalidate_row;
CREATE TRIGGER idem_invalidate_row
	AFTER INSERT OR UPDATE OR DELETE ON idem_ring
	FOR EACH ROW EXECUTE FUNCTION idem_invalidate();
ALTER TABLE idem_ring ENABLE REPLICA TRIGGER idem_invalidate_row;

-- Every record, for people. A completed_at of -infinity marks a placeholder,
-- which holds a key's place while the ring turns and is no record.
CREATE VIEW idem_inbox AS
	SELECT r.message_id,
		   c.name AS consumer,
		   CASE
			   WHEN r.completed_at IS NOT NULL THEN 'completed'
			   WHEN r.lease_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'in_progress'
			   ELSE 'needs_reconciliation'
		   END AS state,
		   r.received_at,
		   r.completed_at,
		   r.attempt,
		   r.lease_until,
		   r.fingerprint,
		   CASE WHEN r.completed_at IS NOT NULL THEN r.detail END AS result
	FROM (SELECT * FROM idem_generation_1
		  UNION ALL
		  SELECT * FROM idem_generation_2
		  UNION ALL
		  SELECT * FROM idem_generation_3) r
		 JOIN idem_consumer c ON c.consumer_id OPERATOR(pg_catalog.=) r.consumer_id
	WHERE r.completed_at IS NULL
	   OR r.completed_at OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz;
COMMENT ON VIEW idem_inbox IS
'every record with its consumer''s name; filter on message_id and consumer to use the index';

--
-- Functions for consumers
--
CREATE FUNCTION idem_claim(
	message_id text, consumer text,
	fingerprint bytea DEFAULT NULL, max_wait interval DEFAULT NULL
) RETURNS idem_outcome
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_claim(text, text, bytea, interval) IS
'claims a message for a consumer in this transaction, which does the work; recorded as completed, since it commits only with the work. fingerprint: digest of the content, see idem_fingerprint(). max_wait: how long to wait for another open transaction that holds the message (0: not at all; NULL: as long as lock_timeout lets it). Errors: 22004 and 22023 for bad arguments, 42704 for an unknown consumer with idem_inbox.auto_register = off, 42501 for another owner''s consumer, 25006 when read-only, 40001 under SERIALIZABLE for a record the snapshot cannot see';

CREATE FUNCTION idem_claim_many(
	message_ids text[], consumer text,
	fingerprints bytea[] DEFAULT NULL, max_wait interval DEFAULT NULL,
	OUT message_id text, OUT outcome idem_outcome
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_claim_many(text[], text, bytea[], interval) IS
'claims a batch of messages as idem_claim() would each; one row an element, in the order given; an id that comes twice is claimed, then a duplicate. Claims in key order, so that batches of one consumer that overlap do not deadlock while each transaction claims one. fingerprints: one an element, NULL where unknown. max_wait: for the whole call; 0 reports what others hold as busy. Errors: 22004 for a NULL element, naming its position, 2202E for arrays of several dimensions or of different lengths, else as idem_claim()';

CREATE FUNCTION idem_begin(
	message_id text, consumer text,
	fingerprint bytea DEFAULT NULL, lease interval DEFAULT NULL,
	max_wait interval DEFAULT NULL
) RETURNS idem_outcome
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_begin(text, text, bytea, interval, interval) IS
'phase one of a two-phase record, for a side effect outside the database: in progress once committed, and committed synchronously. lease: how long a redelivery is told in_progress (NULL: the consumer''s, else idem_inbox.lease). fingerprint, max_wait and errors: as idem_claim()';

CREATE FUNCTION idem_complete(
	message_id text, consumer text,
	result jsonb DEFAULT NULL, attempt int4 DEFAULT NULL
) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_complete(text, text, jsonb, int4) IS
'phase two of a two-phase record: true if now completed, false if it already was. result: kept for a duplicate, see idem_status(). attempt: the fencing token; NULL: not checked. Errors: P0002 without a record, 55000 if the attempt is not the record''s, else as idem_claim()';

CREATE FUNCTION idem_complete(result jsonb DEFAULT NULL) RETURNS int4
	AS 'MODULE_PATHNAME', 'idem_complete_claims'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_complete(jsonb) IS
'declares the one-transaction claims of this transaction finished and stores the result with them; returns how many they are. Errors: 54000 for a result with more than 1000 claims, 42501 for a result with a claim that another role made, for a consumer that is not the current one''s';

CREATE FUNCTION idem_claims(
	OUT message_id text, OUT consumer text, OUT two_phase bool
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_claims() IS
'the claims of this transaction in the order in which they were made, the first 1000; two_phase: by idem_begin()';

CREATE FUNCTION idem_require_claim() RETURNS trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_require_claim() IS
'trigger, row or statement: refuses a write in a transaction that holds no claim of the consumers named as arguments (none: of any consumer), nor has taken over or completed one of their messages; catches work on a second connection. Error: 55000';

CREATE FUNCTION idem_seen(message_id text, consumer text) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_seen(text, text) IS
'whether the message has been processed: a completed record of it is committed. A cheap filter in front of idem_claim(), never instead of it. Waits for nobody and writes nothing, also on a hot standby';

CREATE FUNCTION idem_status(
	message_id text, consumer text,
	OUT state text, OUT received_at timestamptz, OUT completed_at timestamptz,
	OUT attempt int4, OUT lease_until timestamptz, OUT fingerprint bytea,
	OUT result jsonb
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION idem_status(text, text) IS
'the record of a message as one row, no row without a record: state completed, in_progress or needs_reconciliation, times, attempt (NULL: claimed in one transaction), lease and the stored result. Also on a hot standby';

CREATE FUNCTION idem_result(message_id text, consumer text) RETURNS jsonb
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_result(text, text) IS
'the result stored with a completed record, to answer a duplicate as the first was answered; NULL without one. Also on a hot standby';

CREATE FUNCTION idem_extend(
	message_id text, consumer text, lease interval, attempt int4 DEFAULT NULL
) RETURNS timestamptz
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_extend(text, text, interval, int4) IS
'heartbeat of a long side effect: the lease ends so long from now (NULL: the consumer''s lease, else idem_inbox.lease), by the server''s clock; returns when. Committed synchronously. attempt: the fencing token; NULL: not checked. Errors: P0002 without a record, 55000 if it is completed or at another attempt, else as idem_claim()';

CREATE FUNCTION idem_takeover(
	message_id text, consumer text, lease interval DEFAULT NULL
) RETURNS int4
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_takeover(text, text, interval) IS
'after an attempt''s lease ran out: exactly one caller gets the next attempt number, the fencing token of its further calls; the others, and a call without such an attempt, get NULL. Committed synchronously. lease: of the new attempt (NULL: the consumer''s, else idem_inbox.lease). Errors: as idem_claim()';

CREATE FUNCTION idem_takeover_next(
	consumer text, how_many int4 DEFAULT 1, lease interval DEFAULT NULL,
	OUT message_id text, OUT attempt int4, OUT received_at timestamptz,
	OUT claimed_by jsonb
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_takeover_next(text, int4, interval) IS
'for a reconciler: takes over up to how_many half-done records whose lease ran out, oldest first, each for one caller, skipping what others hold; attempt: the fencing token, claimed_by: who left it half-done. Committed synchronously. lease: as in idem_takeover(). Errors: 22004 and 22023 for a bad how_many, else as idem_claim()';

CREATE FUNCTION idem_abandon(
	message_id text, consumer text, attempt int4 DEFAULT NULL
) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_abandon(text, text, int4) IS
'the side effect certainly did not happen: forgets the attempt, so that the message can be claimed again; false if there is none or it is completed. attempt: the fencing token; NULL: not checked. Errors: 55000 at another attempt, else as idem_claim()';

CREATE FUNCTION idem_resolve(message_id text, consumer text, action text)
	RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_resolve(text, text, text) IS
'a person''s decision on what idem_attention lists, recorded with role and time in idem_resolution: complete (the side effect happened), abandon (it certainly did not), forget (process the message again), dismiss (drop a delivery with other content); true if it changed anything. Errors: 22023 for another action, P0002 to complete without a record, else as idem_claim()';

CREATE FUNCTION idem_attention_after() RETURNS interval
	AS 'MODULE_PATHNAME', 'idem_attention_after_interval'
	LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_attention_after() IS
'the setting idem_inbox.attention_after';

-- What a person should look at.
CREATE VIEW idem_attention AS
	WITH home AS (
		SELECT e.extnamespace::pg_catalog.regnamespace AS schema
		FROM pg_catalog.pg_extension e
		WHERE e.extname OPERATOR(pg_catalog.=) 'idem_inbox'
	)
	SELECT CASE
			   WHEN r.lease_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
			   THEN 'in progress for long'
			   ELSE 'lease ran out'
		   END AS reason,
		   r.message_id,
		   c.name AS consumer,
		   r.received_at AS since,
		   pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) r.received_at AS age,
		   r.attempt,
		   NULL::int8 AS deliveries,
		   r.detail OPERATOR(pg_catalog.->>) 'role' AS role,
		   r.detail OPERATOR(pg_catalog.->>) 'application_name' AS application_name,
		   r.detail OPERATOR(pg_catalog.->>) 'client_addr' AS client_addr,
		   pg_catalog.format('SELECT %s.idem_resolve(%L, %L, ''complete''); -- or ''abandon'', if it certainly did not happen',
							 home.schema, r.message_id, c.name) AS resolve
	FROM (SELECT * FROM idem_generation_1 WHERE completed_at IS NULL
		  UNION ALL
		  SELECT * FROM idem_generation_2 WHERE completed_at IS NULL
		  UNION ALL
		  SELECT * FROM idem_generation_3 WHERE completed_at IS NULL) r
		 CROSS JOIN home
		 JOIN idem_consumer c ON c.consumer_id OPERATOR(pg_catalog.=) r.consumer_id
	WHERE r.lease_until IS NULL
	   OR r.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
	   OR r.received_at OPERATOR(pg_catalog.+) idem_attention_after() OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT 'mismatch', q.message_id, c.name, q.first_at,
		   pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) q.first_at,
		   NULL, q.deliveries,
		   q.delivered_to OPERATOR(pg_catalog.->>) 'role',
		   q.delivered_to OPERATOR(pg_catalog.->>) 'application_name',
		   q.delivered_to OPERATOR(pg_catalog.->>) 'client_addr',
		   pg_catalog.format('SELECT %s.idem_resolve(%L, %L, ''dismiss''); -- or ''forget'', to process the new content',
							 home.schema, q.message_id, c.name)
	FROM idem_quarantine q
		 CROSS JOIN home
		 JOIN idem_consumer c ON c.consumer_id OPERATOR(pg_catalog.=) q.consumer_id
	WHERE q.dismissed_at IS NULL;
COMMENT ON VIEW idem_attention IS
'what a person should look at: attempts whose lease ran out, attempts in progress for longer than idem_inbox.attention_after, deliveries with other content; who claimed or delivered, as of then, and the call that resolves each';
GRANT SELECT ON idem_attention TO pg_monitor;

CREATE FUNCTION idem_forget(message_id text, consumer text) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_forget(text, text) IS
'for the administrator: deletes the record, so that the message is processed again; false without a record';

CREATE FUNCTION idem_fingerprint(payload jsonb) RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_fingerprint_jsonb'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_fingerprint(jsonb) IS
'16-byte digest (of SHA-256) of a payload, the same for any order of keys, any blanks and any spelling of a number';
CREATE FUNCTION idem_fingerprint(payload text) RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_fingerprint_text'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_fingerprint(text) IS
'16-byte digest (of SHA-256) of a payload, exact to the byte';
CREATE FUNCTION idem_fingerprint(payload bytea) RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_fingerprint_bytea'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_fingerprint(bytea) IS
'16-byte digest (of SHA-256) of a payload, exact to the byte';

CREATE FUNCTION idem_cloudevent_id(cloudevent jsonb) RETURNS text
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_cloudevent_id(jsonb) IS
'the message id of a CloudEvent: source and id as a JSON array, which together identify the event (CloudEvents 1.0, "id"). Error: 22023 if either is missing or empty';

CREATE FUNCTION idem_import(
	message_id text, consumer text,
	received_at timestamptz DEFAULT NULL, fingerprint bytea DEFAULT NULL
) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_import(text, text, timestamptz, bytea) IS
'brings a record of another inbox, as completed: SELECT idem_import(...) FROM old_inbox; true: brought, false: the message has a record already, which stays. Consumers need not stop; a claim of the message waits until the import commits. received_at: when the message was received (NULL or in the future: now); the record is kept for the retention from now on. Errors: 22008 if received_at is infinite, else as idem_claim()';

CREATE FUNCTION idem_register(
	consumer text, retention interval DEFAULT NULL,
	lease interval DEFAULT NULL, owner name DEFAULT NULL
) RETURNS void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_register(text, interval, interval, name) IS
'creates a consumer or changes its policy; what is NULL stays as it is, in a new consumer as the settings say. retention: how long its records are kept if longer than idem_inbox.retention; lease: of attempts that name none; owner: the role whose members may act for it, of a new consumer the current role. To go back to a setting, set the column of idem_consumer to NULL. Errors: 42501 if the current role is no member of the present or the new owner, 42704 for an unknown role';

--
-- Maintenance
--
CREATE FUNCTION idem_maintain() RETURNS text
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_maintain() IS
'takes one maintenance step and says which: opened (the next generation), sealed (the current one), moved (a batch of records that outlive the sealed generation), emptied (the sealed generation), waiting (a step is due, but a transaction or a lock is in its way), nothing (no step is due). Waits for nobody; in a transaction block it takes one step, whose locks last until the block ends. For those who cannot preload the worker. Error: 25006 when read-only';

CREATE FUNCTION idem_next_step(
	OUT step text, OUT generation int4, OUT due_in interval,
	OUT older_than xid8, OUT snapshots bool
) RETURNS record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_next_step() IS
'the maintenance step that comes next: open, seal or empty; the number of the generation that it changes; how long until it is due by age; and, if it waits for transactions, the id that they are older than, and whether their snapshots matter';

-- The ring, for people. age is the time that counts towards retention.
CREATE VIEW idem_generation AS
	WITH ring AS (
		SELECT COALESCE(pg_catalog.max(r.current), 1) AS current,
			   COALESCE(pg_catalog.bool_or(r.next_open), false) AS next_open,
			   COALESCE(pg_catalog.bool_or(r.previous_sealed), false) AS previous_sealed,
			   pg_catalog.max(r.current_age) AS current_age,
			   pg_catalog.max(r.previous_age) AS previous_age,
			   pg_catalog.max(r.opened_at) AS opened_at,
			   pg_catalog.max(r.sealed_at) AS sealed_at,
			   pg_catalog.max(r.counted_at) AS counted_at
		FROM idem_ring r
	), member AS (
		SELECT g.generation, g.name,
			   CASE (g.generation OPERATOR(pg_catalog.-) ring.current OPERATOR(pg_catalog.+) 3) OPERATOR(pg_catalog.%) 3
				   WHEN 0 THEN 'current'
				   WHEN 1 THEN CASE WHEN ring.next_open THEN 'next' ELSE 'spare' END
				   ELSE CASE WHEN ring.previous_sealed THEN 'previous' ELSE 'spare' END
			   END AS role,
			   ring.opened_at, ring.sealed_at, ring.current_age, ring.previous_age,
			   ring.counted_at
		FROM ring, (VALUES (1, 'idem_generation_1'::pg_catalog.regclass),
						   (2, 'idem_generation_2'::pg_catalog.regclass),
						   (3, 'idem_generation_3'::pg_catalog.regclass)) g(generation, name)
	), holder AS (
		SELECT pg_catalog.format('transaction of pid %s, open for %s', a.pid,
								 pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.xact_start)) AS name,
			   pg_catalog.age(COALESCE(a.backend_xid, a.backend_xmin)) AS age,
			   a.backend_xid IS NULL AS only_snapshot
		FROM pg_catalog.pg_stat_activity a
		WHERE a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
		  AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
		UNION ALL
		SELECT pg_catalog.format('prepared transaction %L, open for %s', p.gid,
								 pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.prepared)),
			   pg_catalog.age(p.transaction), false
		FROM pg_catalog.pg_prepared_xacts p
	)
	SELECT m.name AS "table",
		   m.role,
		   CASE m.role WHEN 'current' THEN m.opened_at END AS opened_at,
		   CASE m.role WHEN 'previous' THEN m.sealed_at END AS sealed_at,
		   CASE m.role WHEN 'current' THEN m.current_age
					   WHEN 'previous' THEN m.previous_age END AS age,
		   pg_catalog.pg_stat_get_live_tuples(m.name) AS rows_estimate,
		   pg_catalog.pg_total_relation_size(m.name) AS bytes,
		   n.step AS next_step,
		   CASE
			   WHEN n.due_in OPERATOR(pg_catalog.>) '0'::pg_catalog.interval THEN
				   pg_catalog.format('age: due in %s', pg_catalog.date_trunc('second', n.due_in))
			   WHEN n.older_than IS NOT NULL THEN
				   COALESCE((SELECT h.name FROM holder h
							 WHERE n.snapshots OR NOT h.only_snapshot
							 ORDER BY h.age DESC LIMIT 1),
							pg_catalog.format('transactions older than %s', n.older_than))
			   WHEN n.step IS NOT NULL THEN
				   COALESCE((SELECT pg_catalog.format('lock held by pid %s', pg_catalog.min(l.pid))
							 FROM pg_catalog.pg_locks l
							 WHERE n.step OPERATOR(pg_catalog.=) 'empty'
							   AND l.granted
							   AND l.locktype OPERATOR(pg_catalog.=) 'relation'
							   AND l.relation OPERATOR(pg_catalog.=) m.name::pg_catalog.oid
							   AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
							   AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
							 HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0),
							'the next maintenance run')
		   END AS waits_for,
		   CASE m.role WHEN 'current' THEN m.counted_at END AS maintained_at
	FROM member m
		 LEFT JOIN idem_next_step() n ON n.generation OPERATOR(pg_catalog.=) m.generation;
COMMENT ON VIEW idem_generation IS
'the ring''s generations: role (current, next, previous, spare), since when, the age that counts towards retention, rows (estimated) and bytes; for the one that the next maintenance step changes, that step and what it waits for; for the current one, when maintenance last ran';
GRANT SELECT ON idem_generation TO pg_monitor;

--
-- Counters, in shared memory
--
CREATE FUNCTION idem_stats_rows(
	OUT consumer_id int4,
	OUT claimed int8, OUT rolled_back int8, OUT duplicate int8, OUT busy int8,
	OUT in_progress int8, OUT needs_reconciliation int8, OUT mismatch int8,
	OUT waits int8, OUT waited_ms float8,
	OUT completed int8, OUT taken_over int8, OUT abandoned int8,
	OUT expired int8, OUT last_claim timestamptz, OUT since timestamptz
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stats_rows() IS
'the counters behind the view idem_stats, by the consumer''s number';

CREATE VIEW idem_stats AS
	SELECT c.name AS consumer,
		   s.claimed, s.rolled_back, s.duplicate, s.busy, s.in_progress,
		   s.needs_reconciliation, s.mismatch, s.waits, s.waited_ms,
		   s.completed, s.taken_over, s.abandoned, s.expired,
		   s.last_claim, s.since
	FROM idem_stats_rows() s
		 LEFT JOIN idem_consumer c ON c.consumer_id OPERATOR(pg_catalog.=) s.consumer_id
	WHERE c.name IS NOT NULL OR s.consumer_id IS NULL;
COMMENT ON VIEW idem_stats IS
'counters per consumer of this database, since the server''s start or idem_stats_reset(). Empty unless the library is in shared_preload_libraries. claimed: committed claims; rolled_back: claims that were not; duplicate to mismatch: answers given; waits, waited_ms: for other open transactions; completed, taken_over, abandoned: of two-phase records; expired: records of these claims that went with their generation. A transaction counts when it ends, a prepared one when it is prepared. consumer NULL: all that found no place in idem_inbox.max_consumers, of all databases';

CREATE FUNCTION idem_failing_rows(
	OUT consumer_id int4, OUT message_id idem_message_id,
	OUT times int8, OUT first_at timestamptz, OUT last_at timestamptz
) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_failing_rows() IS
'the list behind the view idem_failing, by the consumer''s number';

CREATE VIEW idem_failing AS
	SELECT c.name AS consumer, f.message_id, f.times, f.first_at, f.last_at
	FROM idem_failing_rows() f
		 JOIN idem_consumer c ON c.consumer_id OPERATOR(pg_catalog.=) f.consumer_id;
COMMENT ON VIEW idem_failing IS
'messages whose claims were rolled back, and not committed since: times, first and last. A handler that always fails shows here. Empty unless the library is in shared_preload_libraries; the idem_inbox.max_failing messages that failed most often, since the server''s start or idem_stats_reset()';

GRANT SELECT ON idem_stats, idem_failing TO pg_monitor;

CREATE FUNCTION idem_stats_reset(consumer text DEFAULT NULL) RETURNS void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_stats_reset(text) IS
'counts from zero for a consumer, or with NULL for all of this database, and forgets its rows of idem_failing. Errors: 42501 for another owner''s consumer, and for all of them to others than the extension''s owner, 42704 for an unknown consumer';

CREATE FUNCTION idem_version() RETURNS text
	AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_version() IS
'the version of the loaded library; extversion in pg_extension is that of the SQL objects';

--
-- A stranger who could claim could make messages vanish: nothing but the
-- message id's own operators is for PUBLIC.
--
REVOKE ALL ON FUNCTION
	idem_invalidate(),
	idem_replace_ring(),
	idem_claim(text, text, bytea, interval),
	idem_claim_many(text[], text, bytea[], interval),
	idem_claims(),
	idem_require_claim(),
	idem_begin(text, text, bytea, interval, interval),
	idem_complete(text, text, jsonb, int4),
	idem_complete(jsonb),
	idem_seen(text, text),
	idem_status(text, text),
	idem_forget(text, text),
	idem_import(text, text, timestamptz, bytea),
	idem_register(text, interval, interval, name),
	idem_result(text, text),
	idem_extend(text, text, interval, int4),
	idem_takeover(text, text, interval),
	idem_takeover_next(text, int4, interval),
	idem_abandon(text, text, int4),
	idem_resolve(text, text, text),
	idem_attention_after(),
	idem_fingerprint(jsonb),
	idem_fingerprint(text),
	idem_fingerprint(bytea),
	idem_cloudevent_id(jsonb),
	idem_maintain(),
	idem_next_step(),
	idem_stats_rows(),
	idem_failing_rows(),
	idem_stats_reset(text),
	idem_version()
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
	idem_next_step(), idem_attention_after(),
	idem_stats_rows(), idem_failing_rows()
TO pg_monitor;
