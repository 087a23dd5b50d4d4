/* take, claim, renew, heartbeat, release: the decision table of docs/protocol.md, and the order in
 * which its guards speak.
 *
 * Each key of a command is decided by itself, one after the other; nothing is undone when a later
 * one is refused. */
#include <stdlib.h>

#include "fsm/fsm_state.h"

/* How a key stands to the caller. */
enum holding {
    HOLDING_ABSENT,
    HOLDING_OWN_SELF,
    HOLDING_OWN_PEER,
    HOLDING_DEL_SELF,
    HOLDING_DEL_PEER,
    HOLDING_COUNT,
};

enum row {
    ROW_TAKE,
    ROW_CLAIM,
    ROW_DESTROY,
    ROW_RENEW,
    ROW_REESTABLISH,
    ROW_HEARTBEAT,
    ROW_RELEASE,
    ROW_COUNT,
};

enum action {
    ACTION_BEGIN,       /* GRANTED: the key has no lease yet */
    ACTION_REGRANT,     /* GRANTED: it has one already */
    ACTION_REESTABLISH, /* REESTABLISHED */
    ACTION_EXTEND,      /* RENEWED */
    ACTION_RELEASE,     /* RELEASED */
    ACTION_HELD,
    ACTION_TEARDOWN,
    ACTION_LAPSED,
    ACTION_LOST,
    ACTION_NOT_OWNER,
};

/*  absent                own/self         own/peer          del/self         del/peer */
static const enum action decisions[ROW_COUNT][HOLDING_COUNT] = {
    [ROW_TAKE] = {ACTION_BEGIN, ACTION_REGRANT, ACTION_REGRANT, ACTION_TEARDOWN, ACTION_TEARDOWN},
    [ROW_CLAIM] = {ACTION_BEGIN, ACTION_REGRANT, ACTION_HELD, ACTION_TEARDOWN, ACTION_HELD},
    [ROW_DESTROY] = {ACTION_BEGIN, ACTION_REGRANT, ACTION_HELD, ACTION_REGRANT, ACTION_HELD},
    [ROW_RENEW] = {ACTION_LAPSED, ACTION_EXTEND, ACTION_LOST, ACTION_LOST, ACTION_LOST},
    [ROW_REESTABLISH] = {ACTION_REESTABLISH, ACTION_EXTEND, ACTION_LOST, ACTION_LOST, ACTION_LOST},
    [ROW_HEARTBEAT] = {ACTION_LAPSED, ACTION_LOST, ACTION_LOST, ACTION_EXTEND, ACTION_LOST},
    [ROW_RELEASE] = {ACTION_NOT_OWNER, ACTION_RELEASE, ACTION_NOT_OWNER, ACTION_RELEASE,
                     ACTION_NOT_OWNER},
};

/* A command, and the key of it that is at hand. Namespace and owner are looked for once where they
 * are there: neither is freed while the command runs. */
struct attempt {
    struct fsm *fsm;
    const struct op *op;
    enum row row;
    struct space *space; /* NULL: nothing is known of the namespace */
    const struct owner *owner; /* the caller; NULL: nothing is known of it */
    const struct key_item *item;
    struct lease *lease; /* live, or NULL */
    enum holding holding;
    struct outcome *outcome;
};

static void attempt_key(struct attempt *attempt, const struct key_item *item,
                        struct outcome *out_outcome);
static enum row row_of(const struct op *op);
static enum holding holding_of(const struct lease *lease, const struct owner *owner);
static bool is_refused(struct attempt *attempt, enum action action);
static bool guard_refuses(struct attempt *attempt);
static bool tombstone_forbids(const struct attempt *attempt);
static bool identity_differs(const struct attempt *attempt);
static bool grace_runs(struct attempt *attempt);
static bool limit_refuses(struct attempt *attempt);
static bool make_room(struct fsm *fsm, struct space *space);
static void carry_out(struct attempt *attempt, enum action action);
static bool refuse(struct attempt *attempt, enum outcome_kind kind);
static struct holder holder_of(const struct fsm *fsm, const struct lease *lease);
static void answer_granted(struct attempt *attempt, const struct lease *lease, bool held_before);

