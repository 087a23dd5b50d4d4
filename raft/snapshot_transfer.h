/* A snapshot on its way to a peer, in pieces.
 *
 * libraft hands over an InstallSnapshot as one message of up to a gigabyte. Sent as one frame it
 * would keep heartbeats from the link until it is through, and cost the leader its office. So it is
 * cut into chunks that travel behind everything else; only a few are under way at a time, and the
 * receiver says how far it has got:
 *
 *   sender:    BEGIN(n), CHUNK(n, 0), CHUNK(n, 64 KiB), ...    receiver: ACK(n, bytes in order)
 *
 * Frames may be lost, doubled or late. A chunk that is not the next one is answered with where the
 * receiver stands; a sender that hears nothing new for a while goes back to there, and gives up
 * when that does not help: libraft asks again for a snapshot that did not arrive. A transfer ends
 * with the link that it ran over.
 *
 * Pure. Driven by raft/replica, which carries the messages and owns one of each per peer. */
#ifndef RAFT_SNAPSHOT_TRANSFER_H_
#define RAFT_SNAPSHOT_TRANSFER_H_

#include "raft/message_codec.h"

/* Bytes that may be sent and not acknowledged: enough for 100 MB/s at 2 ms. */
#define SNAPSHOT_WINDOW_LEN (4u * MESSAGE_CHUNK_LEN_MAX)

#define SNAPSHOT_RETRY_NS 300000000ull     /* nothing new: go back to what was acknowledged */
#define SNAPSHOT_GIVE_UP_NS 5000000000ull  /* nothing new: give up */

/* --- Sender */

struct snapshot_sender {
    bool active;
    uint64_t transfer;
    struct buf begin; /* the encoded BEGIN message */
    uint8_t *data;    /* owned */
    size_t len;
    bool begun; /* BEGIN was handed to the link */
    size_t sent;
    size_t acked;
    uint64_t progress_ns; /* when something new was acknowledged */
    uint64_t moved_ns;    /* likewise, or gone back */
};

void snapshot_sender_init(struct snapshot_sender *sender);

/* Start to send this InstallSnapshot, copied. The sender must not be active (CHECK). */
void snapshot_sender_start(struct snapshot_sender *sender, uint64_t transfer,
                           const struct raft_install_snapshot *args, uint64_t now_ns);
void snapshot_sender_stop(struct snapshot_sender *sender);

/* The next message to hand to the link, or false when there is none at the moment. Then say
 * snapshot_sender_sent(), or, when the link did not take it, nothing: it will come again. */
bool snapshot_sender_next(const struct snapshot_sender *sender, struct message *out_message);
void snapshot_sender_sent(struct snapshot_sender *sender);

enum snapshot_progress {
    SNAPSHOT_PROGRESS_GOING,
    SNAPSHOT_PROGRESS_DONE,  /* everything arrived; stop it */
    SNAPSHOT_PROGRESS_ENDED, /* refused, or nothing new for too long; stop it */
};

enum snapshot_progress snapshot_sender_ack(struct snapshot_sender *sender,
                                           const struct message_ack *ack, uint64_t now_ns);

/* Time has passed: goes back or gives up. */
enum snapshot_progress snapshot_sender_tick(struct snapshot_sender *sender, uint64_t now_ns);

/* When snapshot_sender_tick() wants to be called; UINT64_MAX: not active. */
uint64_t snapshot_sender_timer_ns(const struct snapshot_sender *sender);

/* --- Receiver */

struct snapshot_receiver {
    bool active;
    uint64_t transfer;
    uint64_t last_done; /* the transfer that was completed last: its late chunks are answered so */
    size_t last_done_len;
    struct message message; /* the BEGIN; its data grows until it is whole */
    size_t received;
};

void snapshot_receiver_init(struct snapshot_receiver *receiver);
void snapshot_receiver_stop(struct snapshot_receiver *receiver);

/* A BEGIN, whose content it takes. A new number replaces a transfer under way. */
void snapshot_receiver_begin(struct snapshot_receiver *receiver, struct message *message,
                             struct message_ack *out_ack);

/* A chunk. True when the snapshot is whole: *out_message is the InstallSnapshot, for libraft or
 * message_release(). *out_send_ack says whether *out_ack is to be sent. */
bool snapshot_receiver_chunk(struct snapshot_receiver *receiver,
                             const struct message_chunk *chunk, struct message *out_message,
                             struct message_ack *out_ack, bool *out_send_ack);

#endif
