/*-------------------------------------------------------------------------
 *
 * attention.c
 *	  What a person should look at: idem_resolve(), and the worker's log.
 *
 * The list itself is the view idem_attention.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

/* Columns of idem_resolution, in C's numbering. */
enum
{
	RESOLUTION_RESOLVED_AT,
	RESOLUTION_CONSUMER,
	RESOLUTION_MESSAGE_ID,
	RESOLUTION_ACTION,
	RESOLUTION_CHANGED,
	RESOLUTION_ROLE,
	RESOLUTION_COLUMNS
};

/* So many records are logged in one round; the others in the next ones. */
#define MAX_LOGGED 100

/* The key in a record's detail that says it has been logged. */
#define LOGGED_KEY "logged"

static void
note_resolution(const IdemCall *call, text *action, bool changed)
{
	Relation	table = table_open(idem_catalog()->resolution, RowExclusiveLock);
	NameData	role;
	ItemPointerData tid;
	Datum		values[RESOLUTION_COLUMNS];
	bool		isnull[RESOLUTION_COLUMNS] = {0};

	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[RESOLUTION_RESOLVED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[RESOLUTION_CONSUMER] = CStringGetTextDatum(call->consumer_name);
	values[RESOLUTION_MESSAGE_ID] = idem_message_id_make(call->message_id);
	values[RESOLUTION_ACTION] = PointerGetDatum(action);
	values[RESOLUTION_CHANGED] = BoolGetDatum(changed);
	values[RESOLUTION_ROLE] = NameGetDatum(&role);
	(void) idem_insert_unique(table, RESOLUTION_COLUMNS, values, isnull,
							  InvalidOid, InvalidOid, NULL, 0, &tid);
	table_close(table, NoLock);
}

static bool
dismiss(IdemCall *call)
{
	IdemConsumer consumer;
	IdemKey		key;

	key.message_id = idem_message_id_make(call->message_id);
	if (!idem_consumer_find(call->consumer_name, &consumer))
		return false;
	key.consumer_id = consumer.id;
	return idem_quarantine_dismiss(&key);
}

/*
 * idem_resolve(message_id text, consumer text, action text) → bool
 *
 * A person's decision, recorded with role and time; true if it changed
 * anything.
 *
 * Errors: 22023 for an unknown action; P0002 to complete without a record.
 */
PG_FUNCTION_INFO_V1(idem_resolve);
Datum
idem_resolve(PG_FUNCTION_ARGS)
{
	IdemCall	call;
	char	   *action;
	bool		changed;

	idem_call_start(&call, "idem_resolve()", fcinfo, 0, 1, true);
	action = PG_ARGISNULL(2) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (strcmp(action, "complete") == 0)
		changed = idem_call_complete(&call, NULL, NULL);
	else if (strcmp(action, "abandon") == 0)
		changed = idem_call_abandon(&call, NULL);
	else if (strcmp(action, "forget") == 0)
	{
		changed = idem_call_forget(&call);
		changed |= dismiss(&call);
	}
	else if (strcmp(action, "dismiss") == 0)
		changed = dismiss(&call);
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unrecognized action \"%s\"", action),
				 errhint("Use 'complete' if the side effect happened, 'abandon' if it certainly did not, 'forget' to process the message again, 'dismiss' to drop a delivery with other content.")));

	note_resolution(&call, PG_GETARG_TEXT_PP(2), changed);
	idem_call_end(&call);

	PG_RETURN_BOOL(changed);
}

/*
 * idem_attention_after() → interval
 *
 * The setting, for the view, also in a session that has not used the library
 * yet.
 */
PG_FUNCTION_INFO_V1(idem_attention_after_interval);
Datum
idem_attention_after_interval(PG_FUNCTION_ARGS)
{
	Interval   *result = palloc0(sizeof(Interval));

	result->time = (int64) idem_attention_after * USECS_PER_SEC;
	PG_RETURN_INTERVAL_P(result);
}

