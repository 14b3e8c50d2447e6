/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The launcher, and the worker that it starts in one database at a time.
 *
 * As with autovacuum, the launcher belongs to no database.  Every
 * idem_inbox.naptime it starts a worker in one database after the other,
 * which takes the maintenance steps that are due and is gone within a second
 * or so.  So there is no list of databases to keep, one worker slot is
 * enough, and nobody stays connected who is in the way of DROP DATABASE or
 * CREATE DATABASE ... TEMPLATE, which wait five seconds for others to leave.
 * Whether a database has the extension can only be told from inside; so one
 * that never had it is visited too, for the price of a short connection.
 *
 * Nothing that happens in a database may end the rounds or fill the server's
 * log.  A worker reports its error to the launcher, which tries that database
 * less often and tells the next worker what is known already: what is logged
 * is the change.  The library may well be newer than the extension's SQL.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_inbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* The launcher is started again so many seconds after it died. */
#define LAUNCHER_RESTART_TIME 5

/* A worker leaves its database after this time, even with more to do. */
#define WORKER_TIME_MS 1000

/*
 * A database that failed is left out of 1, 3, then 7 rounds.  Not of more: a
 * maintenance run counts at most ten naptimes towards the age of records.
 */
#define MOST_DOUBLINGS 3

/*
 * What launcher and worker tell each other, in dynamic shared memory.  Errors
 * are SQLSTATEs; 0: there was none.
 */
typedef struct Visit
{
	NameData	database;
	int			last_error;		/* how the last visit ended */
	int			error;			/* how this one did */
} Visit;

/* A database that failed at the last visit. */
typedef struct Failure
{
	Oid			database;		/* hash key */
	int			error;
	int			visits;			/* so many in a row */
	int			left_out;		/* not to be visited in so many rounds */
} Failure;

static dsm_segment *visit_segment;
static Visit *visit;
static HTAB *failures;
static bool out_of_slots = false;

/* A clock that does not jump. */
static double
monotonic_ms(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MILLISEC(now);
}

/* What a launcher's and a worker's registration have in common. */
static void
describe(BackgroundWorker *worker, const char *type, const char *function)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	/* not on a standby, but on one that was promoted */
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	strlcpy(worker->bgw_library_name, "idem_inbox", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
}

/* Register the launcher, if the library is being preloaded. */
void
idem_worker_init(void)
{
	BackgroundWorker worker;

	/* pg_upgrade wants the databases as they are. */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;

	describe(&worker, "idem_inbox launcher", "idem_launcher_main");
	worker.bgw_restart_time = LAUNCHER_RESTART_TIME;
	RegisterBackgroundWorker(&worker);
}

/*
 * The databases to visit: no templates, and none that cannot be connected to,
 * because it does not allow that or because dropping it was interrupted.
 */
