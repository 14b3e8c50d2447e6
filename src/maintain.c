/*-------------------------------------------------------------------------
 *
 * maintain.c
 *	  One step of maintenance: count ages, turn the ring, empty a generation.
 *
 * Each call takes one step at most, in the caller's transaction, and waits
 * for nobody: neither for a lock nor for a transaction.  What cannot be done
 * now is left for a later call, so a crash or a fail-over between two steps
 * needs no repair.
 *
 * The one rule: no step while a transaction runs that may still hold the view
 * before last.  After a step has committed, a later transaction stores the
 * next transaction id as the horizon; a claim that gets its id from then on
 * accepts the step's invalidation before it reads its view.  So once every
 * transaction older than the horizon has ended, only the newest view is left,
 * and the next step makes it two.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/table.h"
#include "access/xact.h"
#include "funcapi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/xid8.h"

/* What the ring waits for next, apart from the horizon. */
typedef enum Step
{
	STEP_OPEN,
	STEP_SEAL,
	STEP_EMPTY
} Step;

static const char *const step_names[] = {"open", "seal", "empty"};

static int64
retention_microseconds(void)
{
	return (int64) idem_retention * USECS_PER_SEC;
}

/*
 * Add the time since the last run to the ages, at most ten naptimes of it: a
 * clock that jumps, or a server that was down while the broker kept its
 * messages, must not expire a record early.
 */
static void
count_ages(IdemRing *ring)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		limit = (int64) idem_naptime * 10 * USECS_PER_SEC;
	int64		elapsed = now - ring->counted_at;
	int64		counted = Max(0, Min(elapsed, limit));

	ring->current_age += counted;
	if (ring->previous_sealed)
		ring->previous_age += counted;
	if (elapsed > counted)
		ring->skipped += elapsed - counted;

	/* A time in the future is set to now. */
	ring->counted_at = now;
	ring->opened_at = Min(ring->opened_at, now);
	ring->sealed_at = Min(ring->sealed_at, now);
}

/* The ring as it is created, from now on. */
static void
start_ring(IdemRing *ring)
{
	ring->counted_at = GetCurrentTimestamp();
	ring->opened_at = ring->counted_at;
	ring->sealed_at = DT_NOBEGIN;
}

/*
 * Store a horizon, if there is none.  One that lies beyond the next
 * transaction id was stored in another cluster, from which this database was
 * restored.
 */
static void
set_horizon(bool *has_horizon, FullTransactionId *horizon)
{
	FullTransactionId next = ReadNextFullTransactionId();

	if (*has_horizon && FullTransactionIdPrecedesOrEquals(*horizon, next))
		return;

	*has_horizon = true;
	*horizon = next;
}

/* Whether a transaction id is not older than a horizon. */
static bool
has_passed(TransactionId oldest, FullTransactionId horizon)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	/* The oldest one was given out at most one wraparound ago. */
	if (oldest > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdPrecedesOrEquals(horizon,
											 FullTransactionIdFromEpochAndXid(epoch,
																			  oldest));
}

/* Whether every transaction that may hold an older view has ended. */
static bool
views_passed(const IdemRing *ring)
{
	return has_passed(idem_oldest_active_xid(), ring->horizon);
}

/*
 * Whether every snapshot that may miss a survivor is gone: one taken before
 * the last move does not see it in the current generation, and after TRUNCATE
 * nobody sees it in the previous one.  A pg_dump would lose it.
 */
static bool
snapshots_passed(const IdemRing *ring, Relation table)
{
	return has_passed(GetOldestNonRemovableTransactionId(table),
					  ring->snapshot_horizon);
}

static Step
next_step(const IdemRing *ring)
{
	if (ring->next_open)
		return STEP_SEAL;
	return ring->previous_sealed ? STEP_EMPTY : STEP_OPEN;
}

/* How long until the next step is due by age; 0 or less: it is. */
static int64
until_due(const IdemRing *ring)
{
	switch (next_step(ring))
	{
		case STEP_OPEN:
			return retention_microseconds() - ring->current_age;
		case STEP_EMPTY:
			return retention_microseconds() - ring->previous_age;
		case STEP_SEAL:
			break;
	}
	return 0;
}

/* Give back the first n locks of a list. */
static void
unlock(List *relids, int n)
{
	while (n-- > 0)
		UnlockRelationOid(list_nth_oid(relids, n), AccessExclusiveLock);
}

/* Lock all, or none if somebody uses one of them. */
static bool
lock(List *relids)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, relids)
	{
		if (!ConditionalLockRelationOid(lfirst_oid(lc), AccessExclusiveLock))
		{
			unlock(relids, n);
			return false;
		}
		n++;
	}
	return true;
}

/*
 * Empty the sealed generation, unless somebody uses it.
 *
 * What TRUNCATE locks is only taken if it is free: queueing for the table
 * behind a long pg_dump would stop every claim that comes after, and so would
 * waiting for its TOAST table while holding it.
 */
static bool
empty_generation(int generation, const IdemRing *ring,
				 const IdemSurvivors *survivors)
{
	Oid			relid = idem_catalog()->generations[generation].table;
	Relation	table;
	List	   *storage;
	bool		emptied = false;

	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;

	table = table_open(relid, NoLock);
	storage = RelationGetIndexList(table);
	if (OidIsValid(table->rd_rel->reltoastrelid))
		storage = lcons_oid(table->rd_rel->reltoastrelid, storage);
	if (lock(storage))
	{
		/* An open cursor of this very session counts as a user. */
		emptied = table->rd_refcnt == 1 &&
			snapshots_passed(ring, table) &&
			idem_survivors_unchanged(generation, survivors);
		if (emptied)
			idem_truncate(table);
		else
			unlock(storage, list_length(storage));
	}
	table_close(table, emptied ? NoLock : AccessExclusiveLock);

	return emptied;
}

