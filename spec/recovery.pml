/* What happens to one partition when its owner changes: hand-over, server death, scheduler restart.
 *
 * N nodes push rounds 1..ROUNDS of one partition; SERVERS summation servers may own it, of which the
 * last never dies (a colocated server lives as long as its job). Every handler is one atomic step.
 * A link is a lossless FIFO in each direction until it is reset. The value of a result is its round:
 * a result is a pure function of the nodes' immutable contributions, so any owner computes the same.
 *
 * Checked: a node takes the result of exactly the round that it waits for (assertions at TAKE), a
 * result that is asked for is still held (RETAINED), no contribution is of a round that its owner
 * has left behind (KNOWN), and when nothing can happen any more every node holds every round (the
 * proctype Watch). All behaviours are finite, so that is liveness too.
 *
 * Bounds (-D): ROUNDS, CHANGES planned changes, DEATHS, FALSE_DEATHS (a living server is declared
 * dead and goes on sending), RESTARTS of the scheduler, RESETS of links, EXIT (a released server
 * leaves). SLOTS: a result is written into the node's slot of its parity by the server itself, as
 * RDMA and the colocated server do; else it comes as a frame that names its round.
 * Mutations (-DM_...): each removes one rule; tests/spec/test_spec.py expects every one to fail.
 *
 * docs/recovery.md tells it in prose, and where the code has it.
 */
#ifndef ROUNDS
#define ROUNDS 3
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
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef RESETS
#define RESETS 0
#endif
#define N 2
#define SERVERS 3
#define LINK(n, s) ((n) * SERVERS + (s))
#define SLOT(n, r) ((n) * 2 + (r) % 2)
#define MAX(x, y) ((x) > (y) -> (x) : (y))
#define CAPACITY 8

/* Frames of the data path. The three fields: plan version, round, server. */
mtype = { CONTRIBUTION, RESULT, MOVED, SYNC, REPORT, RECOVERED, SUPPLY, SUPPLIED };
/* The scheduler's orders: plan version, owner, set of servers declared dead. */
mtype = { PLAN, HAND_OVER, RECOVER };
/* What a server is to the partition. */
#define ABSENT 0     /* nothing: not told of it, or released */
#define OPEN 1       /* the owner */
#define CLOSING 2    /* the owner, which hands over at the end of the round */
#define CLOSED 3     /* a former owner, kept until every node follows the new one */
#define RECOVERING 4 /* the owner that learns from the nodes where the partition stands */
/* What a node is to it. */
#define FOLLOWING 0
#define REPORTED 1   /* waits to hear from the new owner which round comes next */

chan up[6] = [CAPACITY] of { mtype, byte, byte };         /* node -> server: version, round */
chan down[6] = [CAPACITY] of { mtype, byte, byte, byte }; /* server -> node: version, round, new owner */
chan order[5] = [3] of { mtype, byte, byte, byte };       /* scheduler -> nodes 0, 1 and servers 0..2 */

/* ---- nodes ---- */
byte held[N];          /* the last round whose result the node holds */
bit pushed[N];         /* it has started round held + 1 */
byte slot[4];          /* the two results by parity of the round */
byte follows[N];       /* the owner as the node knows it ... */
byte version[N];       /* ... and the plan version that made it so */
byte mode[N];
bit severed[6];        /* the node has closed its link to that server for good */
bit revoked[6];        /* SLOTS: that server may no longer write into the node's slots */
/* ---- servers ---- */
typedef Server_t {
  byte state; byte version; byte next_version; byte next_owner;
  byte contributed[4]; /* by parity and node: the round */
  byte sealed[2]; byte last; byte recovery; byte reports; byte report[N]; byte lacking; byte newest };
Server_t server[SERVERS];
bit alive[SERVERS];
bit gone[SERVERS];     /* released, and left */
/* ---- scheduler ---- */
#define STABLE 0
#define ANNOUNCED 1
#define HANDING_OVER 2
#define RECOVERING_OWNER 3 /* the new owner has been told */
#define RECOVERING_NODES 4 /* the nodes have been told too */
byte plan = 1;
byte owner; byte former; bit unreleased; byte phase; byte acks;
bit declared[SERVERS];
byte changes, deaths, false_deaths, restarts, resets;

