/* Writing a snapshot: one walk per section, every record packed straight into the buffer.
 *
 * Records refer to owners and namespaces by their number in the walk. The number is handed out
 * while walking and looked up through a sorted table of addresses, so that nothing is written into
 * the state (it is const here) and no name is compared. */
#include "fsm/snapshot.h"

#include <stdlib.h>

#include "fsm/mp_codec.h"
#include "fsm/snapshot_format.h"

/* More than any record needs beside its bytes of text: some ten numbers of nine bytes, headers. */
#define RECORD_LEN_MAX 160u
#define HEAD_LEN_MAX 512u

/* Numbers of records by address. */
struct numbered {
    const void *record;
    uint64_t number;
};

struct writer {
    const struct fsm *fsm;
    struct buf *out;
    struct numbered *spaces; /* owned, sorted by address */
    struct numbered *owners; /* likewise */
    size_t space_count;
    size_t owner_count;
};

static void number_records(struct writer *writer);
static uint64_t number_of(const struct numbered *table, size_t count, const void *record);
static int compare_addresses(const void *a, const void *b);
static void write_head(struct writer *writer);
static void write_settings(struct writer *writer);
static void write_spaces(struct writer *writer);
static void write_owners(struct writer *writer);
static void write_departures(struct writer *writer);
static void write_leases(struct writer *writer);
static void write_lease(struct writer *writer, const struct lease *lease);
static void write_tombstones(struct writer *writer);
static void write_marks(struct writer *writer);
static void write_origins(struct writer *writer);
static void write_outcomes(struct writer *writer);
static void put_u32(uint8_t *at, uint32_t value);

void snapshot_encode(const struct fsm *fsm, struct buf *out)
{
    struct writer writer = {.fsm = fsm, .out = out};
    size_t start = out->len;
    (void)buf_reserve(out, snapshot_len_estimate(fsm)); /* grow once */
    buf_append_zeros(out, SNAPSHOT_HEADER_LEN);
    number_records(&writer);
    write_head(&writer);
    write_spaces(&writer);
    write_owners(&writer);
    write_departures(&writer);
    write_leases(&writer);
    write_tombstones(&writer);
    write_marks(&writer);
    write_origins(&writer);
    write_outcomes(&writer);
    free(writer.spaces);
    free(writer.owners);

    size_t body_len = out->len - start - SNAPSHOT_HEADER_LEN;
    buf_append_zeros(out, (8 - body_len % 8) % 8);
    CHECK(!buf_overflown(out));
    uint8_t *header = out->base + start;
    put_u32(header, SNAPSHOT_MAGIC);
    put_u32(header + 4, SNAPSHOT_FORMAT_VERSION);
    put_u32(header + 8, (uint32_t)body_len);
    put_u32(header + 12, (uint32_t)((uint64_t)body_len >> 32));
    put_u32(header + SNAPSHOT_CRC_AT,
            snapshot_crc(header, slice_from(header + SNAPSHOT_HEADER_LEN, body_len)));
}

/* Every byte of text is counted by memory_len, which also counts structures that are larger than
 * what is written of them; departures and marks repeat nothing but numbers. */
size_t snapshot_len_estimate(const struct fsm *fsm)
{
    uint64_t records = fsm->table.spaces.count + fsm->owners.owner_count +
                       fsm->owners.departure_count + lease_table_count(&fsm->table) +
                       fsm->table.tombstone_count + fsm->marks.count +
                       fsm->origins.origins.count + fsm->origins.outcome_count;
    uint64_t structures = fsm->table.spaces.count * sizeof(struct space) +
                          fsm->owners.owner_count * sizeof(struct owner) +
                          fsm->owners.departure_count * sizeof(struct departed) +
                          lease_table_count(&fsm->table) * sizeof(struct lease) +
                          fsm->table.tombstone_count * sizeof(struct tombstone) +
                          fsm->origins.origins.count * sizeof(struct origin) +
                          fsm->origins.outcome_count * sizeof(struct origin_outcome);
    uint64_t memory = fsm->table.memory_len + fsm->owners.memory_len + fsm->origins.memory_len;
    CHECK(memory >= structures);
    return SNAPSHOT_HEADER_LEN + HEAD_LEN_MAX + records * RECORD_LEN_MAX + (memory - structures);
}

static void number_records(struct writer *writer)
{
    const struct lease_table *table = &writer->fsm->table;
    size_t owners = writer->fsm->owners.owner_count;
    writer->spaces = calloc(table->spaces.count + 1, sizeof *writer->spaces);
    writer->owners = calloc(owners + 1, sizeof *writer->owners);
    CHECK(writer->spaces != NULL && writer->owners != NULL);
    for (struct tree_node *at = tree_first(&table->spaces); at != NULL; at = tree_next(at)) {
        struct space *space = CONTAINER_OF(at, struct space, node);
        writer->spaces[writer->space_count] =
            (struct numbered){.record = space, .number = writer->space_count};
        writer->space_count++;
        for (struct tree_node *node = tree_first(&space->owners); node != NULL;
             node = tree_next(node)) {
            CHECK(writer->owner_count < owners);
            writer->owners[writer->owner_count] =
                (struct numbered){.record = CONTAINER_OF(node, struct owner, node),
                                  .number = writer->owner_count};
            writer->owner_count++;
        }
    }
    qsort(writer->spaces, writer->space_count, sizeof *writer->spaces, compare_addresses);
    qsort(writer->owners, writer->owner_count, sizeof *writer->owners, compare_addresses);
}

