/* One queue of operations in the order of submission. Each has an event on the clock that makes it
 * due; what is due at the head of the queue completes. An operation that was cancelled stays
 * allocated until its event has run. */
#include "tests/raft/fake_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/list.h"
#include "fsm/base/units.h"

/* Hidden in libraft.so, found in libraft.a: calls back the requests that were completed. */
extern void LegacyFireCompletedRequests(struct raft *raft);

#define CAPACITY_KIB_DEFAULT 24576u

enum op_kind_fake {
    OP_TICK,
    OP_APPEND,
    OP_PUT,
    OP_GET,
};

struct op_fake {
    struct list link;     /* in the queue, while not complete */
    struct list all_link; /* in the disk, while its event has not run */
    struct fake_disk *disk;
    enum op_kind_fake kind;
    uint64_t ticket;
    bool due;
    bool complete;
    unsigned tick_ms;
    struct raft_io_append *append;
    const struct raft_entry *entries;
    unsigned entry_count;
    raft_index first_index;
    struct raft_io_snapshot_put *put;
    const struct raft_snapshot *snapshot;
    unsigned trailing;
    struct raft_io_snapshot_get *get;
};

struct stable_entry {
    raft_term term;
    enum raft_entry_type type;
    size_t len;
    void *base;
};

struct stable_snapshot {
    raft_index index; /* 0: none */
    raft_term term;
    raft_index configuration_index;
    struct raft_configuration configuration;
    void *base;
    size_t len;
};

struct fake_disk {
    struct fake_disk_env env;
    struct fake_disk_timing timing;

    /* Stable. */
    raft_term term;
    raft_id vote;
    raft_index first_index;
    struct stable_entry *entries;
    size_t entry_count;
    struct stable_snapshot snapshot;
    unsigned snapshot_reads;

    /* Of the process that runs on it. */
    struct raft_io io;
    bool booted;
    bool crashed;
    raft_io_tick_cb tick;
    raft_index next_index;
    struct list queue;
    struct list all;
    uint64_t last_due_ns;
    uint64_t ticket;
    bool stalled;
    bool starved;
    enum fake_disk_call failing;
    int failing_code;
};

static struct fake_disk *disk_of(const struct raft_io *io)
{
    return io->impl;
}

static void *fake_alloc(size_t len)
{
    void *memory = calloc(1, len > 0 ? len : 1);
    CHECK(memory != NULL);
    return memory;
}

static void *fake_copy(const void *base, size_t len)
{
    void *copy = fake_alloc(len);
    if (len > 0) {
        memcpy(copy, base, len);
    }
    return copy;
}

/* The code that this call shall end with. */
static int fake_take_failure(struct fake_disk *disk, enum fake_disk_call call)
{
    if (disk->failing != call) {
        return 0;
    }
    disk->failing = FAKE_DISK_CALL_NONE;
    (void)snprintf(disk->io.errmsg, sizeof(disk->io.errmsg), "made to fail");
    return disk->failing_code;
}

static uint64_t fake_latency(struct fake_disk *disk, uint64_t min_ns, uint64_t max_ns)
{
    return min_ns + disk->env.random(disk->env.ctx) % (max_ns - min_ns + 1);
}

static void configuration_copy(const struct raft_configuration *from,
                               struct raft_configuration *out_to)
{
    raft_configuration_init(out_to);
    for (unsigned idx = 0; idx < from->n; idx++) {
        const struct raft_server *server = &from->servers[idx];
        CHECK(raft_configuration_add(out_to, server->id, server->address, server->role) == 0);
    }
}

/* --- stable state ----------------------------------------------------------------------------- */

static void stable_drop_from(struct fake_disk *disk, size_t from)
{
    for (size_t idx = from; idx < disk->entry_count; idx++) {
        free(disk->entries[idx].base);
    }
    disk->entry_count = from < disk->entry_count ? from : disk->entry_count;
}

static void stable_drop_before(struct fake_disk *disk, raft_index index)
{
    if (index <= disk->first_index) {
        return;
    }
    size_t gone = min_u64(index - disk->first_index, disk->entry_count);
    for (size_t idx = 0; idx < gone; idx++) {
        free(disk->entries[idx].base);
    }
    memmove(disk->entries, disk->entries + gone,
            (disk->entry_count - gone) * sizeof(*disk->entries));
    disk->entry_count -= gone;
    disk->first_index += gone;
}

