/*-------------------------------------------------------------------------
 *
 * run.c
 *	  A run of new messages, in key order, claimed in one generation at once.
 *
 * The same look and the same arbitration as for one message (generation.c,
 * arbiter.c), with what they have in common done once: locks, snapshots, the
 * way down the index to a page that serves the next key too, and one WAL
 * record for all rows of a page.
 *
 * Rows are written before the first of them enters the index.  Until then
 * nobody meets them, so they are in nobody's way while this transaction waits
 * for another one.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

/* Make room for runs; in the current memory context. */
IdemRun    *
idem_run_create(void)
{
	IdemRun    *run = palloc0(sizeof(IdemRun));
	Oid			oid = idem_catalog()->generations[0].table;
	Relation	table = table_open(oid, AccessShareLock);
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(table));

	/* The generations are alike, so the slots do for all. */
	for (int i = 0; i < IDEM_RUN_LENGTH; i++)
		run->slots[i] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	table_close(table, AccessShareLock);

	return run;
}

/* Empty the run. */
void
idem_run_clear(IdemRun *run)
{
	for (int i = 0; i < run->length; i++)
		ExecClearTuple(run->slots[i]);
	run->length = 0;
}

/* Shorten the run to those keys that a generation certainly does not have. */
void
idem_run_keep_absent(IdemRun *run, int generation)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	Relation	table = table_open(oids->table, AccessShareLock);
	Relation	index = index_open(oids->key_index, AccessShareLock);
	IdemSearch	search;
	int			i;

	idem_search_begin(&search, index);
	for (i = 0; i < run->length; i++)
	{
		if (idem_search(&search, &run->keys[i], true) != IDEM_NO_ENTRY)
			break;
	}
	idem_search_end(&search);
	index_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	run->length = i;
}

/* Whether the generation has no indexes but its own. */
static bool
has_only_own_indexes(Relation table, const IdemGenerationOids *oids)
{
	List	   *indexes = RelationGetIndexList(table);
	bool		result = list_length(indexes) == 2 &&
	list_member_oid(indexes, oids->key_index) &&
	list_member_oid(indexes, oids->unfinished_index);

	list_free(indexes);
	return result;
}

/*
 * Insert the run's completed records into a generation, as far as no other
 * live row has their key; returns how many of the first ones were inserted.
 * Keeps the generation locked until the transaction ends.
 */
int
idem_run_insert(IdemRun *run, int generation, IdemRecord *records)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	Relation	table = table_open(oids->table, RowExclusiveLock);
	Relation	index;
	int			won;

	/* What somebody has added is the careful way's business. */
	if (!has_only_own_indexes(table, oids))
	{
		table_close(table, NoLock);
		return 0;
	}

	for (int i = 0; i < run->length; i++)
		ExecStoreHeapTuple(idem_row_make(table, IDEM_COLUMNS,
										 records[i].values,
										 records[i].isnull, NULL),
						   run->slots[i], true);
	heap_multi_insert(table, run->slots, run->length,
					  GetCurrentCommandId(true), 0, NULL);

	index = index_open(oids->key_index, RowExclusiveLock);
	for (won = 0; won < run->length; won++)
	{
		ScanKeyData keys[IDEM_KEY_COLUMNS];

		idem_key_scan_keys(keys, &run->keys[won]);
		if (!idem_enter_unique(table, index, keys, IDEM_KEY_COLUMNS,
							   &run->slots[won]->tts_tid))
			break;
	}
	index_close(index, NoLock);

	for (int i = won; i < run->length; i++)
		(void) idem_delete_row(table, &run->slots[i]->tts_tid, true);
	table_close(table, NoLock);
	if (won > 0)
		idem_tally_add(run->keys[0].consumer_id,
					   IDEM_COUNT_STORED + generation, won);

	return won;
}
