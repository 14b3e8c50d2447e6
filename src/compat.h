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

/* 18 counts index searches for EXPLAIN; nobody asks for them here. */
#if PG_VERSION_NUM >= 180000
#define idem_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define idem_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/*
 * 16 also wants the table, but not for reading; up to 16, the snapshot serves
 * old_snapshot_threshold.
 */
#if PG_VERSION_NUM >= 170000
#define idem_bt_search(index, key, buffer) \
	_bt_search(index, NULL, key, buffer, BT_READ)
#elif PG_VERSION_NUM >= 160000
#define idem_bt_search(index, key, buffer) \
	_bt_search(index, NULL, key, buffer, BT_READ, NULL)
#else
#define idem_bt_search(index, key, buffer) \
	_bt_search(index, key, buffer, BT_READ, NULL)
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
