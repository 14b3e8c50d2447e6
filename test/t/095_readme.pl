# What README.md and docs/*.md show is what happens: their examples are run in
# order, and the README's reference is compared with the catalogs.
#
#	```sql	is run in the reader's session; in a second one if its first line is
#			"-- another session".  "-- → X" at the end of its lines are all
#			that it prints, in psql's unaligned format.
#	```text	is what the block before it printed.  Without that, and without
#			arrows, a block may print what it likes, but no error, no warning.
#	```ini	goes into postgresql.conf, and the server is restarted
#	```sh	is not run, but every "make TARGET" in it has to be one
#
# Where output is shown, "..." stands for anything on that line.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";

# The blocks of a Markdown file, as [ language, first line's number, text ].
sub blocks_of
{
	my ($file) = @_;
	my (@blocks, $block);
	my $number = 0;

	foreach my $line (split /^/, slurp_file("$top/$file"))
	{
		$number++;
		if ($line !~ /^```(\w*)$/)
		{
			$block->[2] .= $line if $block;
		}
		elsif ($block)
		{
			push @blocks, $block;
			undef $block;
		}
		else
		{
			$block = [ $1, $number + 1, '' ];
		}
	}
	die "$file: a block does not end" if $block;
	return @blocks;
}

# The examples of a file, as hashes:
#	where	file and line
#	conf	for postgresql.conf; or
#	sql, session	to be run, and in which session
#	output	what that prints; undef: no matter what
#	terse	the output is made of arrows
sub examples_of
{
	my ($file) = @_;
	my @examples;

	foreach my $block (blocks_of($file))
	{
		my ($language, $line, $text) = @$block;
		my $where = "$file:$line";

		if ($language eq 'sql')
		{
			my @arrows = $text =~ /-- \xe2\x86\x92 (.*)$/mg;

			push @examples,
			  {
				where => $where,
				sql => $text,
				session => $text =~ /\A-- another session\n/ ? 2 : 1,
				output => @arrows ? join("\n", @arrows, '') : undef,
				terse => scalar(@arrows)
			  };
		}
		elsif ($language eq 'ini')
		{
			push @examples, { where => $where, conf => $text };
		}
		elsif ($language eq 'text')
		{
			die "$where: nothing prints this"
			  if !@examples || !$examples[-1]{sql} || $examples[-1]{output};
			$examples[-1]{output} = $text;
		}
		elsif ($language ne 'sh')
		{
			die "$where: what is a block of \"$language\"?";
		}
	}
	return @examples;
}

#
# Running the examples
#
my $mark = 'the block ends here';

sub start_session
{
	my ($node, $database) = @_;
	my %session = (
		in => '',
		out => '',
		timer => IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default));

	$session{run} = IPC::Run::start(
		[ 'psql', '-X', '-q', '-d', $node->connstr($database) ],
		'<' => \$session{in},
		'>&' => \$session{out},
		$session{timer});
	return \%session;
}

# run_block SESSION, SQL, TERSE: what psql prints, errors among it; if terse,
# values and errors alone.
sub run_block
{
	my ($session, $sql, $terse) = @_;
	my @settings = $terse
	  ? qw(unaligned on terse) : qw(aligned off default);

	$session->{in} .= sprintf "\\pset format %s\n\\pset tuples_only %s\n"
	  . "\\set VERBOSITY %s\n", @settings;
	$session->{out} = '';
	$session->{in} .= "$sql\n;\n\\echo $mark\n";
	$session->{timer}->reset;
	until ($session->{out} =~ s/^\Q$mark\E\n\z//m)
	{
		die "psql timed out, or ended, in:\n$sql\nafter:\n$session->{out}"
		  if $session->{timer}->is_expired || !$session->{run}->pumpable;
		$session->{run}->pump;
	}
	return $session->{out};
}

sub end_session
{
	my ($session) = @_;

	$session->{in} .= "\\q\n";
	$session->{run}->finish;
	return;
}

# Output without what only its alignment makes.
sub normalized
{
	my ($text) = @_;

	$text =~ s/-{3,}/---/g;
	$text =~ s/[ \t]+/ /g;
	$text =~ s/^ //mg;
	$text =~ s/ $//mg;
	$text =~ s/\n+/\n/g;
	$text =~ s/^\n//;
	return $text;
}

sub is_shown
{
	my ($got, $shown, $name) = @_;
	my $pattern = join '.*?', map { quotemeta } split /\.\.\./,
	  normalized($shown), -1;

	like(normalized($got), qr/\A$pattern\z/, $name);
	return;
}

sub pg_cron_is_available
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_cron'");
}

sub configure
{
	my ($node, $conf) = @_;

	$node->append_conf('postgresql.conf', $conf);
	$node->restart;
	IdemTest::poll(
		$node, q{
		SELECT EXISTS (SELECT FROM pg_stat_activity
					   WHERE backend_type = 'idem_inbox launcher'
						 AND state = 'idle')})
	  if $conf =~ /preload.*idem_inbox/;
	return;
}

# Runs the examples of a file on a server of their own.
sub run_file
{
	my ($file) = @_;
	my $node = IdemTest::new_node(
		$file =~ s/\W/_/gr,
		extension => 0,
		conf => [
			# its transactions would make steps wait
			'autovacuum = off',
			# what readers get, unlike the other tests
			'idem_inbox.lone_claim = warning'
		]);
	my $database = 'bookstore';
	my %sessions;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	foreach my $example (examples_of($file))
	{
		my $where = $example->{where};

	  SKIP:
		{
			skip "$where: pg_cron is not installed", 1
			  if ($example->{conf} // $example->{sql}) =~ /cron/
			  && !pg_cron_is_available($node);

			if ($example->{conf})
			{
				end_session($_) foreach values %sessions;
				%sessions = ();
				configure($node, $example->{conf});
				next;
			}

			my $session = $sessions{ $example->{session} } //=
			  start_session($node, $database);
			my $output = run_block($session, $example->{sql}, $example->{terse});

			if (defined $example->{output})
			{
				is_shown($output, $example->{output}, "$where prints this");
			}
			else
			{
				unlike($output, qr/^(ERROR|FATAL|WARNING)/m, "$where succeeds");
			}
		}
	}
	end_session($_) foreach values %sessions;
	$node->stop;
	return;
}

#
# The reference
#
my $readme = slurp_file("$top/README.md");
my $reference = slurp_file("$top/docs/reference.md");
my $in_extension = q{
	FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
	WHERE e.extname = 'idem_inbox' AND d.deptype = 'e'
	  AND d.refclassid = 'pg_extension'::regclass};

# A function as docs/reference.md writes it.
sub signature
{
	my ($name, $arguments, $result, $is_set) = @_;
	my (@in, @out);

	foreach my $argument (split /, /, $arguments)
	{
		$argument =~ s/timestamp with time zone/timestamptz/;
		$argument =~ s/integer/int/;
		$argument =~ s/boolean/bool/;
		$argument =~ s/ DEFAULT NULL::[a-z \[\]]+/ = NULL/;
		$argument =~ s/ DEFAULT / = /;
		if ($argument =~ s/^OUT //) { push @out, $argument }
		else { push @in, $argument }
	}
	$result =~ s/timestamp with time zone/timestamptz/;
	$result =~ s/integer/int/;
	$result =~ s/boolean/bool/;
	$result = ($is_set eq 't' ? 'setof ' : '') . '(' . join(', ', @out) . ')'
	  if @out;
	return "$name(" . join(', ', @in) . ") \xe2\x86\x92 $result";
}

sub check_reference
{
	my ($node) = @_;

	# Not the message id's type and operators, nor triggers.
	my @functions = map { signature(split /\|/, $_) } split /\n/,
	  $node->safe_psql(
		'postgres', qq{
		SELECT proname, pg_get_function_arguments(p.oid),
			   pg_get_function_result(p.oid), proretset
		FROM pg_proc p
		WHERE oid IN (SELECT objid $in_extension
					  AND d.classid = 'pg_proc'::regclass)
		  AND prorettype <> 'trigger'::regtype
		  AND proname !~ '^idem_message_id|^text\$'});
	my @shown = $reference =~ /^\*\*`(\w+\(.*)`\*\*$/mg;
	is(join("\n", sort @shown), join("\n", sort @functions),
		'docs/reference.md lists the functions');

	# The README names all but those that only serve the views, with the
	# arguments that they have.
	my ($section) = $readme =~ /^## Functions\n(.*?)^## /ms;
	my %named;
	foreach my $call (map { /`(\w+\(.*?\))`/g } $section =~ /^\| (`.*?) \|/mg)
	{
		$named{ $call =~ s/[\[\]]//gr } = 1;
	}
	foreach my $function (@functions)
	{
		my ($name, $arguments) = $function =~ /^(\w+)\((.*?)\)/;
		my $call = "$name(" . join(', ', 
			$arguments =~ /(\w+) \w+[^,]*/g) . ')';

		next if $name =~ /^idem_(next_step|attention_after|\w+_rows)$/;
		ok($named{$call}, "the README names $call");
		delete $named{$call} if $name ne 'idem_fingerprint';
	}
	delete $named{'idem_fingerprint(payload)'};
	is(join(' ', keys %named), '', 'and no other function');

	my $settings = $node->safe_psql(
		'postgres', q{
		SELECT idem_version() \g /dev/null
		SELECT format('%s | %s |%s | %s', name, current_setting(name),
					  ' ' || unit, context)
		FROM pg_settings WHERE name LIKE 'idem_inbox.%'});
	@shown = map { s/`//gr }
	  $readme =~ /^\| (`idem_inbox\.\w+` \|.*?\|.*?\|.*?) \|/mg;
	is(join("\n", sort @shown), join("\n", sort split /\n/, $settings),
		'the README lists the settings');

	my $relations = $node->safe_psql(
		'postgres', qq{
		SELECT c.relname FROM pg_class c
		WHERE c.relkind IN ('r', 'v')
		  AND c.oid IN (SELECT objid $in_extension
						AND d.classid = 'pg_class'::regclass)});
	($section) = $readme =~ /^## Views and tables\n(.*?)^## /ms;
	@shown = map { /`(\w+)`/g } $section =~ /^\| (`.*?) \|/mg;
	is(join("\n", sort @shown), join("\n", sort split /\n/, $relations),
		'the README lists the views and tables');

	my $outcomes = $node->safe_psql('postgres',
		'SELECT unnest(enum_range(NULL::idem_outcome))');
	($section) = $readme =~ /^## What to do on each outcome\n(.*?)^## /ms;
	@shown = $section =~ /^\| `(\w+)` \|/mg;
	is(join("\n", @shown), $outcomes, 'the README lists the outcomes');
	return;
}

# Links inside a file, and to files of the project.
sub check_links
{
	my ($file) = @_;
	my $text = slurp_file("$top/$file");
	my ($directory) = $file =~ m{^(.*/|)};
	my %anchors = map { lc =~ s/[^\w\- ]//gr =~ s/ /-/gr => 1 }
	  $text =~ /^#+ (.*)$/mg;
	my @broken = grep {
		/^#(.*)/ ? !$anchors{$1} : !-e "$top/$directory" . s/#.*//r
	} $text =~ /\]\(([^)]+)\)/g;

	is(join(' ', @broken), '', "the links in $file lead somewhere");
	return;
}

# docs/ring.md tells of every broken model.
sub check_models
{
	my @shown = slurp_file("$top/docs/ring.md") =~ /^\| `(\w+)`:/mg;
	my ($models) = run_command([ "$top/test/model/run", '--list' ]);

	# What is in lower case holds, and so does this one.
	my @broken = grep { /^[A-Z]/ && $_ ne 'LOOK_IN_STEPS' } split /\n/, $models;
	is(join(' ', @shown), join(' ', @broken), 'docs/ring.md lists the models');
	return;
}

sub check_targets
{
	my %targets = map { $_ => 1 } qw(install installcheck);
	my ($own) = slurp_file("$top/Makefile") =~ /^own_targets = ((?:.*\\\n)*.*)$/m;

	$targets{$_} = 1 foreach $own =~ /([a-z0-9-]+)/g;
	my @wrong = grep { !$targets{$_} }
	  map { $_->[2] =~ /^make +([a-z0-9-]+)/mg }
	  grep { $_->[0] eq 'sh' } blocks_of('README.md');
	is(join(' ', @wrong), '', 'the README knows the targets of make');
	return;
}

check_links($_)
  foreach map { s{^\Q$top\E/}{}r } glob("$top/*.md $top/docs/*.md");
check_targets();
check_models();

run_file('README.md');
foreach my $file (map { s{^\Q$top\E/}{}r } glob("$top/docs/*.md"))
{
	run_file($file) if examples_of($file);
}

my $node = IdemTest::new_node('reference',
	preload => 1,
	conf => ['idem_inbox.lone_claim = warning']);
check_reference($node);
$node->stop;

done_testing();
