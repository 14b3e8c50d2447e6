# The commit of phase one waits for the standby that synchronous replication
# names, whatever the session's synchronous_commit says; a plain claim does as
# the session says.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main', init => { allows_streaming => 1 });

# From here on a synchronous commit waits for a standby that never comes.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'absent'");
$node->reload;
IdemTest::poll($node,
	q{SELECT current_setting('synchronous_standby_names') = 'absent'});

foreach my $level ('off', 'local')
{
	# The wait is for ever, so this ends it if there is one.
	my $timed_out;
	my ($rc, $stdout) = $node->psql(
		'postgres', qq{
		SET synchronous_commit = $level;
		SELECT idem_claim('plain $level', 'mail.confirm')},
		timeout => $PostgreSQL::Test::Utils::timeout_default,
		timed_out => \$timed_out);
	ok(!$timed_out && $stdout eq 'claimed',
		"a plain claim with $level does not wait");

	my $session = $node->background_psql('postgres');
	$session->query_safe("SET synchronous_commit = $level");
	$session->query_until(qr/started/,
		"\\echo started\nSELECT idem_begin('begun $level', 'mail.confirm');\n");
	IdemTest::poll(
		$node, q{
		SELECT EXISTS (SELECT FROM pg_stat_activity
					   WHERE query LIKE 'SELECT idem_begin%'
						 AND wait_event = 'SyncRep')});
	pass("phase one with $level waits for the standby");

	# It is given up, as a person would; the record is there all the same.
	$node->safe_psql(
		'postgres', q{
		SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE wait_event = 'SyncRep'});
	is($session->query(''), 'claimed', 'the wait was given up');
	like($session->{stderr}, qr/canceling wait for synchronous replication/,
		'with a warning');
	$session->{stderr} = '';
	is($session->query_safe('SHOW synchronous_commit'),
		$level, 'the setting is as before');

	# A second attempt claims nothing, so it has nothing to wait for.
	is($session->query_safe("SELECT idem_begin('begun $level', 'mail.confirm')"),
		'needs_reconciliation', 'an answer does not wait');

	# Phase two says by itself how durable it is.
	is($session->query_safe("SELECT idem_complete('begun $level', 'mail.confirm')"),
		't', 'nor does phase two');
	$session->quit;
}

$node->stop;
done_testing();
