/* Commands: what the router wants done is proposed to the replica here or forwarded to the leader,
 * and what peers forward is proposed for them. */
#include "node/dispatch_internal.h"

#include <stdlib.h>

#include "fsm/command_codec.h"

#define POOL_MAX 4096u /* free proposals that are kept */

static enum status propose_bytes(struct dispatch *dispatch, struct slice command,
                                 struct proposal *proposal);
static uint64_t deadline_ns_of(uint32_t left_ms, uint64_t now_ns);
static void on_proposal(struct replica_proposal *replica, enum status status, struct slice result);
static void send_forward_reply(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_forward_reply *frame);
static struct proposal *proposal_take(struct dispatch *dispatch);
static void proposal_put(struct dispatch *dispatch, struct proposal *proposal);

void dispatch_propose(struct dispatch *dispatch, const struct router_effect *effect)
{
    buf_clear(&dispatch->command);
    command_encode(&effect->command, &dispatch->command);
    struct proposal *proposal = proposal_take(dispatch);
    proposal->ticket = effect->ticket;
    proposal->replica.deadline_ns = effect->deadline_ns;
    enum status st = propose_bytes(dispatch, buf_slice(&dispatch->command), proposal);
    if (st == STATUS_OK) {
        router_proposed(dispatch->router, effect->ticket, proposal);
    } else {
        router_answered(dispatch->router, effect->ticket, st, (struct slice){0}, dispatch->now_ns);
    }
}

void dispatch_forward(struct dispatch *dispatch, const struct router_effect *effect)
{
    uint32_t left = dispatch_left_ms(effect->deadline_ns, dispatch->now_ns);
    enum status st = STATUS_DEADLINE;
    if (left > 0) {
        buf_clear(&dispatch->command);
        command_encode(&effect->command, &dispatch->command);
        struct frame_forward frame = {
            .number = ++dispatch->forward_number,
            .ticket = effect->ticket.id,
            .attempt = effect->ticket.attempt,
            .term = effect->term,
            .left_ms = left,
            .command = buf_slice(&dispatch->command),
        };
        buf_clear(&dispatch->frame);
        frame_forward_encode(&frame, &dispatch->frame);
        dispatch->stats.forwards_sent++;
        st = dispatch_send_frame(dispatch, effect->peer_id, FRAME_TYPE_FORWARD, false)
                 ? STATUS_OK
                 : STATUS_NOT_CONNECTED;
    }
    if (st != STATUS_OK) {
        router_answered(dispatch->router, effect->ticket, st, (struct slice){0}, dispatch->now_ns);
    }
}

bool dispatch_withdraw(void *ctx, void *proposal_ctx)
{
    struct dispatch *dispatch = ctx;
    struct proposal *proposal = proposal_ctx;
    bool gone = replica_proposal_cancel(dispatch->replica, &proposal->replica);
    if (gone) {
        proposal_put(dispatch, proposal);
        dispatch->proposals--;
    }
    return gone;
}

/* Fractions are cut, so that nobody has more time than there is. */
uint32_t dispatch_left_ms(uint64_t deadline_ns, uint64_t now_ns)
{
    if (deadline_ns == UINT64_MAX) {
        return PEER_FRAME_NO_DEADLINE;
    }
    uint64_t left = ns_to_ms_floor(sub_or_zero_u64(deadline_ns, now_ns));
    return (uint32_t)min_u64(left, PEER_FRAME_NO_DEADLINE - 1);
}

