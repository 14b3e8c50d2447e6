/*-------------------------------------------------------------------------
 *
 * idem_test.c
 *	  Stops a claim in the middle, or makes it linger there, for tests.
 *
 * A stopped session waits for an advisory lock, which another session of the
 * test holds.  So the isolation tester sees it wait, and every interleaving
 * is exact: nothing depends on who is faster.  Each stop is for once.
 *
 * A lingering session sleeps at random, so that under load the interleavings
 * come up which otherwise take a moment of a microsecond.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

typedef void (*IdemClaimHook) (const char *point);

/* The point of a claim to stop at, and the lock to wait for there. */
static char stop_point[NAMEDATALEN];
static int64 point_key;

/* The table to stop in, before how many of its rows, and likewise. */
static Oid	stop_table;
static int32 rows_left;
static int64 row_key;

static TableAmRoutine stopping_routine;

/* One point in so many is lingered at, so many microseconds at most. */
#define LINGER_ONE_IN 20
static int32 linger_limit = 0;

static void
wait_for_lock(int64 key)
{
	DirectFunctionCall1(pg_advisory_lock_shared_int8, Int64GetDatum(key));
	DirectFunctionCall1(pg_advisory_unlock_shared_int8, Int64GetDatum(key));
}

static void
stop_claim(const char *point)
{
	if (strcmp(point, stop_point) != 0)
		return;

	stop_point[0] = '\0';
	wait_for_lock(point_key);
}

static void
linger(const char *point)
{
	if (pg_prng_uint64_range(&pg_global_prng_state, 1, LINGER_ONE_IN) == 1)
		pg_usleep(pg_prng_uint64_range(&pg_global_prng_state, 0,
									   linger_limit));
}

static void
set_hook(IdemClaimHook function)
{
	IdemClaimHook *hook;

	hook = (IdemClaimHook *)
		load_external_function("$libdir/idem_inbox", "idem_claim_hook", true,
							   NULL);
	*hook = function;
}

/*
 * idem_test_stop_at(point text, key bigint) → void
 *
 * Makes the session's next claim that comes to this point wait for the lock.
 */
PG_FUNCTION_INFO_V1(idem_test_stop_at);
Datum
idem_test_stop_at(PG_FUNCTION_ARGS)
{
	set_hook(stop_claim);
	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), stop_point,
						   sizeof(stop_point));
	point_key = PG_GETARG_INT64(1);

	PG_RETURN_VOID();
}

/*
 * idem_test_linger(microseconds int) → void
 *
 * Makes the session's claims linger at their points at random, from now on.
 */
PG_FUNCTION_INFO_V1(idem_test_linger);
Datum
idem_test_linger(PG_FUNCTION_ARGS)
{
	linger_limit = PG_GETARG_INT32(0);
	set_hook(linger);

	PG_RETURN_VOID();
}

static bool
stop_at_row(struct IndexFetchTableData *scan, ItemPointer tid,
			Snapshot snapshot, TupleTableSlot *slot, bool *call_again,
			bool *all_dead)
{
	if (RelationGetRelid(scan->rel) == stop_table && --rows_left == 0)
	{
		stop_table = InvalidOid;
		wait_for_lock(row_key);
	}
	return GetHeapamTableAmRoutine()->index_fetch_tuple(scan, tid, snapshot,
														slot, call_again,
														all_dead);
}

/*
 * idem_test_stop_at_row(generation regclass, key bigint, nth int) → void
 *
 * Makes the session wait for the lock when it has read an index of the table
 * and is about to read the row that the index points to, for the nth time.
 */
PG_FUNCTION_INFO_V1(idem_test_stop_at_row);
Datum
idem_test_stop_at_row(PG_FUNCTION_ARGS)
{
	Relation	table = table_open(PG_GETARG_OID(0), AccessShareLock);

	/* The change is this session's, and lasts as the relcache entry does. */
	stopping_routine = *GetHeapamTableAmRoutine();
	stopping_routine.index_fetch_tuple = stop_at_row;
	table->rd_tableam = &stopping_routine;
	stop_table = RelationGetRelid(table);
	row_key = PG_GETARG_INT64(1);
	rows_left = PG_GETARG_INT32(2);
	table_close(table, AccessShareLock);

	PG_RETURN_VOID();
}
