/* What the two halves of the router share: router.c moves requests, router_jobs.c moves numbers. */
#ifndef NODE_ROUTER_INTERNAL_H_
#define NODE_ROUTER_INTERNAL_H_

#include "fsm/base/heap.h"
#include "fsm/base/rng.h"
#include "node/holds.h"
#include "node/router.h"
#include "node/window.h"

/* Numbers of this origin and of the one before, and the entry that opens one. */
#define ROUTER_JOBS_MAX 4096u
#define ROUTER_POOL_MAX 1024u /* free requests that are kept */
#define ROUTER_LARGE_LEN (64u * 1024u) /* bytes of outcomes; more, or several parts: a large one */
#define ROUTER_SENDINGS_TOLD_APART 64u /* bits of `open` */

_Static_assert((ROUTER_JOBS_MAX & (ROUTER_JOBS_MAX - 1)) == 0, "a ticket's slot is a mask");
_Static_assert(ROUTER_JOBS_MAX > 2 * UNCONFIRMED_MAX, "two windows and an opening fit");

enum job_kind {
    JOB_KIND_PART,   /* a part of a request */
    JOB_KIND_SETTLE, /* its number is being settled */
    JOB_KIND_OPEN,   /* draws the origin */
};

enum job_state {
    JOB_STATE_FREE,
    JOB_STATE_WAITING,  /* numbered; its request has enough others under way */
    JOB_STATE_READY,    /* goes out as soon as a leader is known */
    JOB_STATE_SENT,
    JOB_STATE_PAUSED,   /* refused or lost; goes out again at `timer_ns` or to another leader */
    JOB_STATE_RENUMBER, /* its origin was forgotten; wants a number of the next one */
    JOB_STATE_ANSWERED, /* until its reply is delivered */
};

struct job {
    struct list link;
    struct heap_node timer;
    uint64_t timer_ns;
    enum job_kind kind;
    enum job_state state;
    uint64_t id; /* of its tickets; its slot is in the low bits */
    uint64_t origin;
    uint64_t sequence;
    uint64_t nonce; /* OPEN */

    uint32_t attempts; /* sendings so far */
    uint64_t open;       /* a bit for each sending that may have been done */
    uint32_t open_first; /* which sending the lowest bit is of */
    bool untold;         /* an older one may have been done too; nobody remembers which */
    uint64_t sent_peer; /* of the last sending; 0: here */
    uint64_t sent_term;
    void *proposal; /* borrowed: of the last sending while the replica here has it, else NULL */
    uint64_t pause_ns;
    uint64_t silence_ns;
    enum status last_status; /* why the last sending was not done; OK: none was refused */

    struct request *request; /* PART, until it is abandoned or delivered */
    uint32_t part;
    bool fed; /* counted in its request's parts_sending */
    struct hold hold;
};

struct router {
    router_withdraw_cb withdraw;
    void *withdraw_ctx;
    struct list queue;       /* small requests */
    struct list queue_large; /* and large ones, each in the order of arrival */
    /* Numbered since the first large one does not fit: together with that they fit. */
    uint64_t passed_order; /* of arrival, of that large one */
    uint64_t passed_count;
    uint64_t passed_len;
    struct list held;
    struct list numbered;
    struct list answered;
    struct list delivering;
    struct list pool;
    uint32_t pool_count;
    struct heap deadlines;
    uint64_t order_last;

    struct job *slots[ROUTER_JOBS_MAX]; /* owned; created when first needed, then kept */
    struct list free_jobs;
    uint32_t slot_count;
    uint32_t job_count; /* not free */
    uint64_t generation;
    struct list waiting;
    struct list ready;
    struct list ready_settles; /* before all others */
    struct list sent;
    struct list paused;
    struct list renumber;
    struct list answered_jobs;
    struct heap retries;

    uint64_t origin; /* 0: none yet */
    struct job *opening;
    struct window window;
    struct holds holds;
    bool holds_shrunk; /* what is held may go on */

    struct route route;
    bool forwards_held;
    struct reads reads;
    struct rng rng;
    struct result_decoder *decoder;
    bool closing;
    bool ended;
    struct router_stats stats;
};

/* --- router_jobs.c */

void jobs_init(struct router *router);
void jobs_deinit(struct router *router);

static inline uint32_t jobs_free(const struct router *router)
{
    return ROUTER_JOBS_MAX - router->job_count;
}

/* Number a part. It waits until job_feed. */
void job_number(struct router *router, struct request *request, uint32_t part);

/* Its turn has come: it goes out when a leader is known. */
void job_feed(struct router *router, struct job *job);

/* The request stops waiting for this part, which is not done: the status to show for it. Its number
 * is settled, confirmed or dropped. */
enum status job_give_up(struct router *router, struct job *job);

/* The part was answered and its reply was, or was not, wholly written. */
void job_delivered(struct router *router, struct job *job, bool settle);

/* Number again what lost its origin, open an origin when one is wanted. */
void jobs_pump(struct router *router, bool origin_wanted);

/* The next sending, if there is one. */
bool jobs_next_effect(struct router *router, uint64_t now_ns, struct router_effect *out_effect);

void jobs_set_route(struct router *router);
void jobs_tick(struct router *router, uint64_t now_ns);
void jobs_end(struct router *router);

/* --- router.c */

/* A part is done (it was answered, or it failed). */
void router_part_done(struct router *router, struct request *request);

/* Answer the request now: at its deadline, or as the end has come (`closing`). */
void router_expire(struct router *router, struct request *request, bool closing);

#endif