static void stable_append(struct fake_disk *disk, raft_index index,
                          const struct raft_entry *entries, size_t count)
{
    CHECK(index >= disk->first_index && index <= disk->first_index + disk->entry_count);
    stable_drop_from(disk, (size_t)(index - disk->first_index));
    disk->entries =
        realloc(disk->entries, (disk->entry_count + count + 1) * sizeof(*disk->entries));
    CHECK(disk->entries != NULL);
    for (size_t idx = 0; idx < count; idx++) {
        disk->entries[disk->entry_count++] = (struct stable_entry){
            .term = entries[idx].term,
            .type = entries[idx].type,
            .len = entries[idx].buf.len,
            .base = fake_copy(entries[idx].buf.base, entries[idx].buf.len),
        };
    }
}

static void stable_snapshot_clear(struct stable_snapshot *snapshot)
{
    if (snapshot->index != 0) {
        raft_configuration_close(&snapshot->configuration);
        free(snapshot->base);
    }
    *snapshot = (struct stable_snapshot){0};
}

void fake_disk_set_snapshot(struct fake_disk *disk, const struct raft_snapshot *snapshot)
{
    size_t len = 0;
    for (unsigned idx = 0; idx < snapshot->n_bufs; idx++) {
        len += snapshot->bufs[idx].len;
    }
    uint8_t *base = fake_alloc(len);
    size_t at = 0;
    for (unsigned idx = 0; idx < snapshot->n_bufs; idx++) {
        memcpy(base + at, snapshot->bufs[idx].base, snapshot->bufs[idx].len);
        at += snapshot->bufs[idx].len;
    }
    stable_snapshot_clear(&disk->snapshot);
    disk->snapshot.index = snapshot->index;
    disk->snapshot.term = snapshot->term;
    disk->snapshot.configuration_index = snapshot->configuration_index;
    configuration_copy(&snapshot->configuration, &disk->snapshot.configuration);
    disk->snapshot.base = base;
    disk->snapshot.len = len;
}

/* A copy for libraft, which takes it. */
static struct raft_snapshot *stable_snapshot_read(struct fake_disk *disk)
{
    struct raft_snapshot *copy = raft_calloc(1, sizeof(*copy));
    CHECK(copy != NULL);
    copy->index = disk->snapshot.index;
    copy->term = disk->snapshot.term;
    copy->configuration_index = disk->snapshot.configuration_index;
    configuration_copy(&disk->snapshot.configuration, &copy->configuration);
    copy->n_bufs = 1;
    copy->bufs = raft_malloc(sizeof(*copy->bufs));
    CHECK(copy->bufs != NULL);
    copy->bufs[0].len = disk->snapshot.len;
    copy->bufs[0].base = raft_malloc(disk->snapshot.len);
    CHECK(copy->bufs[0].base != NULL);
    memcpy(copy->bufs[0].base, disk->snapshot.base, disk->snapshot.len);
    return copy;
}

/* --- operations ------------------------------------------------------------------------------- */

static void complete_append(struct fake_disk *disk, struct op_fake *op)
{
    int code = fake_take_failure(disk, FAKE_DISK_CALL_APPEND_DONE);
    if (code == 0) {
        stable_append(disk, op->first_index, op->entries, op->entry_count);
    } else {
        disk->next_index -= op->entry_count;
    }
    op->append->cb(op->append, code);
}

static void complete_put(struct fake_disk *disk, struct op_fake *op)
{
    int code = fake_take_failure(disk, FAKE_DISK_CALL_SNAPSHOT_PUT_DONE);
    if (code == 0) {
        fake_disk_set_snapshot(disk, op->snapshot);
        raft_index index = op->snapshot->index;
        if (op->trailing == 0) {
            stable_drop_from(disk, 0);
            disk->first_index = index + 1;
        } else if (index > op->trailing) {
            stable_drop_before(disk, index - op->trailing + 1);
        }
    }
    op->put->cb(op->put, code);
}

