/* Two orders of departures, per owner and over all, both by version: versions grow, so appending is
 * all there is to it. An owner that may have become superfluous is put on a list and freed when the
 * command is over, since results borrow its name until then. */
#include "fsm/owner_index.h"

#include <stdlib.h>

#include "fsm/digest.h"

static bool idle_before(const struct expiry_node *a, const struct expiry_node *b);
static void refresh_digest(struct owner_index *index, struct owner *owner);
static void set_idle(struct owner_index *index, struct owner *owner, uint64_t now_ms);
static void loosen(struct owner_index *index, struct owner *owner);
static bool is_superfluous(const struct owner *owner);
static void departed_free(struct owner_index *index, struct departed *departed);

void owner_index_init(struct owner_index *index)
{
    *index = (struct owner_index){0};
    expiry_init(&index->idle, idle_before);
    list_init(&index->departures);
    list_init(&index->loose);
}

void owner_index_deinit(struct owner_index *index)
{
    struct list *link;
    while ((link = list_first(&index->departures)) != NULL) {
        departed_free(index, CONTAINER_OF(link, struct departed, age_link));
    }
    expiry_deinit(&index->idle);
}

void owner_free_all(struct space *space)
{
    struct tree_node *node;
    while ((node = space->owners.root) != NULL) {
        tree_remove(&space->owners, node);
        free(CONTAINER_OF(node, struct owner, node));
    }
}

struct owner *owner_find(const struct space *space, struct slice name)
{
    struct tree_node *node = tree_find(&space->owners, name);
    return node == NULL ? NULL : CONTAINER_OF(node, struct owner, node);
}

struct owner *owner_get(struct owner_index *index, struct space *space, struct slice name,
                        uint64_t now_ms)
{
    struct owner *owner = owner_find(space, name);
    if (owner != NULL) {
        return owner;
    }
    CHECK(name.len >= 1 && name.len <= OWNER_LEN_MAX);
    owner = calloc(1, sizeof *owner + name.len);
    CHECK(owner != NULL);
    memcpy(owner->name, name.base, name.len);
    owner->name_len = name.len;
    owner->space = space;
    owner->set_version = index->forgotten_version;
    owner->forgotten_version = index->forgotten_version;
    list_init(&owner->own);
    list_init(&owner->del);
    list_init(&owner->departures);
    list_init(&owner->marks);
    list_init(&owner->loose);
    expiry_node_init(&owner->idle_node);
    tree_insert(&space->owners, &owner->node, owner_name(owner));
    owner->digest_name = digest_slice(digest_slice(DIGEST_SEED_OWNER, space_name(space)),
                                      owner_name(owner));
    owner->digest = owner_digest(owner);
    index->owner_digest += owner->digest;
    index->owner_count++;
    index->memory_len += sizeof *owner + name.len;
    set_idle(index, owner, now_ms);
    return owner;
}

void owner_link(struct owner_index *index, struct lease *lease)
{
    struct owner *owner = lease->owner;
    bool own = lease->state == LEASE_STATE_OWN;
    list_append(own ? &owner->own : &owner->del, &lease->owner_link);
    if (own) {
        owner->own_count++;
    } else {
        owner->del_count++;
    }
    if (expiry_contains(&owner->idle_node)) {
        expiry_remove(&index->idle, &owner->idle_node);
        refresh_digest(index, owner);
    }
}

void owner_unlink(struct owner_index *index, struct lease *lease, uint64_t now_ms)
{
    struct owner *owner = lease->owner;
    CHECK(list_linked(&lease->owner_link));
    list_remove(&lease->owner_link);
    if (lease->state == LEASE_STATE_OWN) {
        CHECK(owner->own_count > 0);
        owner->own_count--;
    } else {
        CHECK(owner->del_count > 0);
        owner->del_count--;
    }
    if (owner->own_count + owner->del_count == 0) {
        set_idle(index, owner, now_ms);
    }
}

void owner_depart(struct owner_index *index, struct owner *owner,
                  const struct departing *departing)
{
    CHECK(departing->version > owner->set_version);
    owner->set_version = departing->version;
    owner_restore_departure(index, owner, departing);
    refresh_digest(index, owner);
}

void owner_forget_departure(struct owner_index *index, struct owner *owner)
{
    struct list *link = list_first(&owner->departures);
    CHECK(link != NULL);
    struct departed *departed = CONTAINER_OF(link, struct departed, owner_link);
    owner->forgotten_version = departed->version;
    departed_free(index, departed);
    refresh_digest(index, owner);
    loosen(index, owner);
}

void owner_index_forget_departure(struct owner_index *index)
{
    struct list *link = list_first(&index->departures);
    CHECK(link != NULL);
    owner_forget_departure(index, CONTAINER_OF(link, struct departed, age_link)->owner);
}

