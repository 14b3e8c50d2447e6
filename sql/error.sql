--
-- Errors: each with its SQLSTATE, and a hint where the caller can act
--
CREATE EXTENSION idem_inbox;
SELECT idem_begin('m-1', 'mail.confirm');

-- no message id, an empty one
SELECT idem_claim(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget(NULL, 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
-- whether the consumer is known or not
SELECT idem_seen(NULL, 'nobody');
SELECT idem_seen('', 'nobody');

-- no consumer, an empty one
SELECT idem_claim('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('m-1', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('m-1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('');
\echo :LAST_ERROR_SQLSTATE

-- 1024 bytes are enough, 1025 are too many; bytes, not characters
\set SHOW_CONTEXT never
SELECT idem_claim(repeat('m', 1024), 'mail.confirm');
SELECT idem_claim(repeat('m', 1024), 'mail.confirm');
SELECT idem_claim(repeat('m', 1023) || 'n', 'mail.confirm');
SELECT idem_claim(repeat('m', 1025), 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen(repeat('m', 1025), 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim(repeat(U&'\00e9', 512), 'mail.confirm');
SELECT idem_claim(repeat(U&'\00e9', 513), 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim(repeat('m', 100000), 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('m-1', repeat('c', 1025));
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('m-1', repeat('c', 1025));
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register(repeat('c', 1025));
\echo :LAST_ERROR_SQLSTATE

\set SHOW_CONTEXT errors
-- an error names the message, but does not repeat all of what was too long
DO $$
DECLARE
	context text;
BEGIN
	PERFORM idem_claim(repeat('m', 100000), 'mail.confirm');
EXCEPTION WHEN invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
	RAISE INFO 'bounded: %', length(context) < 2000;
END
$$;

-- a fingerprint of 1 to 64 bytes
SELECT idem_claim('m-2', 'mail.confirm', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-2', 'mail.confirm', decode(repeat('ab', 65), 'hex'));
\echo :LAST_ERROR_SQLSTATE

-- a result within idem_inbox.max_result
SET idem_inbox.max_result = '1kB';
SELECT idem_complete('m-1', 'mail.confirm', to_jsonb(repeat('x', 2000)));
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem_status('m-1', 'mail.confirm');
RESET idem_inbox.max_result;

-- times that run backwards
SELECT idem_begin('m-2', 'mail.confirm', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', 'mail.confirm', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('m-2', 'mail.confirm', max_wait => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-2', 'mail.confirm', max_wait => '-1 ms');
\echo :LAST_ERROR_SQLSTATE
-- and times beyond the calendar
SELECT idem_begin('m-2', 'mail.confirm', lease => '300000 years');
\echo :LAST_ERROR_SQLSTATE

-- an error leaves no record and no consumer
SELECT idem_seen('m-2', 'mail.confirm'), count(*) FROM idem_status('m-2', 'mail.confirm');
SELECT idem_claim('', 'nobody');
SELECT name FROM idem_consumer;

-- the transaction fails as with any error, a savepoint saves it
BEGIN;
SELECT idem_claim('m-3', 'mail.confirm');
SAVEPOINT s;
SELECT idem_claim('', 'mail.confirm');
SELECT idem_claim('m-3', 'mail.confirm');
ROLLBACK TO SAVEPOINT s;
SELECT idem_claim('m-3', 'mail.confirm');
COMMIT;

-- without a record; with another attempt
SELECT idem_complete('m-4', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', 'mail.confirm', attempt => 7);
\echo :LAST_ERROR_SQLSTATE

-- read-only transactions: what writes is refused, what looks is not
\set SHOW_CONTEXT never
SELECT idem_claim('m-5', 'mail.confirm');
SET default_transaction_read_only = on;
SELECT idem_claim('m-6', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('m-5', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-6', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete();
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('m-5', 'mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('mail.confirm');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('m-5', 'mail.confirm');
SELECT state FROM idem_status('m-1', 'mail.confirm');
SELECT idem_seen('m-5', 'nobody');
RESET default_transaction_read_only;
\set SHOW_CONTEXT errors

-- ids that look like commands are text
SELECT idem_claim($$'; DROP TABLE idem_consumer; --$$, $$"; DROP TABLE idem_ring; --$$);
SELECT idem_claim($$'; DROP TABLE idem_consumer; --$$, $$"; DROP TABLE idem_ring; --$$);
SELECT idem_complete('%s%n', $$"; DROP TABLE idem_ring; --$$);

DROP EXTENSION idem_inbox;
