/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  idem_claim(), idem_begin(): decide the outcome of a delivery.
 *
 * First look, then write.  The look needs no transaction id, so a duplicate
 * writes nothing at all.  Only when it found nothing does the claim get its
 * transaction id, accept invalidations and, if the ring still stands as it
 * did under the look, insert.  What a concurrent claim does between look and
 * insertion shows in the insertion's failure; then everything starts again
 * and finds it.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"

/* For tests only: called at the points where a turn of the ring could hurt. */
PGDLLEXPORT IdemClaimHook idem_claim_hook = NULL;

#define AT_POINT(point) \
	do { if (unlikely(idem_claim_hook != NULL)) idem_claim_hook(point); } while (0)

/* A placeholder can be met under a stale view; this often it is an error. */
#define MAX_STRAYS 10

/* Whether both fingerprints are known and differ. */
static bool
content_differs(const IdemClaim *claim, const IdemRecord *record)
{
	bytea	   *known;

	if (claim->fingerprint == NULL || record->isnull[IDEM_FINGERPRINT])
		return false;

	known = DatumGetByteaPP(record->values[IDEM_FINGERPRINT]);
	return VARSIZE_ANY_EXHDR(known) != VARSIZE_ANY_EXHDR(claim->fingerprint) ||
		memcmp(VARDATA_ANY(known), VARDATA_ANY(claim->fingerprint),
			   VARSIZE_ANY_EXHDR(known)) != 0;
}

/* The outcome for a message that has a record. */
static IdemOutcome
outcome_of_record(const IdemClaim *claim, const IdemRecord *record)
{
	/* Whatever it is, it is newer than an imported one. */
	if (claim->imported)
		return IDEM_DUPLICATE;
	if (content_differs(claim, record))
	{
		idem_quarantine(&claim->call, &claim->key,
						record->values[IDEM_FINGERPRINT],
						PointerGetDatum(claim->fingerprint),
						&claim->patience);
		return IDEM_MISMATCH;
	}
	if (!record->isnull[IDEM_COMPLETED_AT])
		return IDEM_DUPLICATE;
	if (idem_lease_runs(record, GetCurrentTimestamp()))
		return IDEM_IN_PROGRESS;
	return IDEM_NEEDS_RECONCILIATION;
}

/*
 * Look for the message's record under a view.
 *
 * placeholder: set if a committed placeholder stands in current; whether
 * there is a record as well, next tells.
 */
static IdemProbe
look(const IdemView *view, const IdemKey *key, IdemRecord *record,
	 bool *placeholder, TransactionId *pending)
{
	IdemProbe	probe;

	*placeholder = false;

	/*
	 * What is pending in a sealed generation is no claim: those that could
	 * write a record there had ended when it was sealed, and a placeholder's
	 * record is in what is current now.
	 */
	if (view->previous >= 0 &&
		idem_generation_find(view->previous, key, record))
		return IDEM_FOUND;

	probe = idem_generation_probe(view->current, key, record, pending);
	if (probe == IDEM_FOUND && IDEM_IS_PLACEHOLDER(record))
	{
		*placeholder = true;
		probe = IDEM_NOTHING;
	}
	if (probe == IDEM_NOTHING && view->next >= 0)
	{
		probe = idem_generation_probe(view->next, key, record, pending);

		/* Placeholders in next belong to a later turn; the view is stale. */
		if (probe == IDEM_FOUND && IDEM_IS_PLACEHOLDER(record))
			probe = IDEM_NOTHING;
	}
	return probe;
}

/* A row of the message's key and nothing else. */
static void
make_row(const IdemClaim *claim, TimestampTz received_at,
		 TimestampTz completed_at, IdemRecord *row)
{
	memset(row->isnull, true, sizeof(row->isnull));
	row->values[IDEM_RECEIVED_AT] = TimestampTzGetDatum(received_at);
	row->isnull[IDEM_RECEIVED_AT] = false;
	row->values[IDEM_COMPLETED_AT] = TimestampTzGetDatum(completed_at);
	row->isnull[IDEM_COMPLETED_AT] = false;
	row->values[IDEM_CONSUMER_ID] = Int32GetDatum(claim->key.consumer_id);
	row->isnull[IDEM_CONSUMER_ID] = false;
	row->values[IDEM_MESSAGE_ID] = claim->key.message_id;
	row->isnull[IDEM_MESSAGE_ID] = false;
}