void fsm_apply_keys(struct fsm *fsm, const struct op *op, struct result *out_result)
{
    if (op->adopt && op->grace_ms > fsm->settings.tombstone_retention_ms) {
        out_result->status = STATUS_INVALID;
        return;
    }
    if (op->key_count > fsm->outcome_cap) {
        struct outcome *outcomes = realloc(fsm->outcomes, op->key_count * sizeof *outcomes);
        CHECK(outcomes != NULL);
        fsm->outcomes = outcomes;
        fsm->outcome_cap = op->key_count;
    }
    struct attempt attempt = {.fsm = fsm, .op = op, .row = row_of(op)};
    for (uint32_t i = 0; i < op->key_count; i++) {
        attempt_key(&attempt, &op->keys[i], &fsm->outcomes[i]);
    }
    out_result->outcomes = fsm->outcomes;
    out_result->outcome_count = op->key_count;
}

static void attempt_key(struct attempt *attempt, const struct key_item *item,
                        struct outcome *out_outcome)
{
    if (attempt->space == NULL) {
        attempt->space = space_find(&attempt->fsm->table, attempt->op->ns);
    }
    if (attempt->owner == NULL && attempt->space != NULL) {
        attempt->owner = owner_find(attempt->space, attempt->op->owner);
    }
    *out_outcome = (struct outcome){0};
    attempt->item = item;
    attempt->outcome = out_outcome;
    attempt->lease = fsm_meet(attempt->fsm, attempt->space, item->key);
    attempt->holding = holding_of(attempt->lease, attempt->owner);
    enum action action = decisions[attempt->row][attempt->holding];
    if (!is_refused(attempt, action)) {
        carry_out(attempt, action);
    }
}

static enum row row_of(const struct op *op)
{
    switch (op->kind) {
    case OP_KIND_TAKE:
        return ROW_TAKE;
    case OP_KIND_CLAIM:
        return op->destroy ? ROW_DESTROY : ROW_CLAIM;
    case OP_KIND_RENEW:
        return op->reestablish ? ROW_REESTABLISH : ROW_RENEW;
    case OP_KIND_HEARTBEAT:
        return ROW_HEARTBEAT;
    case OP_KIND_RELEASE:
        return ROW_RELEASE;
    case OP_KIND_RENEW_ALL:
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
    case OP_KIND_OPEN_ORIGIN:
    case OP_KIND_SETTLE:
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        break;
    }
    CHECK(false);
    return ROW_COUNT;
}

static enum holding holding_of(const struct lease *lease, const struct owner *owner)
{
    if (lease == NULL) {
        return HOLDING_ABSENT;
    }
    bool self = lease->owner == owner;
    if (lease->state == LEASE_STATE_OWN) {
        return self ? HOLDING_OWN_SELF : HOLDING_OWN_PEER;
    }
    return self ? HOLDING_DEL_SELF : HOLDING_DEL_PEER;
}

/* TEARDOWN and HELD go before STALE, STALE before the rest. Where true the outcome is filled in. */
static bool is_refused(struct attempt *attempt, enum action action)
{
    if (action == ACTION_TEARDOWN) {
        return refuse(attempt, OUTCOME_KIND_TEARDOWN);
    }
    if (action == ACTION_HELD) {
        return refuse(attempt, OUTCOME_KIND_HELD);
    }
    if (attempt->item->has_if_token && guard_refuses(attempt)) {
        return true;
    }
    switch (action) {
    case ACTION_LAPSED:
        return refuse(attempt, OUTCOME_KIND_LAPSED);
    case ACTION_LOST:
        return refuse(attempt, OUTCOME_KIND_LOST);
    case ACTION_NOT_OWNER:
        return refuse(attempt, OUTCOME_KIND_NOT_OWNER);
    case ACTION_BEGIN:
        return grace_runs(attempt) || limit_refuses(attempt);
    case ACTION_REESTABLISH:
        return limit_refuses(attempt);
    case ACTION_REGRANT:
        return identity_differs(attempt) && refuse(attempt, OUTCOME_KIND_MISMATCH);
    case ACTION_EXTEND:
    case ACTION_RELEASE:
        return false;
    case ACTION_TEARDOWN:
    case ACTION_HELD:
        break;
    }
    CHECK(false);
    return true;
}

