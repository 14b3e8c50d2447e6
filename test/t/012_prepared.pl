# Prepared transactions hold their claims, across a restart and a crash too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main', conf => ['max_prepared_transactions = 5']);

is( $node->safe_psql(
		'postgres', q{
	SELECT idem_register('inventory.reserve');
	BEGIN;
	SELECT idem_claim('m-1', 'inventory.reserve');
	PREPARE TRANSACTION 'committed';
	SELECT idem_complete();
	BEGIN;
	SELECT idem_claim('m-2', 'inventory.reserve');
	SELECT idem_complete('"done"'::jsonb);
	SAVEPOINT s;
	SELECT idem_begin('m-3', 'inventory.reserve', lease => '1 hour');
	RELEASE SAVEPOINT s;
	SELECT idem_claim('m-1', 'new.consumer');
	PREPARE TRANSACTION 'rolled back';
	SELECT idem_complete();
}),
	join("\n", '', qw(claimed 0 claimed 1 claimed claimed 0)),
	'a prepared transaction takes its claims with it');

sub claims_are_held
{
	my ($when) = @_;

	is( $node->safe_psql(
			'postgres', q{
		SELECT idem_claim('m-1', 'inventory.reserve', max_wait => '0'),
			   idem_claim('m-2', 'inventory.reserve', max_wait => '0'),
			   idem_begin('m-3', 'inventory.reserve', max_wait => '0'),
			   idem_claim('m-1', 'new.consumer', max_wait => '0')}),
		'busy|busy|busy|busy', "claims are held $when");
	is($node->safe_psql('postgres', q{
		SELECT idem_seen('m-1', 'inventory.reserve'), count(*) FROM idem_inbox}),
		'f|0', "and not committed");
	return;
}

claims_are_held('after PREPARE TRANSACTION');
$node->restart;
claims_are_held('after a restart');
$node->stop('immediate');
$node->start;
claims_are_held('after a crash');

# Start a second copy of a message that waits for the prepared transaction.
sub start_second
{
	my ($message_id) = @_;
	my $second = $node->background_psql('postgres');

	$second->query_until(qr/started/,
		"\\echo started\nSELECT idem_claim('$message_id', 'inventory.reserve');\n"
	);
	IdemTest::poll(
		$node, qq{
		SELECT EXISTS (SELECT FROM pg_stat_activity
					   WHERE query LIKE 'SELECT idem_claim(''$message_id''%'
						 AND wait_event = 'transactionid')});
	return $second;
}

my $second = start_second('m-1');
$node->safe_psql('postgres', q{COMMIT PREPARED 'committed'});
is($second->query_safe(''), 'duplicate',
	'the prepared transaction commits: the second copy is a duplicate');
$second->quit;

$second = start_second('m-2');
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'rolled back'});
is($second->query_safe(''), 'claimed',
	'the prepared transaction rolls back: the second copy is claimed');
$second->quit;
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_begin('m-3', 'inventory.reserve'),
		   idem_claim('m-1', 'new.consumer')}),
	'claimed|claimed', 'and so is what else it held');

# Whoever commits it need not be whoever prepared it.
$node->safe_psql(
	'postgres', q{
	BEGIN;
	SELECT idem_begin('m-4', 'inventory.reserve', lease => '1 hour');
	PREPARE TRANSACTION 'phase one'});
$node->restart;
$node->safe_psql('postgres', q{COMMIT PREPARED 'phase one'});
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_claim('m-4', 'inventory.reserve');
	SELECT idem_complete('m-4', 'inventory.reserve', attempt => 1)}),
	"in_progress\nt", 'phase one through a prepared transaction');

# What must be completed, must be before it is prepared.
my ($ret, $out, $err) = $node->psql(
	'postgres', q{
	SET idem_inbox.require_complete = on;
	BEGIN;
	SELECT idem_claim('m-5', 'inventory.reserve');
	PREPARE TRANSACTION 'not completed'});
like($err, qr/transaction did not complete 1 claim/, 'not completed');
$node->safe_psql(
	'postgres', q{
	SET idem_inbox.require_complete = on;
	BEGIN;
	SELECT idem_claim('m-5', 'inventory.reserve');
	SELECT idem_complete();
	PREPARE TRANSACTION 'completed';
	COMMIT PREPARED 'completed'});
is( $node->safe_psql(
		'postgres', q{SELECT idem_claim('m-5', 'inventory.reserve')}),
	'duplicate', 'completed');

$node->stop;
done_testing();
