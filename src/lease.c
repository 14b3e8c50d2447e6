/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  A two-phase attempt's lease: idem_extend(), idem_takeover(),
 *	  idem_abandon().
 *
 * The lease says how long others leave the attempt alone; the attempt number
 * fences off whoever comes back after losing it.  The clock is the server's.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "utils/builtins.h"

/*
 * idem_extend(message_id text, consumer text, lease interval, attempt int)
 *		→ timestamptz
 *
 * Heartbeat of a long side effect: the lease ends so long from now.
 *
 * Errors: P0002 without a record; 55000 if it is completed, or at another
 * attempt.
 */
PG_FUNCTION_INFO_V1(idem_extend);
Datum
idem_extend(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemConsumer consumer;
	IdemRecord	record;
	const Interval *lease;
	int32		attempt = PG_GETARG_INT32(3);
	bool		extended = false;

	idem_call_start(&call, "idem_extend()", fcinfo, 0, 1, true);
	lease = idem_interval_arg(fcinfo, 2, "lease", 0);
	do
	{
		idem_call_find_to_change(&call, &consumer, &record);
		idem_check_attempt(PG_ARGISNULL(3) ? NULL : &attempt, &record);
		if (!record.isnull[IDEM_COMPLETED_AT])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the record is completed already"),
					 errhint("There is nothing left to extend; acknowledge the message.")));

		/* A lease counts from when it is granted, not from before a wait. */
		if (!idem_record_lock(&record))
			continue;
		record.values[IDEM_LEASE_UNTIL] =
			TimestampTzGetDatum(idem_lease_end(lease, &consumer,
											   GetCurrentTimestamp()));
		record.isnull[IDEM_LEASE_UNTIL] = false;
		extended = idem_record_update(&record);
	} while (!extended);

	/* Lost in a crash, it would let another one take over too early. */
	idem_commit_synchronously();
	idem_call_end(&call);

	PG_RETURN_DATUM(record.values[IDEM_LEASE_UNTIL]);
}

/*
 * Make the record the caller's attempt; to be stored.
 *
 * lease: NULL: the consumer's, else the setting's.
 */
void
idem_record_take_over(IdemRecord *record, int32 attempt, const Interval *lease,
					  const IdemConsumer *consumer)
{
	record->values[IDEM_ATTEMPT] = Int32GetDatum(attempt);
	record->values[IDEM_LEASE_UNTIL] =
		TimestampTzGetDatum(idem_lease_end(lease, consumer,
										   GetCurrentTimestamp()));
	record->isnull[IDEM_LEASE_UNTIL] = false;
	record->values[IDEM_DETAIL] = idem_describe_caller();
	record->isnull[IDEM_DETAIL] = false;
}

/*
 * idem_takeover(message_id text, consumer text, lease interval) → int
 *
 * After the lease ran out: the next attempt number for one caller, NULL for
 * the others, and where there is nothing to take over.
 */
PG_FUNCTION_INFO_V1(idem_takeover);
Datum
idem_takeover(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	const Interval *lease;
	int32		attempt = 0;

	idem_call_start(&call, "idem_takeover()", fcinfo, 0, 1, true);
	lease = idem_interval_arg(fcinfo, 2, "lease", 0);
	for (;;)
	{
		IdemConsumer consumer;
		IdemRecord	record;
		TimestampTz now;

		if (!idem_call_find(&call, RowExclusiveLock, &consumer, &record))
			break;

		/*
		 * Callers that saw the same attempt compete for the next one.  This
		 * one lost if the number has moved on since it first looked, however
		 * short the winner's lease is.
		 */
		now = GetCurrentTimestamp();
		if (!record.isnull[IDEM_COMPLETED_AT] ||
			idem_lease_runs(&record, now) ||
			(attempt != 0 &&
			 DatumGetInt32(record.values[IDEM_ATTEMPT]) != attempt))
			break;

		attempt = DatumGetInt32(record.values[IDEM_ATTEMPT]);
		if (!idem_record_lock(&record))
			continue;
		idem_record_take_over(&record, attempt + 1, lease, &consumer);
		if (idem_record_update(&record))
		{
			/* Lost in a fail-over, it would let another one act, too. */
			idem_commit_synchronously();
			idem_tally_add(consumer.id, IDEM_COUNT_TAKEN_OVER, 1);
			idem_call_end(&call);
			PG_RETURN_INT32(attempt + 1);
		}
	}
	idem_call_end(&call);

	PG_RETURN_NULL();
}

/*
 * Delete the record of an attempt whose side effect did not happen; false if
 * there is none or it is completed.
 *
 * attempt: NULL: not checked.
 */
bool
idem_call_abandon(IdemCall *call, const int32 *attempt)
{
	IdemConsumer consumer;
	IdemRecord	record;

	do
	{
		if (!idem_call_find(call, RowExclusiveLock, &consumer, &record))
			return false;
		idem_check_attempt(attempt, &record);
		if (!record.isnull[IDEM_COMPLETED_AT])
			return false;
	} while (!idem_record_delete(&record));

	idem_tally_add(consumer.id, IDEM_COUNT_ABANDONED, 1);
	return true;
}

/*
 * idem_abandon(message_id text, consumer text, attempt int) → bool
 *
 * Error: 55000 if the record is at another attempt.
 */
PG_FUNCTION_INFO_V1(idem_abandon);
Datum
idem_abandon(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	int32		attempt = PG_GETARG_INT32(2);
	bool		abandoned;

	idem_call_start(&call, "idem_abandon()", fcinfo, 0, 1, true);
	abandoned = idem_call_abandon(&call, PG_ARGISNULL(2) ? NULL : &attempt);
	idem_call_end(&call);

	PG_RETURN_BOOL(abandoned);
}
