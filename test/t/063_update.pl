# ALTER EXTENSION UPDATE, and a library that is newer than the extension's SQL:
# records, consumers and the ring's state stay.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main', preload => 1,
	conf => ['idem_inbox.naptime = 1h']);

$node->safe_psql('postgres', q{
	SELECT idem_register('ledger', retention => '90 days', lease => '5 min');
	SELECT idem_claim('m-' || i, 'ledger') FROM generate_series(1, 100) i;
	SELECT idem_begin('m-begun', 'ledger');
	SELECT idem_maintain();
	UPDATE idem_ring SET current_age = '1 year';
	SELECT idem_maintain();
	SELECT idem_claim('m-new', 'ledger')});
my $state = q{
	SELECT md5(string_agg(r::text, '|' ORDER BY r::text))
	FROM (SELECT c::text AS r FROM idem_consumer c
		  UNION ALL SELECT i::text FROM idem_inbox i
		  UNION ALL SELECT concat_ws(',', current, next_open, previous_sealed) FROM idem_ring) r};
my $before = $node->safe_psql('postgres', $state);

# The next version, as a release would bring it.
my $script = IdemTest::script_directory($node) . '/idem_inbox--1.0--1.0.test.sql';
append_to_file($script, <<'SQL');
\echo Use "ALTER EXTENSION idem_inbox UPDATE" to load this file. \quit
CREATE FUNCTION idem_new_in_test(message_id text, consumer text) RETURNS bool
	AS 'MODULE_PATHNAME', 'idem_seen' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_new_in_test(text, text) IS 'only in a test';
REVOKE ALL ON FUNCTION idem_new_in_test(text, text) FROM PUBLIC;
ALTER TABLE idem_consumer ADD COLUMN note text;
SQL

# A session that has cached everything goes on through the update.
my $session = $node->background_psql('postgres');
is($session->query_safe(q{SELECT idem_claim('m-1', 'ledger')}),
	'duplicate', 'before the update');
$node->safe_psql('postgres', q{ALTER EXTENSION idem_inbox UPDATE TO '1.0.test'});
is($session->query_safe(q{SELECT idem_claim('m-1', 'ledger')}),
	'duplicate', 'after the update, in a session from before');
is( $session->query_safe(q{SELECT idem_claim('m-2', 'ledger', max_wait => '0')}),
	'duplicate', '... again');
$session->quit;
unlink $script;
is( $node->safe_psql('postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'idem_inbox'}),
	'1.0.test', 'the version');
is($node->safe_psql('postgres', q{SELECT idem_new_in_test('m-1', 'ledger')}),
	't', 'what is new');
$node->safe_psql('postgres', 'ALTER TABLE idem_consumer DROP COLUMN note');
is($node->safe_psql('postgres', $state), $before, 'everything has stayed');

# The other way round: the library knows functions that the SQL does not.
$node->safe_psql('postgres', q{
	ALTER EXTENSION idem_inbox DROP FUNCTION idem_claim_many(text[], text, bytea[], interval);
	DROP FUNCTION idem_claim_many(text[], text, bytea[], interval);
	ALTER EXTENSION idem_inbox DROP VIEW idem_stats;
	DROP VIEW idem_stats;
	ALTER EXTENSION idem_inbox DROP FUNCTION idem_stats_rows();
	DROP FUNCTION idem_stats_rows()});
is( $node->safe_psql('postgres', q{
		SELECT idem_claim('m-1', 'ledger'), idem_claim('m-101', 'ledger'),
			   idem_begin('m-begun', 'ledger')}),
	'duplicate|claimed|in_progress', 'a library newer than the SQL');
$node->append_conf('postgresql.conf', 'idem_inbox.naptime = 1s');
$node->restart;
$node->safe_psql('postgres', q{UPDATE idem_ring SET current_age = '1 year'});
IdemTest::poll($node, 'SELECT previous_sealed FROM idem_ring');
is( $node->safe_psql('postgres', q{SELECT DISTINCT idem_claim('m-' || i, 'ledger') FROM generate_series(1, 101) i}),
	'duplicate', 'the worker has turned the ring, and nothing is forgotten');

$node->stop;
done_testing();