#ifdef SLOTS
#define REVOKED(n, s) revoked[LINK(n, s)]
#define REVOKE(n, s) revoked[LINK(n, s)] = 1; DISCARD_DOWN(n, s)
#define GRANT(n, s) revoked[LINK(n, s)] = 0
#else
#define REVOKED(n, s) 0
#define REVOKE(n, s) skip
#define GRANT(n, s) skip
#endif
#define DISCARD_UP(n, s) do :: up[LINK(n, s)]?_,_,_ :: empty(up[LINK(n, s)]) -> break od
#define DISCARD_DOWN(n, s) do :: down[LINK(n, s)]?_,_,_,_ :: empty(down[LINK(n, s)]) -> break od
#define TO_SERVER(n, s, type, v, r) \
  if :: alive[s] && !severed[LINK(n, s)] -> assert(nfull(up[LINK(n, s)])); up[LINK(n, s)]!type,v,r :: else -> skip fi
#define TO_NODE(s, n, type, v, r, o) \
  if :: !severed[LINK(n, s)] && !REVOKED(n, s) -> assert(nfull(down[LINK(n, s)])); down[LINK(n, s)]!type,v,r,o :: else -> skip fi

/* ---- the node ---- */
#ifdef M_LATE_WRITE /* a server that was declared dead may still write into the slots */
#define LATE_WRITES 1
#else
#define LATE_WRITES 0
#endif
#define PUSH(n) \
  if :: pushed[n] && mode[n] == FOLLOWING -> TO_SERVER(n, follows[n], CONTRIBUTION, version[n], held[n] + 1) :: else -> skip fi
#ifdef M_REPORT_SENT
#define HELD(n) (held[n] + pushed[n])
#else
#define HELD(n) held[n]
#endif
#ifdef M_ANY_VERSION
#define NEWER(v, n) ((v) != version[n])
#else
#define NEWER(v, n) ((v) > version[n])
#endif
/* Once a node has reported what it holds, a result of the former owner would make that untrue. */
#ifdef M_ANY_SERVER
#define TAKES_FROM(n, s) 1
#else
#define TAKES_FROM(n, s) (follows[n] == (s))
#endif
#ifdef M_MOVED_OVERTAKES
#define HAS_UP_TO(n, r) 1
#else
#define HAS_UP_TO(n, r) (held[n] >= (r))
#endif
#define FOLLOW(n, v, o) follows[n] = o; version[n] = v; mode[n] = FOLLOWING; GRANT(n, o)

