/*
 * maintainer.pml
 *	  The session that turns the ring.
 *
 * One process stands for any number: a step holds the lock on the state row
 * until its end, and who does not get the lock does nothing.
 */

#define ALL			(bitof(CLAIMERS) - 1)

#ifdef NO_WAITING
#define may_step	horizon
#else
#define may_step	(horizon && !olds)
#endif
#ifdef NO_SEAL_HORIZON
#define may_empty	true
#else
#define may_empty	may_step
#endif

/* A session holds a lock on generation g that conflicts with TRUNCATE's. */
#define finder(s, g) (s < CLAIMERS && loc[s] == g + 1)
#define locked(g)	(wr[g] || lose[g] || finder(0, g) || finder(1, g) || \
					 finder(2, g))

/* A step, in the transaction that takes it. */
inline step()
{
#ifdef HORIZON_IN_STEP
	olds = xids;
#endif
	row++;
	horizon = 0
}

/*
 * It has committed. Its invalidation is sent before its lock on the state row
 * is released, and only then can the next transaction store the horizon.
 */
inline after_step()
{
#ifdef HORIZON_IN_STEP
	stale = ALL;
	horizon = 1
#else
#ifdef LATE_INVALIDATION
	d_step { olds = xids; horizon = 1 }
	stale = ALL
#else
	stale = ALL;
	d_step { olds = xids; horizon = 1 }
#endif
#endif
}

proctype Maintainer()
{
	byte me = MAINTAINER;
	bit commit;
	byte was, g, i;

end_maintain:
	do
	/* open */
	:: atomic {
			may_step && row % 3 == 0 && row < 3 * TURNS ->
			g = nxt(row);
			assert(!com[g] && !wr[g] && !lose[g]);
			g = 0;
			step()
		}
		after_step()
	/* seal */
	:: atomic { may_step && is_open(row) -> aged = 0; step() }
		after_step()
	/* time passes */
	:: is_sealed(row) && !aged -> aged = 1
	/* move a survivor */
	:: atomic {
			is_sealed(row) && may_empty && aged && com[prv(row)] == BEGUN &&
			!wr[prv(row)] ->
#ifndef MOVE_UNLOCKED
			wr[prv(row)] = me + 1; new[prv(row)] = BEGUN
#endif
		}
		atomic {
#ifdef MOVE_UNLOCKED
			!wr[prv(row)] && !taken(cur(row)) ->
#endif
			wr[prv(row)] = me + 1; new[prv(row)] = NONE;
			assert(!taken(cur(row)));
			wr[cur(row)] = me + 1; new[cur(row)] = BEGUN
		}
		atomic {
			if
			:: commit = 1
			:: true
			fi;
			end_transaction(commit);
			commit = 0
		}
	/* empty */
	:: atomic {
			is_sealed(row) && may_empty && !locked(prv(row)) &&
#ifndef NO_SEAL_AGE
			aged &&
#endif
#ifdef NO_SURVIVORS
			true ->
#else
			com[prv(row)] != BEGUN ->
#endif
			g = prv(row);
			assert(com[g] != BEGUN);
			if
			:: com[g] == DONE && aged -> held = NONE; owed = 0
			:: else
			fi;
			com[g] = NONE;
			outdate(g);
#ifdef FIND_UNLOCKED
			/* an emptied table is empty under every snapshot */
			do
			:: i < CLAIMERS ->
				loc[i] = (snap[i] == g + 1 -> 0 : loc[i]);
				i++
			:: else -> i = 0; break
			od;
#endif
			g = 0; aged = 0;
			step()
		}
		after_step()
	od
}
