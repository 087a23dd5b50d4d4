/* Loading a snapshot: record by record, nothing trusted.
 *
 * Each record is checked field by field as it is read; what records say about each other (orders,
 * sums, P1, P5) is checked where a structure would take harm from it, and by invariants_check at
 * the end. Lists in the order of tokens are linked when all leases are known. */
#include <stdlib.h>

#include "fsm/invariants.h"
#include "fsm/mp_codec.h"
#include "fsm/result.h"
#include "fsm/snapshot.h"
#include "fsm/snapshot_format.h"

/* No log gets that far; a counter that stands there would end in a CHECK. */
#define COUNTER_MAX (1ull << 63)

#define HEAD_FIELDS 16u

struct loader {
    struct fsm *fsm; /* owned until the end */
    struct mp_reader reader;
    struct result_decoder *decoder; /* owned */
    uint64_t counts[SNAPSHOT_SECTION_COUNT];
    struct space **spaces;   /* owned array, by number */
    struct owner **owners;   /* likewise */
    struct lease **leases;   /* likewise, then by token */
    struct origin **origins; /* likewise, then by silence */
    const char *why;         /* the first thing found wrong */
};

/* Reads the fields of one record of a section; its number counts from 0. */
typedef void (*load_cb)(struct loader *loader, uint64_t number);

static bool unwrap(struct slice bytes, struct slice *out_body, uint32_t *out_version,
                   const char **out_why);
static uint64_t get_u64(const uint8_t *at, unsigned len);
static void load_body(struct loader *loader);
static void keep_loose(struct fsm *fsm);
static void load_section(struct loader *loader, enum snapshot_section section, load_cb load);
static void fail(struct loader *loader, const char *why);
static bool text_fine(enum status st);
static void load_head(struct loader *loader);
static void load_settings(struct loader *loader);
static void load_counts(struct loader *loader);
static void allocate(struct loader *loader);
static void load_space(struct loader *loader, uint64_t number);
static void load_owner(struct loader *loader, uint64_t number);
static void load_departure(struct loader *loader, uint64_t number);
static void load_lease(struct loader *loader, uint64_t number);
static void load_tombstone(struct loader *loader, uint64_t number);
static void load_mark(struct loader *loader, uint64_t number);
static void load_origin(struct loader *loader, uint64_t number);
static void load_outcome(struct loader *loader, uint64_t number);
static bool grants_fine(struct slice ns, struct slice grants, uint64_t count);
static void link_leases(struct loader *loader);
static uint64_t count_covered(const struct space *space, const struct owner *owner,
                              uint64_t upto);
static void link_silence(struct loader *loader);
static int compare_tokens(const void *a, const void *b);
static int compare_silence(const void *a, const void *b);
static struct space *space_at(struct loader *loader);
static struct owner *owner_at(struct loader *loader);

enum status snapshot_decode(struct slice bytes, const struct hash_key *hash_key,
                            struct fsm **out_fsm, uint32_t *out_version, const char **out_why)
{
    struct slice body;
    uint32_t version = SNAPSHOT_FORMAT_VERSION;
    if (!unwrap(bytes, &body, &version, out_why)) {
        if (version != SNAPSHOT_FORMAT_VERSION) {
            *out_version = version;
            return STATUS_INCOMPATIBLE;
        }
        return STATUS_CORRUPT;
    }
    struct loader loader = {
        .fsm = fsm_create(),
        .reader = mp_reader_of(body),
        .decoder = result_decoder_create(),
    };
    fsm_set_hash_key(loader.fsm, hash_key);
    load_body(&loader);
    if (loader.why == NULL) {
        loader.why = invariants_check(loader.fsm);
    }
    result_decoder_destroy(loader.decoder);
    free(loader.spaces);
    free(loader.owners);
    free(loader.leases);
    free(loader.origins);
    if (loader.why != NULL) {
        fsm_destroy(loader.fsm);
        *out_why = loader.why;
        return STATUS_CORRUPT;
    }
    *out_fsm = loader.fsm;
    return STATUS_OK;
}

