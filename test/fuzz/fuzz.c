/*-------------------------------------------------------------------------
 *
 * fuzz.c
 *	  libFuzzer inside a PostgreSQL backend, around the functions that read
 *	  what a stranger wrote: message ids, payloads, CloudEvents.
 *
 * idem_fuzz('id', ARRAY['-max_total_time=20', 'corpus']) runs until libFuzzer
 * ends, which ends the process: use it in single-user mode (see run).  The
 * sources under test are compiled into this module, so that they are
 * instrumented.
 *
 * A target gets its input in memory of malloc(), where ASan sees an access
 * beyond its end.  What the functions may say to bad input is an error of
 * class 22 or 54; all else, and each answer that a check below finds wrong, is
 * a crash.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

typedef void (*Target) (const uint8_t *data, size_t size);

extern int	LLVMFuzzerRunDriver(int *argc, char ***argv,
								int (*callback) (const uint8_t *, size_t));

extern Datum idem_message_id_in(PG_FUNCTION_ARGS);
extern Datum idem_message_id_out(PG_FUNCTION_ARGS);
extern Datum idem_message_id_recv(PG_FUNCTION_ARGS);
extern Datum idem_message_id_send(PG_FUNCTION_ARGS);
extern Datum idem_message_id_from_text(PG_FUNCTION_ARGS);
extern Datum idem_message_id_to_text(PG_FUNCTION_ARGS);
extern Datum idem_fingerprint_jsonb(PG_FUNCTION_ARGS);
extern Datum idem_fingerprint_text(PG_FUNCTION_ARGS);
extern Datum idem_cloudevent_id(PG_FUNCTION_ARGS);

static Target target;
static MemoryContext context;

/* In assertion-free servers, too. */
static void
check(bool holds, const char *what)
{
	if (!holds)
	{
		fprintf(stderr, "does not hold: %s\n", what);
		abort();
	}
}

