# Maintenance without the worker: idem_maintain() as a job of pg_cron, for
# servers that cannot preload idem_inbox.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $sharedir = `pg_config --sharedir`);
if (!-e "$sharedir/extension/pg_cron.control")
{
	diag('pg_cron is missing, maintenance by it is NOT checked');
	plan skip_all => 'pg_cron is missing, maintenance by it is NOT checked';
}

my $node = IdemTest::new_node(
	'main',
	extension => 0,
	conf => [
		q{shared_preload_libraries = 'pg_cron'},
		q{cron.database_name = 'postgres'},
		'cron.use_background_workers = on',
		'max_worker_processes = 20',
		# as often as the job runs
		q{idem_inbox.naptime = '1 min'},
		# its transactions would make steps wait
		'autovacuum = off'
	]);

# As little as the job needs.
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION pg_cron;
	CREATE ROLE janitor LOGIN;
	CREATE DATABASE shop});
$node->safe_psql(
	'shop', q{
	CREATE EXTENSION idem_inbox;
	GRANT EXECUTE ON FUNCTION idem_maintain() TO janitor;
	CREATE TABLE step (id int GENERATED ALWAYS AS IDENTITY, done text);
	GRANT INSERT ON step TO janitor});

# One database for each step that a job has to take, a template of the next.
sub keep_database
{
	my ($name) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $name TEMPLATE shop");
	return;
}

sub maintain
{
	my ($database, $expected) = @_;

	is($node->safe_psql($database, 'SELECT idem_maintain()'),
		$expected, "$database, by hand: $expected");
	return;
}

# Let the time pass that a generation is kept.
sub age
{
	my ($database, $which) = @_;

	$node->safe_psql($database,
		"UPDATE idem_ring SET ${which}_age = '100 years'");
	return;
}

$node->safe_psql(
	'shop', q{
	SELECT idem_claim('m-1', 'inventory.reserve');
	SELECT idem_begin('m-2', 'mail.confirm')});
maintain('shop', 'nothing');
# The server was down for an hour.
$node->safe_psql(
	'shop', q{
	UPDATE idem_ring SET counted_at = counted_at - interval '1 hour',
						 current_age = '0', skipped = '0'});
keep_database('counted');
keep_database('batches');
age('shop', 'current');
keep_database('opened');
maintain('shop', 'opened');
keep_database('sealed');
maintain('shop', 'sealed');
age('shop', 'previous');
keep_database('moved');
maintain('shop', 'moved');
keep_database('emptied');

# One with more survivors than a step moves.
$node->safe_psql(
	'batches', q{
	SELECT count(idem_begin('many-' || i, 'mail.confirm'))
	FROM generate_series(1, 2500) i});
age('batches', 'current');
maintain('batches', 'opened');
maintain('batches', 'sealed');
age('batches', 'previous');

# Jobs that start at once are open transactions to each other.  A step that has
# to wait for transactions waits now already, for one that will have ended.
my $blocker = $node->background_psql('postgres');
$blocker->query_safe('BEGIN; SELECT pg_current_xact_id()');
maintain($_, 'waiting') foreach qw(sealed moved batches);
$blocker->query_safe('COMMIT');
$blocker->quit;

my @databases = qw(counted opened sealed moved emptied);
$node->safe_psql(
	'postgres', qq{
	SELECT cron.schedule_in_database('idem_inbox in $_', '* * * * *',
		'INSERT INTO step (done) SELECT idem_maintain()', '$_', 'janitor')
}) foreach @databases;

# A job may also take many steps, each in a transaction of its own.
$node->safe_psql(
	'postgres', q{
	SELECT cron.schedule_in_database('idem_inbox in batches', '* * * * *', $job$
		DO $$
		BEGIN
			FOR i IN 1 .. 10 LOOP
				INSERT INTO step (done) SELECT idem_maintain();
				COMMIT;
			END LOOP;
		END $$
	$job$, 'batches', 'janitor')});

# A job starts within a minute; a second round does no harm.
IdemTest::poll(
	$node, q{
	SELECT count(*) = (SELECT count(*) FROM cron.job)
	FROM (SELECT DISTINCT jobid FROM cron.job_run_details
		  WHERE status IN ('succeeded', 'failed')) done});
is( $node->safe_psql(
		'postgres', q{
	SELECT DISTINCT status, username FROM cron.job_run_details
	WHERE status NOT IN ('starting', 'running')}),
	'succeeded|janitor', 'the jobs succeeded');

sub first_step
{
	my ($database) = @_;

	return $node->safe_psql($database,
		q{SELECT done FROM step WHERE done <> 'waiting' ORDER BY id LIMIT 1});
}

is(first_step('counted'), 'nothing', 'a job finds nothing to do');
is( $node->safe_psql(
		'counted', q{
	SELECT current_age BETWEEN '10 min' AND '15 min',
		   skipped BETWEEN '50 min' AND '55 min'
	FROM idem_ring}),
	't|t', 'it counted ten naptimes of an hour');

# A generation is emptied once older snapshots are gone, those of the other
# jobs included; then it takes another round.
$node->poll_query_until($_->[0],
	"SELECT EXISTS (SELECT FROM step WHERE done = '$_->[1]')")
  or die "no step $_->[1] in $_->[0]"
  foreach [ 'emptied', 'emptied' ], [ 'batches', 'nothing' ];

is(first_step($_), $_, "a job has it $_") foreach qw(opened sealed moved emptied);

is( $node->safe_psql(
		'batches', q{SELECT done FROM step WHERE done <> 'waiting' ORDER BY id LIMIT 5}),
	join("\n", qw(moved moved moved emptied nothing)),
	'a job moves many survivors');

is( $node->safe_psql(
		'emptied', q{
	SELECT idem_claim('m-1', 'inventory.reserve'),
		   idem_begin('m-2', 'mail.confirm')}),
	'claimed|needs_reconciliation',
	'after the turn, the record has expired and the unfinished one survived');

$node->stop;
done_testing();
