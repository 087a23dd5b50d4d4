/* Reads. What is dead at the clock of the read is not there, whether it was removed or not; what is
 * said about its end is the same as after its removal. */
#include <stdlib.h>

#include "fsm/fsm_state.h"

/* So many steps of a walk over keys cost about what a lease costs that is collected and sorted. */
#define SORT_STEPS 8u

/* What is listed, and to whom it is shown. */
struct listing {
    const struct fsm_filter *filter;
    uint64_t now_ms;
    fsm_view_cb cb;
    void *ctx;
};

/* What is due and would be counted. */
struct due_count {
    const struct owner *owner; /* NULL: of all */
    enum lease_state state;    /* 0: both */
    uint64_t count;
};

static struct space *space_of(const struct fsm *fsm, struct slice ns);
static bool last_end(const struct fsm *fsm, const struct space *space, struct slice key,
                     uint64_t *out_ended_ms);
static struct lease_view view_of(const struct lease *lease);
static bool filter_passes(const struct fsm_filter *filter, const struct lease *lease);
static bool find_owner(const struct space *space, const struct fsm_filter *filter,
                       const struct owner **out_owner);
static uint64_t held(const struct space *space, const struct owner *owner,
                     enum lease_state state);
static uint64_t walk_steps(const struct space *space, const struct owner *owner,
                           const struct fsm_filter *filter);
static const struct lease *list_walked(const struct space *space, const struct owner *owner,
                                       const struct listing *listing, uint64_t steps);
static void list_sorted(const struct space *space, const struct owner *owner,
                        const struct listing *listing);
static bool show(const struct listing *listing, const struct lease *lease);
static size_t collect(const struct owner *owner, const struct fsm_filter *filter, uint64_t now_ms,
                      const struct lease **out_leases);
static size_t collect_list(const struct list *head, const struct fsm_filter *filter,
                           uint64_t now_ms, const struct lease **out_leases);
static int compare_keys(const void *a, const void *b);

struct due_search {
    struct slice key_or_prefix;
    bool exact;
    bool found;
};
static bool on_due(void *ctx, struct expiry_node *node);
static bool on_due_counted(void *ctx, struct expiry_node *node);
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
    if (space == NULL || expiry_first_ms(&space->due) >= now_ms) {
        return false; /* nothing is due here: the usual case, and keys may be many */
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
    struct listing listing = {.filter = filter, .now_ms = now_ms, .cb = cb, .ctx = ctx};
    const struct space *space = space_of(fsm, filter->ns);
    const struct owner *owner = NULL;
    if (space == NULL || !find_owner(space, filter, &owner)) {
        return;
    }
    const struct lease *last = list_walked(space, owner, &listing,
                                           walk_steps(space, owner, filter));
    if (last != NULL) {
        struct fsm_filter rest = *filter;
        rest.after = lease_key(last);
        listing.filter = &rest;
        list_sorted(space, owner, &listing);
    }
}

/* Counters know it all but what is dead and not removed yet. What is due is visited; under a mark,
 * and where keys matter, every lease is looked at. */
