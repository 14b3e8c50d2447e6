# A dump takes the memory of the inbox along: restored in another cluster, what
# was claimed is a duplicate, and the ring turns on from where it stood.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = IdemTest::new_node('old', extension => 0);
my $new = IdemTest::new_node('new', extension => 0);

# Not the default schema, and one that has to be quoted.
my $create_extension = q{
	CREATE SCHEMA "In box";
	CREATE EXTENSION idem_inbox SCHEMA "In box"};
my $grant = q{
	GRANT USAGE ON SCHEMA "In box" TO inventory, mail;
	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "In box" TO inventory, mail};
my $path = q{SET search_path = "In box";};

# Ids as awkward for a dump as they can be.
my $odd = q{E'\t\\\\N\n"é'''};
my $uuid = '0192f0c1-aaaa-7bbb-8ccc-';

foreach my $node ($old, $new)
{
	$node->safe_psql('postgres', 'CREATE ROLE inventory; CREATE ROLE mail');
}

sub shop
{
	return $old->safe_psql('shop', $path . shift);
}

# Records of all kinds under ids of their own.
sub fill
{
	my ($batch) = @_;

	shop(qq{
		SET ROLE inventory;
		SELECT idem_claim('$batch plain', 'inventory.reserve');
		SELECT idem_claim('$batch' || $odd, 'inventory.reserve');
		SELECT idem_claim('$uuid' || left(md5('$batch'), 12), 'inventory.reserve');
		SELECT idem_claim('$batch content', 'inventory.reserve', '\\x01');
		SELECT idem_claim('$batch content', 'inventory.reserve', '\\x02');
		SELECT idem_claim('$batch content', 'inventory.reserve', '\\x02');
		BEGIN;
		SELECT idem_claim('$batch result', 'inventory.reserve');
		SELECT idem_complete('{"shelf": 7}'::jsonb);
		COMMIT;
		SET ROLE mail;
		SELECT idem_claim('$batch plain', 'mail.confirm');
		SELECT idem_begin('$batch half', 'mail.confirm');
		SELECT idem_begin('$batch leased', 'mail.confirm', lease => '1 day');
		SELECT idem_begin('$batch done', 'mail.confirm');
		SELECT idem_complete('$batch done', 'mail.confirm', '{"to": "me"}');
		SELECT idem_begin('$batch resolved', 'mail.confirm');
		SELECT idem_resolve('$batch resolved', 'mail.confirm', 'complete')});
	return;
}

# Everything that is to be kept.
sub contents
{
	my ($node, $database) = @_;

	return $node->safe_psql(
		$database,
		join ';',
		$path,
		(map { qq{SELECT '$_', t.* FROM $_ t ORDER BY t::text COLLATE "C"} }
			  qw(idem_consumer idem_ring idem_generation_1 idem_generation_2
			  idem_generation_3 idem_quarantine idem_resolution)),
		'SELECT last_value, is_called FROM idem_consumer_consumer_id_seq');
}

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';

# The ways to restore it.
my %restore = (
	plain => sub {
		my ($database) = @_;

		$new->command_ok(
			[
				'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $database,
				'-f', "$dump.sql"
			],
			"$database: restored");
	},
	custom => sub {
		my ($database) = @_;

		$new->command_ok(
			[ 'pg_restore', '-e', '-j', '2', '-d', $database, "$dump.custom" ],
			"$database: restored");
	},
	data_only => sub {
		my ($database) = @_;
		my $claim = $path . q{SELECT idem_claim('fresh plain', 'mail.confirm')};

		# Neither tables nor privileges are data.
		$new->safe_psql($database,
			"CREATE TABLE stock_item (); $create_extension; $grant");

		# A session that has met the empty inbox.
		my $session = $new->background_psql($database);
		is($session->query_safe("BEGIN; $claim; ROLLBACK"),
			'claimed', "$database: nothing is known before");
		$new->command_ok(
			[
				'pg_restore', '-e', '--data-only', '-d', $database,
				"$dump.custom"
			],
			"$database: restored");
		is($session->query_safe($claim),
			'duplicate', "$database: a session learns what was restored");
		$session->quit;
	});

