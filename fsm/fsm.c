/* Applying an entry: the clock first, then the commands in order, then one slice of what is due.
 *
 * A numbered command passes the origin table on its way in and out: it is carried out only if its
 * origin is known and its number was neither seen nor confirmed, and what it answers is kept.
 * Refusals that come from the table itself (unknown origin, forgotten, void, overloaded) are not
 * kept.
 *
 * Nothing is freed while a command runs that its result might still borrow; what became superfluous
 * is tidied away when the result has been handed out. */
#include "fsm/fsm.h"

#include <stdlib.h>

#include "fsm/digest.h"
#include "fsm/fsm_state.h"

/* Above the longest result that an entry's keys can have, and than all keys of an entry. */
#define RESULT_BYTES_MAX ((size_t)16 * 1024 * 1024)

static void apply_command(struct fsm *fsm, const struct command *command, fsm_result_cb cb,
                          void *ctx);
static struct slice answer_numbered(struct fsm *fsm, const struct command *command);
static struct slice answer_status(struct fsm *fsm, enum op_kind kind, enum status status);
static struct slice answer_op(struct fsm *fsm, const struct op *op);
static void apply_op(struct fsm *fsm, const struct op *op, struct result *out_result);
static void tidy(struct fsm *fsm);

struct fsm *fsm_create(void)
{
    struct fsm *fsm = calloc(1, sizeof *fsm);
    CHECK(fsm != NULL);
    fsm->settings = settings_default();
    lease_table_init(&fsm->table);
    owner_index_init(&fsm->owners);
    marks_init(&fsm->marks);
    origin_table_init(&fsm->origins);
    fsm->changes = changes_create();
    buf_init(&fsm->result, RESULT_BYTES_MAX);
    buf_init(&fsm->grants, RESULT_BYTES_MAX);
    return fsm;
}

void fsm_set_hash_key(struct fsm *fsm, const struct hash_key *hash_key)
{
    CHECK(fsm->index == 0 && fsm->table.spaces.count == 0);
    lease_table_set_hash_key(&fsm->table, hash_key);
}

void fsm_destroy(struct fsm *fsm)
{
    if (fsm == NULL) {
        return;
    }
    marks_deinit(&fsm->marks);
    owner_index_deinit(&fsm->owners);
    for (struct tree_node *node = tree_first(&fsm->table.spaces); node != NULL;
         node = tree_next(node)) {
        owner_free_all(CONTAINER_OF(node, struct space, node));
    }
    lease_table_deinit(&fsm->table);
    origin_table_deinit(&fsm->origins);
    changes_destroy(fsm->changes);
    buf_deinit(&fsm->result);
    buf_deinit(&fsm->grants);
    free(fsm->outcomes);
    free(fsm->departures);
    free(fsm);
}

void fsm_apply(struct fsm *fsm, uint64_t index, const struct entry *entry, fsm_result_cb cb,
               void *ctx)
{
    CHECK(index > fsm->index);
    fsm->index = index;
    fsm->clock_ms = max_u64(fsm->clock_ms, entry->stamp_ms);
    fsm_forget_advance(fsm);
    changes_clear(fsm->changes);
    for (uint32_t i = 0; i < entry->command_count; i++) {
        fsm->place = i;
        apply_command(fsm, &entry->commands[i], cb, ctx);
    }
    fsm->place = POSITION_PLACE_END;
    fsm_sweep(fsm);
    tidy(fsm);
}

const struct changes *fsm_changes(const struct fsm *fsm)
{
    return fsm->changes;
}

uint64_t fsm_index(const struct fsm *fsm)
{
    return fsm->index;
}

uint64_t fsm_clock_ms(const struct fsm *fsm)
{
    return fsm->clock_ms;
}

uint64_t fsm_token(const struct fsm *fsm)
{
    return fsm->token;
}

const struct settings *fsm_settings(const struct fsm *fsm)
{
    return &fsm->settings;
}

const struct cluster_identity *fsm_identity(const struct fsm *fsm)
{
    return &fsm->identity;
}

bool fsm_born(const struct fsm *fsm)
{
    return fsm->born;
}

bool fsm_timed(const struct fsm *fsm)
{
    return lease_table_count(&fsm->table) > 0 || fsm->table.tombstone_count > 0 ||
           fsm->clock_ms < fsm->grace_end_ms || fsm_next_due_ms(fsm) <= fsm->clock_ms;
}

uint64_t fsm_digest(const struct fsm *fsm)
{
    const struct cluster_identity *identity = &fsm->identity;
    const struct settings *settings = &fsm->settings;
    uint64_t numbers[] = {
        fsm->born,
        hash64(0, identity->id, CLUSTER_ID_LEN),
        identity->generation,
        identity->generation_random,
        settings->leases_max,
        settings->leases_per_namespace_max,
        settings->tombstones_max,
        settings->tombstone_retention_ms,
        settings->departures_max,
        settings->origins_max,
        settings->origin_retention_ms,
        settings->removal_slice,
        settings->voters_wanted,
        fsm->index,
        fsm->clock_ms,
        fsm->token,
        fsm->lost_ms,
        fsm->grace_end_ms,
        fsm->forgotten_before_ms,
        fsm->silent_before_ms,
        fsm->table.forgotten.until_ms,
        fsm->table.forgotten.token,
        fsm->owners.forgotten_version,
        fsm->table.space_digest,
        fsm->table.lease_digest,
        fsm->table.tombstone_digest,
        fsm->owners.owner_digest,
        fsm->owners.departure_digest,
        fsm->marks.digest,
        fsm->origins.origin_digest,
        fsm->origins.outcome_digest,
    };
    return digest_numbers(DIGEST_SEED_SCALARS, numbers, sizeof numbers / sizeof numbers[0]);
}

