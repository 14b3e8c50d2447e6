# Sessions that change their role, functions that act for another, row security,
# and message ids that want to be more than that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	preload => 1,
	conf => [
		'idem_inbox.worker = off', "idem_inbox.naptime = '1s'",
		'fsync = off', "log_line_prefix = 'prefix [%p] '",
		"log_statement = 'none'", 'log_error_verbosity = verbose' ]);

$node->safe_psql(
	'postgres', q{
	CREATE ROLE mallory LOGIN;
	CREATE ROLE victim LOGIN;
	CREATE SCHEMA lair AUTHORIZATION mallory;
	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO mallory, victim;
	CREATE TABLE effect (message text, who name DEFAULT current_user);
	GRANT ALL ON effect TO mallory, victim});

# What a session of that role answers to the statements, and the errors' codes.
sub session
{
	my ($role, $sql) = @_;
	my ($stdout, $stderr);

	$node->psql(
		'postgres', "\\set VERBOSITY sqlstate\n$sql",
		extra_params => [ '-U', $role ],
		on_error_stop => 0,
		stdout => \$stdout,
		stderr => \$stderr);
	$stderr =~ s/^psql:<stdin>:\d+: //gm;
	return join ' ', map { split /\n/ } $stdout, $stderr;
}

#
# SECURITY DEFINER
#
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION receive(id text) RETURNS idem_outcome LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = public, pg_temp AS $$
	DECLARE
		outcome idem_outcome := idem_claim(id, 'mail');
	BEGIN
		IF outcome = 'claimed' THEN
			INSERT INTO effect VALUES (id);
		END IF;
		RETURN outcome;
	END
	$$;
	ALTER FUNCTION receive OWNER TO victim});
is(session('mallory', q{SELECT receive('m-1'); SELECT receive('m-1')}),
	'claimed duplicate', 'a function acts for its owner');
is( $node->safe_psql(
		'postgres', q{SELECT owner, who FROM idem_consumer, effect WHERE name = 'mail'}),
	'victim|victim', 'to whom the consumer and the effect belong');
is( session('mallory', q{
		BEGIN; SELECT receive('m-2'); SELECT idem_claim('m-3', 'mail'); ROLLBACK;
		SELECT idem_seen('m-1', 'mail')}),
	'claimed ERROR:  42501 ERROR:  42501',
	'who called it may do nothing else for that consumer');
is( session('mallory', q{
		BEGIN; SELECT receive('m-2'); SELECT idem_complete('"forged"'); ROLLBACK}),
	'claimed ERROR:  42501',
	'nor store a result with what the function claimed');
is( session('mallory', q{
		BEGIN; SELECT receive('m-2'); SELECT idem_complete(); COMMIT}),
	'claimed 1', 'but say that the work is finished');
is( session('victim', q{
		BEGIN; SELECT receive('m-4'); SELECT idem_complete('"mine"'); COMMIT;
		SELECT idem_result('m-4', 'mail'), idem_result('m-2', 'mail')}),
	'claimed 1 "mine"|', 'the owner may');

# The other way round: a hostile function in a trusted session.
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION lair.helpful() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
	BEGIN
		RETURN idem_forget('m-1', 'mail');
	EXCEPTION WHEN insufficient_privilege THEN
		RETURN 'refused';
	END
	$$;
	ALTER FUNCTION lair.helpful OWNER TO mallory;
	GRANT USAGE ON SCHEMA lair TO victim});
is(session('victim', 'SELECT lair.helpful()'),
	'refused', 'a function of another owner has that owner\'s rights');
is( session('victim', q{
		BEGIN; SELECT idem_claim('m-5', 'mail'); SAVEPOINT s; SELECT lair.helpful();
		ROLLBACK TO s; SELECT count(*) FROM idem_claims(); COMMIT;
		SELECT idem_seen('m-5', 'mail')}),
	'claimed refused 1 t', 'and takes no claim with it');

#
# SET ROLE, SET SESSION AUTHORIZATION: the current role counts, call by call
#
is( $node->safe_psql(
		'postgres', q{
		SET SESSION AUTHORIZATION mallory;
		SELECT idem_claim('s-1', 'mallory''s');
		RESET SESSION AUTHORIZATION;
		SET ROLE victim;
		SELECT idem_claim('s-1', 'mail');
		RESET ROLE;
		SELECT string_agg(name || ' of ' || owner, ', ' ORDER BY name) FROM idem_consumer}),
	"claimed\nclaimed\nmail of victim, mallory's of mallory",
	'what is registered belongs to the current role');
is( session('mallory', q{SET ROLE victim; SELECT idem_claim('s-2', 'mail');}),
	'ERROR:  42501 ERROR:  42501', 'no role for the asking');
