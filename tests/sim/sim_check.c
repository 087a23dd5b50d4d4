/* History per key: a list of changes in the order of the log. */
#include "tests/sim/sim_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"
#include "fsm/invariants.h"

#define OWNER_LEN 32u
#define INVARIANTS_EVERY 256u

struct past {
    enum change_kind kind;
    uint64_t index;
    uint32_t place;
    uint64_t token;
    enum lease_state state;
    bool held; /* afterwards */
    char owner[OWNER_LEN];
};

struct key_history {
    struct past *items; /* owned */
    size_t count;
    size_t cap;
    uint64_t token_max;
    uint64_t belief_token;
    uint64_t belief_until_ns;
};

/* Of each index: what the first node that applied it said. */
struct entry_said {
    uint64_t digest;
    uint64_t changes;
};

struct read_said {
    unsigned key;
    uint64_t index;
    bool held;
    uint64_t token;
    char owner[OWNER_LEN];
};

struct sim_check {
    struct key_history keys[SIM_KEYS_MAX];
    struct entry_said *entries; /* owned; by index */
    size_t entry_cap;
    uint64_t highest; /* applied by any node */
    uint64_t floor;   /* highest index that an answered call was true of */
    struct read_said *reads; /* owned */
    size_t read_count;
    size_t read_cap;
};

static void remember(struct sim *sim, const struct change *change);
static void *grown(void *array, size_t *cap, size_t count, size_t size);
static uint64_t hash_changes(const struct changes *changes);
static void copy_text(char *out, struct slice text);
static void check_read(struct sim *sim, const struct read_said *read);

void sim_check_create(struct sim *sim)
{
    sim->check = calloc(1, sizeof *sim->check);
    CHECK(sim->check != NULL);
}

void sim_check_destroy(struct sim *sim)
{
    for (unsigned i = 0; i < SIM_KEYS_MAX; i++) {
        free(sim->check->keys[i].items);
    }
    free(sim->check->entries);
    free(sim->check->reads);
    free(sim->check);
}

void sim_check_applied(struct sim *sim, unsigned node, uint64_t index,
                       const struct changes *changes)
{
    struct sim_check *check = sim->check;
    const struct fsm *fsm = replica_fsm(sim->nodes[node].replica);
    if (changes == NULL) {
        index = fsm_index(fsm);
    }
    check->entries = grown(check->entries, &check->entry_cap, index, sizeof *check->entries);
    struct entry_said *said = &check->entries[index];
    uint64_t digest = fsm_digest(fsm);
    if (said->digest == 0) {
        said->digest = digest;
        said->changes = changes == NULL ? 0 : hash_changes(changes);
        for (uint32_t i = 0; changes != NULL && i < changes_count(changes); i++) {
            struct change change = changes_get(changes, i);
            remember(sim, &change);
        }
    } else if (said->digest != digest) {
        sim_fail(sim, "P10: node %u differs at index %llu", node, (unsigned long long)index);
    } else if (changes != NULL && said->changes != hash_changes(changes)) {
        sim_fail(sim, "P10: node %u tells other changes of index %llu", node,
                 (unsigned long long)index);
    }
    check->highest = index > check->highest ? index : check->highest;
    if (index % INVARIANTS_EVERY == 0 || changes == NULL) {
        const char *broken = invariants_check(fsm);
        if (broken != NULL) {
            sim_fail(sim, "P1: node %u at index %llu: %s", node, (unsigned long long)index, broken);
        }
    }
    sim_note(sim, "applied", index, digest);
}

uint64_t sim_check_floor(const struct sim *sim)
{
    return sim->check->floor;
}