uint64_t fsm_query_count(const struct fsm *fsm, const struct fsm_filter *filter, uint64_t now_ms)
{
    const struct space *space = space_of(fsm, filter->ns);
    const struct owner *owner = NULL;
    if (space == NULL || !find_owner(space, filter, &owner)) {
        return 0;
    }
    if (filter->prefix.len == 0 && filter->after.base == NULL && space->marked == 0) {
        struct due_count due = {.owner = owner, .state = filter->state};
        expiry_visit_due(&space->due, now_ms, on_due_counted, &due);
        return held(space, owner, filter->state) - due.count;
    }
    if (owner != NULL) {
        return collect(owner, filter, now_ms, NULL);
    }
    uint64_t count = 0;
    const struct listing listing = {
        .filter = filter, .now_ms = now_ms, .cb = on_view, .ctx = &count};
    (void)list_walked(space, NULL, &listing, UINT64_MAX);
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

/* All but the owner. */
static bool filter_passes(const struct fsm_filter *filter, const struct lease *lease)
{
    return (filter->state == 0 || filter->state == lease->state) &&
           slice_starts_with(lease_key(lease), filter->prefix) &&
           (filter->after.base == NULL || slice_compare(lease_key(lease), filter->after) > 0);
}

/* Whose leases pass; NULL: everybody's. False: nobody's. */
static bool find_owner(const struct space *space, const struct fsm_filter *filter,
                       const struct owner **out_owner)
{
    *out_owner = filter->owner.base == NULL ? NULL : owner_find(space, filter->owner);
    return filter->owner.base == NULL || *out_owner != NULL;
}

/* Leases of the owner, or of all (NULL), in this state; dead ones too. */
static uint64_t held(const struct space *space, const struct owner *owner, enum lease_state state)
{
    uint64_t own = owner != NULL ? owner->own_count : space->own_count;
    uint64_t del = owner != NULL ? owner->del_count : space->del_count;
    return (state == LEASE_STATE_DEL ? 0 : own) + (state == LEASE_STATE_OWN ? 0 : del);
}

/* Many matches are met soon by a walk over the keys; few are collected from the lists of their
 * owners and sorted. Which of the two depends on where they lie, so a listing walks for as long as
 * collecting would take, and then collects the rest: at most twice the cheaper one. */
static uint64_t walk_steps(const struct space *space, const struct owner *owner,
                           const struct fsm_filter *filter)
{
    if (owner == NULL && (filter->state == 0 || filter->prefix.len > 0)) {
        return UINT64_MAX; /* a prefix says where to walk */
    }
    uint64_t owners = owner == NULL ? space->owners.count : 1;
    return owners + held(space, owner, filter->state) * SORT_STEPS;
}

/* From the first key that may match, in the order of keys. Returns the last lease that it passed
 * when the steps are used up, NULL when there is nothing left to show. */
static const struct lease *list_walked(const struct space *space, const struct owner *owner,
                                       const struct listing *listing, uint64_t steps)
{
    const struct fsm_filter *filter = listing->filter;
    const struct lease *lease = NULL;
    struct tree_node *node = tree_find_from(&space->leases, filter->prefix);
    if (filter->after.base != NULL && slice_compare(filter->after, filter->prefix) >= 0) {
        node = tree_find_after(&space->leases, filter->after);
    }
    for (; node != NULL; node = tree_next(node)) {
        if (steps-- == 0) {
            return lease;
        }
        lease = CONTAINER_OF(node, struct lease, node);
        if (!slice_starts_with(lease_key(lease), filter->prefix)) {
            return NULL; /* every later key is beyond the prefix too */
        }
        bool wanted = (owner == NULL || lease->owner == owner) &&
                      !fsm_lease_dead(lease, listing->now_ms) && filter_passes(filter, lease);
        if (wanted && !show(listing, lease)) {
            return NULL;
        }
    }
    return NULL;
}

static void list_sorted(const struct space *space, const struct owner *owner,
                        const struct listing *listing)
{
    const struct fsm_filter *filter = listing->filter;
    uint64_t room = held(space, owner, filter->state);
    if (room == 0) {
        return;
    }
    const struct lease **leases = malloc(room * sizeof(const struct lease *));
    CHECK(leases != NULL);
    size_t count = 0;
    if (owner != NULL) {
        count = collect(owner, filter, listing->now_ms, leases);
    } else {
        for (struct tree_node *node = tree_first(&space->owners); node != NULL;
             node = tree_next(node)) {
            count += collect(CONTAINER_OF(node, struct owner, node), filter, listing->now_ms,
                             leases + count);
        }
    }
    qsort(leases, count, sizeof(const struct lease *), compare_keys);
    for (size_t i = 0; i < count && show(listing, leases[i]); i++) {
    }
    free(leases);
}

/* False when no more are wanted. */
static bool show(const struct listing *listing, const struct lease *lease)
{
    struct lease_view view = view_of(lease);
    return listing->cb(listing->ctx, &view);
}

/* The owner's leases that pass, in no order; with `out_leases` NULL they are only counted. */
static size_t collect(const struct owner *owner, const struct fsm_filter *filter, uint64_t now_ms,
                      const struct lease **out_leases)
{
    size_t count = 0;
    if (filter->state != LEASE_STATE_DEL) {
        count += collect_list(&owner->own, filter, now_ms, out_leases);
    }
    if (filter->state != LEASE_STATE_OWN) {
        count += collect_list(&owner->del, filter, now_ms,
                              out_leases == NULL ? NULL : out_leases + count);
    }
    return count;
}

static size_t collect_list(const struct list *head, const struct fsm_filter *filter,
                           uint64_t now_ms, const struct lease **out_leases)
{
    size_t count = 0;
    for (const struct list *link = head->next; link != head; link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, owner_link);
        if (fsm_lease_dead(lease, now_ms) || !filter_passes(filter, lease)) {
            continue;
        }
        if (out_leases != NULL) {
            out_leases[count] = lease;
        }
        count++;
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

static bool on_due_counted(void *ctx, struct expiry_node *node)
{
    struct due_count *due = ctx;
    const struct lease *lease = lease_of_due_node(node);
    due->count += (due->owner == NULL || due->owner == lease->owner) &&
                  (due->state == 0 || due->state == lease->state);
    return true;
}

static bool on_view(void *ctx, const struct lease_view *view)
{
    (void)view;
    uint64_t *count = ctx;
    (*count)++;
    return true;
}
