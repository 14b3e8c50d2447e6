--
-- Fingerprints of contents, ids of CloudEvents
--
CREATE EXTENSION idem_inbox;

-- known values: the first 16 bytes of a SHA-256
SELECT idem_fingerprint('abc'::text),
	   idem_fingerprint('abc'::text) = substr(sha256('abc'), 1, 16) AS sha256;
SELECT idem_fingerprint('\x00ff'::bytea),
	   idem_fingerprint('\x00ff'::bytea) = substr(sha256('\x00ff'), 1, 16) AS sha256;
-- digests that records keep must not change from one version to the next
SELECT payload, idem_fingerprint(payload)
FROM (VALUES ('null'::jsonb), ('true'), ('false'), ('0'), ('-1.5'), ('""'), ('"a"'),
			 ('[]'), ('{}'), ('[[]]'), ('[{}]'), ('{"a": 1, "b": [true, null, "x"]}')) p (payload);
SELECT idem_fingerprint(NULL::jsonb) IS NULL, idem_fingerprint(NULL::text) IS NULL,
	   idem_fingerprint(NULL::bytea) IS NULL;
-- always 16 bytes
SELECT DISTINCT octet_length(f)
FROM unnest(ARRAY[idem_fingerprint(''::text), idem_fingerprint('{}'::jsonb), idem_fingerprint(''::bytea),
				  idem_fingerprint(repeat('x', 1000000)), idem_fingerprint(to_jsonb(repeat('x', 1000000)))]) f;

--
-- jsonb: one content, however another serializer writes it
--
SELECT a, b, idem_fingerprint(a::jsonb) = idem_fingerprint(b::jsonb) AS same
FROM (VALUES
	('{"a":1,"b":2}', '{"b":2,"a":1}'),
	('{"a":1,"b":2}', e'  {\n\t"a" : 1,\r\n "b" :2 } '),
	('{"a":{"x":1,"yy":[{"p":1,"q":2}]}}', '{"a":{"yy":[{"q":2,"p":1}],"x":1}}'),
	('1.0', '1'), ('1.00', '1.0'), ('100', '1e2'), ('0.001', '1E-3'), ('-0', '0'), ('0.0', '0'),
	('[1.10]', '[1.1]'), ('123456789012345678901234567890.10', '123456789012345678901234567890.1'),
	('"\u0041\/"', '"A/"'), ('{"a":1,"a":2}', '{"a":2}')) v (a, b);
--
-- another content
--
SELECT a, b, idem_fingerprint(a::jsonb) = idem_fingerprint(b::jsonb) AS same
FROM (VALUES
	('[1,2]', '[2,1]'), ('[1]', '1'), ('["a"]', '"a"'), ('[null]', 'null'), ('[]', '{}'), ('[]', 'null'),
	('[[]]', '[]'), ('[[1],2]', '[1,[2]]'), ('[[1,2]]', '[1,2]'), ('[[],[]]', '[[[]]]'),
	('1', '"1"'), ('true', '"true"'), ('true', '1'), ('null', '"null"'), ('null', 'false'), ('null', '""'), ('0', 'false'),
	('{"a":null}', '{}'), ('{"a":1}', '{"A":1}'), ('{"a":1}', '{"a":2}'), ('{"a":1}', '{"b":1}'),
	('{"a":"b"}', '["a","b"]'), ('{"a":"b"}', '{"b":"a"}'), ('{"a":{}}', '{"a":[]}'),
	('{"ab":"c"}', '{"a":"bc"}'), ('["ab","c"]', '["a","bc"]'), ('["a","b"]', '["ab"]'), ('["1s1:a"]', '["1","a"]'),
	('{"a":1,"b":2}', '{"a":2,"b":1}'), ('{"a":{"b":1},"c":2}', '{"a":{"b":1,"c":2}}'),
	('12', '[1,2]'), ('[12]', '[1,2]'), ('1', '-1'), ('1', '10'), ('0.1', '1'), ('1e400', '1e401'),
	('"a"', '"a "'), ('"e\u0301"', '"\u00e9"')) v (a, b);

