# Tables and functions with other columns than the library knows: of a later
# version, in a session from before ALTER EXTENSION UPDATE; of an earlier one,
# whose library was replaced; somebody's own.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main');
my @tables = qw(idem_consumer idem_ring idem_generation_1 idem_generation_2
  idem_generation_3 idem_quarantine idem_resolution);

# More of them than whatever lies behind an array on the stack forgives.
my $add = join ', ', map { "ADD COLUMN other_$_ text DEFAULT 'other ' || current_setting('server_version_num')" } 1 .. 50;
my $others = q{starts_with(other_1, 'other ') AND other_1 = other_50};

#
# A session that has met everything goes on
#
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $answers = q{
	SELECT idem_claim('m-1', 'c'), idem_claim('m-2', 'c', fingerprint => 'a'),
		   idem_claim('m-2', 'c', fingerprint => 'b'), idem_begin('t-1', 'c', lease => '0')};
is($session->query_safe($answers), 'claimed|claimed|mismatch|claimed', 'before');
$node->safe_psql('postgres', "ALTER TABLE $_ $add") foreach @tables;
$node->safe_psql('postgres', "UPDATE idem_quarantine SET other_2 = 'kept'");
is($session->query_safe($answers), 'duplicate|duplicate|mismatch|needs_reconciliation', 'what was there');
is( $session->query_safe(q{
		SELECT idem_claim('m-3', 'new'),
			   (SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'b-' || i FROM generate_series(1, 300) i), 'new')),
			   idem_complete('t-1', 'c', '{"done": 1}'), idem_result('t-1', 'c'),
			   idem_claim('m-2', 'c', fingerprint => 'd'), idem_resolve('m-2', 'c', 'dismiss')}),
	'claimed|300|t|{"done": 1}|mismatch|t', 'what is new');
$session->query_safe(q{
	SELECT idem_register('new', retention => '90 days');
	SELECT idem_begin('t-2', 'new', lease => '0')});
my @steps;
foreach (1 .. 4)
{
	$node->safe_psql('postgres',
		"UPDATE idem_ring SET current_age = '31 days', previous_age = '31 days'");
	push @steps, $session->query_safe('SELECT idem_maintain()');
}
is("@steps", 'nothing opened sealed moved', 'the ring turns');
is( $session->query_safe(q{
		SELECT (idem_status('b-1', 'new')).state, idem_claim('b-300', 'new'),
			   idem_claim('m-2', 'c', fingerprint => 'd'), idem_begin('t-2', 'new'),
			   (SELECT string_agg(message_id, ' ') FROM idem_takeover_next('new', 10)),
			   idem_abandon('t-2', 'new')}),
	'completed|duplicate|mismatch|needs_reconciliation|t-2|t', 'and moved what is kept longer');
$session->quit;

# What was written since has the defaults, and an update keeps what is there.
foreach my $table (@tables)
{
	is( $node->safe_psql('postgres', "SELECT count(*) > 0, bool_and($others) FROM $table"),
		't|t', "$table: the other columns are filled")
	  unless $table =~ /_[13]$/;
}
is($node->safe_psql('postgres', 'SELECT deliveries, other_2 FROM idem_quarantine ORDER BY 1 DESC LIMIT 1'),
	'2|kept', 'a row that was there is changed, and keeps the rest');

#
# What INSERT would not accept either, and what only INSERT could fill
#
foreach my $column (
	[ "ADD COLUMN strict text NOT NULL DEFAULT ''", undef, 'claimed' ],
	[ 'ALTER COLUMN strict DROP DEFAULT', qr/23502: null value in column "strict" of relation "idem_generation_2" violates not-null/ ],
	[ 'DROP COLUMN strict', undef, 'claimed' ],
	[ "ADD COLUMN sum int GENERATED ALWAYS AS (consumer_id + attempt) STORED",
		qr/0A000: cannot write to table "idem_generation_2" with the generated column "sum"/ ],
	[ 'DROP COLUMN sum', undef, 'claimed' ])
{
	my ($change, $error, $expected) = @$column;

	$node->safe_psql('postgres', "ALTER TABLE idem_generation_2 $change");
	my ($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT idem_claim('after $change', 'c')");
	if ($error)
	{
		like($err, $error, $change);
	}
	else
	{
		is($out, $expected, $change);
	}
}

#
# Columns that a later version of the library would have
#
$node->safe_psql('postgres', q{
	DROP EXTENSION idem_inbox;
	CREATE EXTENSION idem_inbox;
	ALTER TABLE idem_quarantine RENAME TO later_quarantine;
	ALTER TABLE later_quarantine RENAME CONSTRAINT idem_quarantine_pkey TO later_pkey;
	CREATE TABLE idem_quarantine (
		consumer_id int4, message_id idem_message_id, fingerprint bytea,
		known_fingerprint bytea, deliveries int8, first_at timestamptz,
		last_at timestamptz, delivered_to jsonb,
		CONSTRAINT idem_quarantine_pkey PRIMARY KEY (consumer_id, message_id, fingerprint))});
is( $node->safe_psql('postgres', q{
		SELECT idem_claim('m-1', 'c', fingerprint => 'a'), idem_claim('m-1', 'c', fingerprint => 'b'),
			   idem_claim('m-1', 'c', fingerprint => 'b'), idem_resolve('m-1', 'c', 'dismiss');
		SELECT deliveries FROM idem_quarantine}),
	"claimed|mismatch|mismatch|t\n2", 'a table of an earlier version');

#
# Functions that were created with another result
#
$node->safe_psql('postgres', q{
	SELECT idem_begin('t-1', 'c', lease => '0');
	DO $$
	DECLARE
		definition text;
	BEGIN
		FOR definition IN
			SELECT pg_get_functiondef(oid) FROM pg_proc
			WHERE proname IN ('idem_status', 'idem_claim_many', 'idem_takeover_next', 'idem_next_step')
		LOOP
			EXECUTE replace(replace(definition, E')\n RETURNS ', E', OUT more int)\n RETURNS '),
				'public.idem_', 'public.more_');
		END LOOP;
	END
	$$});
foreach my $call ("more_status('m-1', 'c')", "more_claim_many('{m-1}', 'c')",
	"more_takeover_next('c')", 'more_next_step()')
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT * FROM $call");
	like($err, qr/42804: the library and the SQL objects .* different versions/, $call);
}

$node->stop;
done_testing();
