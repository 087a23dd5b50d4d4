/* Reads. What is dead at the clock of the read is not there, whether it was removed or not; what is
 * said about its end is the same as after its removal. */
#include <stdlib.h>

#include "fsm/fsm_state.h"

static struct space *space_of(const struct fsm *fsm, struct slice ns);
static bool last_end(const struct fsm *fsm, const struct space *space, struct slice key,
                     uint64_t *out_ended_ms);
static struct lease_view view_of(const struct lease *lease);
static bool filter_passes(const struct fsm_filter *filter, const struct lease *lease);
static void list_by_owner(const struct space *space, const struct fsm_filter *filter,
                          uint64_t now_ms, fsm_view_cb cb, void *ctx);
static size_t collect(const struct list *head, const struct fsm_filter *filter, uint64_t now_ms,
                      const struct lease **out_leases);
static int compare_keys(const void *a, const void *b);

struct due_search {
    struct slice key_or_prefix;
    bool exact;
    bool found;
};
static bool on_due(void *ctx, struct expiry_node *node);
static bool on_view(void *ctx, const struct lease_view *view);

bool fsm_query_owner(const struct fsm *fsm, struct slice ns, struct slice key, uint64_t now_ms,
                     struct lease_view *out_view)
{
    const struct space *space = space_of(fsm, ns);
    const struct lease *lease = space == NULL ? NULL : lease_find(space, key);
    if (lease == NULL || fsm_lease_dead(lease, now_ms)) {
        return false;
    }
    *out_view = view_of(lease);
    return true;
}

bool fsm_query_shows_due(const struct fsm *fsm, struct slice ns, struct slice key_or_prefix,
                         bool exact, uint64_t now_ms)
{
    const struct space *space = space_of(fsm, ns);
    if (space == NULL) {
        return false;
    }
    struct due_search search = {.key_or_prefix = key_or_prefix, .exact = exact};
    if (exact) {
        struct lease *lease = lease_find(space, key_or_prefix);
        return lease != NULL && lease->expiry_ms < now_ms && !lease_marked(lease);
    }
    expiry_visit_due(&space->due, now_ms, on_due, &search);
    return search.found;
}

bool fsm_query_tombstone(const struct fsm *fsm, struct slice ns, struct slice key,
                         struct tombstone_view *out_view)
{
    const struct space *space = space_of(fsm, ns);
    if (space == NULL) {
        return false;
    }
    const struct lease *lease = lease_find(space, key);
    if (lease != NULL) {
        if (!fsm_lease_dead(lease, fsm->clock_ms)) {
            return false;
        }
        struct tombstone_end end = fsm_dead_end(lease);
        if (fsm_forgotten_end(fsm, end.ended_ms)) {
            return false;
        }
        *out_view = (struct tombstone_view){
            .owner = end.owner,
            .state = end.state,
            .token = end.token,
            .reason = end.reason,
            .ended_ms = end.ended_ms,
        };
        return true;
    }
    const struct tombstone *tombstone = tombstone_find(space, key);
    if (tombstone == NULL || fsm_forgotten_end(fsm, tombstone->ended_ms)) {
        return false;
    }
    *out_view = (struct tombstone_view){
        .owner = tombstone_owner(tombstone),
        .state = tombstone->state,
        .token = tombstone->token,
        .reason = tombstone->reason,
        .ended_ms = tombstone->ended_ms,
    };
    return true;
}

uint64_t fsm_query_unowned_since(const struct fsm *fsm, struct slice ns, struct slice key)
{
    return fsm_unowned_since(fsm, space_of(fsm, ns), key);
}

uint64_t fsm_unowned_since(const struct fsm *fsm, const struct space *space, struct slice key)
{
    uint64_t since_ms = fsm->lost_ms;
    uint64_t ended_ms = 0;
    if (space != NULL) {
        since_ms = max_u64(since_ms, space->purged_ms);
    }
    if (space == NULL || !last_end(fsm, space, key, &ended_ms)) {
        ended_ms = fsm_forgotten(fsm).until_ms;
    }
    return max_u64(since_ms, ended_ms);
}

