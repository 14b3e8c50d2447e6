# A crash between every pair of calls of an attempt: begin, side effect,
# complete; and take-over, side effect, complete.  The consumer's process, its
# server process or the whole server dies; what is found afterwards says how
# far the attempt got, and reconciling it by that executes the side effect
# once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node =
  IdemTest::new_node('main', conf => ['restart_after_crash = on']);
$node->safe_psql('postgres', q{SELECT idem_register('mail.confirm')});

# The provider outside the database, which no crash undoes: how often it has
# executed what, by the idempotency key that is the message's id.
my %executed;

my $lease = q{lease => '1 hour'};
my $status = q{SELECT string_agg(concat_ws(' ', state, attempt, result), '')
	FROM idem_status('%1$s', 'mail.confirm')};
my %calls = (
	begin => q{SELECT idem_begin('%1$s', 'mail.confirm')},
	begin_leased => qq{SELECT idem_begin('%1\$s', 'mail.confirm', $lease)},
	takeover => q{SELECT idem_takeover('%1$s', 'mail.confirm')},
	takeover_leased => qq{SELECT idem_takeover('%1\$s', 'mail.confirm', $lease)},
	complete => q{SELECT idem_complete('%1$s', 'mail.confirm', '"sent"', attempt => 1)},
	complete_2 => q{SELECT idem_complete('%1$s', 'mail.confirm', '"sent"', attempt => 2)},
	abandon_2 => q{SELECT idem_abandon('%1$s', 'mail.confirm', attempt => 2)},
	open => 'BEGIN',
	commit => 'COMMIT');

# What an attempt does until the crash, and what is found then: the record
# (state, attempt, result) and what a redelivery is told.  "left" is an attempt
# that somebody else left over before.
my @attempts = (
	[ 'open begin', '', 'claimed' ],
	[ 'begin', 'needs_reconciliation 1', 'needs_reconciliation' ],
	[ 'begin_leased', 'in_progress 1', 'in_progress' ],
	[ 'open begin commit effect', 'needs_reconciliation 1',
		'needs_reconciliation' ],
	[ 'begin_leased effect', 'in_progress 1', 'in_progress' ],
	[ 'begin effect open complete', 'needs_reconciliation 1',
		'needs_reconciliation' ],
	[ 'begin_leased effect open complete', 'in_progress 1', 'in_progress' ],
	[ 'begin effect open complete commit', 'completed 1 "sent"',
		'duplicate' ],
	[ 'begin effect complete', 'completed 1 "sent"', 'duplicate' ],

	[ 'left open takeover', 'needs_reconciliation 1',
		'needs_reconciliation' ],
	[ 'left takeover', 'needs_reconciliation 2', 'needs_reconciliation' ],
	[ 'left takeover_leased', 'in_progress 2', 'in_progress' ],
	[ 'left takeover_leased effect', 'in_progress 2', 'in_progress' ],
	[ 'left takeover_leased effect open complete_2', 'in_progress 2',
		'in_progress' ],
	[ 'left takeover_leased effect complete_2', 'completed 2 "sent"',
		'duplicate' ],
	[ 'left takeover_leased open abandon_2', 'in_progress 2',
		'in_progress' ],
	[ 'left takeover_leased abandon_2', '', 'claimed' ]);

# Everything that a consumer does with a delivered message, sure not to die.
sub process
{
	my ($id) = @_;
	my $outcome = $node->safe_psql('postgres', sprintf($calls{begin}, $id));

	if ($outcome eq 'claimed')
	{
		$executed{$id}++;
		$node->safe_psql('postgres', sprintf($calls{complete}, $id));
	}
	elsif ($outcome eq 'in_progress')
	{
		# it comes again when the lease has run out
		$node->safe_psql('postgres',
			qq{SELECT idem_extend('$id', 'mail.confirm', '0')});
	}
	elsif ($outcome eq 'needs_reconciliation')
	{
		my $attempt =
		  $node->safe_psql('postgres', sprintf($calls{takeover_leased}, $id));
		my $call = $executed{$id}
		  ? qq{idem_complete('$id', 'mail.confirm', '"found"', $attempt)}
		  : qq{idem_abandon('$id', 'mail.confirm', $attempt)};

		$node->safe_psql('postgres', "SELECT $call");
	}
	return $outcome;
}

# The ways to die, for all the sessions at once.
my %crash = (
	'the client is killed' => sub {
		$_->{run}->signal('KILL') foreach @_;
		$_->{run}->finish foreach @_;
		IdemTest::poll(
			$node, q{
			SELECT NOT EXISTS (SELECT FROM pg_stat_activity
							   WHERE application_name = 'attempt')});
	},
	'a server process is killed' => sub {
		my $pid = $_[0]->query_safe('SELECT pg_backend_pid()');

		kill 'KILL', $pid or die "could not kill process $pid: $!";
		$_->{run}->finish foreach @_;
		$node->poll_query_until('postgres', 'SELECT true')
		  or die 'the server did not come back';
	},
	'the server stops at once' => sub {
		$node->stop('immediate');
		$_->{run}->finish foreach @_;
		$node->start;
	});

foreach my $crash (sort keys %crash)
{
	my @sessions;
	my $n = 0;

	foreach (@attempts)
	{
		my ($until) = @$_;
		my $id = "$crash " . ++$n;
		my $session = $node->background_psql('postgres');

		$session->query_safe("SET application_name = 'attempt'");
		push @sessions, $session;
		$executed{$id} = 0;
		foreach my $call (split ' ', $until)
		{
			if ($call eq 'effect')
			{
				$executed{$id}++;
			}
			elsif ($call eq 'left')
			{
				$node->safe_psql('postgres', sprintf($calls{begin}, $id));
			}
			else
			{
				$session->query_safe(sprintf($calls{$call}, $id));
			}
		}
	}
	$crash{$crash}->(@sessions);

	$n = 0;
	foreach (@attempts)
	{
		my ($until, $record, $redelivery) = @$_;
		my $id = "$crash " . ++$n;
		my $deliveries = 0;

		is($node->safe_psql('postgres', sprintf($status, $id)),
			$record, "$crash after '$until': record");
		is(process($id), $redelivery, '... redelivery');

		# It is delivered again until it is done.
		while (++$deliveries < 10 && process($id) ne 'duplicate') { }
		is($executed{$id}, 1, '... executed once in the end');
		like($node->safe_psql('postgres', sprintf($status, $id)),
			qr/^completed /, '... and completed');
	}
}

$node->stop;
done_testing();
