/*-------------------------------------------------------------------------
 *
 * failing.c
 *	  Messages whose claims were rolled back, in shared memory: idem_failing.
 *
 * A handler that fails rolls its claim back, and with it every trace of the
 * message; one that fails again and again would be invisible.  So rolled-back
 * claims are counted here, until one is committed.
 *
 * A claim that commits must not pay for that.  A filter, read without a lock,
 * tells nearly all of them that they are not listed.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "common/hashfn.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"

#define FILTER_SIZE 4096

/* A message; consumers: the table that numbers them. */
typedef struct FailingKey
{
	Oid			database;
	Oid			consumers;
	int32		consumer_id;
	int32		length;
	char		message_id[IDEM_MAX_ID_BYTES + 4];	/* zero-padded, and
													 * aligned */
} FailingKey;

typedef struct Failing
{
	FailingKey	key;			/* hash key */
	int64		times;
	TimestampTz first_at;
	TimestampTz last_at;
} Failing;

/* How many listed messages fall on each place, by their hash values. */
typedef struct Filter
{
	pg_atomic_uint32 listed[FILTER_SIZE];
} Filter;

static int	max_failing = 1000;

/* In shared memory; NULL: the library was not preloaded, or nothing is kept. */
static HTAB *all_failing = NULL;
static Filter *filter = NULL;
static LWLock *lock = NULL;		/* guards all_failing */

