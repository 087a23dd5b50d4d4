/* One allocation per record, with its bytes behind it; metadata and identity, which change while
 * the lease stays, have one of their own. A record is taken out of the digest's sum before it
 * changes and put back afterwards; what a renewal does not touch is hashed once per grant. */
#include "fsm/lease_table.h"

#include <stdlib.h>

#include "fsm/digest.h"
#include "fsm/owner_index.h"

struct attachment {
    bool has_meta;
    bool has_identity;
    uint16_t meta_len;
    uint8_t identity_len;
    uint8_t bytes[]; /* metadata, identity */
};

static bool lease_due_before(const struct expiry_node *a, const struct expiry_node *b);
static bool space_due_before(const struct expiry_node *a, const struct expiry_node *b);
static bool space_floor_before(const struct expiry_node *a, const struct expiry_node *b);
static bool tombstone_age_before(const struct expiry_node *a, const struct expiry_node *b);
static bool space_is_empty(const struct space *space);
static void space_free(struct lease_table *table, struct space *space);
static void space_due_changed(struct lease_table *table, struct space *space);
static void write_grant(struct lease_table *table, struct lease *lease,
                        const struct lease_grant *grant);
static void attach(struct lease_table *table, struct lease *lease,
                   const struct lease_grant *grant);
static size_t attachment_len(const struct attachment *attachment);
static void write_extension(struct lease *lease, uint64_t ttl_ms, uint64_t expiry_ms,
                            struct position written);
static void count_lease(struct lease_table *table, const struct lease *lease, uint64_t by);

void lease_table_init(struct lease_table *table)
{
    *table = (struct lease_table){0};
    tree_init(&table->spaces);
    expiry_init(&table->due, space_due_before);
    expiry_init(&table->ages, tombstone_age_before);
    expiry_init(&table->floors, space_floor_before);
    list_init(&table->loose);
}

void lease_table_set_hash_key(struct lease_table *table, const struct hash_key *hash_key)
{
    table->hash_key = *hash_key;
}

void lease_table_deinit(struct lease_table *table)
{
    struct tree_node *node;
    while ((node = tree_first(&table->spaces)) != NULL) {
        struct space *space = CONTAINER_OF(node, struct space, node);
        CHECK(space->owners.count == 0);
        while ((node = space->leases.root) != NULL) {
            struct lease *lease = CONTAINER_OF(node, struct lease, node);
            list_init(&lease->owner_link); /* the owner is freed already */
            lease_remove(table, lease);
        }
        while ((node = space->tombstones.root) != NULL) {
            tombstone_remove(table, CONTAINER_OF(node, struct tombstone, node));
        }
        space_set_purged(table, space, 0);
        space_free(table, space);
    }
    expiry_deinit(&table->due);
    expiry_deinit(&table->ages);
    expiry_deinit(&table->floors);
}

struct space *space_find(const struct lease_table *table, struct slice name)
{
    struct tree_node *node = tree_find(&table->spaces, name);
    return node == NULL ? NULL : CONTAINER_OF(node, struct space, node);
}

struct space *space_get(struct lease_table *table, struct slice name)
{
    struct space *space = space_find(table, name);
    if (space != NULL) {
        return space;
    }
    CHECK(name.len >= 1 && name.len <= NAMESPACE_LEN_MAX);
    space = calloc(1, sizeof *space + name.len);
    CHECK(space != NULL);
    memcpy(space->name, name.base, name.len);
    space->name_len = name.len;
    key_index_init(&space->keys, &table->hash_key);
    expiry_init(&space->due, lease_due_before);
    expiry_node_init(&space->due_node);
    expiry_node_init(&space->floor_node);
    list_init(&space->by_token);
    list_init(&space->marks);
    list_init(&space->loose);
    tree_insert(&table->spaces, &space->node, space_name(space));
    space->digest = space_digest(space);
    table->space_digest += space->digest;
    table->memory_len += sizeof *space + name.len;
    return space;
}

void space_set_purged(struct lease_table *table, struct space *space, uint64_t purged_ms)
{
    if (expiry_contains(&space->floor_node)) {
        expiry_remove(&table->floors, &space->floor_node);
    }
    space->purged_ms = purged_ms;
    if (purged_ms > 0) {
        expiry_insert(&table->floors, &space->floor_node, purged_ms);
    }
    table->space_digest -= space->digest;
    space->digest = space_digest(space);
    table->space_digest += space->digest;
    space_loosen(table, space);
}

void space_loosen(struct lease_table *table, struct space *space)
{
    if (!list_linked(&space->loose)) {
        list_append(&table->loose, &space->loose);
    }
}

void lease_table_tidy(struct lease_table *table)
{
    struct list *link;
    while ((link = list_pop(&table->loose)) != NULL) {
        struct space *space = CONTAINER_OF(link, struct space, loose);
        if (space_is_empty(space)) {
            space_free(table, space);
        }
    }
}

