/* What happens to the open rounds when a node is lost: the owners decide, each for its partitions.
 *
 * Three nodes push rounds 1..ROUNDS of a tensor of two partitions; node 2 is lost at any moment
 * (FALSE_LOSS: it is only taken for lost, and goes on sending). Server p owns partition p; server 2
 * takes over what a dead server owned (DEATHS; FALSE_DEATHS: it is only declared dead), by the rules
 * of recovery.pml, of which this is the part that matters here. A link is a lossless FIFO until an
 * end dies. The value of a result is the set of the nodes in it.
 *
 * The scheduler tells the servers and the nodes who is lost, in any order. An owner that knows seals
 * nothing any more: whoever has contributed to the open round, or does so later, is told that it is
 * aborted. With SHRINK it goes on instead: the open round completes without the lost node, unless
 * that has contributed already, and so do all later ones. A node that knows starts no round any
 * more, and waits for the owners' word on the one that it has started. Its round of the tensor ends
 * well when it has all results, and fails when one partition of it is aborted.
 *
 * Checked: all nodes that are left get the same value of every partition of every round (SAME); none
 * gets a result of a round that another was told is aborted, nor the reverse (VERDICT); when nothing
 * can happen any more they all have all rounds, or failed in the same one (the proctype Watch).
 * Mutations (-DM_...): each removes one rule; tests/spec/test_spec.py expects every one to fail.
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef FALSE_DEATHS
#define FALSE_DEATHS 0
#endif
#define N 3
#define LOST 2 /* the node that is */
#define SERVERS 3
#define LINK(n, s) ((n) * SERVERS + (s))
#define BIT(n) (1 << (n))
#define SURVIVORS 3
#define ALL 7
#define CAPACITY 6

/* Frames: round, value. */
mtype = { CONTRIBUTION, RESULT, ABORTED, REPORT, RECOVERED };
/* The scheduler's orders: the partition. */
mtype = { NODE_LOST, JOB_FAILED, RECOVER };

chan up[9] = [CAPACITY] of { mtype, byte, byte };
chan down[9] = [CAPACITY] of { mtype, byte, byte };
chan order[6] = [3] of { mtype, byte }; /* scheduler -> nodes 0..2, servers 0..2 */

/* ---- nodes: by 2 n + p ---- */
byte done[N];        /* rounds of the tensor that it has */
bit pushed[N];       /* it has started round done + 1 */
byte held[6];        /* the last round of the partition that it holds ... */
byte holds[6];       /* ... and its value */
byte follows[6];     /* the partition's owner */
bit reported[6];     /* it waits to hear from the new owner */
byte failed[N];      /* the round of the tensor that was aborted; 0: none */
bit knows[N];        /* it starts nothing any more */
bit running[N];
bit severed[9];
/* ---- servers ---- */
#define ABSENT 0
#define OPEN 1
#define RECOVERING 2
typedef Server_t { byte state; byte partition; byte last; byte value; byte contributed; byte reports; byte report[N]; bit knows; }
Server_t server[SERVERS];
bit alive[SERVERS];
/* ---- all ---- */
bit lost, told;           /* node 2, as it is and as the scheduler has said */
byte declared;            /* server 1 + that is dead to the scheduler; 0: none */
bit nodes_told;
byte deaths, false_deaths;
byte agreed[6];           /* by 2 round + partition: the value that a survivor has got */
bit aborted[6];           /* a survivor was told so */

#define DISCARD_UP(n, s) do :: up[LINK(n, s)]?_,_,_ :: empty(up[LINK(n, s)]) -> break od
#define DISCARD_DOWN(n, s) do :: down[LINK(n, s)]?_,_,_ :: empty(down[LINK(n, s)]) -> break od
#define TO_SERVER(n, s, type, r, v) if :: alive[s] && !severed[LINK(n, s)] -> up[LINK(n, s)]!type,r,v :: else -> skip fi
#define TO_NODE(s, n, type, r, v) if :: running[n] && !severed[LINK(n, s)] -> down[LINK(n, s)]!type,r,v :: else -> skip fi
#define P(n, p) (2 * (n) + (p))
#define AT(r, p) (2 * (r) - 2 + (p))

#define PUSH(n, p) \
  if :: pushed[n] && !failed[n] && !reported[P(n, p)] && held[P(n, p)] == done[n] -> \
        TO_SERVER(n, follows[P(n, p)], CONTRIBUTION, done[n] + 1, 0) :: else -> skip fi
#ifdef M_ANY_SERVER /* listens to a former owner too */
#define TAKES_FROM(n, p, s) 1
#else
#define TAKES_FROM(n, p, s) (follows[P(n, p)] == (s))
#endif

#define FAIL_NEXT(n) if :: knows[n] && !pushed[n] && !failed[n] && done[n] < ROUNDS -> failed[n] = done[n] + 1 :: else -> skip fi

