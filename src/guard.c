/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  What this transaction has claimed, and what has to happen when it ends:
 *	  idem_complete() of its claims, idem_claims(), the checks at commit.
 *
 * A claim that is rolled back with its savepoint is gone from memory too.
 * Memory does not grow with the number of claims: they are all counted
 * (tally.c), but only the first ones are remembered by key.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pgstat_internal.h"
#include "utils/syscache.h"

/* So many claims can take a result, which is one message's or one batch's. */
#define MAX_REMEMBERED 1000

/* A claimed record, by its key: the record itself may move or go. */
typedef struct RememberedClaim
{
	SubTransactionId subid;
	Oid			role;			/* that claimed */
	bool		two_phase;
	IdemKey		key;
} RememberedClaim;

static RememberedClaim *remembered = NULL;
static int	nremembered = 0;
static int	max_remembered = 0;
static Oid	consumers = InvalidOid; /* the table that numbers them */
static bool commit_synchronously = false;

/* Settings: LOG levels, 0 being off. */
int			idem_lone_claim = WARNING;
const struct config_enum_entry idem_lone_claim_options[] = {
	{"off", 0, false},
	{"warning", WARNING, false},
	{"error", ERROR, false},
	{NULL, 0, false}
};
bool		idem_require_complete = false;

/* Remember a claim that this transaction won. */
void
idem_remember_claim(const IdemKey *key, bool two_phase)
{
	RememberedClaim *claim;
	MemoryContext context;

	idem_tally_add(key->consumer_id, IDEM_COUNT_CLAIMED, 1);
	idem_tally_add(key->consumer_id,
				   two_phase ? IDEM_COUNT_BEGUN : IDEM_COUNT_UNDECLARED, 1);

	if (nremembered == MAX_REMEMBERED)
		return;

	context = MemoryContextSwitchTo(TopTransactionContext);
	if (remembered == NULL)
	{
		max_remembered = 8;
		remembered = palloc(max_remembered * sizeof(RememberedClaim));
	}
	else if (nremembered == max_remembered)
	{
		max_remembered = Min(2 * max_remembered, MAX_REMEMBERED);
		remembered = repalloc(remembered,
							  max_remembered * sizeof(RememberedClaim));
	}
	consumers = idem_catalog()->consumer;
	claim = &remembered[nremembered];
	claim->subid = GetCurrentSubTransactionId();
	claim->role = GetUserId();
	claim->two_phase = two_phase;
	claim->key.consumer_id = key->consumer_id;
	claim->key.message_id = datumCopy(key->message_id, false, -1);
	nremembered++;
	MemoryContextSwitchTo(context);
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

/* Forget the claims that are rolled back, the latest ones. */
static void
forget_since(SubTransactionId subid)
{
	while (nremembered > 0 && remembered[nremembered - 1].subid >= subid)
	{
		RememberedClaim *claim = &remembered[--nremembered];

		idem_failing_claim_ended(consumers, &claim->key, false);
		pfree(DatumGetPointer(claim->key.message_id));
	}
}

static void
subtransaction_ends(SubXactEvent event, SubTransactionId subid,
					SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_since(subid);
	if (event == SUBXACT_EVENT_ABORT_SUB || event == SUBXACT_EVENT_COMMIT_SUB)
		idem_tally_end_sub(event == SUBXACT_EVENT_COMMIT_SUB, subid, parent);
}

/*
 * Whether claims wait to be declared finished.  If the extension was dropped
 * after them, they are gone.
 */
static bool
has_undeclared(void)
{
	return idem_tally_get(NULL, IDEM_COUNT_UNDECLARED) > 0 &&
		SearchSysCacheExists1(RELOID, ObjectIdGetDatum(consumers));
}

/*
 * Whether this transaction has written to anything but the extension's own
 * tables, catalogs included.  That is what PostgreSQL counts for its
 * statistics; a foreign table's writes it does not count.
 */
static bool
wrote_elsewhere(void)
{
	const IdemCatalog *catalog = idem_catalog();
	const Oid	own[] = {
		catalog->consumer, catalog->ring, catalog->quarantine,
		catalog->resolution, catalog->generations[0].table,
		catalog->generations[1].table, catalog->generations[2].table
	};
	PgStat_TableXactStatus *written;

	StaticAssertStmt(IDEM_GENERATIONS == 3, "list all generations");

	/* Without the statistics nobody knows. */
	if (!pgstat_track_counts)
		return true;

	for (written = pgstat_get_xact_stack_level(1)->first; written != NULL;
		 written = written->next)
	{
		bool		is_own = false;

		for (size_t i = 0; i < lengthof(own); i++)
			is_own |= idem_pgstat_relid(written->parent) == own[i];
		if (!is_own &&
			(written->truncdropped || written->tuples_inserted > 0 ||
			 written->tuples_updated > 0 || written->tuples_deleted > 0))
			return true;
	}
	return false;
}

/*
 * A claim that is committed by itself, in autocommit, is almost certainly a
 * mistake: the work that follows is outside its transaction.
 *
 * Warning or error: 25P01.
 */
static void
check_lone_claim(void)
{
	const RememberedClaim *claim = NULL;

	if (idem_lone_claim == 0 || IsTransactionBlock() || !has_undeclared() ||
		wrote_elsewhere())
		return;

	for (int i = 0; i < nremembered && claim == NULL; i++)
	{
		if (!remembered[i].two_phase)
			claim = &remembered[i];
	}
	ereport(idem_lone_claim,
			(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
			 claim != NULL
			 ? errmsg("message \"%s\" was claimed for consumer \"%s\" in a transaction that did nothing else",
					  idem_message_id_text(claim->key.message_id),
					  idem_consumer_name(claim->key.consumer_id))
			 : errmsg("messages were claimed in a transaction that did nothing else"),
			 errdetail("The claim is committed by itself; work that fails from now on will not be done again."),
			 errhint("Turn the driver's autocommit off, or send BEGIN, the claim, the work and COMMIT; for a side effect outside the database use idem_begin(). See the setting idem_inbox.lone_claim.")));
}

/*
 * With idem_inbox.require_complete, claims must have been declared finished.
 *
 * Error: 2D000.
 */
static void
check_completed(void)
{
	const RememberedClaim *claim = NULL;
	int64		undeclared;

	if (!idem_require_complete || !has_undeclared())
		return;
	undeclared = idem_tally_get(NULL, IDEM_COUNT_UNDECLARED);

	/* The latest ones are those that no call can have covered. */
	for (int i = 0; i < nremembered; i++)
	{
		if (!remembered[i].two_phase)
			claim = &remembered[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
			 errmsg_plural("transaction did not complete %lld claim",
						   "transaction did not complete %lld claims",
						   (unsigned long) undeclared,
						   (long long) undeclared),
			 claim != NULL
			 ? errdetail("The setting idem_inbox.require_complete is on, and message \"%s\" was claimed for consumer \"%s\" without idem_complete() after it.",
						 idem_message_id_text(claim->key.message_id),
						 idem_consumer_name(claim->key.consumer_id))
			 : errdetail("The setting idem_inbox.require_complete is on."),
			 errhint("Call idem_complete() as the last statement of the work; a handler that failed must roll back.")));
}

/* Make the commit synchronous, if it has to be. */
static void
set_synchronous_commit(void)
{
	/*
	 * ForceSyncCommit() would flush but not wait for standbys, which goes by
	 * the setting.  It is set as late as this, so that no SET LOCAL or
	 * function's SET clause comes after it.
	 */
	if (commit_synchronously &&
		synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		(void) set_config_option("synchronous_commit", "on",
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/* What other sessions see of the claims begins or ends here. */
static void
end_claims(bool committed)
{
	for (int i = 0; i < nremembered; i++)
		idem_failing_claim_ended(consumers, &remembered[i].key, committed);
	idem_tally_end(committed);

	/* The memory goes with TopTransactionContext. */
	remembered = NULL;
	nremembered = 0;
	commit_synchronously = false;
}

static void
transaction_ends(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			check_completed();
			check_lone_claim();
			set_synchronous_commit();
			break;

		case XACT_EVENT_PRE_PREPARE:
			check_completed();
			set_synchronous_commit();
			break;

		case XACT_EVENT_COMMIT:
			/* How a prepared transaction ends, no session is told. */
		case XACT_EVENT_PREPARE:
			end_claims(true);
			break;

		case XACT_EVENT_ABORT:
			end_claims(false);
			break;

		default:
			break;
	}
}

void
idem_guard_init(void)
{
	RegisterXactCallback(transaction_ends, NULL);
	RegisterSubXactCallback(subtransaction_ends, NULL);
}

/*
 * A function that acts for its owner may have claimed: what is kept with the
 * record is for that owner's members to say, not for whoever called it.
 *
 * Error: 42501.
 */
static void
check_role(const RememberedClaim *claim)
{
	IdemConsumer consumer;

	if (claim->role != GetUserId())
		(void) idem_consumer_find(idem_consumer_name(claim->key.consumer_id),
								  &consumer);
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
		if (remembered[i].two_phase ||
			!idem_record_find(&remembered[i].key, RowExclusiveLock, &record) ||
			!record.isnull[IDEM_ATTEMPT] ||
			!TransactionIdIsCurrentTransactionId(record.xmin))
			continue;

		count++;
		if (result == NULL)
			continue;
		check_role(&remembered[i]);
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
 * Errors: 54000 for a result with more than 1000 claims, or one that is larger
 * than idem_inbox.max_result; 42501 for a result with a claim that another
 * role made, for a consumer that is not the current one's.
 */
PG_FUNCTION_INFO_V1(idem_complete_claims);
Datum
idem_complete_claims(PG_FUNCTION_ARGS)
{
	Datum		result = PG_GETARG_DATUM(0);
	int64		count;

	idem_prevent_if_read_only("idem_complete()");
	if (!PG_ARGISNULL(0))
		idem_check_result(result);

	count = idem_tally_get(NULL, IDEM_COUNT_CLAIMED);
	if (count <= nremembered)
		count = complete_remembered(PG_ARGISNULL(0) ? NULL : &result);
	else if (PG_ARGISNULL(0))
		count -= idem_tally_get(NULL, IDEM_COUNT_BEGUN);
	else
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many claims in this transaction for one result"),
				 errdetail("The transaction holds %lld claims, a result is stored with %d at most.",
						   (long long) count, MAX_REMEMBERED),
				 errhint("Commit more often, or complete without a result.")));
	idem_tally_declare();

	PG_RETURN_INT32((int32) count);
}

/*
 * idem_claims() → setof (message_id text, consumer text, two_phase bool)
 *
 * The claims of this transaction, in the order in which they were made; the
 * first 1000.
 */
PG_FUNCTION_INFO_V1(idem_claims);
Datum
idem_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nremembered; i++)
	{
		const RememberedClaim *claim = &remembered[i];
		Datum		values[] = {
			CStringGetTextDatum(idem_message_id_text(claim->key.message_id)),
			CStringGetTextDatum(idem_consumer_name(claim->key.consumer_id)),
			BoolGetDatum(claim->two_phase)
		};
		bool		isnull[lengthof(values)] = {0};

		idem_row_put(rsinfo, lengthof(values), values, isnull);
	}
	return (Datum) 0;
}
