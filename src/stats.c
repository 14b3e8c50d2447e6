/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters per database and consumer, in shared memory: idem_stats.
 *
 * A backend finds a consumer's counters once, under a lock, and keeps the
 * pointer: they stay where they are until the server stops.  From then on it
 * adds to them without a lock, and not before its transaction has ended, so a
 * claim itself touches no shared memory (tally.c).
 *
 * Memory is allotted at the server's start, so the library must be preloaded;
 * else nothing is counted.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include <limits.h>

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/*
 * Consumers are numbered by a table, which DROP EXTENSION drops: a new one
 * begins anew.
 */
typedef struct StatsKey
{
	Oid			database;
	Oid			consumers;
	int32		consumer_id;
} StatsKey;

/* A consumer's counters. */
typedef struct Stats
{
	StatsKey	key;			/* hash key */
	pg_atomic_uint64 counts[IDEM_SHARED_COUNTS];
	pg_atomic_uint64 expired;
	pg_atomic_uint64 last_claim;	/* a TimestampTz; 0: none */
	pg_atomic_uint64 since;		/* a TimestampTz */
} Stats;

/* Where a backend has found a consumer's counters. */
typedef struct KnownStats
{
	StatsKey	key;			/* hash key */
	Stats	   *stats;
} KnownStats;

/* Columns of idem_stats_rows(), in C's numbering. */
enum
{
	ROW_CONSUMER_ID,
	ROW_CLAIMED,
	ROW_ROLLED_BACK,
	ROW_DUPLICATE,
	ROW_BUSY,
	ROW_IN_PROGRESS,
	ROW_NEEDS_RECONCILIATION,
	ROW_MISMATCH,
	ROW_WAITS,
	ROW_WAITED_MS,
	ROW_COMPLETED,
	ROW_TAKEN_OVER,
	ROW_ABANDONED,
	ROW_EXPIRED,
	ROW_LAST_CLAIM,
	ROW_SINCE,
	ROW_COLUMNS
};

static int	max_consumers = 1000;

/* In shared memory; NULL: the library was not preloaded. */
static Stats *others = NULL;	/* of all consumers that found no place */
static HTAB *all_stats = NULL;
static LWLock *lock = NULL;		/* guards all_stats */

static HTAB *known_stats = NULL;

static shmem_request_hook_type next_request_hook = NULL;
static shmem_startup_hook_type next_startup_hook = NULL;

/* Count from zero. */
static void
clear(Stats *stats)
{
	/* What is stored stays stored. */
	for (int i = 0; i < IDEM_COUNT_STORED; i++)
		pg_atomic_write_u64(&stats->counts[i], 0);
	pg_atomic_write_u64(&stats->expired, 0);
	pg_atomic_write_u64(&stats->last_claim, 0);
	pg_atomic_write_u64(&stats->since, GetCurrentTimestamp());
}

/* Make counters of raw memory. */
static void
init(Stats *stats)
{
	for (int i = 0; i < IDEM_SHARED_COUNTS; i++)
		pg_atomic_init_u64(&stats->counts[i], 0);
	pg_atomic_init_u64(&stats->expired, 0);
	pg_atomic_init_u64(&stats->last_claim, 0);
	pg_atomic_init_u64(&stats->since, GetCurrentTimestamp());
}

static void
request_memory(void)
{
	if (next_request_hook)
		next_request_hook();

	RequestAddinShmemSpace(add_size(MAXALIGN(sizeof(Stats)),
									hash_estimate_size(max_consumers,
													   sizeof(Stats))));
	RequestAddinShmemSpace(idem_failing_size());
	RequestNamedLWLockTranche("idem_inbox", 2);
}

static void
start_memory(void)
{
	HASHCTL		ctl = {
		.keysize = sizeof(StatsKey),
		.entrysize = sizeof(Stats)
	};
	bool		found;

	if (next_startup_hook)
		next_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	others = ShmemInitStruct("idem_inbox other consumers", sizeof(Stats),
							 &found);
	if (!found)
	{
		memset(others, 0, sizeof(Stats));
		init(others);
	}
	all_stats = idem_shmem_hash("idem_inbox consumers", max_consumers, &ctl,
								HASH_ELEM | HASH_BLOBS);
	lock = &GetNamedLWLockTranche("idem_inbox")[0].lock;
	idem_failing_start(&GetNamedLWLockTranche("idem_inbox")[1].lock);
	LWLockRelease(AddinShmemInitLock);
}

