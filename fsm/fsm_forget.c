/* What is forgotten: by age, by comparison; for room, when it is removed.
 *
 * Age. A tombstone, a purge, an owner without leases or a silent origin that is older than its
 * retention counts as forgotten from the moment on at which the clock says so, and for good: a
 * retention that grows later brings nothing back. Removal goes in slices and never shows: whoever
 * meets what waits for removal treats it as gone, and the marks "forgotten until" and "largest
 * token forgotten" are asked for together with what waits.
 *
 * Room. What goes beyond a limit is forgotten when it is removed, the oldest first: at once where
 * something new came in, in slices where a limit was lowered. */
#include "fsm/fsm_state.h"

/* What ended before a time and is still stored. */
struct waiting {
    uint64_t before_ms;
    struct forgotten found;
};

static void sweep_leases(struct fsm *fsm);
static void sweep_tombstones(struct fsm *fsm);
static void sweep_owners(struct fsm *fsm);
static void sweep_origins(struct fsm *fsm);
static void sweep_floors(struct fsm *fsm);
static bool silent_for_too_long(const struct fsm *fsm, const struct origin *origin);
static bool anything_waits(const struct fsm *fsm);
static struct forgotten look_at_waiting(const struct fsm *fsm);
static void look_under_mark(const struct mark *mark, struct waiting *waiting);
static void look_at_end(const struct lease *lease, struct waiting *waiting);
static bool on_tombstone(void *ctx, struct expiry_node *node);
static bool on_floor(void *ctx, struct expiry_node *node);
static bool on_space(void *ctx, struct expiry_node *node);
static bool on_lease(void *ctx, struct expiry_node *node);
static uint64_t past(uint64_t start_ms, uint64_t period_ms);

void fsm_forget_advance(struct fsm *fsm)
{
    const struct settings *settings = &fsm->settings;
    fsm->forgotten_before_ms =
        max_u64(fsm->forgotten_before_ms,
                sub_or_zero_u64(fsm->clock_ms, settings->tombstone_retention_ms));
    fsm->silent_before_ms = max_u64(
        fsm->silent_before_ms, sub_or_zero_u64(fsm->clock_ms, settings->origin_retention_ms));
}

uint64_t fsm_next_due_ms(const struct fsm *fsm)
{
    const struct settings *settings = &fsm->settings;
    const struct lease *lease = lease_table_first_due(&fsm->table);
    const struct origin *origin = origin_table_longest_silent(&fsm->origins);
    if (fsm->marks.count > 0 || anything_waits(fsm) ||
        fsm_forgotten_end(fsm, expiry_first_ms(&fsm->owners.idle)) ||
        (origin != NULL && silent_for_too_long(fsm, origin)) ||
        fsm->table.tombstone_count > settings->tombstones_max ||
        fsm->origins.origins.count > settings->origins_max ||
        fsm->owners.departure_count > settings->tombstones_max) {
        return fsm->clock_ms;
    }
    uint64_t retention_ms = settings->tombstone_retention_ms;
    uint64_t next_ms = lease == NULL ? EXPIRY_NEVER : past(lease->expiry_ms, 0);
    next_ms = min_u64(next_ms, past(expiry_first_ms(&fsm->table.ages), retention_ms));
    next_ms = min_u64(next_ms, past(expiry_first_ms(&fsm->table.floors), retention_ms));
    next_ms = min_u64(next_ms, past(expiry_first_ms(&fsm->owners.idle), retention_ms));
    if (origin != NULL) {
        next_ms = min_u64(next_ms, past(origin->heard_ms, settings->origin_retention_ms));
    }
    return next_ms;
}

/* At most one slice of each kind, so that an entry takes a bounded time whatever ends together. */
void fsm_sweep(struct fsm *fsm)
{
    sweep_leases(fsm);
    sweep_tombstones(fsm);
    sweep_owners(fsm);
    sweep_origins(fsm);
    sweep_floors(fsm);
}

