# Logical replication of the inbox, as for moving a database to another server
# without stopping: what was claimed on the publisher is a duplicate on the
# subscriber, also for sessions that are there already.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = IdemTest::new_node(
	'publisher',
	init => { allows_streaming => 'logical' },
	conf => ['autovacuum = off']);
my $subscriber = IdemTest::new_node('subscriber', conf => ['autovacuum = off']);

my @tables = qw(idem_consumer idem_ring idem_generation_1 idem_generation_2
  idem_generation_3 idem_quarantine);

sub contents
{
	my ($node, @of) = @_;

	return $node->safe_psql('postgres', join ';',
		map { qq{SELECT '$_', t.* FROM $_ t ORDER BY t::text COLLATE "C"} } @of);
}

# Records of all kinds under ids of their own.
sub fill
{
	my ($batch) = @_;

	$publisher->safe_psql(
		'postgres', qq{
		SELECT idem_claim('$batch plain', 'inventory.reserve', '\\x01');
		SELECT idem_claim('$batch plain', 'inventory.reserve', '\\x02');
		SELECT idem_begin('$batch half', 'mail.confirm');
		SELECT idem_begin('$batch done', 'mail.confirm');
		SELECT idem_complete('$batch done', 'mail.confirm', '{"to": "me"}');
		SELECT idem_begin('$batch undone', 'mail.confirm');
		SELECT idem_abandon('$batch undone', 'mail.confirm');
		SELECT idem_begin('$batch resolved', 'mail.confirm');
		SELECT idem_resolve('$batch resolved', 'mail.confirm', 'complete')});
	return;
}

sub step
{
	my ($node, $expected) = @_;

	is( $node->safe_psql(
			'postgres', q{
		UPDATE idem_ring
		SET current_age = '100 years',
			previous_age = CASE WHEN previous_sealed THEN '100 years'::interval
								ELSE '0' END;
		SELECT idem_maintain()}), $expected, "maintenance: $expected");
	return;
}

# A session of the subscriber that is there all the time.
my $session = $subscriber->background_psql('postgres');

# Check that the subscriber has what the publisher has, and that its session
# answers by it; claims are rolled back, or they would be in the way.
sub check_subscriber
{
	my ($when, %known) = @_;
	my $batches = join ',', sort keys %known;

	$publisher->wait_for_catchup('move');
	is(contents($subscriber, @tables),
		contents($publisher, @tables),
		"$when: the rows are there");
	is( $session->query_safe(qq{
		BEGIN;
		SELECT b, idem_claim(b || ' plain', 'inventory.reserve'),
			   idem_begin(b || ' half', 'mail.confirm'),
			   idem_begin(b || ' done', 'mail.confirm'),
			   idem_begin(b || ' undone', 'mail.confirm')
		FROM unnest('{$batches}'::text[]) b;
		ROLLBACK}),
		join("\n", map { "$_|$known{$_}" } sort keys %known),
		"$when: a session knows them");
	return;
}

my $all = 'duplicate|needs_reconciliation|duplicate|claimed';
my $left = 'claimed|needs_reconciliation|claimed|claimed';

# Transaction ids of the publisher lie far beyond those of the subscriber.
$publisher->safe_psql(
	'postgres', q{
	DO $$
	BEGIN
		FOR i IN 1 .. 20000 LOOP
			PERFORM pg_current_xact_id();
			COMMIT;
		END LOOP;
	END $$});

fill('first');
is($publisher->safe_psql('postgres', 'SELECT idem_maintain()'),
	'nothing', 'maintenance: nothing');

# The session learns that there is nothing, and keeps that in mind.
is( $session->query_safe(q{
	SELECT idem_claim('first plain', 'inventory.reserve');
	SELECT idem_forget('first plain', 'inventory.reserve');
	DELETE FROM idem_consumer}),
	"claimed\nt", 'the subscriber knows nothing at first');

$publisher->safe_psql('postgres',
	'CREATE PUBLICATION move FOR TABLE '
	  . join(', ', @tables, 'idem_resolution'));
