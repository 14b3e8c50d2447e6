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

PG_MODULE_MAGIC;

bool		idem_auto_register = true;
int			idem_lease = 0;

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

	MarkGUCPrefixReserved("idem_inbox");

	idem_catalog_init();
	idem_guard_init();
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