/* The setting, at the server's start. */
void
idem_failing_init(void)
{
	DefineCustomIntVariable("idem_inbox.max_failing",
							"So many messages are listed in idem_failing.",
							"Those of all databases; 0: none.",
							&max_failing,
							1000, 0, 100000,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
}

/* How much shared memory this takes. */
Size
idem_failing_size(void)
{
	if (max_failing == 0)
		return 0;
	return add_size(MAXALIGN(sizeof(Filter)),
					hash_estimate_size(max_failing, sizeof(Failing)));
}

void
idem_failing_start(LWLock *guard)
{
	HASHCTL		ctl = {
		.keysize = sizeof(FailingKey),
		.entrysize = sizeof(Failing)
	};
	bool		found;

	if (max_failing == 0)
		return;

	lock = guard;
	filter = ShmemInitStruct("idem_inbox failing filter", sizeof(Filter),
							 &found);
	if (!found)
	{
		for (int i = 0; i < FILTER_SIZE; i++)
			pg_atomic_init_u32(&filter->listed[i], 0);
	}
	all_failing = idem_shmem_hash("idem_inbox failing", max_failing, &ctl,
								  HASH_ELEM | HASH_BLOBS);
}

/* Where a message's listing shows in the filter. */
static pg_atomic_uint32 *
filter_place(const FailingKey *key)
{
	uint32		hash = hash_bytes((const unsigned char *) key->message_id,
								  key->length);

	hash = hash_combine(hash, key->consumer_id);
	hash = hash_combine(hash, key->consumers);
	return &filter->listed[hash_combine(hash, key->database) % FILTER_SIZE];
}

static void
make_key(FailingKey *key, Oid consumers, const IdemKey *of)
{
	struct varlena *id = (struct varlena *) DatumGetPointer(of->message_id);

	key->database = MyDatabaseId;
	key->consumers = consumers;
	key->consumer_id = of->consumer_id;
	key->length = VARSIZE_ANY_EXHDR(id);
	memcpy(key->message_id, VARDATA_ANY(id), key->length);
}

/* Take a message off the list. */
static void
unlist(Failing *failing)
{
	pg_atomic_fetch_sub_u32(filter_place(&failing->key), 1);
	hash_search(all_failing, &failing->key, HASH_REMOVE, NULL);
}

/* Make room: what failed least often gives way, and of that the oldest. */
static void
make_room(void)
{
	HASH_SEQ_STATUS status;
	Failing    *failing;
	Failing    *least = NULL;

	hash_seq_init(&status, all_failing);
	while ((failing = hash_seq_search(&status)) != NULL)
	{
		if (least == NULL || failing->times < least->times ||
			(failing->times == least->times &&
			 failing->last_at < least->last_at))
			least = failing;
	}
	Assert(least != NULL);
	unlist(least);
}

static void
count_failure(const FailingKey *key)
{
	Failing    *failing;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	failing = hash_search(all_failing, key, HASH_FIND, NULL);
	if (failing == NULL)
	{
		if (hash_get_num_entries(all_failing) >= max_failing)
			make_room();
		failing = hash_search(all_failing, key, HASH_ENTER_NULL, NULL);
		if (failing != NULL)
		{
			failing->times = 0;
			failing->first_at = GetCurrentTimestamp();
			pg_atomic_fetch_add_u32(filter_place(key), 1);
		}
	}
	if (failing != NULL)
	{
		failing->times++;
		failing->last_at = GetCurrentTimestamp();
	}
	LWLockRelease(lock);
}

/*
 * A claim was committed or rolled back.
 *
 * Called when its (sub)transaction has ended: no error, no catalog.
 */
void
idem_failing_claim_ended(Oid consumers, const IdemKey *key, bool committed)
{
	FailingKey	failing_key;
	Failing    *failing;

	if (all_failing == NULL)
		return;

	make_key(&failing_key, consumers, key);
	if (committed && pg_atomic_read_u32(filter_place(&failing_key)) == 0)
		return;

	/* The hash table compares the whole key. */
	memset(failing_key.message_id + failing_key.length, 0,
		   sizeof(failing_key.message_id) - failing_key.length);
	if (!committed)
	{
		count_failure(&failing_key);
		return;
	}
	LWLockAcquire(lock, LW_EXCLUSIVE);
	failing = hash_search(all_failing, &failing_key, HASH_FIND, NULL);
	if (failing != NULL)
		unlist(failing);
	LWLockRelease(lock);
}

/* Whether a listed message is of this database, and of one consumer. */
static bool
is_of(const Failing *failing, Oid consumers, const int32 *consumer_id)
{
	return failing->key.database == MyDatabaseId &&
		failing->key.consumers == consumers &&
		(consumer_id == NULL || failing->key.consumer_id == *consumer_id);
}

/* Forget what is listed of one consumer of this database; NULL: of all. */
void
idem_failing_forget(Oid consumers, const int32 *consumer_id)
{
	HASH_SEQ_STATUS status;
	Failing    *failing;

	if (all_failing == NULL)
		return;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	hash_seq_init(&status, all_failing);
	while ((failing = hash_seq_search(&status)) != NULL)
	{
		if (is_of(failing, consumers, consumer_id))
			unlist(failing);
	}
	LWLockRelease(lock);
}

/*
 * idem_failing_rows() → setof (consumer_id int, message_id idem_message_id,
 *								times bigint, first_at timestamptz,
 *								last_at timestamptz)
 *
 * For the view idem_failing.
 */
PG_FUNCTION_INFO_V1(idem_failing_rows);
Datum
idem_failing_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			consumers = idem_catalog()->consumer;
	HASH_SEQ_STATUS status;
	Failing    *failing;

	InitMaterializedSRF(fcinfo, 0);
	if (all_failing == NULL)
		return (Datum) 0;

	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&status, all_failing);
	while ((failing = hash_seq_search(&status)) != NULL)
	{
		text	   *id;
		Datum		values[5];
		bool		isnull[lengthof(values)] = {0};

		if (!is_of(failing, consumers, NULL))
			continue;

		id = cstring_to_text_with_len(failing->key.message_id,
									  failing->key.length);
		values[0] = Int32GetDatum(failing->key.consumer_id);
		values[1] = PointerGetDatum(id);
		values[2] = Int64GetDatum(failing->times);
		values[3] = TimestampTzGetDatum(failing->first_at);
		values[4] = TimestampTzGetDatum(failing->last_at);
		idem_row_put(rsinfo, lengthof(values), values, isnull);
	}
	LWLockRelease(lock);

	return (Datum) 0;
}
