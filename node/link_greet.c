/* Who is at the other end: HELLO, WELCOME, REFUSED, and which of two connections of a pair stays.
 *
 * Both ends apply the same rule to the same facts, so they agree without asking: an older link to
 * another run (instance) of the peer is dead; of two that the same end dialled the newer stays; of
 * two that both ends dialled the one of the lower id stays. While the lower id's own HELLO is on
 * its way it refuses the other's at once; that is the usual case of two that dial each other, and
 * no link that was up is lost by it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fsm/base/units.h"
#include "node/link_internal.h"

#define WHY_LEN (LINK_FRAME_WHY_LEN_MAX + 1)
#define LEAVING_NS (1000 * NS_PER_MS)

static void take_hello(struct link *link, const struct link_greeting *greeting);
static void take_welcome(struct link *link, const struct link_greeting *greeting);
static void take_refused(struct link *link, struct slice payload);
static void meet_cluster(struct link *link, const struct link_greeting *greeting);
static bool judge(struct link *link, const struct link_greeting *greeting);
static bool judge_cluster(struct link *link, const struct link_greeting *greeting);
static bool make_room(struct link *link, const struct link_greeting *greeting,
                      struct link_target *target);
static bool stays(const struct link *link, const struct link *other, uint64_t peer_id,
                  uint64_t peer_instance);
static void go_up(struct link *link, const struct link_greeting *greeting);
static void send_greeting(struct link *link, enum frame_type type);
static void tell_refused(struct link *link, const char *address, const char *why);

void link_send_hello(struct link *link)
{
    send_greeting(link, FRAME_TYPE_HELLO);
}

void link_greet(struct link *link, const struct link_frame *frame)
{
    bool hello = link->state == LINK_STATE_EXPECTING && frame->type == FRAME_TYPE_HELLO;
    bool welcome = link->state == LINK_STATE_GREETING && frame->type == FRAME_TYPE_WELCOME;
    struct link_greeting greeting;
    if (link->state == LINK_STATE_GREETING && frame->type == FRAME_TYPE_REFUSED) {
        take_refused(link, frame->payload);
    } else if ((!hello && !welcome) ||
               link_frame_read_greeting(frame->payload, &greeting) != STATUS_OK) {
        link->links->stats.malformed++;
        link_close(link, true);
    } else if (hello) {
        take_hello(link, &greeting);
    } else {
        take_welcome(link, &greeting);
    }
}

void link_refuse(struct link *link, enum link_refusal code, const char *why)
{
    struct links *links = link->links;
    if (link->state == LINK_STATE_CLOSED) {
        return;
    }
    link_detach(link, code != LINK_REFUSAL_DUPLICATE);
    buf_clear(&links->scratch);
    link_frame_refuse(code, why, &links->scratch);
    conn_send(link->conn, buf_slice(&links->scratch));
    link->deadline_ns = loop_now_ns(links->loop) + LEAVING_NS;
    links_wake(links, link->deadline_ns);
    link_move(link, LINK_STATE_LEAVING);
    link_mark_dirty(link);
}

static void take_hello(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    if (!judge(link, greeting)) {
        return;
    }
    if (link_identity_none(&greeting->identity)) {
        /* A node that looks for a cluster: our WELCOME names it. */
        send_greeting(link, FRAME_TYPE_WELCOME);
        link->deadline_ns = loop_now_ns(links->loop) + LEAVING_NS;
        links_wake(links, link->deadline_ns);
        link_move(link, LINK_STATE_LEAVING);
        return;
    }
    struct address address;
    if (!links_address_fine(links, slice_text(greeting->address), &address)) {
        char why[WHY_LEN];
        (void)snprintf(why, sizeof why, "node %" PRIu64 " says it is reached at \"%s\": %s, %s",
                       greeting->node_id, greeting->address, ADDRESS_RULE,
                       "and loopback unless the network may be insecure");
        link_refuse(link, LINK_REFUSAL_MALFORMED, why);
        tell_refused(link, greeting->address, why);
        return;
    }
    struct link_target *target =
        link_targets_put(&links->targets, greeting->node_id, &address, loop_now_ns(links->loop));
    if (target == NULL) {
        link_refuse(link, LINK_REFUSAL_BUSY, "no room for another peer");
        return;
    }
    if (!make_room(link, greeting, target)) {
        return;
    }
    send_greeting(link, FRAME_TYPE_WELCOME);
    go_up(link, greeting);
}

