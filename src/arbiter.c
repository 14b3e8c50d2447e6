/*-------------------------------------------------------------------------
 *
 * arbiter.c
 *	  Rows of a table under the arbitration of a unique index.
 *
 * The direct way past SPI: a probe with a dirty snapshot, which sees whether
 * a conflicting row is committed or another open transaction's, and an
 * insertion whose unique index only reports a conflict instead of raising
 * 23505.  What this file knows is heap, index and transactions; what the rows
 * mean is its callers' business.
 *
 * How two insertions of one key end:  both rows may reach the table, but the
 * index checks a key and adds its entry under one page lock, so the second
 * one to arrive learns of the first.  It deletes its own row and its caller
 * starts again, now finding the first one's.  If a third transaction saw both
 * conflict, both may give way; then both start again.  Nobody waits with a
 * live row of his own still in the way, so two losers never wait for each
 * other.  Who met a loser's row just before it was deleted waits for that
 * loser's transaction to end, though: an undue wait, which the deadlock
 * detector sees like any other.
 *
 * PostgreSQL's speculative insertion does the same with a token per row, which
 * costs a second WAL record for each row; here only the loser of a race pays.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/heapam.h"
#include "access/nbtree.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* A bounded wait polls, from 1 ms between two tries up to this many. */
#define MAX_POLL_MS 16

/*
 * Whether the (sub)transaction that inserted the slot's row deleted it again:
 * then it is dead however that transaction ends.  A dirty snapshot does not
 * look at the deleter of a row whose inserter is still running, so without
 * this a third copy of a message would wait for the loser of a race.
 */
static bool
deleted_by_its_inserter(TupleTableSlot *slot)
{
	BufferHeapTupleTableSlot *bslot = (BufferHeapTupleTableSlot *) slot;
	HeapTupleHeader tuple = bslot->base.tuple->t_data;
	bool		dead;

	Assert(TTS_IS_BUFFERTUPLE(slot));

	LockBuffer(bslot->buffer, BUFFER_LOCK_SHARE);
	dead = !(tuple->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_infomask) &&
		TransactionIdEquals(HeapTupleHeaderGetRawXmin(tuple),
							HeapTupleHeaderGetRawXmax(tuple));
	LockBuffer(bslot->buffer, BUFFER_LOCK_UNLOCK);

	return dead;
}

/*
 * What a row that a dirty snapshot has returned means to those who want its
 * key; IDEM_NOTHING: nothing.
 */
static IdemProbe
judge_row(const SnapshotData *dirty, TupleTableSlot *slot,
		  TransactionId *pending)
{
	/* The snapshot reports on the row that was just returned. */
	if (!TransactionIdIsValid(dirty->xmin))
		return IDEM_FOUND;
	if (deleted_by_its_inserter(slot))
		return IDEM_NOTHING;

	*pending = dirty->xmin;
	return IDEM_PENDING;
}

/*
 * Look for a live row with these key values, whatever the snapshot says.
 *
 * index: a unique B-tree.
 *
 * except: the place of a row not to report, or NULL.
 * found: on IDEM_FOUND, a copy of the row; NULL: not wanted.
 * pending: on IDEM_PENDING, the (sub)transaction to wait for.
 *
 * A row whose deletion or update is not committed yet is still found: an
 * answer comes from the committed version, it does not wait.  A committed row
 * wins over pending ones, which then can only be a new version of it or about
 * to be given up.
 *
 * The versions of a row are not visited at one moment.  If an update commits
 * in between, none of them may look alive, and the answer is IDEM_NOTHING; so
 * that is only an answer where the insertion arbitrates afterwards.
 */
