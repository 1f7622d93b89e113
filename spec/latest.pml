/* Asynchronous mode: what happens to the latest value when its owner changes or is lost.
 *
 * Two nodes add ROUNDS updates each to one partition. Its owner adds an update when it comes and
 * answers with a copy of the value, behind the stamp that says which updates are in it. A node has
 * one update under way, which it keeps, and the copy of its last answer. Plan version v makes server
 * v the owner: version 0 from the beginning, later ones by a planned change (CHANGES), or because an
 * owner has died (DEATHS) or is declared dead (FALSE_DEATHS). A link is a lossless FIFO until an end
 * dies, or it is reset (RESETS): both directions are lost, and the node says where it stands.
 *
 * A new owner waits for both nodes' reports, asks the node with the newest copy for it, goes on from
 * that copy and its stamp, and tells each node the last of its updates that is in it. In a planned
 * change the nodes hear from the former owner that it has closed (MOVED), else from the scheduler.
 *
 * A value is the number of times that each node's updates were added. Checked: an answer has every
 * update of the node that gets it once (OWN), none of the other's more often than that has pushed
 * (TWICE), and all that its former answer had (FALLEN); when nothing can happen any more all updates
 * are answered, and in the newest copy (the proctype Watch).
 * Mutations (-DM_...): each removes one rule; tests/spec/test_spec.py expects every one to fail.
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef CHANGES
#define CHANGES 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef FALSE_DEATHS
#define FALSE_DEATHS 0
#endif
#ifndef RESETS
#define RESETS 0
#endif
#define N 2
#define SERVERS 4 /* as many plan versions there can be */
#define LINK(n, s) ((n) * SERVERS + (s))
#define OTHER(n) (1 - (n))
#define CAPACITY 6

/* Frames: a round, then a stamp (or a copy's) and a value, each by node. */
mtype = { UPDATE, REPORT, COPY, SYNC, ANSWER, RECOVERED, MOVED, ASK };

chan up[8] = [CAPACITY] of { mtype, byte, byte, byte, byte, byte };
chan down[8] = [CAPACITY] of { mtype, byte, byte, byte, byte, byte };

typedef Pair { byte at[N]; }
/* ---- nodes ---- */
byte done[N];       /* rounds that are answered */
bit pushed[N];      /* round done + 1 is under way */
Pair stamp[N];      /* of the copy that it holds ... */
Pair value[N];      /* ... and the copy */
byte follows[N];    /* the version of the owner that it listens to */
bit reported[N];    /* it waits to hear where the new owner stands */
byte ahead[N];       /* the owner to be, announced; 0: none */
bit told[N];        /* to recover to `plan` */
/* ---- servers ---- */
#define ABSENT 0
#define OPEN 1
#define RECOVERING 2
#define RESTORING 3
#define CLOSED 4
typedef Server_t { byte state; bit closing; Pair applied; Pair has; bit reports[N]; byte held[N]; Pair copy[N]; byte holder; }
Server_t server[SERVERS];
bit alive[SERVERS];
/* ---- scheduler ---- */
byte plan;            /* the newest version */
bit changing;         /* to server `plan`, from the one before */
bit recovering;       /* the nodes are being told */
byte dead;            /* 1 + a server that is declared dead, until the nodes are told */
byte changes, deaths, false_deaths, resets;

#define DISCARD(c) do :: c?_,_,_,_,_,_ :: empty(c) -> break od
#define TO_SERVER(n, type, r, a, b, c, d) if :: alive[follows[n]] -> up[LINK(n, follows[n])]!type,r,a,b,c,d :: else -> skip fi
#define TO_NODE(s, n, type, r, a, b, c, d) down[LINK(n, s)]!type,r,a,b,c,d
#define PUSH(n) if :: pushed[n] && !reported[n] -> TO_SERVER(n, UPDATE, done[n] + 1, 0, 0, 0, 0) :: else -> skip fi
#define SEND_REPORT(n) TO_SERVER(n, REPORT, done[n], stamp[n].at[0], stamp[n].at[1], 0, 0)
#define ANSWER_TO(s, n) TO_NODE(s, n, ANSWER, server[s].applied.at[n], server[s].applied.at[0], server[s].applied.at[1], server[s].has.at[0], server[s].has.at[1])
#define UPDATES(p) (p.at[0] + p.at[1])
#ifdef M_ANY_SERVER /* listens to a former owner too */
#define LISTENS(n, s) 1
#else
#define LISTENS(n, s) (follows[n] == (s))
#endif

inline Follow(n, v) { follows[n] = v; reported[n] = 1; ahead[n] = 0; SEND_REPORT(n) }

inline OnAnswer(n, r, a, b, c, d) {
  if
  :: pushed[n] && r == done[n] + 1 ->
     assert((n == 0 -> c : d) == r);                                                       /* OWN */
     assert((n == 0 -> d : c) <= done[OTHER(n)] + pushed[OTHER(n)]);                       /* TWICE */
     assert(c >= value[n].at[0] && d >= value[n].at[1]);                                   /* FALLEN */
     done[n] = r; pushed[n] = 0; stamp[n].at[0] = a; stamp[n].at[1] = b; value[n].at[0] = c; value[n].at[1] = d
  :: else -> skip
  fi
}

