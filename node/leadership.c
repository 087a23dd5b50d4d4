/* Nothing is derived ahead: what is believed is computed from the last words of both sources each
 * time it is asked for. */
#include "node/leadership.h"

/* The source that counts now. */
struct belief {
    uint64_t leader_id;
    uint64_t term;
    bool serving;
};

static struct belief believe(const struct leadership *leadership);

void leadership_init(struct leadership *leadership)
{
    *leadership = (struct leadership){0};
}

void leadership_set_replica(struct leadership *leadership,
                            const struct leadership_replica *replica)
{
    leadership->replica = *replica;
}

void leadership_heard(struct leadership *leadership, const struct leadership_news *news,
                      uint64_t now_ns)
{
    bool of_itself = news->leader_id == news->peer_id;
    if (news->leader_id == 0 || news->term < leadership->heard_term) {
        return;
    }
    if (!of_itself && news->term == leadership->heard_term && leadership->heard_id != 0) {
        return;
    }
    leadership->heard_term = news->term;
    leadership->heard_id = news->leader_id;
    leadership->heard_serving = news->serving;
    if (of_itself) {
        leadership->heard_ns = now_ns;
    }
}

void leadership_peer_down(struct leadership *leadership, uint64_t peer_id)
{
    if (leadership->heard_id == peer_id) {
        leadership->heard_id = 0;
        leadership->heard_serving = false;
    }
}

void leadership_reached(struct leadership *leadership, uint64_t term, uint64_t now_ns)
{
    if (term >= leadership->reached_term) {
        leadership->reached_term = term;
        leadership->reached_ns = now_ns;
    }
    if (term == leadership->heard_term) {
        leadership->heard_ns = now_ns;
    }
}

struct route leadership_route(const struct leadership *leadership)
{
    const struct leadership_replica *replica = &leadership->replica;
    struct belief belief = believe(leadership);
    struct route route = {
        .term = belief.term,
        .has_table = replica->running && replica->has_table,
        .node_id = replica->node_id,
    };
    if (belief.leader_id == 0 || !replica->running) {
        return route;
    }
    if (belief.leader_id == replica->node_id) {
        route.kind = belief.serving ? ROUTE_KIND_SELF : ROUTE_KIND_NONE;
        return route;
    }
    /* A leader that does not serve yet refuses by itself and says LEADER when it does. */
    route.kind = ROUTE_KIND_PEER;
    route.peer_id = belief.leader_id;
    return route;
}

uint64_t leadership_leader(const struct leadership *leadership, uint64_t *out_term,
                           bool *out_serving)
{
    struct belief belief = believe(leadership);
    *out_term = belief.term;
    *out_serving = belief.serving;
    return belief.leader_id;
}

bool leadership_ready(const struct leadership *leadership, uint64_t now_ns,
                      uint64_t *out_checked_ns)
{
    struct belief belief = believe(leadership);
    if (belief.leader_id == 0 || !leadership->replica.running) {
        return false;
    }
    if (belief.leader_id == leadership->replica.node_id) {
        *out_checked_ns = now_ns;
        return belief.serving;
    }
    if (leadership->replica.has_table) {
        *out_checked_ns = leadership->reached_ns;
        return leadership->reached_term == belief.term;
    }
    *out_checked_ns = leadership->heard_ns;
    return leadership->heard_ns != 0 && now_ns - leadership->heard_ns <= LEADERSHIP_HEARD_NS;
}

uint64_t leadership_ready_until_ns(const struct leadership *leadership, uint64_t now_ns)
{
    uint64_t until_ns = leadership->heard_ns + LEADERSHIP_HEARD_NS + 1;
    bool counts = !leadership->replica.has_table && leadership->heard_ns != 0 && until_ns > now_ns;
    return counts ? until_ns : UINT64_MAX;
}

bool leadership_wants_probe(const struct leadership *leadership)
{
    struct route route = leadership_route(leadership);
    return route.kind == ROUTE_KIND_PEER && route.has_table &&
           leadership->reached_term != route.term;
}

static struct belief believe(const struct leadership *leadership)
{
    const struct leadership_replica *replica = &leadership->replica;
    /* In one term the replica of a member knows better: when it has lost its leader, an earlier
     * frame of that leader says nothing. */
    bool heard_more = leadership->heard_term > replica->term || !replica->has_table;
    if (heard_more && leadership->heard_id != replica->node_id) {
        return (struct belief){
            .leader_id = leadership->heard_id,
            .term = leadership->heard_term,
            .serving = leadership->heard_serving,
        };
    }
    if (replica->leader) {
        return (struct belief){
            .leader_id = replica->node_id,
            .term = replica->term,
            .serving = replica->serving,
        };
    }
    return (struct belief){
        .leader_id = replica->leader_id == replica->node_id ? 0 : replica->leader_id,
        .term = replica->term,
        .serving = leadership->heard_serving && leadership->heard_term == replica->term &&
                   leadership->heard_id == replica->leader_id,
    };
}
