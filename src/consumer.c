/*-------------------------------------------------------------------------
 *
 * consumer.c
 *	  The consumer registry: number, policy, and who may act for it.
 *
 * Consumers are few and change seldom, so each backend keeps those it met.
 * A consumer's row is inserted by its first claim, in the claiming
 * transaction, under the same arbitration as the claim itself: two first
 * claims of one new consumer wait for each other as two claims of one message
 * do.  Any other change comes as plain SQL on the table, whose trigger
 * invalidates every backend's cache.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* Columns of idem_consumer, in C's numbering. */
enum
{
	CONSUMER_ID,
	CONSUMER_NAME,
	CONSUMER_RETENTION,
	CONSUMER_LEASE,
	CONSUMER_OWNER,
	CONSUMER_CREATED_AT,
	CONSUMER_COLUMNS
};

typedef struct CachedConsumer
{
	char		name[IDEM_MAX_ID_BYTES + 1];	/* hash key */
	IdemConsumer consumer;
} CachedConsumer;

static HTAB *cache = NULL;
static bool cache_stale = false;

/*
 * Forget all cached consumers.  Called from invalidation callbacks, also in
 * the middle of a look-up, so the memory is given back at the next one.
 */
void
idem_consumer_forget_all(void)
{
	cache_stale = true;
}

static CachedConsumer *
cache_lookup(const char *name, HASHACTION action)
{
	if (cache_stale && cache != NULL)
	{
		hash_destroy(cache);
		cache = NULL;
	}
	if (cache == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = IDEM_MAX_ID_BYTES + 1;
		ctl.entrysize = sizeof(CachedConsumer);
		ctl.hcxt = CacheMemoryContext;
		cache = hash_create("idem_inbox consumers", 32, &ctl,
							HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
		cache_stale = false;
	}
	return hash_search(cache, name, action, NULL);
}

/* Fill in what calls need of a row of idem_consumer. */
static void
read_consumer(Relation table, HeapTuple tuple, IdemConsumer *consumer)
{
	Datum		values[CONSUMER_COLUMNS];
	bool		isnull[CONSUMER_COLUMNS];

	idem_row_read(table, tuple, CONSUMER_COLUMNS, values, isnull);
	consumer->id = DatumGetInt32(values[CONSUMER_ID]);
	consumer->owner =
		get_role_oid(NameStr(*DatumGetName(values[CONSUMER_OWNER])), true);
	consumer->has_lease = !isnull[CONSUMER_LEASE];
	if (consumer->has_lease)
		consumer->lease = *DatumGetIntervalP(values[CONSUMER_LEASE]);
}

/* Scan key for a consumer's name, which is column attno of what is scanned. */
static void
name_key(ScanKey key, AttrNumber attno, const char *name)
{
	ScanKeyEntryInitialize(key, 0, attno, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(name));
}

/*
 * A copy of the row of a committed consumer, or this transaction's; NULL if
 * there is none.
 */
static HeapTuple
find_row(Relation table, const char *name)
{
	ScanKeyData key;
	List	   *rows;

	name_key(&key, CONSUMER_NAME + 1, name);
	rows = idem_read_rows(table, idem_catalog()->consumer_name_index, &key, 1);
	return rows == NIL ? NULL : (HeapTuple) linitial(rows);
}

static bool
find_in_table(const char *name, IdemConsumer *consumer)
{
	Relation	table = table_open(idem_catalog()->consumer, AccessShareLock);
	HeapTuple	tuple = find_row(table, name);

	if (tuple != NULL)
	{
		read_consumer(table, tuple, consumer);
		heap_freetuple(tuple);
	}
	table_close(table, AccessShareLock);

	return tuple != NULL;
}

/* Only the owner's members may act for a consumer. */
static void
check_owner(const char *name, const IdemConsumer *consumer)
{
	if (OidIsValid(consumer->owner)
		? has_privs_of_role(GetUserId(), consumer->owner)
		: superuser())
		return;

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for consumer \"%s\"", name),
			 OidIsValid(consumer->owner)
			 ? errdetail("It belongs to role \"%s\", of which \"%s\" is no member.",
						 GetUserNameFromId(consumer->owner, false),
						 GetUserNameFromId(GetUserId(), false))
			 : errdetail("The role that it belongs to does not exist."),
			 OidIsValid(consumer->owner)
			 ? errhint("Grant the owner's role, or change the owner with idem_register().")
			 : errhint("A superuser can change the owner with idem_register().")));
}

