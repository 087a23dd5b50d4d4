/* The life of one call of a client: connect, send, receive, and once more where that is right.
 *
 * Pure: it is told what happened and what time it is, and answers with what to do next. Retry looks
 * at the class of a status and at nothing else:
 *
 *   NOT_DONE  sent again inside the deadline, after a pause that doubles up to SESSION_PAUSE_NS_MAX
 *   MAYBE     final (UNKNOWN): only the node may repeat a request under its own number; reads
 * change nothing and are asked again NEVER     final
 *
 *            ┌───────────────── WAIT ◄───────────────┐ not done, time left
 *            ▼                                       │
 *   start ► CONNECT ──► SEND ──► RECEIVE ──answer──► decide ──► FINISH
 *            ▲            │          └──lost: as MAYBE───┘
 *            └────────────┘ a pooled connection that is gone: a fresh one, at once
 *
 * Who drives it: client.c with blocking calls, a simulation with events. */
#ifndef CLIENT_SESSION_H_
#define CLIENT_SESSION_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/rng.h"
#include "fsm/base/status.h"
#include "fsm/base/units.h"

#define SESSION_PAUSE_NS_MIN (5 * NS_PER_MS)   /* a restarting node is back in tens of ms */
#define SESSION_PAUSE_NS_MAX (500 * NS_PER_MS) /* an election fits several times into a deadline   \
                                                */

/* What to do next. */
enum session_action {
    SESSION_ACTION_CONNECT, /* get a connection: a pooled one or, if session_fresh, a new one */
    SESSION_ACTION_SEND,    /* send the request, all of it */
    SESSION_ACTION_RECEIVE, /* wait for the reply with its id until the deadline */
    SESSION_ACTION_WAIT,    /* do nothing until session_wait_until_ns */
    SESSION_ACTION_FINISH,  /* session_status has how it ended */
};

/* What happened. */
enum session_event {
    SESSION_EVENT_CONNECTED,      /* a new connection */
    SESSION_EVENT_REUSED,         /* a pooled connection */
    SESSION_EVENT_CONNECT_FAILED, /* with its status */
    SESSION_EVENT_SENT,           /* the last byte was handed over */
    SESSION_EVENT_SEND_FAILED,    /* it was not: the node cannot have it whole; with status */
    SESSION_EVENT_ANSWERED,       /* with the status of the reply; the connection is good */
    SESSION_EVENT_LOST,           /* the connection broke, or what came is no reply */
    SESSION_EVENT_REFUSED,   /* the node spoke of the connection: nothing is done; with status */
    SESSION_EVENT_TIMED_OUT, /* no answer until the deadline */
    SESSION_EVENT_WAITED,
};

struct session {
    uint64_t deadline_ns;
    uint64_t pause_ns; /* of the next wait, before chance */
    uint64_t wait_until_ns;
    struct rng rng;
    enum status status; /* how the last attempt ended */
    bool read_only;
    bool connected; /* the connection in hand may be used again */
    bool pooled;    /* the connection in hand was idle before */
    bool fresh;     /* the next connection must be a new one */
};

/* `seed` spreads the pauses of callers that failed together. */
enum session_action session_start(struct session *session, uint64_t deadline_ns, bool read_only,
                                  uint64_t seed);

/* `status` counts for CONNECT_FAILED, SEND_FAILED, ANSWERED and REFUSED. */
enum session_action session_step(struct session *session, enum session_event event,
                                 enum status status, uint64_t now_ns);

/* True when trying again inside a deadline can help. */
bool session_retryable(enum status status);

#endif
