# The worker and what is done to the extension in its database: dropped,
# locked, without a table that the library knows, owned by somebody else.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemWorkerTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_worker_node('extension');
my $worker = worker_of($node, 'postgres');
my $session = $node->background_psql('postgres');

IdemTest::poll($node, 'SELECT count(*) = 1 FROM idem_ring');

#
# In one database the library is newer than the extension's SQL: it lacks a
# table.  See below.
#
my $failed = qr/idem_inbox worker failed in database "old": relation "idem_ring" of extension "idem_inbox" does not exist/;
my $recovered = qr/idem_inbox worker no longer fails in database "old"/;
$node->safe_psql('postgres', 'CREATE DATABASE old');
$node->safe_psql('old',
	'CREATE EXTENSION idem_inbox; ALTER TABLE idem_ring RENAME TO renamed');

#
# DROP EXTENSION, first with the lock taken before a worker comes
#
$session->query_safe('BEGIN; DROP EXTENSION idem_inbox');
wait_for_visits($node, $worker, 1);
pass('a worker does not wait for who drops the extension');
$session->query_safe('ROLLBACK');
age($node, 'postgres');
IdemTest::poll($node, 'SELECT previous_sealed FROM idem_ring');
pass('and works on when it is not dropped after all');

keep_busy($node, 'postgres');
IdemTest::poll($node, 'SELECT EXISTS (' . worker_in('postgres') . ')');
$node->safe_psql('postgres',
	"SET lock_timeout = '2s'; DROP EXTENSION idem_inbox");
pass('the extension is dropped while a worker is at it');
wait_for_visits($node, $worker, 1);
$node->safe_psql('postgres', 'CREATE EXTENSION idem_inbox');
IdemTest::poll($node, 'SELECT count(*) = 1 FROM idem_ring');
pass('and maintained once it is there again');

# Meanwhile it has failed twice in the other database.
$node->wait_for_log(qr/LOG:  $failed.*HINT:  [^\n]*ALTER EXTENSION/s);
$node->wait_for_log(qr/DEBUG:  $failed/);
is(count_in_log($node, qr/LOG:  $failed/), 1, 'a failure is logged once');
$node->safe_psql('old', 'ALTER TABLE renamed RENAME TO idem_ring');

#
# An update's script takes strong locks one after the other, ALTER EXTENSION
# UPDATE none on the extension.  Here it asks for what the worker has at the
# moment that the worker waits for what it has.
#
$session->query_safe(q{
	BEGIN;
	UPDATE idem_ring SET current = 2, previous_sealed = true,
		previous_age = '30 days', sealed_at = now();
	COMMIT;
	BEGIN;
	LOCK TABLE idem_generation_1;
	DO $$
	BEGIN
		FOR i IN 1..200 LOOP	-- or it may not even wait
			EXIT WHEN EXISTS (SELECT FROM pg_locks
							  WHERE relation = 'idem_generation_1'::regclass
								AND NOT granted);
			PERFORM pg_sleep(0.01);
		END LOOP;
		SET LOCAL lock_timeout = '800ms';	-- a deadlock is looked for after 1s
		LOCK TABLE idem_ring;
	END
	$$;
	COMMIT});
pass('a worker gives way to who takes locks in another order');
IdemTest::poll($node, 'SELECT NOT previous_sealed FROM idem_ring');
pass('and works on');

#
# A database that is read-only by default
#
$node->safe_psql('postgres',
	'ALTER DATABASE postgres SET default_transaction_read_only = on');
wait_for_visits($node, $worker, 1);
my $counted_at = $node->safe_psql('postgres', 'SELECT counted_at FROM idem_ring');
wait_for_visits($node, $worker, 1);
is($node->safe_psql('postgres', 'SELECT counted_at FROM idem_ring'),
	$counted_at, 'nothing is changed in a read-only database');
$session->query_safe(
	'ALTER DATABASE postgres RESET default_transaction_read_only');

#
# The tables' owner is not the server's
#
$node->safe_psql('postgres', q{
	CREATE ROLE tenant;
	CREATE TABLE who (name name);
	GRANT INSERT ON who TO tenant;
	CREATE FUNCTION note_who() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.who VALUES (current_user); RETURN NULL; END $$;
	CREATE TRIGGER note_who AFTER TRUNCATE ON idem_generation_1
		EXECUTE FUNCTION note_who();
	ALTER TABLE idem_consumer OWNER TO tenant;
	ALTER TABLE idem_ring OWNER TO tenant;
	ALTER TABLE idem_generation_1 OWNER TO tenant;
	ALTER TABLE idem_generation_2 OWNER TO tenant;
	ALTER TABLE idem_generation_3 OWNER TO tenant;
	UPDATE idem_ring SET current = 2, previous_sealed = true,
		previous_age = '30 days', sealed_at = now()});
IdemTest::poll($node, 'SELECT count(*) = 1 FROM who');
is($node->safe_psql('postgres', 'SELECT name FROM who'),
	'tenant', 'a trigger does not run with the rights of a superuser');

unlike(slurp_file($node->logfile),
	qr/ERROR:|PANIC:|TRAP:|idem_inbox worker .*fail.* in database "postgres"/,
	'no error in the log');

# Has the other database recovered?
$node->wait_for_log(qr/LOG:  $recovered/);
wait_for_visits($node, worker_of($node, 'old'), 1);
is(count_in_log($node, $recovered), 1, 'and so is the end of it');

$session->quit;
$node->stop;
done_testing();
