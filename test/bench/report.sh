#!/bin/bash
# report.sh NAME...: writes docs/benchmarks.md, and its plots, from the sections
# and data that the measurements left in $results.

set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
plots=$top/docs/benchmarks
mkdir -p "$plots"

# plot NAME COMMANDS
plot()
{
    gnuplot <<EOF
set terminal svg size 760,380 font "sans-serif,13" background "white"
set output "$plots/$1.svg"
set key outside top center horizontal
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
$2
EOF
}

bars='set style data histograms
set style histogram clustered gap 1
set style fill solid 0.8 border -1
set boxwidth 0.9
set yrange [0:*]
set xtics rotate by -20'

plot claim "$bars
set ylabel 'time of a claim, by hand = 1'
set arrow from graph 0, first 0.5 to graph 1, first 0.5 nohead dt 2
plot '$results/claim.dat' using 2:xtic(1) title 'idem\\_inbox' lc rgb '#2a7f62'"
plot transaction "set ylabel 'transactions per second, handler without claim = 1'
set xlabel 'clients'
set logscale x 2
set yrange [0:1.2]
plot '$results/transaction_fsync.dat' using 1:2 with linespoints title 'commits on disk', \
     '$results/transaction_async.dat' using 1:2 with linespoints title 'synchronous\\_commit = off', \
     '$results/transaction_fsync.dat' using 1:4 with linespoints dt 2 title 'one statement, on disk', \
     '$results/transaction_async.dat' using 1:4 with linespoints dt 2 title 'one statement, off'"
plot peers "$bars
set bmargin 7
set ylabel 'messages per second, idem\\_inbox to it'
set arrow from graph 0, first 1 to graph 1, first 1 nohead dt 2
plot '$results/peers.dat' using 2:xtic(1) title 'on one machine' lc rgb '#2a7f62', \
     '' using 3 title 'over a network of 0.5 ms' lc rgb '#88c0a8'"
plot growth "set ylabel 'µs per claim'
set xlabel 'records retained'
set logscale x
set yrange [0:*]
plot '$results/growth_uuid7.dat' using 1:2 with linespoints title 'UUIDv7', \
     '' using 1:3 with linespoints dt 2 title 'UUIDv7, sealed', \
     '$results/growth_uuid4.dat' using 1:2 with linespoints title 'UUIDv4', \
     '' using 1:3 with linespoints dt 2 title 'UUIDv4, sealed'"

# section NAME: a section, with its plot if it has one
section()
{
    if [ -e "$plots/$1.svg" ]; then
        sed "1a\\\\n![$1](benchmarks/$1.svg)" "$results/$1.md"
    else
        cat "$results/$1.md"
    fi
    echo
}

{
    cat <<EOF
# Measurements

Written by \`make bench\` on $(date +%F), $(postgres --version), $(nproc) cores,
$(uname -m), C locale; nothing here is typed in. Each pair of figures alternates in one
run; ratios are medians of the rounds' ratios. The machine is small and shared:
ratios hold to some five per cent, absolute figures say little about another
machine. WAL and sizes are exact.

The consumer is called \`inventory.reserve-stock\`; an inbox written by hand
stores that name in each record and each index entry, so a shorter name makes
it better. In a locale other than C its text keys compare more slowly.

EOF
    for name; do
        section "$name"
    done
    cat "$top/test/bench/explained.md"
} >"$top/docs/benchmarks.md"