struct forgotten fsm_forgotten(const struct fsm *fsm)
{
    struct forgotten forgotten = fsm->table.forgotten;
    if (!anything_waits(fsm)) {
        return forgotten;
    }
    bool known = fsm->waiting_before_ms == fsm->forgotten_before_ms;
    struct forgotten waiting = known ? fsm->waiting : look_at_waiting(fsm);
    forgotten_add(&forgotten, waiting.until_ms, waiting.token);
    return forgotten;
}

/* What was found stays true while the clock stands: what is removed of it moves the marks of the
 * table, and nothing that is forgotten already is added to what waits. */
void fsm_forgotten_refresh(struct fsm *fsm)
{
    if (anything_waits(fsm) && fsm->waiting_before_ms != fsm->forgotten_before_ms) {
        fsm->waiting = look_at_waiting(fsm);
        fsm->waiting_before_ms = fsm->forgotten_before_ms;
    }
}

bool fsm_forgotten_after(struct fsm *fsm, uint64_t token)
{
    if (fsm->table.forgotten.token > token) {
        return true;
    }
    fsm_forgotten_refresh(fsm);
    return fsm_forgotten(fsm).token > token;
}

struct origin *fsm_meet_origin(struct fsm *fsm, uint64_t number)
{
    struct origin *origin = origin_find(&fsm->origins, number);
    if (origin != NULL && silent_for_too_long(fsm, origin)) {
        origin_forget(&fsm->origins, origin);
        return NULL;
    }
    return origin;
}

/* Those under marks, oldest mark first; then those that are due, in the order (expiry, namespace,
 * key). */
static void sweep_leases(struct fsm *fsm)
{
    uint64_t slice = fsm->settings.removal_slice;
    struct lease *lease;
    for (uint64_t i = 0; i < slice && (lease = marks_first_lease(&fsm->marks)) != NULL; i++) {
        fsm_lease_end_dead(fsm, lease);
    }
    for (uint64_t i = 0; i < slice; i++) {
        lease = lease_table_first_due(&fsm->table);
        if (lease == NULL || lease->expiry_ms >= fsm->clock_ms) {
            break;
        }
        fsm_lease_end_dead(fsm, lease);
    }
}

/* By age and for room; of departures only for room, as an owner is forgotten whole. */
static void sweep_tombstones(struct fsm *fsm)
{
    const struct settings *settings = &fsm->settings;
    for (uint64_t i = 0; i < settings->removal_slice; i++) {
        struct tombstone *tombstone = lease_table_oldest_tombstone(&fsm->table);
        if (tombstone == NULL || (!fsm_forgotten_end(fsm, tombstone->ended_ms) &&
                                  fsm->table.tombstone_count <= settings->tombstones_max)) {
            break;
        }
        tombstone_forget(&fsm->table, tombstone);
    }
    for (uint64_t i = 0; i < settings->removal_slice &&
                         fsm->owners.departure_count > settings->tombstones_max;
         i++) {
        owner_index_forget_departure(&fsm->owners);
    }
}

/* What is forgotten along with an owner or an origin counts too. An owner that waits for this is no
 * secret: "list again" may come later than it could, never too late. */
static void sweep_owners(struct fsm *fsm)
{
    for (uint64_t removed = 0; removed < fsm->settings.removal_slice; removed++) {
        struct owner *owner = owner_index_first_idle(&fsm->owners);
        if (owner == NULL || !fsm_forgotten_end(fsm, owner->idle_ms)) {
            break;
        }
        removed += owner->departure_count;
        owner_forget(&fsm->owners, &fsm->table, owner);
    }
}

static void sweep_origins(struct fsm *fsm)
{
    const struct settings *settings = &fsm->settings;
    for (uint64_t removed = 0; removed < settings->removal_slice; removed++) {
        struct origin *origin = origin_table_longest_silent(&fsm->origins);
        if (origin == NULL || (!silent_for_too_long(fsm, origin) &&
                               fsm->origins.origins.count <= settings->origins_max)) {
            break;
        }
        removed += origin->count;
        origin_forget(&fsm->origins, origin);
    }
}

/* A purge stops to count when a grace as long as can be asked has passed since; keys without a
 * tombstone keep it in the mark of what is forgotten, in case longer ones are allowed later. */
