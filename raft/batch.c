/* Entries are recycled, since one is needed for every commit: at most as many are kept as can be in
 * flight, and one that collects. */
#include "raft/batch.h"

#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/command_codec.h"

#define SPARE_MAX (BATCH_IN_FLIGHT_MAX + 1u)

static struct batch_entry *entry_take(struct batch *batch);
static void entry_recycle(struct batch *batch, struct batch_entry *entry);
static struct batch_entry *entry_at(struct list *link);
static struct replica_proposal *proposal_at(struct list *link);
static void proposal_remove(struct batch *batch, struct replica_proposal *proposal,
                            size_t command_at);
static struct batch_entry *collecting(const struct batch *batch, size_t command_len);

void batch_init(struct batch *batch)
{
    *batch = (struct batch){0};
    list_init(&batch->waiting);
    list_init(&batch->spare);
}

void batch_deinit(struct batch *batch)
{
    CHECK(list_empty(&batch->waiting) && batch->in_flight == 0 && batch->outstanding_len == 0);
    struct list *link;
    while ((link = list_pop(&batch->spare)) != NULL) {
        struct batch_entry *entry = entry_at(link);
        buf_deinit(&entry->commands);
        free(entry);
    }
    batch->spare_count = 0;
}

enum status batch_add(struct batch *batch, struct slice command,
                      struct replica_proposal *proposal)
{
    CHECK(command.len > 0);
    if (entry_encoded_len(command.len) > ENTRY_LEN_MAX) {
        return STATUS_TOO_LARGE;
    }
    if (command.len > BATCH_OUTSTANDING_LEN_MAX - batch->outstanding_len) {
        return STATUS_OVERLOADED;
    }
    struct batch_entry *entry = collecting(batch, command.len);
    if (entry == NULL) {
        entry = entry_take(batch);
        list_append(&batch->waiting, &entry->link);
    }
    buf_append(&entry->commands, command.base, command.len);
    CHECK(!buf_overflown(&entry->commands));
    entry->command_count++;
    batch->outstanding_len += command.len;
    proposal->entry = entry;
    proposal->command_len = command.len;
    list_append(&entry->proposals, &proposal->link);
    return STATUS_OK;
}

bool batch_cancel(struct batch *batch, struct replica_proposal *proposal)
{
    struct batch_entry *entry = proposal->entry;
    if (entry == NULL || !list_linked(&entry->link)) {
        return false;
    }
    size_t command_at = 0;
    struct list *link = list_first(&entry->proposals);
    for (; link != &proposal->link; link = link->next) {
        command_at += proposal_at(link)->command_len;
    }
    proposal_remove(batch, proposal, command_at);
    if (entry->command_count == 0) {
        list_remove(&entry->link);
        entry_recycle(batch, entry);
    }
    return true;
}

bool batch_ready(const struct batch *batch)
{
    if (list_empty(&batch->waiting) || batch->in_flight >= BATCH_IN_FLIGHT_MAX) {
        return false;
    }
    if (batch->in_flight == 0) {
        return true;
    }
    /* Full: the next command went into another entry, or would have to. */
    struct list *first = list_first(&batch->waiting);
    return first->next != &batch->waiting ||
           entry_at(first)->commands.len >= ENTRY_LEN_TARGET;
}

bool batch_waiting(const struct batch *batch)
{
    return !list_empty(&batch->waiting);
}

bool batch_expire(struct batch *batch, uint64_t now_ns, struct list *out_proposals)
{
    struct list *first = list_first(&batch->waiting);
    CHECK(first != NULL);
    struct batch_entry *entry = entry_at(first);
    size_t command_at = 0;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &entry->proposals) {
        struct replica_proposal *proposal = proposal_at(link);
        if (now_ns < proposal->deadline_ns) {
            command_at += proposal->command_len;
            continue;
        }
        proposal_remove(batch, proposal, command_at);
        list_append(out_proposals, link);
    }
    if (entry->command_count > 0) {
        return true;
    }
    list_remove(&entry->link);
    entry_recycle(batch, entry);
    return false;
}

struct batch_entry *batch_close(struct batch *batch)
{
    struct list *link = list_pop(&batch->waiting);
    batch->in_flight++;
    return link == NULL ? entry_take(batch) : entry_at(link);
}

void batch_take(struct batch_entry *entry, struct list *out_proposals)
{
    struct list *link;
    while ((link = list_pop(&entry->proposals)) != NULL) {
        proposal_at(link)->entry = NULL;
        list_append(out_proposals, link);
    }
}

void batch_done(struct batch *batch, struct batch_entry *entry)
{
    CHECK(batch->in_flight > 0);
    batch->in_flight--;
    entry_recycle(batch, entry);
}

void batch_drop_waiting(struct batch *batch, struct list *out_proposals)
{
    struct list *link;
    while ((link = list_pop(&batch->waiting)) != NULL) {
        struct batch_entry *entry = entry_at(link);
        batch_take(entry, out_proposals);
        entry_recycle(batch, entry);
    }
}

/* The entry that this command goes into, or NULL when it needs a new one. */
static struct batch_entry *collecting(const struct batch *batch, size_t command_len)
{
    if (list_empty(&batch->waiting)) {
        return NULL;
    }
    struct batch_entry *last = entry_at(batch->waiting.prev);
    bool fits = command_len <= ENTRY_LEN_TARGET &&
                last->commands.len <= ENTRY_LEN_TARGET - command_len;
    return fits ? last : NULL;
}

static struct batch_entry *entry_take(struct batch *batch)
{
    struct list *link = list_pop(&batch->spare);
    if (link != NULL) {
        batch->spare_count--;
        return entry_at(link);
    }
    struct batch_entry *entry = malloc(sizeof *entry);
    CHECK(entry != NULL);
    list_init(&entry->link);
    list_init(&entry->proposals);
    buf_init(&entry->commands, ENTRY_LEN_MAX);
    entry->command_count = 0;
    return entry;
}

static void entry_recycle(struct batch *batch, struct batch_entry *entry)
{
    CHECK(list_empty(&entry->proposals) && !list_linked(&entry->link));
    CHECK(batch->outstanding_len >= entry->commands.len);
    batch->outstanding_len -= entry->commands.len;
    if (batch->spare_count >= SPARE_MAX) {
        buf_deinit(&entry->commands);
        free(entry);
        return;
    }
    buf_clear(&entry->commands);
    entry->command_count = 0;
    list_append(&batch->spare, &entry->link);
    batch->spare_count++;
}

static struct batch_entry *entry_at(struct list *link)
{
    return CONTAINER_OF(link, struct batch_entry, link);
}

static struct replica_proposal *proposal_at(struct list *link)
{
    return CONTAINER_OF(link, struct replica_proposal, link);
}

/* Out of its entry, which waits, together with its command. */
static void proposal_remove(struct batch *batch, struct replica_proposal *proposal,
                            size_t command_at)
{
    struct batch_entry *entry = proposal->entry;
    size_t len = proposal->command_len;
    CHECK(entry->command_count > 0 && command_at + len <= entry->commands.len);
    memmove(entry->commands.base + command_at, entry->commands.base + command_at + len,
            entry->commands.len - command_at - len);
    entry->commands.len -= len;
    entry->command_count--;
    batch->outstanding_len -= len;
    list_remove(&proposal->link);
    proposal->entry = NULL;
}
