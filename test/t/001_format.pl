
# The C sources are formatted as pgindent does.

use strict;
use warnings;

use FindBin;
use Test::More;

plan skip_all => 'pg_bsd_indent is not installed'
  if system('command -v pg_bsd_indent >/dev/null') != 0;

my $diff = qx("$FindBin::RealBin/../format/run" 2>&1);
is($? . $diff, '0', 'sources are formatted (test/format/run --fix)');

done_testing();