proctype Node(byte n) {
  byte s, v, r, o, dead;
end:
  do
  :: atomic { !pushed[n] && held[n] < ROUNDS ->
       pushed[n] = 1;
#ifdef M_DROP_RESULT
       slot[SLOT(n, held[n])] = 0;
#endif
       PUSH(n) }
  :: atomic { order[n]?PLAN,v,o,dead -> /* it connects to the owner to be, but grants it nothing before it follows it */
#ifdef M_GRANT_EARLY
       if :: v > version[n] -> GRANT(n, o) :: else -> skip fi;
#endif
       if :: v == plan -> acks = acks | (1 << n) :: else -> skip fi; v = 0; o = 0 }
  :: atomic { order[n]?RECOVER,v,o,dead ->
       if
       :: v >= version[n] -> /* equal: repeated by a restarted scheduler */
          s = 0;
          do
          :: s < SERVERS ->
             if :: s != o && v > version[n] && !(LATE_WRITES && (dead & (1 << s))) -> REVOKE(n, s) :: else -> skip fi;
             if :: !LATE_WRITES && (dead & (1 << s)) -> DISCARD_DOWN(n, s); severed[LINK(n, s)] = 1 :: else -> skip fi;
             s++
          :: else -> break
          od;
          if
          :: v > version[n] -> FOLLOW(n, v, o); mode[n] = REPORTED; TO_SERVER(n, o, REPORT, v, HELD(n))
          :: else -> if :: mode[n] == REPORTED -> TO_SERVER(n, o, REPORT, v, HELD(n)) :: else -> skip fi
          fi
       :: else -> skip
       fi; s = 0; v = 0; o = 0; dead = 0 }
  :: atomic { nempty(down[LINK(n, 0)]) || nempty(down[LINK(n, 1)]) || nempty(down[LINK(n, 2)]) ->
       if :: nempty(down[LINK(n, 0)]) -> s = 0 :: nempty(down[LINK(n, 1)]) -> s = 1 :: nempty(down[LINK(n, 2)]) -> s = 2 fi;
       if
       :: down[LINK(n, s)]?RESULT,v,r,o ->
#ifdef SLOTS
          /* The immediate names the slot only. */
          if
          :: pushed[n] && r % 2 == (held[n] + 1) % 2 ->
             assert(r == held[n] + 1);                                       /* TAKE */
             slot[SLOT(n, r)] = r; held[n] = r; pushed[n] = 0
          :: else -> assert(slot[SLOT(n, r)] == r || slot[SLOT(n, r)] == 0)  /* TAKE: it changes nothing */
          fi
#else
          assert(r <= held[n] + 1 && (r <= held[n] || pushed[n]));           /* TAKE */
          if
          :: r == held[n] + 1 && TAKES_FROM(n, s) -> slot[SLOT(n, r)] = r; held[n] = r; pushed[n] = 0
          :: else -> skip
          fi
#endif
       :: down[LINK(n, s)]?MOVED,v,r,o ->
          if
          :: NEWER(v, n) && HAS_UP_TO(n, r) -> REVOKE(n, s); FOLLOW(n, v, o); PUSH(n)
          :: NEWER(v, n) && !HAS_UP_TO(n, r) -> TO_SERVER(n, s, SYNC, version[n], held[n]) /* a reset lost the result */
          :: else -> skip
          fi
       :: down[LINK(n, s)]?RECOVERED,v,r,o ->
          if :: v == version[n] && mode[n] == REPORTED ->
                mode[n] = FOLLOWING;
                if :: held[n] >= r -> PUSH(n) :: else -> skip fi /* else result r is on its way */
             :: else -> skip fi
       :: down[LINK(n, s)]?SUPPLY,v,r,o ->
          assert(slot[SLOT(n, r)] == r);                                     /* RETAINED */
          TO_SERVER(n, s, SUPPLIED, v, r)
       fi; s = 0; v = 0; r = 0; o = 0 }
  od
}

/* ---- the server ---- */
#define HOLDS(s, r) (server[s].sealed[(r) % 2] == (r) && (r) != 0)
#define SEND_RESULT(s, n, r) TO_NODE(s, n, RESULT, server[s].version, r, 0)
#define SEND_MOVED(s, n) TO_NODE(s, n, MOVED, server[s].next_version, server[s].last, server[s].next_owner)
/* Nothing of the round after the last sealed one has been accepted. */
#define BETWEEN_ROUNDS(s) (server[s].contributed[0] <= server[s].last && server[s].contributed[1] <= server[s].last && \
                           server[s].contributed[2] <= server[s].last && server[s].contributed[3] <= server[s].last)
#ifdef M_MID_ROUND /* closes whenever it is told to, and tells only who asks */
#define MAY_CLOSE(s) 1
#define TELL_MOVED(s) skip
#else
#define MAY_CLOSE(s) (!server[s].lacking && BETWEEN_ROUNDS(s))
#define TELL_MOVED(s) SEND_MOVED(s, 0); SEND_MOVED(s, 1)
#endif
#define CLOSE(s) server[s].state = CLOSED; TELL_MOVED(s)
#define CLOSE_IF_DUE(s) if :: server[s].state == CLOSING && MAY_CLOSE(s) -> CLOSE(s) :: else -> skip fi
/* Sent when the server was the owner in a former time: it must not tell a fresh owner where the partition stands. */
#define OUTDATED(s, v) ((v) < server[s].version)
#define IS_OWNER(s) (server[s].state == OPEN || server[s].state == CLOSING)
#define ACCEPT(s, n, r) server[s].contributed[(r) % 2 * 2 + n] = r
#define COMPLETE(s, r) (server[s].contributed[(r) % 2 * 2] == (r) && server[s].contributed[(r) % 2 * 2 + 1] == (r))

