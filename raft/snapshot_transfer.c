/* The receiver counts bytes in order and nothing else; the sender keeps two marks. Memory for the
 * whole snapshot is reserved when the first chunk comes: it costs address space until bytes are
 * there, and the announced length is checked before. */
#include "raft/snapshot_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"

/* BEGIN carries a configuration: at most this many bytes. */
#define BEGIN_LEN_MAX (128u * 1024u)

static size_t next_len(const struct snapshot_sender *sender);

/* --- sender */

void snapshot_sender_init(struct snapshot_sender *sender)
{
    *sender = (struct snapshot_sender){0};
    buf_init(&sender->begin, BEGIN_LEN_MAX);
}

void snapshot_sender_start(struct snapshot_sender *sender, uint64_t transfer,
                           const struct raft_install_snapshot *args, uint64_t now_ns)
{
    CHECK(!sender->active && args->data.len > 0);

    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_KIND_SNAPSHOT_BEGIN;
    message.transfer = transfer;
    message.raft.type = RAFT_INSTALL_SNAPSHOT;
    message.raft.install_snapshot = *args;
    buf_clear(&sender->begin);
    message_encode(&message, &sender->begin);
    CHECK(!buf_overflown(&sender->begin));

    sender->data = malloc(args->data.len);
    CHECK(sender->data != NULL);
    memcpy(sender->data, args->data.base, args->data.len);
    sender->len = args->data.len;
    sender->active = true;
    sender->transfer = transfer;
    sender->begun = false;
    sender->sent = 0;
    sender->acked = 0;
    sender->progress_ns = now_ns;
    sender->moved_ns = now_ns;
}

void snapshot_sender_stop(struct snapshot_sender *sender)
{
    free(sender->data);
    buf_deinit(&sender->begin);
    snapshot_sender_init(sender);
}

bool snapshot_sender_next(const struct snapshot_sender *sender, struct message *out_message)
{
    if (!sender->active || !sender->begun || next_len(sender) == 0) {
        return false;
    }
    memset(out_message, 0, sizeof *out_message);
    out_message->kind = MESSAGE_KIND_SNAPSHOT_CHUNK;
    out_message->chunk = (struct message_chunk){
        .transfer = sender->transfer,
        .offset = sender->sent,
        .bytes = slice_from(sender->data + sender->sent, next_len(sender)),
    };
    return true;
}

void snapshot_sender_sent(struct snapshot_sender *sender)
{
    CHECK(sender->active);
    if (!sender->begun) {
        sender->begun = true;
        return;
    }
    sender->sent += next_len(sender);
}

enum snapshot_progress snapshot_sender_ack(struct snapshot_sender *sender,
                                           const struct message_ack *ack, uint64_t now_ns)
{
    if (!sender->active || ack->transfer != sender->transfer) {
        return SNAPSHOT_PROGRESS_GOING;
    }
    if (ack->refused) {
        return SNAPSHOT_PROGRESS_ENDED;
    }
    if (ack->received > sender->len || ack->received <= sender->acked) {
        return SNAPSHOT_PROGRESS_GOING;
    }
    sender->acked = (size_t)ack->received;
    if (sender->sent < sender->acked) {
        sender->sent = sender->acked; /* it was on its way when we went back */
    }
    sender->progress_ns = now_ns;
    sender->moved_ns = now_ns;
    return sender->acked == sender->len ? SNAPSHOT_PROGRESS_DONE : SNAPSHOT_PROGRESS_GOING;
}

enum snapshot_progress snapshot_sender_tick(struct snapshot_sender *sender, uint64_t now_ns)
{
    if (!sender->active) {
        return SNAPSHOT_PROGRESS_GOING;
    }
    if (now_ns >= sender->progress_ns + SNAPSHOT_GIVE_UP_NS) {
        return SNAPSHOT_PROGRESS_ENDED;
    }
    if (now_ns >= sender->moved_ns + SNAPSHOT_RETRY_NS) {
        sender->moved_ns = now_ns;
        sender->sent = sender->acked;
        sender->begun = sender->acked > 0;
    }
    return SNAPSHOT_PROGRESS_GOING;
}

uint64_t snapshot_sender_timer_ns(const struct snapshot_sender *sender)
{
    return sender->active ? sender->moved_ns + SNAPSHOT_RETRY_NS : UINT64_MAX;
}

static size_t next_len(const struct snapshot_sender *sender)
{
    size_t left = sender->len - sender->sent;
    size_t len = left < MESSAGE_CHUNK_LEN_MAX ? left : MESSAGE_CHUNK_LEN_MAX;
    return sender->sent - sender->acked + len <= SNAPSHOT_WINDOW_LEN ? len : 0;
}

/* --- receiver */

void snapshot_receiver_init(struct snapshot_receiver *receiver)
{
    memset(receiver, 0, sizeof *receiver);
}

void snapshot_receiver_stop(struct snapshot_receiver *receiver)
{
    if (receiver->active) {
        message_release(&receiver->message);
        receiver->active = false;
    }
}

void snapshot_receiver_begin(struct snapshot_receiver *receiver, struct message *message,
                             struct message_ack *out_ack)
{
    CHECK(message->kind == MESSAGE_KIND_SNAPSHOT_BEGIN);
    *out_ack = (struct message_ack){.transfer = message->transfer};
    if (receiver->active && receiver->transfer == message->transfer) {
        message_release(message);
        out_ack->received = receiver->received;
        return;
    }
    if (receiver->last_done == message->transfer) {
        message_release(message);
        out_ack->received = receiver->last_done_len;
        return;
    }
    snapshot_receiver_stop(receiver);
    receiver->active = true;
    receiver->transfer = message->transfer;
    receiver->message = *message;
    receiver->received = 0;
}

bool snapshot_receiver_chunk(struct snapshot_receiver *receiver,
                             const struct message_chunk *chunk, struct message *out_message,
                             struct message_ack *out_ack, bool *out_send_ack)
{
    *out_ack = (struct message_ack){.transfer = chunk->transfer};
    *out_send_ack = true;
    if (!receiver->active || receiver->transfer != chunk->transfer) {
        /* The last acknowledgement may have been lost. */
        out_ack->received = receiver->last_done_len;
        *out_send_ack = receiver->last_done == chunk->transfer && receiver->last_done_len > 0;
        return false;
    }
    struct raft_buffer *data = &receiver->message.raft.install_snapshot.data;
    out_ack->received = receiver->received;
    if (chunk->offset != receiver->received || chunk->bytes.len > data->len - receiver->received) {
        return false;
    }
    if (data->base == NULL) {
        data->base = raft_malloc(data->len);
        if (data->base == NULL) {
            snapshot_receiver_stop(receiver);
            out_ack->refused = true;
            return false;
        }
    }
    memcpy((uint8_t *)data->base + receiver->received, chunk->bytes.base, chunk->bytes.len);
    receiver->received += chunk->bytes.len;
    out_ack->received = receiver->received;
    if (receiver->received < data->len) {
        return false;
    }
    *out_message = receiver->message;
    receiver->active = false;
    receiver->last_done = receiver->transfer;
    receiver->last_done_len = receiver->received;
    return true;
}