static void
make_record(const IdemClaim *claim, TimestampTz now, IdemRecord *record)
{
	TimestampTz since = claim->imported ? claim->received_at : now;

	make_row(claim, since, since, record);
	if (claim->fingerprint != NULL)
	{
		record->values[IDEM_FINGERPRINT] = PointerGetDatum(claim->fingerprint);
		record->isnull[IDEM_FINGERPRINT] = false;
	}
	if (claim->two_phase)
	{
		record->isnull[IDEM_COMPLETED_AT] = true;
		record->values[IDEM_LEASE_UNTIL] =
			TimestampTzGetDatum(idem_lease_end(claim->lease, &claim->consumer,
											   now));
		record->isnull[IDEM_LEASE_UNTIL] = false;
		record->values[IDEM_ATTEMPT] = Int32GetDatum(1);
		record->isnull[IDEM_ATTEMPT] = false;
		record->values[IDEM_DETAIL] = idem_describe_caller();
		record->isnull[IDEM_DETAIL] = false;
	}
}

/*
 * Insert the record under a view; false if somebody else's row was in the
 * way.
 *
 * While next is being opened, claims under the view before arbitrate in
 * current and claims under the view after in next, so this one has to win in
 * both: a placeholder in current, then the record in next, always in this
 * order.
 */
static bool
insert(const IdemClaim *claim, const IdemView *view, bool placeholder,
	   IdemRecord *record)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemRecord	place;

	make_record(claim, now, record);
	if (view->next < 0)
		return idem_generation_insert(view->current, &claim->key, record);

	if (!placeholder)
	{
		make_row(claim, now, DT_NOBEGIN, &place);
		if (!idem_generation_insert(view->current, &claim->key, &place))
			return false;
		AT_POINT("placeholder");
	}
	if (idem_generation_insert(view->next, &claim->key, record))
		return true;

	/* Nobody shall wait for a claim that this transaction does not hold. */
	if (!placeholder)
		idem_record_delete(&place);
	return false;
}

/* Wait for whoever holds the message; false if patience ran out. */
static bool
wait_for(const IdemClaim *claim, TransactionId pending)
{
	TimestampTz start = GetCurrentTimestamp();
	bool		ended = idem_wait_for_xact(pending, &claim->patience);

	/* Who may not wait has only looked. */
	if (claim->patience.bounded && start >= claim->patience.until)
		return ended;

	idem_tally_add(claim->key.consumer_id, IDEM_COUNT_WAITS, 1);
	idem_tally_add(claim->key.consumer_id, IDEM_COUNT_WAITED,
				   Max(0, GetCurrentTimestamp() - start));
	return ended;
}

/* Count an answer other than a claim, unless nobody asked. */
static IdemOutcome
answer(const IdemClaim *claim, IdemOutcome outcome)
{
	static const IdemCount counts[IDEM_OUTCOMES] = {
		[IDEM_DUPLICATE] = IDEM_COUNT_DUPLICATE,
		[IDEM_BUSY] = IDEM_COUNT_BUSY,
		[IDEM_IN_PROGRESS] = IDEM_COUNT_IN_PROGRESS,
		[IDEM_NEEDS_RECONCILIATION] = IDEM_COUNT_NEEDS_RECONCILIATION,
		[IDEM_MISMATCH] = IDEM_COUNT_MISMATCH
	};

	if (!claim->imported)
		idem_tally_add(claim->key.consumer_id, counts[outcome], 1);
	return outcome;
}

/*
 * Claim a message, or say why not.
 *
 * claim: the consumer is looked up, all else is set.
 */
IdemOutcome
idem_claim_message(IdemClaim *claim)
{
	IdemRecord	record;
	int			strays = 0;

	for (;;)
	{
		IdemView	view;
		IdemView	latest;
		TransactionId pending;
		bool		placeholder;

		CHECK_FOR_INTERRUPTS();

		if (!idem_consumer_find_or_register(claim->call.consumer_name,
											&claim->patience,
											&claim->consumer))
			return IDEM_BUSY;
		claim->key.consumer_id = claim->consumer.id;

		view = idem_ring_view();
		switch (look(&view, &claim->key, &record, &placeholder, &pending))
		{
			case IDEM_FOUND:
				idem_check_serializable(record.xmin);
				return answer(claim, outcome_of_record(claim, &record));
			case IDEM_PENDING:
				if (!wait_for(claim, pending))
					return answer(claim, IDEM_BUSY);
				continue;
			case IDEM_NOTHING:
				break;
		}
		AT_POINT("looked");

		/*
		 * A placeholder tells of an open next generation before the
		 * invalidation that does; so the state is read whether or not it
		 * arrived.
		 */
		if (placeholder && view.next < 0)
		{
			if (++strays > MAX_STRAYS)
				elog(ERROR, "placeholder in generation %d while no next one is open",
					 view.current + 1);
			idem_ring_forget_view();
			continue;
		}

		/* The order of these three is the ring's waiting rule, see ring.c. */
		(void) GetCurrentTransactionId();
		AcceptInvalidationMessages();
		latest = idem_ring_view();
		if (!idem_view_equal(&view, &latest))
			continue;
		AT_POINT("view");

		if (insert(claim, &view, placeholder, &record))
			break;
	}

	if (claim->two_phase)
		idem_commit_synchronously();
	if (!claim->imported)
		idem_remember_claim(&claim->key, claim->two_phase);
	return IDEM_CLAIMED;
}