IdemProbe
idem_probe_unique(Relation table, Relation index, ScanKey keys, int nkeys,
				  ItemPointer except, HeapTuple *found,
				  TransactionId *pending)
{
	IdemProbe	result = IDEM_NOTHING;
	TupleTableSlot *slot = table_slot_create(table, NULL);
	SnapshotData dirty;
	IndexScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = idem_index_beginscan(table, index, &dirty, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	while (result != IDEM_FOUND &&
		   index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		IdemProbe	row;

		if (except && ItemPointerEquals(except, &slot->tts_tid))
			continue;

		row = judge_row(&dirty, slot, pending);
		if (row != IDEM_NOTHING)
			result = row;
		if (row == IDEM_FOUND && found)
			*found = ExecCopySlotHeapTuple(slot);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);

	return result;
}

/*
 * As idem_probe_unique(), for the place that a search has found; only
 * IDEM_NOTHING is no answer, there may be other places by now.
 */
IdemProbe
idem_probe_place(Relation table, const IdemSearch *search, HeapTuple *found,
				 TransactionId *pending)
{
	IdemProbe	result = IDEM_NOTHING;
	TupleTableSlot *slot = table_slot_create(table, NULL);
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	if (idem_search_fetch(search, table, &dirty, slot))
		result = judge_row(&dirty, slot, pending);
	if (result == IDEM_FOUND)
		*found = ExecCopySlotHeapTuple(slot);
	ExecDropSingleTupleTableSlot(slot);

	return result;
}

/*
 * Add a row's entry to an index that is not the arbiter, such as one that a
 * user made: partial, on expressions, unique, exclusion, whatever an INSERT
 * would serve.
 */
static void
insert_other_entry(Relation table, Relation index, HeapTuple tuple)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table),
													&TTSOpsHeapTuple);
	EState	   *estate = CreateExecutorState();
	ExprContext *econtext = GetPerTupleExprContext(estate);
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	ExecStoreHeapTuple(tuple, slot, false);
	econtext->ecxt_scantuple = slot;
	if (ExecQual(ExecPrepareQual(info->ii_Predicate, estate), econtext))
	{
		FormIndexDatum(info, slot, estate, values, isnull);
		index_insert(index, values, isnull, &tuple->t_self, table,
					 info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
					 false, info);
		idem_index_insert_cleanup(index, info);
		if (info->ii_ExclusionOps)
			check_exclusion_constraint(table, index, info, &tuple->t_self,
									   values, isnull, estate, false);
	}
	FreeExecutorState(estate);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Add a row's entry to the arbiter, a plain unique B-tree; false if that knows
 * another row with the same key.
 */
static bool
insert_arbiter_entry(Relation table, Relation index, ScanKey keys, int nkeys,
					 ItemPointer tid)
{
	/* A B-tree wants to know no more of it. */
	IndexInfo	info = {
		.type = T_IndexInfo,
		.ii_Unique = true
	};
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS] = {0};

	for (int i = 0; i < nkeys; i++)
		values[i] = keys[i].sk_argument;
	return index_insert(index, values, isnull, tid, table,
						UNIQUE_CHECK_PARTIAL, false, &info);
}

/*
 * Add a row's entry to the arbiter; false if another live row has its key,
 * and the caller has to give way and look again, to see what it lost to.
 */
bool
idem_enter_unique(Relation table, Relation index, ScanKey keys, int nkeys,
				  ItemPointer tid)
{
	TransactionId pending;

	if (insert_arbiter_entry(table, index, keys, nkeys, tid))
		return true;

	/*
	 * The index also reports what the loser of another race left behind, so
	 * look: an entry that arrived before ours is visible by now, one that
	 * arrives later sees ours.
	 */
	return idem_probe_unique(table, index, keys, nkeys, tid, NULL,
							 &pending) == IDEM_NOTHING;
}

/*
 * Add a new row version's entries to the table's indexes.
 *
 * skipped_index: an index that the row does not belong to, or InvalidOid.
 * arbiter, keys, nkeys: see idem_insert_unique(); InvalidOid: none.
 * updated: which indexes an update has to enter; NULL: this is an insertion.
 *
 * Returns false if the arbiter knows another row with the same key.
 */
static bool
insert_entries(Relation table, HeapTuple tuple, Oid skipped_index,
			   Oid arbiter, ScanKey keys, int nkeys,
			   IdemUpdatedIndexes *updated)
{
	bool		unique = true;
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Oid			oid = lfirst_oid(lc);
		Relation	index;

		if (oid == skipped_index)
			continue;

		index = index_open(oid, RowExclusiveLock);
		if (oid == arbiter)
			unique = idem_enter_unique(table, index, keys, nkeys,
									   &tuple->t_self);
		else if (index->rd_index->indisready &&
				 (updated == NULL || IDEM_INDEX_UPDATED(*updated, index)))
			insert_other_entry(table, index, tuple);

		/* The table's lock stays, so the index's may, and is not taken anew. */
		index_close(index, NoLock);
	}
	list_free(indexes);
	return unique;
}

/*
 * Insert a row, unless another live row has its key.
 *
 * table: locked RowExclusiveLock by the caller, until the transaction ends.
 * columns, values, isnull: see idem_row_make().
 * arbiter: the unique index that decides; keys, nkeys: the row's key for it.
 * skipped_index: an index that the row does not belong to, or InvalidOid.
 * tid: on success, the row's place.
 *
 * Returns false if the row was not inserted; the caller looks again, to see
 * what it lost to.
 */
bool
idem_insert_unique(Relation table, int columns, Datum *values, bool *isnull,
				   Oid arbiter, Oid skipped_index,
				   ScanKey keys, int nkeys, ItemPointer tid)
{
	HeapTuple	tuple = idem_row_make(table, columns, values, isnull, NULL);
	bool		won;

	heap_insert(table, tuple, GetCurrentCommandId(true), 0, NULL);
	*tid = tuple->t_self;
	won = insert_entries(table, tuple, skipped_index, arbiter, keys, nkeys,
						 NULL);
	if (!won)
		idem_delete_row(table, tid, true);
	heap_freetuple(tuple);

	return won;
}