/*
 * Take the step that is due; returns what was done.
 *
 * view_changed: set if claims have to go by another view from now on.
 */
static const char *
take_step(IdemRing *ring, bool *view_changed)
{
	IdemView	view = idem_view_of_ring(ring);
	IdemSurvivors survivors;

	switch (next_step(ring))
	{
		case STEP_OPEN:
			ring->next_open = true;
			*view_changed = true;
			return "opened";

		case STEP_SEAL:
			ring->current = view.next;
			ring->next_open = false;
			ring->previous_sealed = true;
			ring->sealed_at = ring->counted_at;
			ring->previous_age = 0;
			ring->opened_at = ring->counted_at;
			ring->current_age = 0;
			idem_ring_note_turn(ring);
			*view_changed = true;
			return "sealed";

		case STEP_EMPTY:
			survivors = idem_move_survivors(view.previous, view.current, ring);
			if (survivors.moved > 0)
			{
				/* In a transaction that comes after the last move's. */
				ring->has_snapshot_horizon = false;
				return "moved";
			}
			set_horizon(&ring->has_snapshot_horizon, &ring->snapshot_horizon);
			if (survivors.left)
				return "waiting";
			/* Before the lock that stops everybody. */
			idem_trim_history(ring);
			if (!empty_generation(view.previous, ring, &survivors))
				return "waiting";
			ring->has_snapshot_horizon = false;
			ring->previous_sealed = false;
			ring->previous_age = 0;
			ring->sealed_at = DT_NOBEGIN;
			*view_changed = true;
			idem_tally_add(IDEM_NO_CONSUMER, IDEM_COUNT_EMPTIED,
						   view.previous + 1);
			return "emptied";
	}
	pg_unreachable();
}

/*
 * Take one maintenance step, if one is due and can be taken now.
 *
 * Returns 'opened', 'sealed', 'moved', 'emptied', 'waiting' (a step is due
 * but not yet possible) or 'nothing' (no step is due).
 */
const char *
idem_maintain_step(void)
{
	Oid			relid;
	Relation	table;
	IdemRing	ring;
	bool		view_changed = false;
	const char *done;

	AcceptInvalidationMessages();
	relid = idem_catalog()->ring;

	/*
	 * One maintainer at a time, and the lock is released only after the
	 * step's invalidation was sent: whoever has it knows that.
	 */
	if (!ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
		return "waiting";

	table = table_open(relid, NoLock);
	CommandCounterIncrement();
	idem_ring_read(table, &ring);

	/* The horizon of a step belongs to a later transaction. */
	if (ring.exists && TransactionIdIsCurrentTransactionId(ring.xmin))
	{
		table_close(table, NoLock);
		return "waiting";
	}

	if (ring.exists)
		count_ages(&ring);
	else
		start_ring(&ring);
	set_horizon(&ring.has_horizon, &ring.horizon);

	if (until_due(&ring) > 0)
		done = "nothing";
	else if (!views_passed(&ring))
		done = "waiting";
	else
		done = take_step(&ring, &view_changed);

	if (view_changed)
		ring.has_horizon = false;
	if (!idem_ring_write(table, &ring, view_changed))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the ring's state was changed by another transaction"),
				 errhint("Call idem_maintain() again.")));
	table_close(table, NoLock);

	return done;
}

/*
 * idem_maintain() → text
 */
PG_FUNCTION_INFO_V1(idem_maintain);
Datum
idem_maintain(PG_FUNCTION_ARGS)
{
	idem_prevent_if_read_only("idem_maintain()");
	PG_RETURN_TEXT_P(cstring_to_text(idem_maintain_step()));
}

/*
 * idem_next_step() → (step text, generation int, due_in interval,
 *					   older_than xid8, snapshots bool)
 *
 * For the view idem_generation: the step that comes next, the number of the
 * generation it changes, how long until it is due by age, and the horizon that
 * it waits for, if transactions older than that are left, or snapshots.
 */
PG_FUNCTION_INFO_V1(idem_next_step);
Datum
idem_next_step(PG_FUNCTION_ARGS)
{
	Relation	table = table_open(idem_catalog()->ring, AccessShareLock);
	TupleDesc	desc;
	Datum		values[5];
	bool		isnull[5] = {0};
	IdemRing	ring;
	Interval	due_in = {0};
	Step		step;
	int			changed;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	idem_check_result_columns(desc, lengthof(values));

	idem_ring_read(table, &ring);
	step = next_step(&ring);
	due_in.time = Max(0, until_due(&ring));
	changed = (ring.current + (step == STEP_EMPTY ? 2 : 1)) % IDEM_GENERATIONS;

	values[0] = CStringGetTextDatum(step_names[step]);
	values[1] = Int32GetDatum(changed + 1);
	values[2] = IntervalPGetDatum(&due_in);
	isnull[3] = true;
	values[4] = BoolGetDatum(false);
	if (!RecoveryInProgress())
	{
		if (ring.has_horizon && !views_passed(&ring))
		{
			values[3] = FullTransactionIdGetDatum(ring.horizon);
			isnull[3] = false;
		}
		else if (ring.has_snapshot_horizon && !snapshots_passed(&ring, table))
		{
			values[3] = FullTransactionIdGetDatum(ring.snapshot_horizon);
			isnull[3] = false;
			values[4] = BoolGetDatum(true);
		}
	}
	table_close(table, AccessShareLock);

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}
