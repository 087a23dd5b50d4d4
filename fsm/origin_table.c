/* Outcomes of an origin stand in a ring sorted by sequence. Sequences arrive nearly in order and
 * are confirmed in order, so that keeping one and dropping one is a step at either end; finding a
 * repeat is a binary search. */
#include "fsm/origin_table.h"

#include <stdlib.h>

#include "fsm/base/buf.h"
#include "fsm/digest.h"

#define OUTCOMES_CAP_FIRST 16u /* a power of two, as every capacity */
#define GRANT_HEAD_LEN 10u     /* token 8, length of the key 2 */

static void key_encode(uint64_t number, uint8_t out_key[ORIGIN_KEY_LEN]);
static void set_at(struct origin *origin, size_t idx, struct origin_outcome *outcome);
static size_t find_place(const struct origin *origin, uint64_t sequence);
static void make_room(struct origin *origin);
static void drop_first(struct origin_table *table, struct origin *origin);
static void refresh_digest(struct origin_table *table, struct origin *origin);
static size_t outcome_len(const struct origin_outcome *outcome);

void origin_table_init(struct origin_table *table)
{
    *table = (struct origin_table){0};
    tree_init(&table->origins);
    list_init(&table->silence);
}

void origin_table_deinit(struct origin_table *table)
{
    origin_table_forget_all(table);
}

struct origin *origin_find(const struct origin_table *table, uint64_t number)
{
    uint8_t key[ORIGIN_KEY_LEN];
    key_encode(number, key);
    struct tree_node *node = tree_find(&table->origins, slice_from(key, sizeof key));
    return node == NULL ? NULL : CONTAINER_OF(node, struct origin, node);
}

struct origin *origin_open(struct origin_table *table, uint64_t number, uint64_t now_ms,
                           struct position position)
{
    struct origin *origin = calloc(1, sizeof *origin);
    CHECK(origin != NULL);
    origin->number = number;
    key_encode(number, origin->key);
    list_init(&origin->silence);
    tree_insert(&table->origins, &origin->node, slice_from(origin->key, ORIGIN_KEY_LEN));
    table->memory_len += sizeof *origin;
    origin->digest = origin_digest(origin);
    table->origin_digest += origin->digest;
    origin_hear(table, origin, now_ms, position, 0);
    return origin;
}

void origin_hear(struct origin_table *table, struct origin *origin, uint64_t now_ms,
                 struct position position, uint64_t confirmed)
{
    if (confirmed > origin->confirmed) {
        while (origin->count > 0 && origin_outcome_at(origin, 0)->sequence <= confirmed) {
            drop_first(table, origin);
        }
        origin->confirmed = confirmed;
    }
    origin->heard_ms = now_ms;
    origin->heard_index = position.index;
    origin->heard_place = position.place;
    list_remove(&origin->silence);
    list_append(&table->silence, &origin->silence);
    refresh_digest(table, origin);
}

void origin_forget(struct origin_table *table, struct origin *origin)
{
    while (origin->count > 0) {
        drop_first(table, origin);
    }
    table->origin_digest -= origin->digest;
    table->memory_len -= sizeof *origin;
    tree_remove(&table->origins, &origin->node);
    list_remove(&origin->silence);
    free(origin->outcomes);
    free(origin);
}

void origin_table_forget_all(struct origin_table *table)
{
    struct origin *origin;
    while ((origin = origin_table_longest_silent(table)) != NULL) {
        origin_forget(table, origin);
    }
}

struct origin *origin_table_longest_silent(const struct origin_table *table)
{
    struct list *link = list_first(&table->silence);
    return link == NULL ? NULL : CONTAINER_OF(link, struct origin, silence);
}

bool origin_full(const struct origin *origin)
{
    return origin->count >= UNCONFIRMED_MAX || origin->results_len >= UNCONFIRMED_LEN_MAX;
}

struct origin_outcome *origin_outcome_find(const struct origin *origin, uint64_t sequence)
{
    size_t idx = find_place(origin, sequence);
    if (idx == origin->count) {
        return NULL;
    }
    struct origin_outcome *outcome = origin_outcome_at(origin, idx);
    return outcome->sequence == sequence ? outcome : NULL;
}

void origin_keep(struct origin_table *table, struct origin *origin,
                 const struct origin_record *record)
{
    CHECK(record->sequence > origin->confirmed && origin->count < UNCONFIRMED_MAX);
    size_t len = record->result.len + record->ns.len + record->grants.len;
    struct origin_outcome *outcome = malloc(sizeof *outcome + len);
    CHECK(outcome != NULL);
    *outcome = (struct origin_outcome){
        .sequence = record->sequence,
        .index = record->position.index,
        .place = record->position.place,
        .is_void = record->is_void,
        .ended = record->ended,
        .grant_count = record->grant_count,
        .result_len = record->result.len,
        .ns_len = record->ns.len,
        .grants_len = record->grants.len,
    };
    const struct slice parts[] = {record->result, record->ns, record->grants};
    uint8_t *at = outcome->bytes;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].len > 0) {
            memcpy(at, parts[i].base, parts[i].len);
            at += parts[i].len;
        }
    }
    outcome->digest = origin_outcome_digest(origin, outcome);

    make_room(origin);
    size_t idx = find_place(origin, record->sequence);
    CHECK(idx == origin->count || origin_outcome_at(origin, idx)->sequence != record->sequence);
    origin->count++;
    for (size_t i = origin->count - 1; i > idx; i--) {
        set_at(origin, i, origin_outcome_at(origin, i - 1));
    }
    set_at(origin, idx, outcome);
    origin->results_len += outcome->result_len;
    table->outcome_count++;
    table->outcome_digest += outcome->digest;
    table->memory_len += outcome_len(outcome);
}