# What the session found for one role is not remembered for the next.
is( $node->safe_psql(
		'postgres', q{
		\set ON_ERROR_STOP 0
		\set VERBOSITY sqlstate
		SET ROLE victim; SELECT idem_seen('s-1', 'mail');
		SET ROLE mallory; SELECT idem_seen('s-1', 'mail');
		\echo :LAST_ERROR_SQLSTATE
		SET ROLE victim; SELECT idem_seen('s-1', 'mail')}),
	"t\n42501\nt", 'a consumer that is cached is checked as well');
# Prepared statements and cursors outlive the role that made them.
is( $node->safe_psql(
		'postgres', q{
		\set ON_ERROR_STOP 0
		\set VERBOSITY sqlstate
		SET ROLE victim; PREPARE p AS SELECT idem_seen('s-1', 'mail'); EXECUTE p;
		SET ROLE mallory; EXECUTE p;
		\echo :LAST_ERROR_SQLSTATE
		RESET ROLE; BEGIN; SET LOCAL ROLE victim;
		DECLARE c CURSOR FOR SELECT idem_seen('s-1', 'mail') FROM generate_series(1, 2);
		FETCH c; SET LOCAL ROLE mallory; FETCH c;
		\echo :LAST_ERROR_SQLSTATE}),
	"t\n42501\nt\n42501", 'nor do prepared statements and cursors');
# A name is what an owner is kept by.
$node->safe_psql('postgres', 'ALTER ROLE victim RENAME TO renamed');
is( session('renamed', q{SELECT idem_seen('s-1', 'mail')}),
	'ERROR:  42501', 'a role that was renamed has to be given its consumers');
$node->safe_psql('postgres', q{ALTER ROLE renamed RENAME TO victim});
is(session('victim', q{SELECT idem_seen('s-1', 'mail')}),
	't', 'renamed back, it has them again');

#
# Row security
#
# On the extension's own tables it restricts who reads them by SQL; the
# functions, which check the owner, it does not blind: a claim that did not
# see a record would process the message again.
$node->safe_psql(
	'postgres', q{
	ALTER TABLE idem_generation_1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
	ALTER TABLE idem_consumer ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
	CREATE POLICY own ON idem_consumer USING (pg_has_role(owner, 'MEMBER'));
	CREATE POLICY own ON idem_generation_1 USING (consumer_id IN (SELECT consumer_id FROM idem_consumer));
	GRANT SELECT ON idem_generation_1, idem_consumer TO mallory, victim});
is(session('mallory', 'SELECT name FROM idem_consumer; SELECT message_id FROM idem_generation_1'),
	"mallory's s-1", 'a policy shows each role its own records');
is( session('victim', q{
		SELECT idem_claim('m-1', 'mail'), idem_claim('m-6', 'mail'), idem_seen('m-6', 'mail');
		SELECT count(*) FROM idem_generation_1}),
	'duplicate|claimed|f 6', 'and takes nothing from the functions');
$node->safe_psql('postgres', q{CREATE POLICY none ON idem_generation_1 AS RESTRICTIVE USING (false)});
is( session('victim', q{
		SELECT idem_claim('m-1', 'mail'), idem_claim('m-7', 'mail'), idem_forget('m-7', 'mail');
		SELECT count(*) FROM idem_generation_1}),
	'duplicate|claimed|t 0', 'even one that shows nothing to anybody');

# On a business table it works with claims as without.
$node->safe_psql(
	'postgres', q{
	ALTER TABLE effect ENABLE ROW LEVEL SECURITY;
	CREATE POLICY own ON effect USING (who = current_user);
	CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON effect
		FOR EACH ROW EXECUTE FUNCTION idem_require_claim('mail')});
is( session('mallory', q{
		INSERT INTO effect VALUES ('r-1');
		BEGIN; SELECT receive('r-2'); INSERT INTO effect VALUES ('r-3', 'victim'); ROLLBACK;
		BEGIN; SELECT idem_claim('r-4', 'mallory''s'); INSERT INTO effect VALUES ('r-4'); ROLLBACK;
		BEGIN; SELECT receive('r-5'); UPDATE effect SET message = 'stolen'; SELECT count(*) FROM effect; COMMIT}),
	'claimed claimed claimed 0 ERROR:  55000 ERROR:  42501 ERROR:  55000',
	'a claim is required, and the policy is kept');
is( $node->safe_psql(
		'postgres', q{SELECT string_agg(message, ' ' ORDER BY message) FROM effect}),
	'm-1 m-2 m-4 r-5', 'with the effects that were claimed');