/*
 * Claim a run of messages that nobody has claimed; returns how many of the
 * first ones are claimed now.  The one after them needs idem_claim_message(),
 * to find out why not.
 *
 * claim: all but key, fingerprint and lease is set; one-transaction claims.
 * fingerprints: of the run's messages, NULL where unknown.
 *
 * The steps are those of idem_claim_message().  Only the usual case is served:
 * no next generation is open, and nobody is in the way.
 */
int
idem_claim_run(IdemClaim *claim, IdemRun *run, bytea *const *fingerprints)
{
	IdemView	view = idem_ring_view();
	IdemView	latest;
	IdemRecord	records[IDEM_RUN_LENGTH];
	TimestampTz now;
	int			won;

	if (view.next >= 0)
		return 0;
	if (view.previous >= 0)
		idem_run_keep_absent(run, view.previous);
	idem_run_keep_absent(run, view.current);
	if (run->length == 0)
		return 0;
	AT_POINT("looked");

	(void) GetCurrentTransactionId();
	AcceptInvalidationMessages();
	latest = idem_ring_view();
	if (!idem_view_equal(&view, &latest))
		return 0;
	AT_POINT("view");

	now = GetCurrentTimestamp();
	for (int i = 0; i < run->length; i++)
	{
		claim->key = run->keys[i];
		claim->fingerprint = fingerprints[i];
		make_record(claim, now, &records[i]);
	}
	won = idem_run_insert(run, view.current, records);
	for (int i = 0; i < won; i++)
		idem_remember_claim(&run->keys[i], false);
	return won;
}

/* An outcome as SQL has it. */
Datum
idem_outcome_datum(IdemOutcome outcome)
{
	return ObjectIdGetDatum(idem_catalog()->outcomes[outcome]);
}

/*
 * Check a fingerprint, and return it.
 *
 * Error: 22023 if it is empty or longer than any digest.
 */
bytea *
idem_check_fingerprint(bytea *fingerprint)
{
	if (VARSIZE_ANY_EXHDR(fingerprint) == 0 ||
		VARSIZE_ANY_EXHDR(fingerprint) > IDEM_MAX_FINGERPRINT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fingerprint must have 1 to %d bytes",
						IDEM_MAX_FINGERPRINT_BYTES),
				 errdetail("It has %zu bytes.",
						   (Size) VARSIZE_ANY_EXHDR(fingerprint)),
				 errhint("Pass a digest of the content, such as idem_fingerprint(payload).")));
	return fingerprint;
}

/* The argument as a fingerprint; NULL if not given. */
static bytea *
fingerprint_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno)
		? NULL : idem_check_fingerprint(PG_GETARG_BYTEA_PP(argno));
}

/*
 * idem_claim(message_id text, consumer text, fingerprint bytea,
 *			  max_wait interval) → idem_outcome
 *
 * One-transaction claim: the record says completed, because it commits only
 * with the work.
 */
PG_FUNCTION_INFO_V1(idem_claim);
Datum
idem_claim(PG_FUNCTION_ARGS)
{
	IdemClaim	claim = {0};
	IdemOutcome outcome;

	idem_call_start(&claim.call, "idem_claim()", fcinfo, 0, 1, true);
	claim.key.message_id = idem_message_id_make(claim.call.message_id);
	claim.fingerprint = fingerprint_arg(fcinfo, 2);
	idem_patience_arg(fcinfo, 3, &claim.patience);
	outcome = idem_claim_message(&claim);
	idem_call_end(&claim.call);

	return idem_outcome_datum(outcome);
}

/*
 * idem_begin(message_id text, consumer text, fingerprint bytea,
 *			  lease interval, max_wait interval) → idem_outcome
 *
 * Phase one of a two-phase record: in progress once committed.
 */
PG_FUNCTION_INFO_V1(idem_begin);
Datum
idem_begin(PG_FUNCTION_ARGS)
{
	IdemClaim	claim = {.two_phase = true};
	IdemOutcome outcome;

	idem_call_start(&claim.call, "idem_begin()", fcinfo, 0, 1, true);
	claim.key.message_id = idem_message_id_make(claim.call.message_id);
	claim.fingerprint = fingerprint_arg(fcinfo, 2);
	claim.lease = idem_interval_arg(fcinfo, 3, "lease", 0);
	idem_patience_arg(fcinfo, 4, &claim.patience);
	outcome = idem_claim_message(&claim);
	idem_call_end(&claim.call);

	return idem_outcome_datum(outcome);
}
