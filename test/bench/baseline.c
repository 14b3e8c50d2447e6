/*
 * baseline.c
 *	  The claim that people write by hand, as fast as SPI gets: a saved plan.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

static bool
claim(SPIPlanPtr * plan, const char *query, FunctionCallInfo fcinfo)
{
	Datum		values[2] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	bool		claimed;

	SPI_connect();
	if (*plan == NULL)
	{
		Oid			types[2] = {TEXTOID, TEXTOID};

		*plan = SPI_prepare(query, 2, types);
		SPI_keepplan(*plan);
	}
	SPI_execute_plan(*plan, values, NULL, false, 0);
	claimed = SPI_processed == 1;
	SPI_finish();
	return claimed;
}

/* into the table that has an index for its clean-up */
PG_FUNCTION_INFO_V1(plain_claim);
Datum
plain_claim(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;

	PG_RETURN_BOOL(claim(&plan, "INSERT INTO plain_inbox VALUES ($1, $2) ON CONFLICT DO NOTHING",
						 fcinfo));
}

/* into a table with nothing but its key, which nothing cleans up */
PG_FUNCTION_INFO_V1(bare_claim);
Datum
bare_claim(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;

	PG_RETURN_BOOL(claim(&plan, "INSERT INTO bare_inbox VALUES ($1, $2) ON CONFLICT DO NOTHING",
						 fcinfo));
}
