/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  The ring's state: one row, and the view of it that claims go by.
 *
 * The state is written by maintenance only (maintain.c).  Backends cache what
 * they need of it; the relcache, not a snapshot, tells them that it changed.
 * A claim that is about to write gets its transaction id, then accepts
 * invalidations, then asks for the view; maintenance in turn waits for
 * transactions older than its last step before it takes the next one.  So no
 * claim writes under a view that is more than one step old.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/xid8.h"

/* Columns of idem_ring, in C's numbering. */
enum
{
	RING_ONLY_ROW,
	RING_CURRENT,
	RING_NEXT_OPEN,
	RING_PREVIOUS_SEALED,
	RING_HORIZON,
	RING_SNAPSHOT_HORIZON,
	RING_CURRENT_AGE,
	RING_PREVIOUS_AGE,
	RING_SKIPPED,
	RING_TURNED_AT,
	RING_TURNED_SKIPPED,
	RING_COUNTED_AT,
	RING_OPENED_AT,
	RING_SEALED_AT,
	RING_COLUMNS
};

static IdemView view;
static bool view_valid = false;
static uint64 view_version = 0;

static int64
microseconds(Datum interval)
{
	Interval   *value = DatumGetIntervalP(interval);

	return idem_interval_microseconds(value);
}

static Datum
interval_of(int64 microseconds)
{
	Interval   *value = palloc0(sizeof(Interval));

	value->time = microseconds;
	return IntervalPGetDatum(value);
}

/* Read the turns, which are in two arrays. */
static void
read_turns(Datum turned_at, Datum turned_skipped, IdemRing *ring)
{
	Datum	   *at;
	Datum	   *skipped;
	int			nskipped;

	deconstruct_array(DatumGetArrayTypeP(turned_at), TIMESTAMPTZOID,
					  sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  &at, NULL, &ring->nturns);
	deconstruct_array(DatumGetArrayTypeP(turned_skipped), INTERVALOID,
					  sizeof(Interval), false, TYPALIGN_DOUBLE,
					  &skipped, NULL, &nskipped);
	ring->nturns = Min(Min(ring->nturns, nskipped), IDEM_MAX_TURNS);
	for (int i = 0; i < ring->nturns; i++)
	{
		ring->turned_at[i] = DatumGetTimestampTz(at[i]);
		ring->turned_skipped[i] = microseconds(skipped[i]);
	}
}

static void
write_turns(const IdemRing *ring, Datum *turned_at, Datum *turned_skipped)
{
	Datum		at[IDEM_MAX_TURNS];
	Datum		skipped[IDEM_MAX_TURNS];

	for (int i = 0; i < ring->nturns; i++)
	{
		at[i] = TimestampTzGetDatum(ring->turned_at[i]);
		skipped[i] = interval_of(ring->turned_skipped[i]);
	}
	*turned_at =
		PointerGetDatum(construct_array(at, ring->nturns, TIMESTAMPTZOID,
										sizeof(TimestampTz), FLOAT8PASSBYVAL,
										TYPALIGN_DOUBLE));
	*turned_skipped =
		PointerGetDatum(construct_array(skipped, ring->nturns, INTERVALOID,
										sizeof(Interval), false,
										TYPALIGN_DOUBLE));
}

/* Remember that the ring turns now, and what has been skipped so far. */
void
idem_ring_note_turn(IdemRing *ring)
{
	if (ring->nturns == IDEM_MAX_TURNS)
	{
		ring->nturns--;
		memmove(ring->turned_at, ring->turned_at + 1,
				ring->nturns * sizeof(TimestampTz));
		memmove(ring->turned_skipped, ring->turned_skipped + 1,
				ring->nturns * sizeof(int64));
	}
	ring->turned_at[ring->nturns] = ring->counted_at;
	ring->turned_skipped[ring->nturns] = ring->skipped;
	ring->nturns++;
}

