# No slot for a worker, and no worker at all: what else there is works.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemWorkerTest;
use PostgreSQL::Test::Utils;
use Test::More;

#
# A slot for the launcher, and one that somebody else takes
#
my $node = new_worker_node(
	'slots',
	"idem_inbox.naptime = '1d'",
	'max_worker_processes = 2',
	'max_logical_replication_workers = 0');

my $parallel = $node->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_until(qr/started/, qq{
	SET $parallel = on;
	\\echo started
	SELECT pg_sleep(600);
});
IdemTest::poll($node,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'parallel worker'");

my $offset = -s $node->logfile;
set_conf($node, 'idem_inbox.naptime', '1s');
$node->wait_for_log(
	qr/LOG:  idem_inbox launcher is out of background worker slots.*HINT:  [^\n]*max_worker_processes/s,
	$offset);
my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
IdemTest::poll($node, "
	SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type = 'idem_inbox launcher'
	  AND state_change > timestamptz '$since' + interval '2 s'");
is(count_in_log($node, qr/out of background worker slots/, $offset),
	1, 'a lack of slots is logged once');

$node->safe_psql('postgres', "
	SELECT pg_cancel_backend(pid) FROM pg_stat_activity
	WHERE query LIKE '%pg_sleep%' AND backend_type = 'client backend'
	  AND pid <> pg_backend_pid()");
$node->wait_for_log(qr/LOG:  idem_inbox launcher finds background worker slots again/,
	$offset);
wait_for_visits($node, worker_of($node, 'postgres'), 1);
pass('and the work goes on when there is one');
$session->quit;

#
# Not even one for the launcher
#
$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
is( $node->safe_psql('postgres', "SELECT idem_claim('m-1', 'c')"),
	'claimed', 'the server starts without any worker');

#
# Not preloaded
#
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is( $node->safe_psql('postgres', "
		SELECT idem_claim('m-2', 'c'); SELECT idem_claim('m-2', 'c');
		SHOW idem_inbox.worker; SELECT count(*) FROM pg_stat_activity
		WHERE backend_type LIKE 'idem_inbox%'"),
	"claimed\nduplicate\non\n0", 'without preloading all but the worker is there');
age($node, 'postgres');
is($node->safe_psql('postgres', 'SELECT idem_maintain()'),
	'opened', 'and the ring is turned by hand');

$node->stop;
done_testing();
