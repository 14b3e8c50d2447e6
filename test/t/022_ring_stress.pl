# Eight clients claim, alone and in batches, begin, complete, abandon, forget
# and redeliver the same few hundred messages, with rollbacks and savepoints,
# while the ring turns.  Every message is processed exactly once within its
# retention, and every record in progress survives.
#
# What happened is written down in the transactions that did it: a row in
# "event" for each effect, taken from a sequence while the message's record is
# held, so that their order is the order of what happened to the message.  A
# generation that is emptied adds one for each record that goes with it.  Then
# each message's events must make sense one after the other, and end in what
# the inbox holds.  A record is told from a later one of its message by the
# time at which it was received.
#
# A minute long; STRESS_SECONDS=5 make check for less.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{STRESS_SECONDS} || 60;
my $clients = 8;

my $node = IdemTest::new_node('stress',
	conf => [ 'deadlock_timeout = 50ms', 'max_connections = 20' ]);

$node->safe_psql('postgres', <<'SQL');
SELECT idem_register('ledger.book');

CREATE TABLE event (
	seq bigserial, message_id text NOT NULL, what text NOT NULL,
	received_at timestamptz
);

-- One call of a client about a message.
CREATE PROCEDURE act(message text, what text) LANGUAGE plpgsql AS $$
BEGIN
	CASE what
		WHEN 'claim' THEN
			IF idem_claim(message, 'ledger.book') <> 'claimed' THEN
				RETURN;
			END IF;
		WHEN 'batch' THEN	-- this message and the nine after it
			INSERT INTO event (message_id, what, received_at)
			SELECT b.message_id, 'claim', s.received_at
			FROM idem_claim_many(ARRAY(SELECT 'm-' || ltrim(message, 'm-')::int + i
									   FROM generate_series(0, 9) i),
								 'ledger.book') b,
				 idem_status(b.message_id, 'ledger.book') s
			WHERE b.outcome = 'claimed';
			RETURN;
		WHEN 'begin' THEN
			IF idem_begin(message, 'ledger.book') <> 'claimed' THEN
				RETURN;
			END IF;
		WHEN 'complete' THEN
			IF NOT idem_complete(message, 'ledger.book') THEN
				RETURN;
			END IF;
		WHEN 'abandon' THEN
			IF NOT idem_abandon(message, 'ledger.book') THEN
				RETURN;
			END IF;
		WHEN 'forget' THEN
			IF NOT idem_forget(message, 'ledger.book') THEN
				RETURN;
			END IF;
	END CASE;
	INSERT INTO event (message_id, what, received_at)
	SELECT message, what, (SELECT received_at
						   FROM idem_status(message, 'ledger.book')
						   WHERE what IN ('claim', 'begin'));
EXCEPTION
	WHEN no_data_found THEN	-- nothing to complete
END
$$;

-- A client's choice: 1 to 100.
CREATE FUNCTION choice(dice int) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN dice <= 35 THEN 'claim' WHEN dice <= 50 THEN 'batch' WHEN dice <= 70 THEN 'begin'
				WHEN dice <= 88 THEN 'complete' WHEN dice <= 97 THEN 'abandon'
				ELSE 'forget' END
$$;

CREATE TABLE step (step text, at timestamptz DEFAULT clock_timestamp());

-- Take a step of the ring, and write down which records go with it.  They are
-- read before and written after the step, which has the generation for itself.
CREATE FUNCTION turn() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ring idem_ring;
	gone text[];
	gone_at timestamptz[];
	what text;
