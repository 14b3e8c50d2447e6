# idem_inbox: process each message once
#
# make, make install, make installcheck	as for any PGXS extension; another
#	server's pg_config with PG_CONFIG=..., LLVM bitcode with with_llvm=yes
# make check	everything that is tested, on a throw-away server
# make check-all	the same, then on every other PostgreSQL that Debian has
# make check-e2e	the programs in examples/ against real brokers and poolers
# make check-package	the Debian package and the PGXN archive
# make dist	that archive
# make demo	the bookstore story, on a throw-away server
# make bench, make model	measurements; the model of the ring
# make coverage	which lines the tests reach, by gcov (ten minutes)
# make analyse	static analysis (half a minute)
# make fuzz	libFuzzer around what reads a stranger's input
# make sqlsmith	random SQL statements over the extension, ten minutes
# make sanitize, make valgrind	the tests with ASan and UBSan; under valgrind

own_targets = check check-e2e check-all check-package dist demo bench model \
	analyse coverage fuzz sqlsmith sanitize valgrind

ifneq ($(filter $(own_targets),$(MAKECMDGOALS)),)

# These bring what they need, PostgreSQL included, so they must work where
# there is no PGXS to include yet.
.PHONY: $(own_targets)

check:
	@test/run

check-e2e:
	@test/e2e/run

check-all:
	@test/versions/run

check-package:
	@test/package/run

# As it was committed: two runs give the same bytes.
dist:
	@version=$$(sed -n 's/^   "version": "\(.*\)",$$/\1/p' META.json) && \
	git archive --format zip --prefix "idem_inbox-$$version/" \
		--output "idem_inbox-$$version.zip" HEAD

demo bench model analyse coverage fuzz sqlsmith:
	@test/$@/run

sanitize valgrind:
	@test/sanitize/run $@

else

EXTENSION = idem_inbox
DATA = $(wildcard idem_inbox--*.sql)
MODULE_big = idem_inbox
OBJS = $(patsubst %.c,%.o,$(wildcard src/*.c))
PGFILEDESC = "idem_inbox - process each message once"

# The unused parameters are those of PG_FUNCTION_ARGS and of hooks.
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter

# Bitcode needs the very clang that built the server, and gains nothing here:
# no function of the extension is worth inlining into a query.
ifneq ($(origin with_llvm),command line)
override with_llvm = no
endif

# The tests claim in autocommit, over and over.
export PGOPTIONS += -c idem_inbox.lone_claim=off

# The outputs are those of one encoding and one collation.
ENCODING = UTF8
NO_LOCALE = 1
REGRESS = $(sort $(patsubst sql/%.sql,%,$(wildcard sql/*.sql)))
ISOLATION = $(sort $(patsubst test/specs/%.spec,%,$(wildcard test/specs/*.spec)))
# PostgreSQL 16 took the expected outputs out of --inputdir.
ISOLATION_OPTS = --inputdir=$(srcdir)/test \
	$(if $(filter-out 15,$(MAJORVERSION)),--expecteddir=$(srcdir)/test)
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
# Not every package of the server brings the modules that TAP tests use.
ifneq ($(wildcard $(dir $(PGXS))../test/perl/PostgreSQL/Test/Cluster.pm),)
TAP_TESTS = 1
endif
include $(PGXS)

PG_PROVE_FLAGS += -I $(srcdir)/test/lib
$(OBJS): $(wildcard src/*.h)

endif