/* Whether an unfinished record needs a person, and has not been logged. */
static bool
to_be_logged(const IdemRecord *record, TimestampTz now)
{
	TimestampTz received_at;
	Jsonb	   *detail;

	received_at = DatumGetTimestampTz(record->values[IDEM_RECEIVED_AT]);

	/*
	 * Without a lease nobody knows how long an attempt takes; it is left
	 * alone for one round.
	 */
	if (received_at + (int64) idem_naptime * USECS_PER_SEC > now)
		return false;
	if (idem_lease_runs(record, now) &&
		received_at + (int64) idem_attention_after * USECS_PER_SEC > now)
		return false;
	if (record->isnull[IDEM_DETAIL])
		return true;

	detail = DatumGetJsonbP(record->values[IDEM_DETAIL]);
	return !JB_ROOT_IS_OBJECT(detail) ||
		getKeyJsonValueFromContainer(&detail->root, LOGGED_KEY,
									 strlen(LOGGED_KEY), NULL) == NULL;
}

/* Note in the record that it has been logged; false if somebody has it. */
static bool
mark_logged(Relation table, IdemRecord *record)
{
	Datum		mark = DirectFunctionCall1(jsonb_in,
										   CStringGetDatum("{\"" LOGGED_KEY "\": true}"));

	record->values[IDEM_DETAIL] = record->isnull[IDEM_DETAIL]
		? mark
		: DirectFunctionCall2(jsonb_concat, record->values[IDEM_DETAIL], mark);
	record->isnull[IDEM_DETAIL] = false;
	return idem_update_row(table, &record->tid, IDEM_COLUMNS, record->values,
						   record->isnull, false) == TM_Ok;
}

static void
log_record(const IdemRecord *record)
{
	ereport(LOG,
			(errmsg("message \"%s\" of consumer \"%s\" needs attention",
					idem_message_id_text(record->values[IDEM_MESSAGE_ID]),
					idem_consumer_name(DatumGetInt32(record->values[IDEM_CONSUMER_ID]))),
			 errdetail("Attempt %d, received at %s, is not completed.",
					   DatumGetInt32(record->values[IDEM_ATTEMPT]),
					   timestamptz_to_str(DatumGetTimestampTz(record->values[IDEM_RECEIVED_AT]))),
			 errhint("See idem_attention.")));
}

/*
 * Log what has come to need attention since the last round, once each.
 *
 * A record remembers that it was logged, until it is taken over; so nothing
 * has to be kept between two rounds or two workers.  Waits for nobody.
 */
void
idem_log_attention(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int			logged = 0;

	for (int i = 0; i < IDEM_GENERATIONS; i++)
	{
		const IdemGenerationOids *oids = &idem_catalog()->generations[i];
		Relation	table;
		ListCell   *lc;

		if (!ConditionalLockRelationOid(oids->table, RowExclusiveLock))
			continue;

		table = table_open(oids->table, NoLock);
		foreach(lc, idem_read_rows(table, oids->unfinished_index, NULL, 0))
		{
			IdemRecord	record;

			CHECK_FOR_INTERRUPTS();
			idem_record_read(table, (HeapTuple) lfirst(lc), i, &record);
			if (logged < MAX_LOGGED && to_be_logged(&record, now) &&
				mark_logged(table, &record))
			{
				log_record(&record);
				logged++;
			}
		}
		table_close(table, NoLock);
	}
}

/* Delete the rows of a table whose time is past; those in use stay. */
static void
delete_before(Oid relid, AttrNumber time_column, TimestampTz limit)
{
	Relation	table;
	ListCell   *lc;

	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return;

	table = table_open(relid, NoLock);
	foreach(lc, idem_read_rows(table, InvalidOid, NULL, 0))
	{
		HeapTuple	tuple = (HeapTuple) lfirst(lc);
		bool		isnull;
		Datum		at = heap_getattr(tuple, time_column,
									  RelationGetDescr(table), &isnull);

		if (DatumGetTimestampTz(at) < limit)
			(void) idem_delete_row(table, &tuple->t_self, false);
	}
	table_close(table, NoLock);
}

/*
 * Delete mismatches and decisions that are older than any ordinary record
 * can be, so that the extension's own history does not grow without bound.
 */
void
idem_trim_history(const IdemRing *ring)
{
	int64		kept = 2 * (int64) idem_retention * USECS_PER_SEC;
	TimestampTz limit = GetCurrentTimestamp() - kept;

	limit -= idem_ring_skipped_since(ring, limit);
	delete_before(idem_catalog()->quarantine, IDEM_QUARANTINE_LAST_AT, limit);
	delete_before(idem_catalog()->resolution, RESOLUTION_RESOLVED_AT + 1, limit);
}