static void take_welcome(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    if (link_identity_none(&links->self.identity)) {
        meet_cluster(link, greeting);
        return;
    }
    if (!judge(link, greeting)) {
        return;
    }
    struct link_target *dialled = link->target;
    if (dialled != NULL && dialled->id != 0 && dialled->id != greeting->node_id) {
        char why[WHY_LEN];
        (void)snprintf(why, sizeof why, "node %" PRIu64 " was expected there, found node %" PRIu64,
                       dialled->id, greeting->node_id);
        char text[ADDRESS_TEXT_LEN];
        memcpy(text, dialled->text, sizeof text);
        link_close(link, true);
        tell_refused(link, text, why);
        return;
    }
    struct link_target *target = link_targets_find(&links->targets, greeting->node_id);
    struct address address;
    if (target == NULL && dialled != NULL) {
        if (!links_address_fine(links, slice_text(greeting->address), &address)) {
            address = dialled->address;
        }
        target = link_targets_put(&links->targets, greeting->node_id, &address,
                                  loop_now_ns(links->loop));
    }
    if (dialled != NULL && dialled->id == 0) {
        /* Its id is known now: it is a peer like any other. */
        link->target = NULL;
        link_targets_drop(&links->targets, dialled);
    }
    if (target == NULL) {
        link_close(link, true);
    } else if (make_room(link, greeting, target)) {
        go_up(link, greeting);
    }
}

static void take_refused(struct link *link, struct slice payload)
{
    struct link_refused refused;
    if (link_frame_read_refused(payload, &refused) != STATUS_OK) {
        link->links->stats.malformed++;
        link_close(link, true);
        return;
    }
    bool duplicate = refused.code == LINK_REFUSAL_DUPLICATE;
    char text[ADDRESS_TEXT_LEN] = "";
    if (link->target != NULL) {
        memcpy(text, link->target->text, sizeof text);
    }
    link_close(link, !duplicate);
    if (!duplicate) {
        tell_refused(link, text, refused.why);
    }
}

/* This node is in no cluster and has found one. Its owner takes the identity over; the link is
 * dialled anew as a member. */
static void meet_cluster(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    bool none = link_identity_none(&greeting->identity) || greeting->node_id == 0;
    bool versions = greeting->version_min <= LINK_FRAME_VERSION_MAX &&
                    greeting->version_max >= LINK_FRAME_VERSION_MIN;
    if (none || !versions) {
        links->stats.malformed++;
        link_close(link, true);
        return;
    }
    struct address address;
    char text[ADDRESS_TEXT_LEN] = "";
    if (links_address_fine(links, slice_text(greeting->address), &address)) {
        address_format(&address, text);
    } else if (link->target != NULL) {
        memcpy(text, link->target->text, sizeof text);
    }
    link_close(link, false);
    links->callbacks.on_cluster_met(links->callbacks.ctx, &greeting->identity, greeting->node_id,
                                    text);
}

/* May we talk to each other at all? If not, the other end has been told, or will be. */
static bool judge(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    char why[WHY_LEN];
    if (greeting->version_min > LINK_FRAME_VERSION_MAX ||
        greeting->version_max < LINK_FRAME_VERSION_MIN) {
        (void)snprintf(why, sizeof why,
                       "node %" PRIu64 " speaks link protocol %u..%u, node %" PRIu64 " %u..%u",
                       greeting->node_id, (unsigned)greeting->version_min,
                       (unsigned)greeting->version_max, links->self.node_id,
                       LINK_FRAME_VERSION_MIN, LINK_FRAME_VERSION_MAX);
        link_refuse(link, LINK_REFUSAL_VERSION, why);
        tell_refused(link, greeting->address, why);
        return false;
    }
    bool same_id = greeting->node_id != 0 && greeting->node_id == links->self.node_id;
    if (greeting->instance == links->instance || same_id) {
        (void)snprintf(why, sizeof why, greeting->instance == links->instance
                                            ? "node %" PRIu64 " has reached itself"
                                            : "node id %" PRIu64 " is taken by another node",
                       greeting->node_id);
        link_refuse(link, LINK_REFUSAL_SELF, why);
        tell_refused(link, greeting->address, why);
        return false;
    }
    return judge_cluster(link, greeting);
}

