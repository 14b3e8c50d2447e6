/*-------------------------------------------------------------------------
 *
 * idem_inbox.h
 *	  Names, types and prototypes of the extension, grouped per file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_INBOX_H
#define IDEM_INBOX_H

#include "postgres.h"

#include "access/htup.h"
#include "access/skey.h"
#include "access/transam.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "nodes/lockoptions.h"
#include "nodes/pg_list.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"

#include "compat.h"

#define IDEM_VERSION "1.0.0"

/* The longest message id and consumer name, in bytes. */
#define IDEM_MAX_ID_BYTES 1024

/* The longest fingerprint, in bytes: SHA-512. */
#define IDEM_MAX_FINGERPRINT_BYTES 64

/* The ring has this many generations; they are numbered from 0 in C. */
#define IDEM_GENERATIONS 3

/* So many turns are remembered, for retentions of so many turns. */
#define IDEM_MAX_TURNS 100

typedef enum IdemOutcome
{
	IDEM_CLAIMED,
	IDEM_DUPLICATE,
	IDEM_BUSY,
	IDEM_IN_PROGRESS,
	IDEM_NEEDS_RECONCILIATION,
	IDEM_MISMATCH
} IdemOutcome;

#define IDEM_OUTCOMES (IDEM_MISMATCH + 1)

/* Columns of a generation's key index. */
#define IDEM_KEY_COLUMNS 2

/* What a record's place in an index is found by. */
typedef struct IdemKey
{
	int32		consumer_id;
	Datum		message_id;		/* an idem_message_id */
} IdemKey;

/* Columns of a generation, in C's numbering. */
enum
{
	IDEM_RECEIVED_AT,
	IDEM_COMPLETED_AT,
	IDEM_LEASE_UNTIL,
	IDEM_CONSUMER_ID,
	IDEM_ATTEMPT,
	IDEM_MESSAGE_ID,
	IDEM_FINGERPRINT,
	IDEM_DETAIL,
	IDEM_COLUMNS
};

/*
 * One version of a row of a generation: where it lies and what it holds.
 * Values by reference live in the memory context of whoever read it.
 */
typedef struct IdemRecord
{
	int			generation;
	ItemPointerData tid;
	TransactionId xmin;
	Datum		values[IDEM_COLUMNS];
	bool		isnull[IDEM_COLUMNS];
} IdemRecord;

/*
 * A placeholder holds a key's place in the current generation while the
 * record itself goes into the next one; it is never an answer by itself.
 */
#define IDEM_IS_PLACEHOLDER(record) \
	(!(record)->isnull[IDEM_COMPLETED_AT] && \
	 TIMESTAMP_IS_NOBEGIN(DatumGetTimestampTz((record)->values[IDEM_COMPLETED_AT])))

typedef enum IdemProbe
{
	IDEM_NOTHING,				/* no row, and nobody is about to add one */
	IDEM_FOUND,					/* a committed row, or this transaction's */
	IDEM_PENDING				/* another open transaction's row */
} IdemProbe;

/* How many entries an index has for a key. */
typedef enum IdemEntries
{
	IDEM_NO_ENTRY,				/* certainly */
	IDEM_ONE_ENTRY,				/* as of the search */
	IDEM_SOME_ENTRIES			/* or it takes a scan to tell */
} IdemEntries;

/* Searches in one index, one after the other. */
typedef struct IdemSearch
{
	Relation	index;
	BTScanInsert key;
	Buffer		leaf;			/* where the last one ended, pinned */
	ItemPointerData place;		/* of the row, if there is one entry */
} IdemSearch;

/* So many messages are claimed at once, at most. */
#define IDEM_RUN_LENGTH 128

/* New messages of one consumer, in key order, each once. */
typedef struct IdemRun
{
	int			length;
	IdemKey		keys[IDEM_RUN_LENGTH];
	TupleTableSlot *slots[IDEM_RUN_LENGTH];
} IdemRun;

/*
 * The generations that a claim deals with; -1: there is none. Backends read
 * it once and keep it until an invalidation arrives.
 */
typedef struct IdemView
{
	uint64		version;		/* of this backend's cache */
	int			previous;		/* sealed, may hold records */
	int			current;		/* its index arbitrates */
	int			next;			/* being opened: takes the records */
} IdemView;