static void sweep_floors(struct fsm *fsm)
{
    for (uint64_t i = 0; i < fsm->settings.removal_slice; i++) {
        struct expiry_node *node = expiry_first(&fsm->table.floors);
        uint64_t first_ms = expiry_first_ms(&fsm->table.floors);
        if (node == NULL || !fsm_forgotten_end(fsm, first_ms)) {
            break;
        }
        forgotten_add(&fsm->table.forgotten, first_ms, 0);
        space_set_purged(&fsm->table, CONTAINER_OF(node, struct space, floor_node), 0);
    }
}

static bool silent_for_too_long(const struct fsm *fsm, const struct origin *origin)
{
    return origin->heard_ms < fsm->silent_before_ms;
}

/* Tombstones and purges that are forgotten by age and not removed, or leases that ended so long ago
 * that theirs would be. */
static bool anything_waits(const struct fsm *fsm)
{
    const struct mark *mark = marks_first(&fsm->marks);
    return fsm_forgotten_end(fsm, expiry_first_ms(&fsm->table.ages)) ||
           fsm_forgotten_end(fsm, expiry_first_ms(&fsm->table.floors)) ||
           fsm_forgotten_end(fsm, expiry_first_ms(&fsm->table.due)) ||
           (mark != NULL && fsm_forgotten_end(fsm, mark->set_ms));
}

static struct forgotten look_at_waiting(const struct fsm *fsm)
{
    struct waiting waiting = {.before_ms = fsm->forgotten_before_ms};
    expiry_visit_due(&fsm->table.ages, waiting.before_ms, on_tombstone, &waiting);
    expiry_visit_due(&fsm->table.floors, waiting.before_ms, on_floor, &waiting);
    expiry_visit_due(&fsm->table.due, waiting.before_ms, on_space, &waiting);
    const struct list *link = fsm->marks.all.next;
    for (; link != &fsm->marks.all; link = link->next) {
        const struct mark *mark = CONTAINER_OF_CONST(link, struct mark, link);
        if (!fsm_forgotten_end(fsm, mark->set_ms)) {
            break; /* and so is every later one */
        }
        look_under_mark(mark, &waiting);
    }
    return waiting.found;
}

static void look_under_mark(const struct mark *mark, struct waiting *waiting)
{
    const struct list *head = &mark->space->by_token;
    for (const struct list *link = head->next; link != head; link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, token_link);
        if (lease->token > mark->upto) {
            break;
        }
        if (mark_of(lease) == mark) {
            look_at_end(lease, waiting);
        }
    }
}

static void look_at_end(const struct lease *lease, struct waiting *waiting)
{
    struct tombstone_end end = fsm_dead_end(lease);
    CHECK(end.ended_ms < waiting->before_ms);
    forgotten_add(&waiting->found, end.ended_ms, end.token);
}

static bool on_tombstone(void *ctx, struct expiry_node *node)
{
    struct waiting *waiting = ctx;
    const struct tombstone *tombstone = tombstone_of_age_node(node);
    forgotten_add(&waiting->found, tombstone->ended_ms, tombstone->token);
    return true;
}

static bool on_floor(void *ctx, struct expiry_node *node)
{
    struct waiting *waiting = ctx;
    forgotten_add(&waiting->found, CONTAINER_OF(node, struct space, floor_node)->purged_ms, 0);
    return true;
}

static bool on_space(void *ctx, struct expiry_node *node)
{
    const struct waiting *waiting = ctx;
    const struct space *space = CONTAINER_OF(node, struct space, due_node);
    expiry_visit_due(&space->due, waiting->before_ms, on_lease, ctx);
    return true;
}

static bool on_lease(void *ctx, struct expiry_node *node)
{
    look_at_end(lease_of_due_node(node), ctx);
    return true;
}

/* The first moment after the end of a period. */
static uint64_t past(uint64_t start_ms, uint64_t period_ms)
{
    return fsm_after_ms(fsm_after_ms(start_ms, period_ms), 1);
}
