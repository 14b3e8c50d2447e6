/*-------------------------------------------------------------------------
 *
 * reconcile.c
 *	  idem_takeover_next(): hands half-done records to reconcilers.
 *
 * Reconcilers that work side by side get different records, and none waits
 * for another: what somebody holds is skipped.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* A consumer's half-done records in one generation, oldest first. */
typedef struct HalfDone
{
	Relation	table;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	bool		taken;			/* any of them */
	bool		found;
	IdemRecord	record;			/* the next one, if found */
} HalfDone;

/* Go on to the next record whose lease has run out. */
static void
find_next(HalfDone *half_done, int generation, TimestampTz now)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		half_done->found = index_getnext_slot(half_done->scan,
											  ForwardScanDirection,
											  half_done->slot);
		if (half_done->found)
			idem_record_read(half_done->table,
							 ExecCopySlotHeapTuple(half_done->slot),
							 generation, &half_done->record);
	} while (half_done->found && idem_lease_runs(&half_done->record, now));
}

static void
start_search(HalfDone *half_done, int generation, int32 consumer_id,
			 Snapshot snapshot, TimestampTz now)
{
	const IdemGenerationOids *oids = &idem_catalog()->generations[generation];
	ScanKeyData key;

	half_done->index = index_open(oids->unfinished_index, AccessShareLock);
	half_done->slot = table_slot_create(half_done->table, NULL);
	half_done->scan = idem_index_beginscan(half_done->table, half_done->index,
										   snapshot, 1);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(consumer_id));
	index_rescan(half_done->scan, &key, 1, NULL, 0);
	find_next(half_done, generation, now);
}

static void
end_search(HalfDone *half_done)
{
	index_endscan(half_done->scan);
	ExecDropSingleTupleTableSlot(half_done->slot);
	index_close(half_done->index, AccessShareLock);
	table_close(half_done->table,
				half_done->taken ? NoLock : RowExclusiveLock);
}

/* Which generation has the oldest of the next ones; -1: there is none. */
static int
oldest(const HalfDone *half_done)
{
	int			result = -1;

	for (int i = 0; i < IDEM_GENERATIONS; i++)
	{
		if (half_done[i].found &&
			(result < 0 ||
			 DatumGetTimestampTz(half_done[i].record.values[IDEM_RECEIVED_AT]) <
			 DatumGetTimestampTz(half_done[result].record.values[IDEM_RECEIVED_AT])))
			result = i;
	}
	return result;
}

/* Take a record over and return it as a row, unless somebody else has it. */
static bool
take(HalfDone *half_done, const Interval *lease, const IdemConsumer *consumer,
	 ReturnSetInfo *rsinfo)
{
	IdemRecord *record = &half_done->record;
	int32		attempt = DatumGetInt32(record->values[IDEM_ATTEMPT]) + 1;
	Datum		row[] = {
		CStringGetTextDatum(idem_message_id_text(record->values[IDEM_MESSAGE_ID])),
		Int32GetDatum(attempt),
		record->values[IDEM_RECEIVED_AT],
		record->values[IDEM_DETAIL]
	};
	bool		isnull[lengthof(row)] = {
		false, false, false, record->isnull[IDEM_DETAIL]
	};

	if (idem_lock_row(half_done->table, &record->tid, LockTupleNoKeyExclusive,
					  LockWaitSkip) != TM_Ok)
		return false;

	idem_check_serializable(record->xmin);
	idem_record_take_over(record, attempt, lease, consumer);
	if (idem_update_row(half_done->table, &record->tid, IDEM_COLUMNS,
						record->values, record->isnull, true) != TM_Ok)
		return false;

	half_done->taken = true;
	idem_tally_add(consumer->id, IDEM_COUNT_TAKEN_OVER, 1);
	idem_row_put(rsinfo, lengthof(row), row, isnull);
	return true;
}

static void
take_over_next(const IdemConsumer *consumer, int32 how_many,
			   const Interval *lease, ReturnSetInfo *rsinfo)
{
	HalfDone	half_done[IDEM_GENERATIONS] = {0};
	TimestampTz now = GetCurrentTimestamp();
	Snapshot	snapshot;
	int			i;

	/*
	 * As in idem_record_find(): first the locks, then the one snapshot, which
	 * sees what this very command has begun.
	 */
	for (i = 0; i < IDEM_GENERATIONS; i++)
		half_done[i].table = table_open(idem_catalog()->generations[i].table,
										RowExclusiveLock);
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (i = 0; i < IDEM_GENERATIONS; i++)
		start_search(&half_done[i], i, consumer->id, snapshot, now);

	while (how_many > 0 && (i = oldest(half_done)) >= 0)
	{
		if (take(&half_done[i], lease, consumer, rsinfo))
			how_many--;
		find_next(&half_done[i], i, now);
	}

	for (i = 0; i < IDEM_GENERATIONS; i++)
		end_search(&half_done[i]);
	UnregisterSnapshot(snapshot);
}

/*
 * idem_takeover_next(consumer text, how_many int, lease interval)
 *		→ setof (message_id text, attempt int, received_at timestamptz,
 *				 claimed_by jsonb)
 *
 * Errors: 22004 and 22023 if how_many is null or not positive.
 */
PG_FUNCTION_INFO_V1(idem_takeover_next);
Datum
idem_takeover_next(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemCall	call;
	IdemConsumer consumer;
	int32		how_many = PG_GETARG_INT32(1);
	const Interval *lease;

	InitMaterializedSRF(fcinfo, 0);
	idem_call_start(&call, "idem_takeover_next()", fcinfo, -1, 0, true);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("how_many must not be null")));
	if (how_many <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("how_many must be positive"),
				 errdetail("It is %d.", how_many)));
	lease = idem_interval_arg(fcinfo, 2, "lease", 0);

	if (idem_consumer_find(call.consumer_name, &consumer))
	{
		take_over_next(&consumer, how_many, lease, rsinfo);

		/* Lost in a fail-over, they would let others act, too. */
		idem_commit_synchronously();
	}
	idem_call_end(&call);

	return (Datum) 0;
}
