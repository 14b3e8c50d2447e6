# Many sessions claim the same messages at the same moment: each message is
# processed once, each consumer registered once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	conf => [ 'fsync = off', 'synchronous_commit = off' ]);

# No constraint: what was processed twice is to be counted, not prevented.
$node->safe_psql(
	'postgres', q{
	CREATE TABLE effect (message_id text, consumer text);
	CREATE TABLE outcome (outcome idem_outcome)});

# The clock makes the clients meet: all of them claim one message of the
# moment, and now and then a consumer that nobody knows yet.
my $message = q{
	\set roll random(1, 10)
	SELECT (extract(epoch FROM clock_timestamp()) * 2000)::bigint AS m,
		   (extract(epoch FROM clock_timestamp()) * 20)::bigint AS c \gset
};

# in one statement, in a transaction that may roll back, after a savepoint,
# with a bounded wait, in a batch
my %scripts = (
	'statement@4' => $message . q{
	WITH claim AS MATERIALIZED
		 (INSERT INTO outcome SELECT idem_claim(:m::text, 'consumer-' || :c)
		  RETURNING outcome)
	INSERT INTO effect SELECT :m::text, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
},
	'transaction@2' => $message . q{
	BEGIN;
	WITH claim AS MATERIALIZED
		 (INSERT INTO outcome SELECT idem_claim(:m::text, 'consumer-' || :c)
		  RETURNING outcome)
	INSERT INTO effect SELECT :m::text, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
	\if :roll > 7
	ROLLBACK;
	\else
	COMMIT;
	\endif
},
	'savepoint@1' => $message . q{
	BEGIN;
	SAVEPOINT s;
	SELECT idem_claim(:m::text, 'consumer-' || :c);
	ROLLBACK TO SAVEPOINT s;
	WITH claim AS MATERIALIZED
		 (INSERT INTO outcome SELECT idem_claim(:m::text, 'consumer-' || :c)
		  RETURNING outcome)
	INSERT INTO effect SELECT :m::text, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
	COMMIT;
},
	'bounded@2' => $message . q{
	WITH claim AS MATERIALIZED
		 (INSERT INTO outcome
		  SELECT idem_claim(:m::text, 'consumer-' || :c, max_wait => '1 ms')
		  RETURNING outcome)
	INSERT INTO effect SELECT :m::text, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
},
	'batch@2' => $message . q{
	WITH claim AS MATERIALIZED
		 (SELECT * FROM idem_claim_many(ARRAY[(:m + 1)::text, :m::text, (:m - 1)::text],
										'consumer-' || :c)),
		 outcomes AS (INSERT INTO outcome SELECT outcome FROM claim)
	INSERT INTO effect SELECT message_id, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
},
	'begin@1' => $message . q{
	WITH claim AS MATERIALIZED
		 (INSERT INTO outcome SELECT idem_begin(:m::text, 'consumer-' || :c)
		  RETURNING outcome)
	INSERT INTO effect SELECT :m::text, 'consumer-' || :c FROM claim
	WHERE outcome = 'claimed';
});

$node->pgbench(
	'--no-vacuum --client=6 --jobs=2 --time=5',
	0,
	[qr{number of failed transactions: 0|^((?!aborted).)*$}s],
	[qr{^(?!.*ERROR)}s],
	'six clients claim what the clock says',
	\%scripts);

is( $node->safe_psql(
		'postgres', q{
	SELECT message_id, consumer, count(*) FROM effect
	GROUP BY 1, 2 HAVING count(*) > 1 LIMIT 5}),
	'', 'nothing was processed twice');
is( $node->safe_psql(
		'postgres', q{
	SELECT count(*) FROM effect e
		 FULL JOIN idem_inbox i
			ON i.message_id::text = e.message_id AND i.consumer = e.consumer
	WHERE e.message_id IS NULL OR i.message_id IS NULL}),
	'0', 'every record has its work, every work its record');
is( $node->safe_psql(
		'postgres', q{
	SELECT name FROM idem_consumer GROUP BY name HAVING count(*) > 1 LIMIT 5}),
	'', 'no consumer was registered twice');
is( $node->safe_psql(
		'postgres', q{
	SET enable_indexscan = off; SET enable_indexonlyscan = off;
	SET enable_bitmapscan = off;
	SELECT consumer_id, message_id FROM idem_generation_1
	GROUP BY 1, 2 HAVING count(*) > 1 LIMIT 5}),
	'', 'no key is there twice');

# The clients have met, or the test has shown nothing.
my %seen = map { split /\|/ } split /\n/, $node->safe_psql(
	'postgres', 'SELECT outcome, count(*) FROM outcome GROUP BY 1');
note join ', ', map { "$_ $seen{$_}" } sort keys %seen;
cmp_ok($seen{claimed}, '>', 100, 'messages were claimed');
cmp_ok($seen{duplicate}, '>', 100, 'messages were met twice');

# Losing rows do not stay in anybody's way.
is( $node->safe_psql(
		'postgres', q{
	SELECT DISTINCT idem_claim(message_id, consumer) FROM effect
	WHERE NOT EXISTS (SELECT FROM idem_status(message_id, consumer)
					  WHERE state <> 'completed')}),
	'duplicate', 'everything is a duplicate now');

$node->stop;
done_testing();