proctype Node(byte n) {
  byte s, r, v, p;
end:
  do
  :: !running[n] -> break
  :: atomic { running[n] && !pushed[n] && !failed[n] && !knows[n] && done[n] < ROUNDS ->
       pushed[n] = 1; PUSH(n, 0); PUSH(n, 1) }
#ifdef M_NODES_DECIDE /* a node that hears of the loss gives up its open round by itself */
  :: atomic { running[n] && n != LOST && told && pushed[n] && !failed[n] ->
       failed[n] = done[n] + 1; aborted[AT(done[n] + 1, 0)] = 1 }
#endif
#ifndef SHRINK
  :: atomic { running[n] && order[n]?[JOB_FAILED,p] -> order[n]?JOB_FAILED,p; knows[n] = 1; p = 0; FAIL_NEXT(n) }
#endif
  :: atomic { running[n] && order[n]?[RECOVER,p] -> order[n]?RECOVER,p;
       follows[P(n, p)] = 2; reported[P(n, p)] = 1;
#ifndef M_ANY_SERVER
       DISCARD_DOWN(n, p); severed[LINK(n, p)] = 1;
#endif
       TO_SERVER(n, 2, REPORT, held[P(n, p)], holds[P(n, p)]); p = 0 }
  :: atomic { running[n] && (nempty(down[LINK(n, 0)]) || nempty(down[LINK(n, 1)]) || nempty(down[LINK(n, 2)])) ->
       if :: nempty(down[LINK(n, 0)]) -> s = 0 :: nempty(down[LINK(n, 1)]) -> s = 1 :: nempty(down[LINK(n, 2)]) -> s = 2 fi;
       p = (s == 2 -> server[2].partition : s);
       if
       :: down[LINK(n, s)]?RESULT,r,v ->
          if
          :: r == held[P(n, p)] + 1 && r == done[n] + 1 && TAKES_FROM(n, p, s) ->
             if
             :: n != LOST ->
                assert(agreed[AT(r, p)] == 0 || agreed[AT(r, p)] == v); /* SAME */
                assert(!aborted[AT(r, p)]);                             /* VERDICT */
                agreed[AT(r, p)] = v
             :: else -> skip
             fi;
             held[P(n, p)] = r; holds[P(n, p)] = v;
             if
             :: held[P(n, 0)] == r && held[P(n, 1)] == r && !failed[n] -> done[n] = r; pushed[n] = 0; FAIL_NEXT(n)
             :: else -> skip
             fi
          :: else -> skip
          fi
       :: down[LINK(n, s)]?ABORTED,r,v ->
          if
          :: r == done[n] + 1 && TAKES_FROM(n, p, s) && !reported[P(n, p)] ->
             if :: n != LOST -> assert(agreed[AT(r, p)] == 0); aborted[AT(r, p)] = 1 :: else -> skip fi; /* VERDICT */
             failed[n] = r
          :: else -> skip
          fi
       :: down[LINK(n, s)]?RECOVERED,r,v -> reported[P(n, p)] = 0; PUSH(n, p)
       fi; s = 0; r = 0; v = 0; p = 0 }
  od
}

/* ---- the server ---- */
#define EXPECTED(s) (server[s].knows -> SURVIVORS : ALL)
#ifdef SHRINK
#define COMPLETE(s) ((server[s].contributed & EXPECTED(s)) == EXPECTED(s))
#define IS_ABORTED(s) 0
#else
#ifdef M_SEALS_AFTER_ABORT /* goes on with a round that it has aborted */
#define COMPLETE(s) (server[s].contributed == ALL)
#else
#define COMPLETE(s) (server[s].contributed == ALL && !server[s].knows)
#endif
#define IS_ABORTED(s) server[s].knows
#endif
#define SEAL_IF_COMPLETE(s) \
  if :: server[s].state == OPEN && COMPLETE(s) -> \
        server[s].last++; server[s].value = server[s].contributed; server[s].contributed = 0; \
        TO_NODE(s, 0, RESULT, server[s].last, server[s].value); TO_NODE(s, 1, RESULT, server[s].last, server[s].value); \
        TO_NODE(s, 2, RESULT, server[s].last, server[s].value) \
     :: else -> skip fi
#define ABORT_TO(s, n) \
  if :: server[s].state == OPEN && IS_ABORTED(s) && (server[s].contributed & BIT(n)) -> \
        TO_NODE(s, n, ABORTED, server[s].last + 1, 0) :: else -> skip fi
#define RECOVERED_IF_ALL(s) \
  if :: server[s].state == RECOVERING && (server[s].reports & EXPECTED(s)) == EXPECTED(s) -> \
        server[s].state = OPEN; n = 0; \
        do :: n < N -> \
              if :: (server[s].reports & BIT(n)) && server[s].report[n] < server[s].last -> \
                    TO_NODE(s, n, RESULT, server[s].last, server[s].value) \
                 :: else -> skip fi; \
              TO_NODE(s, n, RECOVERED, server[s].last, 0); n++ \
           :: else -> break od; n = 0 \
     :: else -> skip fi

