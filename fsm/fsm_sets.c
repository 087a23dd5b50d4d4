/* Operations on everything that an owner or a namespace has: renew_all, release_all, purge. */
#include <stdlib.h>

#include "fsm/fsm_state.h"

static void extend_all(struct fsm *fsm, struct owner *owner, uint64_t ttl_ms);
static void name_departures(struct fsm *fsm, const struct owner *owner, const struct op *op,
                            struct result *out_result);
static uint64_t count_alive(const struct fsm *fsm, const struct space *space);
static bool on_due(void *ctx, struct expiry_node *node);

/* Dead leases leave the set first, so that the version and the departures are those of the clock,
 * not of how far removal came. */
void fsm_apply_renew_all(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    struct space *space = space_find(&fsm->table, op->ns);
    struct owner *owner = space == NULL ? NULL : owner_find(space, op->owner);
    if (owner == NULL) {
        out_result->set_version = fsm->owners.forgotten_version;
        out_result->list_again =
            op->has_set_version && op->set_version != fsm->owners.forgotten_version;
        return;
    }
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &owner->own)
    {
        struct lease *lease = CONTAINER_OF(link, struct lease, owner_link);
        if (fsm_lease_dead(lease, fsm->clock_ms)) {
            fsm_lease_end_dead(fsm, lease);
        }
    }
    while (owner->departure_count > fsm->settings.departures_max) {
        owner_forget_departure(&fsm->owners, owner); /* the limit was lowered */
    }
    extend_all(fsm, owner, op->ttl_ms);
    out_result->count = owner->own_count;
    out_result->set_version = owner->set_version;
    if (op->has_set_version && op->set_version != owner->set_version) {
        name_departures(fsm, owner, op, out_result);
    }
}

void fsm_apply_release_all(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    struct space *space = space_find(&fsm->table, op->ns);
    struct owner *owner = space == NULL ? NULL : owner_find(space, op->owner);
    if (owner == NULL) {
        return;
    }
    uint64_t covered = 0;
    for (struct list *link = owner->own.prev; link != &owner->own; link = link->prev) {
        const struct lease *lease = CONTAINER_OF(link, struct lease, owner_link);
        if (lease_marked(lease)) {
            break; /* and so is every one with a smaller token */
        }
        covered++;
        if (lease->expiry_ms >= fsm->clock_ms) {
            out_result->count++;
        }
    }
    if (out_result->count > 0) {
        struct mark_scope scope = {
            .space = space,
            .owner = owner,
            .upto = fsm_draw_token(fsm),
            .set_ms = fsm->clock_ms,
            .remaining = covered,
        };
        marks_set(&fsm->marks, &scope);
    }
}

void fsm_apply_purge(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    struct space *space = space_get(&fsm->table, op->ns);
    out_result->count = count_alive(fsm, space);
    if (out_result->count > 0) {
        struct mark_scope scope = {
            .space = space,
            .upto = fsm_draw_token(fsm),
            .set_ms = fsm->clock_ms,
            .remaining = space->leases.count - space->marked,
        };
        marks_set(&fsm->marks, &scope);
    }
    if (fsm_forgotten_end(fsm, space->purged_ms)) {
        forgotten_add(&fsm->table.forgotten, space->purged_ms, 0);
    }
    space_set_purged(&fsm->table, space, fsm->clock_ms);
}

/* Many leases of a large part of the namespace: the queue is put in order once, in linear time. */
static void extend_all(struct fsm *fsm, struct owner *owner, uint64_t ttl_ms)
{
    uint64_t expiry_ms = fsm_after_ms(fsm->clock_ms, ttl_ms);
    bool many = owner->own_count > owner->space->leases.count / 8;
    for (struct list *link = owner->own.next; link != &owner->own; link = link->next) {
        struct lease *lease = CONTAINER_OF(link, struct lease, owner_link);
        if (many) {
            lease_extend_many(&fsm->table, lease, ttl_ms, expiry_ms, fsm_position(fsm));
        } else {
            lease_extend(&fsm->table, lease, ttl_ms, expiry_ms, fsm_position(fsm));
        }
    }
    if (many) {
        lease_extend_end(&fsm->table, owner->space);
    }
}

/* A version that is larger than the present one is of a state that was lost. */
static void name_departures(struct fsm *fsm, const struct owner *owner, const struct op *op,
                            struct result *out_result)
{
    if (op->set_version < owner->forgotten_version || op->set_version > owner->set_version) {
        out_result->list_again = true;
        return;
    }
    if (owner->departure_count > fsm->departure_cap) {
        struct departure *departures =
            realloc(fsm->departures, owner->departure_count * sizeof *departures);
        CHECK(departures != NULL);
        fsm->departures = departures;
        fsm->departure_cap = owner->departure_count;
    }
    const struct list *link = owner->departures.prev;
    while (link != &owner->departures &&
           CONTAINER_OF_CONST(link, struct departed, owner_link)->version > op->set_version) {
        link = link->prev;
    }
    for (link = link->next; link != &owner->departures; link = link->next) {
        const struct departed *departed = CONTAINER_OF_CONST(link, struct departed, owner_link);
        fsm->departures[out_result->departure_count++] = (struct departure){
            .key = departed_key(departed),
            .token = departed->token,
            .reason = departed->reason,
        };
    }
    out_result->departures = fsm->departures;
}

/* Leases of the namespace that are neither due nor under a mark. */
static uint64_t count_alive(const struct fsm *fsm, const struct space *space)
{
    uint64_t due = 0;
    expiry_visit_due(&space->due, fsm->clock_ms, on_due, &due);
    return space->leases.count - space->marked - due;
}

static bool on_due(void *ctx, struct expiry_node *node)
{
    uint64_t *due = ctx;
    if (!lease_marked(lease_of_due_node(node))) {
        (*due)++;
    }
    return true;
}
