# A crash between any two steps of the ring, or in the middle of one, needs no
# repair: the ring goes on from where it stood, and every message's outcome is
# what it was.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Nobody else is about, so that every step can be taken at once.
my $node = IdemTest::new_node('main',
	conf => [ 'autovacuum = off', 'max_prepared_transactions = 5' ]);

# A step and what it leaves: next_open, previous_sealed.
my @turn = (
	[ 'opened', 't|f' ],
	[ 'sealed', 'f|t' ],
	[ 'moved', 'f|t' ],
	[ 'emptied', 'f|f' ]);

sub query
{
	return $node->safe_psql('postgres', shift);
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

sub age
{
	query(q{
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year'});
	return;
}

# What the messages' outcomes are, by number of turns since they came.
sub outcomes
{
	return query(q{
		SELECT idem_claim('done', 'ledger.book'), idem_claim('begun', 'ledger.book')});
}

query(q{
	SELECT idem_maintain();
	SELECT idem_claim('done', 'ledger.book'), idem_begin('begun', 'ledger.book')});

foreach my $step (@turn)
{
	my ($word, $state) = @$step;
	my $before = query('SELECT next_open, previous_sealed FROM idem_ring');
	my $known = $word eq 'emptied' ? 'claimed' : 'duplicate';

	# in the middle of it
	age();
	my $session = $node->background_psql('postgres');
	is($session->query_safe('BEGIN; SELECT idem_maintain()'),
		$word, "$word, but not committed");
	crash();
	$session->quit;
	is(query('SELECT next_open, previous_sealed FROM idem_ring'),
		$before, "$word: not after a crash");
	is(outcomes(), 'duplicate|needs_reconciliation',
		"$word: outcomes are as before");

	# after it, and after what the ring and a claim wrote next
	is(query('SELECT idem_maintain()'), $word, "$word again");
	crash();
	is(query('SELECT next_open, previous_sealed FROM idem_ring'),
		$state, "$word: also after a crash");
	is(outcomes(), "$known|needs_reconciliation", "$word: outcomes");
	is( query("SELECT idem_claim('$word', 'ledger.book')"),
		'claimed', "$word: a new message");
	crash();
	is( query("SELECT idem_claim('$word', 'ledger.book')"),
		'duplicate', "$word: known after a crash");
}

# A prepared transaction holds its place before the horizon through a crash,
# and a prepared step is one.
query(q{
	BEGIN;
	SELECT idem_claim('prepared', 'ledger.book');
	PREPARE TRANSACTION 'claim'});
age();
is(query('SELECT idem_maintain()'), 'waiting', 'a prepared claim is in the way');
crash();
is(query('SELECT idem_maintain()'), 'waiting', 'also after a crash');
is( query(q{SELECT idem_claim('prepared', 'ledger.book', max_wait => '0')}),
	'busy', 'and holds its message');
query(q{COMMIT PREPARED 'claim'});
age();
is( query(q{
		BEGIN;
		SELECT idem_maintain();
		PREPARE TRANSACTION 'step'}),
	'opened', 'a prepared step');
crash();
is(query('SELECT idem_maintain()'), 'waiting', 'nobody takes another one');
is( query(q{
		SELECT idem_claim('meanwhile', 'ledger.book');
		SELECT count(*) FROM idem_generation_3}),
	"claimed\n0", 'claims go by the view before it');
query(q{COMMIT PREPARED 'step'});
is( query(q{
		SELECT idem_claim('meanwhile', 'ledger.book');
		SELECT idem_claim('afterwards', 'ledger.book');
		SELECT count(*) FROM idem_generation_3}),
	"duplicate\nclaimed\n1", 'then by the one after it');
is(query('SELECT idem_maintain()'), 'sealed', 'and the next step is taken');

# A server that was down for long: ten naptimes count, whatever they are.
$node->append_conf('postgresql.conf', 'idem_inbox.naptime = 2min');
query(q{
	UPDATE idem_ring SET previous_age = '0', counted_at = now() - interval '1 year'});
crash();
is(query('SELECT idem_maintain()'), 'nothing', 'after a year without a server');
is(query('SELECT previous_age FROM idem_ring'), '00:20:00',
	'ten naptimes of it count');

$node->stop;
done_testing();
