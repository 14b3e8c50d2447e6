/*-------------------------------------------------------------------------
 *
 * generation.c
 *	  A generation of the ring as storage: probe, insert, find, change a row.
 *
 * What a row means for a claim is claim.c's and record.c's business, which
 * generation to ask is the view's (ring.c).
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Scan keys for a key, the first two columns of every index that has it. */
void
idem_key_scan_keys(ScanKey keys, const IdemKey *key)
{
	const IdemCatalog *catalog = idem_catalog();
	FmgrInfo   *eq = unconstify(FmgrInfo *, &catalog->message_id_eq);

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(key->consumer_id));
	ScanKeyEntryInitializeWithInfo(&keys[1], 0, 2, BTEqualStrategyNumber,
								   InvalidOid, InvalidOid, eq,
								   key->message_id);
}

/* Take a row apart; the values stay in the tuple, a copy of the caller's. */
void
idem_record_read(Relation table, HeapTuple tuple, int generation,
				 IdemRecord *record)
{
	record->generation = generation;
	record->tid = tuple->t_self;
	record->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	idem_row_read(table, tuple, IDEM_COLUMNS, record->values, record->isnull);
}

/*
 * A copy of a slot's row that stays whole when its generation is emptied: an
 * answer is read now, but used whenever the caller likes.
 */
static HeapTuple
copy_row(Relation table, TupleTableSlot *slot)
{
	HeapTuple	tuple = ExecCopySlotHeapTuple(slot);

	if (HeapTupleHasExternal(tuple))
		tuple = toast_flatten_tuple(tuple, RelationGetDescr(table));
	return tuple;
}

/*
 * A generation that is looked at for one key.  The table is locked, but only
 * opened if there is something to see, which is seldom.
 */
typedef struct Look
{
	const IdemGenerationOids *oids;
	LOCKMODE	lock;
	Relation	index;
	ScanKeyData keys[IDEM_KEY_COLUMNS];
	IdemSearch	search;
	IdemEntries entries;
} Look;

/*
 * Start looking; false if the generation certainly has no row of the key, and
 * looking has ended.
 *
 * If this transaction has inserted into the generation, table and index are
 * locked already, until it ends.
 */
static bool
start_look(Look *look, int generation, const IdemKey *key)
{
	LOCKTAG		tag;

	look->oids = &idem_catalog()->generations[generation];
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, look->oids->key_index);
	look->lock = idem_lock_held(&tag, RowExclusiveLock)
		? NoLock : AccessShareLock;
	if (look->lock != NoLock)
		LockRelationOid(look->oids->table, look->lock);
	look->index = index_open(look->oids->key_index, look->lock);
	idem_key_scan_keys(look->keys, key);

	idem_search_begin(&look->search, look->index);
	look->entries = idem_search(&look->search, key, false);
	if (look->entries != IDEM_NO_ENTRY)
		return true;

	idem_search_end(&look->search);
	index_close(look->index, look->lock);
	if (look->lock != NoLock)
		UnlockRelationOid(look->oids->table, look->lock);
	return false;
}

/*
 * End looking.  Leaves no new lock behind: emptying a generation must not
 * wait for those who only looked.
 */
static void
end_look(Look *look, Relation table)
{
	idem_search_end(&look->search);
	index_close(look->index, look->lock);
	table_close(table, look->lock);
}

/*
 * Look for a row of a key in one generation, as of this moment.
 *
 * record: on IDEM_FOUND, the row, a record or a placeholder.
 * pending: on IDEM_PENDING, the transaction to wait for.
 */
IdemProbe
idem_generation_probe(int generation, const IdemKey *key,
					  IdemRecord *record, TransactionId *pending)
{
	Look		look;
	Relation	table;
	HeapTuple	tuple;
	IdemProbe	probe = IDEM_NOTHING;

	if (!start_look(&look, generation, key))
		return IDEM_NOTHING;

	table = table_open(look.oids->table, NoLock);
	if (look.entries == IDEM_ONE_ENTRY)
		probe = idem_probe_place(table, &look.search, &tuple, pending);
	if (probe == IDEM_NOTHING)
		probe = idem_probe_unique(table, look.index, look.keys, IDEM_KEY_COLUMNS,
								  NULL, &tuple, pending);
	if (probe == IDEM_FOUND)
		idem_record_read(table, tuple, generation, record);
	end_look(&look, table);

	return probe;
}

/*
 * Insert a record or a placeholder into a generation; false if another live
 * row has its key.  Keeps the generation locked until the transaction ends.
 */
bool
idem_generation_insert(int generation, const IdemKey *key, IdemRecord *record)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	Relation	table = table_open(oids->table, RowExclusiveLock);
	ScanKeyData keys[IDEM_KEY_COLUMNS];
	bool		won;

	idem_key_scan_keys(keys, key);
	record->generation = generation;
	won = idem_insert_unique(table, IDEM_COLUMNS, record->values, record->isnull,
							 oids->key_index,
							 record->isnull[IDEM_COMPLETED_AT]
							 ? InvalidOid : oids->unfinished_index,
							 keys, IDEM_KEY_COLUMNS, &record->tid);
	table_close(table, NoLock);
	if (won && !IDEM_IS_PLACEHOLDER(record))
		idem_tally_add(key->consumer_id, IDEM_COUNT_STORED + generation, 1);

	return won;
}

