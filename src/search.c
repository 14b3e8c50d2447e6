/*-------------------------------------------------------------------------
 *
 * search.c
 *	  What a generation's key index says of a key, without an index scan.
 *
 * An index scan costs as much again as the descent to the leaf, and most
 * searches end there: there is no entry, or exactly one.  So this looks as
 * _bt_check_unique() does before an insertion.  Whatever takes more than one
 * look at one leaf page is left to an index scan.
 *
 * On the leaf, entries are compared without going through the operator
 * class's functions, which took longer than the comparisons.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/nbtree.h"
#include "access/relscan.h"
#include "storage/bufmgr.h"

/* Start searching a generation's key index; ended by idem_search_end(). */
void
idem_search_begin(IdemSearch *search, Relation index)
{
	BTScanInsert key = _bt_mkscankey(index, NULL);

	/* Without a row's place in it, the key stands for any row's. */
	_bt_metaversion(index, &key->heapkeyspace, &key->allequalimage);
	key->keysz = IDEM_KEY_COLUMNS;
	key->anynullkeys = false;
	for (int i = 0; i < IDEM_KEY_COLUMNS; i++)
		key->scankeys[i].sk_flags &= ~SK_ISNULL;
	search->index = index;
	search->key = key;
	search->leaf = InvalidBuffer;
}

/*
 * Whether the leaf of the search before is this key's, too; it is locked then.
 *
 * The key is greater than that one's, and a page never loses the low end of
 * its range while somebody who needs its contents is around: a split moves
 * the high end away, and a deleted page says so.
 */
static bool
lock_same_leaf(IdemSearch *search)
{
	Page		page;
	BTPageOpaque opaque;

	if (!BufferIsValid(search->leaf))
		return false;

	_bt_lockbuf(search->index, search->leaf, BT_READ);
	page = BufferGetPage(search->leaf);
	opaque = BTPageGetOpaque(page);
	if (P_ISLEAF(opaque) && !P_IGNORE(opaque) &&
		(P_RIGHTMOST(opaque) ||
		 _bt_compare(search->index, search->key, page, P_HIKEY) <= 0))
		return true;

	_bt_unlockbuf(search->index, search->leaf);
	return false;
}

/* Descend to the key's leaf and lock it; false if the index is empty. */
static bool
lock_leaf(IdemSearch *search)
{
	if (BufferIsValid(search->leaf))
		ReleaseBuffer(search->leaf);
	idem_bt_search(search->index, search->key, &search->leaf);

	/* An empty index has no root page yet. */
	return BufferIsValid(search->leaf);
}

/*
 * Compare a leaf's entry with the key.  No column of it is null, or cut off as
 * in the pages above.
 */
static int
compare_entry(Page page, OffsetNumber offset, const IdemKey *key)
{
	IndexTuple	entry = (IndexTuple) PageGetItem(page,
												 PageGetItemId(page, offset));
	char	   *data = (char *) entry + IndexInfoFindDataOffset(entry->t_info);
	int32		consumer_id = *(int32 *) data;

	if (consumer_id != key->consumer_id)
		return consumer_id < key->consumer_id ? -1 : 1;
	return idem_message_id_compare(PointerGetDatum(data + sizeof(int32)),
								   key->message_id);
}

/* The first of a leaf's entries that is not less than the key. */
static OffsetNumber
find_entry(Page page, OffsetNumber first, OffsetNumber last,
		   const IdemKey *key)
{
	OffsetNumber end = OffsetNumberNext(last);

	while (first < end)
	{
		OffsetNumber middle = first + (end - first) / 2;

		if (compare_entry(page, middle, key) < 0)
			first = OffsetNumberNext(middle);
		else
			end = middle;
	}
	return first;
}

/* What the locked leaf has of the key. */
static IdemEntries
read_leaf(IdemSearch *search, const IdemKey *key)
{
	Page		page = BufferGetPage(search->leaf);
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	OffsetNumber offset = find_entry(page, P_FIRSTDATAKEY(opaque), last, key);
	bool		ends_here;
	ItemId		item;
	IndexTuple	entry;

	/* What equals the high key may go on, on the next page. */
	ends_here = offset < last || P_RIGHTMOST(opaque) ||
		_bt_compare(search->index, search->key, page, P_HIKEY) != 0;
	if (offset > last || compare_entry(page, offset, key) != 0)
		return ends_here ? IDEM_NO_ENTRY : IDEM_SOME_ENTRIES;

	item = PageGetItemId(page, offset);
	entry = (IndexTuple) PageGetItem(page, item);
	if (!ends_here || ItemIdIsDead(item) || BTreeTupleIsPosting(entry) ||
		(offset < last &&
		 compare_entry(page, OffsetNumberNext(offset), key) == 0))
		return IDEM_SOME_ENTRIES;

	search->place = entry->t_tid;
	return IDEM_ONE_ENTRY;
}

/*
 * Search for a key.
 *
 * ascending: it is greater than the key of the search before, if any.
 *
 * On IDEM_ONE_ENTRY, search->place is where its row lies.  The leaf stays
 * pinned until the next search, so that VACUUM does not give that place to
 * another row.
 */
IdemEntries
idem_search(IdemSearch *search, const IdemKey *key, bool ascending)
{
	ScanKey		keys = search->key->scankeys;
	IdemEntries entries;

	keys[0].sk_argument = Int32GetDatum(key->consumer_id);
	keys[1].sk_argument = key->message_id;
	if (!(ascending && lock_same_leaf(search)) && !lock_leaf(search))
		return IDEM_NO_ENTRY;
	entries = read_leaf(search, key);
	_bt_unlockbuf(search->index, search->leaf);

	return entries;
}

void
idem_search_end(IdemSearch *search)
{
	if (BufferIsValid(search->leaf))
		ReleaseBuffer(search->leaf);
	pfree(search->key);
}

/*
 * The row at the place that a search found, in the first version that the
 * snapshot takes; false if it takes none.  There may be others elsewhere then,
 * that have come since the search.
 */
bool
idem_search_fetch(const IdemSearch *search, Relation table, Snapshot snapshot,
				  TupleTableSlot *slot)
{
	IndexFetchTableData *fetch = idem_index_fetch_begin(table);
	ItemPointerData place = search->place;
	bool		call_again = false;
	bool		found;

	found = table_index_fetch_tuple(fetch, &place, snapshot, slot, &call_again,
									NULL);
	table_index_fetch_end(fetch);
	return found;
}
