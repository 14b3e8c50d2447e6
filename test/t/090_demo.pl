# The bookstore story of "make demo" ends as the README says it does.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my @expected = split /\n/, <<'END';
[naive]              delivered twice -> Dune reserved: 4
[check-then-process] crash after stock commit, redelivered -> Dune reserved: 4
[inbox]              delivered twice -> claimed, duplicate; Dune reserved: 2
[inbox]              crash before commit -> reserved 0; redelivered -> Dune reserved: 2
[inbox]              two copies at once -> claimed, duplicate; Dune reserved: 2; second waited for the first: yes
[pub/sub]            one message, two consumers -> claimed, claimed
[claim last]         two copies at once -> Dune reserved: 2; second copy waited on: the stock row
[email]              crash after send, redelivered -> emails sent: 1; second delivery: needs_reconciliation
[email]              takeover -> attempt 2; provider asked by idempotency key: executed -> complete; redelivered -> duplicate; emails sent: 1
[payment]            crash before the charge, redelivered -> charges: 0; second delivery: needs_reconciliation
[payment]            takeover -> attempt 2; provider asked by idempotency key: unknown -> abandon; redelivered -> claimed; charges: 1
[mismatch]           same id, other content -> mismatch
[natural key]        unique (order_id, book_id), two message ids -> reserved: 2; with the inbox alone -> reserved: 4
[retention]          retention over -> record of the reservation: expired; of the unfinished email: kept
[retention]          redelivered too late -> claimed, Dune reserved: 4; email: needs_reconciliation, emails sent: 1
END

my $node = IdemTest::new_node('bookstore', extension => 0);

local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
my ($stdout, $stderr);
my $succeeded = IPC::Run::run(
	[ 'bash', "$FindBin::RealBin/../demo/story" ],
	'>' => \$stdout,
	'2>' => \$stderr,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
ok($succeeded, 'the story comes to its end');
is($stderr, '', 'nothing is complained about');

my @got = split /\n/, $stdout;
is($got[$_], $expected[$_], "line " . ($_ + 1)) foreach 0 .. $#expected;
is(scalar(@got), scalar(@expected), 'no line more');

is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM pg_database WHERE datname = 'bookstore'"
	),
	'0',
	'no database is left behind');

$node->stop;
done_testing();