/* Allot the memory, if the library is being preloaded. */
void
idem_stats_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	DefineCustomIntVariable("idem_inbox.max_consumers",
							"So many consumers have counters of their own in idem_stats.",
							"Those of all databases; the others are counted as one.",
							&max_consumers,
							1000, 1, 100000,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
	idem_failing_init();

	next_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	next_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_memory;
}

/* Find a consumer's counters in shared memory, or make them. */
static Stats *
find_shared(const StatsKey *key)
{
	Stats	   *stats;
	bool		found;

	LWLockAcquire(lock, LW_SHARED);
	stats = hash_search(all_stats, key, HASH_FIND, NULL);
	LWLockRelease(lock);
	if (stats != NULL)
		return stats;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (hash_get_num_entries(all_stats) < max_consumers)
		stats = hash_search(all_stats, key, HASH_ENTER_NULL, &found);
	if (stats != NULL && !found)
		init(stats);
	LWLockRelease(lock);

	return stats != NULL ? stats : others;
}

/* Find a consumer's counters. */
static Stats *
find(Oid consumers, int32 consumer_id)
{
	StatsKey	key = {MyDatabaseId, consumers, consumer_id};
	KnownStats *known;
	bool		found;

	if (known_stats == NULL)
	{
		HASHCTL		ctl = {
			.keysize = sizeof(StatsKey),
			.entrysize = sizeof(KnownStats),
			.hcxt = TopMemoryContext
		};

		known_stats = hash_create("idem_inbox known counters", 16, &ctl,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	known = hash_search(known_stats, &key, HASH_ENTER, &found);
	if (!found)
		known->stats = find_shared(&key);
	return known->stats;
}

/*
 * Add what a transaction that has just ended did for a consumer.
 *
 * consumers: the table that numbers them.
 */
void
idem_stats_add(Oid consumers, int32 consumer_id, const int64 *counts)
{
	Stats	   *stats;
	int			last = IDEM_SHARED_COUNTS;

	if (all_stats == NULL)
		return;

	/* Whose records the others' are, nobody knows. */
	stats = find(consumers, consumer_id);
	if (stats == others)
		last = IDEM_COUNT_STORED;
	for (int i = 0; i < last; i++)
	{
		if (counts[i] != 0)
			pg_atomic_fetch_add_u64(&stats->counts[i], counts[i]);
	}
	if (counts[IDEM_COUNT_CLAIMED] > 0)
		pg_atomic_write_u64(&stats->last_claim,
							GetCurrentTransactionStopTimestamp());
}

/* A generation was emptied: what was stored there has expired. */
void
idem_stats_emptied(Oid consumers, int generation)
{
	HASH_SEQ_STATUS status;
	Stats	   *stats;

	if (all_stats == NULL)
		return;

	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&status, all_stats);
	while ((stats = hash_seq_search(&status)) != NULL)
	{
		int64		stored;

		if (stats->key.database != MyDatabaseId ||
			stats->key.consumers != consumers)
			continue;

		/* Less than nothing: what was stored before the server's start went. */
		stored = (int64) pg_atomic_exchange_u64(&stats->counts[IDEM_COUNT_STORED + generation], 0);
		if (stored > 0)
			pg_atomic_fetch_add_u64(&stats->expired, stored);
	}
	LWLockRelease(lock);
}

static void
put_row(ReturnSetInfo *rsinfo, Stats *stats)
{
	static const int counts[ROW_COLUMNS] = {
		[ROW_CLAIMED] = IDEM_COUNT_CLAIMED,
		[ROW_ROLLED_BACK] = IDEM_COUNT_ROLLED_BACK,
		[ROW_DUPLICATE] = IDEM_COUNT_DUPLICATE,
		[ROW_BUSY] = IDEM_COUNT_BUSY,
		[ROW_IN_PROGRESS] = IDEM_COUNT_IN_PROGRESS,
		[ROW_NEEDS_RECONCILIATION] = IDEM_COUNT_NEEDS_RECONCILIATION,
		[ROW_MISMATCH] = IDEM_COUNT_MISMATCH,
		[ROW_WAITS] = IDEM_COUNT_WAITS,
		[ROW_WAITED_MS] = IDEM_COUNT_WAITED,
		[ROW_COMPLETED] = IDEM_COUNT_COMPLETED,
		[ROW_TAKEN_OVER] = IDEM_COUNT_TAKEN_OVER,
		[ROW_ABANDONED] = IDEM_COUNT_ABANDONED
	};
	Datum		values[ROW_COLUMNS];
	bool		isnull[ROW_COLUMNS] = {0};
	TimestampTz last_claim = pg_atomic_read_u64(&stats->last_claim);

	for (int i = ROW_CLAIMED; i <= ROW_ABANDONED; i++)
		values[i] = Int64GetDatum(pg_atomic_read_u64(&stats->counts[counts[i]]));
	values[ROW_CONSUMER_ID] = Int32GetDatum(stats->key.consumer_id);
	values[ROW_WAITED_MS] =
		Float8GetDatum(pg_atomic_read_u64(&stats->counts[IDEM_COUNT_WAITED]) / 1000.0);
	values[ROW_EXPIRED] = Int64GetDatum(pg_atomic_read_u64(&stats->expired));
	values[ROW_LAST_CLAIM] = TimestampTzGetDatum(last_claim);
	isnull[ROW_LAST_CLAIM] = last_claim == 0;
	values[ROW_SINCE] = TimestampTzGetDatum(pg_atomic_read_u64(&stats->since));
	isnull[ROW_CONSUMER_ID] = isnull[ROW_EXPIRED] = stats == others;

	idem_row_put(rsinfo, ROW_COLUMNS, values, isnull);
}

/* Whether the counters hold anything. */
static bool
is_used(Stats *stats)
{
	for (int i = 0; i < IDEM_COUNT_STORED; i++)
	{
		if (pg_atomic_read_u64(&stats->counts[i]) != 0)
			return true;
	}
	return false;
}

/*
 * idem_stats_rows() → setof (consumer_id int, ...)
 *
 * For the view idem_stats: the counters of this database's consumers; those of
 * the others under NULL.
 */
PG_FUNCTION_INFO_V1(idem_stats_rows);
Datum
idem_stats_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			consumers = idem_catalog()->consumer;
	HASH_SEQ_STATUS status;
	Stats	   *stats;

	InitMaterializedSRF(fcinfo, 0);
	if (all_stats == NULL)
		return (Datum) 0;

	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&status, all_stats);
	while ((stats = hash_seq_search(&status)) != NULL)
	{
		if (stats->key.database == MyDatabaseId &&
			stats->key.consumers == consumers)
			put_row(rsinfo, stats);
	}
	LWLockRelease(lock);
	if (is_used(others))
		put_row(rsinfo, others);

	return (Datum) 0;
}

