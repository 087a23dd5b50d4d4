/* What a node believes about who leads, and whether it is ready.
 *
 * Two sources: the node's own replica, for a member with a log, and LEADER frames, which a leader
 * sends of itself. The higher term counts; of one term the leader is one node, so that they cannot
 * contradict each other. All of it is a hint: whoever acts on it is refused by a leader that it was
 * not meant for.
 *
 * Ready means for a member with a log that a read point of the present leader was reached here; for
 * a node without one that a leader was heard of within LEADERSHIP_HEARD_NS. Pure. */
#ifndef NODE_LEADERSHIP_H_
#define NODE_LEADERSHIP_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/units.h"

#define LEADERSHIP_HEARD_NS (1000u * NS_PER_MS)

/* What the replica says of itself. */
struct leadership_replica {
    uint64_t node_id;
    bool running;   /* it may be asked anything at all */
    bool has_table; /* voter or standby: entries are applied here */
    bool leader;
    bool serving; /* leads, and an entry of its own term is applied */
    uint64_t term;
    uint64_t leader_id; /* 0: unknown */
};

/* Where requests go. */
enum route_kind {
    ROUTE_KIND_NONE, /* no leader is known, or it does not serve yet */
    ROUTE_KIND_SELF,
    ROUTE_KIND_PEER,
};

struct route {
    enum route_kind kind;
    uint64_t peer_id;
    uint64_t term;
    bool has_table; /* reads may be answered from the table here */
    uint64_t node_id;
};

/* A LEADER frame. */
struct leadership_news {
    uint64_t peer_id; /* who says it */
    uint64_t term;
    uint64_t leader_id; /* 0: it knows none */
    bool serving;
};

struct leadership {
    struct leadership_replica replica;
    uint64_t heard_term; /* of the last LEADER frame that was worth it */
    uint64_t heard_id;   /* 0: none, or its link broke */
    bool heard_serving;
    uint64_t heard_ns;
    uint64_t reached_term; /* a read point of this term's leader was reached here */
    uint64_t reached_ns;
};

void leadership_init(struct leadership *leadership);

void leadership_set_replica(struct leadership *leadership,
                            const struct leadership_replica *replica);

/* A LEADER frame of that peer. What it says of a third node is believed only where nothing better
 * is known. */
void leadership_heard(struct leadership *leadership, const struct leadership_news *news,
                      uint64_t now_ns);
void leadership_peer_down(struct leadership *leadership, uint64_t peer_id);

/* The leader answered: a read point was reached here (a member), or a reply came (others). */
void leadership_reached(struct leadership *leadership, uint64_t term, uint64_t now_ns);

struct route leadership_route(const struct leadership *leadership);

/* Who leads, as far as is known; 0: unknown. */
uint64_t leadership_leader(const struct leadership *leadership, uint64_t *out_term,
                           bool *out_serving);

bool leadership_ready(const struct leadership *leadership, uint64_t now_ns,
                      uint64_t *out_checked_ns);

/* When a node without a log stops being ready unless it hears of its leader; UINT64_MAX: not. */
uint64_t leadership_ready_until_ns(const struct leadership *leadership, uint64_t now_ns);

/* True while only a read point can tell whether this node is ready. */
bool leadership_wants_probe(const struct leadership *leadership);

#endif