/* The ring's state, see idem_ring; ages in microseconds. */
typedef struct IdemRing
{
	bool		exists;			/* whether there is a row yet */
	ItemPointerData tid;
	TransactionId xmin;
	int			current;
	bool		next_open;
	bool		previous_sealed;
	bool		has_horizon;
	FullTransactionId horizon;	/* older transactions may hold older views */
	bool		has_snapshot_horizon;
	FullTransactionId snapshot_horizon; /* older snapshots miss survivors */
	int64		current_age;	/* counted since current was opened */
	int64		previous_age;	/* counted since previous was sealed */
	int64		skipped;		/* passed without being counted */
	int			nturns;			/* the latest turns, oldest first */
	TimestampTz turned_at[IDEM_MAX_TURNS];
	int64		turned_skipped[IDEM_MAX_TURNS]; /* skipped by then */
	TimestampTz counted_at;
	TimestampTz opened_at;
	TimestampTz sealed_at;		/* DT_NOBEGIN: nothing is sealed */
} IdemRing;

/*
 * What is counted of a consumer, see tally.c; first what was answered, then
 * what was done, which a rollback undoes.
 */
typedef enum IdemCount
{
	IDEM_COUNT_DUPLICATE,
	IDEM_COUNT_BUSY,
	IDEM_COUNT_IN_PROGRESS,
	IDEM_COUNT_NEEDS_RECONCILIATION,
	IDEM_COUNT_MISMATCH,
	IDEM_COUNT_WAITS,			/* for another open transaction */
	IDEM_COUNT_WAITED,			/* so long in all, in microseconds */
	IDEM_COUNT_ROLLED_BACK,		/* claims */
	IDEM_COUNT_CLAIMED,
	IDEM_COUNT_BEGUN,			/* of these, by idem_begin() */
	IDEM_COUNT_COMPLETED,		/* two-phase records */
	IDEM_COUNT_TAKEN_OVER,
	IDEM_COUNT_ABANDONED,
	IDEM_COUNT_STORED,			/* records in generation 0, 1, ..., net */
	IDEM_SHARED_COUNTS = IDEM_COUNT_STORED + IDEM_GENERATIONS,

	/* for the transaction itself */
	IDEM_COUNT_UNDECLARED = IDEM_SHARED_COUNTS, /* claims, not completed */
	IDEM_COUNT_EMPTIED,			/* generation 0 counts as 1, ... */
	IDEM_COUNTS
} IdemCount;

#define IDEM_FIRST_EFFECT IDEM_COUNT_CLAIMED

/* What is counted of the ring as a whole; consumers are numbered from 1. */
#define IDEM_NO_CONSUMER 0

/* OIDs of the extension's objects in this database. */
typedef struct IdemGenerationOids
{
	Oid			table;
	Oid			key_index;
	Oid			unfinished_index;
} IdemGenerationOids;

typedef struct IdemCatalog
{
	bool		valid;
	Oid			schema;
	Oid			owner;			/* of the tables */
	Oid			ring;
	Oid			ring_key_index;
	Oid			consumer;
	Oid			consumer_name_index;
	Oid			consumer_sequence;
	Oid			quarantine;
	Oid			quarantine_key_index;
	Oid			resolution;
	IdemGenerationOids generations[IDEM_GENERATIONS];
	Oid			outcomes[IDEM_OUTCOMES];
	FmgrInfo	message_id_eq;
} IdemCatalog;

/* What a call needs to know of a consumer. */
typedef struct IdemConsumer
{
	int32		id;
	Oid			owner;			/* InvalidOid: no such role (any more) */
	bool		has_lease;
	Interval	lease;
} IdemConsumer;

/* A consumer whose records are kept longer than the setting says. */
typedef struct IdemPolicy
{
	int32		consumer_id;
	Interval	retention;
} IdemPolicy;

/* What came of a search for records that outlive their generation. */
typedef struct IdemSurvivors
{
	int			moved;
	bool		left;			/* some may be there still */
	List	   *policies;		/* that it went by */
} IdemSurvivors;

/* How long a call may wait for other transactions. */
typedef struct IdemPatience
{
	bool		bounded;
	TimestampTz until;
} IdemPatience;

/*
 * A call about one message: its arguments, and the error context that names
 * them in every error.
 */
typedef struct IdemCall
{
	ErrorContextCallback context;
	const char *function;
	text	   *message_id;
	int			position;		/* in a batch, from 1; 0: there is none */
	char	   *consumer_name;
} IdemCall;

/* What is to be claimed, and how. */
typedef struct IdemClaim
{
	IdemCall	call;
	IdemKey		key;
	IdemConsumer consumer;
	IdemPatience patience;
	bytea	   *fingerprint;	/* NULL: unknown */
	bool		two_phase;
	const Interval *lease;		/* of a two-phase attempt; NULL: unsaid */
	bool		imported;		/* a record of another inbox, no claim */
	TimestampTz received_at;	/* of an imported record */
} IdemClaim;