proctype Node(byte n) {
  byte s, r, a, b, c, d;
end:
  do
  :: atomic { !pushed[n] && done[n] < ROUNDS -> pushed[n] = 1; PUSH(n) }
  :: atomic { told[n] -> told[n] = 0; if :: follows[n] != plan -> Follow(n, plan) :: else -> skip fi }
  :: atomic { nempty(down[LINK(n, 0)]) || nempty(down[LINK(n, 1)]) || nempty(down[LINK(n, 2)]) || nempty(down[LINK(n, 3)]) ->
       if
       :: nempty(down[LINK(n, 0)]) -> s = 0 :: nempty(down[LINK(n, 1)]) -> s = 1
       :: nempty(down[LINK(n, 2)]) -> s = 2 :: nempty(down[LINK(n, 3)]) -> s = 3
       fi;
       if
       :: down[LINK(n, s)]?ANSWER,r,a,b,c,d -> if :: LISTENS(n, s) -> OnAnswer(n, r, a, b, c, d) :: else -> skip fi
       :: down[LINK(n, s)]?RECOVERED,r,a,b,c,d ->
          if
          :: follows[n] == s && reported[n] -> reported[n] = 0; if :: done[n] + 1 > r -> PUSH(n) :: else -> skip fi
          :: else -> skip
          fi
       :: down[LINK(n, s)]?MOVED,r,a,b,c,d ->
          if
          :: follows[n] == s && ahead[n] == a && done[n] < r -> TO_SERVER(n, SYNC, done[n], 0, 0, 0, 0)
          :: follows[n] == s && ahead[n] == a && done[n] >= r -> Follow(n, a)
          :: else -> skip
          fi
       :: down[LINK(n, s)]?ASK,r,a,b,c,d ->
          if :: follows[n] == s && done[n] == r -> TO_SERVER(n, COPY, r, value[n].at[0], value[n].at[1], 0, 0) :: else -> skip fi
       fi; s = 0; r = 0; a = 0; b = 0; c = 0; d = 0 }
  od
}

inline Open(s) {
  server[s].state = OPEN;
  TO_NODE(s, 0, RECOVERED, server[s].applied.at[0], 0, 0, 0, 0);
  if :: server[s].applied.at[0] > server[s].held[0] -> ANSWER_TO(s, 0) :: else -> skip fi;
  TO_NODE(s, 1, RECOVERED, server[s].applied.at[1], 0, 0, 0, 0);
  if :: server[s].applied.at[1] > server[s].held[1] -> ANSWER_TO(s, 1) :: else -> skip fi
}

inline Restore(s) {
#ifdef M_FIRST_COPY /* takes any copy */
  server[s].holder = (UPDATES(server[s].copy[0]) > 0 -> 0 : 1);
#else
  server[s].holder = (UPDATES(server[s].copy[0]) >= UPDATES(server[s].copy[1]) -> 0 : 1);
#endif
#ifdef M_NO_STAMP /* takes each node's word for what is in the copy */
  server[s].applied.at[0] = server[s].held[0]; server[s].applied.at[1] = server[s].held[1];
#else
  server[s].applied.at[0] = server[s].copy[server[s].holder].at[0];
  server[s].applied.at[1] = server[s].copy[server[s].holder].at[1];
#endif
  if
  :: UPDATES(server[s].copy[server[s].holder]) == 0 -> Open(s)
  :: else -> server[s].state = RESTORING; TO_NODE(s, server[s].holder, ASK, server[s].held[server[s].holder], 0, 0, 0, 0)
  fi
}

#ifdef M_OPEN_EARLY /* goes on when the first node has reported */
#define ALL_REPORTED(s) (server[s].reports[0] || server[s].reports[1])
#else
#define ALL_REPORTED(s) (server[s].reports[0] && server[s].reports[1])
#endif

inline OnUpdate(s, n, r) {
  if
  :: (server[s].state == OPEN || server[s].state == CLOSED) && r == server[s].applied.at[n] -> ANSWER_TO(s, n)
  :: server[s].state == CLOSED && r > server[s].applied.at[n] -> TO_NODE(s, n, MOVED, server[s].applied.at[n], s + 1, 0, 0, 0)
  :: server[s].state == OPEN && r > server[s].applied.at[n] ->
     server[s].applied.at[n] = r; server[s].has.at[n] = server[s].has.at[n] + 1; ANSWER_TO(s, n)
  :: else -> skip
  fi
}