/* Header, checksum, padding. A version that is not ours is told even where the rest is
 * unreadable. */
static bool unwrap(struct slice bytes, struct slice *out_body, uint32_t *out_version,
                   const char **out_why)
{
    if (bytes.len < SNAPSHOT_HEADER_LEN || get_u64(bytes.base, 4) != SNAPSHOT_MAGIC) {
        *out_why = "this is no snapshot";
        return false;
    }
    uint32_t version = (uint32_t)get_u64(bytes.base + 4, 4);
    if (version != SNAPSHOT_FORMAT_VERSION) {
        *out_version = version;
        return false;
    }
    uint64_t body_len = get_u64(bytes.base + 8, 8);
    size_t room = bytes.len - SNAPSHOT_HEADER_LEN;
    if (body_len > room || room - body_len > 7 || bytes.len % 8 != 0) {
        *out_why = "the snapshot's length is not the one it states";
        return false;
    }
    struct slice body = slice_from(bytes.base + SNAPSHOT_HEADER_LEN, (size_t)body_len);
    uint64_t zeros = get_u64(bytes.base + SNAPSHOT_CRC_AT + 4, 4);
    for (size_t i = body.len; i < room; i++) {
        zeros |= body.base[i];
    }
    if (zeros != 0 ||
        get_u64(bytes.base + SNAPSHOT_CRC_AT, 4) != snapshot_crc(bytes.base, body)) {
        *out_why = "the snapshot's checksum is wrong";
        return false;
    }
    *out_body = body;
    return true;
}

static uint64_t get_u64(const uint8_t *at, unsigned len)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < len; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

static void load_body(struct loader *loader)
{
    load_head(loader);
    if (loader->why != NULL) {
        return;
    }
    allocate(loader);
    load_section(loader, SNAPSHOT_SECTION_SPACES, load_space);
    load_section(loader, SNAPSHOT_SECTION_OWNERS, load_owner);
    load_section(loader, SNAPSHOT_SECTION_DEPARTURES, load_departure);
    load_section(loader, SNAPSHOT_SECTION_LEASES, load_lease);
    if (loader->why == NULL) {
        link_leases(loader);
    }
    load_section(loader, SNAPSHOT_SECTION_TOMBSTONES, load_tombstone);
    load_section(loader, SNAPSHOT_SECTION_MARKS, load_mark);
    load_section(loader, SNAPSHOT_SECTION_ORIGINS, load_origin);
    load_section(loader, SNAPSHOT_SECTION_OUTCOMES, load_outcome);
    if (loader->why == NULL && !mp_done(&loader->reader)) {
        fail(loader, "there is something behind the last record");
    }
    if (loader->why == NULL) {
        link_silence(loader);
        keep_loose(loader->fsm);
    }
}

/* Owners and namespaces were superfluous until something was put into them; those that still are
 * make the snapshot one that nobody wrote, which the invariants tell. */
static void keep_loose(struct fsm *fsm)
{
    while (list_pop(&fsm->table.loose) != NULL) {
    }
    while (list_pop(&fsm->owners.loose) != NULL) {
    }
}

static void load_section(struct loader *loader, enum snapshot_section section, load_cb load)
{
    static const uint8_t field_counts[] = {
        [SNAPSHOT_SECTION_SPACES] = 2,     [SNAPSHOT_SECTION_OWNERS] = 5,
        [SNAPSHOT_SECTION_DEPARTURES] = 5, [SNAPSHOT_SECTION_LEASES] = 11,
        [SNAPSHOT_SECTION_TOMBSTONES] = 7, [SNAPSHOT_SECTION_MARKS] = 4,
        [SNAPSHOT_SECTION_ORIGINS] = 5,    [SNAPSHOT_SECTION_OUTCOMES] = 10,
    };
    for (uint64_t i = 0; i < loader->counts[section] && loader->why == NULL; i++) {
        mp_read_array_of(&loader->reader, field_counts[section]);
        load(loader, i);
    }
}