/* idem_inbox.c */
extern bool idem_auto_register;
extern int	idem_lease;
extern int	idem_retention;
extern int	idem_naptime;
extern bool idem_worker;
extern int	idem_max_result;
extern int	idem_attention_after;

/* call.c */
extern void idem_call_start(IdemCall *call, const char *function,
							FunctionCallInfo fcinfo, int message_argno,
							int consumer_argno, bool writes);
extern void idem_call_end(IdemCall *call);
extern void idem_prevent_if_read_only(const char *function);
extern void idem_patience_arg(FunctionCallInfo fcinfo, int argno,
							  IdemPatience *patience);
extern const Interval *idem_interval_arg(FunctionCallInfo fcinfo, int argno,
										 const char *name, int least_seconds);
extern int64 idem_interval_microseconds(const Interval *interval);
extern TimestampTz idem_lease_end(const Interval *lease,
								  const IdemConsumer *consumer,
								  TimestampTz now);
extern bool idem_lease_runs(const IdemRecord *record, TimestampTz now);
extern Datum idem_describe_caller(void);

/* catalog.c */
extern const IdemCatalog *idem_catalog(void);
extern void idem_catalog_init(void);

/* message_key.c */
extern Datum idem_message_id_make(text *message_id);
extern char *idem_message_id_text(Datum message_id);
extern int	idem_message_id_compare(Datum a, Datum b);

/* search.c */
extern void idem_search_begin(IdemSearch *search, Relation index);
extern IdemEntries idem_search(IdemSearch *search, const IdemKey *key,
							   bool ascending);
extern bool idem_search_fetch(const IdemSearch *search, Relation table,
							  Snapshot snapshot, TupleTableSlot *slot);
extern void idem_search_end(IdemSearch *search);

/* row.c */
extern void idem_row_read(Relation table, HeapTuple tuple,
						  int columns, Datum *values, bool *isnull);
extern HeapTuple idem_row_make(Relation table,
							   int columns, Datum *values, bool *isnull,
							   HeapTuple replaced);
extern HeapTuple idem_row_change(Relation table, ItemPointer tid,
								 int columns, Datum *values, bool *isnull);
extern void idem_check_result_columns(TupleDesc desc, int columns);
extern void idem_row_put(ReturnSetInfo *rsinfo,
						 int columns, Datum *values, bool *isnull);

/* arbiter.c */
extern IdemProbe idem_probe_unique(Relation table, Relation index,
								   ScanKey keys, int nkeys,
								   ItemPointer except, HeapTuple *found,
								   TransactionId *pending);
extern IdemProbe idem_probe_place(Relation table, const IdemSearch *search,
								  HeapTuple *found, TransactionId *pending);
extern bool idem_enter_unique(Relation table, Relation index, ScanKey keys,
							  int nkeys, ItemPointer tid);
extern bool idem_insert_unique(Relation table,
							   int columns, Datum *values, bool *isnull,
							   Oid arbiter, Oid skipped_index,
							   ScanKey keys, int nkeys, ItemPointer tid);
extern TM_Result idem_lock_row(Relation table, const ItemPointerData *tid,
							   LockTupleMode mode, LockWaitPolicy policy);
extern TM_Result idem_update_row(Relation table, ItemPointer tid,
								 int columns, Datum *values, bool *isnull,
								 bool wait);
extern TM_Result idem_delete_row(Relation table, ItemPointer tid, bool wait);
extern List *idem_read_rows(Relation table, Oid index, ScanKey keys,
							int nkeys);
extern bool idem_wait_for_xact(TransactionId xid, const IdemPatience *patience);
extern void idem_check_serializable(TransactionId xmin);

/* consumer.c */
extern bool idem_consumer_find(const char *name, IdemConsumer *consumer);
extern bool idem_consumer_find_or_register(const char *name,
										   const IdemPatience *patience,
										   IdemConsumer *consumer);
extern void idem_consumer_forget_all(void);
extern int32 idem_consumer_id(const char *name);
extern const char *idem_consumer_name(int32 id);
extern List *idem_consumers_kept_longer(int64 microseconds);

/* ring.c */
extern void idem_ring_read(Relation table, IdemRing *ring);
extern bool idem_ring_write(Relation table, IdemRing *ring, bool view_changed);
extern void idem_ring_note_turn(IdemRing *ring);
extern int64 idem_ring_skipped_since(const IdemRing *ring, TimestampTz start);
extern IdemView idem_view_of_ring(const IdemRing *ring);
extern IdemView idem_ring_view(void);
extern void idem_ring_forget_view(void);
extern bool idem_view_equal(const IdemView *a, const IdemView *b);