proctype Server(byte s) {
  byte n, v, r, o, dead;
end:
  do
  :: !alive[s] -> break
  :: atomic { alive[s] && order[2 + s]?[PLAN,v,o,dead] -> order[2 + s]?PLAN,v,o,dead;
       if
       :: v > server[s].version && v > server[s].recovery -> /* a fresh owner: the first contribution tells the round */
          server[s].version = v; server[s].state = OPEN; server[s].last = 0; server[s].sealed[0] = 0; server[s].sealed[1] = 0;
          server[s].contributed[0] = 0; server[s].contributed[1] = 0; server[s].contributed[2] = 0; server[s].contributed[3] = 0
       :: else -> skip
       fi;
       if :: v == plan -> acks = acks | 4 :: else -> skip fi; v = 0; o = 0; dead = 0 }
  :: atomic { alive[s] && order[2 + s]?[HAND_OVER,v,o,dead] -> order[2 + s]?HAND_OVER,v,o,dead;
       if
       :: (server[s].state == OPEN || server[s].state == RECOVERING) && v > server[s].version ->
          server[s].next_version = v; server[s].next_owner = o;
          if :: server[s].state == OPEN -> server[s].state = CLOSING; CLOSE_IF_DUE(s)
             :: else -> skip /* when it has recovered */
          fi
       :: else -> skip
       fi; v = 0; o = 0; dead = 0 }
  :: atomic { alive[s] && order[2 + s]?[RECOVER,v,o,dead] -> order[2 + s]?RECOVER,v,o,dead;
       if
       :: v > server[s].recovery && v > server[s].version ->
          server[s].recovery = v; server[s].version = v; server[s].state = RECOVERING; server[s].reports = 0; server[s].lacking = 0;
          server[s].report[0] = 0; server[s].report[1] = 0;
          server[s].contributed[0] = 0; server[s].contributed[1] = 0; server[s].contributed[2] = 0; server[s].contributed[3] = 0
       :: else -> skip
       fi;
       if :: v == plan -> acks = acks | 4 :: else -> skip fi; v = 0; o = 0; dead = 0 }
  :: atomic { alive[s] && (nempty(up[LINK(0, s)]) || nempty(up[LINK(1, s)])) ->
       if :: nempty(up[LINK(0, s)]) -> n = 0 :: nempty(up[LINK(1, s)]) -> n = 1 fi;
       if
       :: up[LINK(n, s)]?CONTRIBUTION,v,r ->
          if
          :: server[s].state == ABSENT || OUTDATED(s, v) -> skip
          :: server[s].state != ABSENT && !OUTDATED(s, v) && HOLDS(s, r) -> SEND_RESULT(s, n, r)
          :: server[s].state == CLOSED && !OUTDATED(s, v) && !HOLDS(s, r) -> SEND_MOVED(s, n)
          :: IS_OWNER(s) && !OUTDATED(s, v) && !HOLDS(s, r) ->
             assert(r > server[s].last || server[s].lacking);                /* KNOWN */
             if
             :: r > server[s].last ->
                ACCEPT(s, n, r);
                if
                :: COMPLETE(s, r) ->
                   server[s].sealed[r % 2] = r; server[s].last = r;
                   SEND_RESULT(s, 0, r); SEND_RESULT(s, 1, r);
                   CLOSE_IF_DUE(s)
                :: else -> skip
                fi
             :: else -> skip /* result r is on its way from the node that holds it */
             fi
          :: server[s].state == RECOVERING && !OUTDATED(s, v) && !HOLDS(s, r) -> skip /* it will be sent again after RECOVERED */
          fi
       :: up[LINK(n, s)]?SYNC,v,r -> /* after a reset: what the node follows and holds */
          if
          :: server[s].state == CLOSED && v < server[s].next_version ->
             if :: HOLDS(s, r + 1) -> SEND_RESULT(s, n, r + 1) :: else -> skip fi;
             SEND_MOVED(s, n)
          :: else -> skip
          fi;
          if :: server[s].state != RECOVERING && server[s].lacking && !(server[s].lacking & (1 << n)) ->
                TO_NODE(s, n, SUPPLY, server[s].recovery, server[s].newest, 0) :: else -> skip fi
       :: up[LINK(n, s)]?REPORT,v,r ->
          if
          :: v == server[s].recovery && server[s].state == RECOVERING ->
             server[s].reports = server[s].reports | (1 << n); server[s].report[n] = r;
             if
             :: server[s].reports == 3 ->
                server[s].state = (server[s].next_version > server[s].version -> CLOSING : OPEN);
                server[s].newest = MAX(server[s].report[0], server[s].report[1]);
                server[s].last = MAX(server[s].last, server[s].newest);
                assert(server[s].report[0] + 1 >= server[s].newest && server[s].report[1] + 1 >= server[s].newest);
                n = 0;
                do
                :: n < N ->
                   TO_NODE(s, n, RECOVERED, v, server[s].newest, 0);
                   if
                   :: server[s].report[n] < server[s].newest && HOLDS(s, server[s].newest) -> SEND_RESULT(s, n, server[s].newest)
                   :: server[s].report[n] < server[s].newest && !HOLDS(s, server[s].newest) ->
                      server[s].lacking = 1 << n; TO_NODE(s, 1 - n, SUPPLY, v, server[s].newest, 0)
                   :: else -> skip
                   fi;
                   n++
                :: else -> break
                od;
                CLOSE_IF_DUE(s)
             :: else -> skip
             fi
          :: v == server[s].recovery && server[s].state != RECOVERING -> /* repeated */
             TO_NODE(s, n, RECOVERED, v, server[s].newest, 0);
             if :: HOLDS(s, r + 1) -> SEND_RESULT(s, n, r + 1) :: else -> skip fi
          :: else -> skip
          fi
       :: up[LINK(n, s)]?SUPPLIED,v,r ->
          if
          :: server[s].lacking && server[s].newest == r ->
             server[s].sealed[r % 2] = r;
             if :: server[s].lacking & 1 -> SEND_RESULT(s, 0, r) :: else -> SEND_RESULT(s, 1, r) fi;
             server[s].lacking = 0;
             CLOSE_IF_DUE(s)
          :: else -> skip
          fi
       fi; n = 0; v = 0; r = 0 }
  od
}

