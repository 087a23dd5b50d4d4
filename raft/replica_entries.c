/* How commands become entries, and entries results.
 *
 * A new leader first appends an entry of its own and serves only once that is applied: until then
 * it does not know what is committed, and its clock may not run. That entry carries the clock as
 * applied so far, which moves nothing, and the cluster's birth where there was none.
 *
 * Results are collected while libraft applies an entry, and handed out when it calls back for it:
 * inside apply nobody may be called who might propose. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "fsm/base/check.h"

/* A leader commits a stamp every 250 ms while anything depends on time (docs/protocol.md, Time);
 * what is left of that is for the timer's lateness and the commit. */
#define STAMP_INTERVAL_NS 200000000ull

/* After libraft refused an entry that nobody waits for, for lack of space. */
#define REFUSED_RETRY_NS 50000000ull

#define RESULTS_LEN_MAX (64u * 1024u * 1024u)

static void leadership_won(struct replica *replica, uint64_t now_ns);
static void leadership_lost(struct replica *replica);
static void append_barrier(struct replica *replica, uint64_t now_ns);
static void encode_birth(const struct replica *replica, struct buf *out);
static void on_birth(struct replica_proposal *proposal, enum status status, struct slice result);
static void append_ready(struct replica *replica);
static enum status append_entry(struct replica *replica, uint64_t now_ns, bool barrier);
static bool stamp_due(struct replica *replica, uint64_t now_ns);
static bool transferring(const struct replica *replica);
static struct replica_flight *flight_take(struct replica *replica);
static void flight_deliver(struct replica_flight *flight, enum status status);
static void on_entry_done(struct raft_apply *request, int code, void *result);
static bool on_begin(void *ctx, uint64_t index);
static void on_result(void *ctx, uint32_t place, struct slice result);
static void on_applied(void *ctx, uint64_t index, const struct entry *entry);
static void on_restored(void *ctx);
static void on_fatal(void *ctx, enum status status, const char *detail);
static void complete_all(struct replica *replica, struct list *proposals, enum status status);
static struct replica_proposal *proposal_at(struct list *link);

void replica_entries_init(struct replica *replica)
{
    batch_init(&replica->batch);
    list_init(&replica->flights);
    list_init(&replica->spare_flights);
    buf_init(&replica->scratch_entry, ENTRY_LEN_MAX);
    list_init(&replica->birth.link);
    replica->birth.deadline_ns = UINT64_MAX;
    replica->birth.cb = on_birth;
    replica->birth.ctx = replica;
}

void replica_entries_deinit(struct replica *replica)
{
    CHECK(list_empty(&replica->flights));
    struct list *link;
    while ((link = list_pop(&replica->spare_flights)) != NULL) {
        struct replica_flight *flight = CONTAINER_OF(link, struct replica_flight, link);
        buf_deinit(&flight->results);
        free(flight);
    }
    batch_deinit(&replica->batch);
    buf_deinit(&replica->scratch_entry);
}

void replica_entries_hooks(struct replica *replica, struct fsm_adapter_hooks *out_hooks)
{
    *out_hooks = (struct fsm_adapter_hooks){
        .ctx = replica,
        .on_begin = on_begin,
        .on_result = on_result,
        .on_applied = on_applied,
        .on_restored = on_restored,
        .on_fatal = on_fatal,
    };
}

enum status replica_propose(struct replica *replica, struct slice command,
                            struct replica_proposal *proposal)
{
    if (replica->closing || replica->state == REPLICA_STATE_CLOSED) {
        return STATUS_CLOSING;
    }
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER || transferring(replica)) {
        return STATUS_NOT_LEADER;
    }
    if (!replica->lead.serving || replica->lead.term != replica->raft.current_term) {
        return STATUS_NOT_SERVING;
    }
    list_init(&proposal->link);
    return batch_add(&replica->batch, command, proposal);
}

bool replica_proposal_cancel(struct replica *replica, struct replica_proposal *proposal)
{
    return batch_cancel(&replica->batch, proposal);
}

/* --- leadership */

void replica_entries_role(struct replica *replica, uint64_t now_ns)
{
    const struct raft *raft = &replica->raft;
    bool leads = raft->state == RAFT_LEADER;
    if (replica->lead.term != 0 && (!leads || replica->lead.term != raft->current_term)) {
        leadership_lost(replica);
    }
    if (leads && replica->lead.term == 0) {
        leadership_won(replica, now_ns);
    }
}