static void fail(struct loader *loader, const char *why)
{
    if (loader->why == NULL) {
        loader->why = why;
    }
}

static bool text_fine(enum status st)
{
    return st == STATUS_OK;
}

static void load_head(struct loader *loader)
{
    struct fsm *fsm = loader->fsm;
    struct mp_reader *reader = &loader->reader;
    mp_read_array_of(reader, HEAD_FIELDS);
    fsm->index = mp_read_u64_within(reader, 0, COUNTER_MAX);
    fsm->clock_ms = mp_read_u64_within(reader, 0, CLOCK_MS_MAX);
    fsm->token = mp_read_u64_within(reader, 0, COUNTER_MAX);
    fsm->born = mp_read_bool(reader);
    struct cluster_identity identity = {0};
    struct slice id = mp_read_bin(reader);
    if (id.len == CLUSTER_ID_LEN) {
        memcpy(identity.id, id.base, CLUSTER_ID_LEN);
    } else {
        mp_fail(reader);
    }
    identity.generation = mp_read_u64(reader);
    identity.generation_random = mp_read_u64(reader);
    fsm_set_identity(fsm, &identity);
    load_settings(loader);
    fsm->lost_ms = mp_read_u64(reader);
    fsm->grace_end_ms = mp_read_u64(reader);
    fsm->forgotten_before_ms = mp_read_u64(reader);
    fsm->silent_before_ms = mp_read_u64(reader);
    fsm->table.forgotten.until_ms = mp_read_u64(reader);
    fsm->table.forgotten.token = mp_read_u64(reader);
    fsm->owners.forgotten_version = mp_read_u64(reader);
    load_counts(loader);
    struct violation violation;
    if (reader->failed || !text_fine(settings_validate(&fsm->settings, &violation))) {
        fail(loader, "the head is malformed");
    }
}

static void load_settings(struct loader *loader)
{
    struct settings *settings = &loader->fsm->settings;
    struct mp_reader *reader = &loader->reader;
    mp_read_array_of(reader, SNAPSHOT_SETTINGS_COUNT);
    settings->leases_max = mp_read_u64(reader);
    settings->leases_per_namespace_max = mp_read_u64(reader);
    settings->tombstones_max = mp_read_u64(reader);
    settings->tombstone_retention_ms = mp_read_u64(reader);
    settings->departures_max = mp_read_u64(reader);
    settings->origins_max = mp_read_u64(reader);
    settings->origin_retention_ms = mp_read_u64(reader);
    settings->removal_slice = mp_read_u64(reader);
    settings->voters_wanted = mp_read_u64(reader);
}

/* No more records than there are bytes: memory is bounded by the length of the snapshot. */
static void load_counts(struct loader *loader)
{
    mp_read_array_of(&loader->reader, SNAPSHOT_SECTION_COUNT);
    uint64_t left = mp_left(&loader->reader);
    for (size_t i = 0; i < SNAPSHOT_SECTION_COUNT; i++) {
        loader->counts[i] = mp_read_u64_within(&loader->reader, 0, left);
        left -= loader->counts[i];
    }
}

static void allocate(struct loader *loader)
{
    const uint64_t *counts = loader->counts;
    loader->spaces = calloc(counts[SNAPSHOT_SECTION_SPACES] + 1, sizeof(struct space *));
    loader->owners = calloc(counts[SNAPSHOT_SECTION_OWNERS] + 1, sizeof(struct owner *));
    loader->leases = calloc(counts[SNAPSHOT_SECTION_LEASES] + 1, sizeof(struct lease *));
    loader->origins = calloc(counts[SNAPSHOT_SECTION_ORIGINS] + 1, sizeof(struct origin *));
    CHECK(loader->spaces != NULL && loader->owners != NULL && loader->leases != NULL &&
          loader->origins != NULL);
}

