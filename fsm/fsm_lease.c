/* Leases begin and end here, and nowhere else: each time the owner's set, the tombstones, the marks
 * and what watchers are told change together. */
#include "fsm/fsm_state.h"

static void depart(struct fsm *fsm, const struct lease *lease, enum end_reason reason);
static void remember(struct fsm *fsm, struct lease *lease, const struct tombstone_end *end);
static enum change_kind change_of(enum end_reason reason);

struct tombstone_end fsm_dead_end(const struct lease *lease)
{
    struct tombstone_end end = {
        .owner = owner_name(lease->owner),
        .state = lease->state,
        .token = lease->token,
        .reason = END_REASON_EXPIRED,
        .ended_ms = lease->expiry_ms,
    };
    const struct mark *mark = mark_of(lease);
    if (mark != NULL && lease->expiry_ms >= mark->set_ms) {
        end.reason = mark->owner != NULL ? END_REASON_RELEASED : END_REASON_PURGED;
        end.ended_ms = mark->set_ms;
    }
    return end;
}

void fsm_lease_end(struct fsm *fsm, struct lease *lease, enum end_reason reason,
                   uint64_t ended_ms)
{
    struct tombstone_end end = {
        .owner = owner_name(lease->owner),
        .state = lease->state,
        .token = lease->token,
        .reason = reason,
        .ended_ms = ended_ms,
    };
    fsm_note(fsm, change_of(reason), lease, slice_from(NULL, 0));
    if (lease->state == LEASE_STATE_OWN) {
        depart(fsm, lease, reason);
    }
    remember(fsm, lease, &end);
    struct mark *mark = mark_of(lease);
    owner_unlink(&fsm->owners, lease, fsm->clock_ms);
    lease_remove(&fsm->table, lease);
    if (mark != NULL) {
        mark_lease_gone(&fsm->marks, mark);
    }
}

void fsm_lease_end_dead(struct fsm *fsm, struct lease *lease)
{
    CHECK(fsm_lease_dead(lease, fsm->clock_ms));
    struct tombstone_end end = fsm_dead_end(lease);
    fsm_lease_end(fsm, lease, end.reason, end.ended_ms);
}

struct lease *fsm_meet(struct fsm *fsm, struct space *space, struct slice key)
{
    if (space == NULL) {
        return NULL;
    }
    struct lease *lease = lease_find(space, key);
    if (lease != NULL) {
        if (!fsm_lease_dead(lease, fsm->clock_ms)) {
            return lease;
        }
        fsm_lease_end_dead(fsm, lease);
    }
    struct tombstone *tombstone = tombstone_find(space, key);
    if (tombstone != NULL && fsm_forgotten_end(fsm, tombstone->ended_ms)) {
        tombstone_forget(&fsm->table, tombstone);
    }
    return NULL;
}

void fsm_end_all_dead(struct fsm *fsm)
{
    struct lease *lease;
    while ((lease = marks_first_lease(&fsm->marks)) != NULL) {
        fsm_lease_end_dead(fsm, lease);
    }
    while ((lease = lease_table_first_due(&fsm->table)) != NULL &&
           lease->expiry_ms < fsm->clock_ms) {
        fsm_lease_end_dead(fsm, lease);
    }
}

struct lease *fsm_lease_begin(struct fsm *fsm, const struct op *op, const struct key_item *item,
                              enum lease_state state)
{
    struct space *space = space_get(&fsm->table, op->ns);
    struct tombstone *tombstone = tombstone_find(space, item->key);
    if (tombstone != NULL) {
        tombstone_remove(&fsm->table, tombstone);
    }
    struct owner *owner = owner_get(&fsm->owners, space, op->owner, fsm->clock_ms);
    struct lease_grant grant = {
        .state = state,
        .token = fsm_draw_token(fsm),
        .ttl_ms = op->ttl_ms,
        .expiry_ms = fsm_after_ms(fsm->clock_ms, op->ttl_ms),
        .since_ms = fsm->clock_ms,
        .written = fsm_position(fsm),
        .meta = item->meta,
        .identity = item->identity,
    };
    struct lease *lease = lease_add(&fsm->table, space, item->key, owner, &grant);
    owner_link(&fsm->owners, lease);
    return lease;
}