static void complete_get(struct fake_disk *disk, struct op_fake *op)
{
    int code = fake_take_failure(disk, FAKE_DISK_CALL_SNAPSHOT_GET_DONE);
    disk->snapshot_reads++;
    op->get->cb(op->get, code == 0 ? stable_snapshot_read(disk) : NULL, code);
}

/* Complete what is due at the head of the queue. */
static void fake_drain(struct fake_disk *disk)
{
    while (!disk->stalled && !disk->starved && disk->booted && !disk->crashed) {
        struct list *link = list_first(&disk->queue);
        if (link == NULL) {
            return;
        }
        struct op_fake *op = CONTAINER_OF(link, struct op_fake, link);
        if (!op->due) {
            return;
        }
        list_remove(&op->link);
        op->complete = true;
        if (op->kind == OP_APPEND) {
            complete_append(disk, op);
        } else if (op->kind == OP_PUT) {
            complete_put(disk, op);
        } else {
            complete_get(disk, op);
        }
        list_remove(&op->all_link);
        free(op);
        fake_disk_fire(disk);
    }
}

static void on_due(void *arg)
{
    struct op_fake *op = arg;
    struct fake_disk *disk = op->disk;
    if (op->complete) {
        list_remove(&op->all_link);
        free(op);
        return;
    }
    op->due = true;
    if (op->kind != OP_TICK) {
        fake_drain(disk);
        return;
    }
    disk->env.schedule(disk->env.ctx, disk->env.now_ns(disk->env.ctx) + ms_to_ns(op->tick_ms),
                       on_due, op);
    disk->tick(&disk->io);
    fake_disk_fire(disk);
}

static struct op_fake *op_create(struct fake_disk *disk, enum op_kind_fake kind)
{
    struct op_fake *op = fake_alloc(sizeof(*op));
    op->disk = disk;
    op->kind = kind;
    op->ticket = ++disk->ticket;
    list_init(&op->link);
    list_init(&op->all_link);
    list_append(&disk->all, &op->all_link);
    return op;
}

/* Into the queue, due after a random time and not before what is ahead of it. */
static void op_submit(struct op_fake *op, uint64_t min_ns, uint64_t max_ns)
{
    struct fake_disk *disk = op->disk;
    uint64_t due_ns = disk->env.now_ns(disk->env.ctx) + fake_latency(disk, min_ns, max_ns);
    disk->last_due_ns = max_u64(disk->last_due_ns, due_ns);
    list_append(&disk->queue, &op->link);
    disk->env.schedule(disk->env.ctx, disk->last_due_ns, on_due, op);
}

/* --- the raft_io ------------------------------------------------------------------------------ */

static int fake_init(struct raft_io *io, raft_id id, const char *address)
{
    (void)io;
    (void)id;
    (void)address;
    return 0;
}

static int fake_load(struct raft_io *io, raft_term *term, raft_id *voted_for,
                     struct raft_snapshot **snapshot, raft_index *start_index,
                     struct raft_entry *entries[], size_t *n_entries)
{
    struct fake_disk *disk = disk_of(io);
    int code = fake_take_failure(disk, FAKE_DISK_CALL_LOAD);
    if (code != 0) {
        return code;
    }
    *term = disk->term;
    *voted_for = disk->vote;
    *snapshot = disk->snapshot.index != 0 ? stable_snapshot_read(disk) : NULL;
    *start_index = disk->first_index;
    *entries = NULL;
    *n_entries = disk->entry_count;
    disk->next_index = disk->first_index + disk->entry_count;
    if (disk->entry_count == 0) {
        return 0;
    }
    size_t len = 0;
    for (size_t idx = 0; idx < disk->entry_count; idx++) {
        len += disk->entries[idx].len;
    }
    uint8_t *batch = raft_malloc(len > 0 ? len : 1);
    *entries = raft_malloc(disk->entry_count * sizeof(**entries));
    CHECK(batch != NULL && *entries != NULL);
    uint8_t *at = batch;
    for (size_t idx = 0; idx < disk->entry_count; idx++) {
        const struct stable_entry *stable = &disk->entries[idx];
        struct raft_entry *entry = &(*entries)[idx];
        entry->term = stable->term;
        entry->type = stable->type;
        entry->batch = batch;
        entry->buf.base = at;
        entry->buf.len = stable->len;
        if (stable->len > 0) {
            memcpy(at, stable->base, stable->len);
        }
        at += stable->len;
    }
    return 0;
}

