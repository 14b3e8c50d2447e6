# Who may do what, for every object of the extension, whatever is added: a role
# without grants can do nothing, and one that may execute everything cannot
# touch another owner's consumer.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	preload => 1,
	conf => [ 'idem_inbox.worker = off', 'fsync = off' ]);

# What PUBLIC may call: the message id's own functions, which see nothing but
# their arguments.
my $for_public = qr/^(idem_message_id(_\w+)?|text)\(/;

# Members of the extension, a row each: class, identity, oid.
$node->safe_psql(
	'postgres', q{
	CREATE SCHEMA test;
	CREATE VIEW test.member AS
		SELECT d.classid::regclass::text AS class, d.objid AS oid,
			   pg_describe_object(d.classid, d.objid, 0) AS what
		FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
		WHERE d.refclassid = 'pg_extension'::regclass
		  AND d.deptype = 'e' AND e.extname = 'idem_inbox';
	CREATE VIEW test.function AS
		SELECT p.oid, p.oid::regprocedure::text AS signature, p.proname AS name,
			   p.proargtypes::oid[] AS types,
			   p.prorettype = 'trigger'::regtype AS is_trigger,
			   'internal'::regtype = ANY (p.proargtypes) AS is_internal,
			   p.proargnames[1:p.pronargs] AS arguments,
			   p.pronargs - p.pronargdefaults AS needed
		FROM pg_proc p JOIN test.member m ON m.oid = p.oid AND m.class = 'pg_proc';
	CREATE VIEW test.relation AS
		SELECT c.oid, c.oid::regclass::text AS name, c.relkind AS kind
		FROM pg_class c JOIN test.member m ON m.oid = c.oid AND m.class = 'pg_class';

	-- what comes of a statement: its SQLSTATE and message, or 'done'
	CREATE FUNCTION test.attempt(statement text) RETURNS text LANGUAGE plpgsql
	AS $$
	BEGIN
		EXECUTE statement;
		RETURN 'done';
	EXCEPTION WHEN OTHERS THEN
		RETURN sqlstate || ' ' || sqlerrm;
	END
	$$;
	GRANT USAGE ON SCHEMA test TO PUBLIC;
	GRANT SELECT ON ALL TABLES IN SCHEMA test TO PUBLIC;
	CREATE ROLE stranger LOGIN;
	CREATE ROLE mallory LOGIN;
	CREATE ROLE victim LOGIN;
	CREATE SCHEMA lair;
	GRANT ALL ON SCHEMA lair TO stranger, mallory});

sub rows
{
	return split /\n/, $node->safe_psql('postgres', shift);
}

# What comes of each statement in a session of that role.
sub attempt
{
	my ($role, @statements) = @_;
	my $sql = join '', map { "SELECT replace(test.attempt(\$s\$$_\$s\$), E'\\n', ' ');\n" } @statements;

	return split /\n/,
	  $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role ]);
}

# Each of the statements fails for lack of privilege, with a message like that.
sub refused
{
	my ($role, $message, $name, @statements) = @_;
	my @came = attempt($role, @statements);
	my @wrong = grep { $came[$_] !~ /^42501 $message/ } 0 .. $#statements;

	cmp_ok(scalar @statements, '>', 0, "$name: there are some");
	is(scalar @came, scalar @statements, "$name: all tried");
	is(join("\n", map { "$statements[$_]: $came[$_]" } @wrong),
		'', "$name: " . @statements . ' statements refused');
	return;
}

# A call of every other function; the arguments do not matter, but a call with
# NULL may be left out as one of a STRICT function.
my @protected = rows(
	q{SELECT format('SELECT * FROM %s(%s)', name,
					(SELECT string_agg(
								CASE WHEN t IN ('text'::regtype, 'name'::regtype) THEN '''x'''
									 WHEN t = 'jsonb'::regtype THEN '''{}'''
									 WHEN t = 'bytea'::regtype THEN '''\\x01'''
									 ELSE 'NULL' END || '::' || format_type(t, NULL), ', ' ORDER BY n)
					 FROM unnest(types) WITH ORDINALITY u(t, n)))
	  FROM test.function
	  WHERE NOT is_trigger AND name !~ '^(idem_message_id(_[a-z]+)?|text)$'});