static bool judge_cluster(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    if (link_identity_none(&links->self.identity)) {
        link_refuse(link, LINK_REFUSAL_UNINITIALISED, "the node there belongs to no cluster yet");
        return false;
    }
    bool joiner = link_identity_none(&greeting->identity);
    if (!joiner && !link_identity_equal(&greeting->identity, &links->self.identity)) {
        char why[WHY_LEN];
        char theirs[LINK_IDENTITY_TEXT_LEN];
        char ours[LINK_IDENTITY_TEXT_LEN];
        link_identity_text(&greeting->identity, theirs);
        link_identity_text(&links->self.identity, ours);
        (void)snprintf(why, sizeof why,
                       "node %" PRIu64 " belongs to cluster %s, node %" PRIu64 " to cluster %s",
                       greeting->node_id, theirs, links->self.node_id, ours);
        link_refuse(link, LINK_REFUSAL_CLUSTER, why);
        tell_refused(link, greeting->address, why);
        return false;
    }
    if (greeting->node_id == 0 && !(joiner && link->state == LINK_STATE_EXPECTING)) {
        links->stats.malformed++;
        link_close(link, true);
        return false;
    }
    return true;
}

/* See to every other connection of the pair; false when this one has to go, and is going. */
static bool make_room(struct link *link, const struct link_greeting *greeting,
                      struct link_target *target)
{
    struct links *links = link->links;
    struct link *others[2] = {target->up, target->dial != link ? target->dial : NULL};
    for (unsigned i = 0; i < 2; i++) {
        struct link *other = others[i];
        if (other != NULL && other->state != LINK_STATE_CLOSED &&
            stays(link, other, greeting->node_id, greeting->instance)) {
            link_refuse(link, LINK_REFUSAL_DUPLICATE, "another connection of the pair stays");
            return false;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        if (others[i] != NULL && others[i]->state != LINK_STATE_CLOSED) {
            link_close(others[i], false);
        }
    }
    /* on_down may have had any consequence. */
    if (link->state == LINK_STATE_CLOSED || links->closing ||
        link_targets_find(&links->targets, greeting->node_id) != target) {
        link_close(link, false);
        return false;
    }
    return true;
}

/* Does the other connection stay, so that `link` has to go? */
static bool stays(const struct link *link, const struct link *other, uint64_t peer_id,
                  uint64_t peer_instance)
{
    bool ours_stays = link->links->self.node_id < peer_id;
    if (other->state == LINK_STATE_DIALLING) {
        return false;
    }
    if (other->state == LINK_STATE_UP) {
        if (other->peer_instance != peer_instance || other->dialled == link->dialled) {
            return false;
        }
        return other->dialled == ours_stays;
    }
    /* Our HELLO is on its way. Of two that we dialled (a seed that is a known peer) the other end
     * keeps the one that greeted later, which is the one that still waits for its WELCOME. */
    return link->dialled || ours_stays;
}

static void go_up(struct link *link, const struct link_greeting *greeting)
{
    struct links *links = link->links;
    struct link_target *target = link_targets_find(&links->targets, greeting->node_id);
    CHECK(target != NULL && target->up == NULL);
    if (target->dial == link) {
        target->dial = NULL;
    }
    link->target = target;
    target->up = link;
    target->failures = 0;
    link->peer_id = greeting->node_id;
    link->peer_instance = greeting->instance;
    link->received_ns = loop_now_ns(links->loop);
    link->sent_ns = link->received_ns;
    link_move(link, LINK_STATE_UP);
    links->stats.up++;
    links_wake(links, link->received_ns);
    links->callbacks.on_up(links->callbacks.ctx, link->peer_id);
}

static void send_greeting(struct link *link, enum frame_type type)
{
    struct links *links = link->links;
    struct link_greeting greeting = {
        .version_min = LINK_FRAME_VERSION_MIN,
        .version_max = LINK_FRAME_VERSION_MAX,
        .identity = links->self.identity,
        .node_id = links->self.node_id,
        .instance = links->instance,
    };
    const char *address = links->self.address[0] != '\0' ? links->self.address : links->address;
    size_t len = strnlen(address, LINK_FRAME_ADDRESS_LEN_MAX);
    memcpy(greeting.address, address, len);
    buf_clear(&links->scratch);
    link_frame_greet(type, &greeting, &links->scratch);
    conn_send(link->conn, buf_slice(&links->scratch));
    link_mark_dirty(link);
}

static void tell_refused(struct link *link, const char *address, const char *why)
{
    struct links *links = link->links;
    links->stats.refused++;
    links->callbacks.on_refused(links->callbacks.ctx, address, why);
}