$subscriber->safe_psql('postgres',
	    q{CREATE SUBSCRIPTION move CONNECTION '}
	  . $publisher->connstr
	  . q{ dbname=postgres' PUBLICATION move});
$subscriber->wait_for_subscription_sync($publisher, 'move');
check_subscriber('after the copy', first => $all);

# Another session, which takes no part in the next two steps.
my $sleeper = $subscriber->background_psql('postgres');
is( $sleeper->query_safe(q{SELECT idem_claim('first plain', 'inventory.reserve')}),
	'duplicate',
	'another session knows them');

# The ring turns on the publisher.
step($publisher, 'opened');
fill('second');
check_subscriber('next is open', first => $all, second => $all);
step($publisher, 'sealed');
fill('third');
check_subscriber('the first is sealed',
	first => $all, second => $all, third => $all);
is( $sleeper->query_safe(q{SELECT idem_claim('third plain', 'inventory.reserve')}),
	'duplicate',
	'the first is sealed: the other session knows where to look');
$sleeper->quit;
step($publisher, 'moved');
check_subscriber('survivors have been moved',
	first => $all, second => $all, third => $all);
# What is older than twice the retention goes with the generation.
$publisher->safe_psql(
	'postgres', q{
	UPDATE idem_quarantine SET last_at = last_at - interval '100 years'
	WHERE message_id = 'first plain';
	INSERT INTO idem_resolution
	SELECT resolved_at - interval '100 years', consumer, message_id || ' long ago',
		   action, changed, role
	FROM idem_resolution WHERE message_id = 'first resolved'});
check_subscriber('before the first is emptied',
	first => $all, second => $all, third => $all);
is(contents($subscriber, 'idem_resolution'),
	contents($publisher, 'idem_resolution'),
	'before the first is emptied: the decisions are there');
step($publisher, 'emptied');
check_subscriber('the first is emptied',
	first => $left, second => $all, third => $all);
is(contents($subscriber, 'idem_resolution'),
	contents($publisher, 'idem_resolution'),
	'the first is emptied: the decisions too old are gone');

# The session has the consumers in its cache.
is( $session->query_safe(q{
	SELECT idem_seen('third plain', 'inventory.reserve'),
		   idem_seen('third plain', 'stock.reserve')}),
	't|f', 'a consumer\'s name');
$publisher->safe_psql(
	'postgres', q{
	UPDATE idem_consumer SET name = 'stock.reserve'
	WHERE name = 'inventory.reserve'});
$publisher->wait_for_catchup('move');
is( $session->query_safe(q{
	SELECT idem_seen('third plain', 'inventory.reserve'),
		   idem_seen('third plain', 'stock.reserve')}),
	'f|t', 'changes in a session of the subscriber');
$publisher->safe_psql(
	'postgres', q{
	UPDATE idem_consumer SET name = 'inventory.reserve'
	WHERE name = 'stock.reserve'});
$publisher->safe_psql('postgres',
	q{SELECT idem_register('mail.confirm', lease => '1 day')});
$publisher->wait_for_catchup('move');
is( $session->query_safe(q{
	BEGIN;
	SELECT idem_begin('lease', 'mail.confirm');
	SELECT idem_begin('lease', 'mail.confirm');
	ROLLBACK}),
	"claimed\nin_progress", 'and so does its lease');

# The move: consumers go over to the subscriber in the middle of a turn.
step($publisher, 'opened');
fill('fourth');
check_subscriber('before the move',
	second => $all, third => $all,
	fourth => 'duplicate|in_progress|duplicate|claimed');
$publisher->safe_psql('postgres', 'SELECT pg_current_xact_id()');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION move');
$publisher->stop;

step($subscriber, 'sealed');
step($subscriber, 'moved');
step($subscriber, 'emptied');
is( $session->query_safe(q{
	SELECT b, idem_claim(b || ' plain', 'inventory.reserve'),
		   idem_begin(b || ' half', 'mail.confirm'),
		   idem_begin(b || ' done', 'mail.confirm')
	FROM unnest('{third,fourth}'::text[]) b}),
	join("\n",
		'third|claimed|needs_reconciliation|claimed',
		'fourth|duplicate|in_progress|duplicate'),
	'the ring has turned to the end on the subscriber');

# Logical replication leaves sequences out.
is( scalar $subscriber->psql(
		'postgres', q{SELECT idem_claim('new', 'new.consumer')},
		on_error_die => 0),
	0,
	'a new consumer gets a number of its own');
$session->quit;

$subscriber->stop;
done_testing();