void sim_check_outcome(struct sim *sim, unsigned key, const char *owner,
                       const struct keyed_outcome *said, uint64_t floor)
{
    struct sim_check *check = sim->check;
    const struct outcome *outcome = &said->outcome;
    uint64_t index = said->position.index;
    if (outcome->kind == OUTCOME_KIND_UNAVAILABLE || outcome->kind == OUTCOME_KIND_UNKNOWN) {
        return;
    }
    if (index < floor) {
        sim_fail(sim, "P6: a write of k%u is true of %llu, before %llu that was answered", key,
                 (unsigned long long)index, (unsigned long long)floor);
    }
    check->floor = index > check->floor ? index : check->floor;
    bool granted = outcome->kind == OUTCOME_KIND_GRANTED ||
                   outcome->kind == OUTCOME_KIND_REESTABLISHED;
    if (!granted) {
        return;
    }
    const struct key_history *history = &check->keys[key];
    for (size_t i = history->count; i > 0; i--) {
        const struct past *past = &history->items[i - 1];
        if (past->index == index && past->place == said->position.place) {
            if (past->token != outcome->token || strcmp(past->owner, owner) != 0) {
                sim_fail(sim, "P7: k%u was granted to %s with %llu, the log says %s with %llu", key,
                         owner, (unsigned long long)outcome->token, past->owner,
                         (unsigned long long)past->token);
            }
            return;
        }
    }
    /* A claim destroy of one's own marker is granted and changes no holder. */
    if (!outcome->held_before) {
        sim_fail(sim, "P11: the grant of k%u to %s at %llu is not in the log", key, owner,
                 (unsigned long long)index);
    }
}

void sim_check_belief(struct sim *sim, unsigned key, uint64_t token, uint64_t until_ns)
{
    struct key_history *history = &sim->check->keys[key];
    if (token == 0 || token >= history->belief_token) {
        history->belief_token = token;
        history->belief_until_ns = until_ns;
    }
}

void sim_check_read(struct sim *sim, unsigned key, const struct proto_reply *reply, uint64_t floor)
{
    struct sim_check *check = sim->check;
    if (reply->position.index < floor) {
        sim_fail(sim, "P6: a read of k%u is true of %llu, before %llu that was answered", key,
                 (unsigned long long)reply->position.index, (unsigned long long)floor);
    }
    check->floor = reply->position.index > check->floor ? reply->position.index : check->floor;
    check->reads = grown(check->reads, &check->read_cap, check->read_count,
                         sizeof *check->reads);
    struct read_said *read = &check->reads[check->read_count++];
    const struct lease_view *view = &reply->leases[0];
    *read = (struct read_said){
        .key = key,
        .index = reply->position.index,
        .held = view->key.base != NULL,
        .token = view->token,
    };
    if (read->held) {
        copy_text(read->owner, view->owner);
    }
}

void sim_check_end(struct sim *sim)
{
    struct sim_check *check = sim->check;
    for (size_t i = 0; i < check->read_count; i++) {
        check_read(sim, &check->reads[i]);
    }
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        const struct sim_node *node = &sim->nodes[i];
        bool has_log = node->view.role == REPLICA_MEMBER_ROLE_VOTER ||
                       node->view.role == REPLICA_MEMBER_ROLE_STANDBY;
        if (!has_log) {
            continue;
        }
        const struct fsm *fsm = replica_fsm(node->replica);
        const char *broken = invariants_check(fsm);
        if (broken != NULL) {
            sim_fail(sim, "P1: node %u: %s", i, broken);
        }
        if (fsm_index(fsm) != check->highest) {
            sim_fail(sim, "node %u came to rest at %llu, another one at %llu", i,
                     (unsigned long long)fsm_index(fsm), (unsigned long long)check->highest);
        }
    }
}

uint64_t sim_check_entries(const struct sim *sim)
{
    return sim->check->highest;
}

unsigned sim_key_of(struct slice key)
{
    unsigned number = 0;
    if (key.len < 2 || key.len > 4 || key.base[0] != 'k') {
        return SIM_KEYS_MAX;
    }
    for (size_t i = 1; i < key.len; i++) {
        number = number * 10 + (unsigned)(key.base[i] - '0');
    }
    return number < SIM_KEYS_MAX ? number : SIM_KEYS_MAX;
}

