/* What nodes ask of the state machine, not callers: origins, settling, birth, restore, recovery. */
#include "fsm/fsm_state.h"

static bool settle_grants(struct fsm *fsm, const struct origin_outcome *outcome);
static void begin_anew(struct fsm *fsm, const struct op *op);
static void extend_survivors(struct fsm *fsm);

void fsm_apply_open_origin(struct fsm *fsm, struct result *out_result)
{
    uint64_t number = fsm_draw_token(fsm);
    (void)origin_open(&fsm->origins, number, fsm->clock_ms, fsm_position(fsm));
    while (fsm->origins.origins.count > fsm->settings.origins_max) {
        origin_forget(&fsm->origins, origin_table_longest_silent(&fsm->origins));
    }
    out_result->origin = number;
}

/* Settling twice is answered as it was the first time. */
void fsm_apply_settle(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    struct origin *origin = fsm_meet_origin(fsm, op->target_origin);
    if (origin == NULL) {
        out_result->status = STATUS_ORIGIN_UNKNOWN;
        return;
    }
    origin_hear(&fsm->origins, origin, fsm->clock_ms, fsm_position(fsm), 0);
    if (op->target_sequence <= origin->confirmed) {
        out_result->status = STATUS_FORGOTTEN;
        return;
    }
    struct origin_outcome *outcome = origin_outcome_find(origin, op->target_sequence);
    if (outcome == NULL) {
        if (origin_full(origin)) {
            out_result->status = STATUS_OVERLOADED;
            return;
        }
        struct origin_record record = {
            .sequence = op->target_sequence,
            .position = fsm_position(fsm),
            .is_void = true,
        };
        origin_keep(&fsm->origins, origin, &record);
        return;
    }
    if (outcome->is_void) {
        return;
    }
    bool ended = settle_grants(fsm, outcome);
    origin_outcome_settled(&fsm->origins, origin, outcome, ended);
    out_result->settled_applied = true;
    out_result->settled_ended = outcome->ended;
}

void fsm_apply_birth(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    if (fsm->born) {
        out_result->status = STATUS_INVALID;
        return;
    }
    fsm->born = true;
    fsm_set_settings(fsm, &op->settings);
    begin_anew(fsm, op);
}

/* A new cluster from the state of an old one, which may go on somewhere: what was numbered there
 * must not take effect here, hence no origin survives. Versions of sets are drawn above the new
 * floor. */
void fsm_apply_restore(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    if (memcmp(op->identity.id, fsm->identity.id, CLUSTER_ID_LEN) == 0) {
        out_result->status = STATUS_INVALID;
        return;
    }
    begin_anew(fsm, op);
    origin_table_forget_all(&fsm->origins);
    fsm_end_all_dead(fsm);
    for (struct tree_node *node = tree_first(&fsm->table.spaces); node != NULL;
         node = tree_next(node)) {
        struct space *space = CONTAINER_OF(node, struct space, node);
        struct list *link;
        struct list *after;
        LIST_FOR_EACH(link, after, &space->by_token)
        {
            struct lease *lease = CONTAINER_OF(link, struct lease, token_link);
            if (lease->state == LEASE_STATE_OWN) {
                fsm_lease_end(fsm, lease, END_REASON_RESTORED, fsm->clock_ms);
            }
        }
    }
    extend_survivors(fsm);
}

/* The same cluster after the loss of its quorum, under a higher generation. */
void fsm_apply_recover(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    if (memcmp(op->identity.id, fsm->identity.id, CLUSTER_ID_LEN) != 0 ||
        op->identity.generation <= fsm->identity.generation) {
        out_result->status = STATUS_INVALID;
        return;
    }
    begin_anew(fsm, op);
    fsm_end_all_dead(fsm);
    extend_survivors(fsm);
}

/* Takes back what the command gave and nobody wrote since. True when anything was. */
static bool settle_grants(struct fsm *fsm, const struct origin_outcome *outcome)
{
    bool ended = false;
    struct slice rest = origin_outcome_grants(outcome);
    struct space *space =
        rest.len == 0 ? NULL : space_find(&fsm->table, origin_outcome_ns(outcome));
    struct origin_grant grant;
    while (space != NULL && origin_grant_next(&rest, &grant)) {
        struct lease *lease = fsm_meet(fsm, space, grant.key);
        if (lease != NULL && lease->token == grant.token &&
            lease->written_index == outcome->index && lease->written_place == outcome->place) {
            fsm_lease_end(fsm, lease, END_REASON_SETTLED, fsm->clock_ms);
            ended = true;
        }
    }
    return ended;
}

/* Identity, token floor, and since when everything counts as unowned. */
static void begin_anew(struct fsm *fsm, const struct op *op)
{
    fsm_set_identity(fsm, &op->identity);
    fsm->token = max_u64(fsm->token, op->token_floor);
    fsm->lost_ms = fsm->clock_ms;
}

/* A full TTL for every lease. It is no write of their holders: settling is not hindered by it. */
static void extend_survivors(struct fsm *fsm)
{
    for (struct tree_node *node = tree_first(&fsm->table.spaces); node != NULL;
         node = tree_next(node)) {
        struct space *space = CONTAINER_OF(node, struct space, node);
        for (struct list *link = space->by_token.next; link != &space->by_token;
             link = link->next) {
            struct lease *lease = CONTAINER_OF(link, struct lease, token_link);
            struct position written = {.index = lease->written_index,
                                       .place = lease->written_place};
            lease_extend_many(&fsm->table, lease, lease->ttl_ms,
                              fsm_after_ms(fsm->clock_ms, lease->ttl_ms), written);
        }
        lease_extend_end(&fsm->table, space);
    }
}
