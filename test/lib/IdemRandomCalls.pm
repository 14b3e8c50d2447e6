# Random calls of every function of the extension, as a psql script.
#
#	my $script = IdemRandomCalls::script($node, calls => 2500);
#
# Arguments are of every kind that a type has, many of them wrong.  Calls come alone,
# in transactions of any isolation level and kind, in savepoints and in aborted
# transactions.  Which calls come is decided by Perl's srand().
#
# For the consumer "checked" the table journal(message_id, change) says, in the
# very transaction that did it, that a record came (1) or went (-1).

package IdemRandomCalls;

use strict;
use warnings;

sub pick
{
	return $_[ rand @_ ];
}

# A literal, of a text that has no place in a script or takes much of it.
my @texts = (
	"''", "' '", "E'a\\n'", "'a''b\\\"'", "E'\\u00fc'", "repeat('x', 1024)",
	"repeat('x', 1025)", "repeat('y', 1000000)", "repeat(E'\\u00fc', 700)",
	"'0192f0c1-7b1e-7cc2-9d5e-5d0f2b8f6c11'",
	"'0192F0C1-7B1E-7CC2-9D5E-5D0F2B8F6C11'", 'NULL');
my @bytes = (
	"''", "'\\x00'", "decode(md5('a'), 'hex')", "decode(md5('b'), 'hex')",
	"decode(repeat('ab', 64), 'hex')", "decode(repeat('ab', 65), 'hex')", 'NULL');

# Few messages, so that the sessions meet.
sub message
{
	return rand() < 0.93 ? "'m-" . int(rand 8) . "'" : pick(@texts);
}

sub array
{
	my ($type, $value) = @_;

	return pick('NULL', "'{}'", "'{NULL}'", "ARRAY[ARRAY['a', 'b'], ARRAY['c', 'd']]")
	  . "::$type"
	  if rand() < 0.15;
	return 'ARRAY[' . join(', ', map { $value->() } 0 .. rand 8) . "]::$type";
}

# What there is for an argument, by its name or else its type.
my %values = (
	message_id => \&message,
	message_ids => sub { array('text[]', \&message) },
	consumer => sub {
		rand() < 0.97
		  ? pick("'checked'", "'other'", "'other'", "'unknown-" . int(rand 3) . "'")
		  : pick(@texts);
	},
	action => sub { pick("'complete'", "'abandon'", "'forget'", "'dismiss'", "'retry'", "''", 'NULL') },
	owner => sub { pick("'nobody at all'", 'current_user', 'NULL', 'NULL', 'NULL') },
	max_wait => sub { pick("'0'", "'3 ms'", "'50 ms'", "'50 ms'", 'NULL', 'NULL', 'NULL', 'NULL', "'-1 s'") },
	retention => sub { pick("'1 s'", "'1000 years'", "'-1 day'", "'0'", "'1 month'", 'NULL', 'NULL') },
	text => sub { pick(@texts) },
	bytea => sub { pick(@bytes) },
	'bytea[]' => sub { array('bytea[]', sub { pick(@bytes) }) },
	interval => sub { pick("'0'", "'1 ms'", "'5 min'", "'-1 day'", "'1 month'", "'178000000 years'", 'NULL') },
	jsonb => sub {
		pick("'{}'", "'null'", "'[1, {\"a\": 1.0}]'", "to_jsonb(repeat('z', 9000))",
			"'{\"source\": \"/a\", \"id\": \"1\"}'",
			"(repeat('[', 5000) || repeat(']', 5000))::jsonb", 'NULL');
	},
	integer => sub { pick(0, 1, 1, 2, 3, -1, 2147483647, '-2147483648', 'NULL') },
	'timestamp with time zone' => sub { pick("'infinity'", "'-infinity'", "'4713-01-01 BC'", 'now()', "'294276-01-01'", "'2020-01-01'", 'NULL') },
	idem_message_id => \&message,
	name => sub { pick(@texts) });

# How a call for the consumer "checked" tells the journal: what its result r
# says of the message m.
my $came = "SELECT m, 1 FROM %s r, (SELECT %s AS m) m WHERE r = 'claimed'";
my $went = 'SELECT m, -1 FROM %s r, (SELECT %s AS m) m WHERE r';
my %journal = (
	idem_claim => $came,
	idem_begin => $came,
	idem_import => 'SELECT m, 1 FROM %s r, (SELECT %s AS m) m WHERE r',
	idem_forget => $went,
	idem_abandon => $went,
	idem_claim_many => "SELECT message_id, 1 FROM %s WHERE outcome = 'claimed'");