/*
 * Lock the row version at *tid, and no later one.
 *
 * policy: LockWaitBlock, to wait for whoever changes the row, or
 * LockWaitSkip.
 * Returns TM_Ok, or TM_WouldBlock, TM_Updated or TM_Deleted.
 */
TM_Result
idem_lock_row(Relation table, const ItemPointerData *tid, LockTupleMode mode,
			  LockWaitPolicy policy)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	ItemPointerData place = *tid;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TM_FailureData failure;
	TM_Result	result;

	result = table_tuple_lock(table, &place, snapshot, slot,
							  GetCurrentCommandId(true), mode, policy, 0,
							  &failure);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);

	return result;
}

/*
 * Replace the row version at *tid, and no later one; *tid becomes the new
 * version's place.
 *
 * columns, values, isnull: see idem_row_make().
 * wait: for another transaction that is changing the row, or return
 * TM_WouldBlock.
 *
 * Returns TM_Ok, or TM_Updated or TM_Deleted if there is a later version or
 * none; the caller looks again.
 */
TM_Result
idem_update_row(Relation table, ItemPointer tid,
				int columns, Datum *values, bool *isnull, bool wait)
{
	HeapTuple	tuple;
	TupleTableSlot *slot;
	TM_FailureData failure;
	LockTupleMode lockmode;
	IdemUpdatedIndexes updated;
	TM_Result	result;

	/* A row that this very command inserted is not its to change. */
	CommandCounterIncrement();

	/* The heap itself cannot update without waiting. */
	if (!wait)
	{
		result = idem_lock_row(table, tid, LockTupleNoKeyExclusive,
							   LockWaitSkip);
		if (result != TM_Ok)
			return result;
	}

	tuple = idem_row_change(table, tid, columns, values, isnull);
	if (tuple == NULL)
		return TM_Deleted;

	slot = MakeSingleTupleTableSlot(RelationGetDescr(table), &TTSOpsHeapTuple);
	ExecStoreHeapTuple(tuple, slot, false);
	result = idem_tuple_update(table, tid, slot, GetCurrentCommandId(true), true,
							   &failure, &lockmode, &updated);
	if (result == TM_Ok)
	{
		/* The slot was updated, not the tuple that it was made of. */
		*tid = tuple->t_self = slot->tts_tid;
		(void) insert_entries(table, tuple, InvalidOid, InvalidOid, NULL, 0,
							  &updated);
		CommandCounterIncrement();
	}
	ExecDropSingleTupleTableSlot(slot);
	heap_freetuple(tuple);

	return result;
}

/* Delete the row version at *tid, and no later one; as idem_update_row(). */
TM_Result
idem_delete_row(Relation table, ItemPointer tid, bool wait)
{
	TM_FailureData failure;
	TM_Result	result;

	/* A row that this very command inserted is not its to delete. */
	CommandCounterIncrement();
	result = idem_tuple_delete(table, tid, GetCurrentCommandId(true), wait,
							   &failure);
	CommandCounterIncrement();

	return result;
}

/*
 * Copies of the rows with these key values that are committed by now, or this
 * transaction's, those of its current command included.
 *
 * index: InvalidOid: none, then keys is only a filter; keys have the table's
 * column numbers.
 */
List *
idem_read_rows(Relation table, Oid index, ScanKey keys, int nkeys)
{
	List	   *rows = NIL;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(table, index, OidIsValid(index), snapshot,
							  nkeys, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		rows = lappend(rows, heap_copytuple(tuple));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);

	return rows;
}

/*
 * Wait for a (sub)transaction to end; false if patience ran out first.
 *
 * Without a bound this is PostgreSQL's own wait on the transaction's lock, so
 * that lock_timeout, the deadlock detector, pg_blocking_pids() and
 * cancellation all work.  A bounded wait polls: a lock queue cannot be left
 * without an error.
 */
bool
idem_wait_for_xact(TransactionId xid, const IdemPatience *patience)
{
	static uint32 wait_event = 0;
	long		pause = 1;

	if (!patience->bounded)
	{
		XactLockTableWait(xid, NULL, NULL, XLTW_None);
		return true;
	}

	while (!idem_try_xact_wait(xid))
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														   patience->until);

		if (left <= 0)
			return false;

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(left, pause),
						 idem_wait_event(&wait_event, "IdemInboxClaim"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		pause = Min(pause * 2, MAX_POLL_MS);
	}
	return true;
}

/*
 * Refuse to act on a row that the transaction's snapshot cannot see, where
 * PostgreSQL would: under SERIALIZABLE.
 *
 * The other levels get the answer of the moment: a message is a duplicate
 * whenever its record was committed.
 */
void
idem_check_serializable(TransactionId xmin)
{
	if (!IsolationIsSerializable() ||
		TransactionIdIsCurrentTransactionId(xmin) ||
		!XidInMVCCSnapshot(xmin, GetTransactionSnapshot()))
		return;

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update"),
			 errhint("The transaction might succeed if retried.")));
}
