/* Fuzz target: payloads of peer frames (node/peer_frame) and what a leader makes of a forwarded
 * command (node/forwarder).
 *
 * The first byte is the frame's type, the rest its payload. What is read must be written to the
 * same bytes again; where a status has no number of its own it comes back as UNKNOWN. */
#include <stdlib.h>

#include "fsm/base/check.h"
#include "node/forwarder.h"
#include "node/peer_frame.h"
#include "node/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define PEERS_MAX_HERE 16u

static void compare(const struct buf *again, struct slice payload, bool exact)
{
    CHECK(!buf_overflown(again) && again->len == payload.len);
    CHECK(!exact || slice_equal(buf_slice(again), payload));
}

static void try_forward(struct slice payload, struct buf *again)
{
    struct frame_forward frame;
    if (frame_forward_decode(payload, &frame) != STATUS_OK) {
        return;
    }
    frame_forward_encode(&frame, again);
    compare(again, payload, true);
    struct forwarder *forwarder = forwarder_create();
    struct forwarder_self self = {.leader = true, .serving = true, .term = frame.term};
    frame.left_ms |= 1;
    if (forwarder_judge(forwarder, 2, &frame, &self, 1) == FORWARD_VERDICT_ACCEPT) {
        forwarder_done(forwarder, 2);
    }
    forwarder_destroy(forwarder);
}

static void try_reads(uint8_t type, struct slice payload, struct buf *again)
{
    struct frame_read_point point;
    struct frame_read_point_reply point_reply;
    struct frame_query query;
    struct frame_query_reply query_reply;
    if (type == FRAME_TYPE_READ_POINT && frame_read_point_decode(payload, &point) == STATUS_OK) {
        frame_read_point_encode(&point, again);
        compare(again, payload, true);
    } else if (type == FRAME_TYPE_READ_POINT_REPLY &&
               frame_read_point_reply_decode(payload, &point_reply) == STATUS_OK) {
        frame_read_point_reply_encode(&point_reply, again);
        compare(again, payload, point_reply.status != STATUS_UNKNOWN);
    } else if (type == FRAME_TYPE_QUERY && frame_query_decode(payload, &query) == STATUS_OK) {
        frame_query_encode(&query, again);
        compare(again, payload, true);
    } else if (type == FRAME_TYPE_QUERY_REPLY &&
               frame_query_reply_decode(payload, &query_reply) == STATUS_OK) {
        frame_query_reply_encode(&query_reply, again);
        compare(again, payload, query_reply.status != STATUS_UNKNOWN);
    }
}

static void try_members(uint8_t type, struct slice payload, struct buf *again)
{
    struct frame_leader leader;
    struct frame_admit admit;
    struct frame_admit_reply admit_reply;
    struct frame_peer peers[PEERS_MAX_HERE];
    uint32_t count = 0;
    if (type == FRAME_TYPE_LEADER && frame_leader_decode(payload, &leader) == STATUS_OK) {
        frame_leader_encode(&leader, again);
        compare(again, payload, true);
    } else if (type == FRAME_TYPE_PEERS &&
               frame_peers_decode(payload, PEERS_MAX_HERE, peers, &count) == STATUS_OK) {
        frame_peers_encode(peers, count, again);
        compare(again, payload, true);
    } else if (type == FRAME_TYPE_ADMIT && frame_admit_decode(payload, &admit) == STATUS_OK) {
        frame_admit_encode(&admit, again);
        compare(again, payload, true);
    } else if (type == FRAME_TYPE_ADMIT_REPLY &&
               frame_admit_reply_decode(payload, &admit_reply) == STATUS_OK) {
        frame_admit_reply_encode(&admit_reply, again);
        compare(again, payload, admit_reply.status != STATUS_UNKNOWN);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0) {
        return 0;
    }
    /* Exactly as long as the payload, so that a sanitizer sees a read behind it. */
    uint8_t *bytes = malloc(len > 1 ? len - 1 : 1);
    CHECK(bytes != NULL);
    memcpy(bytes, data + 1, len - 1);
    struct slice payload = slice_from(bytes, len - 1);
    struct buf again;
    buf_init(&again, FRAME_LEN_MAX);
    struct frame_forward_reply reply;
    if (data[0] == FRAME_TYPE_FORWARD) {
        try_forward(payload, &again);
    } else if (data[0] == FRAME_TYPE_FORWARD_REPLY &&
               frame_forward_reply_decode(payload, &reply) == STATUS_OK) {
        frame_forward_reply_encode(&reply, &again);
        compare(&again, payload, reply.status != STATUS_UNKNOWN);
    }
    try_reads(data[0], payload, &again);
    try_members(data[0], payload, &again);
    buf_deinit(&again);
    free(bytes);
    return 0;
}