proctype Server(byte s) {
  byte n, r, a, b, c, d;
end:
  do
  :: !alive[s] -> break
  :: atomic { alive[s] && server[s].closing && server[s].state == OPEN ->
       server[s].state = CLOSED; server[s].closing = 0;
       TO_NODE(s, 0, MOVED, server[s].applied.at[0], s + 1, 0, 0, 0); TO_NODE(s, 1, MOVED, server[s].applied.at[1], s + 1, 0, 0, 0) }
  :: atomic { alive[s] && (nempty(up[LINK(0, s)]) || nempty(up[LINK(1, s)])) ->
       if :: nempty(up[LINK(0, s)]) -> n = 0 :: nempty(up[LINK(1, s)]) -> n = 1 fi;
       if
       :: up[LINK(n, s)]?UPDATE,r,a,b,c,d -> OnUpdate(s, n, r)
       :: up[LINK(n, s)]?REPORT,r,a,b,c,d ->
          if
          :: server[s].state == RECOVERING ->
             server[s].reports[n] = 1; server[s].held[n] = r; server[s].copy[n].at[0] = a; server[s].copy[n].at[1] = b;
             if :: ALL_REPORTED(s) -> Restore(s) :: else -> skip fi
          :: server[s].state == RESTORING && server[s].holder == n -> TO_NODE(s, n, ASK, server[s].held[n], 0, 0, 0, 0)
          :: server[s].state == OPEN || server[s].state == CLOSED ->
             TO_NODE(s, n, RECOVERED, server[s].applied.at[n], 0, 0, 0, 0);
             if :: server[s].applied.at[n] > r -> ANSWER_TO(s, n) :: else -> skip fi
          :: else -> skip
          fi
       :: up[LINK(n, s)]?COPY,r,a,b,c,d ->
          if
          :: server[s].state == RESTORING && server[s].holder == n && r == server[s].held[n] ->
             server[s].has.at[0] = a; server[s].has.at[1] = b; Open(s)
          :: else -> skip
          fi
       :: up[LINK(n, s)]?SYNC,r,a,b,c,d ->
          if
          :: server[s].state == CLOSED ->
             if :: server[s].applied.at[n] > r -> ANSWER_TO(s, n) :: else -> skip fi;
             TO_NODE(s, n, MOVED, server[s].applied.at[n], s + 1, 0, 0, 0)
          :: else -> skip
          fi
       fi; n = 0; r = 0; a = 0; b = 0; c = 0; d = 0 }
  od
}

#define SETTLED(v) (follows[0] == (v) && follows[1] == (v))

inline Declare() { dead = 0; plan = plan + 1; changing = 0; server[plan].state = RECOVERING; recovering = 1 }

proctype World() {
  byte n, s;
end:
  do
  /* a planned change: the owner to be first, then the nodes are told, then the owner hands over */
  :: atomic { changes < CHANGES && !changing && !recovering && !dead && SETTLED(plan) && alive[plan] && plan + 1 < SERVERS ->
       changes++; plan = plan + 1; changing = 1; server[plan].state = RECOVERING; ahead[0] = plan; ahead[1] = plan }
  :: atomic { changing && alive[plan - 1] && !server[plan - 1].closing && server[plan - 1].state == OPEN -> server[plan - 1].closing = 1 }
  :: atomic { changing && SETTLED(plan) -> changing = 0 }
  /* the owner, or the one that hands over, is lost; the new owner first, then the nodes, one by one */
  :: atomic { deaths < DEATHS && !recovering && !dead && plan + 1 < SERVERS ->
       deaths++; if :: s = plan :: changing -> s = plan - 1 fi;
       alive[s] = 0; DISCARD(up[LINK(0, s)]); DISCARD(up[LINK(1, s)]); dead = 1 + s; s = 0 }
  :: atomic { dead -> Declare(); told[0] = 1; told[1] = 1 }
  :: atomic { false_deaths < FALSE_DEATHS && !recovering && !dead && plan + 1 < SERVERS -> false_deaths++; Declare(); told[0] = 1; told[1] = 1 }
  :: atomic { recovering && SETTLED(plan) -> recovering = 0 }
  /* a link breaks: what was on its way is lost, and the node says where it stands */
  :: atomic { resets < RESETS && alive[follows[0]] -> resets++; n = 0;
       goto reset }
  :: atomic { resets < RESETS && alive[follows[1]] -> resets++; n = 1;
reset: DISCARD(up[LINK(n, follows[n])]); DISCARD(down[LINK(n, follows[n])]);
       TO_SERVER(n, SYNC, done[n], 0, 0, 0, 0);
       if :: reported[n] -> SEND_REPORT(n) :: else -> skip fi;
       PUSH(n); n = 0 }
  od
}

/* When nothing can happen any more. */
proctype Watch() {
  timeout;
  assert(done[0] == ROUNDS && done[1] == ROUNDS);
  assert(value[0].at[0] + value[0].at[1] >= 2 * ROUNDS || value[1].at[0] + value[1].at[1] >= 2 * ROUNDS)
}

init {
  byte i;
  atomic {
    server[0].state = OPEN;
    for (i : 0 .. SERVERS - 1) { alive[i] = 1 }
    run Node(0); run Node(1); run Server(0); run Server(1); run Server(2); run Server(3); run World(); run Watch()
  }
}
