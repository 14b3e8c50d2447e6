# The commit of a take-over is synchronous, whatever the session says: its
# number, once given away, is never given to somebody else.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The WAL writer would write asynchronous commits soon after them, the
# background writer their pages, and hide what a commit itself does.
my $node = IdemTest::new_node('main',
	init => { allows_streaming => 1 },
	conf => [
		'wal_writer_delay = 10s', 'wal_writer_flush_after = 1GB',
		'bgwriter_lru_maxpages = 0' ]);

sub attempt
{
	return $node->safe_psql('postgres',
		"SELECT attempt FROM idem_status('$_[0]', 'mail.confirm')");
}

# The server stops without a word right after the commit.
$node->safe_psql(
	'postgres', q{
	SELECT idem_begin('m-1', 'mail.confirm'), idem_begin('m-2', 'mail.confirm'),
		   idem_begin('m-3', 'mail.confirm');
	CHECKPOINT;
	SET synchronous_commit = off;
	SELECT idem_takeover('m-1', 'mail.confirm');
	BEGIN;
	SAVEPOINT s;
	SELECT idem_takeover('m-2', 'mail.confirm', '1 hour');
	RELEASE SAVEPOINT s;
	COMMIT});
$node->stop('immediate');
$node->start;
is(attempt('m-1'), '2', 'a take-over survives a crash');
is(attempt('m-2'), '2', 'one in a transaction block, too');

# That this was no luck: the same crash loses what was committed without.
$node->safe_psql(
	'postgres', q{
	CHECKPOINT;
	SET synchronous_commit = off;
	UPDATE idem_generation_1 SET attempt = 9 WHERE message_id = 'm-3'});
$node->stop('immediate');
$node->start;
is(attempt('m-3'), '1', 'an asynchronous commit does not');

# Who lost, or found nothing to take over, has nothing to wait for.
my $flushed = $node->safe_psql(
	'postgres', q{
	SET synchronous_commit = off;
	SELECT idem_takeover('m-2', 'mail.confirm') IS NULL,
		   idem_takeover('m-9', 'mail.confirm') IS NULL});
is($flushed, 't|t', 'nothing to take over');

# From here on a synchronous commit waits for a standby that never comes.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'absent'");
$node->reload;
IdemTest::poll($node,
	q{SELECT current_setting('synchronous_standby_names') = 'absent'});

my $session = $node->background_psql('postgres');
$session->query_safe('SET synchronous_commit = local');
$session->query_until(qr/started/,
	"\\echo started\nSELECT idem_takeover('m-3', 'mail.confirm');\n");
IdemTest::poll(
	$node, q{
	SELECT EXISTS (SELECT FROM pg_stat_activity
				   WHERE query LIKE 'SELECT idem_takeover%'
					 AND wait_event = 'SyncRep')});
pass('a take-over waits for the standby');
is( $node->safe_psql(
		'postgres', q{
	SET synchronous_commit = local;
	SELECT idem_takeover('m-2', 'mail.confirm') IS NULL}),
	't', 'an answer does not');
$node->safe_psql(
	'postgres', q{
	SELECT pg_cancel_backend(pid) FROM pg_stat_activity
	WHERE wait_event = 'SyncRep'});
is($session->query(''), '2', 'the wait was given up');
like($session->{stderr}, qr/canceling wait for synchronous replication/,
	'with a warning');
$session->{stderr} = '';
is($session->query_safe('SHOW synchronous_commit'),
	'local', 'the setting is as before');
$session->quit;

$node->stop;
done_testing();
