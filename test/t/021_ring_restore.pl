# A dump taken after any step of the ring, restored beside the original in the
# same cluster: the copy's ring goes on from there, through a whole turn, with
# the outcomes of the original. (To other clusters: 051_dump.pl.)

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main', conf => ['autovacuum = off']);
my $dump = $node->basedir . '/dump.sql';

my @turn = qw(opened sealed moved emptied);

# Take the next step in a database.
sub turn
{
	my ($database) = @_;

	return $node->safe_psql($database, q{
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		SELECT idem_maintain()});
}

# All outcomes, without changing anything.
sub outcomes
{
	my ($database) = @_;

	return $node->safe_psql($database, q{
		BEGIN;
		SELECT id, idem_claim(id, 'ledger.book')
		FROM (SELECT message_id::text FROM idem_generation_1
			  UNION SELECT message_id::text FROM idem_generation_2
			  UNION SELECT message_id::text FROM idem_generation_3
			  UNION VALUES ('unknown')) delivery(id)
		ORDER BY id COLLATE "C";
		ROLLBACK});
}

$node->safe_psql('postgres', 'SELECT idem_maintain()');
foreach my $i (0 .. $#turn)
{
	$node->safe_psql(
		'postgres', qq{
		SELECT idem_claim('done before $turn[$i]', 'ledger.book');
		SELECT idem_begin('begun before $turn[$i]', 'ledger.book')});
	is(turn('postgres'), $turn[$i], $turn[$i]);
	$node->safe_psql(
		'postgres', qq{
		SELECT idem_claim('done after $turn[$i]', 'ledger.book');
		SELECT idem_begin('begun after $turn[$i]', 'ledger.book');
		SELECT idem_claim('forgotten after $turn[$i]', 'ledger.book');
		SELECT idem_forget('forgotten after $turn[$i]', 'ledger.book')});

	$node->command_ok([ 'pg_dump', '-d', 'postgres', '-f', $dump ],
		"$turn[$i]: dumped");
	$node->safe_psql('postgres', 'CREATE DATABASE copy');
	$node->command_ok(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', 'copy', '-f', $dump ],
		"$turn[$i]: restored");
	my $before = outcomes('postgres');
	is(outcomes('copy'), $before, "$turn[$i]: the outcomes of the original");

	# the copy turns on by itself; what is in progress stays for good
	my @steps = map { turn('copy') } 1 .. 8;
	is( $steps[0],
		$turn[ ($i + 1) % @turn ],
		"$turn[$i]: the step that comes next");
	is(scalar(grep { $_ eq 'emptied' } @steps), 2, "$turn[$i]: two turns")
	  or diag "@steps";
	is( $node->safe_psql(
			'copy', q{
			SELECT count(*) FILTER (WHERE message_id::text LIKE 'begun%') = count(*)
			FROM idem_inbox WHERE state <> 'completed'}),
		't',
		"$turn[$i]: records in progress survived");
	is( $node->safe_psql('copy',
			q{SELECT count(*) FROM idem_inbox WHERE state = 'completed'}),
		'0', "$turn[$i]: the others are gone");
	is(outcomes('postgres'), $before, "$turn[$i]: the original is as it was");
	$node->safe_psql('postgres', 'DROP DATABASE copy');
}

$node->stop;
done_testing();
