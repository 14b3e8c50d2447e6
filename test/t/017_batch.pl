# Batches that overlap, in opposite orders: no deadlock.  A large batch in
# bounded memory.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	conf => [
		'fsync = off', 'synchronous_commit = off', 'deadlock_timeout = 5ms'
	]);
$node->safe_psql(
	'postgres', q{
	SELECT idem_register('orders');
	CREATE TABLE plain (message_id text PRIMARY KEY)});

# The clock makes two clients meet: in each two hundredth of a second both
# take the same fifty new ids, one from the first to the last, the other from
# the last to the first.
my $ids = q{
	SELECT :m || '-' || i FROM generate_series(10, 59) i
	ORDER BY i * (1 - 2 * :client_id)};

# Whether the statement has met a deadlock within so many seconds.
sub deadlocks
{
	my ($name, $statement, $seconds) = @_;
	my $script = $node->basedir . "/$name.pgbench";

	PostgreSQL::Test::Utils::append_to_file($script, <<"SQL");
SELECT (extract(epoch FROM clock_timestamp()) * 200)::bigint AS m \\gset
$statement;
SQL
	my ($out, $err) = run_command(
		[
			'pgbench', '-n', '-c', '2', '-j', '2', '-T', $seconds,
			'--failures-detailed', '-f', $script,
			'-h', $node->host, '-p', $node->port, 'postgres'
		]);
	my ($count) = $out =~ /^number of deadlock failures: (\d+)/m;
	return $count;
}

my $tries = 0;
my $theirs = 0;
while ($theirs == 0 && $tries++ < 20)
{
	$theirs = deadlocks('plain',
		"INSERT INTO plain $ids ON CONFLICT DO NOTHING", 3);
}
cmp_ok($theirs, '>', 0,
	'INSERT ... SELECT ... ON CONFLICT DO NOTHING meets deadlocks');
is( deadlocks('claims',
		"SELECT count(*) FROM idem_claim_many(ARRAY($ids), 'orders')",
		4 * $tries),
	'0', 'idem_claim_many() does not');
cmp_ok(
	$node->safe_psql('postgres',
		q{SELECT count(DISTINCT split_part(message_id::text, '-', 1)) FROM idem_inbox}
	),
	'>=', 200, 'in two hundred rounds and more');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM idem_inbox GROUP BY split_part(message_id::text, '-', 1)
		  HAVING count(*) <> 50 LIMIT 1}),
	'', 'of fifty messages each');

# 100,000 ids within 64 MB more of data than the session has already; an
# allocation beyond that fails.
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(
	q{SELECT count(*) FROM idem_claim_many(ARRAY['w-1', 'w-2', 'w-3'], 'orders')});
my $pid = $session->query_safe('SELECT pg_backend_pid()');
my ($data) = slurp_file("/proc/$pid/status") =~ /^VmData:\s*(\d+) kB/m;
my $limit = ($data + 64 * 1024) * 1024;
command_ok([ 'prlimit', "--pid=$pid", "--data=$limit:$limit" ], '64 MB more');
is( $session->query_safe(
		q{SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'order-' || gen_random_uuid()
													 FROM generate_series(1, 100000)), 'orders')
		  WHERE outcome = 'claimed'}),
	'100000', '100,000 ids in one call');
$session->query(q{SELECT length(repeat('x', 80 * 1024 * 1024))});
like($session->{stderr}, qr/out of memory/, 'the limit holds');
$session->quit;

$node->stop;
done_testing();
