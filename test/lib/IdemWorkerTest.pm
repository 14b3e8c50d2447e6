# What the TAP tests of the worker share.

package IdemWorkerTest;

use strict;
use warnings;

use Exporter 'import';
use IdemTest;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(new_worker_node set_conf worker_of worker_in visits
  wait_for_visits count_in_log age keep_busy $busy_records);

# What a worker moves for some seconds; less does where all is slower.
our $busy_records = $ENV{BUSY_RECORDS} || 100_000;

# new_worker_node NAME, LINE...: a server with the worker at a quick pace, the
# extension in the database postgres, and these lines in postgresql.conf.
sub new_worker_node
{
	my ($name, @conf) = @_;

	# at debug1 the postmaster tells which workers it starts
	return IdemTest::new_node(
		$name,
		preload => 1,
		conf => [ "idem_inbox.naptime = '1s'", 'log_min_messages = debug1', @conf ]);
}

# set_conf NODE, SETTING, VALUE: takes effect with SIGHUP.
sub set_conf
{
	my ($node, $setting, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $setting = '$value'");
	$node->reload;
	return;
}

# worker_of NODE, DATABASE: the name of this database's workers.
sub worker_of
{
	my ($node, $database) = @_;
	my $oid = $node->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = '$database'");

	return "idem_inbox worker for database $oid";
}

# worker_in DATABASE: a query for the worker that is there now.
sub worker_in
{
	my ($database) = @_;

	return "SELECT pid, application_name, query FROM pg_stat_activity"
	  . " WHERE backend_type = 'idem_inbox worker' AND datname = '$database'";
}

# wait_for_visits NODE, WORKER, COUNT: until so many visits of this database
# have begun and ended from now on.
sub wait_for_visits
{
	my ($node, $worker, $count) = @_;
	my $begun = qr/starting background worker process "$worker"/;
	my $ended = qr/background worker "idem_inbox worker".* exited with exit code/;

	# One worker runs at a time.
	$node->wait_for_log(qr/(?:$begun(?s:.*?)$ended(?s:.*)){$count}/,
		-s $node->logfile);
	return;
}

# visits NODE, WORKER, OFFSET: how many were begun since then.
sub visits
{
	my ($node, $worker, $offset) = @_;

	return count_in_log($node,
		qr/starting background worker process "$worker"/, $offset);
}

sub count_in_log
{
	my ($node, $regexp, $offset) = @_;
	my @found = slurp_file($node->logfile, $offset // 0) =~ /$regexp/g;

	return scalar @found;
}

# age NODE, DATABASE: lets the ring's retention have passed.
sub age
{
	my ($node, $database) = @_;

	# not to wait for a standby here; the row may not be there yet
	$node->safe_psql($database, q{
		SET synchronous_commit = local;
		UPDATE idem_ring SET current_age = '30 days', previous_age = '30 days';
		INSERT INTO idem_ring (current_age)
			SELECT '30 days' WHERE NOT EXISTS (SELECT FROM idem_ring)});
	return;
}

# keep_busy NODE, DATABASE: $busy_records to move, so that the worker can be met
# there.
sub keep_busy
{
	my ($node, $database) = @_;

	$node->safe_psql($database, qq{
		BEGIN;
		LOCK TABLE idem_ring;
		TRUNCATE idem_generation_1;
		INSERT INTO idem_generation_1
			(received_at, lease_until, consumer_id, attempt, message_id)
		SELECT now(), now(), 1, 1, 'unfinished-' || i
		FROM generate_series(1, $busy_records) i;
		DELETE FROM idem_ring;
		INSERT INTO idem_ring (current, previous_sealed, previous_age, sealed_at)
			VALUES (2, true, '30 days', now());
		COMMIT});
	return;
}

1;
