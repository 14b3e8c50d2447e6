# The launcher and its workers are not in the way of what is done to whole
# databases, and keep out of those that are not theirs.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IdemWorkerTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_worker_node('databases');

#
# Databases to keep out of
#
$node->safe_psql('template1', 'CREATE EXTENSION idem_inbox');
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(app closed);
$node->safe_psql('postgres', 'CREATE DATABASE bare TEMPLATE template0');
$node->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS false');

my %worker = map { $_ => worker_of($node, $_) }
  qw(postgres app bare closed template0 template1);
my $offset = -s $node->logfile;
wait_for_visits($node, $worker{app}, 2);
cmp_ok(visits($node, $worker{bare}, $offset),
	'>', 1, 'a database without the extension is visited, to no effect');
is(visits($node, $worker{$_}, $offset), 0, "$_ is left alone")
  foreach qw(closed template0 template1);

#
# CREATE DATABASE ... TEMPLATE, while a worker is in the original
#
keep_busy($node, 'app');
IdemTest::poll($node, 'SELECT EXISTS (' . worker_in('app') . ')');
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE app');
pass('a database is copied while a worker is in it');
foreach my $database (qw(app copy))
{
	$node->poll_query_until($database, 'SELECT NOT previous_sealed FROM idem_ring')
	  or die 'timed out';
	is( $node->safe_psql($database, 'SELECT count(*) FROM idem_generation_2'),
		$busy_records, "the worker finishes its work in $database");
}

#
# DROP DATABASE, while a worker is in it
#
keep_busy($node, 'copy');
IdemTest::poll($node, 'SELECT EXISTS (' . worker_in('copy') . ')');
$node->safe_psql('postgres', 'DROP DATABASE copy');
pass('a database is dropped while a worker is in it');

#
# A database that is locked, as while it is being dropped or copied
#
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN; ALTER DATABASE app RENAME TO renamed');
$offset = -s $node->logfile;
wait_for_visits($node, $worker{postgres}, 1);
is(visits($node, $worker{app}, $offset),
	0, 'nobody waits for a locked database, the others are visited');
$session->query_safe('COMMIT');
wait_for_visits($node, $worker{app}, 1);
pass('which is visited again, by its new name');
$session->quit;

$node->stop;
unlike(slurp_file($node->logfile), qr/ERROR:|PANIC:|TRAP:|idem_inbox worker .*fail/,
	'no error in the log');
done_testing();
