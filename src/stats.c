/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters in shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

void
idem_stats_init(void)
{
}

void
idem_stats_add(int32 consumer_id, const int64 *counts)
{
}

void
idem_stats_claim_ended(const IdemKey *key, bool committed)
{
}

void
idem_stats_emptied(int generation)
{
}
