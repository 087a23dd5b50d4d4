/* What the files of the peer links share: the links of a node, and one link. Nobody else includes
 * it.
 *
 *   accepted ──► EXPECTING ──HELLO──► UP ──────► CLOSED
 *                    │                ▲             ▲
 *                    └─refused, joiner┼─► LEAVING ──┤
 *   dialled ──► DIALLING ──► GREETING ┘WELCOME      │
 *                   └───────────┴───────────────────┘
 */
#ifndef NODE_LINK_INTERNAL_H_
#define NODE_LINK_INTERNAL_H_

#include <uv.h>

#include "fsm/base/buf.h"
#include "fsm/base/list.h"
#include "fsm/base/rng.h"
#include "node/conn.h"
#include "node/link.h"
#include "node/link_frame.h"
#include "node/link_peers.h"

enum link_state {
    LINK_STATE_DIALLING,  /* the connection is being made */
    LINK_STATE_GREETING,  /* HELLO is sent, WELCOME is awaited */
    LINK_STATE_EXPECTING, /* accepted from a stranger, HELLO is awaited */
    LINK_STATE_UP,
    LINK_STATE_LEAVING, /* refused, or a joiner that has its answer: to be written, then closed */
    LINK_STATE_CLOSED,
};

struct link {
    struct links *links;
    struct conn *conn;
    uv_connect_t connect;
    enum link_state state;
    bool dialled;               /* by us */
    struct link_target *target; /* borrowed; whom we dialled, or, while UP, the peer */
    struct list link;           /* in links->all */
    struct list dirty;          /* in links->dirty */
    struct list stranger;       /* in links->strangers */
    struct list bulk;           /* frames that wait behind all others */
    size_t bulk_len;
    uint64_t peer_id;       /* while UP */
    uint64_t peer_instance; /* while UP */
    uint64_t deadline_ns;   /* of everything before UP, and of LEAVING */
    uint64_t received_ns;   /* when bytes came last */
    uint64_t sent_ns;       /* when bytes were sent last */
    uint64_t written;       /* position in the stream, to count bytes */
    bool silence_told;
};

struct bulk_frame {
    struct list link;
    size_t len;
    uint8_t bytes[];
};

struct links {
    struct loop *loop;
    struct link_callbacks callbacks;
    uv_tcp_t server;
    bool server_open;
    bool insecure_network;
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    struct conn_pool pool;
    struct link_self self;
    uint64_t instance; /* random, of this run: tells a restarted peer from one that dials twice */
    char address[ADDRESS_TEXT_LEN];
    struct link_targets targets;
    struct list all;
    struct list dirty;
    struct list strangers; /* accepted, not UP; oldest first */
    unsigned stranger_count;
    struct loop_timer *timer;
    uint64_t step_at_ns;
    uint64_t stepped_ns;
    struct rng rng;
    struct buf scratch; /* one frame under construction */
    struct link_stats stats;
};

/* link.c: life of a link. */
void link_move(struct link *link, enum link_state state);

/* Close it; tells on_down where it was UP. `refused` makes the next dial wait longer. */
void link_close(struct link *link, bool refused);

/* The link is no longer what its target has or waits for; a failure where it was not UP. */
void link_detach(struct link *link, bool refused);

/* Its connection is closed: free it. */
void link_free(struct link *link);

/* Wake the timer at that time at the latest. */
void links_wake(struct links *links, uint64_t at_ns);

/* May that address be used here? */
bool links_address_fine(const struct links *links, struct slice text, struct address *out_address);

/* link_greet.c: who is at the other end. */
void link_send_hello(struct link *link);

/* A frame that came before the link was UP. */
void link_greet(struct link *link, const struct link_frame *frame);

/* Tell the other end why not, then close. */
void link_refuse(struct link *link, enum link_refusal code, const char *why);

/* link_io.c: frames in and out. */
extern const struct conn_callbacks link_conn_callbacks;
void link_write(struct link *link);
void link_mark_dirty(struct link *link);
bool links_send(void *ctx, uint64_t peer_id, enum frame_type type, bool bulk,
                struct slice payload);
bool links_wait(void *ctx, uint64_t peer_id);
void link_drop_bulk(struct link *link);

#endif
