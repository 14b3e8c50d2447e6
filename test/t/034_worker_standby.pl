# Maintenance is the primary's: a standby has no launcher until it is promoted.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemWorkerTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = IdemTest::new_node('primary',
	preload => 1,
	init => { allows_streaming => 1 },
	conf => [ "idem_inbox.naptime = '1s'" ]);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

# A commit does not wait for a standby that is not there: it would keep its
# locks.
$primary->safe_psql('postgres', "SELECT idem_claim('m-1', 'c')");
set_conf($primary, 'synchronous_standby_names', 'absent');
age($primary, 'postgres');
IdemTest::poll($primary, 'SELECT current = 2 AND previous_sealed FROM idem_ring');
pass('the ring turns while a synchronous standby is missing');
set_conf($primary, 'synchronous_standby_names', '');

$primary->wait_for_catchup($standby);
is( $standby->safe_psql('postgres', "
		SELECT idem_seen('m-1', 'c'), current, (
			SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem_inbox%')
		FROM idem_ring"),
	't|2|0', 'a standby follows, without a launcher');

$primary->stop;
$standby->promote;
age($standby, 'postgres');
IdemTest::poll($standby, "SELECT NOT idem_seen('m-1', 'c')");
pass('maintenance goes on after promotion');
is( $standby->safe_psql('postgres', "
		SELECT count(*) FROM pg_stat_activity
		WHERE backend_type = 'idem_inbox launcher'"),
	'1', 'by a launcher of its own');

$standby->stop;
unlike(slurp_file($_->logfile),
	qr/ERROR:|PANIC:|TRAP:|idem_inbox worker .*fail/, 'no error in the log')
  foreach $primary, $standby;
done_testing();
