/*-------------------------------------------------------------------------
 *
 * record.c
 *	  A record after its claim: idem_complete(), idem_seen(), idem_status(),
 *	  idem_result(), idem_forget().
 *
 * A change is decided on one version of the record and made on that version
 * or not at all: if another transaction was faster, or the record moved to
 * another generation, everything starts again on the latest.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
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

/*
 * The record that a call is about; false if there is none.
 *
 * lockmode: as for idem_record_find().
 */
bool
idem_call_find(IdemCall *call, LOCKMODE lockmode, IdemConsumer *consumer,
			   IdemRecord *record)
{
	IdemKey		key;

	CHECK_FOR_INTERRUPTS();

	key.message_id = idem_message_id_make(call->message_id);
	if (!idem_consumer_find(call->consumer_name, consumer))
		return false;
	key.consumer_id = consumer->id;
	return idem_record_find(&key, lockmode, record);
}

/*
 * As idem_call_find(), to change the record.
 *
 * Error: P0002 without a record.
 */
void
idem_call_find_to_change(IdemCall *call, IdemConsumer *consumer,
						 IdemRecord *record)
{
	if (!idem_call_find(call, RowExclusiveLock, consumer, record))
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
 *
 * attempt: NULL: unnamed.
 * Error: 55000 if it is not the record's.
 */
void
idem_check_attempt(const int32 *attempt, const IdemRecord *record)
{
	if (attempt == NULL ||
		(!record->isnull[IDEM_ATTEMPT] &&
		 DatumGetInt32(record->values[IDEM_ATTEMPT]) == *attempt))
		return;

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("attempt %d is not the record's attempt", *attempt),
			 record->isnull[IDEM_ATTEMPT]
			 ? errdetail("The message was claimed in one transaction, without attempts.")
			 : errdetail("The record is at attempt %d.",
						 DatumGetInt32(record->values[IDEM_ATTEMPT])),
			 errhint("Another consumer has taken the message over; do not go on with it.")));
}

/*
 * Check a result that is to be stored.
 *
 * Error: 54000 if it is larger than idem_inbox.max_result.
 */
void
idem_check_result(Datum result)
{
	Size		size = toast_raw_datum_size(result) - VARHDRSZ;

	if (size <= (Size) idem_max_result)
		return;

	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("result is too large"),
			 errdetail("It has %zu bytes, idem_inbox.max_result allows %d.",
					   size, idem_max_result),
			 errhint("Store it elsewhere and a reference to it here, or raise the setting.")));
}

/*
 * Store a record that has been completed; false to look again.
 *
 * Its retention begins now, whenever it was received, so one in the sealed
 * generation, which may be emptied at any time, moves into the current one:
 * else the next redelivery of a message that took long would be claimed.
 * That generation stays what it is, sealed and not to be emptied, while this
 * transaction holds the record's; so the view cannot be too old.
 */
static bool
store_completed(IdemRecord *record)
{
	IdemView	view;
	IdemRecord	moved = *record;
	IdemKey		key;

	(void) GetCurrentTransactionId();
	AcceptInvalidationMessages();
	view = idem_ring_view();
	if (record->generation != view.previous)
		return idem_record_update(record);

	if (!idem_record_lock(record))
		return false;
	key.consumer_id = DatumGetInt32(record->values[IDEM_CONSUMER_ID]);
	key.message_id = record->values[IDEM_MESSAGE_ID];
	if (!idem_generation_insert(view.current, &key, &moved))
		return idem_record_update(record);
	return idem_record_delete(record);
}

/*
 * Complete a two-phase record; false if it is completed already.
 *
 * result: NULL: none; attempt: NULL: not checked.
 */
