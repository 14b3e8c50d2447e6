-- idem_takeover_next(): half-done records for reconcilers, oldest first.
CREATE EXTENSION idem_inbox;
SET application_name = 'mailer';
SELECT idem_begin('m-' || i, 'mail.confirm') FROM generate_series(1, 5) i;
SELECT idem_begin('l-1', 'mail.confirm', lease => '1 hour');
SELECT idem_begin('o-1', 'mail.other');
SELECT idem_claim('c-1', 'mail.confirm');
SELECT idem_complete('m-3', 'mail.confirm');

-- one by default, the oldest; who left it half-done
SELECT message_id, attempt, claimed_by ->> 'application_name' AS claimed_by
FROM idem_takeover_next('mail.confirm', lease => '1 hour');
SELECT received_at = (SELECT received_at FROM idem_status('m-2', 'mail.confirm')) AS as_recorded,
	   message_id, attempt
FROM idem_takeover_next('mail.confirm', 1, '1 hour');
SELECT idem_begin('m-1', 'mail.confirm'), idem_begin('m-2', 'mail.confirm');
-- the attempt is the fencing token
SELECT idem_complete('m-1', 'mail.confirm', attempt => 1);
SELECT idem_complete('m-1', 'mail.confirm', attempt => 2);
-- no more than there are; none of another consumer, none with a lease
SELECT message_id, attempt FROM idem_takeover_next('mail.confirm', 10, '1 hour') WITH ORDINALITY;
SELECT message_id, attempt FROM idem_takeover_next('mail.confirm', 10);
-- the consumer's lease; without any, each call takes over in turn
SELECT idem_register('mail.other', lease => '1 hour');
SELECT message_id, attempt FROM idem_takeover_next('mail.other');
SELECT message_id, attempt FROM idem_takeover_next('mail.other');
SELECT idem_begin('n-1', 'mail.new');
SELECT message_id, attempt FROM idem_takeover_next('mail.new');
SELECT message_id, attempt FROM idem_takeover_next('mail.new');
-- what the same command began, and a savepoint gives back
BEGIN;
SAVEPOINT s;
SELECT o, n.message_id, n.attempt
FROM idem_begin('n-2', 'mail.new') o, LATERAL (SELECT * FROM idem_takeover_next(CASE WHEN o = 'claimed' THEN 'mail.new' END, 5)) n;
ROLLBACK TO s;
SELECT message_id, attempt FROM idem_takeover_next('mail.new', 5);
COMMIT;
-- nobody
SELECT * FROM idem_takeover_next('mail.unknown');
SELECT count(*) FROM idem_consumer WHERE name = 'mail.unknown';

-- from all generations, oldest first, where they are
SELECT idem_begin('g-1', 'ring');
CREATE PROCEDURE turn() LANGUAGE plpgsql AS $$
DECLARE
	done text := '';
BEGIN
	WHILE done <> 'sealed' LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '0';
		COMMIT;
		done := idem_maintain();
		COMMIT;
	END LOOP;
END
$$;
SELECT idem_maintain();
CALL turn();
SELECT idem_begin('g-2', 'ring');
SELECT tableoid::regclass, message_id FROM idem_generation_1 WHERE message_id::text LIKE 'g-%'
UNION ALL SELECT tableoid::regclass, message_id FROM idem_generation_2 WHERE message_id::text LIKE 'g-%';
SELECT message_id, attempt FROM idem_takeover_next('ring', 5, '1 hour');

-- errors
SELECT idem_takeover_next(NULL);
SELECT idem_takeover_next('');
SELECT idem_takeover_next('ring', NULL);
SELECT idem_takeover_next('ring', 0);
SELECT idem_takeover_next('ring', 1, '-1 s');
BEGIN READ ONLY;
SELECT idem_takeover_next('ring');
ROLLBACK;
CREATE ROLE regress_idem_registrar;
SELECT idem_register('ring', owner => 'regress_idem_registrar');
CREATE ROLE regress_idem_reconciler;
GRANT EXECUTE ON FUNCTION idem_takeover_next TO regress_idem_reconciler;
SET ROLE regress_idem_reconciler;
SELECT idem_takeover_next('ring');
RESET ROLE;

DROP PROCEDURE turn;
DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_reconciler, regress_idem_registrar;
