# Counters in shared memory: idem_stats and idem_failing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use Test::More;

my $node = IdemTest::new_node('stats',
	preload => 1,
	conf => [
		'idem_inbox.worker = off',
		'idem_inbox.max_consumers = 4',
		'idem_inbox.max_failing = 3',
		'max_prepared_transactions = 5'
	]);

sub sql
{
	my ($query, $database) = @_;
	return $node->safe_psql($database // 'postgres', $query);
}

# A consumer's counters that are not zero, by name; waited_ms as "some".
my @counters = qw(claimed rolled_back duplicate busy in_progress
  needs_reconciliation mismatch waits completed taken_over abandoned expired);

sub stats
{
	my ($consumer, $database) = @_;
	my %row;

	@row{@counters} = split /\|/,
	  sql('SELECT ' . join(', ', @counters) . " FROM idem_stats
		   WHERE consumer IS NOT DISTINCT FROM $consumer", $database);
	return join ', ',
	  map { "$_ $row{$_}" } grep { $row{$_} } @counters;
}

# Each outcome, and each call that counts.
is(sql('SELECT count(*) FROM idem_stats'), '0', 'nothing was counted yet');
sql("SELECT idem_claim('m-' || i % 3, 'answers', '\\x01') FROM generate_series(1, 10) i");
sql("SELECT idem_claim('m-1', 'answers', '\\x02')");
sql("SELECT idem_begin('b-1', 'answers', lease => '1 hour')");
sql("SELECT idem_begin('b-1', 'answers')");
sql("SELECT idem_begin('b-2', 'answers')");
sql("SELECT idem_begin('b-2', 'answers')");
sql("SELECT idem_takeover('b-2', 'answers')");
sql("SELECT idem_takeover_next('answers')");
sql("SELECT idem_complete('b-2', 'answers')");
sql("SELECT idem_complete('b-2', 'answers')");
sql("SELECT idem_abandon('b-1', 'answers')");
sql("SELECT outcome FROM idem_claim_many('{m-1,m-4,m-5,m-4}', 'answers')");
is( stats("'answers'"),
	'claimed 7, duplicate 9, in_progress 1, needs_reconciliation 1, mismatch 1, '
	  . 'completed 1, taken_over 2, abandoned 1',
	'outcomes and calls are counted');
is( sql("SELECT last_claim BETWEEN since AND clock_timestamp(), waited_ms
		 FROM idem_stats WHERE consumer = 'answers'"),
	't|0', 'since when, and when last');
sql("SELECT idem_import('i-1', 'answers'), idem_seen('m-1', 'answers')");
like(stats("'answers'"), qr/^claimed 7, duplicate 9,/,
	'an import is no claim, a look no answer');

# What is rolled back was not claimed; what was answered stays answered.
sql("SELECT idem_stats_reset('answers')");
is(stats("'answers'"), '', 'reset');
sql(<<'SQL');
BEGIN;
SELECT idem_claim('r-1', 'answers'), idem_claim('m-1', 'answers'), idem_begin('r-2', 'answers');
SELECT idem_begin('r-3', 'answers');
SELECT idem_complete('r-3', 'answers');
ROLLBACK;
SQL
is(stats("'answers'"), 'rolled_back 3, duplicate 1', 'a rolled-back transaction');
sql(<<'SQL');
SELECT idem_stats_reset('answers');
BEGIN;
SELECT idem_claim('s-1', 'answers');
SAVEPOINT a;
SELECT idem_claim('s-2', 'answers');
SAVEPOINT b;
SELECT idem_claim('s-3', 'answers'), idem_claim('m-1', 'answers');
RELEASE SAVEPOINT b;
ROLLBACK TO SAVEPOINT a;
SELECT idem_claim('s-4', 'answers');
SAVEPOINT c;
SELECT idem_claim('s-5', 'answers');
RELEASE SAVEPOINT c;
COMMIT;
SQL
is(stats("'answers'"), 'claimed 3, rolled_back 2, duplicate 1', 'savepoints');
sql(<<'SQL');
SELECT idem_stats_reset('answers');
BEGIN;
SELECT idem_claim('p-1', 'answers');
PREPARE TRANSACTION 'p';
SQL
is(stats("'answers'"), 'claimed 1', 'a prepared transaction');
sql("ROLLBACK PREPARED 'p'");

# A wait, its time, and busy.
sql("SELECT idem_stats_reset('answers')");
my $holder = $node->background_psql('postgres');
$holder->query_safe(q(BEGIN; SELECT idem_claim('w-1', 'answers')));
# first what does not wait, as a session's first claim can take long itself
sql("SELECT idem_claim('w-1', 'answers', max_wait => '0');
	 SELECT idem_claim('w-1', 'answers', max_wait => '200 ms')");
is(stats("'answers'"), 'busy 2, waits 1', 'a wait in vain');
is( sql("SELECT waited_ms BETWEEN 15 AND 10000 FROM idem_stats WHERE consumer = 'answers'"),
	't', 'and how long it was');
my $pid = $holder->query_safe('SELECT pg_backend_pid()');
$holder->{timeout}->start(60) if $holder->{timeout};
sql("SELECT pg_terminate_backend($pid, 60000)");
is(stats("'answers'"), 'rolled_back 1, busy 2, waits 1', 'a session that was ended');
eval { $holder->quit };

# More consumers than there is room for.
sql("SELECT idem_claim('m-1', 'c-' || i) FROM generate_series(1, 6) i");
is( sql("SELECT consumer, claimed FROM idem_stats WHERE consumer <> 'answers' ORDER BY consumer"),
	"c-1|1\nc-2|1\nc-3|1",
	'three have found room');
is(stats('NULL'), 'claimed 3', 'the others count as one');

# Another database has its own, and so has the extension that is created anew.
sql('CREATE DATABASE other');
sql('CREATE EXTENSION idem_inbox', 'other');
sql("SELECT idem_claim('m-1', 'answers')", 'other');
is(stats("'answers'", 'other'), '', 'no room in another database');
is(stats('NULL', 'other'), 'claimed 4', '... where it counts with the others');
$node->restart;
is(sql('SELECT count(*) FROM idem_stats'), '0', 'a restart begins anew');
sql("SELECT idem_claim('m-2', 'answers')", 'other');
is(stats("'answers'", 'other'), 'claimed 1', 'another database');
is(stats("'answers'"), '', 'is not this one');
sql('DROP EXTENSION idem_inbox; CREATE EXTENSION idem_inbox', 'other');
is(sql('SELECT count(*) FROM idem_stats', 'other'), '0',
	'an extension that is created anew has no counters');
sql("SELECT idem_claim('m-3', 'answers')", 'other');
is(stats("'answers'", 'other'), 'claimed 1', '... but its own');
$node->restart;

# Expired: what went with its generation, as far as it was stored since then.
sql(<<'SQL');
CREATE PROCEDURE turn() LANGUAGE plpgsql AS $$
DECLARE
	done text := '';
BEGIN
	WHILE done <> 'emptied' LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		done := idem_maintain();
		COMMIT;
	END LOOP;
END
$$;
SELECT idem_maintain();
SELECT idem_claim('e-' || i, 'answers') FROM generate_series(1, 10) i;
SELECT idem_begin('e-11', 'answers');
SELECT idem_forget('e-1', 'answers');
BEGIN;
SELECT idem_claim('e-12', 'answers');
ROLLBACK;
CALL turn();
SQL
is(stats("'answers'"), 'claimed 11, rolled_back 1, expired 9',
	'nine have expired, one was forgotten, one survives');
sql('CALL turn(); CALL turn()');
like(stats("'answers'"), qr/expired 9$/, 'that one goes on to survive');
sql("SELECT idem_complete('e-11', 'answers')");
sql('CALL turn(); CALL turn()');
like(stats("'answers'"), qr/expired 10$/, '... until it is completed');

# Messages that fail again and again.
sql('SELECT idem_stats_reset()');
sub fail_times
{
	my ($message, $times) = @_;
	sql("BEGIN; SELECT idem_claim('$message', 'answers'); ROLLBACK") for 1 .. $times;
	return;
}
my $failing = 'SELECT consumer, message_id, times FROM idem_failing ORDER BY times DESC, message_id';
fail_times('poison', 3);
fail_times('0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11', 2);
is( sql($failing),
	"answers|poison|3\nanswers|0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11|2",
	'failing messages are listed');
is( sql("SELECT bool_and(last_at > first_at) FROM idem_failing"), 't',
	'since when, and when last');
sql("BEGIN; SAVEPOINT s; SELECT idem_claim('saved', 'answers'); ROLLBACK TO s; COMMIT");
like(sql($failing), qr/^answers\|saved\|1$/m, 'also those of a savepoint');
sql("SELECT idem_claim('saved', 'answers')");
unlike(sql($failing), qr/saved/, 'a commit takes a message off the list');
fail_times('once', 1);
fail_times('next', 1);
is( sql($failing),
	"answers|poison|3\nanswers|0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11|2\nanswers|next|1",
	'the list is bounded: what failed least, and longest ago, gave way');
is(sql('SELECT count(*) FROM idem_failing', 'other'), '0',
	'another database has its own');
my $long = 'x' x 1024;
fail_times($long, 4);
like(sql($failing), qr/^answers\|$long\|4$/m, 'the longest id');
sql("SELECT idem_claim('$long', 'answers')");
unlike(sql($failing), qr/xxx/, '... is taken off, too');
sql("SELECT idem_stats_reset('answers')");
is(sql($failing), '', 'a reset forgets them');

# Who may do what.
sql('CREATE ROLE watcher IN ROLE pg_monitor; CREATE ROLE stranger');
fail_times('poison', 1);
is( sql("SET ROLE watcher; SELECT count(*) FROM idem_stats; SELECT count(*) FROM idem_failing"),
	"1\n1", 'pg_monitor may read');
foreach my $query (
	'SELECT * FROM idem_stats',
	'SELECT * FROM idem_failing',
	'SELECT * FROM idem_stats_rows()',
	'SELECT idem_stats_reset()')
{
	my ($ret, $out, $err) =
	  $node->psql('postgres', "SET ROLE stranger; $query");
	like($err, qr/permission denied/, "a stranger may not: $query");
}
sql('GRANT EXECUTE ON FUNCTION idem_stats_reset TO stranger');
foreach my $argument ('', "'answers'")
{
	my ($ret, $out, $err) = $node->psql('postgres',
		"SET ROLE stranger; SELECT idem_stats_reset($argument)");
	like($err, qr/permission denied (for consumer|to reset)/,
		"nor one who may execute it: idem_stats_reset($argument)");
}
my ($ret, $out, $err) = $node->psql('postgres', "SELECT idem_stats_reset('unknown')");
like($err, qr/consumer "unknown" is not registered/, 'an unknown consumer');

# A crash begins anew, and leaves nothing behind that is not whole.
$node->stop('immediate');
$node->start;
is(sql('SELECT count(*) FROM idem_stats') . sql('SELECT count(*) FROM idem_failing'),
	'00', 'a crash begins anew');

# No list of failing messages, beside another library that wants shared memory.
$node->stop;
$node->append_conf('postgresql.conf', $_)
  foreach "shared_preload_libraries = 'pg_stat_statements, idem_inbox'",
  'idem_inbox.max_failing = 0';
$node->start;
($ret, $out, $err) = $node->psql('postgres', <<'SQL');
BEGIN; SELECT idem_claim('n-0', 'answers'); ROLLBACK;
SELECT rolled_back FROM idem_stats WHERE consumer = 'answers';
SELECT count(*) FROM idem_failing;
SELECT idem_stats_reset('answers');
SQL
is("$ret|$out|$err", "0|claimed\n1\n0\n|", 'no room for failing messages: counted, not listed');

# Without preloading nothing is counted, and nothing is said about it.
$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->adjust_conf('postgresql.conf', 'idem_inbox.max_consumers', undef);
$node->adjust_conf('postgresql.conf', 'idem_inbox.max_failing', undef);
$node->start;
($ret, $out, $err) = $node->psql('postgres', <<'SQL');
BEGIN; SELECT idem_claim('n-1', 'answers'); ROLLBACK;
SELECT count(*) FROM idem_stats;
SELECT count(*) FROM idem_failing;
SELECT idem_stats_reset();
SQL
is("$ret|$out|$err", "0|claimed\n0\n0\n|", 'not preloaded: empty views');

$node->stop;
done_testing();