static void leadership_won(struct replica *replica, uint64_t now_ns)
{
    replica->lead = (struct replica_lead){
        .term = replica->raft.current_term,
        .retry_ns = now_ns,
    };
    replica->stats.elections++;
    change_plan_init(&replica->plan);
}

/* What waits was never submitted, so certainly not done; what is in flight ends with libraft's
 * callbacks, and may have been done. */
static void leadership_lost(struct replica *replica)
{
    replica->lead = (struct replica_lead){0};
    replica->disk_full = false; /* told by what this leader could not append */
    replica_entries_drop_waiting(replica, STATUS_NOT_LEADER);
    replica_reads_drop_rounds(replica, STATUS_NOT_LEADER);
    replica_links_drop_transfers(replica);
}

static void append_barrier(struct replica *replica, uint64_t now_ns)
{
    if (now_ns < replica->lead.retry_ns || transferring(replica) ||
        batch_waiting(&replica->batch)) {
        return;
    }
    if (replica->birth_due && !fsm_born(replica->adapter.fsm)) {
        struct buf bytes;
        buf_init(&bytes, ENTRY_LEN_TARGET);
        encode_birth(replica, &bytes);
        list_init(&replica->birth.link);
        CHECK(batch_add(&replica->batch, buf_slice(&bytes), &replica->birth) == STATUS_OK);
        buf_deinit(&bytes);
    }
    if (append_entry(replica, replica_now(replica), true) == STATUS_OK) {
        replica->lead.barrier_sent = true;
    } else {
        replica->lead.retry_ns = now_ns + REFUSED_RETRY_NS;
    }
}

struct op replica_birth_op(const struct disk_identity *identity)
{
    struct op birth = {
        .kind = OP_KIND_BIRTH,
        .identity = identity->cluster,
        .token_floor = identity->founding.token_floor,
        .settings = settings_default(),
    };
    birth.settings.voters_wanted = identity->founding.voters;
    return birth;
}

static void encode_birth(const struct replica *replica, struct buf *out)
{
    struct command birth = {.op = replica_birth_op(&replica->identity)};
    command_encode(&birth, out);
}

/* The table tells whether the cluster is born; who asked has nothing to add. */
static void on_birth(struct replica_proposal *proposal, enum status status, struct slice result)
{
    (void)proposal;
    (void)status;
    (void)result;
}

/* --- entries */

void replica_entries_turn(struct replica *replica, uint64_t now_ns)
{
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER ||
        replica->lead.term != replica->raft.current_term) {
        return;
    }
    if (!replica->lead.serving) {
        if (!replica->lead.barrier_sent) {
            append_barrier(replica, now_ns);
        }
        return;
    }
    if (transferring(replica)) {
        replica_entries_drop_waiting(replica, STATUS_NOT_LEADER);
        return;
    }
    append_ready(replica);
    if (replica_running(replica) && stamp_due(replica, now_ns)) {
        (void)append_entry(replica, replica_now(replica), false);
    }
}

/* Whose deadline passed while earlier entries were under way is told so, once all is submitted
 * that can be: told earlier, it could ask again and again within one turn. */
static void append_ready(struct replica *replica)
{
    struct list expired;
    list_init(&expired);
    while (replica_running(replica) && batch_ready(&replica->batch)) {
        uint64_t now_ns = replica_now(replica);
        if (batch_expire(&replica->batch, now_ns, &expired)) {
            (void)append_entry(replica, now_ns, false);
        }
    }
    complete_all(replica, &expired, STATUS_DEADLINE);
}

uint64_t replica_entries_timer_ns(const struct replica *replica)
{
    const struct replica_lead *lead = &replica->lead;
    if (lead->term == 0) {
        return UINT64_MAX;
    }
    if (!lead->serving) {
        return lead->barrier_sent ? UINT64_MAX : lead->retry_ns;
    }
    if (batch_ready(&replica->batch)) {
        return 0;
    }
    if (replica->batch.in_flight > 0 || !fsm_timed(replica->adapter.fsm)) {
        return UINT64_MAX;
    }
    uint64_t due_ms = fsm_next_due_ms(replica->adapter.fsm);
    uint64_t due_ns = UINT64_MAX;
    if (due_ms < UINT64_MAX / NS_PER_MS) {
        due_ns = lead->clock.base_local_ns +
                 sub_or_zero_u64(ms_to_ns(due_ms), lead->clock.base_cluster_ns);
    }
    return max_u64(min_u64(due_ns, lead->closed_ns + STAMP_INTERVAL_NS), lead->retry_ns);
}

