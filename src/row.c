/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of the extension's tables, and of its functions' results, whose
 *	  columns need not be those that this library knows.
 *
 * A session keeps its library through ALTER EXTENSION UPDATE, the library can
 * be newer than the extension's SQL, and somebody may have added a column to a
 * table.  The known columns come first: later versions only add to them.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

/*
 * Take a row apart.
 *
 * columns: how many the caller knows, the length of values and isnull.  Those
 * that the table does not have are null.
 */
void
idem_row_read(Relation table, HeapTuple tuple,
			  int columns, Datum *values, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(table);
	int			common = Min(columns, desc->natts);
	Datum	   *all;
	bool	   *all_null;

	if (likely(desc->natts == columns))
	{
		heap_deform_tuple(tuple, desc, values, isnull);
		return;
	}

	all = palloc(desc->natts * sizeof(Datum));
	all_null = palloc(desc->natts * sizeof(bool));
	heap_deform_tuple(tuple, desc, all, all_null);
	memset(values, 0, columns * sizeof(Datum));
	memset(isnull, true, columns * sizeof(bool));
	memcpy(values, all, common * sizeof(Datum));
	memcpy(isnull, all_null, common * sizeof(bool));
	pfree(all);
	pfree(all_null);
}

/* What INSERT would put into a column that it does not name. */
static Datum
default_value(Relation table, int column, bool *isnull)
{
	Expr	   *expr = (Expr *) build_column_default(table, column + 1);
	ExprContext *context;
	Datum		value;

	*isnull = true;
	if (expr == NULL)
		return (Datum) 0;

	context = CreateStandaloneExprContext();
	value = ExecEvalExpr(ExecInitExpr(expression_planner(expr), NULL),
						 context, isnull);
	FreeExprContext(context, true);
	return value;
}

/*
 * Put a row together from the values of the columns that the caller knows.
 * The others keep what they have in the row that is replaced, or get their
 * default.
 *
 * replaced: NULL: this is a new row.
 *
 * Errors: 23502 as INSERT; 0A000: another column is a generated one.
 */
HeapTuple
idem_row_make(Relation table, int columns, Datum *values, bool *isnull,
			  HeapTuple replaced)
{
	TupleDesc	desc = RelationGetDescr(table);
	Datum	   *all;
	bool	   *all_null;
	MemoryContext scratch;
	MemoryContext context;
	HeapTuple	tuple;

	if (likely(desc->natts <= columns))
		return heap_form_tuple(desc, values, isnull);

	scratch = AllocSetContextCreate(CurrentMemoryContext, "idem_inbox row",
									ALLOCSET_SMALL_SIZES);
	context = MemoryContextSwitchTo(scratch);
	all = palloc0(desc->natts * sizeof(Datum));
	all_null = palloc0(desc->natts * sizeof(bool));
	if (replaced != NULL)
		heap_deform_tuple(replaced, desc, all, all_null);
	memcpy(all, values, columns * sizeof(Datum));
	memcpy(all_null, isnull, columns * sizeof(bool));
	for (int i = columns; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (column->attisdropped)
		{
			all_null[i] = true;
			continue;
		}
		if (column->attgenerated != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot write to table \"%s\" with the generated column \"%s\"",
							RelationGetRelationName(table),
							NameStr(column->attname)),
					 errhint("Drop the column.")));
		if (replaced == NULL)
			all[i] = default_value(table, i, &all_null[i]);
		if (all_null[i] && column->attnotnull)
			ereport(ERROR,
					(errcode(ERRCODE_NOT_NULL_VIOLATION),
					 errmsg("null value in column \"%s\" of relation \"%s\" violates not-null constraint",
							NameStr(column->attname),
							RelationGetRelationName(table)),
					 errtablecol(table, i + 1)));
	}
	MemoryContextSwitchTo(context);
	tuple = heap_form_tuple(desc, all, all_null);
	MemoryContextDelete(scratch);
	return tuple;
}

/*
 * The row that replaces the version at *tid; as idem_row_make().  NULL if
 * there is nothing at *tid.
 */
HeapTuple
idem_row_change(Relation table, ItemPointer tid,
				int columns, Datum *values, bool *isnull)
{
	TupleTableSlot *slot;
	HeapTuple	tuple = NULL;

	if (likely(RelationGetNumberOfAttributes(table) <= columns))
		return idem_row_make(table, columns, values, isnull, NULL);

	slot = table_slot_create(table, NULL);
	if (table_tuple_fetch_row_version(table, tid, SnapshotAny, slot))
	{
		HeapTuple	replaced = ExecCopySlotHeapTuple(slot);

		tuple = idem_row_make(table, columns, values, isnull, replaced);
		heap_freetuple(replaced);
	}
	ExecDropSingleTupleTableSlot(slot);
	return tuple;
}

/*
 * Check that a function was created with the columns that it returns.
 *
 * Error: 42804 otherwise.
 */
void
idem_check_result_columns(TupleDesc desc, int columns)
{
	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("the library and the SQL objects of extension \"idem_inbox\" are of different versions"),
				 errdetail("The function was created with %d result columns, the library returns %d.",
						   desc->natts, columns),
				 errhint("Run ALTER EXTENSION idem_inbox UPDATE if that has not been done, and connect anew.")));
}

/* Add a row to the result of a function. */
void
idem_row_put(ReturnSetInfo *rsinfo, int columns, Datum *values, bool *isnull)
{
	idem_check_result_columns(rsinfo->setDesc, columns);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}