# Check the answers in a restored database; what is known of those records
# that a turn of the ring may expire, batch by batch.
sub check_answers
{
	my ($database, $when, %known) = @_;
	my $batches = join ',', sort keys %known;

	is( $new->safe_psql(
			$database, qq{
		$path
		SET ROLE inventory;
		SELECT DISTINCT idem_claim(b || ' plain', 'inventory.reserve'),
			   idem_claim(b || $odd, 'inventory.reserve'),
			   idem_claim('$uuid' || left(md5(b), 12), 'inventory.reserve'),
			   idem_claim(b || ' content', 'inventory.reserve', '\\x01'),
			   idem_result(b || ' result', 'inventory.reserve')
		FROM unnest('{$batches}'::text[]) b}),
		'duplicate|duplicate|duplicate|duplicate|{"shelf": 7}',
		"$database: claims are duplicates $when");
	is( $new->safe_psql(
			$database, qq{
		$path
		SET ROLE mail;
		SELECT DISTINCT idem_begin(b || ' half', 'mail.confirm'),
			   idem_begin(b || ' leased', 'mail.confirm')
		FROM unnest('{$batches}'::text[]) b}),
		'needs_reconciliation|in_progress',
		"$database: unfinished attempts are as they were $when");
	is( $new->safe_psql(
			$database, qq{
		$path
		SET ROLE mail;
		BEGIN;
		SELECT b, idem_claim(b || ' plain', 'mail.confirm'),
			   idem_begin(b || ' done', 'mail.confirm')
		FROM unnest('{$batches}'::text[]) b;
		ROLLBACK}),
		join("\n", map { "$_|$known{$_}|$known{$_}" } sort keys %known),
		"$database: finished ones are known as they should be $when");
	return;
}

# Take steps of maintenance in a restored database, each as soon as its age
# allows.
sub turn_ring
{
	my ($database, @steps) = @_;

	# The horizon is another cluster's, beyond all ids of this one; left as it
	# is, no step could be taken for long.
	if ($steps[0] eq 'waiting')
	{
		my $blocker = $new->background_psql('postgres');

		is( $new->safe_psql(
				$database, qq{
			$path
			SELECT horizon::text::bigint >
				   pg_snapshot_xmax(pg_current_snapshot())::text::bigint
			FROM idem_ring}),
			't', "$database: the horizon is a stranger");
		$blocker->query_safe('BEGIN; SELECT pg_current_xact_id()');
		is($new->safe_psql($database, "$path SELECT idem_maintain()"),
			shift @steps, "$database: a transaction of this cluster is open");
		$blocker->query_safe('ROLLBACK');
		$blocker->quit;
	}
	foreach my $step (@steps)
	{
		is( $new->safe_psql(
				$database, qq{
			$path
			UPDATE idem_ring
			SET current_age = '100 years',
				previous_age = CASE WHEN previous_sealed THEN '100 years'::interval
									ELSE '0' END;
			SELECT idem_maintain()}), $step, "$database: $step");
	}
	return;
}

# Dump the old database at a moment of the ring's turn, restore it in every
# way, and go on there.
sub moment
{
	my ($moment, $batches, @steps) = @_;
	my $contents = contents($old, 'shop');

	$old->command_ok([ 'pg_dump', '-d', 'shop', '-f', "$dump.sql" ],
		"$moment: plain dump");
	$old->command_ok([ 'pg_dump', '-d', 'shop', '-Fc', '-f', "$dump.custom" ],
		"$moment: custom dump");

	foreach my $way (sort keys %restore)
	{
		my $database = "${moment}_$way";
		my %known = map { $_ => 'duplicate' } @$batches;

		$new->safe_psql('postgres', "CREATE DATABASE $database");
		$restore{$way}->($database);
		is(contents($new, $database), $contents, "$database: all of it is there");
		check_answers($database, 'after the restore', %known);
		is( $new->safe_psql(
				$database, qq{
			$path
			SET ROLE inventory;
			SELECT idem_claim('fresh plain', 'stock.count');
			RESET ROLE;
			SELECT consumer_id, name, owner FROM idem_consumer ORDER BY 1}),
			join("\n",
				'claimed', '1|inventory.reserve|inventory',
				'2|mail.confirm|mail', '4|stock.count|inventory'),
			"$database: consumers keep their numbers, a new one gets the next");

		turn_ring($database, @steps);
		$known{fresh} = 'claimed';
		check_answers($database, 'after the turn', %known);
		$new->safe_psql('postgres', "DROP DATABASE $database");
	}
	return;
}

# Before anything else, the old cluster hands out many transaction ids.
$old->safe_psql(
	'postgres', q{
	CREATE DATABASE shop;
	DO $$
	BEGIN
		FOR i IN 1 .. 20000 LOOP
			PERFORM pg_current_xact_id();
			COMMIT;
		END LOOP;
	END $$});
