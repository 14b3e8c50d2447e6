# Drivers in their defaults claim in autocommit: psql, JDBC and node-postgres
# are told, and show it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::new_node('main',
	conf => [
		"listen_addresses = '127.0.0.1'", 'idem_inbox.lone_claim = warning'
	]);
$node->safe_psql('postgres', 'CREATE TABLE work (driver text)');
my $drivers = "$FindBin::RealBin/../drivers";
my $server = '127.0.0.1:' . $node->port . '/postgres';

sub warning
{
	my ($message) = @_;
	return "25P01 message \"$message\" was claimed for consumer \"orders\" "
	  . 'in a transaction that did nothing else';
}

my ($out, $err) = run_command(
	[
		'psql', '-X', '-A', '-t', '-v', 'VERBOSITY=verbose',
		'-d', $node->connstr('postgres'),
		'-c', q{SELECT idem_claim('psql', 'orders')},
		'-c', 'BEGIN', '-c', q{SELECT idem_claim('psql begin', 'orders')},
		'-c', 'COMMIT'
	]);
is($out, "claimed\nBEGIN\nclaimed\nCOMMIT", 'psql claims');
like($err, qr/^WARNING:  25P01: message "psql" was claimed .*^HINT: /ms,
	'psql: warning, with a hint');
is(scalar(() = $err =~ /WARNING/g), 1, 'psql: not in a transaction');

my $user = getpwuid($>);
($out, $err) = run_command(
	[
		'java', '-cp', '/usr/share/java/postgresql.jar',
		"$drivers/Claim.java", "jdbc:postgresql://$server?user=$user"
	]);
is( $out, join("\n",
		'default: claimed', 'default: ' . warning('jdbc default'),
		'transaction: claimed', 'transaction: duplicate',
		'transaction: duplicate'),
	'JDBC') or diag $err;

($out, $err) = run_command(
	[ 'node', "$drivers/claim.js", "postgres://$user\@$server" ]);
is( $out, join("\n",
		'default: ' . warning('node default'), 'default: claimed',
		'transaction: claimed', 'transaction: duplicate',
		'pool: ' . warning('node pool'), 'pool: claimed'),
	'node-postgres') or diag $err;

$node->stop;
done_testing();