static List *
list_databases(MemoryContext context)
{
	List	   *databases = NIL;
	Relation	table;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	PushActiveSnapshot(GetTransactionSnapshot());
	table = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(table, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		if (!database->datistemplate && database->datallowconn &&
			database->datconnlimit >= -1)
			databases = lappend_oid(databases, database->oid);
	}
	table_endscan(scan);
	table_close(table, AccessShareLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(true);
	return databases;
}

/*
 * Whether a worker could connect right now: the database still exists, and
 * nobody is dropping or copying it.  The worker would have to wait for that,
 * and all other databases with it.
 *
 * The lock cannot be kept for the worker: who asks for a stronger one
 * meanwhile would wait for the launcher, and the worker for him.
 */
static bool
can_connect(Oid database)
{
	char	   *name = NULL;
	LOCKTAG		tag;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	if (LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL)
	{
		AcceptInvalidationMessages();
		name = get_database_name(database);
		if (name != NULL)
			namestrcpy(&visit->database, name);
	}
	CommitTransactionCommand();
	pgstat_report_stat(true);

	return name != NULL;
}

/* Run a worker in a database; false if there is no slot for it. */
static bool
run_worker(Oid database)
{
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker;
	dsm_handle	segment = dsm_segment_handle(visit_segment);

	describe(&worker, "idem_inbox worker", "idem_worker_main");
	snprintf(worker.bgw_name, BGW_MAXLEN,
			 "idem_inbox worker for database %u", database);
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	memcpy(worker.bgw_extra, &segment, sizeof(segment));

	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return false;

	/* It takes its time at most, and interrupts are served meanwhile. */
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	pfree(handle);

	return true;
}

/* Visit a database, unless it is left out; false if there is no slot. */
static bool
visit_database(Oid database)
{
	Failure    *failure = hash_search(failures, &database, HASH_FIND, NULL);

	if (failure != NULL && failure->left_out > 0)
	{
		failure->left_out--;
		return true;
	}
	if (!can_connect(database))
		return true;

	/* This is what remains if the worker is not able to say. */
	visit->error = ERRCODE_CONNECTION_FAILURE;
	visit->last_error = failure != NULL ? failure->error : 0;

	if (!run_worker(database))
		return false;

	if (visit->error == 0)
		hash_search(failures, &database, HASH_REMOVE, NULL);
	else
	{
		bool		found;

		failure = hash_search(failures, &database, HASH_ENTER, &found);
		failure->error = visit->error;
		failure->visits = found ? failure->visits + 1 : 1;
		failure->left_out = (1 << Min(failure->visits, MOST_DOUBLINGS)) - 1;
	}
	return true;
}

/* Visit all databases, one after the other. */
static void
go_round(MemoryContext context)
{
	bool		missed = false;
	HASH_SEQ_STATUS status;
	Failure    *failure;
	List	   *databases;
	ListCell   *lc;

	pgstat_report_activity(STATE_RUNNING, "visiting the databases");

	databases = list_databases(context);
	foreach(lc, databases)
	{
		/* The end of a transaction switches to another context. */
		MemoryContextSwitchTo(context);
		CHECK_FOR_INTERRUPTS();
		if (!visit_database(lfirst_oid(lc)))
			missed = true;
	}

	/* Forget what was dropped. */
	hash_seq_init(&status, failures);
	while ((failure = hash_seq_search(&status)) != NULL)
	{
		if (!list_member_oid(databases, failure->database))
			hash_search(failures, &failure->database, HASH_REMOVE, NULL);
	}

	if (missed && !out_of_slots)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("idem_inbox launcher is out of background worker slots"),
				 errdetail("It goes on trying; nothing is maintained until then."),
				 errhint("You might need to increase max_worker_processes.")));
	else if (!missed && out_of_slots)
		ereport(LOG,
				(errmsg("idem_inbox launcher finds background worker slots again")));
	out_of_slots = missed;
}

/* The launcher: a round every idem_inbox.naptime, the first after one. */
void
idem_launcher_main(Datum arg)
{
	uint32		wait_event = 0;
	double		last_round = monotonic_ms();
	HASHCTL		failures_info = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(Failure)
	};
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* No database: the shared catalogs are all that is needed. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name,
					PGC_USERSET, PGC_S_SESSION);

	visit_segment = dsm_create(sizeof(Visit), 0);
	visit = dsm_segment_address(visit_segment);
	failures = hash_create("idem_inbox failures", 16, &failures_info,
						   HASH_ELEM | HASH_BLOBS);
	context = AllocSetContextCreate(TopMemoryContext, "idem_inbox round",
									ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		double		left = last_round + idem_naptime * 1000.0 - monotonic_ms();

		if (left <= 0)
		{
			if (idem_worker)
				go_round(context);
			MemoryContextSwitchTo(TopMemoryContext);
			MemoryContextReset(context);
			last_round = monotonic_ms();
			left = idem_naptime * 1000.0;
		}

		pgstat_report_activity(STATE_IDLE, idem_worker
							   ? "waiting for idem_inbox.naptime to pass"
							   : "idem_inbox.worker is off");
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) left + 1,
						 idem_wait_event(&wait_event, "IdemInboxLauncher"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		ProcessCatchupInterrupt();

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}

