# However often a function is called in a session, with errors in between, the
# session's memory stays: each function that SQL can call, by the lists in
# pg_depend, so that what is added later is covered.
#
# LEAK_CALLS=1000000 make check for more calls of each.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemRandomCalls;
use List::Util qw(min);
use PostgreSQL::Test::Utils;
use Test::More;

my $calls = $ENV{LEAK_CALLS} || 5000;

# What a session may gain in the second half of the calls, or in the first
# without its first tenth, in bytes: of its memory contexts, and of the process,
# where the C library takes its share.  A cache that takes its next, larger block
# does so in one of them; a leak is in both.
my $allowed_contexts = 32768;
my $allowed_process = 512 * 1024;

my $node = IdemTest::new_node('leaks', preload => 1,
	init => { extra => [ '-E', 'UTF8' ] },
	conf => [ 'fsync = off', 'synchronous_commit = off', 'log_statement = none',
		'log_min_messages = fatal', 'idem_inbox.worker = off', 'max_wal_size = 4GB' ]);

# Arguments by name or type, for call number i.  Some are wrong.
my %values = (
	message_id => q{CASE i % 5 WHEN 4 THEN repeat('x', 1025) ELSE 'm-' || i END},
	message_ids => q{ARRAY['n-' || i, 'm-' || i, 'n-' || i / 2, CASE i % 5 WHEN 4 THEN '' ELSE 'o-' || i END]},
	fingerprints => q{CASE i % 3 WHEN 0 THEN ARRAY['\x01', NULL, '\x02', '\x03']::bytea[] END},
	consumer => q{CASE i % 7 WHEN 6 THEN '' ELSE 'leak' END},
	action => q{(ARRAY['abandon', 'complete', 'forget', 'nothing'])[1 + i % 4]},
	max_wait => q{CASE i % 11 WHEN 10 THEN '-1 s' ELSE '0' END},
	retention => q{CASE i % 2 WHEN 1 THEN '10 years' ELSE '-1 s' END},
	lease => q{CASE i % 13 WHEN 12 THEN '-1 s' ELSE '0' END},
	owner => q{CASE i % 3 WHEN 2 THEN 'nobody at all' ELSE current_user END},
	result => q{CASE i % 3 WHEN 2 THEN to_jsonb(repeat('z', 9000)) ELSE to_jsonb(i) END},
	attempt => q{CASE i % 3 WHEN 2 THEN 5 ELSE 1 END},
	cloudevent => q{CASE i % 3 WHEN 2 THEN '{}' ELSE jsonb_build_object('source', '/', 'id', i::text) END},
	text => q{CASE i % 3 WHEN 2 THEN '' ELSE 'text ' || i END},
	jsonb => q{jsonb_build_array(i, i::text, NULL, jsonb_build_object('a', 1.50))},
	bytea => q{CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN sha512(i::text::bytea) || '\x00' ELSE sha256('a') END},
	integer => 'i % 4 - 1',
	'timestamp with time zone' => q{CASE i % 4 WHEN 0 THEN 'infinity' ELSE now() END},
	idem_message_id => q{CASE i % 3 WHEN 2 THEN '' ELSE 'id ' || i END});

# The half-done records that the calls of phase two, and people's, are about.
my $records = q{SELECT count(idem_begin('m-' || i, 'leak', lease => '0')) FROM generate_series(1, :calls) i};
$records =~ s/:calls/$calls/;

# Each call in a transaction of its own within one of a thousand: one with
# millions of them costs PostgreSQL itself a word for each.
sub procedure
{
	my ($call) = @_;

	return qq{
		CREATE OR REPLACE PROCEDURE run(first int, last int) LANGUAGE plpgsql AS \$\$
		DECLARE
			failed int := 0;
		BEGIN
			FOR i IN first .. last LOOP
				BEGIN
					PERFORM $call;
				EXCEPTION WHEN OTHERS THEN
					failed := failed + 1;
				END;
				IF i % 1000 = 0 THEN
					COMMIT;
				END IF;
			END LOOP;
			INSERT INTO run VALUES (last - first + 1, failed);
		END
		\$\$};
}

sub process_memory
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 * 1024 : die;
}

$node->safe_psql('postgres', q{CREATE TABLE run (calls int, failed int);
	SELECT idem_register('leak', retention => '10 years')});
my $errors = 0;
foreach my $function (IdemRandomCalls::functions($node))
{
	my @arguments = map { '(' . ($values{ $_->{name} } // $values{ $_->{type} } // die "no value for $_->{type}") . ")::$_->{type}" }
	  @{ $function->{arguments} };
	my $name = "$function->{name}(" . join(', ', map { $_->{type} } @{ $function->{arguments} }) . ')';
	my $session = $node->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $contexts = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts';
	my (@contexts, @process);

	# whatever the call before has left; 'leak' stays
	$node->safe_psql('postgres', "TRUNCATE run, idem_generation_1, idem_generation_2, idem_generation_3, idem_quarantine, idem_resolution; $records");
	$session->query_safe(procedure("$function->{name}(" . join(', ', @arguments) . ')'));
	foreach my $range ([ 1, $calls / 10 ], [ $calls / 10 + 1, $calls / 2 ], [ $calls / 2 + 1, $calls ])
	{
		$session->query_safe("CALL run($range->[0], $range->[1])");
		$session->query_safe($contexts);
		push @contexts, $session->query_safe($contexts);
		push @process, process_memory($pid);
	}
	my ($made, $failed) = split /\|/, $node->safe_psql('postgres', 'SELECT sum(calls), sum(failed) FROM run');

	$errors += $failed;
	ok( min($contexts[1] - $contexts[0], $contexts[2] - $contexts[1]) < $allowed_contexts
		  && min($process[1] - $process[0], $process[2] - $process[1]) < $allowed_process
		  && $made == $calls,
		"$name: $made calls, $failed of them errors, memory stays")
	  or diag "contexts @contexts, process @process";
	$session->quit;
}
cmp_ok($errors, '>', $calls, 'there were errors in between');

$node->stop;
done_testing();
