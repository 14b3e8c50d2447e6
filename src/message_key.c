/*-------------------------------------------------------------------------
 *
 * message_key.c
 *	  The type idem_message_id: a message's id as text for people and as
 *	  bytes in memcmp order for the index.
 *
 * The first byte tells the form: a canonical lower-case UUID is kept as its
 * 16 bytes, anything else as it is.  No other spelling of a UUID is taken for
 * one, so that the way back to text gives the very same bytes.  Order is
 * kept, not hashed away: UUIDv7, ULID and offset ids then enter the index at
 * its right edge instead of on a random page.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

/* Forms of an id, in index order. */
#define FORM_UUID	'\0'
#define FORM_BYTES	'\1'

#define UUID_TEXT_LEN	36

/* Where a canonical UUID has its dashes. */
#define IS_DASH(i) ((i) == 8 || (i) == 13 || (i) == 18 || (i) == 23)

/* Values of the lower-case hexadecimal digits, plus 1; 0: no digit. */
static const unsigned char hex_value[256] = {
	['0'] = 1,
	['1'] = 2,
	['2'] = 3,
	['3'] = 4,
	['4'] = 5,
	['5'] = 6,
	['6'] = 7,
	['7'] = 8,
	['8'] = 9,
	['9'] = 10,
	['a'] = 11,
	['b'] = 12,
	['c'] = 13,
	['d'] = 14,
	['e'] = 15,
	['f'] = 16
};

/* The 16 bytes of a canonical lower-case UUID; false if it is none. */
static bool
parse_uuid(const char *s, int len, unsigned char *bytes)
{
	if (len != UUID_TEXT_LEN)
		return false;

	for (int i = 0; i < UUID_TEXT_LEN;)
	{
		unsigned char high;
		unsigned char low;

		if (IS_DASH(i))
		{
			if (s[i++] != '-')
				return false;
			continue;
		}
		high = hex_value[(unsigned char) s[i++]];
		low = hex_value[(unsigned char) s[i++]];
		if (high == 0 || low == 0)
			return false;
		*bytes++ = (high - 1) << 4 | (low - 1);
	}
	return true;
}

static void
print_uuid(const unsigned char *bytes, char *s)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < UUID_TEXT_LEN;)
	{
		if (IS_DASH(i))
			s[i++] = '-';
		s[i++] = digits[*bytes >> 4];
		s[i++] = digits[*bytes++ & 15];
	}
}

/* Make an id of its text's bytes; the one place that checks its length. */
static bytea *
make_id(const char *s, int len)
{
	bytea	   *id;
	unsigned char uuid[UUID_LEN];

	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("message id must not be empty"),
				 errhint("An empty id would make all such messages one.")));
	if (len > IDEM_MAX_ID_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("message id is too long"),
				 errdetail("It has %d bytes, %d are allowed; it begins with \"%.*s\".",
						   len, IDEM_MAX_ID_BYTES,
						   pg_mbcliplen(s, len, 40), s)));

	if (parse_uuid(s, len, uuid))
	{
		id = (bytea *) palloc(VARHDRSZ + 1 + UUID_LEN);
		SET_VARSIZE(id, VARHDRSZ + 1 + UUID_LEN);
		*VARDATA(id) = FORM_UUID;
		memcpy(VARDATA(id) + 1, uuid, UUID_LEN);
	}
	else
	{
		id = (bytea *) palloc(VARHDRSZ + 1 + len);
		SET_VARSIZE(id, VARHDRSZ + 1 + len);
		*VARDATA(id) = FORM_BYTES;
		memcpy(VARDATA(id) + 1, s, len);
	}
	return id;
}

/* The id's text, not NUL-terminated in *s. */
static int
print_id(Datum datum, char *s)
{
	bytea	   *id = DatumGetByteaPP(datum);
	int			len = VARSIZE_ANY_EXHDR(id) - 1;

	if (*VARDATA_ANY(id) == FORM_UUID)
	{
		print_uuid((unsigned char *) VARDATA_ANY(id) + 1, s);
		return UUID_TEXT_LEN;
	}
	memcpy(s, VARDATA_ANY(id) + 1, len);
	return len;
}

/*
 * A message id of its text, as an idem_message_id datum.
 *
 * Error: 22023 if empty or longer than 1024 bytes.
 */
Datum
idem_message_id_make(text *message_id)
{
	return PointerGetDatum(make_id(VARDATA_ANY(message_id),
								   VARSIZE_ANY_EXHDR(message_id)));
}

PG_FUNCTION_INFO_V1(idem_message_id_in);
Datum
idem_message_id_in(PG_FUNCTION_ARGS)
{
	char	   *s = PG_GETARG_CSTRING(0);

	PG_RETURN_BYTEA_P(make_id(s, strlen(s)));
}

/* The text of an idem_message_id datum. */
char *
idem_message_id_text(Datum message_id)
{
	char	   *s = palloc(IDEM_MAX_ID_BYTES + 1);

	s[print_id(message_id, s)] = '\0';
	return s;
}