#
# Message ids that want to be lines of the log
#
my $forged = "x\n2026-01-01 00:00:00 UTC [1] LOG:  forged\n"
  . "prefix [1] FATAL:  forged\r\nprefix [1] LOG:  forged\tit";
my $quoted = $forged =~ s/\n/\\n/gr =~ s/\r/\\r/gr =~ s/\t/\\t/gr;
my $calls = qq{
	SELECT idem_claim(E'$quoted', E'mail $quoted', '\\x01'),
		   idem_claim(E'$quoted', E'mail $quoted', '\\x02'),
		   idem_claim(E'$quoted', E'mail $quoted', repeat('x', 100)::bytea);
	SELECT idem_complete(E'$quoted', E'no $quoted');
	SELECT idem_begin(E'begun $quoted', E'mail $quoted');
	SET idem_inbox.auto_register = off;
	SELECT idem_claim(E'$quoted', E'other $quoted');
	SELECT idem_claim(repeat(E'$quoted', 100), E'mail $quoted');
	SELECT idem_claim('x', repeat(E'$quoted', 100));
	SELECT idem_resolve(E'$quoted', E'mail $quoted', E'$quoted');
	SET idem_inbox.lone_claim = warning;
	SELECT idem_claim(E'lone $quoted', E'mail $quoted');
	SET idem_inbox.require_complete = on;
	SELECT idem_claim(E'required $quoted', E'mail $quoted');
	RESET idem_inbox.require_complete;
	SELECT idem_claim(E'held $quoted', E'mail $quoted') FROM idem_claim(E'held $quoted', E'mail $quoted');
	SELECT idem_claim_many(ARRAY[E'$quoted', repeat(E'$quoted', 100)], E'mail $quoted')};
my $before = -s $node->logfile;
session('mallory', "SET idem_inbox.lone_claim = off; $calls");
$node->append_conf('postgresql.conf', 'idem_inbox.worker = on');
$node->reload;
$node->wait_for_log(qr/message "begun x/, $before);
my $log = substr slurp_file($node->logfile), $before;
my @forged = grep { /forged/ } split /\n/, $log;
cmp_ok(scalar @forged, '>', 20, 'the log has these ids');
is( join("\n", grep { /^(?!prefix|\t)/ || /^prefix \[1\]/ } split /\n/, $log),
	'', 'but no line begins as the id wants');

#
# Message ids that want to be SQL, in what idem_attention proposes
#
my @ids = (
	q{'); DROP TABLE effect; --}, q{\\'); DROP TABLE effect; --},
	"line\nDROP TABLE effect;\n--", "\$\$; DROP TABLE effect; \$\$",
	q{\! touch hacked}, "\\echo \\! touch hacked\n\\! touch hacked", q{:variable}, q{%s%n%1$s});
foreach my $id (@ids)
{
	my $literal = 'E\'' . $id =~ s/\\/\\\\/gr =~ s/'/\\'/gr =~ s/\n/\\n/gr . '\'';

	$node->safe_psql('postgres',
		"SELECT idem_begin($literal, $literal, lease => '0')");
}
my $proposals = $node->safe_psql(
	'postgres', q{
	SELECT resolve FROM idem_attention WHERE message_id::text !~ 'forged' ORDER BY message_id});
is($node->safe_psql('postgres', $proposals),
	join("\n", ('t') x @ids), 'what is proposed does what it says');
is( $node->safe_psql(
		'postgres', q{SELECT count(*) FROM idem_attention WHERE message_id::text !~ 'forged'}),
	0, 'to all of them');
is( $node->safe_psql(
		'postgres', q{SELECT to_regclass('effect') IS NOT NULL}),
	't', 'and nothing else');

#
# NOTIFY's payload has less than 8000 bytes; the longest names are that long
# in every alphabet and as JSON.
#
foreach my $long ('x' x 1024, "\x{1}" x 1024, '\\' x 1024, '"' x 1024,
	"\xc3\xa9" x 512, "\xf0\x9f\x98\x80" x 256)
{
	my $literal = 'E\'' . $long =~ s/\\/\\\\/gr =~ s/\x{1}/\\x01/gr . '\'';
	my $name = sprintf 'a mismatch of %s...', unpack 'H4', $long;
	my $out = $node->safe_psql(
		'postgres', qq{
		LISTEN idem_inbox;
		SELECT idem_claim($literal, $literal, '\\x01'), idem_claim($literal, $literal, '\\x02');});
	my ($payload) = $out =~ /with payload "(.*)" received/s;

	like($out, qr/^claimed\|mismatch$/m, "$name is reported");
	cmp_ok(length($payload // ''), '>', 0, 'and notified');
	cmp_ok(length($payload // ''), '<', 8000, 'within NOTIFY\'s limit');
}

$node->stop;
done_testing();