/*
 * How much time may have been skipped, at most, since a time in the past: all
 * since the last turn before it.
 */
int64
idem_ring_skipped_since(const IdemRing *ring, TimestampTz start)
{
	int64		before = 0;

	for (int i = 0; i < ring->nturns && ring->turned_at[i] <= start; i++)
		before = ring->turned_skipped[i];
	return ring->skipped - before;
}

/*
 * Read the state, as last committed or written by this transaction.
 *
 * Without a row, which is how the extension is created, the ring stands at
 * its beginning: the first generation is current and nothing is sealed.
 */
void
idem_ring_read(Relation table, IdemRing *ring)
{
	List	   *rows = idem_read_rows(table, InvalidOid, NULL, 0);

	memset(ring, 0, sizeof(IdemRing));
	ring->exists = rows != NIL;
	if (ring->exists)
	{
		HeapTuple	tuple = (HeapTuple) linitial(rows);
		Datum		values[RING_COLUMNS];
		bool		isnull[RING_COLUMNS];

		idem_row_read(table, tuple, RING_COLUMNS, values, isnull);
		ring->tid = tuple->t_self;
		ring->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
		ring->current = DatumGetInt16(values[RING_CURRENT]) - 1;
		ring->next_open = DatumGetBool(values[RING_NEXT_OPEN]);
		ring->previous_sealed = DatumGetBool(values[RING_PREVIOUS_SEALED]);
		ring->has_horizon = !isnull[RING_HORIZON];
		if (ring->has_horizon)
			ring->horizon = DatumGetFullTransactionId(values[RING_HORIZON]);
		ring->has_snapshot_horizon = !isnull[RING_SNAPSHOT_HORIZON];
		if (ring->has_snapshot_horizon)
			ring->snapshot_horizon =
				DatumGetFullTransactionId(values[RING_SNAPSHOT_HORIZON]);
		ring->current_age = microseconds(values[RING_CURRENT_AGE]);
		ring->previous_age = microseconds(values[RING_PREVIOUS_AGE]);
		ring->skipped = microseconds(values[RING_SKIPPED]);
		read_turns(values[RING_TURNED_AT], values[RING_TURNED_SKIPPED], ring);
		ring->counted_at = DatumGetTimestampTz(values[RING_COUNTED_AT]);
		ring->opened_at = DatumGetTimestampTz(values[RING_OPENED_AT]);
		ring->sealed_at = isnull[RING_SEALED_AT]
			? DT_NOBEGIN : DatumGetTimestampTz(values[RING_SEALED_AT]);
	}
	list_free_deep(rows);
}

/*
 * Write the state; false if somebody else wrote it since it was read.
 *
 * view_changed: whether claims must go by another view from the commit on.
 */
