# Claims and crashes: of a consumer's process, of its server process, of the
# whole server.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The WAL writer would write asynchronous commits soon after them, and hide
# what a commit itself does.
my $node = IdemTest::new_node('main',
	conf => [ 'restart_after_crash = on', 'wal_writer_delay = 10s',
		'wal_writer_flush_after = 1GB' ]);
$node->safe_psql(
	'postgres', q{
	SELECT idem_register('inventory.reserve');
	CREATE TABLE effect (message_id text);
	CHECKPOINT});

my $claim = q{SELECT idem_claim('m-1', 'inventory.reserve')};

# Start a second copy that waits for the first.
sub start_second
{
	my $second = $node->background_psql('postgres');

	$second->query_until(qr/started/, "\\echo started\n$claim;\n");
	IdemTest::poll(
		$node, q{
		SELECT EXISTS (SELECT FROM pg_stat_activity
					   WHERE query LIKE 'SELECT idem_claim%'
						 AND wait_event = 'transactionid')});
	return $second;
}

# The consumer's process is killed in the middle of its work.
my $first = $node->background_psql('postgres');
$first->query_safe("BEGIN; $claim");
$first->query_safe(q{INSERT INTO effect VALUES ('m-1')});
my $second = start_second();
$first->{run}->signal('KILL');
$first->{run}->finish;
is($second->query_safe(''), 'claimed',
	'the first consumer was killed: the second one claims');
$second->quit;
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'0', 'and the work of the first is undone');
is($node->safe_psql('postgres', $claim),
	'duplicate', 'the third one finds a duplicate');

# A server process is killed, and all others with it.
$node->safe_psql('postgres', q{SELECT idem_forget('m-1', 'inventory.reserve')});
$first = $node->background_psql('postgres');
my $pid = $first->query_safe('SELECT pg_backend_pid()');
$first->query_safe("BEGIN; $claim");
$first->query_safe(q{INSERT INTO effect VALUES ('m-1')});
$second = start_second();
kill 'KILL', $pid or die "could not kill process $pid: $!";
$_->{run}->finish foreach ($first, $second);
$node->poll_query_until('postgres', 'SELECT true')
  or die 'the server did not come back';
is($node->safe_psql('postgres', $claim),
	'claimed', 'after a crash of the server process');
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'0', 'and the work of the first is undone');

# The server stops without a word, claims being open.
$first = $node->background_psql('postgres');
$first->query_safe(
	q{BEGIN; SELECT idem_claim('m-2', 'inventory.reserve');
	  SELECT idem_begin('m-3', 'inventory.reserve');
	  SELECT idem_claim('m-4', 'mail.confirm')});
$node->stop('immediate');
$first->{run}->finish;
$node->start;
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_claim('m-1', 'inventory.reserve'),
		   idem_claim('m-2', 'inventory.reserve'),
		   idem_begin('m-3', 'inventory.reserve'),
		   idem_claim('m-4', 'mail.confirm')}),
	'duplicate|claimed|claimed|claimed',
	'what was committed stays, what was open is gone');

# Phase one survives although the session commits asynchronously; a claim in
# one transaction lives and dies with its work.
$node->safe_psql(
	'postgres', q{
	CHECKPOINT;
	SET synchronous_commit = off;
	SELECT idem_begin('b-1', 'mail.confirm', lease => '1 hour');
	SELECT idem_begin('b-2', 'mail.confirm')});
$node->stop('immediate');
$node->start;
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_begin('b-1', 'mail.confirm'),
		   idem_begin('b-2', 'mail.confirm')}),
	'in_progress|needs_reconciliation',
	'phase one was committed synchronously');
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_complete('b-1', 'mail.confirm', '"sent"'),
		   idem_complete('b-2', 'mail.confirm')}),
	't|t', 'phase two follows after the crash');

$node->safe_psql(
	'postgres', q{
	CHECKPOINT;
	SET synchronous_commit = off;
	BEGIN;
	SELECT idem_claim('c-1', 'mail.confirm');
	INSERT INTO effect VALUES ('c-1');
	COMMIT});
$node->stop('immediate');
$node->start;
is( $node->safe_psql(
		'postgres', q{
	SELECT idem_seen('c-1', 'mail.confirm') =
		   EXISTS (SELECT FROM effect WHERE message_id = 'c-1')}),
	't', 'claim and work: both or neither');

$node->stop;
done_testing();