#
# A role without grants
#
is( join(' ', rows('SELECT DISTINCT class FROM test.member ORDER BY 1')),
	'pg_cast pg_class pg_opclass pg_operator pg_opfamily pg_proc pg_type',
	'no other kinds of members than those below')
  or note 'members of a new kind need a test of who may use them';
is( join(' ', grep { !/$for_public/ } rows(
			q{SELECT signature FROM test.function
			  WHERE has_function_privilege('stranger', oid, 'EXECUTE')})),
	'', 'PUBLIC may execute the message id only');
is( join(' ', rows(
			q{SELECT what FROM test.member JOIN pg_operator o USING (oid)
			  WHERE class = 'pg_operator' AND NOT (oprleft = oprright AND oprleft = 'idem_message_id'::regtype)
			  UNION ALL
			  SELECT what FROM test.member JOIN pg_cast c USING (oid)
			  WHERE class = 'pg_cast' AND castfunc NOT IN ('idem_message_id(text)'::regprocedure, 'text(idem_message_id)'::regprocedure)
			  UNION ALL
			  SELECT signature FROM test.function JOIN pg_proc p USING (oid)
			  WHERE has_function_privilege('stranger', oid, 'EXECUTE')
				AND (provolatile, proparallel, proisstrict) <> ('i', 's', true)})),
	'', 'operators and casts see nothing but message ids');
is( join(' ', rows(
			q{SELECT format('%s by %s', coalesce(a.grantee::regrole::text, ''), c.name)
			  FROM test.relation c JOIN pg_class USING (oid),
				   aclexplode(relacl) a WHERE a.grantee NOT IN (relowner, 'pg_monitor'::regrole)})),
	'', 'tables and views are granted to pg_monitor at most');