void fsm_stats(const struct fsm *fsm, struct fsm_stats *out_stats)
{
    *out_stats = (struct fsm_stats){
        .leases_own = fsm->table.own_count,
        .leases_del = fsm->table.del_count,
        .tombstones = fsm->table.tombstone_count,
        .owners = fsm->owners.owner_count,
        .origins = fsm->origins.origins.count,
        .outcomes = fsm->origins.outcome_count,
        .namespaces = fsm->table.spaces.count,
        .memory_len = sizeof *fsm + fsm->table.memory_len + fsm->table.index_len +
                      fsm->owners.memory_len + fsm->origins.memory_len,
    };
}

void fsm_set_settings(struct fsm *fsm, const struct settings *settings)
{
    fsm->settings = *settings;
    fsm_forget_advance(fsm);
}

void fsm_set_identity(struct fsm *fsm, const struct cluster_identity *identity)
{
    fsm->identity = *identity;
}

uint64_t fsm_draw_token(struct fsm *fsm)
{
    CHECK(fsm->token < UINT64_MAX);
    return ++fsm->token;
}

static void apply_command(struct fsm *fsm, const struct command *command, fsm_result_cb cb,
                          void *ctx)
{
    enum op_kind kind = command->op.kind;
    buf_clear(&fsm->result);
    buf_clear(&fsm->grants);
    fsm->grant_count = 0;
    struct slice answer;
    if (!fsm->born && kind != OP_KIND_BIRTH) {
        answer = answer_status(fsm, kind, STATUS_UNINITIALISED);
    } else if (op_kind_numbered(kind)) {
        answer = answer_numbered(fsm, command);
    } else {
        answer = answer_op(fsm, &command->op);
    }
    if (cb != NULL) {
        cb(ctx, fsm->place, answer);
    }
    tidy(fsm);
}

static struct slice answer_numbered(struct fsm *fsm, const struct command *command)
{
    enum op_kind kind = command->op.kind;
    struct origin *origin = fsm_meet_origin(fsm, command->origin);
    if (origin == NULL) {
        return answer_status(fsm, kind, STATUS_ORIGIN_UNKNOWN);
    }
    origin_hear(&fsm->origins, origin, fsm->clock_ms, fsm_position(fsm), command->confirmed);
    if (command->sequence <= origin->confirmed) {
        return answer_status(fsm, kind, STATUS_FORGOTTEN);
    }
    struct origin_outcome *kept = origin_outcome_find(origin, command->sequence);
    if (kept != NULL) {
        return kept->is_void ? answer_status(fsm, kind, STATUS_VOID)
                             : origin_outcome_result(kept);
    }
    if (origin_full(origin)) {
        return answer_status(fsm, kind, STATUS_OVERLOADED);
    }
    struct slice answer = answer_op(fsm, &command->op);
    struct origin_record record = {
        .sequence = command->sequence,
        .position = fsm_position(fsm),
        .result = answer,
        .ns = fsm->grant_count > 0 ? command->op.ns : slice_from(NULL, 0),
        .grants = buf_slice(&fsm->grants),
        .grant_count = fsm->grant_count,
    };
    origin_keep(&fsm->origins, origin, &record);
    return answer;
}

static struct slice answer_status(struct fsm *fsm, enum op_kind kind, enum status status)
{
    struct result result = {
        .status = status,
        .kind = kind,
        .position = fsm_position(fsm),
        .clock_ms = fsm->clock_ms,
    };
    result_encode(&result, &fsm->result);
    return buf_slice(&fsm->result);
}

static struct slice answer_op(struct fsm *fsm, const struct op *op)
{
    struct result result = {
        .status = STATUS_OK,
        .kind = op->kind,
        .position = fsm_position(fsm),
        .clock_ms = fsm->clock_ms,
    };
    apply_op(fsm, op, &result);
    result_encode(&result, &fsm->result);
    CHECK(!buf_overflown(&fsm->result) && !buf_overflown(&fsm->grants));
    return buf_slice(&fsm->result);
}

static void apply_op(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    switch (op->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
        fsm_apply_keys(fsm, op, out_result);
        return;
    case OP_KIND_RENEW_ALL:
        fsm_apply_renew_all(fsm, op, out_result);
        return;
    case OP_KIND_RELEASE_ALL:
        fsm_apply_release_all(fsm, op, out_result);
        return;
    case OP_KIND_PURGE:
        fsm_apply_purge(fsm, op, out_result);
        return;
    case OP_KIND_OPEN_ORIGIN:
        fsm_apply_open_origin(fsm, out_result);
        return;
    case OP_KIND_SETTLE:
        fsm_apply_settle(fsm, op, out_result);
        return;
    case OP_KIND_BIRTH:
        fsm_apply_birth(fsm, op, out_result);
        return;
    case OP_KIND_CONFIGURE:
        fsm_set_settings(fsm, &op->settings);
        return;
    case OP_KIND_RESTORE:
        fsm_apply_restore(fsm, op, out_result);
        return;
    case OP_KIND_RECOVER:
        fsm_apply_recover(fsm, op, out_result);
        return;
    }
    CHECK(false);
}

/* Owners and namespaces that hold nothing any more. */
static void tidy(struct fsm *fsm)
{
    owner_index_tidy(&fsm->owners, &fsm->table);
    lease_table_tidy(&fsm->table);
}