static void load_space(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    struct violation violation;
    struct slice name = mp_read_bin(reader);
    uint64_t purged_ms = mp_read_u64(reader);
    if (reader->failed || !text_fine(namespace_validate(name, &violation))) {
        fail(loader, "a namespace is malformed");
        return;
    }
    if (number > 0 && slice_compare(space_name(loader->spaces[number - 1]), name) >= 0) {
        fail(loader, "the namespaces are not in order");
        return;
    }
    loader->spaces[number] = space_get(&loader->fsm->table, name);
    space_set_purged(&loader->fsm->table, loader->spaces[number], purged_ms);
}

static void load_owner(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    struct violation violation;
    struct space *space = space_at(loader);
    struct slice name = mp_read_bin(reader);
    struct owner_memory memory = {
        .set_version = mp_read_u64(reader),
    };
    memory.forgotten_version = mp_read_u64(reader);
    memory.idle_ms = mp_read_optional_u64(reader, &memory.idle);
    if (reader->failed || !text_fine(owner_validate(name, &violation))) {
        fail(loader, "an owner is malformed");
        return;
    }
    if (number > 0) {
        const struct owner *before = loader->owners[number - 1];
        int order = slice_compare(space_name(before->space), space_name(space));
        if (order > 0 || (order == 0 && slice_compare(owner_name(before), name) >= 0)) {
            fail(loader, "the owners are not in order");
            return;
        }
    }
    loader->owners[number] = owner_get(&loader->fsm->owners, space, name, 0);
    owner_restore(&loader->fsm->owners, loader->owners[number], &memory);
}

static void load_departure(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    (void)number;
    struct violation violation;
    struct owner *owner = owner_at(loader);
    struct departing departing = {.version = mp_read_u64(reader)};
    departing.token = mp_read_u64(reader);
    departing.reason = (enum end_reason)mp_read_u64_within(reader, END_REASON_RELEASED,
                                                           END_REASON_TEARDOWN);
    departing.key = mp_read_bin(reader);
    if (reader->failed || !text_fine(key_validate(departing.key, &violation))) {
        fail(loader, "a departure is malformed");
        return;
    }
    owner_restore_departure(&loader->fsm->owners, owner, &departing);
}

/* P1: the keys of a namespace ascend, so none is there twice. */
static void load_lease(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    struct violation violation;
    struct owner *owner = owner_at(loader);
    struct slice key = mp_read_bin(reader);
    struct lease_grant grant = {
        .state = (enum lease_state)mp_read_u64_within(reader, LEASE_STATE_OWN, LEASE_STATE_DEL),
    };
    grant.token = mp_read_u64_within(reader, 1, loader->fsm->token);
    grant.ttl_ms = mp_read_u64_within(reader, TTL_MS_MIN, TTL_MS_MAX);
    grant.expiry_ms = mp_read_u64(reader);
    grant.since_ms = mp_read_u64(reader);
    grant.written.index = mp_read_u64(reader);
    grant.written.place = (uint32_t)mp_read_u64_within(reader, 0, UINT32_MAX);
    grant.meta = mp_read_optional_bin(reader);
    grant.identity = mp_read_optional_bin(reader);
    if (reader->failed || !text_fine(key_validate(key, &violation)) ||
        grant.meta.len > META_LEN_MAX || grant.identity.len > IDENTITY_LEN_MAX) {
        fail(loader, "a lease is malformed");
        return;
    }
    if (number > 0) {
        const struct lease *before = loader->leases[number - 1];
        int order = slice_compare(space_name(before->space), space_name(owner->space));
        if (order > 0 || (order == 0 && slice_compare(lease_key(before), key) >= 0)) {
            fail(loader, "the leases are not in order");
            return;
        }
    }
    loader->leases[number] = lease_add(&loader->fsm->table, owner->space, key, owner, &grant);
}