proctype Server(byte s) {
  byte n, r, v, p;
end:
  do
  :: !alive[s] -> break
  :: atomic { alive[s] && order[3 + s]?[NODE_LOST,p] -> order[3 + s]?NODE_LOST,p;
       server[s].knows = 1;
       DISCARD_UP(LOST, s); DISCARD_DOWN(LOST, s); severed[LINK(LOST, s)] = 1;
       RECOVERED_IF_ALL(s); SEAL_IF_COMPLETE(s); ABORT_TO(s, 0); ABORT_TO(s, 1) }
  :: atomic { alive[s] && order[3 + s]?[RECOVER,p] -> order[3 + s]?RECOVER,p;
       server[s].state = RECOVERING; server[s].partition = p; p = 0 }
  :: atomic { alive[s] && (nempty(up[LINK(0, s)]) || nempty(up[LINK(1, s)]) || nempty(up[LINK(2, s)])) ->
       if :: nempty(up[LINK(0, s)]) -> n = 0 :: nempty(up[LINK(1, s)]) -> n = 1 :: nempty(up[LINK(2, s)]) -> n = 2 fi;
       if
       :: up[LINK(n, s)]?CONTRIBUTION,r,v ->
          if
          :: server[s].state == OPEN && r == server[s].last + 1 ->
             server[s].contributed = server[s].contributed | BIT(n);
             SEAL_IF_COMPLETE(s); ABORT_TO(s, n)
          :: else -> skip
          fi
       :: up[LINK(n, s)]?REPORT,r,v ->
          if
          :: server[s].state == RECOVERING ->
             server[s].reports = server[s].reports | BIT(n); server[s].report[n] = r;
             if :: r > server[s].last -> server[s].last = r; server[s].value = v :: else -> skip fi;
             RECOVERED_IF_ALL(s)
          :: else -> TO_NODE(s, n, RECOVERED, server[s].last, 0)
          fi
       fi; n = 0; r = 0; v = 0 }
  od
}

/* ---- the scheduler, and what goes wrong ---- */
#define LOSE_SOME(n, s) if :: skip :: nempty(up[LINK(n, s)]) -> DISCARD_UP(n, s) fi
#define MAY_DECLARE(s) (declared == 0 && (!alive[s] || false_deaths < FALSE_DEATHS))

proctype Scheduler() {
  byte s;
end:
  do
  :: atomic { lost && !told ->
       told = 1;
#ifndef SHRINK
       order[0]!JOB_FAILED,0; order[1]!JOB_FAILED,0;
#endif
#ifdef M_OWNER_NOT_TOLD /* who becomes an owner later does not learn of the loss */
       order[3]!NODE_LOST,0; order[4]!NODE_LOST,0
#else
       order[3]!NODE_LOST,0; order[4]!NODE_LOST,0; order[5]!NODE_LOST,0
#endif
     }
  :: atomic { MAY_DECLARE(0) || MAY_DECLARE(1) ->
       if :: MAY_DECLARE(0) -> s = 0 :: MAY_DECLARE(1) -> s = 1 fi;
       if :: alive[s] -> false_deaths++ :: else -> skip fi;
       declared = 1 + s; order[5]!RECOVER,s; s = 0 }
  :: atomic { declared != 0 && !nodes_told && server[2].state != ABSENT ->
       nodes_told = 1;
       order[0]!RECOVER,declared - 1; order[1]!RECOVER,declared - 1; order[2]!RECOVER,declared - 1 }
  od
}

#define DIE(s) deaths++; alive[s] = 0; DISCARD_UP(0, s); DISCARD_UP(1, s); DISCARD_UP(2, s)
proctype Trouble() {
end:
  do
  :: atomic { !lost ->
       lost = 1;
#ifndef FALSE_LOSS
       running[LOST] = 0; LOSE_SOME(LOST, 0); LOSE_SOME(LOST, 1); LOSE_SOME(LOST, 2);
       DISCARD_DOWN(LOST, 0); DISCARD_DOWN(LOST, 1); DISCARD_DOWN(LOST, 2)
#endif
     }
  :: atomic { deaths < DEATHS && alive[0] -> DIE(0) }
  :: atomic { deaths < DEATHS && alive[1] -> DIE(1) }
  od
}

/* Nothing can happen any more. */
active proctype Watch() {
  timeout ->
#ifdef SHRINK
  assert(done[0] == ROUNDS && done[1] == ROUNDS)
#else
  assert(done[0] == done[1]); assert(failed[0] == failed[1]);
  assert(done[0] == ROUNDS || failed[0] == done[0] + 1)
#endif
}

init {
  atomic {
    alive[0] = 1; alive[1] = 1; alive[2] = 1; running[0] = 1; running[1] = 1; running[2] = 1;
    server[0].state = OPEN; server[1].state = OPEN; server[1].partition = 1;
    follows[1] = 1; follows[3] = 1; follows[5] = 1;
    run Node(0); run Node(1); run Node(2); run Server(0); run Server(1); run Server(2); run Scheduler(); run Trouble()
  }
}