/* Take a found row apart; false if it is no record, but a placeholder. */
static bool
read_found(Relation table, TupleTableSlot *slot, int generation,
		   IdemRecord *record)
{
	idem_record_read(table, copy_row(table, slot), generation, record);
	return !IDEM_IS_PLACEHOLDER(record);
}

/* The record of a key in one generation under a snapshot, no placeholder. */
static bool
find_in_generation(Relation table, Relation index, int generation,
				   ScanKey keys, Snapshot snapshot, IdemRecord *record)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	IndexScanDesc scan;
	bool		found = false;

	scan = idem_index_beginscan(table, index, snapshot, IDEM_KEY_COLUMNS);
	index_rescan(scan, keys, IDEM_KEY_COLUMNS, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
		found = read_found(table, slot, generation, record);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);

	return found;
}

/*
 * As find_in_generation(), for the place that a search has found; only true
 * is an answer, there may be other places by now.
 */
static bool
find_at_place(Relation table, const IdemSearch *search, int generation,
			  Snapshot snapshot, IdemRecord *record)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	bool		found = idem_search_fetch(search, table, snapshot, slot) &&
	read_found(table, slot, generation, record);

	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/*
 * Find the committed record of a key, or this transaction's, in a sealed
 * generation, where no insertion will arbitrate: a probe that misses a record
 * whose completion commits at this moment would be the last word.  So it is
 * one snapshot that decides, unless the key is not there at all.
 */
bool
idem_generation_find(int generation, const IdemKey *key, IdemRecord *record)
{
	Look		look;
	Relation	table;
	Snapshot	snapshot;
	bool		found;

	if (!start_look(&look, generation, key))
		return false;

	table = table_open(look.oids->table, NoLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = (look.entries == IDEM_ONE_ENTRY &&
			 find_at_place(table, &look.search, generation, snapshot,
						   record)) ||
		find_in_generation(table, look.index, generation, look.keys, snapshot,
						   record);
	UnregisterSnapshot(snapshot);
	end_look(&look, table);

	return found;
}

/*
 * Find the committed record of a key, or this transaction's, wherever it is.
 *
 * lockmode: AccessShareLock to look, RowExclusiveLock to change the record;
 * then its generation stays locked until the transaction ends.
 *
 * All generations are locked before the snapshot is taken, then searched
 * under that one snapshot: a record that moves meanwhile is in exactly one of
 * them, and none is emptied before it was searched.  Which of them is in use
 * does not matter, so no view is needed.
 *
 * Error: 40001 under SERIALIZABLE for a record the transaction cannot see.
 */
bool
idem_record_find(const IdemKey *key, LOCKMODE lockmode, IdemRecord *record)
{
	Relation	tables[IDEM_GENERATIONS];
	ScanKeyData keys[IDEM_KEY_COLUMNS];
	Snapshot	snapshot;
	bool		found = false;

	idem_key_scan_keys(keys, key);
	for (int i = 0; i < IDEM_GENERATIONS; i++)
		tables[i] = table_open(idem_catalog()->generations[i].table, lockmode);

	/* See what this very command has claimed. */
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < IDEM_GENERATIONS && !found; i++)
	{
		Relation	index = index_open(idem_catalog()->generations[i].key_index,
									   AccessShareLock);

		found = find_in_generation(tables[i], index, i, keys, snapshot,
								   record);
		index_close(index, AccessShareLock);
	}
	UnregisterSnapshot(snapshot);

	for (int i = 0; i < IDEM_GENERATIONS; i++)
	{
		bool		holds_it = found && record->generation == i;

		table_close(tables[i], holds_it && lockmode != AccessShareLock
					? NoLock : lockmode);
	}

	if (found)
		idem_check_serializable(record->xmin);
	return found;
}

/*
 * Lock the version of a record that was read, waiting for whoever changes it;
 * false if that is not the latest version any more, and the caller looks
 * again.
 */
bool
idem_record_lock(const IdemRecord *record)
{
	Relation	table = table_open(idem_catalog()->generations[record->generation].table,
								   RowExclusiveLock);
	TM_Result	result = idem_lock_row(table, &record->tid,
									   LockTupleNoKeyExclusive, LockWaitBlock);

	table_close(table, NoLock);
	return result == TM_Ok;
}

/*
 * Store the record's values in place of the version it was read from; false
 * if that is not the latest version any more, and the caller looks again.
 */
bool
idem_record_update(IdemRecord *record)
{
	Relation	table = table_open(idem_catalog()->generations[record->generation].table,
								   RowExclusiveLock);
	TM_Result	result = idem_update_row(table, &record->tid, IDEM_COLUMNS,
										 record->values, record->isnull, true);

	table_close(table, NoLock);
	return result == TM_Ok;
}

/* Delete the record; false as idem_record_update(). */
bool
idem_record_delete(const IdemRecord *record)
{
	Relation	table = table_open(idem_catalog()->generations[record->generation].table,
								   RowExclusiveLock);
	ItemPointerData tid = record->tid;
	TM_Result	result = idem_delete_row(table, &tid, true);

	table_close(table, NoLock);
	if (result == TM_Ok && !IDEM_IS_PLACEHOLDER(record))
		idem_tally_add(DatumGetInt32(record->values[IDEM_CONSUMER_ID]),
					   IDEM_COUNT_STORED + record->generation, -1);
	return result == TM_Ok;
}
