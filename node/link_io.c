/* Frames in and out of one link.
 *
 * Out: frames that are not bulk are copied behind each other at once. Bulk frames wait in a list
 * and are given to the connection only while less than BULK_SLICE of it waits there, so that
 * whatever comes later is behind one slice and one frame at most. TCP_NOTSENT_LOWAT (link.c) keeps
 * the kernel's own queue as short. */
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "node/link_internal.h"

#define BULK_SLICE (64u * 1024u)
#define BULK_TURN (1024u * 1024u) /* of one link in one turn */

static size_t on_bytes(void *ctx, struct slice bytes);
static void on_written(void *ctx, uint64_t position);
static void on_end(void *ctx, enum status status);
static void on_closed(void *ctx);
static bool may_send(const struct link *link, struct slice bytes);
static void take_frame(struct link *link, const struct link_frame *frame);
static size_t move_bulk(struct link *link);

const struct conn_callbacks link_conn_callbacks = {
    .on_bytes = on_bytes,
    .on_written = on_written,
    .on_end = on_end,
    .on_closed = on_closed,
};

bool links_send(void *ctx, uint64_t peer_id, enum frame_type type, bool bulk,
                struct slice payload)
{
    struct links *links = ctx;
    CHECK(link_frame_for_owner(type));
    struct link_target *target = link_targets_find(&links->targets, peer_id);
    struct link *link = target != NULL && !links->closing ? target->up : NULL;
    size_t len = LINK_FRAME_HEADER_LEN + payload.len;
    if (link == NULL || payload.len > link_frame_len_max(type) ||
        conn_output_len(link->conn) + link->bulk_len + len > LINK_QUEUE_LEN_MAX) {
        links->stats.dropped++;
        return false;
    }
    buf_clear(&links->scratch);
    link_frame_head(type, payload.len, &links->scratch);
    if (!bulk) {
        conn_send(link->conn, buf_slice(&links->scratch));
        conn_send(link->conn, payload);
    } else {
        struct bulk_frame *frame = malloc(sizeof *frame + len);
        CHECK(frame != NULL);
        frame->len = len;
        memcpy(frame->bytes, links->scratch.base, LINK_FRAME_HEADER_LEN);
        if (payload.len > 0) {
            memcpy(frame->bytes + LINK_FRAME_HEADER_LEN, payload.base, payload.len);
        }
        list_init(&frame->link);
        list_append(&link->bulk, &frame->link);
        link->bulk_len += len;
    }
    link_mark_dirty(link);
    return true;
}

bool links_wait(void *ctx, uint64_t peer_id)
{
    struct links *links = ctx;
    struct link_target *target = link_targets_find(&links->targets, peer_id);
    return target != NULL && target->up != NULL && conn_writing(target->up->conn);
}

void link_write(struct link *link)
{
    size_t moved = 0;
    while (link->state != LINK_STATE_CLOSED && link->state != LINK_STATE_DIALLING) {
        if (moved >= BULK_TURN) {
            link_mark_dirty(link);
            loop_turn_again(link->links->loop);
            return;
        }
        moved += move_bulk(link);
        conn_flush(link->conn);
        if (conn_output_len(link->conn) > 0 || list_empty(&link->bulk)) {
            return;
        }
    }
}

void link_mark_dirty(struct link *link)
{
    if (!list_linked(&link->dirty)) {
        list_append(&link->links->dirty, &link->dirty);
    }
}

void link_drop_bulk(struct link *link)
{
    struct list *first;
    while ((first = list_pop(&link->bulk)) != NULL) {
        free(CONTAINER_OF(first, struct bulk_frame, link));
    }
    link->bulk_len = 0;
}

static size_t move_bulk(struct link *link)
{
    size_t moved = 0;
    while (conn_output_len(link->conn) < BULK_SLICE && !list_empty(&link->bulk)) {
        struct list *first = list_pop(&link->bulk);
        struct bulk_frame *frame = CONTAINER_OF(first, struct bulk_frame, link);
        conn_send(link->conn, slice_from(frame->bytes, frame->len));
        link->bulk_len -= frame->len;
        moved += frame->len;
        free(frame);
    }
    return moved;
}

static size_t on_bytes(void *ctx, struct slice bytes)
{
    struct link *link = ctx;
    struct links *links = link->links;
    size_t used = 0;
    link->received_ns = loop_now_ns(links->loop);
    if (link->silence_told) {
        link->silence_told = false;
        links->callbacks.on_heard(links->callbacks.ctx, link->peer_id);
    }
    while (used < bytes.len) {
        struct slice rest = slice_from(bytes.base + used, bytes.len - used);
        if (links->closing || link->state == LINK_STATE_LEAVING ||
            link->state == LINK_STATE_CLOSED) {
            return bytes.len;
        }
        struct link_frame frame;
        size_t len = 0;
        enum link_frame_verdict verdict = LINK_FRAME_VERDICT_REFUSED;
        if (may_send(link, rest)) {
            verdict = link_frame_scan(rest, &frame, &len);
        }
        if (verdict == LINK_FRAME_VERDICT_REFUSED) {
            links->stats.malformed++;
            link_close(link, true);
            return bytes.len;
        }
        if (verdict == LINK_FRAME_VERDICT_MORE) {
            break;
        }
        used += len;
        links->stats.bytes_received += len;
        take_frame(link, &frame);
    }
    return used;
}

/* Before a link is UP only greetings are read, which are small: a stranger can't make us keep more
 * than one of them. */
static bool may_send(const struct link *link, struct slice bytes)
{
    if (link->state == LINK_STATE_UP || bytes.len < LINK_FRAME_HEADER_LEN) {
        return true;
    }
    uint8_t type = bytes.base[4];
    return type == FRAME_TYPE_HELLO || type == FRAME_TYPE_WELCOME || type == FRAME_TYPE_REFUSED;
}

static void take_frame(struct link *link, const struct link_frame *frame)
{
    struct links *links = link->links;
    if (link->state != LINK_STATE_UP) {
        link_greet(link, frame);
    } else if (link_frame_for_owner(frame->type)) {
        links->callbacks.on_frame(links->callbacks.ctx, link->peer_id, frame->type,
                                  frame->payload);
    } else if (frame->type == FRAME_TYPE_REFUSED) {
        link_close(link, false); /* of two connections the peer keeps the other one */
    } else if (frame->type != FRAME_TYPE_PING) {
        links->stats.malformed++; /* a second greeting: who it is may not change */
        link_close(link, true);
    }
}

static void on_written(void *ctx, uint64_t position)
{
    struct link *link = ctx;
    struct links *links = link->links;
    links->stats.bytes_sent += position - link->written;
    link->written = position;
    link->sent_ns = loop_now_ns(links->loop);
    bool out = conn_output_len(link->conn) == 0;
    if (out && link->state == LINK_STATE_LEAVING) {
        link_close(link, false);
    } else if (!conn_writing(link->conn) && (!out || !list_empty(&link->bulk))) {
        link_mark_dirty(link);
    }
}

static void on_end(void *ctx, enum status status)
{
    (void)status;
    link_close(ctx, false);
}

static void on_closed(void *ctx)
{
    link_free(ctx);
}
