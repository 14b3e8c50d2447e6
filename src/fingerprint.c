/*-------------------------------------------------------------------------
 *
 * fingerprint.c
 *	  Digests of a message's content, and the id of a CloudEvent.
 *
 * A fingerprint is the first 16 bytes of a SHA-256: PostgreSQL has it on every
 * build, and unlike MD5 it is there in FIPS mode.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "lib/stringinfo.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#define FINGERPRINT_LEN 16

static pg_cryptohash_ctx *
start_digest(void)
{
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (ctx == NULL || pg_cryptohash_init(ctx) < 0)
		elog(ERROR, "could not start a SHA-256 digest");
	return ctx;
}

static void
add(pg_cryptohash_ctx *ctx, const void *data, size_t len)
{
	if (pg_cryptohash_update(ctx, (const uint8 *) data, len) < 0)
		elog(ERROR, "could not compute a SHA-256 digest");
}

static bytea *
finish_digest(pg_cryptohash_ctx *ctx)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	bytea	   *fingerprint = palloc(VARHDRSZ + FINGERPRINT_LEN);

	if (pg_cryptohash_final(ctx, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute a SHA-256 digest");
	pg_cryptohash_free(ctx);

	SET_VARSIZE(fingerprint, VARHDRSZ + FINGERPRINT_LEN);
	memcpy(VARDATA(fingerprint), digest, FINGERPRINT_LEN);
	return fingerprint;
}

/* Text and bytea: the bytes as they are. */
static Datum
fingerprint_bytes(struct varlena *bytes)
{
	pg_cryptohash_ctx *ctx = start_digest();

	add(ctx, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	return PointerGetDatum(finish_digest(ctx));
}

/*
 * idem_fingerprint(text) → bytea
 */
PG_FUNCTION_INFO_V1(idem_fingerprint_text);
Datum
idem_fingerprint_text(PG_FUNCTION_ARGS)
{
	return fingerprint_bytes((struct varlena *) PG_GETARG_TEXT_PP(0));
}

/*
 * idem_fingerprint(bytea) → bytea
 */
PG_FUNCTION_INFO_V1(idem_fingerprint_bytea);
Datum
idem_fingerprint_bytea(PG_FUNCTION_ARGS)
{
	return fingerprint_bytes((struct varlena *) PG_GETARG_BYTEA_PP(0));
}

/* A string with its kind and length in front, so that no two runs are alike. */
static void
add_string(pg_cryptohash_ctx *ctx, char kind, const char *s, size_t len)
{
	char		head[32];

	add(ctx, head, snprintf(head, sizeof(head), "%c%zu:", kind, len));
	add(ctx, s, len);
}

static void
add_scalar(pg_cryptohash_ctx *ctx, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			add(ctx, "n", 1);
			break;
		case jbvBool:
			add(ctx, value->val.boolean ? "t" : "f", 1);
			break;
		case jbvString:
			add_string(ctx, 's', value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			{
				/* 1.0 and 1.00 are one number to another serializer. */
				char	   *number = numeric_normalize(value->val.numeric);

				add_string(ctx, 'd', number, strlen(number));
				pfree(number);
				break;
			}
		default:
			elog(ERROR, "unexpected jsonb value of type %d", (int) value->type);
	}
}

/*
 * idem_fingerprint(jsonb) → bytea
 *
 * jsonb itself has no blanks, and keeps the keys of an object sorted and
 * unique.  Numbers are compared as numbers.
 */
PG_FUNCTION_INFO_V1(idem_fingerprint_jsonb);
Datum
idem_fingerprint_jsonb(PG_FUNCTION_ARGS)
{
	Jsonb	   *payload = PG_GETARG_JSONB_P(0);
	pg_cryptohash_ctx *ctx = start_digest();
	JsonbIterator *it = JsonbIteratorInit(&payload->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				/* A lone scalar is kept as an array of one. */
				add(ctx, value.val.array.rawScalar ? "r" : "[", 1);
				break;
			case WJB_END_ARRAY:
				add(ctx, "]", 1);
				break;
			case WJB_BEGIN_OBJECT:
				add(ctx, "{", 1);
				break;
			case WJB_END_OBJECT:
				add(ctx, "}", 1);
				break;
			case WJB_KEY:
				add_string(ctx, 'k', value.val.string.val,
						   value.val.string.len);
				break;
			case WJB_VALUE:
			case WJB_ELEM:
				add_scalar(ctx, &value);
				break;
			default:
				break;
		}
	}
	PG_RETURN_BYTEA_P(finish_digest(ctx));
}

/* A context attribute that every CloudEvent has, a non-empty string. */
static JsonbValue *
required_attribute(Jsonb *event, const char *name)
{
	JsonbValue *value = NULL;

	if (JB_ROOT_IS_OBJECT(event))
		value = getKeyJsonValueFromContainer(&event->root, name, strlen(name),
											 NULL);
	if (value == NULL || value->type != jbvString ||
		value->val.string.len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the CloudEvent has no \"%s\"", name),
				 errdetail("The attributes source and id, both non-empty strings, together identify an event.")));
	return value;
}

static void
append_attribute(StringInfo text, const JsonbValue *value)
{
	escape_json(text, pnstrdup(value->val.string.val, value->val.string.len));
}

/*
 * idem_cloudevent_id(cloudevent jsonb) → text
 *
 * Source and id as a JSON array: whatever characters they have, no two pairs
 * give one text.
 *
 * Error: 22023 if the event lacks either.
 */
PG_FUNCTION_INFO_V1(idem_cloudevent_id);
Datum
idem_cloudevent_id(PG_FUNCTION_ARGS)
{
	Jsonb	   *event = PG_GETARG_JSONB_P(0);
	StringInfoData pair;

	initStringInfo(&pair);
	appendStringInfoChar(&pair, '[');
	append_attribute(&pair, required_attribute(event, "source"));
	appendStringInfoString(&pair, ", ");
	append_attribute(&pair, required_attribute(event, "id"));
	appendStringInfoChar(&pair, ']');

	PG_RETURN_TEXT_P(cstring_to_text_with_len(pair.data, pair.len));
}