bool
idem_call_complete(IdemCall *call, const Datum *result, const int32 *attempt)
{
	IdemConsumer consumer;
	IdemRecord	record;

	do
	{
		idem_call_find_to_change(call, &consumer, &record);
		idem_check_attempt(attempt, &record);
		if (!record.isnull[IDEM_COMPLETED_AT])
			return false;

		record.values[IDEM_COMPLETED_AT] =
			TimestampTzGetDatum(GetCurrentTimestamp());
		record.isnull[IDEM_COMPLETED_AT] = false;
		record.isnull[IDEM_LEASE_UNTIL] = true;
		record.isnull[IDEM_DETAIL] = result == NULL;
		if (result != NULL)
			record.values[IDEM_DETAIL] = *result;
	} while (!store_completed(&record));

	idem_tally_add(consumer.id, IDEM_COUNT_COMPLETED, 1);
	return true;
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
	Datum		result = PG_GETARG_DATUM(2);
	int32		attempt = PG_GETARG_INT32(3);
	bool		completed;

	idem_call_start(&call, "idem_complete()", fcinfo, 0, 1, true);
	if (!PG_ARGISNULL(2))
		idem_check_result(result);
	completed = idem_call_complete(&call,
								   PG_ARGISNULL(2) ? NULL : &result,
								   PG_ARGISNULL(3) ? NULL : &attempt);
	idem_call_end(&call);

	PG_RETURN_BOOL(completed);
}

/*
 * idem_seen(message_id text, consumer text) → bool
 *
 * True only for a completed record that is committed: a consumer may
 * acknowledge on it.  An attempt in progress is not yet a reason to, nor is
 * what this transaction may still roll back.
 */
PG_FUNCTION_INFO_V1(idem_seen);
Datum
idem_seen(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemConsumer consumer;
	IdemRecord	record;
	bool		seen;

	idem_call_start(&call, "idem_seen()", fcinfo, 0, 1, false);
	seen = idem_call_find(&call, AccessShareLock, &consumer, &record) &&
		!record.isnull[IDEM_COMPLETED_AT] &&
		!TransactionIdIsCurrentTransactionId(record.xmin);
	idem_call_end(&call);

	PG_RETURN_BOOL(seen);
}

static const char *
state_of(const IdemRecord *record)
{
	if (!record->isnull[IDEM_COMPLETED_AT])
		return "completed";
	if (idem_lease_runs(record, GetCurrentTimestamp()))
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
	IdemConsumer consumer;
	IdemRecord	record;

	InitMaterializedSRF(fcinfo, 0);
	idem_call_start(&call, "idem_status()", fcinfo, 0, 1, false);
	if (idem_call_find(&call, AccessShareLock, &consumer, &record))
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

		idem_row_put(rsinfo, STATUS_COLUMNS, values, isnull);
	}
	idem_call_end(&call);

	return (Datum) 0;
}

/*
 * idem_result(message_id text, consumer text) → jsonb
 */
PG_FUNCTION_INFO_V1(idem_result);
Datum
idem_result(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	IdemConsumer consumer;
	IdemRecord	record;
	bool		found;

	idem_call_start(&call, "idem_result()", fcinfo, 0, 1, false);
	found = idem_call_find(&call, AccessShareLock, &consumer, &record);
	idem_call_end(&call);

	if (!found || record.isnull[IDEM_COMPLETED_AT] || record.isnull[IDEM_DETAIL])
		PG_RETURN_NULL();
	PG_RETURN_DATUM(record.values[IDEM_DETAIL]);
}

/* Delete the record, in whatever state; false without one. */
bool
idem_call_forget(IdemCall *call)
{
	IdemConsumer consumer;
	IdemRecord	record;

	do
	{
		if (!idem_call_find(call, RowExclusiveLock, &consumer, &record))
			return false;
	} while (!idem_record_delete(&record));

	return true;
}

/*
 * idem_forget(message_id text, consumer text) → bool
 */
PG_FUNCTION_INFO_V1(idem_forget);
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	bool		found;

	idem_call_start(&call, "idem_forget()", fcinfo, 0, 1, true);
	found = idem_call_forget(&call);
	idem_call_end(&call);

	PG_RETURN_BOOL(found);
}
