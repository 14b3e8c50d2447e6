/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  idem_claim_many(): a broker's batch in one call.
 *
 * Messages are claimed in key order, whatever their order in the batch: two
 * batches that overlap then meet the first message they share in the same
 * state, and the one that waits there holds none that the other still needs.
 * So batches of one consumer never deadlock, as long as a transaction claims
 * one batch.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

/* One message of a batch. */
typedef struct Element
{
	int			position;		/* in the batch, from 0 */
	Datum		key;			/* its idem_message_id */
} Element;

typedef struct Batch
{
	IdemClaim	claim;			/* what all have in common */
	int			n;
	Datum	   *ids;			/* as given */
	bytea	  **fingerprints;	/* as given; NULL: there are none */
	Element    *elements;		/* in key order */
	IdemOutcome *outcomes;		/* in the order given */
	IdemRun    *run;
} Batch;

static bytea *
fingerprint_of(const Batch *batch, const Element *element)
{
	return batch->fingerprints != NULL
		? batch->fingerprints[element->position] : NULL;
}

/*
 * The elements of an array argument, or NULL for a NULL argument.
 *
 * Error: 2202E if it has more than one dimension.
 */
static Datum *
array_arg(FunctionCallInfo fcinfo, int argno, const char *name, Oid type,
		  bool **isnull, int *n)
{
	ArrayType  *array;
	Datum	   *elements;

	if (PG_ARGISNULL(argno))
		return NULL;

	array = PG_GETARG_ARRAYTYPE_P(argno);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must have one dimension", name),
				 errdetail("It has %d.", ARR_NDIM(array))));
	deconstruct_array(array, type, -1, false, TYPALIGN_INT, &elements, isnull,
					  n);
	return elements;
}

/* Say in errors which element they are about; ids NULL: none. */
static void
name_element(IdemCall *call, const Datum *ids, int position)
{
	call->message_id = ids != NULL ? DatumGetTextPP(ids[position]) : NULL;
	call->position = position + 1;
}

/* By key; those of one key as they came. */
static int
compare_elements(const void *a, const void *b)
{
	const Element *x = (const Element *) a;
	const Element *y = (const Element *) b;
	int			cmp = idem_message_id_compare(x->key, y->key);

	return cmp != 0 ? cmp : x->position - y->position;
}

/*
 * The batch's messages, in key order.
 *
 * Errors: 22004 for NULL, 22023 for what is no message id.
 */
static Element *
sort_batch(IdemCall *call, Datum *ids, bool *isnull, int n)
{
	Element    *elements = palloc(n * sizeof(Element));

	for (int i = 0; i < n; i++)
	{
		if (isnull[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("message id must not be null"),
					 errdetail("Element %d of message_ids is null.", i + 1),
					 errhint("Pass the id that the producer gave the message.")));
		name_element(call, ids, i);
		elements[i].position = i;
		elements[i].key = idem_message_id_make(call->message_id);
	}
	name_element(call, NULL, -1);
	qsort(elements, n, sizeof(Element), compare_elements);
	return elements;
}

/*
 * Claim those that come next in key order, up to the first that is not new;
 * returns how many were claimed.
 */
static int
claim_new_ones(Batch *batch, int first)
{
	IdemClaim  *claim = &batch->claim;
	IdemRun    *run = batch->run;
	bytea	   *fingerprints[IDEM_RUN_LENGTH];
	int			claimed;

	if (!idem_consumer_find_or_register(claim->call.consumer_name,
										&claim->patience, &claim->consumer))
		return 0;

	/* An id that comes again is no new one any more. */
	for (int i = first; i < batch->n && run->length < IDEM_RUN_LENGTH; i++)
	{
		const Element *element = &batch->elements[i];

		if (i > first &&
			idem_message_id_compare(element->key, element[-1].key) == 0)
			break;
		fingerprints[run->length] = fingerprint_of(batch, element);
		run->keys[run->length].consumer_id = claim->consumer.id;
		run->keys[run->length].message_id = element->key;
		run->length++;
	}
	claimed = idem_claim_run(claim, run, fingerprints);
	for (int i = 0; i < claimed; i++)
		batch->outcomes[batch->elements[first + i].position] = IDEM_CLAIMED;
	idem_run_clear(run);

	return claimed;
}

