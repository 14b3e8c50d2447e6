
# The C sources are formatted as pgindent does; the diagrams are made.

use strict;
use warnings;

use FindBin;
use Test::More;

plan skip_all => 'pg_bsd_indent is not installed'
  if system('command -v pg_bsd_indent >/dev/null') != 0;

my $diff = qx("$FindBin::RealBin/../format/run" 2>&1);
is($? . $diff, '0', 'sources are formatted (test/format/run --fix)');

SKIP:
{
	skip 'graphviz is not installed', 1
	  if system('command -v dot >/dev/null') != 0;

	$diff = qx("$FindBin::RealBin/../diagrams/run" 2>&1);
	is($? . $diff, '0', 'diagrams are what their text makes (test/diagrams/run --fix)');
}

done_testing();