struct lease *lease_find(const struct space *space, struct slice key)
{
    struct key_index_node *node =
        key_index_first(&space->keys, key_index_hash(&space->keys, key));
    for (; node != NULL; node = key_index_next(node)) {
        struct lease *lease = CONTAINER_OF(node, struct lease, key_node);
        if (slice_equal(lease_key(lease), key)) {
            return lease;
        }
    }
    return NULL;
}

struct lease *lease_add(struct lease_table *table, struct space *space, struct slice key,
                        struct owner *owner, const struct lease_grant *grant)
{
    CHECK(key.len >= 1 && key.len <= KEY_LEN_MAX);
    struct lease *lease = calloc(1, sizeof *lease + key.len);
    CHECK(lease != NULL);
    memcpy(lease->key, key.base, key.len);
    lease->key_len = key.len;
    lease->space = space;
    lease->owner = owner;
    expiry_node_init(&lease->due_node);
    list_init(&lease->token_link);
    list_init(&lease->owner_link);
    tree_insert(&space->leases, &lease->node, lease_key(lease));
    table->index_len -= key_index_memory(&space->keys);
    key_index_insert(&space->keys, &lease->key_node, key_index_hash(&space->keys, key));
    table->index_len += key_index_memory(&space->keys);
    expiry_insert(&space->due, &lease->due_node, grant->expiry_ms);
    table->memory_len += sizeof *lease + key.len;
    write_grant(table, lease, grant);
    return lease;
}

void lease_regrant(struct lease_table *table, struct lease *lease, struct owner *owner,
                   const struct lease_grant *grant)
{
    CHECK(owner->space == lease->space && grant->token >= lease->token);
    table->lease_digest -= lease->digest;
    count_lease(table, lease, (uint64_t)-1);
    lease->owner = owner;
    expiry_move(&lease->space->due, &lease->due_node, grant->expiry_ms);
    write_grant(table, lease, grant);
}

void lease_extend(struct lease_table *table, struct lease *lease, uint64_t ttl_ms,
                  uint64_t expiry_ms, struct position written)
{
    table->lease_digest -= lease->digest;
    write_extension(lease, ttl_ms, expiry_ms, written);
    table->lease_digest += lease->digest;
    bool first = lease->due_node.idx == 0;
    expiry_move(&lease->space->due, &lease->due_node, expiry_ms);
    if (first || lease->due_node.idx == 0) {
        space_due_changed(table, lease->space);
    }
}

void lease_extend_many(struct lease_table *table, struct lease *lease, uint64_t ttl_ms,
                       uint64_t expiry_ms, struct position written)
{
    table->lease_digest -= lease->digest;
    write_extension(lease, ttl_ms, expiry_ms, written);
    table->lease_digest += lease->digest;
    expiry_set(&lease->space->due, &lease->due_node, expiry_ms);
}

void lease_extend_end(struct lease_table *table, struct space *space)
{
    expiry_reorder(&space->due);
    space_due_changed(table, space);
}

void lease_remove(struct lease_table *table, struct lease *lease)
{
    CHECK(!list_linked(&lease->owner_link));
    struct space *space = lease->space;
    table->lease_digest -= lease->digest;
    count_lease(table, lease, (uint64_t)-1);
    tree_remove(&space->leases, &lease->node);
    table->index_len -= key_index_memory(&space->keys);
    key_index_remove(&space->keys, &lease->key_node);
    table->index_len += key_index_memory(&space->keys);
    expiry_remove(&space->due, &lease->due_node);
    list_remove(&lease->token_link);
    space_due_changed(table, space);
    space_loosen(table, space);
    table->memory_len -= sizeof *lease + lease->key_len + attachment_len(lease->attachment);
    free(lease->attachment);
    free(lease);
}

struct slice lease_meta(const struct lease *lease)
{
    const struct attachment *attachment = lease->attachment;
    if (attachment == NULL || !attachment->has_meta) {
        return slice_from(NULL, 0);
    }
    return slice_from(attachment->bytes, attachment->meta_len);
}

struct slice lease_identity(const struct lease *lease)
{
    const struct attachment *attachment = lease->attachment;
    if (attachment == NULL || !attachment->has_identity) {
        return slice_from(NULL, 0);
    }
    return slice_from(attachment->bytes + attachment->meta_len, attachment->identity_len);
}

uint64_t lease_digest(const struct lease *lease)
{
    uint64_t numbers[] = {lease->ttl_ms, lease->expiry_ms, lease->written_index,
                          lease->written_place};
    return digest_numbers(lease->digest_fixed, numbers, sizeof numbers / sizeof numbers[0]);
}

