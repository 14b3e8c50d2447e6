/*
 * claimer.pml
 *	  A session that claims messages and changes their records.
 *
 * The order of the steps is claim.c's and record.c's; what one step does at
 * once is what PostgreSQL does under one page's lock, or by one snapshot.
 */

/*
 * Probe generation g with a dirty snapshot. A committed row is found also
 * while another transaction is deleting or completing it.
 */
#define FREE		0
#define FOUND		1
#define MET			2			/* a placeholder, the session's or committed */
#define PENDING		3

inline look(g)
{
	d_step {
		was = (mine(g) -> new[g] : com[g]);
		if
#ifdef UNCOMMITTED_IS_ANSWER
		:: proper(was) || proper(new[g]) -> found = FOUND
#else
		:: proper(was) -> found = FOUND; assert(mine(g) || held != NONE)
#endif
		:: else ->
			if
			:: was == PLACEHOLDER -> found = MET
			:: else ->
				if
				:: wr[g] && !mine(g) -> found = PENDING; waitfor[me] = wr[g]
				:: else ->
					was = lose[g] & ~mybit;
					if
					:: was ->
						found = PENDING;
						waitfor[me] = (was & 1 -> 1 : (was & 2 -> 2 : 3))
					:: else -> found = FREE
					fi
				fi
			fi
		fi;
		was = 0
	}
}

/*
 * A probe with a dirty snapshot is no single moment: it reads the index, then
 * visits the rows. If a row got a new version and the old one ended in
 * between, it sees neither. Where the claim is about to insert, the unique
 * index makes up for that; so LOOK_IN_STEPS holds. Previous must be probed
 * with one MVCC snapshot.
 */
inline read_index(g)
{
	loc[me] = (com[g] || wr[g] && !mine(g) -> g + 1 : 0)
}

inline visit_rows(g)
{
	if
	:: loc[me] == CHANGED -> found = FREE
	:: look(g)
	fi;
	loc[me] = 0
}

/* A claim's answer is backed by a committed record, or by the session's own. */
#define backed(g)	(held != NONE || mine(g) && proper(new[g]))

/* Invalidations reach a session when it accepts them, not before. */
inline accept()
{
	if
	:: stale & mybit -> stale = stale & ~mybit; view = row
	:: else
	fi
}

/*
 * Insert into generation g under its unique index. The index knows of every
 * live or uncommitted row but those the session itself deletes; a row that
 * lost stays until it is deleted, and may make others lose, too.
 */
#define taken(g)	(lose[g] & ~mybit || !mine(g) && (wr[g] || com[g]))
#define won(g)		(mine(g) && new[g] != NONE)

inline win(g, what)
{
	assert(!won(g));
	wr[g] = me + 1; new[g] = what
}

inline insert(g, what)
{
	if
#ifdef PLACEHOLDER_IS_FREE
	:: !wr[g] && com[g] == PLACEHOLDER -> win(g, what)
#endif
	:: !taken(g) -> win(g, what)
	:: else -> lose[g] = lose[g] | mybit
	fi
}

/* What the index saw may be gone by now. */
inline recheck(g, what)
{
	if
	:: !taken(g) -> lose[g] = lose[g] & ~mybit; win(g, what)
	:: else
	fi
}

/* A row that lost, or the session's own, deleted: as if it had never been. */
inline give_up(g)
{
#ifdef DEAD_ROWS_SEEN
	skip
#else
	lose[g] = lose[g] & ~mybit
#endif
}

inline take_back(g)
{
	new[g] = NONE;
	wr[g] = (com[g] -> wr[g] : 0)
}

/* The record in generation g, as a snapshot taken now shows it. */
inline find_in(g)
{
	was = (mine(g) -> new[g] : com[g]);
	loc[me] = (proper(was) -> g + 1 : loc[me]);
	was = 0
}

/* A search must find the record in force, unless it is deleted meanwhile. */
#define deletes(g)	(mine(g) && proper(com[g]))

