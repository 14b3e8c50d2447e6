# text -> idem_message_id -> text is the identity and the order is total, over
# 100,000 random strings.  What is right is worked out here, in Perl.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Encode qw(encode);
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $how_many = 100_000;
my $seed = $ENV{IDEM_TEST_SEED} // 20240229;

srand($seed);
note "random seed $seed, another one with IDEM_TEST_SEED";

my @hex = ('0' .. '9', 'a' .. 'f');

sub pick { return $_[ int rand @_ ]; }

sub random_uuid
{
	my @digits = map { pick(@hex) } 1 .. 32;

	# a good deal of them differ in their last digits only
	@digits[ 0 .. 29 ] = ('0') x 30 if rand() < 0.2;
	return join '-',
	  map { join '', splice @digits, 0, $_ } (8, 4, 4, 4, 12);
}

sub random_characters
{
	my ($length, @from) = @_;

	return join '', map { pick(@from) } 1 .. $length;
}

my @printable = map { chr } 32 .. 126;
my @ascii = map { chr } 1 .. 127;
my @unicode = map { chr }
  (1 .. 127, 0xe9, 0x301, 0x7ff, 0x800, 0x5e97, 0xfffd, 0x10000, 0x1f4e6,
	0x10ffff);

my @kinds = (
	\&random_uuid,
	sub { uc random_uuid() },

	# a UUID but for one character
	sub {
		my $id = random_uuid();
		substr($id, int rand 36, 1) = pick('-', 'g', 'A', '0', ' ', "\n");
		return $id;
	},
	sub { random_uuid() . pick(' ', "\n", '0', '') },
	sub { substr(random_uuid(), 0, 1 + int rand 36) },

	# what the bytes of a UUID may look like
	sub { random_characters(16, @ascii) },
	sub { random_characters(17, "\x01", @printable) },

	# many short ones, so that prefixes and equal ones occur
	sub { random_characters(1 + int rand 4, 'a', 'b', 'B', ' ', "\x01") },
	sub { 'order-' . int rand 20_000 },
	sub { random_characters(1 + int rand 60, @printable) },
	sub { random_characters(1 + int rand 100, @unicode) },
	sub { random_characters(32, @ascii) x 32 },
	sub { substr random_characters(50, @ascii) x 21, 0, 1000 + int rand 25 });

