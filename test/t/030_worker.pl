# The launcher and its workers turn the ring, take up new settings, and come
# back after whatever ended them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemWorkerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_worker_node(
	'worker',
	"idem_inbox.naptime = '1d'",
	'restart_after_crash = on');

my $launcher = "SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'idem_inbox launcher'";

# The launcher's pid, once there is another one than this.
sub launcher_after
{
	my ($pid) = @_;

	IdemTest::poll($node, "SELECT EXISTS ($launcher AND pid <> $pid)");
	return $node->safe_psql('postgres', $launcher);
}

# A maintenance run has begun and ended from now on.
sub wait_for_run
{
	my $now = $node->safe_psql('postgres', 'SELECT clock_timestamp()');

	IdemTest::poll($node, "SELECT counted_at > '$now' FROM idem_ring");
	return;
}

#
# It shows itself
#
my $pid = launcher_after(0);
is( $node->safe_psql(
		'postgres',
		"SELECT application_name, datname IS NULL, state, query
		 FROM pg_stat_activity WHERE pid = $pid"),
	'idem_inbox launcher|t|idle|waiting for idem_inbox.naptime to pass',
	'the launcher shows itself');

#
# SIGHUP
#
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem_ring'),
	'0', 'nothing is maintained before naptime has passed');
set_conf($node, 'idem_inbox.naptime', '1s');
IdemTest::poll($node, 'SELECT count(*) = 1 FROM idem_ring');
pass('a shorter naptime holds at once');

$node->safe_psql('postgres', "SELECT idem_claim('m-1', 'c')");
age($node, 'postgres');
IdemTest::poll($node, 'SELECT current = 2 AND previous_sealed FROM idem_ring');
is($node->safe_psql('postgres', "SELECT idem_seen('m-1', 'c')"),
	't', 'the ring turns, and the record is kept');

set_conf($node, 'idem_inbox.retention', '1s');
IdemTest::poll($node, "SELECT NOT idem_seen('m-1', 'c')");
pass('retention is taken up, and the record expires');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idem_inbox.retention');
$node->reload;

# One database's own retention.
$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql('app', 'CREATE EXTENSION idem_inbox');
$node->safe_psql('app', "ALTER DATABASE app SET idem_inbox.retention = '1s'");
$node->safe_psql($_, "SELECT idem_claim('m-2', 'c')") foreach qw(app postgres);
$node->poll_query_until('app', "SELECT NOT idem_seen('m-2', 'c')")
  or die 'timed out';
is($node->safe_psql('postgres', "SELECT idem_seen('m-2', 'c')"),
	't', 'retention of one database is not that of another');
$node->safe_psql('postgres', 'DROP DATABASE app');

# The launcher says that it is off, and changes that state at every round.
my $off = "$launcher AND query = 'idem_inbox.worker is off'";
set_conf($node, 'idem_inbox.worker', 'off');
IdemTest::poll($node, "SELECT EXISTS ($off)");
my $counted_at = $node->safe_psql('postgres', 'SELECT counted_at FROM idem_ring');
my $offset = -s $node->logfile;
my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
IdemTest::poll($node,
	"SELECT EXISTS ($off AND state_change > timestamptz '$since' + interval '1 s')");
is($node->safe_psql('postgres', 'SELECT counted_at FROM idem_ring'),
	$counted_at, 'nothing is maintained with idem_inbox.worker = off');
is(visits($node, qr/idem_inbox worker for database \d+/, $offset),
	0, 'and no worker is started');
set_conf($node, 'idem_inbox.worker', 'on');
wait_for_run();
pass('it goes on with idem_inbox.worker = on');

#
# Terminated
#
$offset = -s $node->logfile;
ok( $node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)"),
	'launcher terminated');
keep_busy($node, 'postgres');
$pid = launcher_after($pid);
wait_for_run();
pass('another launcher takes up');

IdemTest::poll($node,
	"SELECT count(pg_terminate_backend(pid)) > 0 FROM ("
	  . worker_in('postgres') . ") w WHERE application_name = '"
	  . worker_of($node, 'postgres') . "'");
$node->wait_for_log(
	qr/FATAL: .*terminating background worker "idem_inbox worker/, $offset);
IdemTest::poll($node, 'SELECT NOT previous_sealed FROM idem_ring');
is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM idem_inbox WHERE message_id::text LIKE 'unfinished-%'"),
	$busy_records, 'a worker is terminated, and another one moves on');
is($node->safe_psql('postgres', $launcher),
	$pid, 'which did not concern the launcher');
$node->wait_for_log(qr/worker no longer fails in database "postgres"/, $offset);

#
# Crashed
#
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $victim_pid = $victim->query_safe('SELECT pg_backend_pid()');
kill 'KILL', $victim_pid;
$pid = launcher_after($pid);
wait_for_run();
pass('it goes on after a crash restart');
eval { $victim->quit };

$node->stop('immediate');
$node->start;
$pid = launcher_after(0);
wait_for_run();
pass('it goes on after an immediate shutdown');

# A killed postmaster takes the launcher with it.  Nobody may be there to
# bury it, so a zombie is dead enough.
SKIP:
{
	my $alive = qr/^[^Z\s]/;
	skip 'no ps', 1 if qx(ps -o stat= -p $pid 2>&1) !~ $alive;

	$node->kill9;
	my $attempts = 10 * $PostgreSQL::Test::Utils::timeout_default;
	usleep(100_000)
	  while qx(ps -o stat= -p $pid) =~ $alive && $attempts-- > 0;
	cmp_ok($attempts, '>', 0, 'the launcher does not outlive the postmaster');
}

unlike(
	slurp_file($node->logfile),
	qr/ERROR:|PANIC:|TRAP:/,
	'no error in the log');
done_testing();
