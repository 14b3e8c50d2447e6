# The worker logs once when a record comes to need a person's attention, not at
# every round.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	preload => 1,
	conf => [ "idem_inbox.naptime = '1s'", "listen_addresses = '127.0.0.1'" ]);

# Two maintenance runs have ended from now on, the second of which began then.
sub wait_for_runs
{
	foreach (1 .. 2)
	{
		my $now = $node->safe_psql('postgres', 'SELECT clock_timestamp()');

		IdemTest::poll($node, "SELECT counted_at > '$now' FROM idem_ring");
	}
	return;
}

# The message ids logged so far, each as often as it was.
sub logged
{
	my $log = slurp_file($node->logfile);

	return join ' ', sort $log =~ /message "([^"]*)" of consumer "mail" needs attention/g;
}

sub attention
{
	return $node->safe_psql(
		'postgres', q{
		SELECT string_agg(concat_ws(' ', message_id, reason, attempt, role, application_name), '; '
						  ORDER BY message_id) FROM idem_attention});
}

# Left over; in progress; all the others are no concern.
$node->safe_psql(
	'postgres', q{
	CREATE ROLE mailer;
	GRANT EXECUTE ON FUNCTION idem_claim, idem_begin, idem_complete(text, text, jsonb, int) TO mailer;
	SET ROLE mailer;
	SET application_name = 'mailer 1';
	SELECT idem_begin('left', 'mail');
	SELECT idem_begin('leased', 'mail', lease => '1 hour');
	SELECT idem_begin('completed', 'mail'), idem_complete('completed', 'mail');
	SELECT idem_claim('claimed', 'mail')});
$node->wait_for_log(qr/message "left" of consumer "mail" needs attention/);
wait_for_runs();
is(logged(), 'left', 'logged once, and nothing else');
like(
	slurp_file($node->logfile),
	qr/LOG: +message "left".*\n.*DETAIL: +Attempt 1, received at .*, is not completed\.\n.*HINT: +See idem_attention\./,
	'with attempt and age');
is(attention(), 'left lease ran out 1 mailer mailer 1',
	'who claimed is not forgotten');

# By TCP, so is from where.
my $dsn = $node->connstr('postgres') =~ s/host=\S+/host=127.0.0.1/r;
command_like(
	[ 'psql', '-XAt', '-d', $dsn, '-c', q{SELECT idem_begin('m-1', 'remote')},
		'-c', q{SELECT claimed_by ->> 'client_addr' FROM idem_takeover_next('remote')},
		'-c', q{SELECT idem_complete('m-1', 'remote')} ],
	qr/^claimed\n127\.0\.0\.1\nt$/, 'who claimed by TCP, from where');

# Taken over, it is another attempt.
is($node->safe_psql('postgres', q{SELECT idem_takeover('left', 'mail')}),
	'2', 'taken over');
$node->wait_for_log(qr/message "left"[^\n]*\n[^\n]*DETAIL: +Attempt 2/);
wait_for_runs();
is(logged(), 'left left', 'the next attempt is logged once');

# Extended, it is not.
is( $node->safe_psql(
		'postgres', q{SELECT idem_extend('left', 'mail', '0') IS NOT NULL}),
	't', 'extended');
wait_for_runs();
is(logged(), 'left left', 'the same attempt is not logged again');

# Completed, it has the result that it was completed with.
is( $node->safe_psql(
		'postgres', q{
		SELECT idem_complete('left', 'mail', '"sent"', attempt => 2),
			   idem_result('left', 'mail')}),
	't|"sent"', 'completed');

# In progress for long.
$node->append_conf('postgresql.conf', "idem_inbox.attention_after = '1s'");
$node->reload;
$node->wait_for_log(qr/message "leased" of consumer "mail" needs attention/);
wait_for_runs();
is(logged(), 'leased left left', 'in progress for long: logged once');
is(attention(), 'leased in progress for long 1 mailer mailer 1',
	'and listed');

# Another worker, another server, another generation.
$node->restart;
wait_for_runs();
$node->safe_psql('postgres',
	q{UPDATE idem_ring SET current_age = '1 year'});
IdemTest::poll($node, 'SELECT previous_sealed FROM idem_ring');
$node->safe_psql('postgres',
	q{UPDATE idem_ring SET previous_age = '1 year'});
IdemTest::poll($node, 'SELECT NOT previous_sealed FROM idem_ring');
is($node->safe_psql('postgres', 'SELECT message_id FROM idem_generation_2'),
	'leased', 'moved to another generation');
wait_for_runs();
is(logged(), 'leased left left',
	'not logged again after a restart and a turn of the ring');

# The worker does not wait for who is just completing it.
my $session = $node->background_psql('postgres');
$session->query_safe(
	q{SELECT idem_begin('slow', 'mail');
	  BEGIN; SELECT idem_complete('slow', 'mail')});
wait_for_runs();
wait_for_runs();
is(logged(), 'leased left left', 'a completion is open');
$session->query_safe('ROLLBACK');
$session->quit;
$node->wait_for_log(qr/message "slow" of consumer "mail" needs attention/);
wait_for_runs();
is(logged(), 'leased left left slow', 'it was rolled back');

# More than are logged in one round.
my $before = logged();
$node->safe_psql('postgres',
	q{SELECT idem_begin('many', 'mail' || n) FROM generate_series(1, 150) n});
my $count = sub {
	my $log = slurp_file($node->logfile);
	my %times;

	$times{$1}++ while $log =~ /message "many" of consumer "(mail\d+)" needs/g;
	return join ' ', scalar(keys %times),
	  scalar(grep { $_ != 1 } values %times);
};
foreach (1 .. 10)
{
	wait_for_runs();
	last if $count->() =~ /^150 /;
}
wait_for_runs();
is($count->(), '150 0', 'many are logged, once each');
is(logged(), $before, 'and no others');

# A delivery with other content is logged when it comes, by who got it.
$node->safe_psql(
	'postgres', q{
	SELECT idem_claim('m', 'mail', '\x01');
	SELECT idem_claim('m', 'mail', '\x02')});
wait_for_runs();
my $log = slurp_file($node->logfile);
is(scalar(() = $log =~ /message "m" was delivered to consumer "mail" with other content/g),
	1, 'a mismatch is logged once a delivery');
is(logged(), $before, 'and not by the worker');

$node->stop;
done_testing();