bool
idem_ring_write(Relation table, IdemRing *ring, bool view_changed)
{
	Datum		values[RING_COLUMNS];
	bool		isnull[RING_COLUMNS] = {0};
	bool		written;

	values[RING_ONLY_ROW] = BoolGetDatum(true);
	values[RING_CURRENT] = Int16GetDatum(ring->current + 1);
	values[RING_NEXT_OPEN] = BoolGetDatum(ring->next_open);
	values[RING_PREVIOUS_SEALED] = BoolGetDatum(ring->previous_sealed);
	values[RING_HORIZON] = FullTransactionIdGetDatum(ring->horizon);
	isnull[RING_HORIZON] = !ring->has_horizon;
	values[RING_SNAPSHOT_HORIZON] =
		FullTransactionIdGetDatum(ring->snapshot_horizon);
	isnull[RING_SNAPSHOT_HORIZON] = !ring->has_snapshot_horizon;
	values[RING_CURRENT_AGE] = interval_of(ring->current_age);
	values[RING_PREVIOUS_AGE] = interval_of(ring->previous_age);
	values[RING_SKIPPED] = interval_of(ring->skipped);
	write_turns(ring, &values[RING_TURNED_AT], &values[RING_TURNED_SKIPPED]);
	values[RING_COUNTED_AT] = TimestampTzGetDatum(ring->counted_at);
	values[RING_OPENED_AT] = TimestampTzGetDatum(ring->opened_at);
	values[RING_SEALED_AT] = TimestampTzGetDatum(ring->sealed_at);
	isnull[RING_SEALED_AT] = TIMESTAMP_IS_NOBEGIN(ring->sealed_at);

	if (ring->exists)
		written = idem_update_row(table, &ring->tid, RING_COLUMNS, values,
								  isnull, false) == TM_Ok;
	else
	{
		ScanKeyData key;

		ScanKeyInit(&key, RING_ONLY_ROW + 1, BTEqualStrategyNumber, F_BOOLEQ,
					BoolGetDatum(true));
		written = idem_insert_unique(table, RING_COLUMNS, values, isnull,
									 idem_catalog()->ring_key_index,
									 InvalidOid, &key, 1, &ring->tid);
	}

	if (view_changed)
	{
		/* See register_new() in consumer.c for why the command ends here. */
		CacheInvalidateRelcache(table);
		CommandCounterIncrement();
	}
	return written;
}

/* Read the state anew at the next question. */
void
idem_ring_forget_view(void)
{
	view_valid = false;
	view_version++;
}

/*
 * Whether no step was taken between two views.  The generations alone do not
 * tell: after three turns they are the same, with other contents.
 */
bool
idem_view_equal(const IdemView *a, const IdemView *b)
{
	return a->version == b->version;
}

IdemView
idem_view_of_ring(const IdemRing *ring)
{
	IdemView	result = {0};
	int			before = (ring->current + IDEM_GENERATIONS - 1) % IDEM_GENERATIONS;
	int			after = (ring->current + 1) % IDEM_GENERATIONS;

	result.current = ring->current;
	result.previous = ring->previous_sealed ? before : -1;
	result.next = ring->next_open ? after : -1;
	return result;
}

/*
 * The generations that a claim deals with, as of the last invalidation that
 * this backend accepted.
 */
IdemView
idem_ring_view(void)
{
	if (!view_valid)
	{
		Relation	table = table_open(idem_catalog()->ring, AccessShareLock);

		uint64		version = view_version;

		/*
		 * Valid before it is read: an invalidation that arrives meanwhile
		 * makes the next caller read again, and get another version.
		 */
		view_valid = true;
		PG_TRY();
		{
			IdemRing	ring;

			idem_ring_read(table, &ring);
			view = idem_view_of_ring(&ring);
			view.version = version;
		}
		PG_CATCH();
		{
			view_valid = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
		table_close(table, AccessShareLock);
	}
	return view;
}

/*
 * idem_replace_ring() → trigger
 *
 * Before an insertion into idem_ring: removes the state that is there.  A
 * restore copies the generations first and the ring's state last; if
 * maintenance has found the database in between, it has started a ring that
 * does not fit them.  Whoever claims meanwhile goes by that one, so the
 * horizon is to be stored anew.
 */
PG_FUNCTION_INFO_V1(idem_replace_ring);
Datum
idem_replace_ring(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	int			column = RING_HORIZON + 1;
	Datum		value = (Datum) 0;
	bool		isnull = true;
	List	   *rows;
	ListCell   *lc;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"idem_replace_ring")));

	/* Maintenance holds this lock while it writes. */
	LockRelation(trigger->tg_relation, ShareUpdateExclusiveLock);
	rows = idem_read_rows(trigger->tg_relation, InvalidOid, NULL, 0);
	if (rows == NIL)
		return PointerGetDatum(trigger->tg_trigtuple);

	foreach(lc, rows)
		(void) idem_delete_row(trigger->tg_relation,
							   &((HeapTuple) lfirst(lc))->t_self, true);

	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &column, &value,
													 &isnull));
}