/* Claim one message the careful way. */
static void
claim_one(Batch *batch, const Element *element)
{
	IdemClaim  *claim = &batch->claim;

	name_element(&claim->call, batch->ids, element->position);
	claim->key.message_id = element->key;
	claim->fingerprint = fingerprint_of(batch, element);
	batch->outcomes[element->position] = idem_claim_message(claim);
	name_element(&claim->call, NULL, -1);
}

/*
 * Claim the batch.
 *
 * Where messages turn out not to be new, the next ones probably are not
 * either, and trying would cost a search each; so it is tried less and less.
 */
static void
claim_batch(Batch *batch)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idem_claim_many run",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old_context = MemoryContextSwitchTo(context);
	int			pause = 1;

	for (int i = 0; i < batch->n;)
	{
		int			claimed = claim_new_ones(batch, i);

		pause = claimed > 0 ? 1 : Min(2 * pause, IDEM_RUN_LENGTH);
		i += claimed;
		for (int careful = 0; careful < pause && i < batch->n; careful++)
		{
			MemoryContextReset(context);
			claim_one(batch, &batch->elements[i++]);
		}
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
}

/*
 * The argument as one fingerprint a message, NULL where it is unknown; NULL
 * if not given.
 *
 * Errors: 2202E if they are not as many, 22023 for what is no fingerprint.
 */
static bytea **
fingerprints_arg(FunctionCallInfo fcinfo, int argno, Batch *batch)
{
	IdemCall   *call = &batch->claim.call;
	bool	   *isnull;
	int			n;
	Datum	   *elements = array_arg(fcinfo, argno, "fingerprints", BYTEAOID,
									 &isnull, &n);
	bytea	  **fingerprints;

	if (elements == NULL)
		return NULL;
	if (n != batch->n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("there must be as many fingerprints as message ids"),
				 errdetail("Fingerprints: %d, message ids: %d.",
						   n, batch->n)));

	fingerprints = palloc(n * sizeof(bytea *));
	for (int i = 0; i < n; i++)
	{
		name_element(call, batch->ids, i);
		fingerprints[i] = isnull[i]
			? NULL : idem_check_fingerprint(DatumGetByteaPP(elements[i]));
	}
	name_element(call, NULL, -1);
	return fingerprints;
}

/*
 * idem_claim_many(message_ids text[], consumer text, fingerprints bytea[],
 *				   max_wait interval) → setof (message_id text,
 *				   outcome idem_outcome)
 *
 * One row an element, in the order given.  max_wait is for the whole call.
 */
PG_FUNCTION_INFO_V1(idem_claim_many);
Datum
idem_claim_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Batch		batch = {0};
	IdemClaim  *claim = &batch.claim;
	bool	   *isnull;

	InitMaterializedSRF(fcinfo, 0);
	idem_call_start(&claim->call, "idem_claim_many()", fcinfo, -1, 1, true);
	batch.ids = array_arg(fcinfo, 0, "message_ids", TEXTOID, &isnull, &batch.n);
	if (batch.ids == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message_ids must not be null"),
				 errhint("Pass an empty array for no messages.")));
	batch.elements = sort_batch(&claim->call, batch.ids, isnull, batch.n);
	batch.fingerprints = fingerprints_arg(fcinfo, 2, &batch);
	idem_patience_arg(fcinfo, 3, &claim->patience);

	batch.outcomes = palloc(batch.n * sizeof(IdemOutcome));
	batch.run = idem_run_create();
	claim_batch(&batch);
	idem_call_end(&claim->call);

	for (int i = 0; i < batch.n; i++)
	{
		Datum		values[] = {
			batch.ids[i], idem_outcome_datum(batch.outcomes[i])
		};
		bool		nulls[lengthof(values)] = {0};

		idem_row_put(rsinfo, lengthof(values), values, nulls);
	}
	return (Datum) 0;
}