/* Find a consumer, whoever owns it; false if there is none of this name. */
static bool
find_cached(const char *name, IdemConsumer *consumer)
{
	CachedConsumer *cached = cache_lookup(name, HASH_FIND);

	if (cached == NULL)
	{
		if (!find_in_table(name, consumer))
			return false;

		/* Not what an invalidation has overtaken while it was read. */
		if (!cache_stale)
			cache_lookup(name, HASH_ENTER)->consumer = *consumer;
	}
	else
		*consumer = cached->consumer;
	return true;
}

/*
 * Find a consumer that the current role may act for; false if there is none
 * of this name.
 *
 * Error: 42501 if it belongs to another role.
 */
bool
idem_consumer_find(const char *name, IdemConsumer *consumer)
{
	if (!find_cached(name, consumer))
		return false;
	check_owner(name, consumer);
	return true;
}

/* A consumer's number, whoever owns it; IDEM_NO_CONSUMER: there is none. */
int32
idem_consumer_id(const char *name)
{
	IdemConsumer consumer;

	return find_cached(name, &consumer) ? consumer.id : IDEM_NO_CONSUMER;
}

/* The name of a consumer by its number, for the log. */
const char *
idem_consumer_name(int32 id)
{
	Relation	table = table_open(idem_catalog()->consumer, AccessShareLock);
	const char *name = "(deleted)";
	ScanKeyData key;
	List	   *rows;

	ScanKeyInit(&key, CONSUMER_ID + 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	rows = idem_read_rows(table, InvalidOid, &key, 1);
	if (rows != NIL)
	{
		bool		isnull;
		Datum		datum = heap_getattr((HeapTuple) linitial(rows),
										 CONSUMER_NAME + 1,
										 RelationGetDescr(table), &isnull);

		name = TextDatumGetCString(datum);
	}
	table_close(table, AccessShareLock);

	return name;
}

/*
 * The consumers whose records are kept longer than so many microseconds, as a
 * list of IdemPolicy.
 */
List *
idem_consumers_kept_longer(int64 microseconds)
{
	Relation	table = table_open(idem_catalog()->consumer, AccessShareLock);
	List	   *policies = NIL;
	ListCell   *lc;

	foreach(lc, idem_read_rows(table, InvalidOid, NULL, 0))
	{
		Datum		values[CONSUMER_COLUMNS];
		bool		isnull[CONSUMER_COLUMNS];
		Interval   *retention;
		IdemPolicy *policy;

		idem_row_read(table, (HeapTuple) lfirst(lc), CONSUMER_COLUMNS,
					  values, isnull);
		if (isnull[CONSUMER_RETENTION])
			continue;
		retention = DatumGetIntervalP(values[CONSUMER_RETENTION]);
		if (idem_interval_microseconds(retention) <= microseconds)
			continue;

		policy = palloc(sizeof(IdemPolicy));
		policy->consumer_id = DatumGetInt32(values[CONSUMER_ID]);
		policy->retention = *retention;
		policies = lappend(policies, policy);
	}
	table_close(table, AccessShareLock);

	return policies;
}

/*
 * The next number that no consumer has: where logical replication copied the
 * consumers, the sequence stayed behind.
 */
static int32
next_number(Relation table)
{
	int32		id;
	ScanKeyData key;

	do
	{
		id = (int32) nextval_internal(idem_catalog()->consumer_sequence, false);
		ScanKeyInit(&key, CONSUMER_ID + 1, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(id));
	} while (idem_read_rows(table, InvalidOid, &key, 1) != NIL);

	return id;
}

/*
 * Insert the consumer; IDEM_FOUND: it is there now, whoever inserted it,
 * IDEM_PENDING: another open transaction is about to.
 */
static IdemProbe
register_new(const char *name, TransactionId *pending)
{
	const IdemCatalog *catalog = idem_catalog();
	Relation	table = table_open(catalog->consumer, RowExclusiveLock);
	Relation	index = index_open(catalog->consumer_name_index,
								   AccessShareLock);
	ScanKeyData key;
	IdemProbe	probe;

	name_key(&key, 1, name);
	probe = idem_probe_unique(table, index, &key, 1, NULL, NULL, pending);
	index_close(index, AccessShareLock);
	if (probe == IDEM_NOTHING)
	{
		Datum		values[CONSUMER_COLUMNS] = {0};
		bool		isnull[CONSUMER_COLUMNS] = {0};
		NameData	owner;
		ItemPointerData tid;

		namestrcpy(&owner, GetUserNameFromId(GetUserId(), false));
		values[CONSUMER_ID] = Int32GetDatum(next_number(table));
		values[CONSUMER_NAME] = CStringGetTextDatum(name);
		isnull[CONSUMER_RETENTION] = true;
		isnull[CONSUMER_LEASE] = true;
		values[CONSUMER_OWNER] = NameGetDatum(&owner);
		values[CONSUMER_CREATED_AT] =
			TimestampTzGetDatum(GetCurrentTransactionStartTimestamp());
		(void) idem_insert_unique(table, CONSUMER_COLUMNS, values, isnull,
								  catalog->consumer_name_index, InvalidOid,
								  &key, 1, &tid);

		/*
		 * If this (sub)transaction rolls back, so must the cache: local
		 * invalidations are repeated at abort once a command has processed
		 * them.
		 */
		CacheInvalidateRelcache(table);
		CommandCounterIncrement();
		probe = IDEM_FOUND;
	}
	table_close(table, NoLock);
	return probe;
}

/* Find or register a consumer, whatever the settings say. */
static bool
find_or_register(const char *name, const IdemPatience *patience,
				 IdemConsumer *consumer)
{
	while (!idem_consumer_find(name, consumer))
	{
		TransactionId pending;

		CHECK_FOR_INTERRUPTS();
		if (register_new(name, &pending) == IDEM_PENDING &&
			!idem_wait_for_xact(pending, patience))
			return false;
	}
	return true;
}

/*
 * Find a consumer that the current role may act for, or register it for the
 * current role; false if patience ran out while another open transaction was
 * about to register it.
 *
 * Errors: 42501 if it belongs to another role; 42704 if there is none and
 * idem_inbox.auto_register is off.
 */
bool
idem_consumer_find_or_register(const char *name,
							   const IdemPatience *patience,
							   IdemConsumer *consumer)
{
	if (idem_consumer_find(name, consumer))
		return true;

	if (!idem_auto_register)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("consumer \"%s\" is not registered", name),
				 errdetail("The setting idem_inbox.auto_register is off."),
				 errhint("Check the spelling, or register it with idem_register().")));

	return find_or_register(name, patience, consumer);
}

