# A bounded wait is no lock that somebody waits for: it polls, and shows that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use Test::More;

my $node = IdemTest::new_node('main', preload => 1);
my $named = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;

# PostgreSQL has names for such waits from 17 on.
my $event = $named ? 'IdemInboxClaim' : 'Extension';
my $holder = $node->background_psql('postgres');
my $waiter = $node->background_psql('postgres');
$holder->query_safe(q{BEGIN; SELECT idem_claim('m-1', 'orders')});
$waiter->query_until(qr/waiting/, <<'SQL');
SET application_name = 'waiter';
\echo waiting
SELECT idem_claim('m-1', 'orders', max_wait => '1 hour');
SQL
IdemTest::poll($node, qq{
	SELECT wait_event_type || wait_event = 'Extension$event'
	FROM pg_stat_activity WHERE application_name = 'waiter'});
pass("a bounded wait shows as $event");
is( $node->safe_psql('postgres', q{
		SELECT pg_blocking_pids(pid) FROM pg_stat_activity
		WHERE application_name = 'waiter'}),
	'{}', 'and queues for no lock');
$holder->query_safe('COMMIT');
like($waiter->query_safe('SELECT 1'), qr/^duplicate$/m, 'it ends');
$holder->quit;
$waiter->quit;

$event = $named ? 'IdemInboxLauncher' : 'Extension';
IdemTest::poll($node, qq{
	SELECT wait_event_type || wait_event = 'Extension$event'
		   AND query = 'waiting for idem_inbox.naptime to pass'
	FROM pg_stat_activity WHERE backend_type = 'idem_inbox launcher'});
pass("the launcher's nap shows as $event");

$node->stop;
done_testing();
