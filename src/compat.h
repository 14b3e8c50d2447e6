/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every difference between PostgreSQL major versions, with its reason.
 *
 * No other file asks for PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/tableam.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "idem_inbox needs PostgreSQL 15 or later"
#endif

/*
 * 16 tells apart updates that must enter every index, only summarizing ones
 * (BRIN) or none; before, an update entered every index or none.
 */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes IdemUpdatedIndexes;
#define IDEM_INDEX_UPDATED(updated, index) \
	((updated) == TU_All || \
	 ((updated) == TU_Summarizing && (index)->rd_indam->amsummarizing))
#else
typedef bool IdemUpdatedIndexes;
#define IDEM_INDEX_UPDATED(updated, index) (updated)
#endif

/*
 * 18 counts index searches for EXPLAIN; nobody asks for them here.  19 wants
 * to know what a scan is for.
 */
#if PG_VERSION_NUM >= 190000
#define idem_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE)
#define idem_index_fetch_begin(heap) table_index_fetch_begin(heap, SO_NONE)
#elif PG_VERSION_NUM >= 180000
#define idem_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define idem_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif
#if PG_VERSION_NUM < 190000
#define idem_index_fetch_begin(heap) table_index_fetch_begin(heap)
#endif

/* 19 has options, and no flag for moving to another partition. */
#if PG_VERSION_NUM >= 190000
#define idem_tuple_update(table, tid, slot, cid, wait, failure, lockmode, updated) \
	table_tuple_update(table, tid, slot, cid, 0, InvalidSnapshot, \
					   InvalidSnapshot, wait, failure, lockmode, updated)
#define idem_tuple_delete(table, tid, cid, wait, failure) \
	table_tuple_delete(table, tid, cid, 0, InvalidSnapshot, InvalidSnapshot, \
					   wait, failure)
#else
#define idem_tuple_update(table, tid, slot, cid, wait, failure, lockmode, updated) \
	table_tuple_update(table, tid, slot, cid, InvalidSnapshot, \
					   InvalidSnapshot, wait, failure, lockmode, updated)
#define idem_tuple_delete(table, tid, cid, wait, failure) \
	table_tuple_delete(table, tid, cid, InvalidSnapshot, InvalidSnapshot, \
					   wait, failure, false)
#endif

/*
 * The descent to a leaf for reading, without the way back.  16 also wants the
 * table, but not for reading; up to 16, the snapshot serves
 * old_snapshot_threshold; 19 can do without the stack.
 */
#if PG_VERSION_NUM >= 190000
#define idem_bt_search(index, key, buffer) \
	((void) _bt_search(index, NULL, key, buffer, BT_READ, false))
#elif PG_VERSION_NUM >= 170000
#define idem_bt_search(index, key, buffer) \
	_bt_freestack(_bt_search(index, NULL, key, buffer, BT_READ))
#elif PG_VERSION_NUM >= 160000
#define idem_bt_search(index, key, buffer) \
	_bt_freestack(_bt_search(index, NULL, key, buffer, BT_READ, NULL))
#else
#define idem_bt_search(index, key, buffer) \
	_bt_freestack(_bt_search(index, key, buffer, BT_READ, NULL))
#endif

/* 19 also finds those in commit, or of this database, alone. */
#if PG_VERSION_NUM >= 190000
#define idem_oldest_active_xid() GetOldestActiveTransactionId(false, true)
#else
#define idem_oldest_active_xid() GetOldestActiveTransactionId()
#endif

/* 18 can log a failed try; a poll must not fill the log. */
#if PG_VERSION_NUM >= 180000
#define idem_try_xact_wait(xid) ConditionalXactLockTableWait(xid, false)
#else
#define idem_try_xact_wait(xid) ConditionalXactLockTableWait(xid)
#endif

/* From 17 on BRIN keeps pages pinned between insertions. */
#if PG_VERSION_NUM >= 170000
#define idem_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define idem_index_insert_cleanup(index, info) ((void) 0)
#endif

/* 17 can also ask for any stronger lock. */
#if PG_VERSION_NUM >= 170000
#define idem_lock_held(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define idem_lock_held(tag, mode) LockHeldByMe(tag, mode)
#endif

/* From 17 on an extension's waits have names, given once in a backend. */
#if PG_VERSION_NUM >= 170000
#define idem_wait_event(number, name) \
	(*(number) != 0 ? *(number) : (*(number) = WaitEventExtensionNew(name)))
#else
#define idem_wait_event(number, name) ((void) (number), PG_WAIT_EXTENSION)
#endif

/* Up to 18, shared hash tables may grow. */
#if PG_VERSION_NUM >= 190000
#define idem_shmem_hash(name, size, info, flags) \
	ShmemInitHash(name, size, info, flags)
#else
#define idem_shmem_hash(name, size, info, flags) \
	ShmemInitHash(name, size, size, info, flags)
#endif

/* 16 renamed the field. */
#if PG_VERSION_NUM >= 160000
#define idem_pgstat_relid(status) ((status)->id)
#else
#define idem_pgstat_relid(status) ((status)->t_id)
#endif

/* 16 can run as the table's owner, which matters for subscriptions only. */
#if PG_VERSION_NUM >= 160000
#define idem_execute_truncate(tables, relids, logged) \
	ExecuteTruncateGuts(tables, relids, logged, DROP_RESTRICT, false, false)
#else
#define idem_execute_truncate(tables, relids, logged) \
	ExecuteTruncateGuts(tables, relids, logged, DROP_RESTRICT, false)
#endif

#endif							/* IDEM_COMPAT_H */
