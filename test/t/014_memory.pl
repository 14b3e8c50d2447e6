# The memory of a session does not grow with the number of claims, in one
# transaction nor over many.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	conf => [ 'fsync = off', 'synchronous_commit = off' ]);

# What a session holds, in bytes, all of its memory contexts together.
my $memory = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts';

# Once caches are filled, less than a byte a claim.
my $claims = 100_000;
my $allowed = 65536;

# Run SQL that calls something for the numbers from :from to :to, for some and
# then for many, and compare the memory.
sub memory_stays
{
	my ($name, $sql) = @_;
	my $session = $node->background_psql('postgres');
	my @bytes;

	$session->query_safe('BEGIN') unless $name =~ /autocommit/;
	foreach my $range ([ 1, 2_000 ], [ 2_001, 2_000 + $claims ])
	{
		my $run = $sql =~ s/:from/$range->[0]/r =~ s/:to/$range->[1]/r;

		$session->query_safe($run);
		# the query about memory takes some itself, the first time
		$session->query_safe($memory);
		push @bytes, $session->query_safe($memory);
	}
	cmp_ok($bytes[1] - $bytes[0],
		'<', $allowed, "$name: memory stays ($bytes[0], then $bytes[1])");
	$session->quit;
	return;
}

my $count = q{SELECT count(*) FROM generate_series(:from, :to) i WHERE };

memory_stays('claims in a transaction',
	$count . q{idem_claim('a-' || i, 'memory') = 'claimed'});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem_inbox'),
	0, 'that transaction did not commit');
memory_stays('claims in autocommit',
	$count . q{idem_claim('b-' || i, 'memory') = 'claimed'});
memory_stays('duplicates in a transaction',
	$count . q{idem_claim('b-' || i, 'memory') = 'duplicate'});
memory_stays('a duplicate with a fingerprint',
	$count . q{idem_claim('b-' || i, 'memory', '\x01') = 'duplicate'});
memory_stays('two-phase records in a transaction',
	$count . q{idem_begin('c-' || i, 'memory', '\x01') = 'claimed'});
memory_stays('two-phase records in autocommit',
	$count . q{idem_begin('c-' || i, 'memory', '\x01') = 'claimed'});

# Phase two of what was begun before: PostgreSQL itself keeps a word for each
# row that a transaction both inserts and updates.
memory_stays('completions in a transaction',
	$count . q{idem_complete('c-' || i, 'memory', '1')});
memory_stays('looking',
	$count . q{idem_seen('b-' || i, 'memory')
			   AND EXISTS (SELECT FROM idem_status('b-' || i, 'memory'))});
memory_stays(
	'a claim in PL/pgSQL in a transaction', q{
	DO $$
	BEGIN
		FOR i IN :from .. :to LOOP
			PERFORM idem_claim('d-' || i, 'memory');
		END LOOP;
	END
	$$});

# While the statement runs, too: what it holds in the end and near its start.
is( $node->safe_psql(
		'postgres', qq{
	SELECT max(bytes) - min(bytes) < $allowed
	FROM (SELECT CASE WHEN i IN (2000, $claims) THEN ($memory) END AS bytes
		  FROM generate_series(1, $claims) i
		  WHERE idem_claim('e-' || i, 'memory') = 'claimed') s}),
	't', 'claims in one statement: memory stays');

$node->stop;
done_testing();
