/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  What this transaction has claimed, and what has to happen when it ends.
 *
 * A claim that is rolled back with its savepoint is gone from memory too.
 * Memory does not grow with the number of claims: they are all counted, but
 * only the first ones are remembered by key, to store a result with them.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/xact.h"
#include "replication/syncrep.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"

/* So many claims can take a result, which is one message's or one batch's. */
#define MAX_REMEMBERED 1000

/*
 * The claims of one subtransaction, on a stack; claims made between two
 * savepoints of one level share an entry.
 */
typedef struct ClaimLevel
{
	struct ClaimLevel *below;
	SubTransactionId subid;
	int64		count;
} ClaimLevel;

/* A claimed record, by its key: the record itself may move or go. */
typedef struct RememberedClaim
{
	SubTransactionId subid;
	IdemKey		key;
} RememberedClaim;

static ClaimLevel *levels = NULL;
static RememberedClaim *remembered = NULL;
static int	nremembered = 0;
static bool commit_synchronously = false;

/* Remember a claim that this transaction won. */
void
idem_remember_claim(const IdemKey *key)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	if (levels == NULL || levels->subid != subid)
	{
		ClaimLevel *level = MemoryContextAlloc(TopTransactionContext,
											   sizeof(ClaimLevel));

		level->below = levels;
		level->subid = subid;
		level->count = 0;
		levels = level;
	}
	levels->count++;

	if (nremembered < MAX_REMEMBERED)
	{
		RememberedClaim *claim;
		MemoryContext context;

		if (remembered == NULL)
			remembered = MemoryContextAlloc(TopTransactionContext,
											MAX_REMEMBERED * sizeof(RememberedClaim));
		claim = &remembered[nremembered++];
		claim->subid = subid;
		claim->key.consumer_id = key->consumer_id;
		context = MemoryContextSwitchTo(TopTransactionContext);
		claim->key.message_id = datumCopy(key->message_id, false, -1);
		MemoryContextSwitchTo(context);
	}
}

/*
 * Make this transaction's commit synchronous, also on standbys, whatever the
 * session says.
 */
void
idem_commit_synchronously(void)
{
	commit_synchronously = true;
}

/* Drop what was claimed since a subtransaction began. */
static void
forget_since(SubTransactionId subid)
{
	while (levels != NULL && levels->subid >= subid)
	{
		ClaimLevel *level = levels;

		levels = level->below;
		pfree(level);
	}
	while (nremembered > 0 && remembered[nremembered - 1].subid >= subid)
		pfree(DatumGetPointer(remembered[--nremembered].key.message_id));
}

/* A subtransaction's claims are its parent's from now on. */
static void
hand_up(SubTransactionId subid, SubTransactionId parent)
{
	ClaimLevel *level = levels;

	if (level == NULL || level->subid != subid)
		return;

	level->subid = parent;
	if (level->below != NULL && level->below->subid == parent)
	{
		level->below->count += level->count;
		levels = level->below;
		pfree(level);
	}
}

static void
subtransaction_ends(SubXactEvent event, SubTransactionId subid,
					SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_since(subid);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		hand_up(subid, parent);
}

static void
transaction_ends(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (!commit_synchronously)
				return;

			/*
			 * ForceSyncCommit() would flush but not wait for standbys, which
			 * goes by the setting.  It is set as late as this, so that no SET
			 * LOCAL or function's SET clause comes after it.
			 */
			if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
				(void) set_config_option("synchronous_commit", "on",
										 PGC_USERSET, PGC_S_SESSION,
										 GUC_ACTION_LOCAL, true, 0, false);
			return;

		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			/* The memory goes with TopTransactionContext. */
			levels = NULL;
			remembered = NULL;
			nremembered = 0;
			commit_synchronously = false;
			return;

		default:
			return;
	}
}

void
idem_guard_init(void)
{
	RegisterXactCallback(transaction_ends, NULL);
	RegisterSubXactCallback(subtransaction_ends, NULL);
}

/*
 * Complete every remembered claim that this transaction still holds; returns
 * how many they are.
 *
 * result: to store with them; NULL: none.
 */
static int
complete_remembered(const Datum *result)
{
	int			count = 0;

	for (int i = 0; i < nremembered; i++)
	{
		IdemRecord	record;

		/* It may have been forgotten again, or its generation emptied. */
		if (!idem_record_find(&remembered[i].key, RowExclusiveLock, &record) ||
			!record.isnull[IDEM_ATTEMPT] ||
			!TransactionIdIsCurrentTransactionId(record.xmin))
			continue;

		count++;
		if (result == NULL)
			continue;
		record.values[IDEM_DETAIL] = *result;
		record.isnull[IDEM_DETAIL] = false;
		if (!idem_record_update(&record))
			elog(ERROR, "could not update a record that this transaction inserted");
	}
	return count;
}

/*
 * idem_complete(result jsonb) → int
 *
 * Declares the one-transaction claims of this transaction finished.
 *
 * Error: 54000 for a result with more than 1000 claims, or one that is larger
 * than idem_inbox.max_result.
 */
PG_FUNCTION_INFO_V1(idem_complete_claims);
Datum
idem_complete_claims(PG_FUNCTION_ARGS)
{
	Datum		result = PG_GETARG_DATUM(0);
	int64		count = 0;

	idem_prevent_if_read_only("idem_complete()");
	if (!PG_ARGISNULL(0))
		idem_check_result(result);

	for (ClaimLevel *level = levels; level != NULL; level = level->below)
		count += level->count;

	if (count <= nremembered)
		count = complete_remembered(PG_ARGISNULL(0) ? NULL : &result);
	else if (!PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many claims in this transaction for one result"),
				 errdetail("The transaction holds %lld claims, a result is stored with %d at most.",
						   (long long) count, MAX_REMEMBERED),
				 errhint("Commit more often, or complete without a result.")));

	PG_RETURN_INT32((int32) count);
}
