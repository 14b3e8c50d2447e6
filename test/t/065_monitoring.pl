# What monitoring/ asks: each query runs as a member of pg_monitor and gives the
# columns that it describes, with the library preloaded or not, before the first
# maintenance, and on a standby; none reads the records; and what waits is seen
# while it waits.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $yaml = slurp_file("$top/monitoring/queries.yaml");
my %queries;

while ($yaml =~ /^(\w+):\n  query: \|\n((?:    .*\n)+)  metrics:\n((?:    - .*\n)+)/mg)
{
	my ($name, $query, $metrics) = ($1, $2, $3);
	$queries{$name} = { query => $query, columns => join '|', $metrics =~ /- (\w+):/g };
}
my $described = () = $yaml =~ /^\w+:/mg;
is(keys %queries, $described, "$described queries were found");

sub as_exporter
{
	my ($node, $query, @params) = @_;

	return $node->safe_psql('postgres', $query,
		extra_params => [ '-U', 'exporter', @params ]);
}

sub create
{
	my ($node) = @_;

	$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA inbox;
CREATE EXTENSION idem_inbox SCHEMA inbox;
CREATE ROLE exporter LOGIN IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA inbox TO exporter;
ALTER ROLE exporter SET search_path = inbox;
ALTER DATABASE postgres SET search_path = public, inbox;
SQL
	return;
}

# all_answer NODE, WHEN, QUERY => ROWS, ...: rows: how many, of all others one
# or more
sub all_answer
{
	my ($node, $when, %rows) = @_;

	foreach my $name (sort keys %queries)
	{
		my ($header, @rows) = split /\n/,
		  as_exporter($node, $queries{$name}{query}, '-P', 'tuples_only=off', '-P', 'footer=off');

		is($header, $queries{$name}{columns}, "$when, $name: the columns that it describes");
		my $expected = $rows{$name};
		ok(defined $expected ? @rows == $expected : @rows > 0, "$when, $name: rows")
		  or diag join "\n", @rows;
	}
	return;
}

sub value
{
	my ($node, $name, $column) = @_;

	return as_exporter($node, "SELECT $column FROM ($queries{$name}{query}) q");
}

my $plain = IdemTest::new_node('plain', extension => 0);
create($plain);
all_answer($plain, 'not preloaded', map { ("idem_inbox_$_" => 0) } 'consumer', 'failing', 'attention');
is(value($plain, 'idem_inbox_maintenance', 'last_timestamp_seconds || $$|$$ || interval_seconds'),
	'0|60', 'never maintained');
$plain->stop;

my $node = IdemTest::new_node(
	'main',
	preload => 1,
	extension => 0,
	init => { allows_streaming => 1 },
	conf => [
		'max_prepared_transactions = 2',
		"idem_inbox.naptime = '1h'",
		'max_standby_streaming_delay = -1'
	]);
create($node);
$node->safe_psql('postgres', <<'SQL');
SELECT idem_register('orders');
BEGIN;
SELECT idem_claim('poison', 'orders');
ROLLBACK;
SELECT idem_begin('half-done', 'mail', lease => '0');
SELECT idem_maintain();
SQL
all_answer($node, 'preloaded', idem_inbox_waiting => 1, idem_inbox_maintenance => 1);
is( value($node, 'idem_inbox_maintenance',
		'last_timestamp_seconds BETWEEN extract(epoch FROM now()) - 600 AND extract(epoch FROM clock_timestamp()), interval_seconds'
	),
	't|3600', 'maintained just now');

# What is read of tables; the plan's own catalog reads are not counted.
sub buffers
{
	my ($name) = @_;
	my ($buffers) = as_exporter($node,
		"$queries{$name}{query}; EXPLAIN (ANALYZE, BUFFERS, TIMING off, SUMMARY off) $queries{$name}{query}"
	) =~ /Execution Time|Buffers: shared (?:hit|read)=(\d+)/;

	return $buffers // 0;
}

my %few = map { ($_ => buffers($_)) } keys %queries;
$node->safe_psql('postgres',
	q{SELECT count(idem_claim('many-' || i, 'orders')) FROM generate_series(1, 20000) i});
foreach my $name (sort keys %queries)
{
	cmp_ok(buffers($name), '<=', $few{$name} + 10, "$name: 20,000 records are not read");
}

# Who waits, for a session and for a prepared transaction.
my $cheatsheet = slurp_file("$top/monitoring/cheatsheet.sql");
my ($who_waits) = $cheatsheet =~ /^\\echo 3\..*\n((?:.+\n)+)/m;
my $holder = $node->background_psql('postgres');
my @waiters = map { $node->background_psql('postgres') } 1 .. 3;

$holder->query_safe(q{SET application_name = 'holder'; BEGIN; SELECT idem_claim('held', 'orders')});
$node->safe_psql('postgres', q{BEGIN; SELECT idem_claim('prepared', 'orders'); PREPARE TRANSACTION 'p'});
is(value($node, 'idem_inbox_waiting', 'sessions, longest_seconds'), '0|0', 'nobody waits');
$waiters[0]->query_until(qr/waits/, "\\echo waits\nSELECT idem_claim('held', 'orders');\n");
$waiters[1]->query_until(qr/waits/, "\\echo waits\nSELECT idem_claim('held', 'orders', max_wait => '1 hour');\n");
$waiters[2]->query_until(qr/waits/, "\\echo waits\nSELECT idem_claim('prepared', 'orders');\n");
IdemTest::poll($node, q{
	SELECT count(*) = 3 FROM pg_stat_activity
	WHERE query LIKE 'SELECT idem_claim%' AND wait_event_type IN ('Lock', 'Extension')});
like(value($node, 'idem_inbox_waiting', 'sessions, longest_seconds > 0'),
	qr/^3\|t$/, 'three wait');
is( as_exporter($node, <<"SQL"), "holder|t\na prepared transaction: see pg_prepared_xacts|f\n|", 'for whom');
SELECT application_name, holds > 0
FROM (@{[ $who_waits =~ s/ORDER BY.*//sr ]}) q
ORDER BY holds DESC NULLS LAST
SQL
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
$holder->query_safe('COMMIT');
$_->quit foreach $holder, @waiters;

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay');
all_answer($standby, 'standby', map { ("idem_inbox_$_" => 0) } 'consumer', 'failing');
is( value($standby, 'idem_inbox_maintenance', 'last_timestamp_seconds'),
	value($node, 'idem_inbox_maintenance', 'last_timestamp_seconds'),
	'a standby tells of its primary\'s maintenance');

$standby->stop;
$node->stop;
done_testing();