/* The caller's lease, in whatever state, must carry the token that it names; and what has ended is
 * not begun anew by whoever believes it still goes on. */
static bool guard_refuses(struct attempt *attempt)
{
    switch (attempt->holding) {
    case HOLDING_OWN_SELF:
    case HOLDING_DEL_SELF:
        return attempt->lease->token != attempt->item->if_token &&
               refuse(attempt, OUTCOME_KIND_STALE);
    case HOLDING_ABSENT:
        if (attempt->row == ROW_DESTROY ||
            (attempt->row == ROW_REESTABLISH && tombstone_forbids(attempt))) {
            return refuse(attempt, OUTCOME_KIND_LAPSED);
        }
        return false;
    case HOLDING_OWN_PEER:
    case HOLDING_DEL_PEER:
        return false;
    case HOLDING_COUNT:
        break;
    }
    CHECK(false);
    return true;
}

/* Re-establishing the lease with `if_token`: not where the key was let go since, by release or by
 * the caller's own teardown, nor where another owner had it, nor where that may be forgotten. A
 * tombstone of an older lease says nothing: the state is one from before the caller's grant. */
static bool tombstone_forbids(const struct attempt *attempt)
{
    uint64_t if_token = attempt->item->if_token;
    const struct tombstone *tombstone =
        attempt->space == NULL ? NULL : tombstone_find(attempt->space, attempt->item->key);
    if (tombstone == NULL) {
        return fsm_forgotten_after(attempt->fsm, if_token);
    }
    if (tombstone->token < if_token) {
        return false;
    }
    if (!slice_equal(tombstone_owner(tombstone), attempt->op->owner)) {
        return true;
    }
    if (tombstone->state == LEASE_STATE_DEL && tombstone->token > if_token) {
        return true;
    }
    return tombstone->reason == END_REASON_RELEASED;
}

static bool identity_differs(const struct attempt *attempt)
{
    struct slice present = lease_identity(attempt->lease);
    struct slice asked = attempt->item->identity;
    return present.base != NULL && asked.base != NULL && !slice_equal(present, asked);
}

static bool grace_runs(struct attempt *attempt)
{
    struct fsm *fsm = attempt->fsm;
    if (!attempt->op->adopt) {
        return false;
    }
    fsm_forgotten_refresh(fsm);
    uint64_t since_ms = fsm_unowned_since(fsm, attempt->space, attempt->item->key);
    uint64_t end_ms = fsm_after_ms(since_ms, attempt->op->grace_ms);
    if (end_ms <= fsm->clock_ms) {
        return false;
    }
    fsm->grace_end_ms = max_u64(fsm->grace_end_ms, end_ms);
    attempt->outcome->grace_ms_left = end_ms - fsm->clock_ms;
    return refuse(attempt, OUTCOME_KIND_GRACE);
}

static bool limit_refuses(struct attempt *attempt)
{
    struct fsm *fsm = attempt->fsm;
    uint64_t per_namespace = fsm->settings.leases_per_namespace_max;
    while (lease_table_count(&fsm->table) >= fsm->settings.leases_max) {
        if (!make_room(fsm, NULL)) {
            attempt->outcome->limit = LIMIT_KIND_LEASES;
            return refuse(attempt, OUTCOME_KIND_UNAVAILABLE);
        }
    }
    while (per_namespace > 0 && attempt->space != NULL &&
           attempt->space->leases.count >= per_namespace) {
        if (!make_room(fsm, attempt->space)) {
            attempt->outcome->limit = LIMIT_KIND_LEASES_PER_NAMESPACE;
            return refuse(attempt, OUTCOME_KIND_UNAVAILABLE);
        }
    }
    return false;
}