void owner_forget(struct owner_index *index, struct lease_table *table, struct owner *owner)
{
    CHECK(owner->own_count + owner->del_count == 0 && list_empty(&owner->marks));
    struct list *link;
    while ((link = list_first(&owner->departures)) != NULL) {
        departed_free(index, CONTAINER_OF(link, struct departed, owner_link));
    }
    index->forgotten_version = max_u64(index->forgotten_version, owner->set_version);
    if (expiry_contains(&owner->idle_node)) {
        expiry_remove(&index->idle, &owner->idle_node);
    }
    list_remove(&owner->loose);
    tree_remove(&owner->space->owners, &owner->node);
    space_loosen(table, owner->space);
    index->owner_digest -= owner->digest;
    index->owner_count--;
    index->memory_len -= sizeof *owner + owner->name_len;
    free(owner);
}

struct owner *owner_index_first_idle(const struct owner_index *index)
{
    struct expiry_node *node = expiry_first(&index->idle);
    return node == NULL ? NULL : CONTAINER_OF(node, struct owner, idle_node);
}

void owner_index_tidy(struct owner_index *index, struct lease_table *table)
{
    struct list *link;
    while ((link = list_pop(&index->loose)) != NULL) {
        struct owner *owner = CONTAINER_OF(link, struct owner, loose);
        if (is_superfluous(owner)) {
            owner_forget(index, table, owner);
        }
    }
}

void owner_restore(struct owner_index *index, struct owner *owner,
                   const struct owner_memory *memory)
{
    owner->set_version = memory->set_version;
    owner->forgotten_version = memory->forgotten_version;
    if (expiry_contains(&owner->idle_node)) {
        expiry_remove(&index->idle, &owner->idle_node);
    }
    if (memory->idle) {
        set_idle(index, owner, memory->idle_ms);
    }
    refresh_digest(index, owner);
}

void owner_restore_departure(struct owner_index *index, struct owner *owner,
                             const struct departing *departing)
{
    struct departed *departed = calloc(1, sizeof *departed + departing->key.len);
    CHECK(departed != NULL);
    memcpy(departed->key, departing->key.base, departing->key.len);
    departed->key_len = departing->key.len;
    departed->owner = owner;
    departed->version = departing->version;
    departed->token = departing->token;
    departed->reason = departing->reason;
    list_init(&departed->owner_link);
    list_init(&departed->age_link);
    list_append(&owner->departures, &departed->owner_link);
    list_append(&index->departures, &departed->age_link);
    owner->departure_count++;
    index->departure_count++;
    index->departure_digest += departed_digest(departed);
    index->memory_len += sizeof *departed + departed->key_len;
}

uint64_t owner_digest(const struct owner *owner)
{
    bool idle = expiry_contains(&owner->idle_node);
    uint64_t numbers[] = {owner->set_version, owner->forgotten_version, idle,
                          idle ? owner->idle_ms : 0};
    return digest_numbers(owner->digest_name, numbers, sizeof numbers / sizeof numbers[0]);
}

uint64_t departed_digest(const struct departed *departed)
{
    uint64_t digest = digest_slice(departed->owner->digest_name ^ DIGEST_SEED_DEPARTURE,
                                   departed_key(departed));
    uint64_t numbers[] = {departed->version, departed->token, (uint64_t)departed->reason};
    return digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
}

static bool idle_before(const struct expiry_node *a, const struct expiry_node *b)
{
    const struct owner *x = CONTAINER_OF_CONST(a, struct owner, idle_node);
    const struct owner *y = CONTAINER_OF_CONST(b, struct owner, idle_node);
    if (x->space != y->space) {
        return slice_compare(space_name(x->space), space_name(y->space)) < 0;
    }
    return slice_compare(owner_name(x), owner_name(y)) < 0;
}

static void refresh_digest(struct owner_index *index, struct owner *owner)
{
    index->owner_digest -= owner->digest;
    owner->digest = owner_digest(owner);
    index->owner_digest += owner->digest;
}

static void set_idle(struct owner_index *index, struct owner *owner, uint64_t now_ms)
{
    owner->idle_ms = now_ms;
    expiry_insert(&index->idle, &owner->idle_node, now_ms);
    refresh_digest(index, owner);
    loosen(index, owner);
}

static void loosen(struct owner_index *index, struct owner *owner)
{
    if (is_superfluous(owner) && !list_linked(&owner->loose)) {
        list_append(&index->loose, &owner->loose);
    }
}

static bool is_superfluous(const struct owner *owner)
{
    return owner->own_count + owner->del_count == 0 && owner->departure_count == 0;
}

static void departed_free(struct owner_index *index, struct departed *departed)
{
    list_remove(&departed->owner_link);
    list_remove(&departed->age_link);
    departed->owner->departure_count--;
    index->departure_count--;
    index->departure_digest -= departed_digest(departed);
    index->memory_len -= sizeof *departed + departed->key_len;
    free(departed);
}
