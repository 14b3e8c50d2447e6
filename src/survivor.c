/*-------------------------------------------------------------------------
 *
 * survivor.c
 *	  Records that outlive their generation, and emptying it.
 *
 * A sealed generation is emptied as a whole, so what must stay is moved into
 * the current one first: records in progress, and those of consumers whose
 * own retention is longer than the setting.  Claims take no notice: one that
 * probes sees the record in the sealed generation until the move commits and
 * in the current one from then on, and it probes in that order.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* At most so many records are moved in one step. */
#define MOVE_BATCH 1000

/* A search for survivors, through one index of the generation at a time. */
typedef struct Search
{
	Relation	table;
	int			generation;
	int			current;		/* where to move to */
	const IdemRing *ring;
	Snapshot	snapshot;
	int			found;
	int			moved;
} Search;

/*
 * Move one record; false if somebody holds it, then it stays for a later
 * step.
 *
 * It is inserted before it is deleted, and the row is locked for that: the
 * decision to move was made on this version, and nobody shall complete or
 * abandon it in between.
 */
static bool
move_record(Search *search, TupleTableSlot *slot)
{
	IdemRecord	record;
	IdemRecord	copy;
	IdemKey		key;

	if (idem_lock_row(search->table, &slot->tts_tid, LockTupleExclusive,
					  LockWaitSkip) != TM_Ok)
		return false;

	idem_record_read(search->table, ExecCopySlotHeapTuple(slot),
					 search->generation, &record);
	key.consumer_id = DatumGetInt32(record.values[IDEM_CONSUMER_ID]);
	key.message_id = record.values[IDEM_MESSAGE_ID];

	copy = record;
	if (!idem_generation_insert(search->current, &key, &copy))
	{
		TransactionId pending;

		/*
		 * Only rows written past the functions can be in the way.  A
		 * committed one is the newer record of the two.
		 */
		if (idem_generation_probe(search->current, &key, &copy,
								  &pending) != IDEM_FOUND)
			return false;
	}
	return idem_record_delete(&record);
}

/* Whether a finished record is to be kept beyond its generation's time. */
static bool
kept_by_policy(Search *search, TupleTableSlot *slot, const Interval *retention)
{
	bool		isnull;
	Datum		received_at = slot_getattr(slot, IDEM_RECEIVED_AT + 1, &isnull);
	Datum		completed_at = slot_getattr(slot, IDEM_COMPLETED_AT + 1, &isnull);
	TimestampTz keep_until;
	int64		skipped;

	/* Records in progress are found by themselves. */
	if (isnull || TIMESTAMP_IS_NOBEGIN(DatumGetTimestampTz(completed_at)))
		return false;

	/* Beyond what a timestamp can tell, it is for ever. */
	if (idem_interval_microseconds(retention) > PG_INT64_MAX / 2)
		return true;

	keep_until = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
														 received_at,
														 IntervalPGetDatum(retention)));

	/* Time that was not counted does not make a record older. */
	skipped = idem_ring_skipped_since(search->ring,
									  DatumGetTimestampTz(received_at));
	return TIMESTAMP_NOT_FINITE(keep_until) ||
		keep_until + skipped > GetCurrentTimestamp();
}

/*
 * Go through an index of the generation, from its beginning or for one
 * consumer; returns false once the search has enough.
 *
 * retention: of the consumer; NULL: take all that the index has.
 */
static bool
search_index(Search *search, Oid index_oid, const int32 *consumer_id,
			 const Interval *retention)
{
	Relation	index = index_open(index_oid, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(search->table, NULL);
	IndexScanDesc scan;
	ScanKeyData key;

	if (consumer_id != NULL)
		ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(*consumer_id));
	scan = idem_index_beginscan(search->table, index, search->snapshot,
								consumer_id != NULL ? 1 : 0);
	index_rescan(scan, &key, consumer_id != NULL ? 1 : 0, NULL, 0);
	while (search->found < MOVE_BATCH &&
		   index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (retention != NULL && !kept_by_policy(search, slot, retention))
			continue;

		search->found++;
		if (move_record(search, slot))
			search->moved++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);

	return search->found < MOVE_BATCH;
}

/*
 * Lock what a search needs; false if somebody is in the way, who must not be
 * waited for.
 */
static bool
lock_for_search(int generation, int current)
{
	const IdemCatalog *catalog = idem_catalog();
	Oid			from = catalog->generations[generation].table;
	Oid			to = catalog->generations[current].table;

	return ConditionalLockRelationOid(catalog->consumer, AccessShareLock) &&
		ConditionalLockRelationOid(from, RowExclusiveLock) &&
		ConditionalLockRelationOid(to, RowExclusiveLock);
}

static List *
read_policies(void)
{
	return idem_consumers_kept_longer((int64) idem_retention * USECS_PER_SEC);
}

/*
 * Move a batch of what must outlive a sealed generation into the current one:
 * unfinished records, then those of consumers that are kept longer.
 */
IdemSurvivors
idem_move_survivors(int generation, int current, const IdemRing *ring)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	IdemSurvivors result = {.left = true};
	Search		search = {
		.generation = generation,
		.current = current,
		.ring = ring
	};
	ListCell   *lc;
	bool		more;

	if (!lock_for_search(generation, current))
		return result;

	search.table = table_open(oids->table, NoLock);
	CommandCounterIncrement();
	search.snapshot = RegisterSnapshot(GetLatestSnapshot());
	result.policies = read_policies();
	more = search_index(&search, oids->unfinished_index, NULL, NULL);
	foreach(lc, result.policies)
	{
		IdemPolicy *policy = (IdemPolicy *) lfirst(lc);

		if (more)
			more = search_index(&search, oids->key_index, &policy->consumer_id,
								&policy->retention);
	}
	UnregisterSnapshot(search.snapshot);
	table_close(search.table, NoLock);

	result.moved = search.moved;
	result.left = search.found > 0;
	return result;
}

static bool
same_policies(const List *a, const List *b)
{
	if (list_length(a) != list_length(b))
		return false;

	for (int i = 0; i < list_length(a); i++)
	{
		IdemPolicy *x = (IdemPolicy *) list_nth(a, i);
		IdemPolicy *y = (IdemPolicy *) list_nth(b, i);

		if (x->consumer_id != y->consumer_id ||
			memcmp(&x->retention, &y->retention, sizeof(Interval)) != 0)
			return false;
	}
	return true;
}

/*
 * Whether a search that left nothing still holds, now that nobody else uses
 * the generation.
 *
 * The generation does not have to be searched again while everybody waits for
 * its lock: nothing is added to it, and records get older.  Only what is
 * unfinished, which has an index of its own, and the policies may have
 * changed meanwhile.
 */
bool
idem_survivors_unchanged(int generation, const IdemSurvivors *survivors)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	Relation	table = table_open(oids->table, NoLock);
	List	   *unfinished = idem_read_rows(table, oids->unfinished_index,
											NULL, 0);

	table_close(table, NoLock);
	return unfinished == NIL &&
		same_policies(survivors->policies, read_policies());
}

/*
 * TRUNCATE a table that the caller has locked AccessExclusiveLock.
 *
 * Not by SPI: the caller need not be the table's owner, and no search_path
 * comes into it.
 */
void
idem_truncate(Relation table)
{
	List	   *relids = list_make1_oid(RelationGetRelid(table));

	idem_execute_truncate(list_make1(table), relids,
						  RelationIsLogicallyLogged(table) ? relids : NIL);
}