/* A lease that is dead and only waits for removal counts against no limit: it is removed now. False
 * when there is none, in the namespace or in all. */
static bool make_room(struct fsm *fsm, struct space *space)
{
    struct lease *lease =
        space == NULL ? marks_first_lease(&fsm->marks) : space_first_marked(space);
    if (lease == NULL) {
        lease = space == NULL ? lease_table_first_due(&fsm->table) : space_first_due(space);
    }
    if (lease == NULL || !fsm_lease_dead(lease, fsm->clock_ms)) {
        return false;
    }
    fsm_lease_end_dead(fsm, lease);
    return true;
}

static void carry_out(struct attempt *attempt, enum action action)
{
    struct fsm *fsm = attempt->fsm;
    const struct op *op = attempt->op;
    struct lease *lease = attempt->lease;
    struct outcome *outcome = attempt->outcome;
    switch (action) {
    case ACTION_BEGIN:
        lease = fsm_lease_begin(fsm, op, attempt->item,
                                op->destroy ? LEASE_STATE_DEL : LEASE_STATE_OWN);
        fsm_note(fsm, op->destroy ? CHANGE_KIND_TEARDOWN : CHANGE_KIND_GRANTED, lease,
                 slice_from(NULL, 0));
        answer_granted(attempt, lease, false);
        return;
    case ACTION_REGRANT:
        if (attempt->holding == HOLDING_OWN_PEER) {
            outcome->holder = holder_of(fsm, lease);
        }
        fsm_lease_regrant(fsm, lease, op, attempt->item);
        answer_granted(attempt, lease, attempt->holding != HOLDING_OWN_PEER);
        return;
    case ACTION_REESTABLISH:
        lease = fsm_lease_begin(fsm, op, attempt->item, LEASE_STATE_OWN);
        fsm_note(fsm, CHANGE_KIND_REESTABLISHED, lease, slice_from(NULL, 0));
        outcome->kind = OUTCOME_KIND_REESTABLISHED;
        break;
    case ACTION_EXTEND:
        lease_extend(&fsm->table, lease, op->ttl_ms, fsm_after_ms(fsm->clock_ms, op->ttl_ms),
                     fsm_position(fsm));
        outcome->kind = OUTCOME_KIND_RENEWED;
        break;
    case ACTION_RELEASE:
        fsm_lease_end(fsm, lease, END_REASON_RELEASED, fsm->clock_ms);
        outcome->kind = OUTCOME_KIND_RELEASED;
        return;
    case ACTION_HELD:
    case ACTION_TEARDOWN:
    case ACTION_LAPSED:
    case ACTION_LOST:
    case ACTION_NOT_OWNER:
        CHECK(false);
        return;
    }
    outcome->token = lease->token;
    outcome->expiry_ms = lease->expiry_ms;
}

/* Always true, for the sake of the conditions above. */
static bool refuse(struct attempt *attempt, enum outcome_kind kind)
{
    attempt->outcome->kind = kind;
    if (attempt->lease != NULL) {
        attempt->outcome->holder = holder_of(attempt->fsm, attempt->lease);
    }
    return true;
}

/* The owner's name outlives the command, also where its last lease ends in it. */
static struct holder holder_of(const struct fsm *fsm, const struct lease *lease)
{
    return (struct holder){
        .owner = owner_name(lease->owner),
        .state = lease->state,
        .token = lease->token,
        .ms_left = lease->expiry_ms - fsm->clock_ms,
    };
}

/* A key that the caller did not hold before is remembered with the command, for settling. */
static void answer_granted(struct attempt *attempt, const struct lease *lease, bool held_before)
{
    struct fsm *fsm = attempt->fsm;
    attempt->outcome->kind = OUTCOME_KIND_GRANTED;
    attempt->outcome->token = lease->token;
    attempt->outcome->expiry_ms = lease->expiry_ms;
    attempt->outcome->held_before = held_before;
    if (!held_before) {
        struct origin_grant grant = {.token = lease->token, .key = lease_key(lease)};
        origin_grant_encode(&grant, &fsm->grants);
        fsm->grant_count++;
    }
}