/*
 * Lock the extension against being dropped; false if there is none.  Whoever
 * is about to drop it already is not waited for.
 */
static bool
lock_extension(void)
{
	Oid			extension = get_extension_oid("idem_inbox", true);

	if (!OidIsValid(extension))
		return false;
	if (!ConditionalLockDatabaseObject(ExtensionRelationId, extension, 0,
									   AccessShareLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("extension \"idem_inbox\" is being dropped")));
	return get_extension_oid("idem_inbox", true) == extension;
}

/* Take one step, in a transaction of its own; false if there is none. */
static bool
take_step(void)
{
	bool		more = false;

	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, "taking a maintenance step");
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());

	/* A database that is read-only by default shall stay as it is. */
	if (!XactReadOnly && lock_extension())
	{
		const char *done;
		Oid			userid;
		int			context;

		/*
		 * Indexes and triggers that somebody added to the tables run code of
		 * their own: not with more rights than the tables' owner has.
		 */
		GetUserIdAndSecContext(&userid, &context);
		SetUserIdAndSecContext(idem_catalog()->owner,
							   context | SECURITY_RESTRICTED_OPERATION);
		done = idem_maintain_step();
		more = strcmp(done, "waiting") != 0 && strcmp(done, "nothing") != 0;
		if (!more)
			idem_log_attention();
		SetUserIdAndSecContext(userid, context);
	}

	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);

	return more;
}

/* Settings of the server, the database or the role that do not suit here. */
static void
pin_settings(void)
{
	SetConfigOption("search_path", "pg_catalog, pg_temp",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_SUSET, PGC_S_OVERRIDE);

	/*
	 * A step waits for nobody by itself.  But DDL takes its locks in an order
	 * of its own: give way long before it takes that for a deadlock.
	 */
	SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);

	/*
	 * A commit that waits for a standby keeps its locks, and would stop all
	 * claims.  Whatever a standby has of later claims, it has of this.
	 */
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		SetConfigOption("synchronous_commit", "local",
						PGC_SUSET, PGC_S_OVERRIDE);
}

/* Abort the transaction and report why, to the launcher and in the log. */
static void
report_error(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	AbortCurrentTransaction();

	/* Somebody was in the way; that is no failure. */
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED)
	{
		visit->error = visit->last_error;
		return;
	}

	visit->error = error->sqlerrcode;
	ereport(visit->error == visit->last_error ? DEBUG1 : LOG,
			(errcode(error->sqlerrcode),
			 errmsg("idem_inbox worker failed in database \"%s\": %s",
					NameStr(visit->database), error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
}

/* A worker: takes the steps that are due in one database. */
void
idem_worker_main(Datum arg)
{
	double		started = monotonic_ms();
	MemoryContext context = CurrentMemoryContext;
	dsm_handle	handle;

	/* A reload does not matter to it. */
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&handle, MyBgworkerEntry->bgw_extra, sizeof(handle));
	visit_segment = dsm_attach(handle);
	if (visit_segment == NULL)
		return;					/* the launcher is gone */
	visit = dsm_segment_address(visit_segment);

	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg),
											  InvalidOid, 0);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name,
					PGC_USERSET, PGC_S_SESSION);
	pin_settings();

	PG_TRY();
	{
		while (take_step() && monotonic_ms() - started < WORKER_TIME_MS)
			CHECK_FOR_INTERRUPTS();

		if (visit->last_error != 0)
			ereport(LOG,
					(errmsg("idem_inbox worker no longer fails in database \"%s\"",
							NameStr(visit->database))));
		visit->error = 0;
	}
	PG_CATCH();
	{
		report_error(context);
	}
	PG_END_TRY();
}