static void load_tombstone(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    (void)number;
    struct violation violation;
    struct space *space = space_at(loader);
    struct slice key = mp_read_bin(reader);
    struct tombstone_end end = {.owner = mp_read_bin(reader)};
    end.state = (enum lease_state)mp_read_u64_within(reader, LEASE_STATE_OWN, LEASE_STATE_DEL);
    end.token = mp_read_u64(reader);
    end.reason = (enum end_reason)mp_read_u64_within(reader, END_REASON_RELEASED,
                                                     END_REASON_RESTORED);
    end.ended_ms = mp_read_u64(reader);
    if (reader->failed || !text_fine(key_validate(key, &violation)) ||
        !text_fine(owner_validate(end.owner, &violation))) {
        fail(loader, "a tombstone is malformed");
        return;
    }
    if (tombstone_find(space, key) != NULL) {
        fail(loader, "a key has two tombstones");
        return;
    }
    tombstone_add(&loader->fsm->table, space, key, &end);
}

static void load_mark(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    (void)number;
    struct mark_scope scope = {.space = space_at(loader)};
    if (!mp_read_lead(reader, MP_LEAD_NIL)) {
        scope.owner = owner_at(loader);
    }
    scope.upto = mp_read_u64(reader);
    scope.set_ms = mp_read_u64(reader);
    if (reader->failed || (scope.owner != NULL && scope.owner->space != scope.space)) {
        fail(loader, "a mark is malformed");
        return;
    }
    struct list *last = loader->fsm->marks.all.prev;
    if (last != &loader->fsm->marks.all &&
        CONTAINER_OF(last, struct mark, link)->upto >= scope.upto) {
        fail(loader, "the marks are not in order");
        return;
    }
    scope.remaining = count_covered(scope.space, scope.owner, scope.upto);
    if (scope.remaining == 0) {
        fail(loader, "there is nothing under a mark");
        return;
    }
    marks_set(&loader->fsm->marks, &scope);
}

static void load_origin(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    uint64_t origin_number = mp_read_u64(reader);
    uint64_t confirmed = mp_read_u64(reader);
    uint64_t heard_ms = mp_read_u64(reader);
    struct position position = {.index = mp_read_u64(reader)};
    position.place = (uint32_t)mp_read_u64_within(reader, 0, UINT32_MAX);
    if (reader->failed) {
        fail(loader, "an origin is malformed");
        return;
    }
    if (number > 0 && loader->origins[number - 1]->number >= origin_number) {
        fail(loader, "the origins are not in order");
        return;
    }
    struct origin *origin =
        origin_open(&loader->fsm->origins, origin_number, heard_ms, position);
    origin_hear(&loader->fsm->origins, origin, heard_ms, position, confirmed);
    loader->origins[number] = origin;
}

static void load_outcome(struct loader *loader, uint64_t number)
{
    struct mp_reader *reader = &loader->reader;
    (void)number;
    uint64_t origins = loader->counts[SNAPSHOT_SECTION_ORIGINS];
    uint64_t at = mp_read_u64(reader);
    struct origin_record record = {.sequence = mp_read_u64(reader)};
    record.position.index = mp_read_u64(reader);
    record.position.place = (uint32_t)mp_read_u64_within(reader, 0, UINT32_MAX);
    record.is_void = mp_read_bool(reader);
    record.ended = mp_read_bool(reader);
    record.result = mp_read_bin(reader);
    record.ns = mp_read_bin(reader);
    record.grant_count = (uint32_t)mp_read_u64_within(reader, 0, KEYS_MAX);
    record.grants = mp_read_bin(reader);
    struct result result;
    if (reader->failed || at >= origins ||
        !grants_fine(record.ns, record.grants, record.grant_count) ||
        (!record.is_void &&
         result_decode(loader->decoder, record.result, &result) != STATUS_OK)) {
        fail(loader, "an outcome is malformed");
        return;
    }
    struct origin *origin = loader->origins[at];
    uint64_t last = origin->count == 0
                        ? origin->confirmed
                        : origin_outcome_at(origin, origin->count - 1)->sequence;
    if (record.sequence <= last || origin->count >= UNCONFIRMED_MAX) {
        fail(loader, "the outcomes of an origin are not in order");
        return;
    }
    origin_keep(&loader->fsm->origins, origin, &record);
}