static int fake_start(struct raft_io *io, unsigned msecs, raft_io_tick_cb tick,
                      raft_io_recv_cb recv)
{
    struct fake_disk *disk = disk_of(io);
    (void)recv;
    disk->tick = tick;
    struct op_fake *op = op_create(disk, OP_TICK);
    op->tick_ms = msecs;
    disk->env.schedule(disk->env.ctx, disk->env.now_ns(disk->env.ctx) + ms_to_ns(msecs), on_due,
                       op);
    return 0;
}

/* A configuration as the next entry of the stable log. */
static void stable_append_configuration(struct fake_disk *disk, raft_term term,
                                        const struct raft_configuration *configuration)
{
    struct raft_entry entry = {.term = term, .type = RAFT_CHANGE};
    CHECK(raft_configuration_encode(configuration, &entry.buf) == 0);
    stable_append(disk, disk->first_index + disk->entry_count, &entry, 1);
    raft_free(entry.buf.base);
}

static int fake_bootstrap(struct raft_io *io, const struct raft_configuration *configuration)
{
    struct fake_disk *disk = disk_of(io);
    if (disk->term != 0) {
        return RAFT_CANTBOOTSTRAP;
    }
    disk->term = 1;
    stable_append_configuration(disk, 1, configuration);
    return 0;
}

static int fake_recover(struct raft_io *io, const struct raft_configuration *configuration)
{
    struct fake_disk *disk = disk_of(io);
    raft_term term =
        disk->entry_count > 0 ? disk->entries[disk->entry_count - 1].term : disk->snapshot.term;
    CHECK(term > 0);
    stable_append_configuration(disk, term, configuration);
    return 0;
}

static int fake_set_term(struct raft_io *io, raft_term term)
{
    struct fake_disk *disk = disk_of(io);
    int code = fake_take_failure(disk, FAKE_DISK_CALL_SET_TERM);
    if (code == 0) {
        disk->term = term;
        disk->vote = 0;
    }
    return code;
}

static int fake_set_vote(struct raft_io *io, raft_id server_id)
{
    struct fake_disk *disk = disk_of(io);
    int code = fake_take_failure(disk, FAKE_DISK_CALL_SET_VOTE);
    if (code == 0) {
        disk->vote = server_id;
    }
    return code;
}

static int fake_append(struct raft_io *io, struct raft_io_append *req,
                       const struct raft_entry entries[], unsigned n, raft_io_append_cb cb)
{
    struct fake_disk *disk = disk_of(io);
    int code = fake_take_failure(disk, FAKE_DISK_CALL_APPEND);
    if (code != 0) {
        return code;
    }
    struct op_fake *op = op_create(disk, OP_APPEND);
    req->cb = cb;
    op->append = req;
    op->entries = entries;
    op->entry_count = n;
    op->first_index = disk->next_index;
    disk->next_index += n;
    op_submit(op, disk->timing.append_ns_min, disk->timing.append_ns_max);
    return 0;
}

/* Mostly for nothing, as in raft_uv; else it takes effect with the append that follows. */
static int fake_truncate(struct raft_io *io, raft_index index)
{
    struct fake_disk *disk = disk_of(io);
    int code = fake_take_failure(disk, FAKE_DISK_CALL_TRUNCATE);
    if (code == 0 && index < disk->next_index) {
        disk->next_index = index;
    }
    return code;
}

static int fake_snapshot_put(struct raft_io *io, unsigned trailing,
                             struct raft_io_snapshot_put *req, const struct raft_snapshot *snapshot,
                             raft_io_snapshot_put_cb cb)
{
    struct fake_disk *disk = disk_of(io);
    struct op_fake *op = op_create(disk, OP_PUT);
    req->cb = cb;
    op->put = req;
    op->snapshot = snapshot;
    op->trailing = trailing;
    if (trailing == 0) {
        disk->next_index = snapshot->index + 1;
    }
    op_submit(op, disk->timing.snapshot_ns_min, disk->timing.snapshot_ns_max);
    return 0;
}

