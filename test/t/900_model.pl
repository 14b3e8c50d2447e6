# The model of the ring holds, and fails with any of its rules broken.
use strict;
use warnings FATAL => 'all';

use FindBin;
use Test::More;

my $run = "$FindBin::RealBin/../model/run";

if (system('spin -V > /dev/null 2>&1') != 0)
{
	diag('spin is missing, the model of the ring is NOT checked');
	plan skip_all => 'spin is missing, the model of the ring is NOT checked';
}

open(my $list, '-|', $run, '--list') or die "could not run $run: $!";
my %missing = map { chomp; $_ => 1 } <$list>;
close($list) or die "$run --list failed";
cmp_ok(scalar(keys %missing), '>', 1, 'there are models');

# One line as each model ends, then what explains a failure.
my $ok = 0;
open(my $models, '-|', $run) or die "could not run $run: $!";
while (my $line = <$models>)
{
	chomp $line;
	if ($line =~ /^(not )?ok (\w+): (.*)/)
	{
		$ok = ok(!$1 && delete $missing{$2}, "$2: $3");
	}
	elsif (!$ok)
	{
		diag($line);
	}
}
close($models);
is($?, 0, 'all of them are as they must be');
is(join(' ', sort keys %missing), '', 'none is missing');

done_testing();