uint64_t lease_digest_fixed(const struct lease *lease)
{
    uint64_t digest = digest_slice(DIGEST_SEED_LEASE, space_name(lease->space));
    digest = digest_slice(digest, lease_key(lease));
    digest = digest_slice(digest, owner_name(lease->owner));
    digest = digest_slice(digest, lease_meta(lease));
    digest = digest_slice(digest, lease_identity(lease));
    uint64_t numbers[] = {lease->token, lease->since_ms, (uint64_t)lease->state};
    return digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
}

struct lease *lease_table_first_due(const struct lease_table *table)
{
    struct expiry_node *node = expiry_first(&table->due);
    return node == NULL ? NULL : space_first_due(CONTAINER_OF(node, struct space, due_node));
}

struct lease *space_first_due(const struct space *space)
{
    struct expiry_node *node = expiry_first(&space->due);
    return node == NULL ? NULL : lease_of_due_node(node);
}

struct lease *lease_of_due_node(struct expiry_node *node)
{
    return CONTAINER_OF(node, struct lease, due_node);
}

struct tombstone *tombstone_find(const struct space *space, struct slice key)
{
    struct tree_node *node = tree_find(&space->tombstones, key);
    return node == NULL ? NULL : CONTAINER_OF(node, struct tombstone, node);
}

void tombstone_add(struct lease_table *table, struct space *space, struct slice key,
                   const struct tombstone_end *end)
{
    size_t len = sizeof(struct tombstone) + key.len + end->owner.len;
    struct tombstone *tombstone = calloc(1, len);
    CHECK(tombstone != NULL);
    memcpy(tombstone->bytes, key.base, key.len);
    memcpy(tombstone->bytes + key.len, end->owner.base, end->owner.len);
    tombstone->key_len = key.len;
    tombstone->owner_len = end->owner.len;
    tombstone->space = space;
    tombstone->token = end->token;
    tombstone->ended_ms = end->ended_ms;
    tombstone->state = end->state;
    tombstone->reason = end->reason;
    tombstone->digest = tombstone_digest(tombstone);
    expiry_node_init(&tombstone->age_node);
    tree_insert(&space->tombstones, &tombstone->node, tombstone_key(tombstone));
    expiry_insert(&table->ages, &tombstone->age_node, tombstone->ended_ms);
    table->tombstone_count++;
    table->tombstone_digest += tombstone->digest;
    table->memory_len += len;
}

void tombstone_remove(struct lease_table *table, struct tombstone *tombstone)
{
    struct space *space = tombstone->space;
    tree_remove(&space->tombstones, &tombstone->node);
    expiry_remove(&table->ages, &tombstone->age_node);
    table->tombstone_count--;
    table->tombstone_digest -= tombstone->digest;
    table->memory_len -= sizeof *tombstone + tombstone->key_len + tombstone->owner_len;
    space_loosen(table, space);
    free(tombstone);
}

void tombstone_forget(struct lease_table *table, struct tombstone *tombstone)
{
    forgotten_add(&table->forgotten, tombstone->ended_ms, tombstone->token);
    tombstone_remove(table, tombstone);
}

struct tombstone *lease_table_oldest_tombstone(const struct lease_table *table)
{
    struct expiry_node *node = expiry_first(&table->ages);
    return node == NULL ? NULL : tombstone_of_age_node(node);
}

struct tombstone *tombstone_of_age_node(struct expiry_node *node)
{
    return CONTAINER_OF(node, struct tombstone, age_node);
}

uint64_t space_digest(const struct space *space)
{
    uint64_t digest = digest_slice(DIGEST_SEED_SPACE, space_name(space));
    return digest_numbers(digest, &space->purged_ms, 1);
}

uint64_t tombstone_digest(const struct tombstone *tombstone)
{
    uint64_t digest = digest_slice(DIGEST_SEED_TOMBSTONE, space_name(tombstone->space));
    digest = digest_slice(digest, tombstone_key(tombstone));
    digest = digest_slice(digest, tombstone_owner(tombstone));
    uint64_t numbers[] = {tombstone->token, tombstone->ended_ms, (uint64_t)tombstone->state,
                          (uint64_t)tombstone->reason};
    return digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
}

static bool lease_due_before(const struct expiry_node *a, const struct expiry_node *b)
{
    const struct lease *x = CONTAINER_OF_CONST(a, struct lease, due_node);
    const struct lease *y = CONTAINER_OF_CONST(b, struct lease, due_node);
    return tree_node_before(&x->node, &y->node);
}

static bool space_due_before(const struct expiry_node *a, const struct expiry_node *b)
{
    return slice_compare(space_name(CONTAINER_OF_CONST(a, struct space, due_node)),
                         space_name(CONTAINER_OF_CONST(b, struct space, due_node))) < 0;
}

