/* Linearizable reads: rounds that confirm leadership, and waiting until an index is applied.
 *
 * What a read needs from libraft is read between its steps only: the term when a peer asks, the
 * commit index when a round begins. A follower's own commit index is never used, since it may go
 * back (L1). */
#include "raft/replica_internal.h"

#include "fsm/base/check.h"

/* A round without a majority for so many election time-outs has failed: libraft's own check makes
 * the leader step down in that time. */
#define ROUND_ELECTIONS_MAX 2u

static void begin_round(struct replica *replica, uint64_t now_ns);
static void ask(struct replica *replica, uint64_t now_ns);
static void end_round(struct replica *replica);
static void wait_applied(struct replica *replica, struct replica_read *read);
static void complete_applied(struct replica *replica);
static void complete_all(struct replica *replica, struct list *reads, enum status status);
static uint64_t round_end_ns(const struct replica *replica);
static struct replica_read *read_at(struct list *link);

enum status replica_read_start(struct replica *replica, struct replica_read *read)
{
    if (replica->closing || replica->state == REPLICA_STATE_CLOSED) {
        return STATUS_CLOSING;
    }
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER) {
        return STATUS_NOT_LEADER;
    }
    if (!replica->lead.serving || replica->lead.term != replica->raft.current_term) {
        return STATUS_NOT_SERVING;
    }
    list_init(&read->link);
    read_index_add(&replica->reads, &read->link);
    replica->stats.reads++;
    return STATUS_OK;
}

enum status replica_read_wait(struct replica *replica, struct replica_read *read)
{
    if (replica->closing || replica->state == REPLICA_STATE_CLOSED) {
        return STATUS_CLOSING;
    }
    if (!replica_running(replica)) {
        return STATUS_UNINITIALISED;
    }
    list_init(&read->link);
    wait_applied(replica, read);
    return STATUS_OK;
}

void replica_read_cancel(struct replica *replica, struct replica_read *read)
{
    (void)replica;
    list_remove(&read->link);
}

void replica_reads_turn(struct replica *replica, uint64_t now_ns)
{
    if (!replica_running(replica)) {
        return;
    }
    if (replica->lead.serving && replica->lead.term == replica->raft.current_term &&
        replica->raft.state == RAFT_LEADER) {
        if (read_index_wants_round(&replica->reads)) {
            begin_round(replica, now_ns);
        }
        if (read_index_should_ask(&replica->reads, now_ns)) {
            ask(replica, now_ns);
        }
        if (read_index_confirmed(&replica->reads)) {
            end_round(replica);
        } else if (replica->reads.running && now_ns >= round_end_ns(replica)) {
            struct list reads;
            list_init(&reads);
            read_index_end(&replica->reads, &reads);
            complete_all(replica, &reads, STATUS_NO_QUORUM);
        }
    }
    complete_applied(replica);
}

uint64_t replica_reads_timer_ns(const struct replica *replica)
{
    if (read_index_wants_round(&replica->reads)) {
        return 0;
    }
    struct list *first = list_first(&replica->applied_waits);
    if (first != NULL && read_at(first)->point.index <= replica->raft.last_applied) {
        return 0;
    }
    if (!replica->reads.running) {
        return UINT64_MAX;
    }
    return min_u64(replica->reads.asked_ns + READ_INDEX_RETRY_NS, round_end_ns(replica));
}

void replica_reads_drop_rounds(struct replica *replica, enum status status)
{
    struct list reads;
    list_init(&reads);
    read_index_drop(&replica->reads, &reads);
    complete_all(replica, &reads, status);
}

void replica_reads_drop_waits(struct replica *replica, enum status status)
{
    struct list reads;
    list_init(&reads);
    struct list *link;
    while ((link = list_pop(&replica->applied_waits)) != NULL) {
        list_append(&reads, link);
    }
    complete_all(replica, &reads, status);
}

static void begin_round(struct replica *replica, uint64_t now_ns)
{
    const struct raft_configuration *configuration = &replica->raft.configuration;
    uint64_t voters[READ_INDEX_VOTERS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < configuration->n; i++) {
        const struct raft_server *server = &configuration->servers[i];
        if (server->role == RAFT_VOTER && server->id != replica->raft.id) {
            CHECK(count < READ_INDEX_VOTERS_MAX);
            voters[count++] = server->id;
        }
    }
    struct read_round round = {
        .term = replica->lead.term,
        .index = replica->raft.commit_index,
        .clock_ms = cluster_clock_stamp(&replica->lead.clock, replica_now(replica)),
        .began_ns = now_ns,
    };
    read_index_begin(&replica->reads, &round, voters, count);
    replica->stats.read_rounds++;
}

static void ask(struct replica *replica, uint64_t now_ns)
{
    uint64_t ids[READ_INDEX_VOTERS_MAX];
    unsigned count = read_index_ask(&replica->reads, now_ns, ids);
    struct message message = {
        .kind = MESSAGE_KIND_READ_CONFIRM,
        .confirm = {.term = replica->reads.round.term, .nonce = replica->reads.nonce},
    };
    for (unsigned i = 0; i < count; i++) {
        replica_links_send(replica, ids[i], &message);
    }
}

static void end_round(struct replica *replica)
{
    struct read_point point = {
        .index = replica->reads.round.index,
        .clock_ms = replica->reads.round.clock_ms,
    };
    struct list reads;
    list_init(&reads);
    read_index_end(&replica->reads, &reads);
    struct list *link;
    while ((link = list_pop(&reads)) != NULL) {
        struct replica_read *read = read_at(link);
        read->point = point;
        wait_applied(replica, read);
    }
}

/* Kept in the order of indexes; they come nearly so. */
static void wait_applied(struct replica *replica, struct replica_read *read)
{
    struct list *before = replica->applied_waits.prev;
    while (before != &replica->applied_waits && read_at(before)->point.index > read->point.index) {
        before = before->prev;
    }
    list_append(before->next, &read->link);
}

static void complete_applied(struct replica *replica)
{
    replica_enter(replica);
    struct list *link;
    while ((link = list_first(&replica->applied_waits)) != NULL &&
           read_at(link)->point.index <= replica->raft.last_applied) {
        struct replica_read *read = read_at(link);
        list_remove(link);
        read->cb(read, STATUS_OK, read->point);
    }
    replica_leave(replica);
}

static void complete_all(struct replica *replica, struct list *reads, enum status status)
{
    replica_enter(replica);
    struct list *link;
    while ((link = list_pop(reads)) != NULL) {
        struct replica_read *read = read_at(link);
        read->cb(read, status, (struct read_point){0});
    }
    replica_leave(replica);
}

static uint64_t round_end_ns(const struct replica *replica)
{
    return replica->reads.round.began_ns +
           ms_to_ns((uint64_t)ROUND_ELECTIONS_MAX * replica->config.election_ms);
}

static struct replica_read *read_at(struct list *link)
{
    return CONTAINER_OF(link, struct replica_read, link);
}
