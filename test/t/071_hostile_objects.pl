# Objects that somebody else made to be found in place of the intended ones:
# in the schema before CREATE EXTENSION, earlier in search_path, in pg_temp.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	preload => 1,
	extension => 0,
	conf => [ 'idem_inbox.worker = off', "idem_inbox.naptime = '1s'", 'fsync = off' ]);

#
# In the schema, before CREATE EXTENSION: no object of somebody else becomes
# part of the inbox, nor is one called by its script.
#
sub create_fails_with
{
	my ($object, $message) = @_;
	my ($stdout, $stderr);

	$node->psql(
		'postgres', qq{
		CREATE SCHEMA inbox;
		SET search_path = inbox;
		$object;
		CREATE EXTENSION idem_inbox SCHEMA inbox},
		stderr => \$stderr);
	like($stderr, qr/ERROR: +$message/, "refused: $object");
	is( $node->safe_psql(
			'postgres', "SELECT count(*) FROM pg_extension WHERE extname = 'idem_inbox'"),
		0, 'and nothing is created');
	$node->safe_psql('postgres', 'DROP SCHEMA inbox CASCADE');
	return;
}
create_fails_with('CREATE TABLE idem_ring (LIKE pg_class)',
	'relation "idem_ring" already exists');
create_fails_with('CREATE TABLE idem_generation_2 (x int)',
	'relation "idem_generation_2" already exists');
# Those that belong to a table have names of the library's choice, too.
create_fails_with(
	"CREATE TABLE mine (x int, y int CONSTRAINT $_ UNIQUE)",
	qq{relation "$_" already exists})
  foreach qw(idem_consumer_pkey idem_consumer_name_key idem_ring_pkey
  idem_generation_1_pkey idem_generation_2_pkey idem_generation_3_pkey
  idem_generation_1_unfinished idem_quarantine_pkey);
create_fails_with('CREATE SEQUENCE idem_consumer_consumer_id_seq',
	'relation "idem_consumer_consumer_id_seq" already exists');
create_fails_with('CREATE VIEW idem_attention AS SELECT 1',
	'relation "idem_attention" already exists');
create_fails_with("CREATE TYPE idem_outcome AS ENUM ('claimed')",
	'type "idem_outcome" already exists');
create_fails_with('CREATE TYPE idem_message_id',
	'type "idem_message_id" already exists');
create_fails_with('CREATE DOMAIN idem_message_id AS text',
	'type "idem_message_id" already exists');
create_fails_with(
	q{CREATE FUNCTION idem_claim(message_id text, consumer text, fingerprint bytea = NULL, max_wait interval = NULL)
	  RETURNS text LANGUAGE sql AS $$ SELECT 'claimed' $$},
	'function "idem_claim" already exists with same argument types');

