# Thousands of random calls, most of them wrong, in every state of a
# transaction, while waits are cancelled and the ring turns: no crash, no
# internal error, no wrong outcome.
#
# RANDOM_CALLS=100000 make check for more; RANDOM_SEED repeats the calls, if
# not their order among the sessions.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemRandomCalls;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $sessions = 4;
my $calls = $ENV{RANDOM_CALLS} || 10_000;
my $seed = $ENV{RANDOM_SEED} || time;
srand $seed;
note "RANDOM_SEED=$seed";

# Counters, too: so preloaded, but maintained by the procedure below alone.
my $node = IdemTest::new_node('random', preload => 1,
	init => { extra => [ '-E', 'UTF8' ] },
	conf => [ 'max_prepared_transactions = 10', 'log_statement = none',
		'idem_inbox.worker = off', 'idem_inbox.max_failing = 5',
		'idem_inbox.max_consumers = 3' ]);
IdemTest::create_keep_turning($node);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
SELECT idem_register('checked', retention => '10000 years');
CREATE TABLE journal (message_id text, change int);
CREATE TABLE cancelled (pid int, waited bool);
CREATE PROCEDURE keep_cancelling() LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		-- two steps, or the planner cancels before it looks whom
		WITH active AS MATERIALIZED (
			SELECT pid, wait_event_type IN ('Lock', 'Extension') AS waited FROM pg_stat_activity
			WHERE application_name = 'random' AND state = 'active'
		), victim AS MATERIALIZED (
			SELECT pid, waited FROM active
			WHERE random() < CASE WHEN waited THEN 0.2 ELSE 0.005 END
		)
		INSERT INTO cancelled SELECT pid, waited FROM victim WHERE pg_cancel_backend(pid);
		COMMIT;
		PERFORM pg_sleep(0.0005);
	END LOOP;
END
$$;
-- Messages of "other", which the journal does not tell of, held for a while each,
-- so that there is something to wait for.
CREATE PROCEDURE keep_holding() LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		PERFORM idem_forget('m-' || i, 'other') FROM generate_series(0, 7) i;
		COMMIT;
		PERFORM idem_claim('m-' || i, 'other', max_wait => '0') FROM generate_series(0, 7) i;
		PERFORM pg_sleep(0.02);
		ROLLBACK;
	END LOOP;
END
$$;
SELECT idem_maintain();
SQL

my $dsn = $node->connstr('postgres');
my @procedures = ('keep_turning(0.02)', 'keep_cancelling()', 'keep_holding()');
my (@runs, @helpers);

foreach my $i (1 .. $sessions)
{
	my $file = $node->basedir . "/session$i.sql";

	append_to_file($file,
		IdemRandomCalls::script($node, calls => $calls / $sessions, name => "p$i"));
	push @runs,
	  IPC::Run::start(
		[ 'psql', '-X', '-A', '-t', '-d', "$dsn application_name=random", '-f', $file ],
		'>', "$file.out", '2>', "$file.err");
}
push @helpers,
  IPC::Run::start([ 'psql', '-X', '-d', $dsn, '-c', "CALL $_" ],
	'>&', $node->basedir . "/$_.log")
  foreach @procedures;
$_->finish foreach @runs;
# a procedure that has ended by itself has failed
foreach my $i (0 .. $#procedures)
{
	ok($helpers[$i]->pumpable, "$procedures[$i] went on to the end")
	  or diag slurp_file($node->basedir . "/$procedures[$i].log");
}
$node->safe_psql('postgres',
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL keep_%'");
$_->finish foreach @helpers;

my %errors;
foreach my $i (1 .. $sessions)
{
	my $file = $node->basedir . "/session$i.sql";

	like(slurp_file("$file.out"), qr/^end of script$/m, "session $i lived to the end");
	$errors{$_}++ foreach slurp_file("$file.err") =~ /(?:ERROR|FATAL|PANIC): +(\w{5})$/mg;
}
note join ', ', map { "$_: $errors{$_}" } sort keys %errors;
is(join(' ', grep { /^(XX|58|08|57P)/ } sort keys %errors), '', 'no internal error');
cmp_ok($errors{$_} // 0, '>=', 5, "SQLSTATE $_ was met, $errors{$_} times")
  foreach '57014',    # cancelled
  '22023',            # a bad value
  '22004',            # NULL
  '25006',            # read-only
  '25P02',            # an aborted transaction
  '55000';            # the wrong state

my $cancelled = $node->safe_psql('postgres', 'SELECT count(*) FROM cancelled WHERE waited');
cmp_ok($cancelled, '>=', $calls / 1000, "$cancelled waits were cancelled");

is( $node->safe_psql('postgres', <<'SQL'), '', 'what was told came true');
SELECT message_id, told, there
FROM (SELECT message_id, sum(change) AS told FROM journal GROUP BY 1) j
FULL JOIN (SELECT message_id::text, count(*) AS there FROM idem_inbox WHERE consumer = 'checked' GROUP BY 1) i USING (message_id)
WHERE coalesce(told, 0) <> coalesce(there, 0) OR there > 1
SQL
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP|was terminated by signal/, 'no crash');
$node->command_ok(
	[ 'pg_amcheck', '--heapallindexed', '--parent-check', '-d', 'postgres', '-s', 'public' ],
	'pg_amcheck finds nothing');

$node->stop;
done_testing();