PG_FUNCTION_INFO_V1(idem_message_id_out);
Datum
idem_message_id_out(PG_FUNCTION_ARGS)
{
	PG_RETURN_CSTRING(idem_message_id_text(PG_GETARG_DATUM(0)));
}

/* On the wire a message id is text, as every driver can send and read it. */
PG_FUNCTION_INFO_V1(idem_message_id_recv);
Datum
idem_message_id_recv(PG_FUNCTION_ARGS)
{
	StringInfo	buf = (StringInfo) PG_GETARG_POINTER(0);
	int			len;
	char	   *s = pq_getmsgtext(buf, buf->len - buf->cursor, &len);

	PG_RETURN_BYTEA_P(make_id(s, len));
}

PG_FUNCTION_INFO_V1(idem_message_id_send);
Datum
idem_message_id_send(PG_FUNCTION_ARGS)
{
	char		s[IDEM_MAX_ID_BYTES];
	StringInfoData buf;
	int			len = print_id(PG_GETARG_DATUM(0), s);

	pq_begintypsend(&buf);
	pq_sendtext(&buf, s, len);
	PG_RETURN_BYTEA_P(pq_endtypsend(&buf));
}

PG_FUNCTION_INFO_V1(idem_message_id_from_text);
Datum
idem_message_id_from_text(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(idem_message_id_make(PG_GETARG_TEXT_PP(0)));
}

PG_FUNCTION_INFO_V1(idem_message_id_to_text);
Datum
idem_message_id_to_text(PG_FUNCTION_ARGS)
{
	char		s[IDEM_MAX_ID_BYTES];
	int			len = print_id(PG_GETARG_DATUM(0), s);

	PG_RETURN_TEXT_P(cstring_to_text_with_len(s, len));
}

/* An id as it lies in an index page or a scan key needs no detoasting. */
static inline bytea *
plain_id(Datum datum)
{
	bytea	   *id = (bytea *) DatumGetPointer(datum);

	if (VARATT_IS_COMPRESSED(id) || VARATT_IS_EXTERNAL(id))
		id = DatumGetByteaPP(datum);
	return id;
}

/* Compare eight bytes in byte order. */
static inline int
compare_word(const char *a, const char *b)
{
	uint64		word_a;
	uint64		word_b;

	memcpy(&word_a, a, sizeof(uint64));
	memcpy(&word_b, b, sizeof(uint64));
	if (word_a == word_b)
		return 0;
	return pg_ntoh64(word_a) < pg_ntoh64(word_b) ? -1 : 1;
}

/*
 * Byte order, a prefix first; total, since equal bytes are the same id.
 *
 * Every claim compares some thirty times on its way down the index, where a
 * call of memcmp() costs more than the comparison.
 */
int
idem_message_id_compare(Datum datum_a, Datum datum_b)
{
	bytea	   *id_a = plain_id(datum_a);
	bytea	   *id_b = plain_id(datum_b);
	const char *a = VARDATA_ANY(id_a);
	const char *b = VARDATA_ANY(id_b);
	int			len_a = VARSIZE_ANY_EXHDR(id_a);
	int			len_b = VARSIZE_ANY_EXHDR(id_b);
	int			len = Min(len_a, len_b);
	int			cmp = 0;

	if (len < (int) sizeof(uint64))
		cmp = memcmp(a, b, len);
	else
	{
		int			last = len - sizeof(uint64);

		for (int i = 0; i < last && cmp == 0; i += sizeof(uint64))
			cmp = compare_word(a + i, b + i);

		/* The last word overlaps what is known to be equal. */
		if (cmp == 0)
			cmp = compare_word(a + last, b + last);
	}
	if (cmp == 0)
		cmp = len_a - len_b;

	if (unlikely((Pointer) id_a != DatumGetPointer(datum_a)))
		pfree(id_a);
	if (unlikely((Pointer) id_b != DatumGetPointer(datum_b)))
		pfree(id_b);
	return cmp;
}

static int
compare(FunctionCallInfo fcinfo)
{
	return idem_message_id_compare(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1));
}

PG_FUNCTION_INFO_V1(idem_message_id_cmp);
Datum
idem_message_id_cmp(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(compare(fcinfo));
}

PG_FUNCTION_INFO_V1(idem_message_id_lt);
Datum
idem_message_id_lt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) < 0);
}

PG_FUNCTION_INFO_V1(idem_message_id_le);
Datum
idem_message_id_le(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) <= 0);
}

PG_FUNCTION_INFO_V1(idem_message_id_eq);
Datum
idem_message_id_eq(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) == 0);
}

PG_FUNCTION_INFO_V1(idem_message_id_ne);
Datum
idem_message_id_ne(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) != 0);
}

PG_FUNCTION_INFO_V1(idem_message_id_ge);
Datum
idem_message_id_ge(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) >= 0);
}

PG_FUNCTION_INFO_V1(idem_message_id_gt);
Datum
idem_message_id_gt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare(fcinfo) > 0);
}
