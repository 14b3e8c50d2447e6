/*-------------------------------------------------------------------------
 *
 * call.c
 *	  What the SQL functions share: arguments, their checks, and the error
 *	  context that names message and consumer in every error.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "common/int.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/jsonb.h"

/* The message id, or the beginning of what is too long to be one. */
static char *
printable_id(text *message_id)
{
	char	   *s = VARDATA_ANY(message_id);
	int			len = VARSIZE_ANY_EXHDR(message_id);

	if (len <= IDEM_MAX_ID_BYTES)
		return pnstrdup(s, len);
	return psprintf("%.*s...", pg_mbcliplen(s, len, 40), s);
}

static void
name_call(void *arg)
{
	IdemCall   *call = (IdemCall *) arg;

	if (call->position > 0)
		errcontext("%s for message \"%s\", element %d of message_ids, and consumer \"%s\"",
				   call->function, printable_id(call->message_id),
				   call->position, call->consumer_name);
	else if (call->message_id && call->consumer_name)
		errcontext("%s for message \"%s\" and consumer \"%s\"",
				   call->function, printable_id(call->message_id),
				   call->consumer_name);
	else if (call->message_id)
		errcontext("%s for message \"%s\"",
				   call->function, printable_id(call->message_id));
	else if (call->consumer_name)
		errcontext("%s for consumer \"%s\"",
				   call->function, call->consumer_name);
}

/*
 * Refuse a call that writes where PostgreSQL refuses an INSERT: in recovery,
 * in a read-only transaction, in a parallel worker.  Every such call is
 * refused, also one that would have found nothing to write.
 *
 * Error: 25006.
 */
void
idem_prevent_if_read_only(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/*
 * The argument as a consumer's name.
 *
 * Errors: 22004 for NULL, 22023 if empty or longer than 1024 bytes.
 */
static char *
consumer_arg(FunctionCallInfo fcinfo, int argno)
{
	text	   *name;
	int			len;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("consumer must not be null"),
				 errhint("Every subscriber has a name of its own, such as 'inventory.reserve-stock'.")));

	name = PG_GETARG_TEXT_PP(argno);
	len = VARSIZE_ANY_EXHDR(name);
	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer must not be empty"),
				 errhint("Every subscriber has a name of its own, such as 'inventory.reserve-stock'.")));
	if (len > IDEM_MAX_ID_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer is too long"),
				 errdetail("It has %d bytes, %d are allowed; it begins with \"%.*s\".",
						   len, IDEM_MAX_ID_BYTES,
						   pg_mbcliplen(VARDATA_ANY(name), len, 40),
						   VARDATA_ANY(name))));
	return text_to_cstring(name);
}

/*
 * Start a call about a message and a consumer, or a consumer alone.
 *
 * message_argno, consumer_argno: which arguments they are; -1: none is a
 * message id.
 * Errors: 22004 for NULL, 22023 for a bad consumer name, 25006 if the call
 * writes and may not.
 */
void
idem_call_start(IdemCall *call, const char *function, FunctionCallInfo fcinfo,
				int message_argno, int consumer_argno, bool writes)
{
	call->function = function;
	call->message_id = NULL;
	call->position = 0;
	call->consumer_name = NULL;
	if (message_argno >= 0 && !PG_ARGISNULL(message_argno))
		call->message_id = PG_GETARG_TEXT_PP(message_argno);
	call->context.callback = name_call;
	call->context.arg = call;
	call->context.previous = error_context_stack;
	error_context_stack = &call->context;

	call->consumer_name = consumer_arg(fcinfo, consumer_argno);
	if (message_argno >= 0 && call->message_id == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message id must not be null"),
				 errhint("Pass the id that the producer gave the message.")));
	if (writes)
		idem_prevent_if_read_only(function);

	/* As a statement on the tables would, by locking them. */
	AcceptInvalidationMessages();
}

void
idem_call_end(IdemCall *call)
{
	error_context_stack = call->context.previous;
}

static TimestampTz
add_interval(TimestampTz start, const Interval *interval)
{
	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												   TimestampTzGetDatum(start),
												   IntervalPGetDatum(interval)));
}

/*
 * The argument as how long to wait: until that interval from now, NULL
 * without bound.
 *
 * Error: 22023 if negative.
 */
void
idem_patience_arg(FunctionCallInfo fcinfo, int argno, IdemPatience *patience)
{
	TimestampTz now;

	patience->bounded = !PG_ARGISNULL(argno);
	if (!patience->bounded)
		return;

	now = GetCurrentTimestamp();
	patience->until = add_interval(now, PG_GETARG_INTERVAL_P(argno));
	if (patience->until < now)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_wait must not be negative"),
				 errhint("Use '0' not to wait at all, NULL to wait as long as lock_timeout lets it.")));
}

/*
 * The argument as a lease or a retention; NULL if not given.
 *
 * Error: 22023 if shorter than so many seconds.
 */
const Interval *
idem_interval_arg(FunctionCallInfo fcinfo, int argno, const char *name,
				  int least_seconds)
{
	TimestampTz now = GetCurrentTimestamp();
	const Interval *interval;

	if (PG_ARGISNULL(argno))
		return NULL;

	interval = PG_GETARG_INTERVAL_P(argno);
	if (add_interval(now, interval) < now + least_seconds * USECS_PER_SEC)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 least_seconds == 0
				 ? errmsg("%s must not be negative", name)
				 : errmsg("%s must be at least %d s", name, least_seconds)));
	return interval;
}

/*
 * An interval's length, a day being 24 hours and a month 30 days; the largest
 * number if it is longer.
 */
int64
idem_interval_microseconds(const Interval *interval)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;
	int64		result;

	if (pg_mul_s64_overflow(days, USECS_PER_DAY, &result) ||
		pg_add_s64_overflow(result, interval->time, &result))
		return days < 0 ? PG_INT64_MIN : PG_INT64_MAX;
	return result;
}

/*
 * When a lease taken now ends: the call's, else the consumer's, else the
 * setting's.
 */
TimestampTz
idem_lease_end(const Interval *lease, const IdemConsumer *consumer,
			   TimestampTz now)
{
	if (lease == NULL && consumer->has_lease)
		lease = &consumer->lease;
	if (lease != NULL)
		return add_interval(now, lease);
	return TimestampTzPlusMilliseconds(now, idem_lease);
}

/* Whether a record's lease has not ended yet. */
bool
idem_lease_runs(const IdemRecord *record, TimestampTz now)
{
	return !record->isnull[IDEM_LEASE_UNTIL] &&
		DatumGetTimestampTz(record->values[IDEM_LEASE_UNTIL]) > now;
}

/* Who calls, for the person who finds the attempt left over; a jsonb. */
Datum
idem_describe_caller(void)
{
	Datum		address;
	const char *pairs[][2] = {
		{"role", GetUserNameFromId(GetUserId(), false)},
		{"application_name", application_name},
		{"client_addr", NULL}
	};
	StringInfoData object;

	LOCAL_FCINFO(fcinfo, 0);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	address = inet_client_addr(fcinfo);
	if (!fcinfo->isnull)
		pairs[2][1] = TextDatumGetCString(DirectFunctionCall1(network_host,
															  address));

	initStringInfo(&object);
	for (size_t i = 0; i < lengthof(pairs); i++)
	{
		appendStringInfo(&object, "%s\"%s\": ", i == 0 ? "{" : ", ",
						 pairs[i][0]);
		if (pairs[i][1] != NULL)
			escape_json(&object, pairs[i][1]);
		else
			appendStringInfoString(&object, "null");
	}
	appendStringInfoChar(&object, '}');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(object.data));
}