/* generation.c */
extern IdemProbe idem_generation_probe(int generation, const IdemKey *key,
									   IdemRecord *record,
									   TransactionId *pending);
extern void idem_key_scan_keys(ScanKey keys, const IdemKey *key);
extern bool idem_generation_find(int generation, const IdemKey *key,
								 IdemRecord *record);
extern bool idem_generation_insert(int generation, const IdemKey *key,
								   IdemRecord *record);
extern void idem_record_read(Relation table, HeapTuple tuple, int generation,
							 IdemRecord *record);
extern bool idem_record_find(const IdemKey *key, LOCKMODE lockmode,
							 IdemRecord *record);
extern bool idem_record_lock(const IdemRecord *record);
extern bool idem_record_update(IdemRecord *record);
extern bool idem_record_delete(const IdemRecord *record);

/* run.c */
extern IdemRun *idem_run_create(void);
extern void idem_run_clear(IdemRun *run);
extern void idem_run_keep_absent(IdemRun *run, int generation);
extern int	idem_run_insert(IdemRun *run, int generation, IdemRecord *records);

/* record.c */
extern bool idem_call_find(IdemCall *call, LOCKMODE lockmode,
						   IdemConsumer *consumer, IdemRecord *record);
extern void idem_call_find_to_change(IdemCall *call, IdemConsumer *consumer,
									 IdemRecord *record);
extern void idem_check_attempt(const int32 *attempt, const IdemRecord *record);
extern void idem_check_result(Datum result);
extern bool idem_call_complete(IdemCall *call, const Datum *result,
							   const int32 *attempt);
extern bool idem_call_forget(IdemCall *call);

/* lease.c */
extern void idem_record_take_over(IdemRecord *record, int32 attempt,
								  const Interval *lease,
								  const IdemConsumer *consumer);
extern bool idem_call_abandon(IdemCall *call, const int32 *attempt);

/* quarantine.c */
extern void idem_quarantine(const IdemCall *call, const IdemKey *key,
							Datum known_fingerprint, Datum fingerprint,
							const IdemPatience *patience);
#define IDEM_QUARANTINE_LAST_AT 7	/* a column of idem_quarantine */
extern bool idem_quarantine_dismiss(const IdemKey *key);

/* attention.c */
extern void idem_log_attention(void);
extern void idem_trim_history(const IdemRing *ring);

/* guard.c */
extern int	idem_lone_claim;
extern const struct config_enum_entry idem_lone_claim_options[];
extern bool idem_require_complete;
extern void idem_guard_init(void);
extern void idem_remember_claim(const IdemKey *key, bool two_phase);
extern void idem_commit_synchronously(void);

/* tally.c */
extern void idem_tally_add(int32 consumer_id, IdemCount what, int64 n);
extern int64 idem_tally_get(const int32 *consumer_id, IdemCount what);
extern void idem_tally_declare(void);
extern void idem_tally_end_sub(bool committed, SubTransactionId subid,
							   SubTransactionId parent);
extern void idem_tally_end(bool committed);

/* stats.c */
extern void idem_stats_init(void);
extern void idem_stats_add(Oid consumers, int32 consumer_id,
						   const int64 *counts);
extern void idem_stats_emptied(Oid consumers, int generation);

/* failing.c */
extern void idem_failing_init(void);
extern Size idem_failing_size(void);
extern void idem_failing_start(LWLock *lock);
extern void idem_failing_claim_ended(Oid consumers, const IdemKey *key,
									 bool committed);
extern void idem_failing_forget(Oid consumers, const int32 *consumer_id);

/* maintain.c */
extern const char *idem_maintain_step(void);

/* survivor.c */
extern IdemSurvivors idem_move_survivors(int generation, int current,
										 const IdemRing *ring);
extern bool idem_survivors_unchanged(int generation,
									 const IdemSurvivors *survivors);
extern void idem_truncate(Relation table);

/* claim.c */
extern bytea *idem_check_fingerprint(bytea *fingerprint);
extern IdemOutcome idem_claim_message(IdemClaim *claim);
extern int	idem_claim_run(IdemClaim *claim, IdemRun *run,
						   bytea *const *fingerprints);
extern Datum idem_outcome_datum(IdemOutcome outcome);
typedef void (*IdemClaimHook) (const char *point);
extern PGDLLEXPORT IdemClaimHook idem_claim_hook;

/* worker.c */
extern void idem_worker_init(void);
extern PGDLLEXPORT void idem_launcher_main(Datum arg);
extern PGDLLEXPORT void idem_worker_main(Datum arg);

#endif							/* IDEM_INBOX_H */
