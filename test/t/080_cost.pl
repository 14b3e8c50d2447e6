# What a claim costs does not creep up: instructions of the processor, counted
# by callgrind, and bytes of WAL, both beside INSERT ... ON CONFLICT in the same
# run, so that neither the machine nor the server's minor version matters.
#
# The limits are what was measured when they were set, and 15 % more.  If a
# change is worth its cost, set them anew and say why.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# ours to theirs
my %measured = (
	'instructions for a new message' => 0.544,
	'instructions for a duplicate' => 0.477,
	'instructions for a batch of 1,000' => 0.460,
	'WAL for a new message' => 0.486);
my $margin = 1.15;

my $node = IdemTest::new_node('main',
	conf => [ 'autovacuum = off', 'max_wal_size = 1GB' ]);
$node->safe_psql(
	'postgres', q{
	CREATE TABLE plain_inbox (
		message_id	text,
		consumer	text,
		received_at	timestamptz NOT NULL DEFAULT now(),
		PRIMARY KEY (message_id, consumer)
	);
	CREATE INDEX ON plain_inbox (received_at);
	SELECT idem_register('inventory.reserve-stock');
	-- a growing id of a UUID's length, in time's order
	CREATE FUNCTION id(i int) RETURNS text IMMUTABLE LANGUAGE sql AS
		$$SELECT '0192f0c1-7b1e-7cc2-9d5e-' || lpad(to_hex(i), 12, '0')$$});

my $claim = q{PERFORM idem_claim(id(i), 'inventory.reserve-stock')};
my $insert = q{INSERT INTO plain_inbox VALUES (id(i), 'inventory.reserve-stock')
	ON CONFLICT DO NOTHING};
my $claim_batch = q{PERFORM count(*) FROM idem_claim_many(
	ARRAY(SELECT id(i * 1000 + j) FROM generate_series(1, 1000) j), 'inventory.reserve-stock')};
my $insert_batch = q{INSERT INTO plain_inbox
	SELECT id(i * 1000 + j), 'inventory.reserve-stock' FROM generate_series(1, 1000) j
	ON CONFLICT DO NOTHING};

# what the loops themselves take
my $nothing = q{PERFORM id(i)};
my $nothing_batch = q{PERFORM ARRAY(SELECT id(i * 1000 + j) FROM generate_series(1, 1000) j)};

sub loop
{
	my ($statement, $from, $to) = @_;
	return "DO \$\$ BEGIN FOR i IN $from .. $to LOOP $statement; END LOOP; END \$\$"
	  =~ s/\s+/ /gr;
}

# Instructions that a single-user server takes for the SQL, one line each.
sub instructions
{
	my @lines = @_;
	my $out = $node->basedir . '/callgrind.out';
	my $stderr;

	IPC::Run::run(
		[
			'valgrind', '--tool=callgrind', "--callgrind-out-file=$out",
			'postgres', '--single', '-D', $node->data_dir,
			'-c', 'idem_inbox.lone_claim=off', 'postgres'
		],
		'<' => \join("\n", @lines, ''),
		'>' => \my $stdout,
		'2>' => \$stderr) or die $stderr;
	die $stderr if $stderr =~ /^\S* ?(ERROR|FATAL|WARNING)/m;
	my ($total) = slurp_file($out) =~ /^(?:summary|totals): (\d+)/m
	  or die "no total in $out";
	return $total;
}

# Instructions for each of so many calls: those of twice as many, less those of
# the first half.
sub instructions_each
{
	my ($statement, $from, $calls, @before) = @_;
	my $all = instructions(@before, loop($statement, $from, $from + 2 * $calls - 1));

	# the same again must be new, too
	$from += 1_000_000;
	s/\b(\d+) \.\. (\d+)\b/($1 + 1_000_000) . ' .. ' . ($2 + 1_000_000)/e
	  foreach @before;
	return ($all -
		  instructions(@before, loop($statement, $from, $from + $calls - 1))) / $calls;
}

sub compare
{
	my ($name, $ours, $theirs, $unit) = @_;
	my $ratio = $ours / $theirs;

	note sprintf '%s: %.0f %s, by hand %.0f', $name, $ours, $unit, $theirs;
	cmp_ok($ratio, '<=', $margin * $measured{$name},
		sprintf('%s: %.3f of what INSERT takes, %.2f is allowed',
			$name, $ratio, $margin * $measured{$name}));
	return;
}

# WAL, when each page has been logged since the checkpoint or is new.
sub wal_each
{
	my ($statement, $calls) = @_;
	my $lsn = 'SELECT pg_current_wal_insert_lsn()';

	$node->safe_psql('postgres', 'CHECKPOINT; ' . loop($statement, 1, 10));
	my $before = $node->safe_psql('postgres', $lsn);
	$node->safe_psql('postgres', loop($statement, 11, 10 + $calls));
	return $node->safe_psql('postgres',
		"SELECT pg_wal_lsn_diff(($lsn), '$before') / $calls");
}
compare('WAL for a new message', wal_each($claim, 20_000),
	wal_each($insert, 20_000), 'bytes');

$node->stop;
my $calls = 1_000;
my $loop = instructions_each($nothing, 100_000, $calls);
compare('instructions for a new message',
	instructions_each($claim, 100_000, $calls) - $loop,
	instructions_each($insert, 100_000, $calls) - $loop,
	'instructions');
my @again = (200_000, 200_000 + 2 * $calls);
compare('instructions for a duplicate',
	instructions_each($claim, 200_000, $calls, loop($claim, @again)) - $loop,
	instructions_each($insert, 200_000, $calls, loop($insert, @again)) - $loop,
	'instructions');
$loop = instructions_each($nothing_batch, 3_000, 2);
compare('instructions for a batch of 1,000',
	instructions_each($claim_batch, 3_000, 2) - $loop,
	instructions_each($insert_batch, 3_000, 2) - $loop,
	'instructions');

done_testing();