# The ways to make or end a record that the journal does not know of.
my %untold = (idem_resolve => 1, idem_register => 1);

sub call
{
	my ($function) = @_;
	my @arguments = map {
		my $value = $values{ $_->{name} } // $values{ $_->{type} };

		+{ %$_, value => ($value ? $value->() : 'NULL') . "::$_->{type}" }
	} @{ $function->{arguments} };
	my %given = map { $_->{name} => $_->{value} } @arguments;
	my $call = "$function->{name}(" . join(', ', map { $_->{value} } @arguments) . ')';

	if (($given{consumer} // '') =~ /checked/)
	{
		my $told = $journal{ $function->{name} };

		return "SELECT $function->{name}(" . join(', ', map { $_->{value} =~ s/checked/other/r } @arguments) . ');'
		  if $untold{ $function->{name} };
		return sprintf("INSERT INTO journal $told;", $call, $given{message_id} // ())
		  if $told;
	}
	return "SELECT $call;";
}

# The functions that SQL can call, but those that take what only C has.
sub functions
{
	my ($node) = @_;
	my @functions;

	foreach my $line (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT p.proname, coalesce(string_agg(coalesce(p.proargnames[a.i], '') || ':' || format_type(a.type, NULL), ',' ORDER BY a.i), '')
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
LEFT JOIN unnest(p.proargtypes) WITH ORDINALITY a(type, i) ON true
WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_inbox')
  AND p.proargtypes::oid[] && ARRAY['internal'::regtype, 'cstring'::regtype]::oid[] IS FALSE
GROUP BY p.oid, p.proname ORDER BY p.proname, p.oid::regprocedure::text
SQL
	{
		my ($name, $arguments) = split /\|/, $line, -1;

		push @functions,
		  {
			name => $name,
			arguments => [ map { /(.*?):(.*)/; +{ name => $1, type => $2 } } split /,/, $arguments ]
		  };
	}
	return @functions;
}

# As many statements as there are calls, and what is around them.
sub script
{
	my ($node, %opt) = @_;
	my @functions = functions($node);
	# those that meet other sessions more often than a comparison does
	my @often = grep { $_->{name} =~ /^idem_(claim|claim_many|begin|complete|takeover|takeover_next|abandon|forget|extend)$/ } @functions;
	my @lines = ('\set VERBOSITY sqlstate', '\set QUIET on', 'SET deadlock_timeout = 50;');
	my $left = $opt{calls};
	my $next = sub { $left--; call(rand() < 0.7 ? pick(@often) : pick(@functions)) };

	while ($left > 0)
	{
		# mostly, psql lets a transaction go on after an error
		push @lines, '\set ON_ERROR_ROLLBACK ' . (rand() < 0.8 ? 'on' : 'off');
		if (rand() < 0.3)
		{
			push @lines, $next->();
			next;
		}
		push @lines, 'BEGIN '
		  . pick('', '', '', 'ISOLATION LEVEL REPEATABLE READ', 'ISOLATION LEVEL SERIALIZABLE', 'READ ONLY') . ';';
		push @lines, "SET LOCAL $_;"
		  foreach grep { rand() < 0.05 } 'lock_timeout = 2', 'statement_timeout = 50',
		  'idem_inbox.require_complete = on', 'idem_inbox.lone_claim = error', 'idem_inbox.auto_register = off';
		foreach (0 .. rand 5)
		{
			if (rand() < 0.3)
			{
				push @lines, 'SAVEPOINT s;', $next->(), pick('ROLLBACK TO s;', 'RELEASE s;', 'SELECT 1/0;');
				next;
			}
			push @lines, $next->();
			push @lines, 'SELECT pg_sleep(0.01);' if rand() < 0.3;
		}
		push @lines, rand() < 0.05
		  ? ("PREPARE TRANSACTION '$opt{name}';", pick('COMMIT', 'ROLLBACK') . " PREPARED '$opt{name}';", 'ROLLBACK;')
		  : pick('COMMIT;', 'COMMIT;', 'ROLLBACK;');
	}
	return join "\n", @lines, 'ROLLBACK;', '\echo end of script', '';
}

1;