/* An entry without commands is due when the clock has not been committed for a while though
 * something depends on it, and at once when something is to be removed. While an entry is in flight
 * its stamp serves. */
static bool stamp_due(struct replica *replica, uint64_t now_ns)
{
    const struct fsm *fsm = replica->adapter.fsm;
    if (replica->batch.in_flight > 0 || !fsm_timed(fsm) || now_ns < replica->lead.retry_ns) {
        return false;
    }
    if (now_ns >= replica->lead.closed_ns + STAMP_INTERVAL_NS) {
        return true;
    }
    return fsm_next_due_ms(fsm) <=
           cluster_clock_stamp(&replica->lead.clock, replica_now(replica));
}

/* Close the next entry and hand it to libraft. `now_ns` is the clock as it is, read when nothing
 * more can be added. On failure the entry's proposals have been completed. */
static enum status append_entry(struct replica *replica, uint64_t now_ns, bool barrier)
{
    struct replica_flight *flight = flight_take(replica);
    flight->entry = batch_close(&replica->batch);
    flight->term = replica->raft.current_term;
    flight->index = 0;
    flight->barrier = barrier;
    flight->applied = false;
    flight->result_count = 0;
    buf_clear(&flight->results);

    flight->stamp_ms = barrier ? fsm_clock_ms(replica->adapter.fsm)
                               : cluster_clock_stamp(&replica->lead.clock, now_ns);
    struct batch_entry *entry = flight->entry;
    struct buf *encoded = &replica->scratch_entry;
    buf_clear(encoded);
    entry_encode(flight->stamp_ms, buf_slice(&entry->commands), entry->command_count, encoded);
    CHECK(!buf_overflown(encoded) && encoded->len % 8 == 0 && encoded->len > 0);

    struct raft_buffer buffer = {.base = raft_malloc(encoded->len), .len = encoded->len};
    CHECK(buffer.base != NULL);
    memcpy(buffer.base, encoded->base, encoded->len);
    replica->lead.closed_ns = now_ns;
    list_append(&replica->flights, &flight->link);
    int code = raft_apply(&replica->raft, &flight->apply, &buffer, 1, on_entry_done);
    if (code == 0) {
        flight->index = flight->apply.index;
        replica->disk_full = false;
        replica->stats.entries_appended++;
        replica->stats.stamps += entry->command_count == 0 ? 1 : 0;
        replica->stats.batch_len_max =
            max_u64(replica->stats.batch_len_max, entry->command_count);
        return STATUS_OK;
    }
    enum status status = status_from_raft(code);
    if (status_raft_apply_refused(code)) {
        raft_free(buffer.base);
    } else {
        /* libraft and its log have parted ways, and the buffer is gone. */
        guard_fail(replica->guard, STATUS_INTERNAL, "libraft refused an entry half way");
        status = STATUS_LEADERSHIP_LOST;
    }
    replica->disk_full = status == STATUS_DISK_FULL;
    replica->lead.retry_ns = now_ns + REFUSED_RETRY_NS;
    flight_deliver(flight, status);
    return status;
}

static bool transferring(const struct replica *replica)
{
    return raft_transferee(&replica->raft) != 0;
}

/* --- completions */

static struct replica_flight *flight_take(struct replica *replica)
{
    struct list *link = list_pop(&replica->spare_flights);
    if (link != NULL) {
        return CONTAINER_OF(link, struct replica_flight, link);
    }
    struct replica_flight *flight = calloc(1, sizeof *flight);
    CHECK(flight != NULL);
    list_init(&flight->link);
    flight->replica = replica;
    buf_init(&flight->results, RESULTS_LEN_MAX);
    return flight;
}

static void on_entry_done(struct raft_apply *request, int code, void *result)
{
    (void)result;
    struct replica_flight *flight = CONTAINER_OF(request, struct replica_flight, apply);
    /* Applied by a node that failed in the very moment: nobody knows. */
    bool done = code == 0 && flight->applied;
    flight_deliver(flight, done ? STATUS_OK : STATUS_LEADERSHIP_LOST);
}

/* Complete the flight's proposals. Everything of it is put in order first: they may propose again,
 * which may need the batch's memory but not this flight's. */
