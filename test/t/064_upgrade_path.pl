# However an installation came to a version, its objects are those of a fresh
# one: definitions, comments, privileges, what a dump keeps.  From each version
# whose full script is there; and, so that this sees something while there is
# only one, from it to a next one that exists in this test.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main', extension => 0);
my $directory = IdemTest::script_directory($node);
my ($default) = slurp_file("$directory/idem_inbox.control") =~ /^default_version = '(.*)'$/m;

# All that belongs to the extension, a line for each fact.  "now"() and numbers
# of objects are not in it.
my $facts = <<'SQL';
CREATE TEMP VIEW member AS
SELECT classid, objid, objsubid, pg_describe_object(classid, objid, objsubid) AS name
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_inbox');
CREATE TEMP VIEW relation AS
SELECT c.*, m.name FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass;

SELECT concat_ws(' | ', name, 'comment', obj_description(objid, classid::regclass::name)) FROM member
UNION ALL
SELECT concat_ws(' | ', m.name, pg_get_functiondef(objid), proacl::text) FROM member m JOIN pg_proc ON objid = pg_proc.oid
WHERE classid = 'pg_proc'::regclass
UNION ALL
SELECT concat_ws(' | ', name, relkind::text, relacl::text, reloptions::text, relrowsecurity::text,
	CASE WHEN relkind = 'v' THEN pg_get_viewdef(oid) END, obj_description(oid, 'pg_class')) FROM relation
UNION ALL
SELECT concat_ws(' | ', r.name, attname, format_type(atttypid, atttypmod), attnotnull::text, attstorage::text,
	attstattarget::text, attacl::text, pg_get_expr(adbin, adrelid), col_description(attrelid, attnum))
FROM relation r JOIN pg_attribute a ON attrelid = r.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
UNION ALL
SELECT concat_ws(' | ', r.name, pg_get_indexdef(indexrelid)) FROM relation r JOIN pg_index ON indrelid = r.oid
UNION ALL
SELECT concat_ws(' | ', r.name, conname, pg_get_constraintdef(k.oid)) FROM relation r JOIN pg_constraint k ON conrelid = r.oid
UNION ALL
SELECT concat_ws(' | ', r.name, pg_get_triggerdef(t.oid)) FROM relation r JOIN pg_trigger t ON tgrelid = r.oid
UNION ALL
SELECT concat_ws(' | ', m.name, typtype::text, typlen::text, typstorage::text, typalign::text, typcategory::text, typacl::text,
	typinput::text, typoutput::text, typreceive::text, typsend::text, typdelim::text,
	(SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid))
FROM member m JOIN pg_type t ON objid = t.oid WHERE classid = 'pg_type'::regclass
UNION ALL
SELECT concat_ws(' | ', m.name, oprcode::text, oprrest::text, oprjoin::text, oprcanmerge::text, oprcanhash::text,
	oprcom::regoperator::text, oprnegate::regoperator::text)
FROM member m JOIN pg_operator o ON objid = o.oid WHERE classid = 'pg_operator'::regclass
UNION ALL
SELECT concat_ws(' | ', m.name, castfunc::regprocedure::text, castcontext::text, castmethod::text)
FROM member m JOIN pg_cast k ON objid = k.oid WHERE classid = 'pg_cast'::regclass
UNION ALL
SELECT concat_ws(' | ', m.name, opcdefault::text, opcintype::regtype::text, opckeytype::regtype::text)
FROM member m JOIN pg_opclass o ON objid = o.oid WHERE classid = 'pg_opclass'::regclass
UNION ALL
SELECT concat_ws(' | ', m.name, amopstrategy::text, amopopr::regoperator::text)
FROM member m JOIN pg_amop ON objid = amopfamily WHERE classid = 'pg_opfamily'::regclass
UNION ALL
SELECT concat_ws(' | ', m.name, amprocnum::text, amproc::text)
FROM member m JOIN pg_amproc ON objid = amprocfamily WHERE classid = 'pg_opfamily'::regclass
UNION ALL
SELECT concat_ws(' | ', 'kept by a dump', x.relation::regclass::text, x.condition)
FROM pg_extension, unnest(extconfig, extcondition) x(relation, condition) WHERE extname = 'idem_inbox'
ORDER BY 1;
SQL

my $databases = 0;

sub facts_after
{
	my (@statements) = @_;
	my $database = 'upgrade_' . ++$databases;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, $_) foreach @statements;
	return $node->safe_psql($database, $facts);
}

sub updated
{
	my ($from, $to) = @_;

	return facts_after("CREATE EXTENSION idem_inbox VERSION '$from'",
		"ALTER EXTENSION idem_inbox UPDATE TO '$to'");
}

my $fresh = facts_after('CREATE EXTENSION idem_inbox');
cmp_ok(scalar(split /\n/, $fresh), '>', 200, 'there are facts');
foreach my $from (map { m{/idem_inbox--([^-]*)\.sql$} } glob "$directory/idem_inbox--*.sql")
{
	is(updated($from, $default), $fresh, "from $from to $default as fresh") if $from ne $default;
}

# The next version.
my $new = <<'SQL';
CREATE FUNCTION idem_new_in_test(message_id text) RETURNS idem_message_id
	AS 'MODULE_PATHNAME', 'idem_message_id_from_text' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_new_in_test(text) IS 'only in a test';
REVOKE ALL ON FUNCTION idem_new_in_test(text) FROM PUBLIC;
ALTER TABLE idem_consumer ADD COLUMN note text;
COMMENT ON COLUMN idem_consumer.note IS 'only in a test';
SQL
my $step = "$directory/idem_inbox--$default--next.sql";

sub write_step
{
	unlink $step;
	append_to_file($step, qq{\\echo Use "ALTER EXTENSION idem_inbox UPDATE" to load this file. \\quit\n} . shift);
	return;
}

append_to_file("$directory/idem_inbox--next.sql",
	slurp_file("$directory/idem_inbox--$default.sql") . $new);
$fresh = facts_after("CREATE EXTENSION idem_inbox VERSION 'next'");
write_step($new);
is(updated($default, 'next'), $fresh, "from $default to a next one as fresh");

# What is forgotten in the step shows.
foreach my $line (grep { /^(COMMENT|REVOKE|ALTER)/ } split /\n/, $new)
{
	write_step($new =~ s/^\Q$line\E\n//mr =~ s/^COMMENT ON COLUMN .*\n//mr);
	isnt(updated($default, 'next'), $fresh, "without: $line");
}
unlink $step, "$directory/idem_inbox--next.sql";

$node->stop;
done_testing();
