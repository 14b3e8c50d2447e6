/*-------------------------------------------------------------------------
 *
 * import.c
 *	  idem_import(): records of another inbox, for those who move to this one.
 *
 * An imported record arbitrates as a claim does, so consumers need not stop:
 * whichever comes first is the record, and a claim that meets an import which
 * has not committed yet waits for it.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "utils/builtins.h"

/*
 * The argument as when the message was received; now, if it is NULL or in the
 * future.
 *
 * Error: 22008 if it is infinite.
 */
static TimestampTz
received_at_arg(FunctionCallInfo fcinfo, int argno)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz received_at;

	if (PG_ARGISNULL(argno))
		return now;

	received_at = PG_GETARG_TIMESTAMPTZ(argno);
	if (TIMESTAMP_NOT_FINITE(received_at))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("received_at must be finite"),
				 errhint("Pass NULL if nobody knows; the record is kept for the retention from now on then.")));
	return Min(received_at, now);
}

/*
 * idem_import(message_id text, consumer text, received_at timestamptz,
 *			   fingerprint bytea) → bool
 *
 * False: the message has a record already, which stays as it is.
 */
PG_FUNCTION_INFO_V1(idem_import);
Datum
idem_import(PG_FUNCTION_ARGS)
{
	IdemClaim	claim = {.imported = true};
	IdemOutcome outcome;

	idem_call_start(&claim.call, "idem_import()", fcinfo, 0, 1, true);
	claim.key.message_id = idem_message_id_make(claim.call.message_id);
	claim.received_at = received_at_arg(fcinfo, 2);
	if (!PG_ARGISNULL(3))
		claim.fingerprint = idem_check_fingerprint(PG_GETARG_BYTEA_PP(3));
	outcome = idem_claim_message(&claim);
	idem_call_end(&claim.call);

	PG_RETURN_BOOL(outcome == IDEM_CLAIMED);
}
