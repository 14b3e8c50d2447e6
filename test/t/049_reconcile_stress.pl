# Payments under fire: consumers and reconcilers are killed between any two
# calls, messages are redelivered at random, the server crashes, the ring
# turns.  The provider counts what it executes for each idempotency key, the
# message's id, and answers queries, as real ones do; it does not refuse a
# second execution, so that one would show.
#
# A minute long; STRESS_SECONDS=12 make check for less.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{STRESS_SECONDS} || 60;
my $consumers = 4;
my $reconcilers = 3;

# So many new messages a second; the last so many are delivered at random.
my $rate = 25;
my $window = 50;

# How long an attempt is left alone; a process that stalls does so for longer.
my $lease = '250 ms';
my $stall = 0.4;

#
# The database's part.  Each call that changes an attempt is noted with it, in
# one transaction: what is noted of a message is in the order in which it
# happened.  "who" is one attempt by one process.
#
my $node = IdemTest::new_node('main', conf => ['max_connections = 50']);
$node->safe_psql(
	'postgres', qq{
	-- records in progress and completed ones both live through every turn
	SELECT idem_register('pay', retention => '10 years', lease => '$lease');
	CREATE TABLE call (
		n bigserial, message_id text, op text, attempt int, who text,
		-- whether the lease of the call before it had run out
		late bool, lease_until timestamptz
	);
	CREATE TABLE refused (message_id text, op text, state text);

	CREATE FUNCTION note(id text, op text, attempt int, who text)
	RETURNS void LANGUAGE sql AS \$\$
		INSERT INTO call (message_id, op, attempt, who, late, lease_until)
		SELECT id, op, attempt, who,
			   (SELECT lease_until <= clock_timestamp() FROM call
				WHERE message_id = id ORDER BY n DESC LIMIT 1),
			   (SELECT lease_until FROM idem_status(id, 'pay'))
	\$\$;
	CREATE INDEX ON call (message_id, n);

	CREATE FUNCTION try_begin(id text, who text) RETURNS text LANGUAGE plpgsql AS \$\$
	DECLARE
		outcome text := idem_begin(id, 'pay');
	BEGIN
		IF outcome = 'claimed' THEN
			PERFORM note(id, 'begin', 1, who);
		END IF;
		RETURN outcome;
	END \$\$;

	CREATE FUNCTION try_takeover(id text, who text) RETURNS int LANGUAGE plpgsql AS \$\$
	DECLARE
		attempt int := idem_takeover(id, 'pay');
	BEGIN
		IF attempt IS NOT NULL THEN
			PERFORM note(id, 'takeover', attempt, who);
		END IF;
		RETURN attempt;
	END \$\$;

	-- The other calls are refused to an attempt that was taken over.
	CREATE FUNCTION try(op text, id text, attempt int, who text, receipt text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS \$\$
	DECLARE
		done bool;
	BEGIN
		done := CASE op
			WHEN 'complete' THEN idem_complete(id, 'pay', jsonb_build_object('receipt', receipt), attempt)
			WHEN 'abandon' THEN idem_abandon(id, 'pay', attempt)
			WHEN 'extend' THEN idem_extend(id, 'pay', NULL, attempt) IS NOT NULL
		END;
		IF done THEN
			PERFORM note(id, op, attempt, who);
		ELSIF op = 'complete' THEN
			PERFORM note(id, 'complete again', attempt, who);
		END IF;
		RETURN done;
	EXCEPTION WHEN object_not_in_prerequisite_state OR no_data_found THEN
		INSERT INTO refused VALUES (id, op, SQLSTATE);
		RETURN 'refused';
	END \$\$;
});

# The protocol in as much as these processes need it.  Killing one kills its
# connection, with nobody between that would go on for it.
package Connection;

sub open
{
	my ($class) = @_;
	my $socket = IO::Socket::UNIX->new(
		Peer => $node->host . '/.s.PGSQL.' . $node->port)
	  or die "could not connect: $!\n";
	my $self = bless { socket => $socket }, $class;
	my $user = getpwuid($<);
	my $startup = pack('N Z* Z* Z* Z* x', 196608, 'user', $user, 'database',
		'postgres');

	$self->put(pack('N', 4 + length $startup) . $startup);
	$self->answer;
	return $self;
}

sub put
{
	my ($self, $bytes) = @_;

	local $SIG{PIPE} = 'IGNORE';
	syswrite($self->{socket}, $bytes) or die "connection lost\n";
	return;
}

sub get
{
	my ($self, $length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		my $read = sysread($self->{socket}, $bytes, $length - length $bytes, length $bytes);

		# a signal may come; met with the test modules of 18 and 19
		next if !defined $read && $!{EINTR};
		die "connection lost\n" unless $read;
	}
	return $bytes;
}

# The first column of the last row; undef if it is null or there is none.
sub answer
{
	my ($self) = @_;
	my ($value, $error);

	while (1)
	{
		my ($type, $length) = unpack('a N', $self->get(5));
		my $body = $self->get($length - 4);

		if ($type eq 'D')
		{
			my ($columns, $size) = unpack('n N', $body);
			$value = $size == 0xffffffff ? undef : substr($body, 6, $size);
		}
		elsif ($type eq 'E')
		{
			($error) = $body =~ /\0M([^\0]*)/;
		}
		elsif ($type eq 'Z')
		{
			die "$error\n" if defined $error;
			return $value;
		}
	}
}

sub ask
{
	my ($self, $sql, @arguments) = @_;
	my $query = sprintf($sql,
		map { defined $_ ? "'" . s/'/''/gr . "'" : 'NULL' } @arguments) . "\0";

	$self->put(pack('a N', 'Q', 4 + length $query) . $query);
	return $self->answer;
}

package main;

#
# The provider: one request a connection, in the order in which they came.
#
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $provider_path = "$dir/provider";
my $test = $$;

sub request
{
	my $socket = IO::Socket::UNIX->new(Peer => $provider_path)
	  or die "could not reach the provider: $!\n";

	$socket->print(join(' ', @_) . "\n");
	my $answer = <$socket>;
	die "the provider is gone\n" unless defined $answer;
	chomp $answer;
	return $answer;
}

sub provider
{
	my ($listener) = @_;
	my %receipts;

	while (getppid() == $test)
	{
		my $client = $listener->accept or next;
		my $line = <$client>;

		# Who dies while it still speaks has asked for nothing.
		next unless defined $line && $line =~ /\n\z/;
		my ($verb, $key) = split ' ', $line;
		if ($verb eq 'execute')
		{
			push @{ $receipts{$key} }, 1;
			sleep(rand 0.004);
		}

		local $SIG{PIPE} = 'IGNORE';
		my $count = @{ $receipts{$key} // [] };
		$client->print($count ? "$key#$count\n" : "none\n");
	}
	return;
}

#
# Consumers and reconcilers.  Each may be killed anywhere.
#
my $serial = 0;
my $started = time;

sub newest
{
	return int((time() - $started) * $rate);
}

sub pause
{
	sleep(rand() < 0.05 ? $stall : rand 0.004);
	return;
}

sub consume
{
	my ($db, $id) = @_;
	my $who = "$$." . ++$serial;
	my $outcome = $db->ask('SELECT try_begin(%s, %s)', $id, $who);

	if ($outcome eq 'claimed')
	{
		pause();
		if (rand() < 0.3)
		{
			my $extended = $db->ask("SELECT try('extend', %s, 1, %s)", $id, $who);

			return if $extended ne 'true';
			pause();
		}
		my $receipt = request('execute', $id);
		pause();
		$db->ask("SELECT try('complete', %s, 1, %s, %s)", $id, $who, $receipt);
	}
	elsif ($outcome eq 'duplicate')
	{
		my $receipt = $db->ask(
			"SELECT idem_result(%s, 'pay') ->> 'receipt'", $id);

		die "message $id was answered with receipt $receipt"
		  unless $receipt =~ /^\Q$id\E#\d+$/;
	}
	return $outcome;
}

sub reconcile
{
	my ($db, $id) = @_;
	my $who = "$$." . ++$serial;
	my $attempt = $db->ask('SELECT try_takeover(%s, %s)', $id, $who);

	return unless defined $attempt;
	pause();
	my $receipt = request('ask', $id);
	pause();
	if ($receipt eq 'none' && rand() < 0.3)
	{
		$receipt = request('execute', $id);
		pause();
	}
	if ($receipt eq 'none')
	{
		$db->ask("SELECT try('abandon', %s, %s, %s)", $id, $attempt, $who);
	}
	else
	{
		$db->ask("SELECT try('complete', %s, %s, %s, %s)", $id, $attempt, $who,
			$receipt);
	}
	return;
}

sub consumer
{
	my $db = Connection->open;

	while (getppid() == $test)
	{
		my $id = newest() - int(rand $window);

		consume($db, "m-$id") if $id > 0;
		pause();
	}
	return;
}

sub reconciler
{
	my $db = Connection->open;

	while (getppid() == $test)
	{
		# The oldest first, as all others do.
		my $id = $db->ask(
			'SELECT message_id FROM idem_attention ORDER BY since LIMIT 1');

		# Now and then, in vain, one that may not need it.
		$id = 'm-' . (newest() - int(rand 5)) if rand() < 0.3;
		reconcile($db, $id) if defined $id;
		pause();
	}
	return;
}

# A process of its own, without what the test does when it ends.
sub start
{
	my ($work, @arguments) = @_;
	my $pid = fork() // die "could not fork: $!";

	return $pid if $pid > 0;
	srand;
	$SIG{TERM} = $SIG{INT} = 'DEFAULT';
	eval { $work->(@arguments); 1 } or do
	{
		# the server that crashes takes its clients along
		my $why = $@;
		my $fatal = $why !~ /^(connection lost|could not connect|terminating|the database system)/;

		print STDERR "# $$: $why" if $fatal;
		POSIX::_exit($fatal ? 2 : 1);
	};
	POSIX::_exit(0);
}

my $listener = IO::Socket::UNIX->new(Local => $provider_path, Listen => 100)
  or die "could not listen: $!";
my $provider = start(\&provider, $listener);
close $listener;

my @workers = ((\&consumer) x $consumers, (\&reconciler) x $reconcilers);
my @pids = map { start($_) } @workers;

# Nothing stays behind, however this ends.
END
{
	if (defined $test && $$ == $test)
	{
		my $status = $?;

		kill 'KILL', grep { $_ } @pids, $provider;
		waitpid($_, 0) foreach grep { $_ } @pids, $provider;
		$? = $status;
	}
}

# Ends a worker that is at work, or takes note of one that has ended by itself.
my %ended = (killed => 0, lost => 0, failed => 0);

sub end_worker
{
	my ($i) = @_;

	kill 'KILL', $pids[$i];
	waitpid($pids[$i], 0);
	$ended{ $? & 127 ? 'killed' : $? >> 8 == 2 ? 'failed' : 'lost' }++;
	return;
}

my %steps;
my $ring = Connection->open;
my $crashes = 0;
while (time() < $started + $seconds)
{
	my $i = int rand @pids;

	end_worker($i);
	$pids[$i] = start($workers[$i]);

	# Retention passes, as far as the ring knows.
	foreach (1 .. 2)
	{
		$ring->ask(q{UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year'});
		$steps{ $ring->ask('SELECT idem_maintain()') }++;
		sleep(rand 0.06);
	}

	# Three times, at a quarter, a half and three quarters of the time.
	if ($crashes < 3 && time() > $started + ($crashes + 1) * $seconds / 4)
	{
		$node->stop('immediate');
		$node->start;
		$ring = Connection->open;
		$crashes++;
	}
}
my $newest = newest();

# The last one ends them all.
end_worker($_) foreach 0 .. $#pids;
@pids = ();
is($ended{failed}, 0, 'no process met what it did not expect');

# Every message is completed once, or listed, or as if never delivered.
IdemTest::poll($node,
	q{SELECT NOT EXISTS (SELECT FROM idem_inbox WHERE state = 'in_progress')});
is( $node->safe_psql(
		'postgres', q{
		SELECT message_id FROM idem_inbox GROUP BY message_id HAVING count(*) > 1}),
	'', 'no message has two records');
is( $node->safe_psql(
		'postgres', q{
		SELECT message_id, state FROM idem_inbox
		WHERE (state = 'completed') = (message_id IN (SELECT message_id FROM idem_attention))}),
	'', 'every record is completed or listed');

# What the calls made of each message, one after the other.
sub replay
{
	my @wrong;
	my (%state, %holder, %taken, %count);

	foreach (
		split "\n", $node->safe_psql('postgres',
			'SELECT message_id, op, attempt, who, late FROM call ORDER BY n'))
	{
		my ($id, $op, $attempt, $who, $late) = split /\|/;
		my $state = $state{$id} // 'none';
		my $allowed =
			$op eq 'begin' ? $state eq 'none'
		  : $op eq 'takeover' ? $state eq $attempt - 1 && $late eq 't'
		  : $op eq 'complete again' ? $state eq "completed $attempt"
		  : $state eq $attempt;

		push @wrong, "$id: $op with attempt $attempt when $state, late: $late"
		  unless $allowed;
		$state{$id} =
			$op =~ /^complete/ ? "completed $attempt"
		  : $op eq 'abandon' ? 'none'
		  : $attempt;
		if ($op eq 'begin' || $op eq 'takeover')
		{
			$holder{$id} = $who;
		}
		elsif ($holder{$id} ne $who)
		{
			$count{'for another of the same number'}++;
		}
		$taken{$id} = 1 if $op eq 'takeover';
		$count{$op}++;
	}
	return (\@wrong, \%state, \%taken, \%count);
}

sub records
{
	return map { split /\|/ } split "\n",
	  $node->safe_psql(
		'postgres', q{
		SELECT message_id, CASE state WHEN 'completed' THEN 'completed ' ELSE '' END || attempt
		FROM idem_inbox});
}

my ($wrong, $state, $taken, $count) = replay();
is_deeply($wrong, [], 'every call was for the attempt of its time');
my %record = records();
is_deeply(\%record, { map { $state->{$_} eq 'none' ? () : ($_ => $state->{$_}) } keys %$state },
	'the records are what the calls have made of them');

# Everything comes again until it is done.
my $db = Connection->open;
foreach my $id (map { "m-$_" } 1 .. $newest)
{
	my $tries = 0;

	while ($tries++ < 100)
	{
		my $outcome = consume($db, $id);

		last if $outcome eq 'duplicate';
		reconcile($db, $id) if $outcome eq 'needs_reconciliation';
		sleep(0.05) if $outcome eq 'in_progress';
	}
}
($wrong, $state, $taken, $count) = replay();
is_deeply($wrong, [], 'every call was for the attempt of its time, to the end');
is(scalar(grep { ($state->{"m-$_"} // '') =~ /^completed/ } 1 .. $newest),
	$newest, 'every message is completed');
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*), count(DISTINCT message_id) FROM call WHERE op = 'complete'}),
	"$newest|$newest", 'once each');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem_attention'),
	'0', 'nothing is listed any more');

my (@never, @twice, $again);
$again = 0;
foreach my $id (map { "m-$_" } 1 .. $newest)
{
	my ($executed) = request('ask', $id) =~ /#(\d+)$/;

	if (!$executed)
	{
		push @never, $id;
	}
	elsif ($executed > 1)
	{
		$again++;
		push @twice, $id unless $taken->{$id};
	}
}
is_deeply(\@never, [], 'nothing was completed without having been executed');
is_deeply(\@twice, [], 'nothing was executed twice without a take-over');

# That it was under fire.
cmp_ok($ended{killed}, '>', 0, 'processes were killed');
cmp_ok($count->{$_} // 0, '>', 0, "calls of $_")
  foreach qw(begin extend takeover abandon complete);
cmp_ok($steps{emptied} // 0, '>', 0, 'generations were emptied');
cmp_ok($steps{moved} // 0, '>', 0, 'records were moved');
diag(sprintf '%d messages, %s; %s; executed again after a take-over: %d; refused: %s; %s',
	$newest,
	join(', ', map { "$_ $count->{$_}" } sort keys %$count),
	join(', ', map { "$_ $ended{$_}" } sort keys %ended),
	$again,
	$node->safe_psql('postgres', 'SELECT count(*) FROM refused'),
	join(', ', map { "$_ $steps{$_}" } sort keys %steps));

kill 'KILL', $provider;
waitpid($provider, 0);
$provider = 0;
$node->stop;
done_testing();
