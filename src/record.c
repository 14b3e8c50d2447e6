/*-------------------------------------------------------------------------
 *
 * record.c
 *	  What happens to a record after its claim: idem_complete(), idem_seen(),
 *	  idem_status(), idem_forget().
 *
 * A change is decided on one version of the record and made on that version
 * or not at all: if another transaction was faster, or the record moved to
 * another generation, everything starts again on the latest.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

/* Columns of idem_status(), in C's numbering. */
enum
{
	STATUS_STATE,
	STATUS_RECEIVED_AT,
	STATUS_COMPLETED_AT,
	STATUS_ATTEMPT,
	STATUS_LEASE_UNTIL,
	STATUS_FINGERPRINT,
	STATUS_RESULT,
	STATUS_COLUMNS
};

/* The record that a call is about; false if there is none. */
static bool
find_record(IdemCall *call, LOCKMODE lockmode, IdemRecord *record)
{
	IdemConsumer consumer;
	IdemKey		key;

	CHECK_FOR_INTERRUPTS();

	key.message_id = idem_message_id_make(call->message_id);
	if (!idem_consumer_find(call->consumer_name, &consumer))
		return false;
	key.consumer_id = consumer.id;
	return idem_record_find(&key, lockmode, record);
}

/* As find_record(), to change it; no record is an error. */
static void
find_record_to_change(IdemCall *call, IdemRecord *record)
{
	if (!find_record(call, RowExclusiveLock, record))
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("message \"%s\" has no record for consumer \"%s\"",
						text_to_cstring(call->message_id),
						call->consumer_name),
				 errhint("Begin it with idem_begin(), and commit.")));
}

/*
 * The fencing: a caller who names its attempt may act only while that is the
 * record's.
 */
static void
check_attempt(FunctionCallInfo fcinfo, int argno, const IdemRecord *record)
{
	int32		attempt;

	if (PG_ARGISNULL(argno))
		return;

	attempt = PG_GETARG_INT32(argno);
	if (!record->isnull[IDEM_ATTEMPT] &&
		DatumGetInt32(record->values[IDEM_ATTEMPT]) == attempt)
		return;

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("attempt %d is not the record's attempt", attempt),
			 record->isnull[IDEM_ATTEMPT]
			 ? errdetail("The message was claimed in one transaction, without attempts.")
			 : errdetail("The record is at attempt %d.",
						 DatumGetInt32(record->values[IDEM_ATTEMPT])),
			 errhint("Another consumer has taken the message over; do not go on with it.")));
}

/*
 * idem_complete(message_id text, consumer text, result jsonb, attempt int)
 *		→ bool
 *
 * Phase two of a two-phase record.
 */
PG_FUNCTION_INFO_V1(idem_complete);
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemRecord	record;
	bool		completed;

	idem_call_start(&call, "idem_complete()", fcinfo, true);
	do
	{
		find_record_to_change(&call, &record);
		check_attempt(fcinfo, 3, &record);
		completed = record.isnull[IDEM_COMPLETED_AT];
		if (!completed)
			break;

		record.values[IDEM_COMPLETED_AT] =
			TimestampTzGetDatum(GetCurrentTimestamp());
		record.isnull[IDEM_COMPLETED_AT] = false;
		record.isnull[IDEM_LEASE_UNTIL] = true;
		record.isnull[IDEM_DETAIL] = PG_ARGISNULL(2);
		if (!PG_ARGISNULL(2))
			record.values[IDEM_DETAIL] = PG_GETARG_DATUM(2);
	} while (!idem_record_update(&record));
	idem_call_end(&call);

	PG_RETURN_BOOL(completed);
}

/*
 * idem_seen(message_id text, consumer text) → bool
 *
 * True only for a completed record: a consumer may acknowledge on it, and an
 * attempt in progress is not yet a reason to.
 */
PG_FUNCTION_INFO_V1(idem_seen);
Datum
idem_seen(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemRecord	record;
	bool		seen;

	idem_call_start(&call, "idem_seen()", fcinfo, false);
	seen = find_record(&call, AccessShareLock, &record) &&
		!record.isnull[IDEM_COMPLETED_AT];
	idem_call_end(&call);

	PG_RETURN_BOOL(seen);
}

static const char *
state_of(const IdemRecord *record)
{
	if (!record->isnull[IDEM_COMPLETED_AT])
		return "completed";
	if (!record->isnull[IDEM_LEASE_UNTIL] &&
		DatumGetTimestampTz(record->values[IDEM_LEASE_UNTIL]) > GetCurrentTimestamp())
		return "in_progress";
	return "needs_reconciliation";
}

/*
 * idem_status(message_id text, consumer text) → setof record, one row at most
 */
PG_FUNCTION_INFO_V1(idem_status);
Datum
idem_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemCall	call;
	IdemRecord	record;

	InitMaterializedSRF(fcinfo, 0);
	idem_call_start(&call, "idem_status()", fcinfo, false);
	if (find_record(&call, AccessShareLock, &record))
	{
		static const int columns[STATUS_COLUMNS] = {
			[STATUS_RECEIVED_AT] = IDEM_RECEIVED_AT,
			[STATUS_COMPLETED_AT] = IDEM_COMPLETED_AT,
			[STATUS_ATTEMPT] = IDEM_ATTEMPT,
			[STATUS_LEASE_UNTIL] = IDEM_LEASE_UNTIL,
			[STATUS_FINGERPRINT] = IDEM_FINGERPRINT,
			[STATUS_RESULT] = IDEM_DETAIL
		};
		Datum		values[STATUS_COLUMNS];
		bool		isnull[STATUS_COLUMNS];

		for (int i = STATUS_STATE + 1; i < STATUS_COLUMNS; i++)
		{
			values[i] = record.values[columns[i]];
			isnull[i] = record.isnull[columns[i]];
		}
		values[STATUS_STATE] = CStringGetTextDatum(state_of(&record));
		isnull[STATUS_STATE] = false;

		/* Until then, the detail says who claimed. */
		if (record.isnull[IDEM_COMPLETED_AT])
			isnull[STATUS_RESULT] = true;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, isnull);
	}
	idem_call_end(&call);

	return (Datum) 0;
}

/*
 * idem_forget(message_id text, consumer text) → bool
 */
PG_FUNCTION_INFO_V1(idem_forget);
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemRecord	record;
	bool		found;

	idem_call_start(&call, "idem_forget()", fcinfo, true);
	do
	{
		found = find_record(&call, RowExclusiveLock, &record);
	} while (found && !idem_record_delete(&record));
	idem_call_end(&call);

	PG_RETURN_BOOL(found);
}
