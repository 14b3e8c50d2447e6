/*-------------------------------------------------------------------------
 *
 * tally.c
 *	  What this transaction has done so far, counted per consumer.
 *
 * The guards ask it before the commit, and the counters in shared memory
 * (stats.c) get it afterwards, so a claim touches no shared memory.
 *
 * Answers count however the transaction ends: a duplicate was told so.
 * Effects go with the savepoint or transaction that they are rolled back
 * with.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/xact.h"
#include "utils/memutils.h"

/*
 * The counts of one consumer in one open subtransaction.  They lie on a
 * stack, those of the innermost one on top.
 */
typedef struct Tally
{
	SubTransactionId subid;
	Oid			consumers;		/* the table that numbers them */
	int32		consumer_id;
	int64		counts[IDEM_COUNTS];
} Tally;

static Tally *tallies = NULL;
static int	ntallies = 0;
static int	max_tallies = 0;

/* The tally of a consumer in a subtransaction, from the top; NULL: none. */
static Tally *
find_tally(SubTransactionId subid, int32 consumer_id)
{
	for (int i = ntallies - 1; i >= 0 && tallies[i].subid >= subid; i--)
	{
		if (tallies[i].subid == subid && tallies[i].consumer_id == consumer_id)
			return &tallies[i];
	}
	return NULL;
}

/* Count n more for a consumer in the current subtransaction. */
void
idem_tally_add(int32 consumer_id, IdemCount what, int64 n)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Tally	   *tally = find_tally(subid, consumer_id);

	if (tally == NULL)
	{
		if (tallies == NULL)
		{
			max_tallies = 4;
			tallies = MemoryContextAlloc(TopTransactionContext,
										 max_tallies * sizeof(Tally));
		}
		else if (ntallies == max_tallies)
		{
			tallies = repalloc(tallies, 2 * max_tallies * sizeof(Tally));
			max_tallies *= 2;
		}
		tally = &tallies[ntallies++];
		memset(tally, 0, sizeof(Tally));
		tally->subid = subid;
		tally->consumers = idem_catalog()->consumer;
		tally->consumer_id = consumer_id;
	}
	tally->counts[what] += n;
}

/* The transaction's count, for one consumer or, with NULL, for all. */
int64
idem_tally_get(const int32 *consumer_id, IdemCount what)
{
	int64		sum = 0;

	for (int i = 0; i < ntallies; i++)
	{
		if (consumer_id == NULL || tallies[i].consumer_id == *consumer_id)
			sum += tallies[i].counts[what];
	}
	return sum;
}

/*
 * Count every one-transaction claim as declared finished.  If that is rolled
 * back with a savepoint, so are the claims after it, but not those before.
 */
void
idem_tally_declare(void)
{
	int			n = ntallies;

	for (int i = 0; i < n; i++)
	{
		int32		consumer_id = tallies[i].consumer_id;

		idem_tally_add(consumer_id, IDEM_COUNT_UNDECLARED,
					   -idem_tally_get(&consumer_id, IDEM_COUNT_UNDECLARED));
	}
}

/* Take the effects back. */
static void
undo(Tally *tally)
{
	tally->counts[IDEM_COUNT_ROLLED_BACK] += tally->counts[IDEM_COUNT_CLAIMED];
	memset(&tally->counts[IDEM_FIRST_EFFECT], 0,
		   (IDEM_COUNTS - IDEM_FIRST_EFFECT) * sizeof(int64));
}

/* A subtransaction ends: what remains of it is its parent's. */
void
idem_tally_end_sub(bool committed, SubTransactionId subid,
				   SubTransactionId parent)
{
	int			first = ntallies;

	while (first > 0 && tallies[first - 1].subid == subid)
		first--;

	/* The parent's tallies lie below, so those that stay move down. */
	for (int i = first, n = ntallies; i < n; i++)
	{
		Tally		tally = tallies[i];
		Tally	   *into;

		if (!committed)
			undo(&tally);
		ntallies = first;
		into = find_tally(parent, tally.consumer_id);
		if (into == NULL)
		{
			into = &tallies[first++];
			*into = tally;
			into->subid = parent;
		}
		else
		{
			for (int j = 0; j < IDEM_COUNTS; j++)
				into->counts[j] += tally.counts[j];
		}
		ntallies = first;
	}
}

/* The transaction ends. */
void
idem_tally_end(bool committed)
{
	for (int i = 0; i < ntallies; i++)
	{
		Tally	   *tally = &tallies[i];

		if (!committed)
			undo(tally);
		if (tally->counts[IDEM_COUNT_EMPTIED] > 0)
			idem_stats_emptied(tally->consumers,
							   (int) tally->counts[IDEM_COUNT_EMPTIED] - 1);
		if (tally->consumer_id != IDEM_NO_CONSUMER)
			idem_stats_add(tally->consumers, tally->consumer_id,
						   tally->counts);
	}

	/* The memory goes with TopTransactionContext. */
	tallies = NULL;
	ntallies = 0;
}