static int fake_snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req,
                             raft_io_snapshot_get_cb cb)
{
    struct fake_disk *disk = disk_of(io);
    struct op_fake *op = op_create(disk, OP_GET);
    req->cb = cb;
    op->get = req;
    op_submit(op, disk->timing.snapshot_ns_min, disk->timing.snapshot_ns_max);
    return 0;
}

static raft_time fake_time(struct raft_io *io)
{
    struct fake_disk *disk = disk_of(io);
    return ns_to_ms_floor(disk->env.now_ns(disk->env.ctx));
}

static int fake_random(struct raft_io *io, int min, int max)
{
    struct fake_disk *disk = disk_of(io);
    return min + (int)(disk->env.random(disk->env.ctx) % (uint64_t)(max - min));
}

static int fake_send(struct raft_io *io, struct raft_io_send *req,
                     const struct raft_message *message, raft_io_send_cb cb)
{
    (void)io;
    (void)req;
    (void)message;
    (void)cb;
    CHECK(false); /* a guard stands in front and sends by itself */
    return RAFT_INVALID;
}

/* Everything in flight comes back cancelled, but for a snapshot that is being read: libraft can't
 * stand an error there. */
static void fake_close(struct raft_io *io, raft_io_close_cb cb)
{
    struct fake_disk *disk = disk_of(io);
    disk->failing = FAKE_DISK_CALL_NONE;
    CHECK(disk->booted);
    struct list *link;
    while ((link = list_pop(&disk->queue)) != NULL) {
        struct op_fake *op = CONTAINER_OF(link, struct op_fake, link);
        op->complete = true;
        if (op->kind == OP_APPEND) {
            op->append->cb(op->append, RAFT_CANCELED);
        } else if (op->kind == OP_PUT) {
            op->put->cb(op->put, RAFT_CANCELED);
        } else {
            op->get->cb(op->get, stable_snapshot_read(disk), 0);
        }
        if (op->due) {
            list_remove(&op->all_link);
            free(op);
        }
    }
    struct list *after;
    LIST_FOR_EACH(link, after, &disk->all)
    {
        CONTAINER_OF(link, struct op_fake, all_link)->complete = true;
    }
    disk->booted = false;
    cb(io);
}

/* --- the owner's side ------------------------------------------------------------------------- */

struct fake_disk *fake_disk_create(const struct fake_disk_env *env)
{
    struct fake_disk *disk = fake_alloc(sizeof(*disk));
    disk->env = *env;
    disk->timing = (struct fake_disk_timing){
        .append_ns_min = NS_PER_MS / 5,
        .append_ns_max = 2 * NS_PER_MS,
        .snapshot_ns_min = 5 * NS_PER_MS,
        .snapshot_ns_max = 20 * NS_PER_MS,
    };
    disk->first_index = 1;
    disk->io.capacity = CAPACITY_KIB_DEFAULT;
    list_init(&disk->queue);
    list_init(&disk->all);
    return disk;
}

void fake_disk_destroy(struct fake_disk *disk)
{
    CHECK(!disk->booted);
    struct list *link;
    while ((link = list_pop(&disk->all)) != NULL) {
        free(CONTAINER_OF(link, struct op_fake, all_link));
    }
    stable_drop_from(disk, 0);
    free(disk->entries);
    stable_snapshot_clear(&disk->snapshot);
    free(disk);
}

void fake_disk_set_timing(struct fake_disk *disk, const struct fake_disk_timing *timing)
{
    CHECK(timing->append_ns_min <= timing->append_ns_max);
    CHECK(timing->snapshot_ns_min <= timing->snapshot_ns_max);
    disk->timing = *timing;
}

