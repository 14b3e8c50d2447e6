--
-- Results: what a duplicate is answered
--
CREATE EXTENSION idem_inbox;

-- an HTTP endpoint with an Idempotency-Key answers the retry as the first
CREATE FUNCTION charge(key text, amount int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	outcome idem_outcome := idem_begin(key, 'payment.charge');
	answer jsonb := jsonb_build_object('status', 201, 'body', jsonb_build_object('charged', amount));
BEGIN
	IF outcome = 'claimed' THEN
		PERFORM idem_complete(key, 'payment.charge', answer, attempt => 1);
		RETURN answer;
	ELSIF outcome = 'duplicate' THEN
		RETURN idem_result(key, 'payment.charge');
	END IF;
	RETURN jsonb_build_object('status', 409, 'body', outcome);
END
$$;
SELECT charge('k-1', 10);
SELECT charge('k-1', 99);
SELECT charge('k-2', 99);
SELECT idem_begin('k-3', 'payment.charge', lease => '1 hour');
SELECT charge('k-3', 10);

-- the same by both functions and the view, whatever the kind of value
SELECT idem_begin(id, 'api'), idem_complete(id, 'api', result)
FROM (VALUES ('r-object', '{"a": [1, 2, {"b": null}]}'::jsonb),
			 ('r-array', '[]'), ('r-string', '"\u00e4"'), ('r-number', '1.50'),
			 ('r-true', 'true'), ('r-null', 'null')) r (id, result);
SELECT v.message_id, idem_result(v.message_id::text, 'api') AS by_result, s.result AS by_status, v.result AS by_view
FROM idem_inbox v, idem_status(v.message_id::text, 'api') s
WHERE v.consumer = 'api' ORDER BY v.message_id;
-- none: no result, in progress, no record, no consumer
SELECT idem_begin('r-none', 'api'), idem_complete('r-none', 'api');
SELECT idem_begin('r-progress', 'api');
SELECT idem_result('r-none', 'api') IS NULL AS completed,
	   idem_result('r-progress', 'api') IS NULL AS in_progress,
	   idem_result('r-nothing', 'api') IS NULL AS no_record,
	   idem_result('r-object', 'nobody') IS NULL AS no_consumer;
SELECT result IS NULL AS in_progress FROM idem_status('r-progress', 'api');
SELECT result IS NULL AS in_progress FROM idem_inbox WHERE message_id = 'r-progress';

-- the first result stays, whoever completes again
SELECT idem_complete('r-object', 'api', '"other"');
SELECT idem_complete('r-none', 'api', '"other"');
SELECT idem_result('r-object', 'api'), idem_result('r-none', 'api');
SELECT idem_claim('r-object', 'api');
SELECT idem_result('r-object', 'api');
-- a new attempt brings a result of its own
SELECT idem_takeover('r-progress', 'api');
SELECT idem_complete('r-progress', 'api', '"of the first"', attempt => 1);
SELECT idem_result('r-progress', 'api');
SELECT idem_complete('r-progress', 'api', '"of the second"', attempt => 2);
SELECT idem_result('r-progress', 'api');
-- one transaction's
BEGIN;
SELECT idem_claim('r-claim', 'api');
SELECT idem_result('r-claim', 'api') IS NULL AS none_yet;
SELECT idem_complete('{"id": 7}'::jsonb);
SELECT idem_result('r-claim', 'api');
ROLLBACK;
SELECT idem_result('r-claim', 'api') IS NULL AS no_record;
BEGIN;
SELECT idem_claim('r-claim', 'api');
SELECT idem_complete('{"id": 8}'::jsonb);
COMMIT;
SELECT idem_result('r-claim', 'api');
-- it is false for such a record, and changes nothing
SELECT idem_complete('r-claim', 'api', '"late"');
SELECT idem_result('r-claim', 'api');

--
-- Bounded by idem_inbox.max_result, by the size of the value as stored
--
SHOW idem_inbox.max_result;
CREATE FUNCTION of_size(bytes int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT to_jsonb(repeat('x', bytes - 8))
$$;
SELECT pg_column_size(of_size(8192)) - 4 AS bytes;
SELECT idem_begin('s-1', 'api');
SELECT idem_complete('s-1', 'api', of_size(8193));
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem_status('s-1', 'api');
SELECT idem_complete('s-1', 'api', of_size(8192));
SELECT idem_result('s-1', 'api') = of_size(8192) AS same;
BEGIN;
SELECT idem_claim('s-2', 'api');
SELECT idem_complete(of_size(8193));
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SET idem_inbox.max_result = '1MB';
SELECT idem_begin('s-3', 'api');
SELECT idem_complete('s-3', 'api', of_size(1048577));
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('s-3', 'api', of_size(1048576));
SELECT idem_result('s-3', 'api') = of_size(1048576) AS same;
-- a value that is stored out of line elsewhere, compressed or not
CREATE TABLE answer (c text, body jsonb);
ALTER TABLE answer ALTER body SET STORAGE external;
INSERT INTO answer VALUES ('external', of_size(100000));
ALTER TABLE answer ALTER body SET STORAGE extended;
INSERT INTO answer SELECT 'compressed', jsonb_agg(md5(i::text)) FROM generate_series(1, 3000) i;
SELECT idem_begin('s-' || c, 'api'), idem_complete('s-' || c, 'api', body) FROM answer;
UPDATE answer SET body = NULL;
VACUUM answer;
SELECT idem_result('s-external', 'api') = of_size(100000) AS same,
	   length(idem_result('s-compressed', 'api')::text);
-- no result at all
SET idem_inbox.max_result = 0;
SELECT idem_begin('s-4', 'api');
SELECT idem_complete('s-4', 'api', 'null');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('s-4', 'api');
RESET idem_inbox.max_result;
-- what is stored is given back, whatever the setting is now
SELECT idem_result('s-3', 'api') = of_size(1048576) AS same;

--
-- Shown to nobody who may not claim
--
CREATE ROLE regress_idem_owner;
CREATE ROLE regress_idem_other;
GRANT EXECUTE ON FUNCTION idem_begin, idem_complete(text, text, jsonb, int), idem_status, idem_result
TO regress_idem_owner, regress_idem_other;
SET ROLE regress_idem_owner;
SELECT idem_begin('m-1', 'secret');
SELECT idem_complete('m-1', 'secret', '"4711"');
SELECT idem_result('m-1', 'secret');
RESET ROLE;
SET ROLE regress_idem_other;
SELECT idem_result('m-1', 'secret');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status('m-1', 'secret');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_result('m-2', 'secret');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-1', 'secret', '"4712"');
\echo :LAST_ERROR_SQLSTATE
SELECT result FROM idem_inbox;
\echo :LAST_ERROR_SQLSTATE
SELECT detail FROM idem_generation_1;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- nor by the monitor's views
GRANT pg_monitor TO regress_idem_other;
SET ROLE regress_idem_other;
SELECT result FROM idem_inbox;
SELECT count(*) FROM idem_attention WHERE idem_attention::text LIKE '%4711%';
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idem_result FROM regress_idem_owner;
SET ROLE regress_idem_owner;
SELECT idem_result('m-1', 'secret');
RESET ROLE;

-- errors
SELECT idem_result(NULL, 'api');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_result('', 'api');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_result('r-object', NULL);
\echo :LAST_ERROR_SQLSTATE
-- but it may be asked in a read-only transaction
BEGIN READ ONLY;
SELECT idem_result('r-object', 'api');
COMMIT;

DROP TABLE answer;
DROP FUNCTION charge(text, int), of_size;
DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_owner, regress_idem_other;