/* Count from zero for one consumer of this database, or with NULL for all. */
static void
reset(Oid consumers, const int32 *consumer_id)
{
	HASH_SEQ_STATUS status;
	Stats	   *stats;

	if (all_stats == NULL)
		return;

	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&status, all_stats);
	while ((stats = hash_seq_search(&status)) != NULL)
	{
		if (stats->key.database == MyDatabaseId &&
			stats->key.consumers == consumers &&
			(consumer_id == NULL || stats->key.consumer_id == *consumer_id))
			clear(stats);
	}
	LWLockRelease(lock);
	if (consumer_id == NULL)
		clear(others);
}

/*
 * idem_stats_reset(consumer text) → void
 *
 * Errors: 42501 for another owner's consumer, and for all consumers (NULL) if
 * the tables are not the current role's; 42704 for an unknown consumer.
 */
PG_FUNCTION_INFO_V1(idem_stats_reset);
Datum
idem_stats_reset(PG_FUNCTION_ARGS)
{
	const IdemCatalog *catalog = idem_catalog();
	int32	   *consumer_id = NULL;
	IdemConsumer consumer;

	if (!PG_ARGISNULL(0))
	{
		IdemCall	call;

		idem_call_start(&call, "idem_stats_reset()", fcinfo, -1, 0, false);
		if (!idem_consumer_find(call.consumer_name, &consumer))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("consumer \"%s\" is not registered",
							call.consumer_name)));
		idem_call_end(&call);
		consumer_id = &consumer.id;
	}
	else if (!has_privs_of_role(GetUserId(), catalog->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reset the counters of all consumers"),
				 errhint("Name a consumer of yours, or act as the extension's owner.")));

	reset(catalog->consumer, consumer_id);
	idem_failing_forget(catalog->consumer, consumer_id);

	PG_RETURN_VOID();
}