static void
check_error(void)
{
	ErrorData  *error = CopyErrorData();
	int			class = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	if (class != ERRCODE_DATA_EXCEPTION &&
		class != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
	{
		fprintf(stderr, "unexpected error: %s\n", error->message);
		abort();
	}
}

static int
run_target(const uint8_t *data, size_t size)
{
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		target(data, size);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		check_error();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextReset(context);
	return 0;
}

/* The input's first line and the rest of it. */
static size_t
first_line(const uint8_t *data, size_t size)
{
	const uint8_t *end = memchr(data, '\n', size);

	return end == NULL ? size : end - data;
}

/* As a varlena with nothing behind it. */
static text *
exact_text(const uint8_t *data, size_t size)
{
	text	   *t = MemoryContextAlloc(context, VARHDRSZ + size);

	SET_VARSIZE(t, VARHDRSZ + size);
	memcpy(VARDATA(t), data, size);
	return t;
}

static bool
same_bytes(bytea *a, bytea *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

static int
sign(int n)
{
	return (n > 0) - (n < 0);
}

/* An id as it arrives on the wire: any bytes. */
static Datum
receive_id(const uint8_t *data, size_t size)
{
	StringInfoData buf = {0};

	/* libFuzzer hands out a copy of exactly this size. */
	buf.data = (char *) data;
	buf.len = size;
	buf.maxlen = size;
	return DirectFunctionCall1(idem_message_id_recv, PointerGetDatum(&buf));
}

/* There and back, in all three ways; the order is that of the kept bytes. */
static void
fuzz_id(const uint8_t *data, size_t size)
{
	size_t		len = first_line(data, size);
	Datum		id = receive_id(data, len);
	char	   *s = DatumGetCString(DirectFunctionCall1(idem_message_id_out, id));
	bytea	   *sent = DatumGetByteaPP(DirectFunctionCall1(idem_message_id_send, id));
	text	   *t = DatumGetTextPP(DirectFunctionCall1(idem_message_id_to_text, id));
	Datum		other;
	bytea	   *a;
	bytea	   *b;
	int			by_bytes;

	check(len > 0 && len <= IDEM_MAX_ID_BYTES, "an id has 1 to 1024 bytes");
	check(strlen(s) == len && memcmp(s, data, len) == 0,
		  "the text of an id is what came in");
	check(same_bytes(sent, exact_text(data, len)),
		  "what is sent is what came in");
	check(same_bytes(t, sent), "as text it is the same");
	check(idem_message_id_compare(id, DirectFunctionCall1(idem_message_id_in, CStringGetDatum(s))) == 0,
		  "its text makes the same id");
	check(idem_message_id_compare(id, DirectFunctionCall1(idem_message_id_from_text, PointerGetDatum(t))) == 0,
		  "a text makes the same id");

	if (len == size)
		return;
	other = receive_id(data + len + 1, size - len - 1);
	a = DatumGetByteaPP(id);
	b = DatumGetByteaPP(other);
	by_bytes = memcmp(VARDATA_ANY(a), VARDATA_ANY(b),
					  Min(VARSIZE_ANY_EXHDR(a), VARSIZE_ANY_EXHDR(b)));
	if (by_bytes == 0)
		by_bytes = VARSIZE_ANY_EXHDR(a) - VARSIZE_ANY_EXHDR(b);
	check(sign(idem_message_id_compare(id, other)) == sign(by_bytes),
		  "ids are in byte order");
	check(sign(idem_message_id_compare(other, id)) == -sign(by_bytes),
		  "ids are in byte order, the other way round");
	check((by_bytes == 0) ==
		  (len == size - len - 1 && memcmp(data, data + len + 1, len) == 0),
		  "two ids are equal if their texts are");
}

static Datum
read_jsonb(const uint8_t *data, size_t size)
{
	char	   *s = pnstrdup((const char *) data, size);

	/* What comes in from a client has been verified by then. */
	pg_verify_mbstr(PG_UTF8, s, size, false);
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(s));
}

static bytea *
fingerprint(Datum jsonb)
{
	return DatumGetByteaPP(DirectFunctionCall1(idem_fingerprint_jsonb, jsonb));
}

/* A fingerprint is that of the value, however it was written. */
static void
fuzz_fingerprint(const uint8_t *data, size_t size)
{
	size_t		len = first_line(data, size);
	Datum		a = read_jsonb(data, len);
	bytea	   *digest = fingerprint(a);
	Datum		pretty = DirectFunctionCall1(jsonb_pretty, a);
	Datum		b;

	check(VARSIZE_ANY_EXHDR(digest) == 16, "a fingerprint has 16 bytes");
	b = DirectFunctionCall1(jsonb_in,
							CStringGetDatum(text_to_cstring(DatumGetTextPP(pretty))));
	check(same_bytes(digest, fingerprint(b)), "blanks do not matter");
	DirectFunctionCall1(idem_fingerprint_text,
						PointerGetDatum(exact_text(data, len)));

	if (len == size)
		return;
	b = read_jsonb(data + len + 1, size - len - 1);
	check(same_bytes(digest, fingerprint(b)) ==
		  DatumGetBool(DirectFunctionCall2(jsonb_eq, a, b)),
		  "fingerprints are equal if the values are");
}

/*
 * A document for the bytes up to the next line, whatever they are: most texts
 * are no JSON.  Its strings are made of what the digest puts between values.
 */
static void
write_document(StringInfo json, const uint8_t **data, const uint8_t *end)
{
	static const char letters[] = "skdntfr[]{}12:";
	uint8_t		byte = *data < end ? *(*data)++ : 0;
	bool		object = (byte & 7) == 6;
	const char *separator = "";

	switch (byte & 7)
	{
		case 0:
			appendStringInfoString(json, byte & 8 ? "null" : "true");
			break;
		case 1:
			appendStringInfo(json, "%d.%d", byte >> 5, byte >> 3 & 3);
			break;
		case 2:
		case 3:
		case 4:
			appendStringInfoChar(json, '"');
			for (int n = byte >> 3 & 3; n > 0 && *data < end; n--)
				appendStringInfoChar(json, letters[*(*data)++ % strlen(letters)]);
			appendStringInfoChar(json, '"');
			break;
		default:
			appendStringInfoChar(json, object ? '{' : '[');
			for (int n = byte >> 3 & 3; n > 0 && *data < end; n--)
			{
				appendStringInfoString(json, separator);
				if (object)
					appendStringInfo(json, "\"%c\": ",
									 letters[*(*data)++ % strlen(letters)]);
				write_document(json, data, end);
				separator = ", ";
			}
			appendStringInfoChar(json, object ? '}' : ']');
	}
}

static Datum
make_document(const uint8_t *data, size_t size)
{
	StringInfoData json;

	initStringInfo(&json);
	write_document(&json, &data, data + size);
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

static void
fuzz_documents(const uint8_t *data, size_t size)
{
	Datum		a = make_document(data, size / 2);
	Datum		b = make_document(data + size / 2, size - size / 2);

	check(same_bytes(fingerprint(a), fingerprint(b)) ==
		  DatumGetBool(DirectFunctionCall2(jsonb_eq, a, b)),
		  "fingerprints of documents are equal if these are");
}

static bool
same_attribute(Datum a, Datum b, const char *name)
{
	Datum		key = CStringGetTextDatum(name);

	return same_bytes(DatumGetByteaPP(DirectFunctionCall2(jsonb_object_field_text, a, key)),
					  DatumGetByteaPP(DirectFunctionCall2(jsonb_object_field_text, b, key)));
}

/* The id of an event holds its source and its id, and nothing else. */
static void
fuzz_cloudevent(const uint8_t *data, size_t size)
{
	size_t		len = first_line(data, size);
	Datum		a = read_jsonb(data, len);
	text	   *id = DatumGetTextPP(DirectFunctionCall1(idem_cloudevent_id, a));
	Datum		pair = DirectFunctionCall1(jsonb_in, CStringGetDatum(text_to_cstring(id)));
	const char *const names[] = {"source", "id"};
	Datum		b;

	for (int i = 0; i < 2; i++)
	{
		Datum		given = DirectFunctionCall2(jsonb_object_field_text, a,
												CStringGetTextDatum(names[i]));
		Datum		kept = DirectFunctionCall2(jsonb_array_element_text, pair,
											   Int32GetDatum(i));

		check(same_bytes(DatumGetByteaPP(given), DatumGetByteaPP(kept)),
			  "the attribute is in the event's id");
	}

	if (len == size)
		return;
	b = read_jsonb(data + len + 1, size - len - 1);
	check(same_bytes(id, DatumGetTextPP(DirectFunctionCall1(idem_cloudevent_id, b))) ==
		  (same_attribute(a, b, "source") && same_attribute(a, b, "id")),
		  "two events have one id if they are one");
}

PG_FUNCTION_INFO_V1(idem_fuzz);

/*
 * idem_fuzz(target text, arguments text[]), the latter for libFuzzer.
 */
Datum
idem_fuzz(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Datum	   *arguments;
	int			n;
	int			argc;
	char	  **argv;

	if (strcmp(name, "id") == 0)
		target = fuzz_id;
	else if (strcmp(name, "fingerprint") == 0)
		target = fuzz_fingerprint;
	else if (strcmp(name, "documents") == 0)
		target = fuzz_documents;
	else if (strcmp(name, "cloudevent") == 0)
		target = fuzz_cloudevent;
	else
		elog(ERROR, "no target \"%s\"", name);

	context = AllocSetContextCreate(TopMemoryContext, "fuzz",
									ALLOCSET_DEFAULT_SIZES);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false,
					  TYPALIGN_INT, &arguments, NULL, &n);
	argc = n + 1;
	argv = palloc((argc + 1) * sizeof(char *));
	argv[0] = name;
	for (int i = 0; i < n; i++)
		argv[i + 1] = TextDatumGetCString(arguments[i]);
	argv[argc] = NULL;

	/* Ends the process, unless there is nothing to run. */
	LLVMFuzzerRunDriver(&argc, &argv, run_target);
	PG_RETURN_VOID();
}
