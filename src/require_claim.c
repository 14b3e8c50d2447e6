/*-------------------------------------------------------------------------
 *
 * require_claim.c
 *	  The trigger that refuses a write outside of a claim's transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/rel.h"

/*
 * Whether this transaction acts for a consumer's message: it has claimed or
 * taken one over, or completed one that was claimed before.
 */
static bool
holds_claim(const int32 *consumer_id)
{
	return idem_tally_get(consumer_id, IDEM_COUNT_CLAIMED) > 0 ||
		idem_tally_get(consumer_id, IDEM_COUNT_TAKEN_OVER) > 0 ||
		idem_tally_get(consumer_id, IDEM_COUNT_COMPLETED) > 0;
}

static bool
holds_required_claim(const Trigger *trigger)
{
	if (trigger->tgnargs == 0)
		return holds_claim(NULL);

	for (int i = 0; i < trigger->tgnargs; i++)
	{
		int32		consumer_id = idem_consumer_id(trigger->tgargs[i]);

		if (consumer_id != IDEM_NO_CONSUMER && holds_claim(&consumer_id))
			return true;
	}
	return false;
}

/* The consumers that the trigger names, for a message. */
static char *
list_consumers(const Trigger *trigger)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < trigger->tgnargs; i++)
		appendStringInfo(&list, "%s\"%s\"",
						 i == 0 ? "" : i < trigger->tgnargs - 1 ? ", " : " or ",
						 trigger->tgargs[i]);
	return list.data;
}

/*
 * idem_require_claim(consumer, ...) → trigger
 *
 * Refuses a write in a transaction that holds no claim of the consumers named
 * as arguments; without arguments, of any consumer.  For rows or statements,
 * any event, at any time.
 *
 * Error: 55000.
 */
PG_FUNCTION_INFO_V1(idem_require_claim);
Datum
idem_require_claim(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"idem_require_claim")));

	if (!holds_required_claim(data->tg_trigger))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 data->tg_trigger->tgnargs == 0
				 ? errmsg("write to \"%s\" in a transaction without a claim",
						  RelationGetRelationName(data->tg_relation))
				 : errmsg("write to \"%s\" in a transaction without a claim of consumer %s",
						  RelationGetRelationName(data->tg_relation),
						  list_consumers(data->tg_trigger)),
				 errdetail("Trigger \"%s\" requires it.",
						   data->tg_trigger->tgname),
				 errhint("Call idem_claim() first, in the same transaction and on the same connection, and write only if it says claimed. A second connection, also one that a pool hands out, is another transaction.")));

	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event)
						   ? data->tg_newtuple : data->tg_trigtuple);
}