void origin_outcome_settled(struct origin_table *table, struct origin *origin,
                            struct origin_outcome *outcome, bool ended)
{
    table->outcome_digest -= outcome->digest;
    table->memory_len -= outcome_len(outcome);
    outcome->ended = outcome->ended || ended;
    outcome->grant_count = 0;
    outcome->grants_len = 0;
    outcome->ns_len = 0;
    outcome->digest = origin_outcome_digest(origin, outcome);
    table->outcome_digest += outcome->digest;
    table->memory_len += outcome_len(outcome);
}

struct origin_outcome *origin_outcome_at(const struct origin *origin, size_t idx)
{
    CHECK(idx < origin->count);
    return origin->outcomes[(origin->first + idx) & (origin->cap - 1)];
}

void origin_grant_encode(const struct origin_grant *grant, struct buf *out)
{
    CHECK(grant->key.len >= 1 && grant->key.len <= KEY_LEN_MAX);
    buf_append_u64(out, grant->token);
    buf_append_u16(out, (uint16_t)grant->key.len);
    buf_append(out, grant->key.base, grant->key.len);
}

bool origin_grant_next(struct slice *rest, struct origin_grant *out_grant)
{
    if (rest->len < GRANT_HEAD_LEN) {
        return false;
    }
    uint64_t token = 0;
    for (unsigned i = 0; i < 8; i++) {
        token |= (uint64_t)rest->base[i] << (8 * i);
    }
    size_t key_len = (size_t)rest->base[8] | (size_t)rest->base[9] << 8;
    if (key_len == 0 || key_len > KEY_LEN_MAX || key_len > rest->len - GRANT_HEAD_LEN) {
        return false;
    }
    *out_grant = (struct origin_grant){
        .token = token,
        .key = slice_from(rest->base + GRANT_HEAD_LEN, key_len),
    };
    *rest = slice_from(rest->base + GRANT_HEAD_LEN + key_len,
                       rest->len - GRANT_HEAD_LEN - key_len);
    return true;
}

uint64_t origin_digest(const struct origin *origin)
{
    uint64_t numbers[] = {origin->number, origin->confirmed, origin->heard_ms,
                          origin->heard_index, origin->heard_place};
    return digest_numbers(DIGEST_SEED_ORIGIN, numbers, sizeof numbers / sizeof numbers[0]);
}

uint64_t origin_outcome_digest(const struct origin *origin, const struct origin_outcome *outcome)
{
    size_t len = outcome->result_len + outcome->ns_len + outcome->grants_len;
    uint64_t digest = digest_slice(DIGEST_SEED_OUTCOME, slice_from(outcome->bytes, len));
    uint64_t numbers[] = {origin->number,      outcome->sequence,   outcome->index,
                          outcome->place,      outcome->is_void,    outcome->ended,
                          outcome->result_len, outcome->grants_len, outcome->grant_count};
    return digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
}

/* Big-endian, so that the order of keys is the order of numbers. */
static void key_encode(uint64_t number, uint8_t out_key[ORIGIN_KEY_LEN])
{
    for (unsigned i = 0; i < ORIGIN_KEY_LEN; i++) {
        out_key[i] = (uint8_t)(number >> (8 * (ORIGIN_KEY_LEN - 1 - i)));
    }
}

static void set_at(struct origin *origin, size_t idx, struct origin_outcome *outcome)
{
    origin->outcomes[(origin->first + idx) & (origin->cap - 1)] = outcome;
}

/* Where the sequence is or would be: the first idx whose sequence is not smaller. */
static size_t find_place(const struct origin *origin, uint64_t sequence)
{
    size_t low = 0;
    size_t high = origin->count;
    if (high == 0 || origin_outcome_at(origin, high - 1)->sequence < sequence) {
        return high;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (origin_outcome_at(origin, middle)->sequence < sequence) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* For one more outcome. */
static void make_room(struct origin *origin)
{
    if (origin->count < origin->cap) {
        return;
    }
    size_t cap = origin->cap == 0 ? OUTCOMES_CAP_FIRST : origin->cap * 2;
    struct origin_outcome **outcomes = malloc(cap * sizeof(struct origin_outcome *));
    CHECK(outcomes != NULL);
    for (size_t i = 0; i < origin->count; i++) {
        outcomes[i] = origin_outcome_at(origin, i);
    }
    free(origin->outcomes);
    origin->outcomes = outcomes;
    origin->first = 0;
    origin->cap = cap;
}

static void drop_first(struct origin_table *table, struct origin *origin)
{
    struct origin_outcome *outcome = origin_outcome_at(origin, 0);
    origin->first = (origin->first + 1) & (origin->cap - 1);
    origin->count--;
    origin->results_len -= outcome->result_len;
    table->outcome_count--;
    table->outcome_digest -= outcome->digest;
    table->memory_len -= outcome_len(outcome);
    free(outcome);
}

static void refresh_digest(struct origin_table *table, struct origin *origin)
{
    table->origin_digest -= origin->digest;
    origin->digest = origin_digest(origin);
    table->origin_digest += origin->digest;
}

static size_t outcome_len(const struct origin_outcome *outcome)
{
    return sizeof *outcome + outcome->result_len + outcome->ns_len + outcome->grants_len;
}