void dispatch_receive_forward(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
{
    struct frame_forward frame;
    if (frame_forward_decode(payload, &frame) != STATUS_OK) {
        dispatch->stats.forwards_refused++;
        return;
    }
    dispatch->stats.forwards_received++;
    if (dispatch->view_changed) {
        dispatch_see_view(dispatch);
    }
    struct forwarder_self self = {
        .leader = dispatch->view.leader,
        .serving = dispatch->view.serving,
        .term = dispatch->view.term,
    };
    enum status st = STATUS_OK;
    switch (forwarder_judge(dispatch->forwarder, peer_id, &frame, &self, dispatch->now_ns)) {
    case FORWARD_VERDICT_DROP:
        dispatch->stats.forwards_refused++;
        return;
    case FORWARD_VERDICT_REFUSE:
        st = forwarder_why(dispatch->forwarder);
        break;
    case FORWARD_VERDICT_ACCEPT: {
        struct proposal *proposal = proposal_take(dispatch);
        proposal->ticket = (struct router_ticket){.id = frame.ticket, .attempt = frame.attempt};
        proposal->peer_id = peer_id;
        proposal->replica.deadline_ns = deadline_ns_of(frame.left_ms, dispatch->now_ns);
        st = propose_bytes(dispatch, frame.command, proposal);
        if (st == STATUS_OK) {
            return;
        }
        forwarder_done(dispatch->forwarder, peer_id);
        break;
    }
    }
    dispatch->stats.forwards_refused++;
    struct frame_forward_reply refused = {
        .ticket = frame.ticket,
        .attempt = frame.attempt,
        .status = st,
    };
    send_forward_reply(dispatch, peer_id, &refused);
    if (st == STATUS_NOT_LEADER || st == STATUS_WRONG_TERM) {
        dispatch_tell_leader(dispatch, peer_id);
    }
}

void dispatch_receive_forward_reply(struct dispatch *dispatch, struct slice payload)
{
    struct frame_forward_reply frame;
    if (frame_forward_reply_decode(payload, &frame) == STATUS_OK) {
        struct router_ticket ticket = {.id = frame.ticket, .attempt = frame.attempt};
        router_answered(dispatch->router, ticket, frame.status, frame.result, dispatch->now_ns);
    }
}

/* The proposal is in the pool again unless the replica took it. */
static enum status propose_bytes(struct dispatch *dispatch, struct slice command,
                                 struct proposal *proposal)
{
    enum status st = replica_propose(dispatch->replica, command, &proposal->replica);
    if (st == STATUS_OK) {
        dispatch->proposals++;
    } else {
        proposal_put(dispatch, proposal);
    }
    return st;
}

/* Counted from receipt. */
static uint64_t deadline_ns_of(uint32_t left, uint64_t now_ns)
{
    return left == PEER_FRAME_NO_DEADLINE ? UINT64_MAX : now_ns + ms_to_ns(left);
}

static void on_proposal(struct replica_proposal *replica, enum status status, struct slice result)
{
    struct proposal *proposal = CONTAINER_OF(replica, struct proposal, replica);
    struct dispatch *dispatch = proposal->dispatch;
    struct router_ticket ticket = proposal->ticket;
    uint64_t peer_id = proposal->peer_id;
    proposal_put(dispatch, proposal);
    dispatch->proposals--;
    if (peer_id == 0) {
        router_answered(dispatch->router, ticket, status, result, dispatch->now_ns);
        return;
    }
    forwarder_done(dispatch->forwarder, peer_id);
    struct frame_forward_reply frame = {
        .ticket = ticket.id,
        .attempt = ticket.attempt,
        .status = status,
        .result = result,
    };
    send_forward_reply(dispatch, peer_id, &frame);
}

/* A reply that cannot be sent is lost, as if the network had lost it: the asker asks again. */
static void send_forward_reply(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_forward_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_forward_reply_encode(frame, &dispatch->frame);
    (void)dispatch_send_frame(dispatch, peer_id, FRAME_TYPE_FORWARD_REPLY, false);
}

static struct proposal *proposal_take(struct dispatch *dispatch)
{
    struct list *link = list_pop(&dispatch->free_proposals);
    struct proposal *proposal = NULL;
    if (link != NULL) {
        proposal = CONTAINER_OF(link, struct proposal, link);
        dispatch->free_proposal_count--;
    } else {
        proposal = calloc(1, sizeof *proposal);
        CHECK(proposal != NULL);
        list_init(&proposal->link);
        proposal->replica.cb = on_proposal;
    }
    proposal->dispatch = dispatch;
    proposal->peer_id = 0;
    return proposal;
}

static void proposal_put(struct dispatch *dispatch, struct proposal *proposal)
{
    if (dispatch->free_proposal_count < POOL_MAX) {
        dispatch->free_proposal_count++;
        list_append(&dispatch->free_proposals, &proposal->link);
    } else {
        free(proposal);
    }
}