-- no two of many contents alike, and each the same as its rewriting
CREATE FUNCTION random_json(depth int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	kind int := floor(random() * CASE WHEN depth > 0 THEN 7 ELSE 5 END);
BEGIN
	RETURN CASE kind
		WHEN 0 THEN to_jsonb((random() * 20)::int)
		WHEN 1 THEN to_jsonb(substr('abcabcabc', (random() * 5)::int, (random() * 3)::int))
		WHEN 2 THEN to_jsonb(random() < 0.5)
		WHEN 3 THEN 'null'
		WHEN 4 THEN to_jsonb(round((random() * 10)::numeric, (random() * 3)::int))
		WHEN 5 THEN (SELECT coalesce(jsonb_agg(random_json(depth - 1)), '[]')
					 FROM generate_series(1, (random() * 3)::int))
		ELSE (SELECT coalesce(jsonb_object_agg(substr('abcde', i, 1), random_json(depth - 1)), '{}')
			  FROM generate_series(1, (random() * 3)::int) i)
	END;
END
$$;
-- with its keys the other way round, and its numbers with a zero more
CREATE FUNCTION rewritten(j jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE jsonb_typeof(j)
		WHEN 'object' THEN
			(SELECT ' { ' || coalesce(string_agg(to_json(key)::text || ' : ' || rewritten(value), ' , ' ORDER BY key DESC), '') || ' } '
			 FROM jsonb_each(j))
		WHEN 'array' THEN
			(SELECT e'[\n' || coalesce(string_agg(rewritten(value), ',' ORDER BY n), '') || ']'
			 FROM jsonb_array_elements(j) WITH ORDINALITY e (value, n))
		WHEN 'number' THEN CASE WHEN j::text LIKE '%.%' THEN j::text || '0' ELSE j::text || '.0' END
		ELSE j::text
	END;
END
$$;
SELECT rewritten('{"a": [1, 2.5, {"b": "x", "c": null}], "d": {}}');
SELECT setseed(0.25);
CREATE TABLE content AS
SELECT j, idem_fingerprint(j) AS f, idem_fingerprint(rewritten(j)::jsonb) AS g
FROM (SELECT random_json(4) AS j FROM generate_series(1, 20000) OFFSET 0) x;
SELECT count(*) > 5000 AS many, count(DISTINCT j) = count(DISTINCT f) AS all_different,
	   bool_and(f = g) AS rewriting_is_the_same
FROM content;

--
-- text and bytea are exact
--
SELECT idem_fingerprint('{"a":1}'::text) = idem_fingerprint('{"a": 1}'::text) AS blank,
	   idem_fingerprint('a'::text) = idem_fingerprint('A'::text) AS letter_case,
	   idem_fingerprint('a'::text) = idem_fingerprint('a '::text) AS trailing_blank,
	   idem_fingerprint('a'::text) = idem_fingerprint(e'a\n'::text) AS line_break,
	   idem_fingerprint(e'e\u0301'::text) = idem_fingerprint(e'\u00e9'::text) AS unicode_form,
	   idem_fingerprint(''::text) = idem_fingerprint(' '::text) AS empty,
	   idem_fingerprint('\x00'::bytea) = idem_fingerprint('\x0000'::bytea) AS zero_bytes;
-- the bytes count, however they are stored
CREATE TABLE stored (t text, b bytea);
ALTER TABLE stored ALTER t SET STORAGE external;
INSERT INTO stored VALUES (repeat('abc', 10000), repeat('abc', 10000)::bytea);
SELECT idem_fingerprint(t) = idem_fingerprint(repeat('abc', 10000)) AS text,
	   idem_fingerprint(b) = idem_fingerprint(repeat('abc', 10000)) AS bytea FROM stored;
-- a literal of no type is text
SELECT idem_fingerprint('{"a":1}') = idem_fingerprint('{"a":1}'::text) AS text;

--
-- Ids of CloudEvents: source and id together
--
SELECT idem_cloudevent_id('{"specversion": "1.0", "id": "A234-1234-1234", "source": "https://github.com/cloudevents/spec/pull", "type": "t", "data": {"id": "x", "source": "y"}}');
SELECT idem_cloudevent_id('{"source": "a", "id": "bc"}'), idem_cloudevent_id('{"source": "ab", "id": "c"}');
SELECT count(*) AS pairs, count(DISTINCT idem_cloudevent_id(jsonb_build_object('source', s, 'id', i))) AS ids
FROM unnest(ARRAY['a', 'ab', 'a"', 'a",', 'a", "b', '\', '\"', ' ', '[', ']', 'ä', e'\n']) s,
	 unnest(ARRAY['a', 'ab', 'a"', 'a",', 'a", "b', '\', '\"', ' ', '[', ']', 'ä', e'\n']) i;
-- whatever else the event has, and in whatever order
SELECT idem_cloudevent_id('{"id": "1", "source": "s"}') = idem_cloudevent_id('{"source": "s", "time": "now", "id": "1"}') AS same;
SELECT idem_claim(idem_cloudevent_id('{"id": "1", "source": "s"}'), 'c'),
	   idem_claim(idem_cloudevent_id('{"id": "1", "source": "t"}'), 'c'),
	   idem_claim(idem_cloudevent_id('{"source": "s", "id": "1"}'), 'c');
-- an event that lacks either
SELECT idem_cloudevent_id('{"id": "1"}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "s"}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "", "id": "1"}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "s", "id": ""}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "s", "id": null}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "s", "id": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('{"source": "s", "ID": "1"}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('[{"source": "s", "id": "1"}]');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('["source", "id"]');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id('"source"');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_cloudevent_id(NULL) IS NULL AS null;

-- not for PUBLIC
CREATE ROLE regress_idem_stranger;
SET ROLE regress_idem_stranger;
SELECT idem_fingerprint('a'::text);
SELECT idem_fingerprint('a'::bytea);
SELECT idem_fingerprint('1'::jsonb);
SELECT idem_cloudevent_id('{}');
RESET ROLE;

DROP TABLE content, stored;
DROP FUNCTION random_json, rewritten;
DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_stranger;