static bool grants_fine(struct slice ns, struct slice grants, uint64_t count)
{
    struct violation violation;
    if (count == 0) {
        return ns.len == 0 && grants.len == 0;
    }
    struct origin_grant grant;
    while (count > 0 && origin_grant_next(&grants, &grant) &&
           text_fine(key_validate(grant.key, &violation))) {
        count--;
    }
    return count == 0 && grants.len == 0 && text_fine(namespace_validate(ns, &violation));
}

/* P5: no token was given to two leases. */
static void link_leases(struct loader *loader)
{
    size_t count = loader->counts[SNAPSHOT_SECTION_LEASES];
    qsort(loader->leases, count, sizeof(struct lease *), compare_tokens);
    for (size_t i = 0; i < count; i++) {
        struct lease *lease = loader->leases[i];
        if (i > 0 && loader->leases[i - 1]->token == lease->token) {
            fail(loader, "two leases have the same token");
        }
        if (expiry_contains(&lease->owner->idle_node)) {
            fail(loader, "an idle owner has a lease");
        }
        list_remove(&lease->token_link);
        list_append(&lease->space->by_token, &lease->token_link);
        owner_link(&loader->fsm->owners, lease);
    }
}

/* Leases that belong to a mark which is set after all that are known by now. */
static uint64_t count_covered(const struct space *space, const struct owner *owner, uint64_t upto)
{
    uint64_t count = 0;
    for (const struct list *link = space->by_token.next; link != &space->by_token;
         link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, token_link);
        if (lease->token > upto) {
            break;
        }
        bool in_scope = owner == NULL ||
                        (lease->owner == owner && lease->state == LEASE_STATE_OWN);
        count += in_scope && !lease_marked(lease);
    }
    return count;
}

static void link_silence(struct loader *loader)
{
    size_t count = loader->counts[SNAPSHOT_SECTION_ORIGINS];
    qsort(loader->origins, count, sizeof(struct origin *), compare_silence);
    for (size_t i = 0; i < count; i++) {
        list_remove(&loader->origins[i]->silence);
        list_append(&loader->fsm->origins.silence, &loader->origins[i]->silence);
    }
}

static int compare_tokens(const void *a, const void *b)
{
    const struct lease *const *x = a;
    const struct lease *const *y = b;
    return (*x)->token < (*y)->token ? -1 : (*x)->token > (*y)->token ? 1 : 0;
}

static int compare_silence(const void *a, const void *b)
{
    const struct origin *const *x = a;
    const struct origin *const *y = b;
    if ((*x)->heard_index != (*y)->heard_index) {
        return (*x)->heard_index < (*y)->heard_index ? -1 : 1;
    }
    return (*x)->heard_place < (*y)->heard_place ? -1
           : (*x)->heard_place > (*y)->heard_place ? 1
                                                   : 0;
}

/* The namespace that the next field numbers. When there is none reading fails, and the result only
 * serves to go on. */
static struct space *space_at(struct loader *loader)
{
    uint64_t number = mp_read_u64(&loader->reader);
    if (number >= loader->counts[SNAPSHOT_SECTION_SPACES]) {
        mp_fail(&loader->reader);
        return NULL;
    }
    return loader->spaces[number];
}

static struct owner *owner_at(struct loader *loader)
{
    uint64_t number = mp_read_u64(&loader->reader);
    if (number >= loader->counts[SNAPSHOT_SECTION_OWNERS]) {
        mp_fail(&loader->reader);
        return NULL;
    }
    return loader->owners[number];
}
