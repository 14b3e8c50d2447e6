--
-- What a person should look at, and what the person decides
--
CREATE EXTENSION idem_inbox;
CREATE ROLE regress_idem_mailer;
CREATE ROLE regress_idem_mailer_2 IN ROLE regress_idem_mailer;
CREATE ROLE regress_idem_other;
CREATE ROLE regress_idem_monitor IN ROLE pg_monitor;
GRANT EXECUTE ON FUNCTION idem_claim, idem_begin, idem_takeover, idem_complete(text, text, jsonb, int), idem_resolve
TO regress_idem_mailer, regress_idem_other;

CREATE VIEW attention AS
SELECT reason, message_id, consumer, attempt, deliveries, role, application_name
FROM idem_attention ORDER BY message_id, reason, deliveries;
CREATE VIEW resolutions AS
SELECT consumer, message_id, action, changed, role,
	   resolved_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS now
FROM idem_resolution ORDER BY idem_resolution.ctid;

-- nothing, as long as all is well
SET ROLE regress_idem_mailer;
SET application_name = 'mailer 1';
SELECT idem_claim('ok-claimed', 'mail', '\x01');
SELECT idem_begin('ok-completed', 'mail'), idem_complete('ok-completed', 'mail');
SELECT idem_begin('ok-in-progress', 'mail', lease => '30 min');
RESET ROLE;
SELECT * FROM attention;

--
-- Attempts whose lease ran out; deliveries with other content
--
SET ROLE regress_idem_mailer;
SELECT idem_begin('a-1', 'mail');
SELECT idem_claim('ok-claimed', 'mail', '\x02');
SELECT idem_claim('ok-claimed', 'mail', '\x03');
-- redeliveries, whatever they are told, are not who claimed
SET application_name = 'redelivery';
SELECT idem_begin('a-1', 'mail');
SELECT idem_claim('ok-claimed', 'mail', '\x03');
RESET ROLE;
SELECT * FROM attention;
SELECT message_id, since = received_at AS since, age BETWEEN '0' AND '1 min' AS age,
	   client_addr IS NOT DISTINCT FROM host(inet_client_addr()) AS client_addr
FROM idem_attention JOIN idem_inbox USING (message_id, consumer) WHERE reason = 'lease ran out';
SELECT message_id, since = first_at AS since, age BETWEEN '0' AND '1 min' AS age,
	   client_addr IS NOT DISTINCT FROM host(inet_client_addr()) AS client_addr
FROM idem_attention JOIN idem_quarantine USING (message_id, deliveries) WHERE reason = 'mismatch'
ORDER BY deliveries;
-- after a take-over, who has taken over, as soon as its lease runs out, too
SET ROLE regress_idem_mailer_2;
SET application_name = 'reconciler';
SELECT idem_takeover('a-1', 'mail', '30 min');
RESET ROLE;
SELECT * FROM attention WHERE message_id = 'a-1';
UPDATE idem_generation_1 SET lease_until = now() WHERE message_id = 'a-1';
SELECT * FROM attention WHERE message_id = 'a-1';

--
-- Attempts in progress for longer than idem_inbox.attention_after, whatever
-- their lease
--
SHOW idem_inbox.attention_after;
SELECT idem_attention_after();
UPDATE idem_generation_1 SET received_at = now() - interval '59 min' WHERE message_id = 'ok-in-progress';
SELECT * FROM attention WHERE reason = 'in progress for long';
UPDATE idem_generation_1 SET received_at = now() - interval '61 min' WHERE message_id = 'ok-in-progress';
SELECT * FROM attention WHERE reason = 'in progress for long';
SELECT age BETWEEN '60 min' AND '62 min' AS age FROM idem_attention WHERE message_id = 'ok-in-progress';
SET idem_inbox.attention_after = '2h';
SELECT idem_attention_after();
SELECT * FROM attention WHERE reason = 'in progress for long';
-- one whose lease ran out does not wait for it
SELECT * FROM attention WHERE reason = 'lease ran out';
RESET idem_inbox.attention_after;
-- the setting is seen in a session that has not used the library yet
SELECT current_database() AS db \gset
ALTER DATABASE :"db" SET idem_inbox.attention_after = '3h';
\c -
SELECT idem_attention_after();
ALTER DATABASE :"db" RESET idem_inbox.attention_after;
\c -
SELECT count(*) FROM idem_attention WHERE reason = 'in progress for long';

--
-- The ring's every generation is looked at, placeholders are nothing
--
SELECT idem_begin('g-1', 'ring');
INSERT INTO idem_ring (current, previous_sealed) VALUES (2, true);
SELECT idem_begin('g-2', 'ring');
UPDATE idem_ring SET previous_sealed = false, next_open = true;
SELECT idem_begin('g-3', 'ring');
SELECT message_id FROM attention WHERE consumer = 'ring';
SELECT idem_complete('g-' || n, 'ring') FROM generate_series(1, 3) n;
SELECT message_id FROM attention WHERE consumer = 'ring';
DELETE FROM idem_ring;

--
-- The person's decision
--
CREATE FUNCTION left_over(id text) RETURNS idem_outcome LANGUAGE sql AS $$
	SELECT idem_begin(id, 'mail', '\x01')