is( join(' ', rows(
			q{SELECT name FROM test.relation
			  WHERE has_table_privilege('pg_monitor', oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
				AND kind <> 'S'})),
	'', 'pg_monitor may change nothing');
is( join(' ', rows(
			q{SELECT signature FROM test.function
			  WHERE oid IN (SELECT p.oid FROM pg_proc p WHERE p.prosecdef)})),
	'', 'no function of the extension is SECURITY DEFINER');

refused('stranger', 'permission denied for function', 'functions', @protected);
refused(
	'stranger',
	'permission denied for function',
	'trigger functions',
	rows(
		q{SELECT format('CREATE TEMP TABLE mine (x int); CREATE TRIGGER t AFTER INSERT ON mine EXECUTE FUNCTION %s()', name)
		  FROM test.function WHERE is_trigger}));
refused(
	'stranger',
	'permission denied for (table|view|sequence)',
	'tables, views, sequences',
	rows(
		q{SELECT format(s, c.name)
		  FROM test.relation c,
			   unnest(ARRAY['SELECT FROM %s', 'SELECT count(*) FROM %s', 'TABLE %s',
							'INSERT INTO %s DEFAULT VALUES', 'DELETE FROM %s',
							'TRUNCATE %s', 'LOCK TABLE %s IN ACCESS SHARE MODE',
							'LOCK TABLE %s']) s
		  WHERE kind = 'r' OR (kind = 'v' AND s ~ '^(SELECT|TABLE)')
		  UNION ALL
		  SELECT format('SELECT %s(%L)', f, c.name)
		  FROM test.relation c, unnest(ARRAY['nextval', 'pg_sequence_last_value']) f
		  WHERE kind = 'S'
			-- from 18 on that answers NULL, see below
			AND (f = 'nextval' OR current_setting('server_version_num')::int < 180000)
		  UNION ALL
		  SELECT format('SELECT setval(%L, 1)', c.name) FROM test.relation c WHERE kind = 'S'
		  UNION ALL
		  SELECT format('UPDATE %s SET %I = NULL', c.name, a.attname)
		  FROM test.relation c JOIN pg_attribute a ON a.attrelid = c.oid
		  WHERE a.attnum > 0 AND c.kind = 'r'
		  UNION ALL
		  SELECT format('SELECT %I FROM %s', a.attname, c.name)
		  FROM test.relation c JOIN pg_attribute a ON a.attrelid = c.oid
		  WHERE a.attnum > 0 AND c.kind IN ('r', 'v')}));
refused(
	'stranger',
	'(must be|permission denied)',
	'definitions',
	rows(
		q{SELECT format(s, signature)
		  FROM test.function, unnest(ARRAY['DROP FUNCTION %s', 'ALTER FUNCTION %s OWNER TO stranger',
										   'ALTER FUNCTION %s SECURITY DEFINER', 'COMMENT ON FUNCTION %s IS NULL']) s
		  UNION ALL
		  SELECT format(s, name)
		  FROM test.relation, unnest(ARRAY['DROP TABLE %s', 'ALTER TABLE %s ADD x int', 'ALTER TABLE %s DISABLE TRIGGER ALL',
										   'CREATE INDEX ON %s ((1))', 'ALTER TABLE %s DISABLE ROW LEVEL SECURITY',
										   'CREATE TRIGGER t AFTER INSERT ON %s EXECUTE FUNCTION suppress_redundant_updates_trigger()',
										   'CREATE RULE r AS ON INSERT TO %s DO INSTEAD NOTHING', 'CLUSTER %s', 'REINDEX TABLE %s']) s
		  WHERE kind = 'r'
		  UNION ALL
		  VALUES ('DROP EXTENSION idem_inbox'), ('ALTER EXTENSION idem_inbox UPDATE'),
				 ('ALTER EXTENSION idem_inbox DROP TABLE idem_ring'),
				 ('DROP TYPE idem_message_id CASCADE'), ('ALTER TYPE idem_outcome ADD VALUE ''stolen'''),
				 ('CREATE OPERATOR CLASS lair.o DEFAULT FOR TYPE idem_message_id USING hash AS OPERATOR 1 =, FUNCTION 1 hashtext(text)'),
				 ('CREATE CAST (bytea AS idem_message_id) WITHOUT FUNCTION')}));
# A view of one's own reads with one's own privileges.
refused(
	'stranger',
	'permission denied for (table|view)',
	'views of others',
	rows(
		q{SELECT format('CREATE VIEW lair.v AS TABLE %s; TABLE lair.v', name)
		  FROM test.relation WHERE kind IN ('r', 'v')}));

#
# A role that may execute everything, and another owner's consumer
#
$node->safe_psql(
	'postgres', q{
	DO $$
	DECLARE
		f text;
	BEGIN
		FOR f IN SELECT signature FROM test.function LOOP
			EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO victim, mallory', f);
		END LOOP;
	END
	$$});
$node->safe_psql(
	'postgres', q{
	SELECT idem_register('mail', lease => '1 hour', retention => '30 days');
	SELECT idem_claim('claimed', 'mail', '\x01');
	SELECT idem_begin('left', 'mail', lease => '0');
	SELECT idem_begin('leased', 'mail');
	SELECT idem_begin('completed', 'mail'), idem_complete('completed', 'mail', '"sent"');
	SELECT idem_claim('claimed', 'mail', '\x02');
	BEGIN; SELECT idem_claim('failed', 'mail'); ROLLBACK},
	extra_params => [ '-U', 'victim' ]);

# Everything that the victim has, as text; not what says how old it is.
sub possessions
{
	return $node->safe_psql('postgres',
		q{SELECT format('SELECT %L, t.* FROM %s t', name, name)
		  FROM test.relation
		  WHERE kind IN ('r', 'v', 'S')
			AND name NOT IN ('idem_ring', 'idem_generation', 'idem_attention')
		  ORDER BY name \\gexec});
}

my $before = possessions();
like($before, qr/^idem_failing\|mail\|failed\|1\|/m, 'the victim has something to lose');

# Every function with a consumer, on messages in every state.
my @about = rows(
	q{SELECT format('SELECT * FROM %s(%s)', name,
					(SELECT string_agg(format('%I => %s', a, v), ', ')
					 FROM unnest(arguments) WITH ORDINALITY u(a, n),
						  LATERAL (SELECT CASE a WHEN 'consumer' THEN quote_literal('mail')
												 WHEN 'message_id' THEN quote_literal(message)
												 WHEN 'message_ids' THEN quote_literal(ARRAY[message])
												 WHEN 'action' THEN quote_literal(action)
												 ELSE 'NULL' END AS v) w
					 WHERE n <= needed OR v <> 'NULL'))
	  FROM test.function,
		   unnest(ARRAY['claimed', 'left', 'leased', 'completed', 'failed', 'never seen']) message,
		   unnest(ARRAY['complete', 'abandon', 'forget', 'dismiss']) action
	  WHERE 'consumer' = ANY (arguments)
	  GROUP BY 1});
push @about,
  map { "SELECT idem_register('mail', owner => '$_')" } 'mallory', 'victim';
refused('mallory', 'permission denied for consumer "mail"',
	'another owner\'s consumer', grep { !/owner => 'victim'/ } @about);
refused('mallory', '(permission denied for consumer|must be member of role)',
	'to give away what is another\'s', grep { /owner =>/ } @about);
is(possessions(), $before, 'the victim has what it had');

# The functions without a consumer: these and no others.
is( join(' ', rows(
			q{SELECT DISTINCT name FROM test.function
			  WHERE NOT 'consumer' = ANY (coalesce(arguments, '{}'))
				AND NOT has_function_privilege('stranger', oid, 'EXECUTE')
			  ORDER BY 1})),
	join(' ', sort qw(
		  idem_attention_after idem_claims idem_cloudevent_id idem_complete
		  idem_failing_rows idem_fingerprint idem_invalidate idem_maintain
		  idem_next_step idem_replace_ring idem_require_claim idem_stats_rows
		  idem_version)),
	'no other functions without a consumer')
  or note 'what can a new one do to another owner\'s consumer?';
refused(
	'mallory',
	'permission denied to reset the counters',
	'the counters of all', 'SELECT idem_stats_reset(NULL)');
is(join(' ', attempt('mallory', 'SELECT idem_maintain()')),
	'done', 'maintenance goes by the settings');
refused(
	'mallory',
	'permission denied to set parameter',
	'the settings',
	map { "SET idem_inbox.$_" } 'retention = 1', 'max_result = 0',
	'attention_after = 1');
is(join(' ', attempt('mallory', 'SET idem_inbox.naptime = 1')),
	'55P02 parameter "idem_inbox.naptime" cannot be changed now',
	'nor the speed at which time counts');
is(possessions(), $before,
	'and the victim has what it had');

# The inbox's triggers on a table of one's own do nothing to the inbox.
is( join(' ', attempt(
			'mallory',
			map { "CREATE TABLE lair.$_ (x int); CREATE TRIGGER t BEFORE INSERT ON lair.$_ FOR EACH ROW EXECUTE FUNCTION idem_$_(); INSERT INTO lair.$_ VALUES (1)" }
			  'invalidate', 'replace_ring')),
	'done done', 'trigger functions on another table');
is(possessions(), $before,
	'leave the inbox alone');

# Nor do privileges on the tables, if only to read them, open another way in.
$node->safe_psql('postgres', 'GRANT SELECT ON ALL TABLES IN SCHEMA public TO mallory');
refused(
	'mallory',
	'permission denied for (table|view)',
	'to write what may be read',
	rows(
		q{SELECT format(s, name) FROM test.relation,
			   unnest(ARRAY['INSERT INTO %s DEFAULT VALUES', 'DELETE FROM %s', 'TRUNCATE %s',
							'SELECT FROM %s FOR UPDATE', 'LOCK TABLE %s IN ROW EXCLUSIVE MODE']) s
		  WHERE kind = 'r'}));
is(possessions(), $before,
	'again nothing has changed');

# From 18 on pg_sequence_last_value() says nothing instead of refusing.
my $last = q{SELECT count(*), count(pg_sequence_last_value(oid)) FROM test.relation WHERE kind = 'S'};
is($node->safe_psql('postgres', $last), '1|1', 'the sequence has been used');
$node->safe_psql('postgres', 'GRANT USAGE ON SCHEMA test TO stranger; GRANT SELECT ON test.relation TO stranger');
my ($ret, $out, $err) = $node->psql('postgres', $last, extra_params => [ '-U', 'stranger' ]);
like("$out$err", qr/^1\|0$|permission denied for sequence/, 'and tells a stranger nothing');

$node->stop;
done_testing();