# The bytes that an id is ordered by.
sub key_of
{
	my ($bytes) = @_;

	return "\0" . pack('H*', $bytes =~ tr/-//dr)
	  if $bytes =~ /\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z/;
	return "\1" . $bytes;
}

my @ids = map { encode('UTF-8', pick(@kinds)->()) } 1 .. $how_many;
my @keys = map { key_of($_) } @ids;

# Equal ids have equal ranks; Perl compares strings of bytes byte by byte.
my %rank;
{
	my $rank = 0;
	my %seen = map { $_ => 1 } @keys;
	$rank{$_} = ++$rank foreach sort keys %seen;
}
cmp_ok(scalar keys %rank, '<', $how_many, 'some ids occur twice');
cmp_ok((grep { /^\0/ } keys %rank), '>', 5_000, 'many are UUIDs');

my $node = IdemTest::new_node('main', init => { extra => ['--encoding=UTF8'] });
my $dir = PostgreSQL::Test::Utils::tempdir();
my %escape =
  ("\\" => '\\\\', "\n" => '\\n', "\r" => '\\r', "\t" => '\\t');

open my $file, '>:raw', "$dir/ids" or die "could not create a file: $!";
foreach my $i (0 .. $#ids)
{
	my $id = $ids[$i] =~ s/([\\\n\r\t])/$escape{$1}/gr;

	print $file "$i\t$rank{ $keys[$i] }\t$id\t$id\n";
}
close $file or die "could not write a file: $!";

$node->safe_psql(
	'postgres', qq{
	SET client_encoding = 'UTF8';
	CREATE TABLE given (n int PRIMARY KEY, rank int, given text COLLATE "C",
						id idem_message_id);
	COPY given FROM '$dir/ids';
	ALTER TABLE given ADD by_cast idem_message_id;
	UPDATE given SET by_cast = given;
	COPY given (n, id) TO '$dir/ids.text';
	COPY given (n, id) TO '$dir/ids.binary' (FORMAT binary);
	CREATE TABLE text_again (n int, id text COLLATE "C");
	COPY text_again FROM '$dir/ids.text';
	CREATE TABLE binary_again (n int, id text COLLATE "C");
	COPY binary_again FROM '$dir/ids.binary' (FORMAT binary);
	CREATE TABLE id_again (n int, id idem_message_id);
	COPY id_again FROM '$dir/ids.binary' (FORMAT binary);
	ANALYZE;
});

# A query that counts what is wrong finds nothing.
sub none_wrong
{
	my ($name, $query) = @_;

	return is($node->safe_psql('postgres', $query), '0', $name);
}

is($node->safe_psql('postgres', 'SELECT count(*) FROM given'),
	$how_many, 'all ids arrived');
none_wrong('input and output are the identity',
	q{SELECT count(*) FROM given WHERE id::text COLLATE "C" <> given});
none_wrong('so are the casts',
	q{SELECT count(*) FROM given WHERE by_cast::text COLLATE "C" <> given});
none_wrong('input and cast make the same id',
	q{SELECT count(*) FROM given WHERE id <> by_cast});
none_wrong("$_ gives the text back",
	qq{SELECT count(*) FROM given g JOIN $_ a USING (n)
	   WHERE a.id IS DISTINCT FROM g.given})
  foreach ('text_again', 'binary_again');
none_wrong('binary input makes the same id',
	q{SELECT count(*) FROM given g JOIN id_again a USING (n)
	  WHERE a.id IS DISTINCT FROM g.id});
none_wrong('a canonical UUID is kept in 16 bytes and one, others as they are',
	q{SELECT count(*) FROM given
	  WHERE pg_column_size(idem_message_id(given)) - 4 <>
			CASE WHEN given ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
				  AND length(given) = 36
				 THEN 17 ELSE 1 + octet_length(given) END});

# Sorted by id is sorted by rank, and only equal ids are equal.
none_wrong('sorting goes by the bytes',
	q{SELECT count(*)
	  FROM (SELECT rank, dense_rank() OVER (ORDER BY id) AS by_id FROM given) s
	  WHERE rank <> by_id});
none_wrong('so does an index',
	q{CREATE INDEX ON given (id);
	  SET enable_sort = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
	  SELECT count(*)
	  FROM (SELECT rank, lag(rank, 1, 0) OVER () AS before
			FROM (SELECT rank FROM given ORDER BY id) s) s
	  WHERE rank < before});

# Every operator says of a pair what the ranks say: with the neighbour in the
# order, where mistakes show, and with one from anywhere.
foreach my $other (
	'lead(n, 1, 0) OVER (ORDER BY rank, n)',
	"n * 7919::bigint % $how_many")
{
	none_wrong(
		"operators agree, the other id being $other",
		qq{
	SELECT count(*)
	FROM (SELECT n, $other AS other FROM given) pair
		 JOIN given a ON a.n = pair.n
		 JOIN given b ON b.n = pair.other
	WHERE (a.id < b.id) <> (a.rank < b.rank)
	   OR (a.id <= b.id) <> (a.rank <= b.rank)
	   OR (a.id = b.id) <> (a.rank = b.rank)
	   OR (a.id <> b.id) <> (a.rank <> b.rank)
	   OR (a.id >= b.id) <> (a.rank >= b.rank)
	   OR (a.id > b.id) <> (a.rank > b.rank)
	   OR sign(idem_message_id_cmp(a.id, b.id)) <> sign(a.rank - b.rank)});
}

# As a consumer meets them: each id is claimed once, whatever it looks like.
is( $node->safe_psql(
		'postgres', q{
	SELECT count(*) FILTER (WHERE outcome = 'claimed') =
		   count(DISTINCT rank),
		   count(*) FILTER (WHERE outcome = 'duplicate') =
		   count(*) - count(DISTINCT rank)
	FROM (SELECT rank, idem_claim(given, 'property') AS outcome
		  FROM given) s}),
	't|t', 'each id is claimed once');
none_wrong('and seen, and found in the view',
	q{SELECT count(*) FROM given
	  WHERE n % 100 = 0
		AND NOT (idem_seen(given, 'property')
				 AND EXISTS (SELECT FROM idem_inbox i
							 WHERE i.message_id = given
							   AND i.consumer = 'property'))});

$node->stop;
done_testing();
