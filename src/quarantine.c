/*-------------------------------------------------------------------------
 *
 * quarantine.c
 *	  Different content under a known id: kept, counted, logged, notified.
 *
 * One row a key and content; a redelivery counts up.  Nothing here makes a
 * bounded claim wait: if another open transaction holds the row, its own
 * delivery stands for both.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/table.h"
#include "commands/async.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/rel.h"

/* Columns of idem_quarantine, in C's numbering. */
enum
{
	QUARANTINE_CONSUMER_ID,
	QUARANTINE_MESSAGE_ID,
	QUARANTINE_FINGERPRINT,
	QUARANTINE_KNOWN_FINGERPRINT,
	QUARANTINE_DELIVERIES,
	QUARANTINE_FIRST_AT,
	QUARANTINE_LAST_AT,
	QUARANTINE_DELIVERED_TO,
	QUARANTINE_DISMISSED_AT,
	QUARANTINE_COLUMNS
};

StaticAssertDecl(QUARANTINE_LAST_AT + 1 == IDEM_QUARANTINE_LAST_AT,
				 "column number in idem_inbox.h");

#define KEY_COLUMNS 3

/* A channel's payload may not be longer. */
#define MAX_PAYLOAD 7999

static void
notify(const char *message_id, const char *consumer)
{
	StringInfoData payload;

	initStringInfo(&payload);
	appendStringInfoString(&payload, "{\"consumer\": ");
	escape_json(&payload, consumer);
	if (payload.len + 6 * strlen(message_id) + 32 <= MAX_PAYLOAD)
	{
		appendStringInfoString(&payload, ", \"message_id\": ");
		escape_json(&payload, message_id);
	}
	appendStringInfoChar(&payload, '}');
	Async_Notify("idem_inbox", payload.data);
}

/* Count another delivery in the row; false to look again. */
static bool
count_delivery(Relation table, HeapTuple tuple, bool wait)
{
	Datum		values[QUARANTINE_COLUMNS];
	bool		isnull[QUARANTINE_COLUMNS];
	TM_Result	result;

	idem_row_read(table, tuple, QUARANTINE_COLUMNS, values, isnull);
	values[QUARANTINE_DELIVERIES] =
		Int64GetDatum(DatumGetInt64(values[QUARANTINE_DELIVERIES]) + 1);
	values[QUARANTINE_LAST_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[QUARANTINE_DELIVERED_TO] = idem_describe_caller();
	isnull[QUARANTINE_DISMISSED_AT] = true;
	result = idem_update_row(table, &tuple->t_self, QUARANTINE_COLUMNS, values,
							 isnull, wait);

	return result == TM_Ok || result == TM_WouldBlock;
}

/*
 * Record that a message was delivered with other content than its record's.
 */
void
idem_quarantine(const IdemCall *call, const IdemKey *key,
				Datum known_fingerprint, Datum fingerprint,
				const IdemPatience *patience)
{
	const IdemCatalog *catalog = idem_catalog();
	Relation	table = table_open(catalog->quarantine, RowExclusiveLock);
	char	   *message_id = text_to_cstring(call->message_id);
	Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());
	Datum		values[QUARANTINE_COLUMNS] = {
		Int32GetDatum(key->consumer_id), key->message_id, fingerprint,
		known_fingerprint, Int64GetDatum(1), now, now, idem_describe_caller()
	};
	bool		isnull[QUARANTINE_COLUMNS] = {
		[QUARANTINE_DISMISSED_AT] = true
	};
	ScanKeyData keys[KEY_COLUMNS];
	bool		done = false;

	idem_key_scan_keys(keys, key);
	ScanKeyInit(&keys[2], 3, BTEqualStrategyNumber, F_BYTEAEQ, fingerprint);

	while (!done)
	{
		Relation	index = index_open(catalog->quarantine_key_index,
									   AccessShareLock);
		TransactionId pending;
		HeapTuple	tuple;
		ItemPointerData tid;
		IdemProbe	probe;

		probe = idem_probe_unique(table, index, keys, KEY_COLUMNS, NULL,
								  &tuple, &pending);
		index_close(index, AccessShareLock);
		switch (probe)
		{
			case IDEM_FOUND:
				done = count_delivery(table, tuple, !patience->bounded);
				break;
			case IDEM_PENDING:
				done = !idem_wait_for_xact(pending, patience);
				break;
			case IDEM_NOTHING:
				done = idem_insert_unique(table, QUARANTINE_COLUMNS,
										  values, isnull,
										  catalog->quarantine_key_index,
										  InvalidOid, keys, KEY_COLUMNS,
										  &tid);
				break;
		}
	}
	table_close(table, NoLock);

	notify(message_id, call->consumer_name);
	ereport(LOG,
			(errmsg("message \"%s\" was delivered to consumer \"%s\" with other content than before",
					message_id, call->consumer_name),
			 errhint("See idem_attention.")));
}

/*
 * Dismiss all that is quarantined under a message's id; false if there is
 * nothing.
 */
bool
idem_quarantine_dismiss(const IdemKey *key)
{
	const IdemCatalog *catalog = idem_catalog();
	Relation	table = table_open(catalog->quarantine, RowExclusiveLock);
	bool		dismissed = false;
	ScanKeyData keys[2];
	List	   *rows;
	ListCell   *lc;

	idem_key_scan_keys(keys, key);
	rows = idem_read_rows(table, catalog->quarantine_key_index, keys, 2);
	foreach(lc, rows)
	{
		HeapTuple	tuple = (HeapTuple) lfirst(lc);
		Datum		values[QUARANTINE_COLUMNS];
		bool		isnull[QUARANTINE_COLUMNS];

		idem_row_read(table, tuple, QUARANTINE_COLUMNS, values, isnull);
		if (!isnull[QUARANTINE_DISMISSED_AT])
			continue;

		values[QUARANTINE_DISMISSED_AT] =
			TimestampTzGetDatum(GetCurrentTimestamp());
		isnull[QUARANTINE_DISMISSED_AT] = false;
		if (idem_update_row(table, &tuple->t_self, QUARANTINE_COLUMNS, values,
							isnull, true) == TM_Ok)
			dismissed = true;
	}
	table_close(table, NoLock);

	return dismissed;
}