/*
 * idem_register(consumer text, retention interval, lease interval, owner name)
 *		→ void
 *
 * Creates a consumer or changes its policy.  What is not named stays: losing
 * a retention by naming only a lease would lose records.
 */
PG_FUNCTION_INFO_V1(idem_register);
Datum
idem_register(PG_FUNCTION_ARGS)
{
	const IdemPatience patient = {.bounded = false};
	IdemCall	call;
	const Interval *retention;
	const Interval *lease;
	char	   *name;
	Relation	table;
	HeapTuple	tuple;
	IdemConsumer consumer;
	Datum		values[CONSUMER_COLUMNS];
	bool		isnull[CONSUMER_COLUMNS];

	idem_call_start(&call, "idem_register()", fcinfo, -1, 0, true);
	name = call.consumer_name;
	retention = idem_interval_arg(fcinfo, 1, "retention", 1);
	lease = idem_interval_arg(fcinfo, 2, "lease", 0);
	if (!PG_ARGISNULL(3))
	{
		Oid			owner = get_role_oid(NameStr(*PG_GETARG_NAME(3)), false);

		if (!has_privs_of_role(GetUserId(), owner))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("must be member of role \"%s\"",
							NameStr(*PG_GETARG_NAME(3))),
					 errdetail("Consumer \"%s\" would belong to it.", name)));
	}

	table = table_open(idem_catalog()->consumer, RowExclusiveLock);
	do
	{
		(void) find_or_register(name, &patient, &consumer);
		tuple = find_row(table, name);
		if (tuple == NULL)
			continue;			/* deleted meanwhile */

		idem_row_read(table, tuple, CONSUMER_COLUMNS, values, isnull);
		if (retention != NULL)
		{
			values[CONSUMER_RETENTION] = IntervalPGetDatum(retention);
			isnull[CONSUMER_RETENTION] = false;
		}
		if (lease != NULL)
		{
			values[CONSUMER_LEASE] = IntervalPGetDatum(lease);
			isnull[CONSUMER_LEASE] = false;
		}
		if (!PG_ARGISNULL(3))
			values[CONSUMER_OWNER] = PG_GETARG_DATUM(3);
	} while (tuple == NULL ||
			 idem_update_row(table, &tuple->t_self, CONSUMER_COLUMNS, values,
							 isnull, true) != TM_Ok);
	CacheInvalidateRelcache(table);
	CommandCounterIncrement();
	table_close(table, NoLock);
	idem_call_end(&call);

	PG_RETURN_VOID();
}

/*
 * idem_invalidate() → trigger
 *
 * On idem_consumer and idem_ring: makes every backend forget what it cached
 * of the table, once this transaction commits.
 */
PG_FUNCTION_INFO_V1(idem_invalidate);
Datum
idem_invalidate(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"idem_invalidate")));

	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}