void fsm_query_list(const struct fsm *fsm, const struct fsm_filter *filter, uint64_t now_ms,
                    fsm_view_cb cb, void *ctx)
{
    const struct space *space = space_of(fsm, filter->ns);
    if (space == NULL) {
        return;
    }
    if (filter->owner.base != NULL) {
        list_by_owner(space, filter, now_ms, cb, ctx);
        return;
    }
    struct tree_node *node = tree_find_from(&space->leases, filter->prefix);
    if (filter->after.base != NULL && slice_compare(filter->after, filter->prefix) >= 0) {
        node = tree_find_after(&space->leases, filter->after);
    }
    for (; node != NULL; node = tree_next(node)) {
        const struct lease *lease = CONTAINER_OF(node, struct lease, node);
        if (!slice_starts_with(lease_key(lease), filter->prefix)) {
            return; /* every later key is beyond the prefix too */
        }
        if (fsm_lease_dead(lease, now_ms) || !filter_passes(filter, lease)) {
            continue;
        }
        struct lease_view view = view_of(lease);
        if (!cb(ctx, &view)) {
            return;
        }
    }
}

uint64_t fsm_query_count(const struct fsm *fsm, const struct fsm_filter *filter, uint64_t now_ms)
{
    uint64_t count = 0;
    fsm_query_list(fsm, filter, now_ms, on_view, &count);
    return count;
}

static struct space *space_of(const struct fsm *fsm, struct slice ns)
{
    return space_find(&fsm->table, ns);
}

/* When the last lease of an absent key ended; false when that is forgotten. */
static bool last_end(const struct fsm *fsm, const struct space *space, struct slice key,
                     uint64_t *out_ended_ms)
{
    const struct lease *lease = lease_find(space, key);
    if (lease != NULL) {
        CHECK(fsm_lease_dead(lease, fsm->clock_ms));
        *out_ended_ms = fsm_dead_end(lease).ended_ms;
        return !fsm_forgotten_end(fsm, *out_ended_ms);
    }
    const struct tombstone *tombstone = tombstone_find(space, key);
    if (tombstone == NULL) {
        return false;
    }
    *out_ended_ms = tombstone->ended_ms;
    return !fsm_forgotten_end(fsm, *out_ended_ms);
}

static struct lease_view view_of(const struct lease *lease)
{
    return (struct lease_view){
        .ns = space_name(lease->space),
        .key = lease_key(lease),
        .owner = owner_name(lease->owner),
        .state = lease->state,
        .ttl_ms = lease->ttl_ms,
        .expiry_ms = lease->expiry_ms,
        .token = lease->token,
        .since_ms = lease->since_ms,
        .meta = lease_meta(lease),
        .identity = lease_identity(lease),
    };
}

/* All but the owner, which is chosen before. */
static bool filter_passes(const struct fsm_filter *filter, const struct lease *lease)
{
    return (filter->state == 0 || filter->state == lease->state) &&
           slice_starts_with(lease_key(lease), filter->prefix) &&
           (filter->after.base == NULL || slice_compare(lease_key(lease), filter->after) > 0);
}

/* An owner has few leases compared to the namespace: they are sorted instead of searched for. */
static void list_by_owner(const struct space *space, const struct fsm_filter *filter,
                          uint64_t now_ms, fsm_view_cb cb, void *ctx)
{
    const struct owner *owner = owner_find(space, filter->owner);
    if (owner == NULL || owner->own_count + owner->del_count == 0) {
        return;
    }
    const struct lease **leases =
        malloc((owner->own_count + owner->del_count) * sizeof(const struct lease *));
    CHECK(leases != NULL);
    size_t count = collect(&owner->own, filter, now_ms, leases);
    count += collect(&owner->del, filter, now_ms, leases + count);
    qsort(leases, count, sizeof(const struct lease *), compare_keys);
    for (size_t i = 0; i < count; i++) {
        struct lease_view view = view_of(leases[i]);
        if (!cb(ctx, &view)) {
            break;
        }
    }
    free(leases);
}

static size_t collect(const struct list *head, const struct fsm_filter *filter, uint64_t now_ms,
                      const struct lease **out_leases)
{
    size_t count = 0;
    for (const struct list *link = head->next; link != head; link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, owner_link);
        if (!fsm_lease_dead(lease, now_ms) && filter_passes(filter, lease)) {
            out_leases[count++] = lease;
        }
    }
    return count;
}

static int compare_keys(const void *a, const void *b)
{
    const struct lease *const *x = a;
    const struct lease *const *y = b;
    return slice_compare(lease_key(*x), lease_key(*y));
}

static bool on_due(void *ctx, struct expiry_node *node)
{
    struct due_search *search = ctx;
    const struct lease *lease = lease_of_due_node(node);
    if (!lease_marked(lease) && slice_starts_with(lease_key(lease), search->key_or_prefix)) {
        search->found = true;
    }
    return !search->found;
}

static bool on_view(void *ctx, const struct lease_view *view)
{
    (void)view;
    uint64_t *count = ctx;
    (*count)++;
    return true;
}
