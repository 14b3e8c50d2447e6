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
		call->message_id = DatumGetTextPP(ids[i]);
		call->position = i + 1;
		elements[i].position = i;
		elements[i].key = idem_message_id_make(call->message_id);
		call->position = 0;
		call->message_id = NULL;
	}
	qsort(elements, n, sizeof(Element), compare_elements);
	return elements;
}

/* Claim the batch; returns the outcomes in the order given. */
static IdemOutcome *
claim_batch(IdemClaim *claim, const Element *elements, const Datum *ids,
			bytea **fingerprints, int n)
{
	IdemOutcome *outcomes = palloc(n * sizeof(IdemOutcome));
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idem_claim_many element",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old_context = MemoryContextSwitchTo(context);

	for (int i = 0; i < n; i++)
	{
		int			position = elements[i].position;

		claim->call.message_id = DatumGetTextPP(ids[position]);
		claim->call.position = position + 1;
		claim->key.message_id = elements[i].key;
		claim->fingerprint = fingerprints ? fingerprints[position] : NULL;
		outcomes[position] = idem_claim_message(claim);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);

	return outcomes;
}

/*
 * The argument as one fingerprint a message, NULL where it is unknown; NULL
 * if not given.
 *
 * Errors: 2202E if they are not as many, 22023 for what is no fingerprint.
 */
static bytea **
fingerprints_arg(FunctionCallInfo fcinfo, int argno, int n)
{
	bool	   *isnull;
	int			nelements;
	Datum	   *elements = array_arg(fcinfo, argno, "fingerprints", BYTEAOID,
									 &isnull, &nelements);
	bytea	  **fingerprints;

	if (elements == NULL)
		return NULL;
	if (nelements != n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("there must be as many fingerprints as message ids"),
				 errdetail("There are %d fingerprints and %d message ids.",
						   nelements, n)));

	fingerprints = palloc(n * sizeof(bytea *));
	for (int i = 0; i < n; i++)
		fingerprints[i] = isnull[i]
			? NULL : idem_check_fingerprint(DatumGetByteaPP(elements[i]));
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
	IdemClaim	claim = {0};
	Datum	   *ids;
	bool	   *isnull;
	int			n;
	bytea	  **fingerprints;
	Element    *elements;
	IdemOutcome *outcomes;

	InitMaterializedSRF(fcinfo, 0);
	idem_call_start(&claim.call, "idem_claim_many()", fcinfo, -1, 1, true);
	ids = array_arg(fcinfo, 0, "message_ids", TEXTOID, &isnull, &n);
	if (ids == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message_ids must not be null"),
				 errhint("Pass an empty array for no messages.")));
	fingerprints = fingerprints_arg(fcinfo, 2, n);
	idem_patience_arg(fcinfo, 3, &claim.patience);

	elements = sort_batch(&claim.call, ids, isnull, n);
	outcomes = claim_batch(&claim, elements, ids, fingerprints, n);
	idem_call_end(&claim.call);

	for (int i = 0; i < n; i++)
	{
		Datum		values[] = {ids[i], idem_outcome_datum(outcomes[i])};
		bool		nulls[lengthof(values)] = {0};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}