struct raft_io *fake_disk_boot(struct fake_disk *disk)
{
    CHECK(!disk->booted);
    disk->booted = true;
    disk->crashed = false;
    disk->tick = NULL;
    disk->next_index = disk->first_index + disk->entry_count;
    disk->io = (struct raft_io){
        .version = 2,
        .capacity = disk->io.capacity,
        .impl = disk,
        .init = fake_init,
        .close = fake_close,
        .load = fake_load,
        .start = fake_start,
        .bootstrap = fake_bootstrap,
        .recover = fake_recover,
        .set_term = fake_set_term,
        .set_vote = fake_set_vote,
        .send = fake_send,
        .append = fake_append,
        .truncate = fake_truncate,
        .snapshot_put = fake_snapshot_put,
        .snapshot_get = fake_snapshot_get,
        .time = fake_time,
        .random = fake_random,
    };
    return &disk->io;
}

void fake_disk_crash(struct fake_disk *disk)
{
    CHECK(disk->booted && !disk->crashed);
    disk->crashed = true;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &disk->queue)
    {
        const struct op_fake *op = CONTAINER_OF(link, struct op_fake, link);
        if (op->kind == OP_GET) {
            continue;
        }
        if (op->kind != OP_APPEND || disk->starved) {
            break;
        }
        uint64_t written = disk->env.random(disk->env.ctx) % (op->entry_count + 1);
        if (written > 0) {
            stable_append(disk, op->first_index, op->entries, (size_t)written);
        }
        if (written < op->entry_count) {
            break;
        }
    }
    LIST_FOR_EACH(link, after, &disk->all)
    {
        struct op_fake *op = CONTAINER_OF(link, struct op_fake, all_link);
        if (op->kind == OP_TICK) {
            op->complete = true;
        }
    }
}

void fake_disk_fire(struct fake_disk *disk)
{
    if (disk->booted && disk->io.data != NULL) {
        LegacyFireCompletedRequests(disk->io.data);
    }
}

void fake_disk_stall(struct fake_disk *disk, bool stalled)
{
    disk->stalled = stalled;
    fake_drain(disk);
}

void fake_disk_starve(struct fake_disk *disk, bool starved)
{
    disk->starved = starved;
    fake_drain(disk);
}

void fake_disk_fail_next(struct fake_disk *disk, enum fake_disk_call call, int code)
{
    disk->failing = call;
    disk->failing_code = code;
}

void fake_disk_set_capacity(struct fake_disk *disk, unsigned short capacity_kib)
{
    disk->io.capacity = capacity_kib;
}

uint64_t fake_disk_oldest_write(const struct fake_disk *disk)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &disk->queue)
    {
        const struct op_fake *op = CONTAINER_OF(link, struct op_fake, link);
        if (op->kind == OP_APPEND && !disk->starved) {
            return op->ticket;
        }
    }
    return 0;
}

raft_term fake_disk_term(const struct fake_disk *disk)
{
    return disk->term;
}

raft_id fake_disk_vote(const struct fake_disk *disk)
{
    return disk->vote;
}

raft_index fake_disk_first_index(const struct fake_disk *disk)
{
    return disk->first_index;
}

raft_index fake_disk_last_index(const struct fake_disk *disk)
{
    return disk->first_index + disk->entry_count - 1;
}

raft_term fake_disk_entry(const struct fake_disk *disk, raft_index index, struct slice *out_bytes)
{
    if (index < disk->first_index || index > fake_disk_last_index(disk)) {
        return 0;
    }
    const struct stable_entry *entry = &disk->entries[index - disk->first_index];
    if (out_bytes != NULL) {
        *out_bytes = slice_from(entry->base, entry->len);
    }
    return entry->term;
}

raft_index fake_disk_snapshot_index(const struct fake_disk *disk)
{
    return disk->snapshot.index;
}

raft_index fake_disk_snapshot_configuration_index(const struct fake_disk *disk)
{
    return disk->snapshot.configuration_index;
}

unsigned fake_disk_snapshot_reads(const struct fake_disk *disk)
{
    return disk->snapshot_reads;
}

bool fake_disk_is_reading_snapshot(const struct fake_disk *disk)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &disk->queue)
    {
        if (CONTAINER_OF(link, struct op_fake, link)->kind == OP_GET) {
            return true;
        }
    }
    return false;
}

struct slice fake_disk_snapshot(const struct fake_disk *disk)
{
    return slice_from(disk->snapshot.base, disk->snapshot.len);
}
