# Crashes at random moments, under load and while the ring turns: a claiming
# backend is killed, the postmaster is killed, the server is stopped at once.
# After each, the inbox and the work agree for every message, and nothing is
# broken on disk.
#
# CRASH_ROUNDS=50 make check for more of them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rounds = $ENV{CRASH_ROUNDS} || 6;
my $seed = $ENV{CRASH_SEED} || time;
srand $seed;
note "CRASH_SEED=$seed";

my $node = IdemTest::new_node('crash',
	conf => [ 'restart_after_crash = on', 'checkpoint_timeout = 30s',
		'log_statement = none' ]);

# The records are kept for ever, so each turn of the ring moves all of them.
IdemTest::create_keep_turning($node);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
SELECT idem_register('ledger', retention => '1000 years');
CREATE TABLE effect (message_id text);
SELECT idem_maintain();
SQL

my %scripts = (
	claim => <<'SQL',
\set m random(1, 5000)
WITH claim AS MATERIALIZED (SELECT idem_claim('m-' || :round || '-' || :m, 'ledger') AS outcome)
INSERT INTO effect SELECT 'm-' || :round || '-' || :m FROM claim WHERE outcome = 'claimed';
SQL
	batch => <<'SQL',
\set m random(1, 4900)
BEGIN;
INSERT INTO effect SELECT message_id
FROM idem_claim_many(ARRAY(SELECT 'm-' || :round || '-' || i FROM generate_series(:m, :m + 20) i), 'ledger')
WHERE outcome = 'claimed';
COMMIT;
SQL
	two_phase => <<'SQL');
\set m random(1, 5000)
SELECT idem_begin('t-' || :round || '-' || :m, 'ledger');
BEGIN;
WITH complete AS MATERIALIZED
	 (SELECT idem_complete('t-' || :round || '-' || :m, 'ledger') AS changed)
INSERT INTO effect SELECT 't-' || :round || '-' || :m FROM complete WHERE changed;
COMMIT;
SQL
my @files;
foreach my $name (sort keys %scripts)
{
	push @files, '-f', $node->basedir . "/$name.pgbench";
	append_to_file($files[-1], $scripts{$name});
}

# Load with messages of this round's own.
sub start_load
{
	my ($round) = @_;
	my @runs;
	my $dsn = $node->connstr('postgres');

	foreach my $command (
		[ 'pgbench', '-n', '-c', '4', '-j', '2', '-T', '600',
			'-D', "round=$round", @files,
			"$dsn application_name=pgbench" ],
		[ 'psql', '-X', '-q', '-d', $dsn, '-c', 'CALL keep_turning(0.005)' ])
	{
		push @runs,
		  IPC::Run::start($command, '>&', $node->basedir . "/$command->[0].log");
	}
	return @runs;
}

# Wait until the server answers again.
sub wait_until_up
{
	foreach (1 .. 600)
	{
		return if $node->psql('postgres', 'SELECT 1') == 0;
		usleep(100_000);
	}
	die 'the server does not come back';
}

my %ways = (
	'a backend is killed' => sub {
		my $pid = $node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench' ORDER BY random() LIMIT 1");
		kill 'KILL', $pid;
	},
	'the postmaster is killed' => sub {
		$node->kill9;
		# its children hold the shared memory for a moment
		usleep(10_000)
		  while grep { (readlink "$_/cwd" // '') eq $node->data_dir } glob '/proc/[0-9]*';
		# it may be a zombie for long, which a new one takes for a rival
		unlink $node->data_dir . '/postmaster.pid',
		  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
		$node->start;
	},
	'the server is stopped at once' => sub {
		$node->stop('immediate');
		$node->start;
	});

foreach my $round (1 .. $rounds)
{
	my $way = (sort keys %ways)[ int(rand(keys %ways)) ];
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM effect');
	my @load = start_load($round);

	# at a random moment after something has happened
	$node->poll_query_until('postgres', "SELECT count(*) > $before FROM effect");
	usleep(rand(500_000));
	$ways{$way}->();
	foreach my $run (@load)
	{
		$run->finish;
	}
	wait_until_up();

	is( $node->safe_psql('postgres', <<'SQL'), '', "round $round, $way: inbox and work agree");
SELECT message_id, worked, completed, records
FROM (SELECT message_id, count(*) AS worked FROM effect GROUP BY 1) e
FULL JOIN (SELECT message_id::text, count(*) AS records,
				  count(*) FILTER (WHERE state = 'completed') AS completed
		   FROM idem_inbox GROUP BY 1) i USING (message_id)
WHERE coalesce(worked, 0) <> coalesce(completed, 0) OR worked > 1 OR records > 1
LIMIT 10
SQL
}
is( $node->safe_psql('postgres',
		"SELECT DISTINCT idem_claim(message_id, 'ledger') FROM effect"),
	'duplicate', 'redelivered, everything is a duplicate');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'>', 100, 'there was work');
$node->command_ok(
	[
		'pg_amcheck', '--heapallindexed', '--parent-check',
		'-d', 'postgres', '-s', 'public'
	],
	'pg_amcheck finds nothing');

$node->stop;
done_testing();
