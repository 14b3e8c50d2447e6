/*
 * ring.pml
 *	  The ring of three generations, as seen by one message key.
 *
 * CLAIMERS sessions run TXS transactions of up to OPS calls each: claim, begin,
 * complete, abandon, forget (claimer.pml), while a maintainer turns the ring
 * TURNS times (maintainer.pml). The search is exhaustive: every interleaving
 * of their steps. What must hold stands as assertions; spin itself reports a
 * session that can wait for ever.
 *
 * What is left out, and why that loses nothing:
 *
 * - One key. Nothing in the protocol looks at two keys together.
 * - A generation holds, for the key, one committed row (com) and what a
 *   session will make of it (wr, new). The unique index allows no more, but
 *   for rows that lost and are not deleted yet (lose).
 * - A view is the number of steps taken so far: it tells which generation is
 *   current and how far the ring has turned.
 * - Transaction ids are only ever compared with the horizon: one bit per
 *   session (olds) says on which side of it the session's id is.
 * - Time passes at the maintainer's choice: it may take a step at any moment
 *   after what the step waits for, or never. Whether the sealed generation
 *   has reached the retention is a bit (aged), set at any moment.
 * - Waits are unbounded, and a transaction aborts only at its end: so a circle
 *   of waits shows as a deadlock. Who gives up earlier leaves the same behind.
 * - Abandon and forget both delete the record, and only the first one's
 *   demand that it be in progress tells them apart: forget stands for both.
 *
 * The macros NO_PLACEHOLDER and the like, listed in the file "run", each break
 * one rule of the protocol; then the search must find a violation.
 */

#ifndef CLAIMERS
#define CLAIMERS	2			/* 3 at most */
#endif
#ifndef TXS
#define TXS			2
#endif
#ifndef OPS
#define OPS			2
#endif
#ifndef TURNS
#define TURNS		2
#endif

#define GENERATIONS 3
#define MAINTAINER	CLAIMERS	/* the session that maintains */

/* what a row can be */
#define NONE		0
#define PLACEHOLDER 1
#define BEGUN		2			/* a two-phase record, in progress */
#define DONE		3			/* a completed record */
#define proper(r)	((r) >= BEGUN)

/*
 * The view after v steps. 3n: the ring stands; 3n + 1: next was opened; 3n + 2:
 * current was sealed, is previous now; 3n + 3: previous was emptied.
 */
#define cur(v)		((((v) + 1) / 3) % 3)
#define nxt(v)		((cur(v) + 1) % 3)
#define prv(v)		((cur(v) + 2) % 3)
#define is_open(v)	((v) % 3 == 1)
#define is_sealed(v) ((v) % 3 == 2)
#ifdef VIEW_BY_VALUE
#define same(v, w)	((v) % 9 == (w) % 9)
#else
#define same(v, w)	((v) == (w))
#endif

#define bitof(s)	(1 << (s))
#define mybit		bitof(me)

/* the generations */
byte com[GENERATIONS];			/* the committed row */
byte wr[GENERATIONS];			/* 1 + the session that is changing it */
byte new[GENERATIONS];			/* the row, should that session commit */
byte lose[GENERATIONS];			/* sessions whose row has lost */
#define mine(g)		(wr[g] == me + 1)

/* the state of the ring */
byte row;						/* its view, committed */
bit horizon = 1;				/* a horizon was stored since the last step */
bit aged;						/* previous was sealed for the retention */

/* transactions and invalidations, a bit per session */
byte xids;						/* has a transaction id */
byte olds;						/* ... from before the horizon */
byte stale;						/* has invalidations to accept */

byte waitfor[CLAIMERS];			/* 1 + the session whose transaction must end */
byte loc[3];					/* 1 + the generation of the row found */
#define CHANGED		4			/* ... which is not the latest any more */
#ifdef FIND_UNLOCKED
byte snap[3];					/* 1 + the generation in which to find it */
#endif

/*
 * What is true of the message, whatever the tables say: the kind of the record
 * that is in force, NONE if it may be processed (again).
 */
byte held;
byte owed;						/* sessions whose search must find a record */

/* Others may not act on what they found in generation g before this. */
inline outdate(g)
{
	i = 0;
	do
	:: i < CLAIMERS ->
		if
		:: loc[i] == (g) + 1 -> loc[i] = CHANGED
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* The session's transaction commits or aborts: all at once, as for readers. */
inline end_transaction(commit)
{
	d_step {
		/* what it deletes, then what it adds: a move is both */
		g = 0;
		do
		:: g < GENERATIONS ->
			if
			:: commit && mine(g) && proper(com[g]) ->
				was = held; held = NONE;
				owed = (me == MAINTAINER -> owed : 0)
			:: else
			fi;
			g++
		:: else -> break
		od;
		g = 0;
		do
		:: g < GENERATIONS ->
			if
			:: mine(g) && commit ->
				if
				:: proper(new[g]) ->
					/* one effect in force, whichever table shows it */
					assert(held == NONE);
					/* expiry counts from the seal: no record comes later */
					assert(proper(com[g]) ||
						   !(is_sealed(row) && g == prv(row)));
					held = new[g]
				:: else
				fi;
				com[g] = new[g];
				outdate(g)
			:: else
			fi;
			if
			:: mine(g) -> wr[g] = 0; new[g] = NONE
			:: else
			fi;
			lose[g] = lose[g] & ~mybit;
			g++
		:: else -> break
		od;
		/* a move changes nothing for the message */
		assert(me != MAINTAINER || !commit || held == was);
		/* the tables show just the record that is in force */
		g = 0; was = 0;
		do
		:: g < GENERATIONS ->
			was = was + proper(com[g]);
			g++
		:: else -> break
		od;
		assert(was <= 1);
		was = NONE;

		xids = xids & ~mybit;
		olds = olds & ~mybit;
		do
		:: i < CLAIMERS ->
			if
			:: waitfor[i] == me + 1 -> waitfor[i] = 0
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0; g = 0
	}
}

#include "claimer.pml"
#include "maintainer.pml"

init
{
	byte s;

	atomic {
		run Maintainer();
		do
		:: s < CLAIMERS -> run Claimer(s); s++
		:: else -> break
		od
	}
}