static uint64_t number_of(const struct numbered *table, size_t count, const void *record)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)table[middle].record < (uintptr_t)record) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    CHECK(low < count && table[low].record == record);
    return table[low].number;
}

static int compare_addresses(const void *a, const void *b)
{
    const struct numbered *x = a;
    const struct numbered *y = b;
    uintptr_t left = (uintptr_t)x->record;
    uintptr_t right = (uintptr_t)y->record;
    return left < right ? -1 : left > right ? 1 : 0;
}

static void write_head(struct writer *writer)
{
    const struct fsm *fsm = writer->fsm;
    struct buf *out = writer->out;
    mp_write_array(out, 16);
    mp_write_u64(out, fsm->index);
    mp_write_u64(out, fsm->clock_ms);
    mp_write_u64(out, fsm->token);
    mp_write_bool(out, fsm->born);
    mp_write_bin(out, slice_from(fsm->identity.id, CLUSTER_ID_LEN));
    mp_write_u64(out, fsm->identity.generation);
    mp_write_u64(out, fsm->identity.generation_random);
    write_settings(writer);
    mp_write_u64(out, fsm->lost_ms);
    mp_write_u64(out, fsm->grace_end_ms);
    mp_write_u64(out, fsm->forgotten_before_ms);
    mp_write_u64(out, fsm->silent_before_ms);
    mp_write_u64(out, fsm->table.forgotten.until_ms);
    mp_write_u64(out, fsm->table.forgotten.token);
    mp_write_u64(out, fsm->owners.forgotten_version);
    const uint64_t counts[SNAPSHOT_SECTION_COUNT] = {
        [SNAPSHOT_SECTION_SPACES] = fsm->table.spaces.count,
        [SNAPSHOT_SECTION_OWNERS] = fsm->owners.owner_count,
        [SNAPSHOT_SECTION_DEPARTURES] = fsm->owners.departure_count,
        [SNAPSHOT_SECTION_LEASES] = lease_table_count(&fsm->table),
        [SNAPSHOT_SECTION_TOMBSTONES] = fsm->table.tombstone_count,
        [SNAPSHOT_SECTION_MARKS] = fsm->marks.count,
        [SNAPSHOT_SECTION_ORIGINS] = fsm->origins.origins.count,
        [SNAPSHOT_SECTION_OUTCOMES] = fsm->origins.outcome_count,
    };
    mp_write_array(out, SNAPSHOT_SECTION_COUNT);
    for (size_t i = 0; i < SNAPSHOT_SECTION_COUNT; i++) {
        mp_write_u64(out, counts[i]);
    }
}

static void write_settings(struct writer *writer)
{
    const struct settings *settings = &writer->fsm->settings;
    const uint64_t values[SNAPSHOT_SETTINGS_COUNT] = {
        settings->leases_max,     settings->leases_per_namespace_max,
        settings->tombstones_max, settings->tombstone_retention_ms,
        settings->departures_max, settings->origins_max,
        settings->origin_retention_ms, settings->removal_slice,
        settings->voters_wanted,
    };
    mp_write_array(writer->out, SNAPSHOT_SETTINGS_COUNT);
    for (size_t i = 0; i < SNAPSHOT_SETTINGS_COUNT; i++) {
        mp_write_u64(writer->out, values[i]);
    }
}

static void write_spaces(struct writer *writer)
{
    struct buf *out = writer->out;
    for (struct tree_node *at = tree_first(&writer->fsm->table.spaces); at != NULL;
         at = tree_next(at)) {
        const struct space *space = CONTAINER_OF(at, struct space, node);
        mp_write_array(out, 2);
        mp_write_bin(out, space_name(space));
        mp_write_u64(out, space->purged_ms);
    }
}

static void write_owners(struct writer *writer)
{
    struct buf *out = writer->out;
    uint64_t space_number = 0;
    for (struct tree_node *at = tree_first(&writer->fsm->table.spaces); at != NULL;
         at = tree_next(at), space_number++) {
        const struct space *space = CONTAINER_OF(at, struct space, node);
        for (struct tree_node *node = tree_first(&space->owners); node != NULL;
             node = tree_next(node)) {
            const struct owner *owner = CONTAINER_OF(node, struct owner, node);
            mp_write_array(out, 5);
            mp_write_u64(out, space_number);
            mp_write_bin(out, owner_name(owner));
            mp_write_u64(out, owner->set_version);
            mp_write_u64(out, owner->forgotten_version);
            mp_write_optional_u64(out, expiry_contains(&owner->idle_node), owner->idle_ms);
        }
    }
}

