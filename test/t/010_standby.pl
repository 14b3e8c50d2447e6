# A hot standby: whoever looks may look, whoever claims is refused; after
# promotion the standby goes on where the primary was.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = IdemTest::new_node('primary', init => { allows_streaming => 1 });

$primary->safe_psql(
	'postgres', q{
	SELECT idem_claim('m-1', 'inventory.reserve');
	SELECT idem_begin('m-2', 'inventory.reserve', '\x01', lease => '1 hour');
	SELECT idem_begin('m-3', 'inventory.reserve');
	SELECT idem_complete('m-3', 'inventory.reserve', '{"sent": true}');
});

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

# Refused, also where there would be nothing to write.
foreach my $call (
	q{idem_claim('m-1', 'inventory.reserve')},
	q{idem_claim('m-9', 'inventory.reserve')},
	q{idem_claim('m-9', 'nobody', max_wait => '0')},
	q{idem_begin('m-1', 'inventory.reserve')},
	q{idem_begin('m-9', 'inventory.reserve')},
	q{idem_complete('m-2', 'inventory.reserve')},
	q{idem_complete('m-9', 'inventory.reserve')},
	q{idem_complete()},
	q{idem_forget('m-1', 'inventory.reserve')},
	q{idem_register('inventory.reserve')},
	q{idem_register('nobody')})
{
	my ($rc, $stdout, $stderr) = $standby->psql('postgres', "SELECT $call",
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	like($stderr, qr/ERROR:\s+25006$/, "$call is refused");
}

# Looking is not.
is( $standby->safe_psql(
		'postgres', q{
	SELECT idem_seen(m, 'inventory.reserve')
	FROM unnest('{m-1,m-2,m-3,m-9}'::text[]) m}),
	"t\nf\nt\nf", 'idem_seen answers');
is($standby->safe_psql('postgres', q{SELECT idem_seen('m-1', 'nobody')}),
	'f', 'idem_seen answers for an unknown consumer');
is( $standby->safe_psql(
		'postgres', q{
	SELECT m, state, attempt, fingerprint, result
	FROM unnest('{m-1,m-2,m-3,m-9}'::text[]) m,
		 idem_status(m, 'inventory.reserve')}),
	join("\n",
		'm-1|completed|||',
		'm-2|in_progress|1|\x01|',
		'm-3|completed|1||{"sent": true}'),
	'idem_status answers');
is( $standby->safe_psql(
		'postgres', q{SELECT message_id, state FROM idem_inbox ORDER BY 1}),
	"m-1|completed\nm-2|in_progress\nm-3|completed",
	'the view shows every record');

# What a session on the standby remembers follows the primary.
my $session = $standby->background_psql('postgres');
is($session->query_safe(q{SELECT idem_seen('m-1', 'inventory.reserve')}),
	't', 'a session on the standby knows the consumer');
$primary->safe_psql('postgres',
	q{UPDATE idem_consumer SET name = 'stock.reserve'});
$primary->wait_for_catchup($standby);
is($session->query_safe(q{SELECT idem_seen('m-1', 'inventory.reserve')}),
	'f', 'the consumer has another name on the primary');
is($session->query_safe(q{SELECT idem_seen('m-1', 'stock.reserve')}),
	't', 'and so it has on the standby');
$primary->safe_psql('postgres', q{SELECT idem_claim('m-4', 'stock.reserve')});
$primary->wait_for_catchup($standby);
is($session->query_safe(q{SELECT idem_seen('m-4', 'stock.reserve')}),
	't', 'a record that came later is seen');

# A claim that has not committed on the primary is not there on the standby.
my $claimer = $primary->background_psql('postgres');
$claimer->query_safe(q{BEGIN; SELECT idem_claim('m-5', 'stock.reserve')});
$primary->wait_for_catchup($standby);
is($session->query_safe(q{SELECT idem_seen('m-5', 'stock.reserve')}),
	'f', 'an uncommitted claim is not seen');

# The primary dies and the standby takes over.
$primary->stop('immediate');
$claimer->{run}->finish;
$standby->promote;
is( $session->query_safe(
		q{SELECT idem_claim(m, 'stock.reserve')
		  FROM unnest('{m-1,m-2,m-3,m-4,m-5}'::text[]) m}),
	"duplicate\nin_progress\nduplicate\nduplicate\nclaimed",
	'after promotion, in a session from before it');
is( $standby->safe_psql(
		'postgres', q{
	SELECT idem_claim('m-1', 'mail.confirm');
	SELECT count(*), count(DISTINCT consumer_id) FROM idem_consumer}),
	"claimed\n2|2", 'a new consumer gets a number of its own');
$session->quit;

$standby->stop;
done_testing();