# Whatever has a name that the extension's script or its queries use, taking
# the very types that they use it with, and screaming when it is called.
sub traps
{
	my ($schema) = @_;
	my $sql = "SET search_path = $schema, pg_catalog, public;\n";
	my @types = qw(text int2 int4 int8 interval timestamptz bool name oid xid8);

	# the role that springs a trap may be one that may not write
	$sql .= qq{
		CREATE FUNCTION $schema.trap() RETURNS bool LANGUAGE plpgsql AS
		'BEGIN RAISE ''the trap has sprung''; END';
		CREATE DOMAIN $schema.interval AS text CHECK ($schema.trap());
		CREATE DOMAIN $schema.timestamptz AS text CHECK ($schema.trap());
		CREATE DOMAIN $schema.jsonb AS text CHECK ($schema.trap());
		CREATE DOMAIN $schema.regclass AS text CHECK ($schema.trap());};
	foreach my $type (map { "pg_catalog.$_" } @types)
	{
		my $name = $type =~ s/.*\.//r;

		$sql .= qq{
			CREATE FUNCTION $schema.trap_$name($type, $type) RETURNS bool LANGUAGE sql AS 'SELECT $schema.trap()';
			CREATE FUNCTION $schema.trap_value_$name($type, $type) RETURNS $type LANGUAGE sql AS 'SELECT \$1 WHERE $schema.trap()';};
		$sql .= "CREATE OPERATOR $schema.$_ (LEFTARG = $type, RIGHTARG = $type, FUNCTION = $schema.trap_$name);\n"
		  foreach qw(= <> < <= > >=);
		$sql .= "CREATE OPERATOR $schema.$_ (LEFTARG = $type, RIGHTARG = $type, FUNCTION = $schema.trap_value_$name);\n"
		  foreach qw(+ - %);
		foreach my $function (qw(max count min age octet_length date_trunc coalesce_ format btequalimage pg_stat_get_live_tuples pg_total_relation_size))
		{
			$sql .= "CREATE FUNCTION $schema.$function($type) RETURNS $type LANGUAGE sql AS 'SELECT \$1 WHERE $schema.trap()';\n";
		}
	}
	foreach my $function (qw(now clock_timestamp current_database pg_backend_pid))
	{
		$sql .= "CREATE FUNCTION $schema.$function() RETURNS pg_catalog.timestamptz LANGUAGE sql AS 'SELECT NULL::pg_catalog.timestamptz WHERE $schema.trap()';\n";
	}
	$sql .= qq{
		CREATE FUNCTION $schema.format(pg_catalog.text, VARIADIC pg_catalog.text[]) RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT NULL::pg_catalog.text WHERE $schema.trap()';
		CREATE FUNCTION $schema.trap_json(pg_catalog.jsonb, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT NULL::pg_catalog.text WHERE $schema.trap()';
		CREATE OPERATOR $schema.->> (LEFTARG = pg_catalog.jsonb, RIGHTARG = pg_catalog.text, FUNCTION = $schema.trap_json);};
	return $sql . 'RESET search_path;';
}

# Traps in the extension's own schema, while its script runs and later; the
# views and the ring's table are made with their operators and functions.
$node->safe_psql('postgres', "CREATE SCHEMA inbox;\n" . traps('inbox'));
$node->safe_psql(
	'postgres', q{
	SET search_path = inbox, pg_catalog, public;
	CREATE EXTENSION idem_inbox SCHEMA inbox});
is( $node->safe_psql(
		'postgres', q{
		SELECT string_agg(pg_describe_object(d.classid, d.objid, 0) || ' on ' || pg_describe_object(d.refclassid, d.refobjid, 0), ', ')
		FROM pg_depend d
		WHERE pg_describe_object(d.refclassid, d.refobjid, 0) ~ 'inbox\.'
		  AND pg_describe_object(d.classid, d.objid, 0) ~ 'idem_'
		  AND NOT pg_describe_object(d.refclassid, d.refobjid, 0) ~ 'inbox\.(idem_|text\(inbox\.idem_message_id\)|[<>=]+\(inbox\.idem_message_id)'}),
	'', 'nothing of the extension depends on what was there before');

# The whole life of some messages, and of the ring; what comes of it.
my $life = q{
	SELECT inbox.idem_register('mail'::text, retention => '1 day', lease => '1 hour');
	SELECT inbox.idem_claim('a', 'mail', '\x01'), inbox.idem_claim('a', 'mail', '\x01'), inbox.idem_claim('a', 'mail', '\x02');
	SELECT * FROM inbox.idem_claim_many('{b,c,b}', 'mail');
	BEGIN; SELECT inbox.idem_claim('d', 'mail'); SELECT inbox.idem_complete('1'::pg_catalog.jsonb); SELECT * FROM inbox.idem_claims(); COMMIT;
	SELECT inbox.idem_begin('e', 'mail', lease => '0'), inbox.idem_takeover('e', 'mail', lease => '0');
	SELECT message_id, attempt FROM inbox.idem_takeover_next('mail');
	SELECT inbox.idem_extend('e', 'mail', '0', 3) IS NULL, inbox.idem_complete('e', 'mail', '"sent"', 3);
	SELECT inbox.idem_begin('f', 'mail', lease => '0'), inbox.idem_abandon('f', 'mail'), inbox.idem_begin('f', 'mail', lease => '0');
	SELECT inbox.idem_seen('e', 'mail'), inbox.idem_result('e', 'mail'), s.state, s.result FROM inbox.idem_status('e', 'mail') s;
	SELECT inbox.idem_import('g', 'mail', '2020-01-01');
	SELECT inbox.idem_fingerprint('{"a": 1.0}'::pg_catalog.jsonb) OPERATOR(pg_catalog.=) inbox.idem_fingerprint('{"a": 1}'::pg_catalog.jsonb);
	SELECT inbox.idem_cloudevent_id('{"source": "s", "id": "i"}');
	SELECT message_id, consumer, state FROM inbox.idem_inbox ORDER BY message_id::pg_catalog.text, state;
	SELECT reason, message_id, resolve FROM inbox.idem_attention ORDER BY message_id::pg_catalog.text;
	SELECT inbox.idem_resolve('a', 'mail', 'dismiss'), inbox.idem_resolve('f', 'mail', 'complete');
	SELECT inbox.idem_maintain();
	UPDATE inbox.idem_ring SET current_age = '1 year';
	SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain();
	UPDATE inbox.idem_ring SET previous_age = '1 year';
	SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain(); SELECT inbox.idem_maintain();
	SELECT "table", role, next_step FROM inbox.idem_generation ORDER BY "table"::pg_catalog.text;
	SELECT consumer, claimed, duplicate, mismatch FROM inbox.idem_stats;
	SELECT consumer FROM inbox.idem_failing;
	SELECT message_id, state FROM inbox.idem_inbox WHERE message_id OPERATOR(inbox.=) 'f'::pg_catalog.text;
	SELECT step FROM inbox.idem_next_step();
	SELECT inbox.idem_forget('a', 'mail'), inbox.idem_claim('a', 'mail'), inbox.idem_stats_reset('mail');
};

sub life
{
	my ($search_path, $setup) = @_;

	$node->safe_psql('postgres', 'DROP EXTENSION idem_inbox; CREATE EXTENSION idem_inbox SCHEMA inbox');
	return $node->safe_psql(
		'postgres', ($setup // '') . qq{
		\\set VERBOSITY verbose
		SET search_path = $search_path;
		$life});
}

# From here on the schema that has nothing but the extension is the measure.
$node->safe_psql('postgres', 'DROP SCHEMA inbox CASCADE; CREATE SCHEMA inbox; CREATE EXTENSION idem_inbox SCHEMA inbox');
my $expected = life('pg_catalog');
like($expected, qr/claimed\|duplicate\|mismatch.*emptied/s,
	'messages and ring have lived');

$node->safe_psql('postgres', "CREATE SCHEMA evil;\n" . traps('evil')
	. "CREATE TYPE evil.idem_outcome AS ENUM ('duplicate')");
my ($stdout, $stderr);
$node->psql('postgres', q{SET search_path = evil, pg_catalog; SELECT 1::int4 = 1::int4},
	stderr => \$stderr);
like($stderr, qr/the trap has sprung/, 'the traps work');

# Tables of the extension's names, ready to say that all has been processed by
# somebody else.
my $doubles = q{
	CREATE FUNCTION %1$s.trap_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''the trap has sprung''; END';
	CREATE TABLE %1$s.idem_consumer AS TABLE inbox.idem_consumer;
	INSERT INTO %1$s.idem_consumer VALUES (1, 'mail', NULL, NULL, 'pg_monitor', now());
	CREATE TABLE %1$s.idem_ring (LIKE inbox.idem_ring INCLUDING DEFAULTS);
	INSERT INTO %1$s.idem_ring VALUES (true, 3, true);
	CREATE TABLE %1$s.idem_generation_1 (LIKE inbox.idem_generation_1);
	CREATE TABLE %1$s.idem_generation_2 (LIKE inbox.idem_generation_1);
	CREATE TABLE %1$s.idem_generation_3 (LIKE inbox.idem_generation_1);
	INSERT INTO %1$s.idem_generation_1 SELECT now(), now(), NULL, 1, NULL, m::inbox.idem_message_id FROM unnest('{a,b,c,d,e,f,g}'::text[]) m;
	CREATE TABLE %1$s.idem_quarantine (LIKE inbox.idem_quarantine);
	CREATE TABLE %1$s.idem_resolution (LIKE inbox.idem_resolution);
	CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON %1$s.idem_consumer FOR EACH ROW EXECUTE FUNCTION %1$s.trap_row();
	CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON %1$s.idem_ring FOR EACH ROW EXECUTE FUNCTION %1$s.trap_row();
	CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON %1$s.idem_generation_1 FOR EACH ROW EXECUTE FUNCTION %1$s.trap_row();
	CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON %1$s.idem_quarantine FOR EACH ROW EXECUTE FUNCTION %1$s.trap_row();
};
sub doubles
{
	my ($schema) = @_;

	return $doubles =~ s/%1\$s/$schema/gr;
}

# Arguments need their types where the traps have one of the same name.
is(life('evil, pg_catalog, inbox', doubles('evil')),
	$expected, 'with a hostile schema first in search_path');
$node->safe_psql('postgres', 'DROP SCHEMA evil CASCADE; CREATE SCHEMA evil;' . traps('evil'));
is(life('evil, pg_temp', doubles('pg_temp')),
	$expected, 'with temporary tables of the same names');
is(life('"$user", "no such schema"'), $expected, 'with no schema in search_path');

#
# The worker, in a database and for a role with such a search_path
#
$node->safe_psql('postgres', doubles('evil') . q{
	DROP EXTENSION idem_inbox CASCADE;
	CREATE EXTENSION idem_inbox SCHEMA inbox;
	ALTER DATABASE postgres SET search_path = evil, pg_catalog;
	ALTER ROLE postgres SET search_path = evil, pg_catalog;
	SELECT inbox.idem_begin('e', 'mail', lease => '0')});
$node->append_conf('postgresql.conf', 'idem_inbox.worker = on');
$node->reload;
$node->wait_for_log(qr/message "e" of consumer "mail" needs attention/);
$node->safe_psql('postgres', q{
	SET search_path = pg_catalog;
	UPDATE inbox.idem_ring SET current_age = '1 year'});
IdemTest::poll($node, 'SELECT previous_sealed FROM inbox.idem_ring');
my $log = slurp_file($node->logfile);
my $sprung = () = $log =~ /ERROR: +the trap has sprung/g;
is($sprung, 1, 'the worker springs no trap');

$node->stop;
done_testing();
