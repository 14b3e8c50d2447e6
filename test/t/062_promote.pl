# Fail-over in the middle of the load, with a synchronous standby: redelivered
# to the new primary, no message is processed twice, and none that was
# acknowledged to the broker is processed at all.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $messages = 4000;
my $clients = 3;

my $primary = IdemTest::new_node('primary',
	init => { allows_streaming => 1 },
	preload => 1,
	conf => ['idem_inbox.naptime = 1s']);
$primary->safe_psql('postgres', 
	"CREATE TABLE effect (message_id text,
		server text DEFAULT current_setting('cluster_name'))");
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$primary->reload;
IdemTest::poll($primary,
	"SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");

# A consumer: does the work of each message, then acknowledges it.
sub handle
{
	my ($message) = @_;
	return <<"SQL";
BEGIN;
WITH claim AS MATERIALIZED (SELECT idem_claim('$message', 'ledger') AS outcome)
INSERT INTO effect SELECT '$message' FROM claim WHERE outcome = 'claimed';
COMMIT;
\\echo ack $message
SQL
}

# Each message goes to two clients.
my @runs;
my @logs;
foreach my $client (0 .. $clients - 1)
{
	my $file = $primary->basedir . "/client-$client";

	append_to_file("$file.sql", join '',
		map { handle("m-$_") }
		grep { $_ % $clients != $client } 1 .. $messages);
	push @logs, "$file.log";
	push @runs,
	  IPC::Run::start(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null',
			'-d', $primary->connstr('postgres'), '-f', "$file.sql"
		],
		'>' => $logs[-1],
		'2>' => "$file.err");
}
IdemTest::poll($primary, 'SELECT count(*) > 300 FROM effect');
$primary->stop('immediate');
foreach my $run (@runs)
{
	eval { $run->finish };
}
$standby->promote;
IdemTest::poll($standby, 'SELECT NOT pg_is_in_recovery()');

my %acknowledged = map { $_ => 1 } join("\n", map { slurp_file($_) } @logs) =~ /^ack (\S+)$/mg;
my $done = keys %acknowledged;
cmp_ok($done, '>', 100, "$done messages were acknowledged");
cmp_ok($done, '<', $messages, 'but not all of them');

# The broker delivers everything once more, whether acknowledged or not.
$standby->safe_psql('postgres', join '', map { handle("m-$_") } 1 .. $messages);
is( $standby->safe_psql('postgres',
		'SELECT count(*), count(DISTINCT message_id) FROM effect'),
	"$messages|$messages", 'every message was processed once');
my %again = map { $_ => 1 } split /\n/, $standby->safe_psql('postgres',
	"SELECT message_id FROM effect WHERE server = 'standby'");
cmp_ok(scalar(keys %again), '>', 0, 'some were left to be processed');
is(join(' ', grep { $again{$_} } sort keys %acknowledged),
	'', 'none that was acknowledged was processed again');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM idem_inbox'),
	$messages, 'and each has its record');

$standby->stop;
done_testing();
