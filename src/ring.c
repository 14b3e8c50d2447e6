/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  The ring's state as claims see it: which generations to deal with.
 *
 * The state is one row, written by maintenance only.  Backends cache it; the
 * relcache, not a snapshot, tells them that it changed.  A claim that is about
 * to write gets its transaction id, then accepts invalidations, then asks for
 * the view; maintenance in turn waits for transactions older than its last
 * step before it takes the next one.  So no claim writes under a view that is
 * more than one step old, see the waiting rule in maintain.c.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/table.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Columns of idem_ring that make up the view, in SQL's numbering. */
#define RING_CURRENT			2
#define RING_NEXT_OPEN			3
#define RING_PREVIOUS_SEALED	4

static IdemView view;
static bool view_valid = false;

/* Read the state anew at the next question. */
void
idem_ring_forget_view(void)
{
	view_valid = false;
}

bool
idem_view_equal(const IdemView *a, const IdemView *b)
{
	return a->previous == b->previous &&
		a->current == b->current &&
		a->next == b->next;
}

/* Without a row the ring stands as it was created. */
static void
read_view(Relation table)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(table, snapshot, 0, NULL);
	int			current = 0;
	bool		next_open = false;
	bool		previous_sealed = false;

	if (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;

		current = DatumGetInt16(slot_getattr(slot, RING_CURRENT, &isnull)) - 1;
		next_open = DatumGetBool(slot_getattr(slot, RING_NEXT_OPEN, &isnull));
		previous_sealed =
			DatumGetBool(slot_getattr(slot, RING_PREVIOUS_SEALED, &isnull));
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);

	view.current = current;
	view.previous = previous_sealed
		? (current + IDEM_GENERATIONS - 1) % IDEM_GENERATIONS : -1;
	view.next = next_open ? (current + 1) % IDEM_GENERATIONS : -1;
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

		/*
		 * Valid before it is read: an invalidation that arrives meanwhile
		 * makes the next caller read again.
		 */
		view_valid = true;
		PG_TRY();
		{
			read_view(table);
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
