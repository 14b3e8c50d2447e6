# What the TAP tests share.
#
#	use FindBin;
#	use lib "$FindBin::RealBin/../lib";
#	use IdemTest;
#
#	my $node = IdemTest::new_node('main', preload => 1, conf => [ ... ]);
#
# The extension comes from the server's own directories, or from where the
# settings in the file $TEMP_CONFIG, which every node of
# PostgreSQL::Test::Cluster includes, say it is.

package IdemTest;

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Said here, because the server's modules say it in the middle of a test.
sub import
{
	plan skip_all => 'initdb refuses to be run by root' if $> == 0;
	# of the other kinds of tests
	delete $ENV{PGOPTIONS};
	return;
}

# new_node NAME, OPTION => VALUE, ...: a running server with the extension in
# the database postgres.  Options:
#	init		arguments of PostgreSQL::Test::Cluster's init, as a hash
#	conf		lines for postgresql.conf, as an array
#	preload		true: the extension is in shared_preload_libraries
#	start		false: the server is not started, nor the extension created
#	extension	false: the extension is not created
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%{ $opt{init} // {} });
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'idem_inbox'")
	  if $opt{preload};
	# The tests claim in autocommit, over and over.
	$node->append_conf('postgresql.conf', 'idem_inbox.lone_claim = off');
	$node->append_conf('postgresql.conf', $_) foreach @{ $opt{conf} // [] };
	if ($opt{start} // 1)
	{
		$node->start;
		$node->safe_psql('postgres', 'CREATE EXTENSION idem_inbox')
		  if $opt{extension} // 1;
	}
	return $node;
}

# poll NODE, QUERY: waits until the query answers "t", for the state that a
# test depends on; dies, with the query, if that never comes.
sub poll
{
	my ($node, $query) = @_;

	$node->poll_query_until('postgres', $query)
	  or die "timed out waiting for: $query";
	return;
}

# create_keep_turning NODE: the procedure keep_turning(pause), which turns the
# ring until somebody ends it, with so many seconds between two steps.
sub create_keep_turning
{
	my ($node) = @_;

	$node->safe_psql('postgres', <<'SQL');
CREATE PROCEDURE keep_turning(pause float8) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		PERFORM idem_maintain();
		COMMIT;
		PERFORM pg_sleep(pause);
	END LOOP;
END
$$
SQL
	return;
}

# script_directory NODE: where the server finds the extension's scripts.
sub script_directory
{
	my ($node) = @_;
	my $path = $node->safe_psql('postgres', q{
		SELECT string_agg(setting, '|' ORDER BY name) FROM pg_settings
		WHERE name IN ('extension_destdir', 'extension_control_path')});
	my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);

	foreach my $directory (map { ("$_$sharedir/extension", "$_/extension") }
		  split /[:|]/, $path)
	{
		return $directory if -e "$directory/idem_inbox.control";
	}
	return "$sharedir/extension";
}

1;