static void flight_deliver(struct replica_flight *flight, enum status status)
{
    struct replica *replica = flight->replica;
    struct list proposals;
    list_init(&proposals);
    batch_take(flight->entry, &proposals);
    CHECK(status != STATUS_OK || flight->result_count == flight->entry->command_count);
    batch_done(&replica->batch, flight->entry);
    flight->entry = NULL;
    list_remove(&flight->link);

    replica_enter(replica);
    size_t at = 0;
    struct list *link;
    while ((link = list_pop(&proposals)) != NULL) {
        struct replica_proposal *proposal = proposal_at(link);
        struct slice result = {0};
        if (status == STATUS_OK) {
            uint32_t len = 0;
            memcpy(&len, flight->results.base + at, sizeof len);
            result = slice_from(flight->results.base + at + sizeof len, len);
            at += sizeof len + len;
        }
        proposal->cb(proposal, status, result);
    }
    list_append(&replica->spare_flights, &flight->link);
    replica_leave(replica);
}

void replica_entries_drop_waiting(struct replica *replica, enum status status)
{
    struct list proposals;
    list_init(&proposals);
    batch_drop_waiting(&replica->batch, &proposals);
    complete_all(replica, &proposals, status);
}

/* libraft's callbacks won't come any more; its queues keep pointing at the flights, so these stay
 * allocated. */
void replica_entries_abandon(struct replica *replica)
{
    replica_entries_drop_waiting(replica, STATUS_LEADERSHIP_LOST);
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &replica->flights) {
        struct replica_flight *flight = CONTAINER_OF(link, struct replica_flight, link);
        struct list proposals;
        list_init(&proposals);
        batch_take(flight->entry, &proposals);
        complete_all(replica, &proposals, STATUS_LEADERSHIP_LOST);
    }
}

static void complete_all(struct replica *replica, struct list *proposals, enum status status)
{
    replica_enter(replica);
    struct list *link;
    while ((link = list_pop(proposals)) != NULL) {
        struct replica_proposal *proposal = proposal_at(link);
        proposal->cb(proposal, status, (struct slice){0});
    }
    replica_leave(replica);
}

static struct replica_proposal *proposal_at(struct list *link)
{
    return CONTAINER_OF(link, struct replica_proposal, link);
}

/* --- inside libraft: write down only */

/* Ours is an entry that this leader appended in its present term: a leader never overwrites its own
 * log, while an index alone may hold another leader's entry by now. */
static bool on_begin(void *ctx, uint64_t index)
{
    struct replica *replica = ctx;
    replica->applying = NULL;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &replica->flights) {
        struct replica_flight *flight = CONTAINER_OF(link, struct replica_flight, link);
        if (flight->index == index && !flight->applied && replica->raft.state == RAFT_LEADER &&
            flight->term == replica->raft.current_term) {
            replica->applying = flight;
            return true;
        }
    }
    return false;
}

static void on_result(void *ctx, uint32_t place, struct slice result)
{
    struct replica *replica = ctx;
    struct replica_flight *flight = replica->applying;
    CHECK(flight != NULL && place == flight->result_count);
    uint32_t len = (uint32_t)result.len;
    buf_append(&flight->results, &len, sizeof len);
    buf_append(&flight->results, result.base, result.len);
    CHECK(!buf_overflown(&flight->results));
    flight->result_count++;
}

static void on_applied(void *ctx, uint64_t index, const struct entry *entry)
{
    struct replica *replica = ctx;
    replica->stats.entries_applied++;
    replica->stats.commands_applied += entry->command_count;
    struct replica_flight *flight = replica->applying;
    replica->applying = NULL;
    if (flight != NULL) {
        flight->applied = true;
        uint64_t now_ns = replica_now(replica);
        if (replica->lead.term != flight->term) {
            /* Another term's: the turn has not noticed the change yet. */
        } else if (flight->barrier) {
            cluster_clock_start(&replica->lead.clock, fsm_clock_ms(replica->adapter.fsm), now_ns);
            replica->lead.serving = true;
        } else if (replica->lead.serving) {
            cluster_clock_committed(&replica->lead.clock, flight->stamp_ms, now_ns);
        }
    }
    if (!replica->opening) {
        replica->callbacks.on_applied(replica->callbacks.ctx, index,
                                      fsm_changes(replica->adapter.fsm));
    }
}

static void on_restored(void *ctx)
{
    struct replica *replica = ctx;
    if (!replica->opening) {
        replica->stats.snapshots_installed++;
        replica->callbacks.on_applied(replica->callbacks.ctx,
                                      fsm_index(replica->adapter.fsm), NULL);
    }
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct replica *replica = ctx;
    guard_fail(replica->guard, status, detail);
}