void fsm_lease_regrant(struct fsm *fsm, struct lease *lease, const struct op *op,
                       const struct key_item *item)
{
    bool self = slice_equal(owner_name(lease->owner), op->owner);
    bool destroy = op->destroy;
    bool keep = destroy && self && lease->state == LEASE_STATE_DEL;
    struct lease_grant grant = {
        .state = destroy ? LEASE_STATE_DEL : LEASE_STATE_OWN,
        .token = keep ? lease->token : fsm_draw_token(fsm),
        .ttl_ms = op->ttl_ms,
        .expiry_ms = fsm_after_ms(fsm->clock_ms, op->ttl_ms),
        .since_ms = self ? lease->since_ms : fsm->clock_ms,
        .written = fsm_position(fsm),
        .meta = item->meta,
        .identity = item->identity,
    };
    if (keep) {
        lease_regrant(&fsm->table, lease, lease->owner, &grant);
        return;
    }
    CHECK(lease->state == LEASE_STATE_OWN);
    struct owner *owner = owner_get(&fsm->owners, lease->space, op->owner, fsm->clock_ms);
    struct slice previous = self ? slice_from(NULL, 0) : owner_name(lease->owner);
    if (!self || destroy) {
        depart(fsm, lease, self ? END_REASON_TEARDOWN : END_REASON_TAKEN);
    }
    owner_unlink(&fsm->owners, lease, fsm->clock_ms);
    lease_regrant(&fsm->table, lease, owner, &grant);
    owner_link(&fsm->owners, lease);
    fsm_note(fsm, destroy ? CHANGE_KIND_TEARDOWN : self ? CHANGE_KIND_REGRANTED
                                                        : CHANGE_KIND_TRANSFERRED,
             lease, previous);
}

void fsm_note(struct fsm *fsm, enum change_kind kind, const struct lease *lease,
              struct slice previous_owner)
{
    struct change change = {
        .kind = kind,
        .position = fsm_position(fsm),
        .ns = space_name(lease->space),
        .key = lease_key(lease),
        .owner = owner_name(lease->owner),
        .previous_owner = previous_owner,
        .state = lease->state,
        .token = lease->token,
    };
    changes_add(fsm->changes, &change);
}

/* The lease leaves its owner's set. What is remembered of all owners together is bounded like the
 * tombstones, so that many owners that came and went cannot fill the memory. */
static void depart(struct fsm *fsm, const struct lease *lease, enum end_reason reason)
{
    struct departing departing = {
        .key = lease_key(lease),
        .token = lease->token,
        .reason = reason,
        .version = fsm_draw_token(fsm),
    };
    struct owner *owner = lease->owner;
    owner_depart(&fsm->owners, owner, &departing);
    while (owner->departure_count > fsm->settings.departures_max) {
        owner_forget_departure(&fsm->owners, owner);
    }
    if (fsm->owners.departure_count > fsm->settings.tombstones_max) {
        owner_index_forget_departure(&fsm->owners);
    }
}

/* An end that is older than tombstones are kept, because removal came late, is forgotten at
 * once. */
static void remember(struct fsm *fsm, struct lease *lease, const struct tombstone_end *end)
{
    struct lease_table *table = &fsm->table;
    if (fsm_forgotten_end(fsm, end->ended_ms)) {
        forgotten_add(&table->forgotten, end->ended_ms, end->token);
        return;
    }
    tombstone_add(table, lease->space, lease_key(lease), end);
    if (table->tombstone_count > fsm->settings.tombstones_max) {
        tombstone_forget(table, lease_table_oldest_tombstone(table));
    }
}

static enum change_kind change_of(enum end_reason reason)
{
    switch (reason) {
    case END_REASON_RELEASED:
        return CHANGE_KIND_RELEASED;
    case END_REASON_EXPIRED:
        return CHANGE_KIND_EXPIRED;
    case END_REASON_SETTLED:
        return CHANGE_KIND_SETTLED;
    case END_REASON_PURGED:
        return CHANGE_KIND_PURGED;
    case END_REASON_RESTORED:
        return CHANGE_KIND_RESTORED;
    case END_REASON_TAKEN:
    case END_REASON_TEARDOWN:
        break; /* the lease goes on */
    }
    CHECK(false);
    return CHANGE_KIND_EXPIRED;
}