/* ---- the scheduler ---- */
byte next;
#define CHOOSE(not) \
  if :: not != 0 && !declared[0] && !gone[0] -> next = 0 :: not != 1 && !declared[1] && !gone[1] -> next = 1 \
     :: not != 2 && !declared[2] && !gone[2] -> next = 2 fi
#define HAS_CHOICE(not) ((not != 0 && !declared[0] && !gone[0]) || (not != 1 && !declared[1] && !gone[1]) || (not != 2 && !declared[2] && !gone[2]))
#define DEAD ((declared[0] -> 1 : 0) | (declared[1] -> 2 : 0) | (declared[2] -> 4 : 0))
#define CAN_TELL_SERVER(s) (!alive[s] || nfull(order[2 + s]))
#define CAN_TELL (nfull(order[0]) && nfull(order[1]) && CAN_TELL_SERVER(0) && CAN_TELL_SERVER(1) && CAN_TELL_SERVER(2))
#define TELL_SERVER(s, type) if :: alive[s] -> order[2 + s]!type,plan,owner,0 :: else -> skip fi
#define TELL_NODES(type) order[0]!type,plan,owner,DEAD; order[1]!type,plan,owner,DEAD
#define ANNOUNCE() acks = 0; phase = ANNOUNCED; TELL_SERVER(owner, PLAN); TELL_NODES(PLAN)
#ifdef M_NODES_FIRST
#define START_RECOVERY() acks = 4; phase = RECOVERING_OWNER; TELL_SERVER(owner, RECOVER)
#else
#define START_RECOVERY() acks = 0; phase = RECOVERING_OWNER; TELL_SERVER(owner, RECOVER)
#endif
#define MAY_DECLARE(s) (!declared[s] && !gone[s] && (!alive[s] || false_deaths < FALSE_DEATHS))