$$;
SET ROLE regress_idem_mailer_2;
-- it happened
SELECT left_over('r-1');
SELECT idem_resolve('r-1', 'mail', 'complete');
SELECT idem_resolve('r-1', 'mail', 'complete');
SELECT idem_begin('r-1', 'mail');
-- it certainly did not
SELECT left_over('r-2');
SELECT idem_resolve('r-2', 'mail', 'abandon');
SELECT idem_resolve('r-2', 'mail', 'abandon');
SELECT idem_resolve('r-1', 'mail', 'abandon');
SELECT idem_begin('r-2', 'mail');
-- process it again
SELECT idem_resolve('r-1', 'mail', 'forget');
SELECT idem_resolve('r-1', 'mail', 'forget');
SELECT idem_claim('r-1', 'mail', '\x01');
-- process the new content: nothing is left of the old one
SELECT idem_claim('r-1', 'mail', '\x02');
SELECT idem_claim('r-1', 'mail', '\x03');
SELECT idem_resolve('r-1', 'mail', 'forget');
RESET ROLE;
SELECT count(*) FROM attention WHERE message_id = 'r-1';
SET ROLE regress_idem_mailer_2;
SELECT idem_claim('r-1', 'mail', '\x02');
-- drop the other contents, all of them
SELECT idem_claim('r-1', 'mail', '\x01');
SELECT idem_claim('r-1', 'mail', '\x03');
SELECT idem_resolve('r-1', 'mail', 'dismiss');
SELECT idem_resolve('r-1', 'mail', 'dismiss');
SELECT idem_resolve('r-1', 'nobody', 'dismiss');
SELECT idem_claim('r-1', 'mail', '\x02');
-- whatever the attempt and its lease
SELECT idem_begin('r-3', 'mail', lease => '30 min');
SELECT idem_resolve('r-3', 'mail', 'complete');
SELECT idem_begin('r-4', 'mail');
SELECT idem_takeover('r-4', 'mail', '30 min');
SELECT idem_resolve('r-4', 'mail', 'abandon');
-- without a record, without a consumer
SELECT idem_resolve('r-5', 'mail', 'abandon'), idem_resolve('r-5', 'mail', 'forget'), idem_resolve('r-5', 'mail', 'dismiss');
SELECT idem_resolve('r-5', 'nobody', 'abandon');
RESET ROLE;
SELECT message_id, state FROM idem_inbox WHERE message_id::text ~ '^r' ORDER BY message_id;
SELECT * FROM attention WHERE message_id::text ~ '^r';
-- recorded with role and time, whether or not it changed anything
SELECT * FROM resolutions;
SELECT name FROM idem_consumer ORDER BY name;
-- not if it failed or was rolled back
TRUNCATE idem_resolution;
SELECT idem_resolve('r-5', 'mail', 'complete');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('r-1', 'mail', 'delete');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('r-1', 'mail', 'Complete');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('r-1', 'mail', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve(NULL, 'mail', 'complete');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('r-1', '', 'complete');
\echo :LAST_ERROR_SQLSTATE
BEGIN READ ONLY;
SELECT idem_resolve('r-1', 'mail', 'dismiss');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SELECT idem_resolve('r-1', 'mail', 'forget');
ROLLBACK;
SELECT * FROM resolutions;
SELECT idem_begin('r-1', 'mail');

--
-- Who may
--
SET ROLE regress_idem_other;
SELECT idem_resolve('a-1', 'mail', 'complete');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('a-1', 'mail', 'abandon');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('a-1', 'mail', 'forget');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_resolve('ok-claimed', 'mail', 'dismiss');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_attention_after();
SELECT * FROM idem_attention;
SELECT * FROM idem_generation;
SELECT * FROM idem_resolution;
RESET ROLE;
-- the monitor may look, and no more
SET ROLE regress_idem_monitor;
SELECT idem_attention_after();
SELECT count(*) FROM idem_attention;
SELECT role FROM idem_generation ORDER BY "table"::text;
SELECT idem_resolve('a-1', 'mail', 'complete');
SELECT * FROM idem_quarantine;
SELECT * FROM idem_resolution;
RESET ROLE;
SELECT * FROM resolutions;

--
-- The call that resolves it can be run as it stands, whatever the names and
-- the search_path
--
DROP VIEW attention, resolutions;
DROP FUNCTION left_over;
DROP EXTENSION idem_inbox;
CREATE SCHEMA "My inbox";
CREATE EXTENSION idem_inbox SCHEMA "My inbox";
SET search_path = "My inbox", public;
CREATE TABLE public.name AS
SELECT * FROM unnest(ARRAY['plain', 'it''s', '"quoted"', 'back\slash', e'two\nlines', '%s', '-- no comment', '$$', '{"a": 1}']) name;
SELECT idem_begin(name, 'consumer of ' || name) FROM name;
SELECT idem_claim(name, 'mismatch of ' || name, '\x01'), idem_claim(name, 'mismatch of ' || name, '\x02') FROM name;
SELECT reason, resolve FROM idem_attention WHERE message_id = 'plain' ORDER BY reason;
SET search_path = pg_catalog;
\pset tuples_only on
SELECT resolve FROM "My inbox".idem_attention ORDER BY resolve COLLATE "C" \gexec
\pset tuples_only off
SET search_path = "My inbox", public;
SELECT count(*) FROM idem_attention;
SELECT action, changed, count(*) FROM idem_resolution GROUP BY 1, 2 ORDER BY 1;
-- and so can the other decision
SELECT idem_begin('a-' || name, 'consumer of ' || name) FROM name;
SELECT count(*) FROM idem_attention;
SET search_path = pg_catalog;
\pset tuples_only on
SELECT replace(resolve, '''complete''); -- or ''abandon''', '''abandon''); -- or ''complete''')
FROM "My inbox".idem_attention ORDER BY resolve COLLATE "C" \gexec
\pset tuples_only off
RESET search_path;
SELECT count(*) FROM "My inbox".idem_attention;
SELECT action, changed, count(*) FROM "My inbox".idem_resolution GROUP BY 1, 2 ORDER BY 1;

DROP TABLE name;
DROP EXTENSION idem_inbox;
DROP SCHEMA "My inbox";
DROP ROLE regress_idem_mailer, regress_idem_mailer_2, regress_idem_other, regress_idem_monitor;