inline expect()
{
	owed = (held == NONE || deletes(0) || deletes(1) || deletes(2)
			-> owed : owed | mybit)
}

inline check_expected()
{
	assert(loc[me] || !(owed & mybit));
	owed = owed & ~mybit;
	at = (loc[me] && loc[me] != CHANGED -> loc[me] - 1 : 0)
}

/*
 * Find the record. All generations are locked before the one snapshot is
 * taken, so that none is emptied before it was searched: this is one step.
 */
inline find_record()
{
#ifdef FIND_PER_TABLE
	/* newest to oldest, a snapshot for each */
	d_step {
		expect();
		g = row; find_in(nxt(g)); find_in(cur(g)); g = prv(g)
	}
	d_step {
		if
		:: loc[me] == 0 -> find_in(g)
		:: else
		fi;
		g = 0; check_expected()
	}
#else
#ifdef FIND_UNLOCKED
	/* the snapshot first, then the locks */
	d_step { expect(); find_in(0); find_in(1); find_in(2); snap[me] = loc[me] }
	d_step { snap[me] = 0; check_expected() }
#else
	d_step { expect(); find_in(0); find_in(1); find_in(2); check_expected() }
#endif
#endif
}

/*
 * Whoever waits for a row that lost waits for the loser's transaction, as
 * there is nothing else to wait for. If the loser then wants the very record
 * that the other one, before its claim, has changed, this is a deadlock; the
 * detector ends it. No other circle of waits may exist. (That an update's new
 * index entry waits for such losers, too, is left out.)
 */
#define waits_for_me(w) (w && w <= CLAIMERS && waitfor[w - 1] == me + 1)

inline next_call()
{
	kind = NONE; placed = 0; met = 0; found = 0; loc[me] = 0;
	goto call
}

