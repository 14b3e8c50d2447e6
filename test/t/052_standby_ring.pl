# The ring turns on the primary, and a hot standby's answers follow; it holds
# up no turn itself; promoted in the middle of one, it goes on with it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Whoever is in the way of replay on the standby stops it, and this test, for
# good; and no other transactions than the test's make a step wait.
my $primary = IdemTest::new_node(
	'primary',
	init => { allows_streaming => 1 },
	conf => [ 'autovacuum = off', 'max_standby_streaming_delay = -1' ]);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my $node = $primary;

sub fill
{
	my ($batch) = @_;

	$node->safe_psql(
		'postgres', qq{
		SELECT idem_claim('$batch plain', 'inventory.reserve');
		SELECT idem_begin('$batch half', 'inventory.reserve');
		SELECT idem_begin('$batch done', 'inventory.reserve');
		SELECT idem_complete('$batch done', 'inventory.reserve', '"$batch"')});
	return;
}

sub step
{
	my ($expected) = @_;

	is( $node->safe_psql(
			'postgres', q{
		UPDATE idem_ring
		SET current_age = '100 years',
			previous_age = CASE WHEN previous_sealed THEN '100 years'::interval
								ELSE '0' END;
		SELECT idem_maintain()}), $expected, "maintenance: $expected");
	return;
}

# What a session on the standby, which is there all the time, is told.
my $session = $standby->background_psql('postgres');

sub standby_says
{
	my ($when, %expected) = @_;

	$primary->wait_for_catchup($standby);
	foreach my $batch (sort keys %expected)
	{
		is( $session->query_safe(qq{
			SELECT idem_seen('$batch plain', 'inventory.reserve'),
				   (SELECT state
					FROM idem_status('$batch half', 'inventory.reserve')),
				   idem_result('$batch done', 'inventory.reserve')}),
			$expected{$batch}, "$when: $batch");
	}
	is( $session->query_safe(q{
		SELECT "table", role, next_step FROM idem_generation ORDER BY role}),
		$primary->safe_psql('postgres', q{
		SELECT "table", role, next_step FROM idem_generation ORDER BY role}),
		"$when: the ring");
	is( $session->query_safe(q{
		SELECT message_id, reason, resolve FROM idem_attention ORDER BY 1}),
		$primary->safe_psql('postgres', q{
		SELECT message_id, reason, resolve FROM idem_attention ORDER BY 1}),
		"$when: what needs attention");
	return;
}

fill('first');
standby_says('at the beginning', first => 't|needs_reconciliation|"first"');

foreach my $call (
	q{idem_extend('first half', 'inventory.reserve', '1 hour')},
	q{idem_takeover('first half', 'inventory.reserve')},
	q{idem_abandon('first half', 'inventory.reserve')},
	q{idem_resolve('first half', 'inventory.reserve', 'complete')},
	q{idem_maintain()})
{
	my ($rc, $stdout, $stderr) = $standby->psql('postgres', "SELECT $call",
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	like($stderr, qr/ERROR:\s+25006$/, "$call is refused");
}

is($primary->safe_psql('postgres', 'SELECT idem_maintain()'),
	'nothing', 'maintenance: nothing');
step('opened');
fill('second');
my %known = (
	first => 't|needs_reconciliation|"first"',
	second => 't|needs_reconciliation|"second"');
standby_says('next is open', %known);
step('sealed');
standby_says('the first is sealed', %known);

# Somebody who looks for long.  A transaction that kept the generation locked
# would stop replay at its TRUNCATE.
my $looker = $standby->background_psql('postgres');
is( $looker->query_safe(q{
	BEGIN ISOLATION LEVEL REPEATABLE READ;
	SELECT idem_seen('first plain', 'inventory.reserve'),
		   state, idem_result('first done', 'inventory.reserve')
	FROM idem_status('first half', 'inventory.reserve')}),
	't|needs_reconciliation|"first"', 'somebody looks');
step('moved');
standby_says('survivors have been moved', %known);
step('emptied');
$known{first} = 'f|needs_reconciliation|';
standby_says('the first is emptied', %known);
is( $looker->query_safe(
		q{SELECT idem_seen('second plain', 'inventory.reserve'); COMMIT}),
	't', 'and was in nobody\'s way');
$looker->quit;

# Another turn, which the primary does not survive.
step('opened');
fill('third');
$known{third} = 't|needs_reconciliation|"third"';
standby_says('the last step of the primary', %known);
my $claimer = $primary->background_psql('postgres');
$claimer->query_safe(q{
	BEGIN;
	SELECT idem_claim('lost', 'inventory.reserve')});
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$claimer->{run}->finish;
$standby->promote;
$node = $standby;

# The session was there before; its claims go by the view that it has now.
is( $session->query_safe(q{
	SELECT idem_claim(b || ' plain', 'inventory.reserve'),
		   idem_begin(b || ' half', 'inventory.reserve'),
		   idem_begin(b || ' done', 'inventory.reserve')
	FROM unnest('{second,third}'::text[]) b}),
	join("\n", ('duplicate|needs_reconciliation|duplicate') x 2),
	'after promotion: what was claimed is known');
is( $session->query_safe(q{
	SELECT idem_claim('lost', 'inventory.reserve'),
		   idem_claim('fourth', 'inventory.reserve'),
		   idem_begin('first half', 'inventory.reserve')}),
	'claimed|claimed|needs_reconciliation',
	'after promotion: what was not committed can be claimed');
step('sealed');
step('moved');
step('emptied');
is( $session->query_safe(q{
	SELECT idem_begin(b || ' half', 'inventory.reserve')
	FROM unnest('{first,second,third}'::text[]) b}),
	join("\n", ('needs_reconciliation') x 3), 'the unfinished ones survive');
is( $session->query_safe(q{
	SELECT idem_claim('second plain', 'inventory.reserve'),
		   idem_claim('third plain', 'inventory.reserve'),
		   idem_claim('lost', 'inventory.reserve'),
		   idem_claim('fourth', 'inventory.reserve')}),
	'claimed|duplicate|duplicate|duplicate',
	'the ring has turned to the end on the new primary');
$session->quit;

$standby->stop;
done_testing();
