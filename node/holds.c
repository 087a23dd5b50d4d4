/* Linear probing with counts. A slot whose count fell to 0 keeps its hash, so that chains stay
 * whole; when the last hold ends the table is emptied, and growing drops such slots. */
#include "node/holds.h"

#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"

#define CAP_FIRST 64u

/* Seeds that keep the kinds of names apart. */
enum name_kind {
    NAME_KIND_OWNER = 1,
    NAME_KIND_NS = 2,
    NAME_KIND_NS_WHOLE = 3,
    NAME_KIND_KEY = 4,
};

struct hold_slot {
    uint64_t hash; /* 0: never used */
    uint32_t count;
};

static uint64_t name_hash(enum name_kind kind, struct slice ns, struct slice name);
static void each_name(struct hold_set *set, const struct hold *hold,
                      void (*change)(struct hold_set *set, uint64_t hash));
static void set_add(struct hold_set *set, uint64_t hash);
static void set_remove(struct hold_set *set, uint64_t hash);
static bool set_has(const struct hold_set *set, uint64_t hash);
static void set_grow(struct hold_set *set);
static struct hold_slot *slot_of(const struct hold_set *set, uint64_t hash);

void holds_init(struct holds *holds)
{
    *holds = (struct holds){0};
}

void holds_deinit(struct holds *holds)
{
    free(holds->set.slots);
    *holds = (struct holds){0};
}

void hold_make(struct hold *hold, const struct op *op)
{
    static const struct slice none = {0};
    CHECK(!hold->made);
    *hold = (struct hold){
        .owner = name_hash(NAME_KIND_OWNER, op->ns, op->owner),
        .ns = name_hash(NAME_KIND_NS, op->ns, none),
        .ns_whole = op->key_count == 0 ? name_hash(NAME_KIND_NS_WHOLE, op->ns, none) : 0,
        .key = op->key_count == 0 ? 0 : name_hash(NAME_KIND_KEY, op->ns, op->keys[0].key),
        .made = true,
    };
    if (op->key_count > 1) {
        hold->more_count = op->key_count - 1;
        hold->more = calloc(hold->more_count, sizeof *hold->more);
        CHECK(hold->more != NULL);
        for (uint32_t i = 0; i < hold->more_count; i++) {
            hold->more[i] = name_hash(NAME_KIND_KEY, op->ns, op->keys[i + 1].key);
        }
    }
}

void hold_clear(struct hold *hold)
{
    free(hold->more);
    *hold = (struct hold){0};
}

void holds_add(struct holds *holds, const struct hold *hold)
{
    CHECK(hold->made);
    each_name(&holds->set, hold, set_add);
    holds->active++;
}

void holds_remove(struct holds *holds, const struct hold *hold)
{
    CHECK(hold->made && holds->active > 0);
    each_name(&holds->set, hold, set_remove);
    holds->active--;
    if (holds->active == 0) {
        holds_deinit(holds);
    }
}

bool holds_block_owner(const struct holds *holds, struct slice ns, struct slice owner)
{
    return holds->active > 0 && set_has(&holds->set, name_hash(NAME_KIND_OWNER, ns, owner));
}

bool holds_block_read(const struct holds *holds, struct slice ns, const struct key_item *keys,
                      uint32_t key_count)
{
    static const struct slice none = {0};
    if (holds->active == 0) {
        return false;
    }
    if (key_count == 0) {
        return set_has(&holds->set, name_hash(NAME_KIND_NS, ns, none));
    }
    if (set_has(&holds->set, name_hash(NAME_KIND_NS_WHOLE, ns, none))) {
        return true;
    }
    for (uint32_t i = 0; i < key_count; i++) {
        if (set_has(&holds->set, name_hash(NAME_KIND_KEY, ns, keys[i].key))) {
            return true;
        }
    }
    return false;
}

/* Never 0, which marks an unused slot. */
static uint64_t name_hash(enum name_kind kind, struct slice ns, struct slice name)
{
    uint64_t hash = hash64(hash64((uint64_t)kind, ns.base, ns.len), name.base, name.len);
    return hash == 0 ? 1 : hash;
}

static void each_name(struct hold_set *set, const struct hold *hold,
                      void (*change)(struct hold_set *set, uint64_t hash))
{
    change(set, hold->owner);
    change(set, hold->ns);
    if (hold->ns_whole != 0) {
        change(set, hold->ns_whole);
    }
    if (hold->key != 0) {
        change(set, hold->key);
    }
    for (uint32_t i = 0; i < hold->more_count; i++) {
        change(set, hold->more[i]);
    }
}

static void set_add(struct hold_set *set, uint64_t hash)
{
    if (set->used >= set->cap / 2) {
        set_grow(set);
    }
    struct hold_slot *slot = slot_of(set, hash);
    if (slot->hash == 0) {
        slot->hash = hash;
        set->used++;
    }
    slot->count++;
}

static void set_remove(struct hold_set *set, uint64_t hash)
{
    struct hold_slot *slot = slot_of(set, hash);
    CHECK(slot->hash == hash && slot->count > 0);
    slot->count--;
}

static bool set_has(const struct hold_set *set, uint64_t hash)
{
    if (set->cap == 0) {
        return false;
    }
    const struct hold_slot *slot = slot_of(set, hash);
    return slot->hash == hash && slot->count > 0;
}

/* Twice the room for what is counted; a table mostly of slots at 0 keeps its size. */
static void set_grow(struct hold_set *set)
{
    struct hold_set old = *set;
    uint32_t counted = 0;
    for (uint32_t i = 0; i < old.cap; i++) {
        counted += old.slots[i].count > 0 ? 1 : 0;
    }
    uint32_t cap = old.cap == 0 ? CAP_FIRST : old.cap;
    while (counted >= cap / 4) {
        cap *= 2;
    }
    *set = (struct hold_set){.slots = calloc(cap, sizeof *set->slots), .cap = cap};
    CHECK(set->slots != NULL);
    for (uint32_t i = 0; i < old.cap; i++) {
        if (old.slots[i].count > 0) {
            *slot_of(set, old.slots[i].hash) = old.slots[i];
            set->used++;
        }
    }
    free(old.slots);
}

/* The slot of the hash, or the unused one where it would go. At most half of the slots are used. */
static struct hold_slot *slot_of(const struct hold_set *set, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (set->cap - 1);
    while (set->slots[at].hash != 0 && set->slots[at].hash != hash) {
        at = (at + 1) & (set->cap - 1);
    }
    return &set->slots[at];
}
