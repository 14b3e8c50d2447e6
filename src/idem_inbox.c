/*-------------------------------------------------------------------------
 *
 * idem_inbox.c
 *	  Module magic, settings and version.
 *
 * Nothing here raises an error when the library is not preloaded: everything
 * but the worker works without.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include <limits.h>

#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

bool		idem_auto_register = true;
int			idem_lease = 0;
int			idem_retention = 14 * SECS_PER_DAY;
int			idem_naptime = 60;
bool		idem_worker = true;
int			idem_max_result = 8192;
int			idem_attention_after = SECS_PER_HOUR;

void		_PG_init(void);

void
_PG_init(void)
{
	DefineCustomBoolVariable("idem_inbox.auto_register",
							 "Registers an unknown consumer at its first claim.",
							 "If off, a claim for an unknown consumer is an error, which catches typing mistakes.",
							 &idem_auto_register,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("idem_inbox.lease",
							"Lease of a two-phase attempt if neither the call nor the consumer names one.",
							"Zero: an attempt that was left half-done needs reconciliation at once.",
							&idem_lease,
							0, 0, INT_MAX,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idem_inbox.retention",
							"How long records are kept at least.",
							"It must exceed the time in which a message can be redelivered. A record lives between one and two times as long.",
							&idem_retention,
							14 * SECS_PER_DAY, 1, INT_MAX,
							PGC_SUSET,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idem_inbox.naptime",
							"Time between two maintenance runs in a database.",
							"A run counts at most ten times as much towards the age of records, so set it to the interval of the scheduler that calls idem_maintain(), too.",
							&idem_naptime,
							60, 1, SECS_PER_DAY,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idem_inbox.max_result",
							"Largest result that is stored with a record.",
							NULL,
							&idem_max_result,
							8192, 0, MaxAllocSize / 4,
							PGC_SUSET,
							GUC_UNIT_BYTE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idem_inbox.attention_after",
							"A record in progress for longer than this needs a person's attention.",
							"Whatever its lease; one whose lease has ended needs it at once.",
							&idem_attention_after,
							SECS_PER_HOUR, 1, INT_MAX,
							PGC_SUSET,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("idem_inbox.lone_claim",
							 "What happens if an autocommit statement claims and writes nothing else.",
							 "The work that follows is outside the claim's transaction then.",
							 &idem_lone_claim,
							 WARNING,
							 idem_lone_claim_options,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("idem_inbox.require_complete",
							 "Refuses to commit claims that were not declared finished by idem_complete().",
							 "Catches a handler that swallowed its own error.",
							 &idem_require_complete,
							 false,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("idem_inbox.worker",
							 "Maintains every database that has the extension.",
							 "It takes shared_preload_libraries, too. If off, call idem_maintain() from a scheduler.",
							 &idem_worker,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	/* It has settings, too. */
	idem_stats_init();

	MarkGUCPrefixReserved("idem_inbox");

	idem_catalog_init();
	idem_guard_init();
	idem_worker_init();
}

/*
 * idem_version() → text
 *
 * The library's version; pg_extension.extversion is that of the SQL objects.
 */
PG_FUNCTION_INFO_V1(idem_version);
Datum
idem_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(IDEM_VERSION));
}