BEGIN
	SELECT * INTO ring FROM idem_ring;
	IF ring.previous_sealed THEN
		EXECUTE format('SELECT array_agg(message_id::text), array_agg(received_at)
						FROM idem_generation_%s
						WHERE completed_at IS DISTINCT FROM ''-infinity''',
					   1 + (ring.current + 1) % 3) INTO gone, gone_at;
	END IF;
	what := idem_maintain();
	IF what = 'emptied' THEN
		INSERT INTO event (message_id, what, received_at)
		SELECT g.message_id, 'expire', g.received_at
		FROM unnest(gone, gone_at) g(message_id, received_at);
	END IF;
	INSERT INTO step VALUES (what);
END
$$;

CREATE PROCEDURE keep_turning(seconds float) LANGUAGE plpgsql AS $$
DECLARE
	stop timestamptz := clock_timestamp() + seconds * interval '1 second';
BEGIN
	PERFORM idem_maintain();
	COMMIT;
	WHILE clock_timestamp() < stop LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		PERFORM turn();
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SQL

# Claims that linger where a step of the ring could hurt make it come up often.
my $linger = '';
if ($node->psql('postgres', 'CREATE EXTENSION idem_test') == 0)
{
	$linger = 'SELECT idem_test_linger(150000);';
}
else
{
	note 'without the module in test/module, claims do not linger';
}

# A transaction of one or two messages; some take their time, some roll back,
# whole or to a savepoint, and try again what they rolled back.
my $script = $node->basedir . '/consumer.pgbench';
PostgreSQL::Test::Utils::append_to_file($script, <<SQL);
$linger
\\set m random_exponential(1, 500, 10)
\\set n random_exponential(1, 500, 10)
\\set dice_m random(1, 100)
\\set dice_n random(1, 100)
\\set savepoint random(1, 100)
\\set pause random(1, 100)
\\set finish random(1, 100)
BEGIN;
CALL act('m-' || :m, choice(:dice_m));
\\if :pause <= 10
SELECT pg_sleep(0.001 * :pause * :pause);
\\endif
\\if :savepoint <= 40
SAVEPOINT s;
CALL act('m-' || :n, choice(:dice_n));
\\if :savepoint <= 15
ROLLBACK TO SAVEPOINT s;
\\endif
\\if :savepoint <= 7
CALL act('m-' || :n, choice(:dice_n));
\\endif
\\if :savepoint > 25
RELEASE SAVEPOINT s;
CALL act('m-' || :m, choice(:dice_n));
\\endif
\\endif
\\if :finish <= 10
ROLLBACK;
\\else
COMMIT;
\\endif
SQL

my ($turner_out, $turner_err) = ('', '');
my $turner = IPC::Run::start(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$node->connstr('postgres'), '-c', "CALL keep_turning($seconds)"
	],
	'>' => \$turner_out,
	'2>' => \$turner_err);
$node->command_ok(
	[
		'pgbench', '-n', '-c', $clients, '-j', 2, '-T', $seconds,
		'--max-tries=100', '-f', $script, 'postgres'
	],
	"$clients clients for $seconds seconds");
ok($turner->finish, 'the ring turned') or diag $turner_err;

my $steps = $node->safe_psql('postgres',
	"SELECT string_agg(step || ' ' || count, ', ' ORDER BY step)
	 FROM (SELECT step, count(*) FROM step GROUP BY step) s");
note "steps: $steps";
my $events = $node->safe_psql('postgres',
	"SELECT string_agg(what || ' ' || count, ', ' ORDER BY what)
	 FROM (SELECT what, count(*) FROM event GROUP BY what) s");
note "events: $events";
cmp_ok(
	$node->safe_psql('postgres',
		"SELECT count(*) FROM step WHERE step = 'emptied'"),
	'>=', $seconds / 4,
	'turns of the ring');
is( $node->safe_psql('postgres',
		"SELECT count(DISTINCT what) FROM event"),
	'6',
	'everything has happened');

# What each event makes of a message, and what it may follow.
$node->safe_psql('postgres', <<'SQL');
CREATE VIEW history AS
	WITH record AS (
		SELECT seq, message_id, what, received_at,
			   -- the latest one's: it need not be the greatest, since a claim
			   -- may linger after it has looked at the clock
			   (array_agg(received_at)
				FILTER (WHERE what IN ('claim', 'begin')) OVER earlier)
			   [count(*) FILTER (WHERE what IN ('claim', 'begin')) OVER earlier] AS since
		FROM event
		WINDOW earlier AS (PARTITION BY message_id ORDER BY seq)
	), actual AS (
		-- without those that were deleted while their generation was emptied
		SELECT * FROM record e
		WHERE NOT (e.what = 'expire' AND EXISTS
				   (SELECT FROM record d
					WHERE d.message_id = e.message_id
					  AND d.what IN ('abandon', 'forget')
					  AND d.since = e.received_at))
	)
	SELECT *, CASE WHEN what IN ('claim', 'complete') THEN 'done'
				   WHEN what = 'begin' THEN 'begun' ELSE 'none' END AS after
	FROM actual;
SQL
my $impossible = $node->safe_psql('postgres', <<'SQL');
SELECT seq, message_id, what, before
FROM (SELECT *, COALESCE(lag(after) OVER (PARTITION BY message_id ORDER BY seq),
						 'none') AS before
	  FROM history) h
WHERE NOT CASE what
			  WHEN 'claim' THEN before = 'none'
			  WHEN 'begin' THEN before = 'none'
			  WHEN 'complete' THEN before = 'begun'
			  WHEN 'abandon' THEN before = 'begun'
			  WHEN 'forget' THEN before IN ('begun', 'done')
			  WHEN 'expire' THEN before = 'done' AND received_at = since
		  END
ORDER BY seq;
SQL
is($impossible, '', 'each message was processed once within its retention');
diag $node->safe_psql('postgres', <<"SQL") foreach $impossible =~ /^\d+\|([^|]*)/mg;
SELECT seq, what, received_at, since, after FROM history
WHERE message_id = '$_' ORDER BY seq
SQL

my $differences = $node->safe_psql('postgres', <<'SQL');
WITH last AS (
	SELECT DISTINCT ON (message_id) message_id, after FROM history
	ORDER BY message_id, seq DESC
), expected AS (
	SELECT message_id, after = 'done' AS completed FROM last
	WHERE after <> 'none'
), found AS (
	SELECT message_id::text, state = 'completed' AS completed FROM idem_inbox
)
SELECT 'missing', * FROM (TABLE expected EXCEPT ALL TABLE found) missing
UNION ALL
SELECT 'surplus', * FROM (TABLE found EXCEPT ALL TABLE expected) surplus;
SQL
is($differences, '', 'the inbox holds every record that has not expired');

# Through further turns, with nobody else about, the records in progress stay.
my $begun = "SELECT message_id FROM idem_inbox WHERE state <> 'completed' ORDER BY 1";
my $before = $node->safe_psql('postgres', $begun);
$node->safe_psql('postgres', 'CALL keep_turning(2)');
is($node->safe_psql('postgres', $begun), $before,
	'records in progress survive');
isnt($before, '', 'there are some');

$node->stop;
done_testing();