proctype Scheduler() {
  byte s;
end:
  do
  :: atomic { changes < CHANGES && phase == STABLE && CAN_TELL && HAS_CHOICE(owner) ->
       changes++; CHOOSE(owner); plan++; former = owner; owner = next; next = 0; unreleased = 1; ANNOUNCE() }
  :: atomic { phase == ANNOUNCED && acks == 7 && CAN_TELL ->
       phase = HANDING_OVER; acks = 0; TELL_SERVER(former, HAND_OVER) }
  :: atomic { phase == HANDING_OVER && version[0] >= plan && version[1] >= plan -> /* each node has said so */
       phase = STABLE; unreleased = 0;
       if :: alive[former] && !declared[former] -> server[former].state = ABSENT; server[former].sealed[0] = 0; server[former].sealed[1] = 0
          :: else -> skip fi;
#ifdef EXIT
       if
       :: alive[former] -> alive[former] = 0; gone[former] = 1; DISCARD_UP(0, former); DISCARD_UP(1, former)
       :: skip
       fi;
#endif
       former = 0 }
  :: atomic { CAN_TELL && (MAY_DECLARE(0) || MAY_DECLARE(1)) ->
       if :: MAY_DECLARE(0) -> s = 0 :: MAY_DECLARE(1) -> s = 1 fi;
       declared[s] = 1;
       if :: alive[s] -> false_deaths++ :: else -> skip fi;
       if :: owner == s || (unreleased && former == s) ->
             CHOOSE(s); plan++; owner = next; next = 0; unreleased = 0; former = 0; START_RECOVERY()
          :: else -> skip fi;
       s = 0 }
  :: atomic { phase == RECOVERING_OWNER && acks == 4 && CAN_TELL -> phase = RECOVERING_NODES; TELL_NODES(RECOVER) }
  :: atomic { phase == RECOVERING_NODES -> phase = STABLE; acks = 0 } /* it need not know when the owner has recovered */
  :: atomic { restarts < RESTARTS && phase != STABLE && CAN_TELL -> /* it repeats the change that it was in */
       restarts++;
       if
       :: phase == ANNOUNCED || phase == HANDING_OVER -> ANNOUNCE()
       :: phase == RECOVERING_OWNER || phase == RECOVERING_NODES -> START_RECOVERY()
       fi }
  od
}

/* ---- what goes wrong ---- */
/* Of what a dead server had sent, anything may still arrive. */
#define LOSE_SOME(n, s) if :: skip :: nempty(down[LINK(n, s)]) -> DISCARD_DOWN(n, s) fi
#define DIE(s) deaths++; alive[s] = 0; DISCARD_UP(0, s); DISCARD_UP(1, s); LOSE_SOME(0, s); LOSE_SOME(1, s)
/* The node connects again, finds the same incarnation, and says where it stands. */
#define RESET(n, s) resets++; DISCARD_UP(n, s); DISCARD_DOWN(n, s); \
  if :: follows[n] == s -> TO_SERVER(n, s, SYNC, version[n], held[n]); \
        if :: mode[n] == REPORTED -> TO_SERVER(n, s, REPORT, version[n], HELD(n)) :: else -> PUSH(n) fi \
     :: else -> skip fi
#define IN_USE(n, s) (alive[s] && !severed[LINK(n, s)] && (nempty(up[LINK(n, s)]) || nempty(down[LINK(n, s)])))

proctype Trouble() {
end:
  do
  :: atomic { deaths < DEATHS && alive[0] -> DIE(0) }
  :: atomic { deaths < DEATHS && alive[1] -> DIE(1) }
  :: atomic { resets < RESETS && IN_USE(0, 0) -> RESET(0, 0) }
  :: atomic { resets < RESETS && IN_USE(0, 1) -> RESET(0, 1) }
  :: atomic { resets < RESETS && IN_USE(0, 2) -> RESET(0, 2) }
  od
}

/* Nothing can happen any more: then every node holds every round, and the scheduler waits for nobody. */
active proctype Watch() {
  timeout -> assert(held[0] == ROUNDS && held[1] == ROUNDS); assert(phase == STABLE)
}

init {
  atomic {
    alive[0] = 1; alive[1] = 1; alive[2] = 1;
    server[0].state = OPEN; server[0].version = 1; version[0] = 1; version[1] = 1;
    run Node(0); run Node(1); run Server(0); run Server(1); run Server(2); run Scheduler(); run Trouble()
  }
}