static void write_departures(struct writer *writer)
{
    struct buf *out = writer->out;
    const struct list *head = &writer->fsm->owners.departures;
    for (const struct list *link = head->next; link != head; link = link->next) {
        const struct departed *departed = CONTAINER_OF_CONST(link, struct departed, age_link);
        mp_write_array(out, 5);
        mp_write_u64(out, number_of(writer->owners, writer->owner_count, departed->owner));
        mp_write_u64(out, departed->version);
        mp_write_u64(out, departed->token);
        mp_write_u64(out, (uint64_t)departed->reason);
        mp_write_bin(out, departed_key(departed));
    }
}

static void write_leases(struct writer *writer)
{
    for (struct tree_node *at = tree_first(&writer->fsm->table.spaces); at != NULL;
         at = tree_next(at)) {
        const struct space *space = CONTAINER_OF(at, struct space, node);
        for (struct tree_node *node = tree_first(&space->leases); node != NULL;
             node = tree_next(node)) {
            write_lease(writer, CONTAINER_OF(node, struct lease, node));
        }
    }
}

static void write_lease(struct writer *writer, const struct lease *lease)
{
    struct buf *out = writer->out;
    mp_write_array(out, 11);
    mp_write_u64(out, number_of(writer->owners, writer->owner_count, lease->owner));
    mp_write_bin(out, lease_key(lease));
    mp_write_u64(out, (uint64_t)lease->state);
    mp_write_u64(out, lease->token);
    mp_write_u64(out, lease->ttl_ms);
    mp_write_u64(out, lease->expiry_ms);
    mp_write_u64(out, lease->since_ms);
    mp_write_u64(out, lease->written_index);
    mp_write_u64(out, lease->written_place);
    mp_write_optional_bin(out, lease_meta(lease));
    mp_write_optional_bin(out, lease_identity(lease));
}

static void write_tombstones(struct writer *writer)
{
    struct buf *out = writer->out;
    uint64_t space_number = 0;
    for (struct tree_node *at = tree_first(&writer->fsm->table.spaces); at != NULL;
         at = tree_next(at), space_number++) {
        const struct space *space = CONTAINER_OF(at, struct space, node);
        for (struct tree_node *node = tree_first(&space->tombstones); node != NULL;
             node = tree_next(node)) {
            const struct tombstone *tombstone = CONTAINER_OF(node, struct tombstone, node);
            mp_write_array(out, 7);
            mp_write_u64(out, space_number);
            mp_write_bin(out, tombstone_key(tombstone));
            mp_write_bin(out, tombstone_owner(tombstone));
            mp_write_u64(out, (uint64_t)tombstone->state);
            mp_write_u64(out, tombstone->token);
            mp_write_u64(out, (uint64_t)tombstone->reason);
            mp_write_u64(out, tombstone->ended_ms);
        }
    }
}

static void write_marks(struct writer *writer)
{
    struct buf *out = writer->out;
    const struct list *head = &writer->fsm->marks.all;
    for (const struct list *link = head->next; link != head; link = link->next) {
        const struct mark *mark = CONTAINER_OF_CONST(link, struct mark, link);
        mp_write_array(out, 4);
        mp_write_u64(out, number_of(writer->spaces, writer->space_count, mark->space));
        bool has_owner = mark->owner != NULL;
        mp_write_optional_u64(
            out, has_owner,
            has_owner ? number_of(writer->owners, writer->owner_count, mark->owner) : 0);
        mp_write_u64(out, mark->upto);
        mp_write_u64(out, mark->set_ms);
    }
}

static void write_origins(struct writer *writer)
{
    struct buf *out = writer->out;
    for (struct tree_node *node = tree_first(&writer->fsm->origins.origins); node != NULL;
         node = tree_next(node)) {
        const struct origin *origin = CONTAINER_OF(node, struct origin, node);
        mp_write_array(out, 5);
        mp_write_u64(out, origin->number);
        mp_write_u64(out, origin->confirmed);
        mp_write_u64(out, origin->heard_ms);
        mp_write_u64(out, origin->heard_index);
        mp_write_u64(out, origin->heard_place);
    }
}

static void write_outcomes(struct writer *writer)
{
    struct buf *out = writer->out;
    uint64_t origin_number = 0;
    for (struct tree_node *node = tree_first(&writer->fsm->origins.origins); node != NULL;
         node = tree_next(node), origin_number++) {
        const struct origin *origin = CONTAINER_OF(node, struct origin, node);
        for (size_t i = 0; i < origin->count; i++) {
            const struct origin_outcome *outcome = origin_outcome_at(origin, i);
            mp_write_array(out, 10);
            mp_write_u64(out, origin_number);
            mp_write_u64(out, outcome->sequence);
            mp_write_u64(out, outcome->index);
            mp_write_u64(out, outcome->place);
            mp_write_bool(out, outcome->is_void);
            mp_write_bool(out, outcome->ended);
            mp_write_bin(out, origin_outcome_result(outcome));
            mp_write_bin(out, origin_outcome_ns(outcome));
            mp_write_u64(out, outcome->grant_count);
            mp_write_bin(out, origin_outcome_grants(outcome));
        }
    }
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}
