/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Finds the extension's own objects, by OID, once per backend.
 *
 * The functions reach their tables by the schema that the extension was
 * created in, never by search_path.  A relcache invalidation of any of the
 * tables makes the next call look again, which covers DROP EXTENSION and
 * CREATE EXTENSION in a running session; it also tells ring.c and consumer.c
 * to forget what they cached of their tables.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

static IdemCatalog catalog;

/* In the order of IdemOutcome. */
static const char *const outcome_labels[IDEM_OUTCOMES] = {
	"claimed",
	"duplicate",
	"busy",
	"in_progress",
	"needs_reconciliation",
	"mismatch"
};

/* A relation may have changed; InvalidOid: any may have. */
static void
relation_changed(Datum arg, Oid relid)
{
	if (!catalog.valid)
	{
		/* What was cached before the catalog went invalid may be stale too. */
		idem_ring_forget_view();
		idem_consumer_forget_all();
		return;
	}
	if (relid == InvalidOid || relid == catalog.ring)
		idem_ring_forget_view();
	if (relid == InvalidOid || relid == catalog.consumer)
		idem_consumer_forget_all();
	if (relid == InvalidOid || relid == catalog.ring ||
		relid == catalog.consumer)
		catalog.valid = false;
	for (int i = 0; i < IDEM_GENERATIONS; i++)
	{
		if (relid == catalog.generations[i].table)
			catalog.valid = false;
	}
}

/* A role may have got another name, so an owner another OID. */
static void
role_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	idem_consumer_forget_all();
}

void
idem_catalog_init(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, role_changed, (Datum) 0);
}

/* The schema that the extension was created in. */
static Oid
extension_schema(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	Oid			schema = InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum("idem_inbox"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (!OidIsValid(schema))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"idem_inbox\" does not exist in this database"),
				 errhint("Run CREATE EXTENSION idem_inbox.")));
	return schema;
}

static Oid
relation_named(Oid schema, const char *name)
{
	Oid			relid = get_relname_relid(name, schema);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"idem_inbox\" does not exist",
						name),
				 errhint("If the extension's files are newer than its SQL objects, run ALTER EXTENSION idem_inbox UPDATE.")));
	return relid;
}

static Oid
relation_owner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static Oid
outcome_named(Oid type, const char *label)
{
	return GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
						   ObjectIdGetDatum(type), CStringGetDatum(label));
}

static void
load(void)
{
	Oid			type;
	Oid			message_id;

	catalog.schema = extension_schema();
	catalog.ring = relation_named(catalog.schema, "idem_ring");
	catalog.ring_key_index = relation_named(catalog.schema, "idem_ring_pkey");
	catalog.consumer = relation_named(catalog.schema, "idem_consumer");
	catalog.owner = relation_owner(catalog.consumer);
	catalog.consumer_name_index =
		relation_named(catalog.schema, "idem_consumer_name_key");
	catalog.consumer_sequence =
		relation_named(catalog.schema, "idem_consumer_consumer_id_seq");

	catalog.quarantine = relation_named(catalog.schema, "idem_quarantine");
	catalog.quarantine_key_index =
		relation_named(catalog.schema, "idem_quarantine_pkey");
	catalog.resolution = relation_named(catalog.schema, "idem_resolution");

	for (int i = 0; i < IDEM_GENERATIONS; i++)
	{
		IdemGenerationOids *oids = &catalog.generations[i];
		char		name[NAMEDATALEN];

		snprintf(name, NAMEDATALEN, "idem_generation_%d", i + 1);
		oids->table = relation_named(catalog.schema, name);
		snprintf(name, NAMEDATALEN, "idem_generation_%d_pkey", i + 1);
		oids->key_index = relation_named(catalog.schema, name);
		snprintf(name, NAMEDATALEN, "idem_generation_%d_unfinished", i + 1);
		oids->unfinished_index = relation_named(catalog.schema, name);
	}

	type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						   CStringGetDatum("idem_outcome"),
						   ObjectIdGetDatum(catalog.schema));
	for (int i = 0; i < IDEM_OUTCOMES; i++)
		catalog.outcomes[i] = outcome_named(type, outcome_labels[i]);

	message_id = get_atttype(catalog.generations[0].table,
							 IDEM_MESSAGE_ID + 1);
	fmgr_info_copy(&catalog.message_id_eq,
				   &lookup_type_cache(message_id,
									  TYPECACHE_EQ_OPR_FINFO)->eq_opr_finfo,
				   TopMemoryContext);
}

/*
 * The extension's objects in this database.
 *
 * Errors: 42704 without the extension, 42P01 if its SQL objects are older
 * than the library.
 */
const IdemCatalog *
idem_catalog(void)
{
	/* An invalidation that arrives while loading starts it again. */
	while (!catalog.valid)
	{
		AcceptInvalidationMessages();
		catalog.valid = true;
		PG_TRY();
		{
			load();
		}
		PG_CATCH();
		{
			catalog.valid = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	return &catalog;
}
