/* What the files of the guard share. */
#ifndef RAFT_GUARD_INTERNAL_H_
#define RAFT_GUARD_INTERNAL_H_

#include "fsm/base/list.h"
#include "raft/guard.h"

#define GUARD_PEERS_MAX 128u /* twice the members that a cluster may have */

/* An append on its way to the disk. */
struct guard_append {
    struct list link;
    struct raft_io_append inner; /* what the backend sees */
    struct raft_io_append *outer;
    struct guard *guard;
    raft_index last_index; /* of its entries; lowered when they are truncated meanwhile */
    unsigned count;
    size_t len;
    bool parked; /* came back after the guard failed */
};

/* A snapshot on its way to the disk. */
struct guard_put {
    struct list link;
    struct raft_io_snapshot_put inner;
    struct raft_io_snapshot_put *outer;
    struct guard *guard;
    raft_index install_index; /* of a snapshot that replaces the log; 0: one of our own state */
    bool parked;
};

/* A snapshot on its way from the disk to a peer. */
struct guard_get {
    struct list link;
    struct raft_io_snapshot_get inner;
    struct raft_io_snapshot_get *outer;
    struct guard *guard;
};

struct guard_peer {
    raft_id id; /* 0: free */
    bool snapshot_in_flight;
    raft_time snapshot_not_before;
    raft_index commit_announced; /* in the last AppendEntries sent to it */
};

struct guard {
    struct raft_io io;
    struct raft_io *backend;
    struct guard_options options;
    struct guard_stats stats;
    bool failed;
    bool closing;
    raft_io_tick_cb tick; /* NULL until libraft has started */
    raft_io_recv_cb recv;
    raft_io_close_cb close_cb;

    struct raft_io_send **sends; /* done, libraft to be told at the end of the turn */
    size_t send_count;
    size_t send_cap;

    struct list appends; /* in order of submission */
    size_t pending_entries;
    size_t pending_len;
    raft_index next_index;      /* of the next entry to be appended */
    raft_index persisted_index; /* on disk without a gap */
    raft_index durable_index;

    struct list puts;
    struct list gets; /* not handed to the backend yet */
    size_t get_count;
    struct guard_get *get_running;
    bool get_parked; /* get_running came back after the guard failed */
    raft_time get_not_before;

    /* While libraft handles a message of an older term. */
    bool stale;

    /* While libraft turns a loaded snapshot into a message. */
    bool loaded;
    bool loaded_nothing;
    raft_index loaded_index;
    raft_term loaded_term;

    raft_index commit_notified;
    uint64_t watched_write;
    uint64_t watched_ns;
    uint64_t watch_last_ns;

    struct guard_peer peers[GUARD_PEERS_MAX];
    size_t peer_next; /* slot to give away when all are taken */
};

static inline struct guard *guard_of(const struct raft_io *io)
{
    return io->impl;
}

static inline struct raft *guard_raft(const struct guard *guard)
{
    return guard->io.data;
}

static inline bool guard_cures(const struct guard *guard, enum guard_cure cure)
{
    return (guard->options.cures & (unsigned)cure) != 0;
}

/* Libraft may be entered: it has started, is not closing, and the guard has not failed. */
static inline bool guard_runs(const struct guard *guard)
{
    return guard->tick != NULL && !guard->failed && !guard->closing;
}

/* --- guard.c */

/* Zeroed; CHECKs for memory. */
void *guard_alloc(size_t len);

/* A call or completion of the backend ended with `code`: stop the node. */
void guard_fail_io(struct guard *guard, int code, const char *what);

/* --- guard_log.c: functions of the raft_io */

int guard_io_set_term(struct raft_io *io, raft_term term);
int guard_io_set_vote(struct raft_io *io, raft_id server_id);
int guard_io_append(struct raft_io *io, struct raft_io_append *req,
                    const struct raft_entry entries[], unsigned n, raft_io_append_cb cb);
int guard_io_truncate(struct raft_io *io, raft_index index);

/* Entries from `index` on are dropped, also those on their way to the disk. */
void guard_forget_entries(struct guard *guard, raft_index index);

/* --- guard_snapshots.c: functions of the raft_io */

int guard_io_snapshot_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                          const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb);
int guard_io_snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req,
                          raft_io_snapshot_get_cb cb);

/* Give libraft a snapshot of nothing, whose message is dropped. Frees `get`. */
void guard_get_answer_empty(struct guard *guard, struct guard_get *get);

/* Ask the backend for the next snapshot that is wanted. */
void guard_serve_gets(struct guard *guard);

/* --- guard_send.c: a function of the raft_io */

int guard_io_send(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                  raft_io_send_cb cb);

/* Tell libraft of all that was sent. */
void guard_flush_sends(struct guard *guard, int status);

/* What is remembered of a peer; a new slot if there is none. */
struct guard_peer *guard_peer(struct guard *guard, raft_id id);

/* --- guard_receive.c */

/* This node's place in the configuration that it knows; NULL: it is not in there. */
struct raft_server *guard_self(const struct raft *raft);

#endif