static bool space_floor_before(const struct expiry_node *a, const struct expiry_node *b)
{
    return slice_compare(space_name(CONTAINER_OF_CONST(a, struct space, floor_node)),
                         space_name(CONTAINER_OF_CONST(b, struct space, floor_node))) < 0;
}

static bool tombstone_age_before(const struct expiry_node *a, const struct expiry_node *b)
{
    const struct tombstone *x = CONTAINER_OF_CONST(a, struct tombstone, age_node);
    const struct tombstone *y = CONTAINER_OF_CONST(b, struct tombstone, age_node);
    if (x->space != y->space) {
        return slice_compare(space_name(x->space), space_name(y->space)) < 0;
    }
    return slice_compare(tombstone_key(x), tombstone_key(y)) < 0;
}

static bool space_is_empty(const struct space *space)
{
    return space->leases.count == 0 && space->tombstones.count == 0 && space->owners.count == 0 &&
           space->purged_ms == 0;
}

static void space_free(struct lease_table *table, struct space *space)
{
    CHECK(space_is_empty(space) && list_empty(&space->marks) && list_empty(&space->by_token));
    list_remove(&space->loose);
    tree_remove(&table->spaces, &space->node);
    table->space_digest -= space->digest;
    table->memory_len -= sizeof *space + space->name_len;
    table->index_len -= key_index_memory(&space->keys);
    key_index_deinit(&space->keys);
    expiry_deinit(&space->due);
    free(space);
}

/* The namespace's first lease may be another one now, or have another expiry. */
static void space_due_changed(struct lease_table *table, struct space *space)
{
    uint64_t first_ms = expiry_first_ms(&space->due);
    if (space->due.count == 0) {
        if (expiry_contains(&space->due_node)) {
            expiry_remove(&table->due, &space->due_node);
        }
    } else if (expiry_contains(&space->due_node)) {
        expiry_move(&table->due, &space->due_node, first_ms);
    } else {
        expiry_insert(&table->due, &space->due_node, first_ms);
    }
}

/* Everything that a grant writes; the lease is in no sum and no count. */
static void write_grant(struct lease_table *table, struct lease *lease,
                        const struct lease_grant *grant)
{
    if (grant->token != lease->token) {
        list_remove(&lease->token_link);
        list_append(&lease->space->by_token, &lease->token_link);
    }
    lease->state = grant->state;
    lease->token = grant->token;
    lease->since_ms = grant->since_ms;
    attach(table, lease, grant);
    lease->digest_fixed = lease_digest_fixed(lease);
    write_extension(lease, grant->ttl_ms, grant->expiry_ms, grant->written);
    count_lease(table, lease, 1);
    table->lease_digest += lease->digest;
    space_due_changed(table, lease->space);
}

/* New metadata or a new identity, where the grant carries one. */
static void attach(struct lease_table *table, struct lease *lease, const struct lease_grant *grant)
{
    if (grant->meta.base == NULL && grant->identity.base == NULL) {
        return;
    }
    struct slice meta = grant->meta.base != NULL ? grant->meta : lease_meta(lease);
    struct slice identity =
        grant->identity.base != NULL ? grant->identity : lease_identity(lease);
    CHECK(meta.len <= META_LEN_MAX && identity.len <= IDENTITY_LEN_MAX);
    struct attachment *attachment = malloc(sizeof *attachment + meta.len + identity.len);
    CHECK(attachment != NULL);
    attachment->has_meta = meta.base != NULL;
    attachment->has_identity = identity.base != NULL;
    attachment->meta_len = (uint16_t)meta.len;
    attachment->identity_len = (uint8_t)identity.len;
    if (meta.len > 0) {
        memcpy(attachment->bytes, meta.base, meta.len);
    }
    if (identity.len > 0) {
        memcpy(attachment->bytes + meta.len, identity.base, identity.len);
    }
    table->memory_len += attachment_len(attachment) - attachment_len(lease->attachment);
    free(lease->attachment);
    lease->attachment = attachment;
}

static size_t attachment_len(const struct attachment *attachment)
{
    return attachment == NULL
               ? 0
               : sizeof *attachment + attachment->meta_len + attachment->identity_len;
}

static void write_extension(struct lease *lease, uint64_t ttl_ms, uint64_t expiry_ms,
                            struct position written)
{
    lease->ttl_ms = ttl_ms;
    lease->expiry_ms = expiry_ms;
    lease->written_index = written.index;
    lease->written_place = written.place;
    lease->digest = lease_digest(lease);
}

static void count_lease(struct lease_table *table, const struct lease *lease, uint64_t by)
{
    if (lease->state == LEASE_STATE_OWN) {
        table->own_count += by;
        lease->space->own_count += by;
    } else {
        table->del_count += by;
        lease->space->del_count += by;
    }
}