# The first table that pg_dump locks.
$old->safe_psql('shop', 'CREATE TABLE stock_item ()');
$old->safe_psql('shop', "$create_extension; $grant");
shop(q{
	SET ROLE inventory;
	SELECT idem_register('inventory.reserve', retention => '1 year',
						 lease => '1 hour');
	SET ROLE mail;
	SELECT idem_register('mail.confirm');
	-- a number that nobody gets
	BEGIN;
	SELECT idem_claim('1', 'nobody');
	ROLLBACK});
fill('fresh');

# In a schema that is not in the search_path, all works under full names.
is( $old->safe_psql(
		'shop', q{
	SET search_path = '';
	BEGIN;
	SELECT "In box".idem_claim('fresh plain', 'mail.confirm');
	SELECT state FROM "In box".idem_status('fresh half', 'mail.confirm');
	SELECT state FROM "In box".idem_inbox WHERE message_id::text = 'fresh half';
	SELECT resolve FROM "In box".idem_attention
	WHERE message_id::text = 'fresh half' \gexec
	SELECT state FROM "In box".idem_status('fresh half', 'mail.confirm');
	ROLLBACK}),
	"duplicate\nneeds_reconciliation\nneeds_reconciliation\nt\ncompleted",
	'a schema that is not in the search_path');
moment('fresh', ['fresh'], 'nothing', 'opened', 'sealed', 'moved', 'emptied');

# Maintain the old database while a transaction is open, so that the horizon
# is stored and the step still to be taken.
sub wait_in_vain
{
	my $blocker = $old->background_psql('postgres');

	$blocker->query_safe('BEGIN; SELECT pg_current_xact_id()');
	is(shop('SELECT idem_maintain()'), 'waiting', 'a step waits');
	$blocker->quit;
	return;
}

is(shop('SELECT idem_maintain()'), 'nothing', 'the ring begins');
shop(q{UPDATE idem_ring SET current_age = '100 years'});
is(shop('SELECT idem_maintain()'), 'opened', 'the next generation is opened');
fill('open');
wait_in_vain();
moment('open', [ 'fresh', 'open' ], 'waiting', 'sealed', 'moved', 'emptied');

is(shop('SELECT idem_maintain()'), 'sealed', 'the current one is sealed');
shop(q{UPDATE idem_ring SET previous_age = '100 years'});
fill('sealed');
wait_in_vain();
moment('sealed', [ 'fresh', 'open', 'sealed' ],
	'waiting', 'moved', 'emptied');

# The worker, or a job, may come by while a restore takes its time, and write
# the ring's first state.
$new->safe_psql('postgres', 'CREATE DATABASE overtaken');
$new->run_log([ 'pg_restore', '--section=pre-data', '-d', 'overtaken',
	"$dump.custom" ]);
$new->safe_psql('overtaken', "$path SELECT idem_maintain()");
$new->command_ok(
	[ 'pg_restore', '--section=data', '-d', 'overtaken', "$dump.custom" ],
	'overtaken: data restored');
# but for the horizon: who claims meanwhile goes by another view
is( contents($new, 'overtaken'),
	contents($old, 'shop') =~ s/^(idem_ring\|t\|\d\|.\|.)\|\d+/$1|/mr,
	'overtaken: all of it is there');
is( $new->safe_psql(
		'overtaken', "$path SELECT idem_claim('sealed plain', 'mail.confirm')"
	),
	'duplicate',
	'overtaken: what was claimed is a duplicate');

# A dump has its snapshot before it has locked all tables; here it waits for
# one that somebody alters, while survivors are moved and it is time to empty
# their generation.
my $alter = $old->background_psql('shop');
$alter->query_safe('BEGIN; LOCK TABLE stock_item');
my $late = IPC::Run::start(
	[ 'pg_dump', '-d', $old->connstr . ' dbname=shop', '-f', "$dump.sql" ]);
IdemTest::poll(
	$old, q{
	SELECT EXISTS (SELECT FROM pg_locks
				   WHERE locktype = 'relation' AND NOT granted)});
is(shop('SELECT idem_maintain()'), 'moved', 'late: survivors are moved');
is(shop('SELECT idem_maintain()'),
	'waiting', 'late: and are not emptied under an older snapshot');
$alter->quit;
ok($late->finish, 'late: plain dump');
$new->safe_psql('postgres', 'CREATE DATABASE late');
$restore{plain}->('late');
is( $new->safe_psql(
		'late',
		"$path SET ROLE mail; SELECT idem_begin('fresh half', 'mail.confirm')"
	),
	'needs_reconciliation',
	'late: the unfinished attempt survived');

$_->stop foreach ($old, $new);
done_testing();