proctype Claimer(byte me)
{
	byte view;					/* cached */
	byte kind;					/* of the record to make; NONE: delete it */
	byte txs, ops;
	bit met;					/* a placeholder is in the current generation */
	bit placed;					/* ... which this claim inserted */
	bit commit;
	byte at;					/* generation of the record to change */
	byte found, was, g, i;		/* scratch, 0 between steps */

begin:
	txs < TXS -> txs++;

call:
	atomic {
		if
		:: ops < OPS ->
			ops++;
			if
			:: kind = BEGUN; goto claim
			:: kind = DONE; goto claim
			:: kind = DONE; goto change
			:: kind = NONE; goto change
			fi
		:: ops > 0 -> goto end
		fi
	}

	/*
	 * First look, under a view that may be old.
	 */
claim:
	atomic {
		met = 0; placed = 0;
		if
		:: accept()
		:: stale & mybit
		fi;
#ifdef DIRTY_LOOK_IN_PREVIOUS
		read_index(prv(view))
	}
	atomic {
#endif
#ifndef NO_LOOK_IN_PREVIOUS
		if
		:: is_sealed(view) ->
#ifdef DIRTY_LOOK_IN_PREVIOUS
			visit_rows(prv(view));
#else
			look(prv(view));
#endif
			waitfor[me] = 0;
			if
			:: found == FOUND -> assert(backed(prv(view))); next_call()
			:: else -> found = 0
			fi
		:: else
		fi
#endif
	}
#ifdef LOOK_IN_STEPS
	read_index(cur(view));
#endif
	atomic {
#ifdef LOOK_IN_STEPS
		visit_rows(cur(view));
#else
		look(cur(view));
#endif
		if
		:: found == FOUND -> assert(backed(cur(view))); next_call()
		:: found == PENDING -> found = 0; goto wait
		:: found == MET ->
#ifdef PLACEHOLDER_IS_ANSWER
			assert(backed(cur(view))); next_call()
#endif
#ifndef PLACEHOLDER_IS_FREE
			if
			:: is_open(view) -> met = 1
			:: else ->
				/* an old view; were it the latest, this would never end */
				assert(!same(view, row));
				view = row; found = 0;
				goto claim
			fi
#endif
		:: else
		fi;
		found = 0
	}
	if
	:: atomic {
			is_open(view) ->
#ifdef LOOK_IN_STEPS
			read_index(nxt(view))
		}
		atomic {
			visit_rows(nxt(view));
#else
			look(nxt(view));
#endif
			if
			:: found == FOUND -> assert(backed(nxt(view))); next_call()
			:: found == PENDING -> found = 0; goto wait
#ifdef NEXT_PLACEHOLDER_IS_ANSWER
			:: found == MET -> assert(backed(nxt(view))); next_call()
#endif
			:: else ->
				/* a placeholder there: the view is an old one */
				assert(found == FREE || !same(view, row));
				found = 0
			fi
		}
	:: !is_open(view)
	fi;

	/*
	 * Nothing found: a transaction id, then the view again.
	 */
	xids = xids | mybit;
#ifndef VIEW_BEFORE_XID
	atomic {
		was = view;
		accept();
		if
		:: same(view, was)
		:: else ->
			was = 0;
#ifdef NO_SECOND_LOOK
			met = 0
#else
			goto claim
#endif
		fi;
		was = 0
	}
#endif

	/*
	 * Then write.
	 */
#ifndef NO_PLACEHOLDER
	if
	:: is_open(view) && !met ->
		atomic {
			insert(cur(view), PLACEHOLDER);
			if
			:: won(cur(view)) -> placed = 1; goto place_taken
			:: else
			fi
		}
		atomic {
			recheck(cur(view), PLACEHOLDER);
			if
			:: won(cur(view)) -> placed = 1; goto place_taken
			:: else
			fi
		}
		atomic { give_up(cur(view)); goto claim }
	:: else
	fi;
place_taken:
#endif
	atomic {
		g = (is_open(view) -> nxt(view) : cur(view));
		insert(g, kind);
		if
		:: won(g) -> g = 0; next_call()
		:: else -> g = 0
		fi
	}
	atomic {
		g = (is_open(view) -> nxt(view) : cur(view));
		recheck(g, kind);
		if
		:: won(g) -> g = 0; next_call()
		:: else -> g = 0
		fi
	}
	atomic {
		g = (is_open(view) -> nxt(view) : cur(view));
		give_up(g);
		g = 0;
		if
		:: placed -> take_back(cur(view))
		:: else
		fi;
		goto claim
	}

wait:
	atomic { waitfor[me] == 0 -> goto claim }

	/*
	 * Complete, abandon, forget: find the record, change that version of it.
	 */
change:
	find_record();
	atomic {
		if
		:: loc[me] == 0 -> next_call()
		:: else
		fi
	}
	atomic {
		/* wait for whoever is changing it */
		if
		:: loc[me] == CHANGED || !wr[at] || mine(at)
		:: waits_for_me(wr[at]) -> at = 0; goto deadlock
		fi;
#ifndef CHANGE_ANY_VERSION
		if
		:: loc[me] == CHANGED -> loc[me] = 0; at = 0; goto change
		:: else
		fi;
#endif
		g = at; at = 0;
		was = (mine(g) -> new[g] : com[g]);
		if
		:: kind == was				/* is completed already */
		:: else ->
			xids = xids | mybit;
			if
			:: kind == NONE && com[g] == NONE -> take_back(g)
			:: else -> wr[g] = me + 1; new[g] = kind
			fi
		fi;
		g = 0; was = 0;
		next_call()
	}

deadlock:
	loc[me] = 0;
	goto over;

end:
	/* without an id there is nothing to abort */
	if
	:: commit = 1
	:: xids & mybit
	fi;
over:
	atomic {
		end_transaction(commit);
		commit = 0; ops = 0; kind = NONE;
		if
		:: txs < TXS -> goto begin
		:: else -> view = 0
		fi
	}
}