/* One change of the log; P2 and P5 are promises about what may follow what. */
static void remember(struct sim *sim, const struct change *change)
{
    unsigned key = sim_key_of(change->key);
    if (key == SIM_KEYS_MAX) {
        return;
    }
    struct key_history *history = &sim->check->keys[key];
    const struct past *last = history->count == 0 ? NULL : &history->items[history->count - 1];
    bool grant = change->kind == CHANGE_KIND_GRANTED || change->kind == CHANGE_KIND_TRANSFERRED ||
                 change->kind == CHANGE_KIND_REGRANTED ||
                 change->kind == CHANGE_KIND_REESTABLISHED || change->kind == CHANGE_KIND_TEARDOWN;
    if (grant && last != NULL && last->held && last->state == LEASE_STATE_DEL) {
        sim_fail(sim, "P2: k%u granted at %llu while its teardown runs", key,
                 (unsigned long long)change->position.index);
    }
    if (grant && change->token <= history->token_max) {
        sim_fail(sim, "P5: k%u has token %llu at %llu, and had %llu before", key,
                 (unsigned long long)change->token, (unsigned long long)change->position.index,
                 (unsigned long long)history->token_max);
    }
    if (change->kind == CHANGE_KIND_EXPIRED && change->token == history->belief_token &&
        sim->clock.now_ns < history->belief_until_ns) {
        sim_fail(sim, "P3: k%u expired at %llu, %llu us before its holder gives it up", key,
                 (unsigned long long)change->position.index,
                 (unsigned long long)(history->belief_until_ns - sim->clock.now_ns) / 1000);
    }
    history->token_max = grant ? change->token : history->token_max;
    history->items = grown(history->items, &history->cap, history->count, sizeof *history->items);
    struct past *past = &history->items[history->count++];
    *past = (struct past){
        .kind = change->kind,
        .index = change->position.index,
        .place = change->position.place,
        .token = change->token,
        .state = change->state,
        .held = grant,
    };
    copy_text(past->owner, change->owner);
}

/* Room for an element with the number `count`; new memory is zero. */
static void *grown(void *array, size_t *cap, size_t count, size_t size)
{
    if (count < *cap) {
        return array;
    }
    size_t larger = *cap == 0 ? 1024 : *cap;
    while (larger <= count) {
        larger *= 2;
    }
    uint8_t *memory = realloc(array, larger * size);
    CHECK(memory != NULL);
    memset(memory + *cap * size, 0, (larger - *cap) * size);
    *cap = larger;
    return memory;
}

static uint64_t hash_changes(const struct changes *changes)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < changes_count(changes); i++) {
        struct change change = changes_get(changes, i);
        hash = hash64(hash + (uint64_t)change.kind, change.key.base, change.key.len);
        hash = hash64(hash + change.token, change.owner.base, change.owner.len);
    }
    return hash;
}

static void copy_text(char *out, struct slice text)
{
    size_t len = text.len < OWNER_LEN - 1 ? text.len : OWNER_LEN - 1;
    if (len > 0) {
        memcpy(out, text.base, len);
    }
    out[len] = '\0';
}

/* What the history says at that index. A lease may be absent by the clock before an entry removes
 * it: then the next thing that happens to the key is its removal, or a grant to somebody new. */
static void check_read(struct sim *sim, const struct read_said *read)
{
    const struct key_history *history = &sim->check->keys[read->key];
    const struct past *past = NULL;
    const struct past *next = NULL;
    for (size_t i = 0; i < history->count && next == NULL; i++) {
        if (history->items[i].index <= read->index) {
            past = &history->items[i];
        } else {
            next = &history->items[i];
        }
    }
    bool held = past != NULL && past->held;
    bool lapsed = held && !read->held &&
                  (next == NULL || next->kind == CHANGE_KIND_EXPIRED ||
                   next->kind == CHANGE_KIND_GRANTED || next->kind == CHANGE_KIND_REESTABLISHED);
    bool same = held == read->held && (!held || (past->token == read->token &&
                                                  strcmp(past->owner, read->owner) == 0));
    if (!same && !lapsed) {
        sim_fail(sim, "P6: a read of k%u at %llu shows %s, the log says %s", read->key,
                 (unsigned long long)read->index, read->held ? read->owner : "nobody",
                 held ? past->owner : "nobody");
    }
}
