/* Everything that is kept beside the records is computed anew and compared: counters, orders,
 * links, marks, digests. Only what the records say about each other is judged; whether their bytes
 * are valid was decided where they came in. */
#include "fsm/invariants.h"

#include "fsm/digest.h"
#include "fsm/fsm_state.h"

/* What a walk over all records adds up. */
struct sums {
    uint64_t own;
    uint64_t del;
    uint64_t tombstones;
    uint64_t owners;
    uint64_t departures;
    uint64_t floors;
    uint64_t idle;
    uint64_t marked;
    uint64_t spaces_with_leases;
    uint64_t space_digest;
    uint64_t lease_digest;
    uint64_t tombstone_digest;
    uint64_t owner_digest;
    uint64_t departure_digest;
};

static const char *check_scalars(const struct fsm *fsm);
static bool is_past(const struct fsm *fsm, uint64_t before_ms, uint64_t retention_ms);
static const char *check_space(const struct fsm *fsm, struct space *space, struct sums *sums);
static const char *check_lease(const struct fsm *fsm, const struct lease *lease,
                               struct sums *sums);
static const char *check_token_order(const struct space *space);
static const char *check_tombstone(const struct fsm *fsm, const struct tombstone *tombstone);
static const char *check_owner(const struct fsm *fsm, const struct owner *owner,
                               struct sums *sums);
static const char *check_departures(const struct owner *owner, struct sums *sums);
static const char *check_departure_order(const struct fsm *fsm);
static const char *check_marks(const struct fsm *fsm, uint64_t marked);
static uint64_t count_remaining(const struct mark *mark);
static const char *check_origins(const struct fsm *fsm);
static const char *check_outcomes(const struct fsm *fsm, const struct origin *origin,
                                  uint64_t *digest);
static const char *check_silence(const struct fsm *fsm);
static const char *check_sums(const struct fsm *fsm, const struct sums *sums);

const char *invariants_check(const struct fsm *fsm)
{
    const char *broken = check_scalars(fsm);
    struct sums sums = {0};
    if (broken == NULL && !tree_sound(&fsm->table.spaces)) {
        broken = "the tree of namespaces is out of order";
    }
    for (struct tree_node *node = tree_first(&fsm->table.spaces); broken == NULL && node != NULL;
         node = tree_next(node)) {
        broken = check_space(fsm, CONTAINER_OF(node, struct space, node), &sums);
    }
    if (broken == NULL) {
        broken = check_departure_order(fsm);
    }
    if (broken == NULL) {
        broken = check_marks(fsm, sums.marked);
    }
    if (broken == NULL) {
        broken = check_origins(fsm);
    }
    return broken != NULL ? broken : check_sums(fsm, &sums);
}

const char *invariants_check_step(const struct fsm *before, const struct fsm *after)
{
    if (after->index < before->index) {
        return "the index went back";
    }
    if (after->clock_ms < before->clock_ms) {
        return "the cluster clock went back";
    }
    if (after->token < before->token) {
        return "the token counter went back";
    }
    if (before->born && !after->born) {
        return "a birth was undone";
    }
    if (after->table.forgotten.until_ms < before->table.forgotten.until_ms ||
        after->table.forgotten.token < before->table.forgotten.token ||
        after->forgotten_before_ms < before->forgotten_before_ms ||
        after->silent_before_ms < before->silent_before_ms ||
        after->owners.forgotten_version < before->owners.forgotten_version) {
        return "something forgotten came back";
    }
    for (const struct tree_node *at = tree_first(&before->table.spaces); at != NULL;
         at = tree_next(at)) {
        const struct space *old = CONTAINER_OF_CONST(at, struct space, node);
        const struct space *new = space_find(&after->table, tree_key(at));
        for (const struct tree_node *node = tree_first(&old->leases); new != NULL && node != NULL;
             node = tree_next(node)) {
            const struct lease *lease = lease_find(new, tree_key(node));
            if (lease != NULL &&
                lease->token < CONTAINER_OF_CONST(node, struct lease, node)->token) {
                return "a key's token went back";
            }
        }
    }
    return NULL;
}

static const char *check_scalars(const struct fsm *fsm)
{
    struct violation violation;
    if (settings_validate(&fsm->settings, &violation) != STATUS_OK) {
        return "the settings break a rule";
    }
    if (fsm->lost_ms > fsm->clock_ms || fsm->table.forgotten.until_ms > fsm->clock_ms) {
        return "something happened after the cluster clock";
    }
    if (!is_past(fsm, fsm->forgotten_before_ms, fsm->settings.tombstone_retention_ms) ||
        !is_past(fsm, fsm->silent_before_ms, fsm->settings.origin_retention_ms)) {
        return "what is forgotten is not what the clock says";
    }
    if (fsm->table.forgotten.token > fsm->token || fsm->owners.forgotten_version > fsm->token) {
        return "a token is larger than the counter";
    }
    if (!list_empty(&fsm->table.loose) || !list_empty(&fsm->owners.loose)) {
        return "something was left untidied";
    }
    if (!fsm->born && (fsm->table.spaces.count > 0 || fsm->origins.origins.count > 0)) {
        return "there is something before the birth";
    }
    if (!expiry_sound(&fsm->table.due) || !expiry_sound(&fsm->table.ages) ||
        !expiry_sound(&fsm->table.floors) || !expiry_sound(&fsm->owners.idle)) {
        return "a queue is out of order";
    }
    return NULL;
}

/* As far back as the retention says, or less far where it was shorter once. */
static bool is_past(const struct fsm *fsm, uint64_t before_ms, uint64_t retention_ms)
{
    return before_ms <= fsm->clock_ms &&
           before_ms >= sub_or_zero_u64(fsm->clock_ms, retention_ms);
}

static const char *check_space(const struct fsm *fsm, struct space *space, struct sums *sums)
{
    if (!tree_sound(&space->leases) || !tree_sound(&space->tombstones) ||
        !tree_sound(&space->owners)) {
        return "a tree of a namespace is out of order";
    }
    if (!key_index_sound(&space->keys) || space->keys.count != space->leases.count) {
        return "the index of keys of a namespace is wrong";
    }
    if (!expiry_sound(&space->due) || space->due.count != space->leases.count) {
        return "the queue of a namespace is out of order";
    }
    if (space->leases.count + space->tombstones.count + space->owners.count == 0 &&
        space->purged_ms == 0) {
        return "a namespace is kept without need";
    }
    bool queued = expiry_contains(&space->due_node);
    if (queued != (space->leases.count > 0) ||
        (queued && fsm->table.due.entries[space->due_node.idx].at_ms !=
                       expiry_first_ms(&space->due))) {
        return "a namespace stands in the wrong place of the queue";
    }
    if (expiry_contains(&space->floor_node) != (space->purged_ms > 0) ||
        space->purged_ms > fsm->clock_ms) {
        return "a purge is not where it belongs";
    }
    sums->floors += space->purged_ms > 0;
    sums->spaces_with_leases += queued;
    sums->space_digest += space_digest(space);
    sums->marked += space->marked;
    uint64_t own = sums->own;
    uint64_t del = sums->del;
    const char *broken = check_token_order(space);
    for (struct tree_node *node = tree_first(&space->leases); broken == NULL && node != NULL;
         node = tree_next(node)) {
        const struct lease *lease = CONTAINER_OF(node, struct lease, node);
        broken = lease->space != space ? "a lease is in the wrong namespace"
                                       : check_lease(fsm, lease, sums);
    }
    if (broken == NULL &&
        (sums->own - own != space->own_count || sums->del - del != space->del_count)) {
        broken = "the counters of a namespace are wrong";
    }
    for (struct tree_node *node = tree_first(&space->tombstones); broken == NULL && node != NULL;
         node = tree_next(node)) {
        const struct tombstone *tombstone = CONTAINER_OF(node, struct tombstone, node);
        broken = check_tombstone(fsm, tombstone);
        sums->tombstones++;
        sums->tombstone_digest += tombstone_digest(tombstone);
    }
    for (struct tree_node *node = tree_first(&space->owners); broken == NULL && node != NULL;
         node = tree_next(node)) {
        broken = check_owner(fsm, CONTAINER_OF(node, struct owner, node), sums);
    }
    return broken;
}

static const char *check_lease(const struct fsm *fsm, const struct lease *lease, struct sums *sums)
{
    if (lease->token == 0 || lease->token > fsm->token) {
        return "a lease has a token that was not drawn";
    }
    if (lease->state != LEASE_STATE_OWN && lease->state != LEASE_STATE_DEL) {
        return "a lease has no state";
    }
    if (lease->ttl_ms < TTL_MS_MIN || lease->ttl_ms > TTL_MS_MAX ||
        lease->expiry_ms > fsm_after_ms(fsm->clock_ms, lease->ttl_ms) ||
        lease->since_ms > fsm->clock_ms || lease->written_index > fsm->index) {
        return "a lease has impossible times";
    }
    if (lease_find(lease->space, lease_key(lease)) != lease) {
        return "a lease is not found by its key";
    }
    if (tombstone_find(lease->space, lease_key(lease)) != NULL) {
        return "a key has a lease and a tombstone";
    }
    if (owner_find(lease->space, owner_name(lease->owner)) != lease->owner) {
        return "a lease names an owner that is not there";
    }
    if (lease->space->due.entries[lease->due_node.idx].at_ms != lease->expiry_ms) {
        return "a lease stands in the queue with another expiry";
    }
    if (lease->digest_fixed != lease_digest_fixed(lease) || lease->digest != lease_digest(lease)) {
        return "the digest of a lease is wrong";
    }
    sums->own += lease->state == LEASE_STATE_OWN;
    sums->del += lease->state == LEASE_STATE_DEL;
    sums->lease_digest += lease->digest;
    return NULL;
}

static const char *check_token_order(const struct space *space)
{
    uint64_t before = 0;
    uint64_t count = 0;
    for (const struct list *link = space->by_token.next; link != &space->by_token;
         link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, token_link);
        if (lease->token <= before || ++count > space->leases.count) {
            return "leases are not in the order of their tokens";
        }
        before = lease->token;
    }
    return count == space->leases.count ? NULL : "a lease is missing in the order of tokens";
}

static const char *check_tombstone(const struct fsm *fsm, const struct tombstone *tombstone)
{
    if (tombstone->token == 0 || tombstone->token > fsm->token) {
        return "a tombstone has a token that was not drawn";
    }
    if (tombstone->ended_ms > fsm->clock_ms) {
        return "a tombstone is of the future";
    }
    switch (tombstone->reason) {
    case END_REASON_RELEASED:
    case END_REASON_EXPIRED:
    case END_REASON_SETTLED:
    case END_REASON_PURGED:
    case END_REASON_RESTORED:
        return NULL;
    case END_REASON_TAKEN:
    case END_REASON_TEARDOWN:
        break;
    }
    return "a tombstone has a reason that ends no lease";
}

static const char *check_owner(const struct fsm *fsm, const struct owner *owner, struct sums *sums)
{
    const struct list *heads[] = {&owner->own, &owner->del};
    const uint64_t counts[] = {owner->own_count, owner->del_count};
    const enum lease_state states[] = {LEASE_STATE_OWN, LEASE_STATE_DEL};
    for (size_t i = 0; i < 2; i++) {
        uint64_t before = 0;
        uint64_t count = 0;
        for (const struct list *link = heads[i]->next; link != heads[i]; link = link->next) {
            const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, owner_link);
            if (lease->owner != owner || lease->state != states[i] || lease->token <= before ||
                ++count > counts[i]) {
                return "an owner's list of leases is wrong";
            }
            before = lease->token;
        }
        if (count != counts[i]) {
            return "an owner's count of leases is wrong";
        }
    }
    bool idle = owner->own_count + owner->del_count == 0;
    if (expiry_contains(&owner->idle_node) != idle || (idle && owner->idle_ms > fsm->clock_ms)) {
        return "an idle owner is not where it belongs";
    }
    if (idle && owner->departure_count == 0) {
        return "an owner is kept without need";
    }
    if (owner->set_version > fsm->token || owner->forgotten_version > owner->set_version) {
        return "an owner's set version is impossible";
    }
    sums->owners++;
    sums->idle += idle;
    sums->owner_digest += owner_digest(owner);
    return check_departures(owner, sums);
}

static const char *check_departures(const struct owner *owner, struct sums *sums)
{
    uint64_t before = owner->forgotten_version;
    uint64_t count = 0;
    for (const struct list *link = owner->departures.next; link != &owner->departures;
         link = link->next) {
        const struct departed *departed = CONTAINER_OF_CONST(link, struct departed, owner_link);
        if (departed->owner != owner || departed->version <= before ||
            departed->token >= departed->version || ++count > owner->departure_count) {
            return "an owner's departures are out of order";
        }
        before = departed->version;
        sums->departure_digest += departed_digest(departed);
    }
    if (count != owner->departure_count || before != owner->set_version) {
        return "an owner's departures do not lead to its set version";
    }
    sums->departures += count;
    return NULL;
}

static const char *check_departure_order(const struct fsm *fsm)
{
    uint64_t before = 0;
    uint64_t count = 0;
    for (const struct list *link = fsm->owners.departures.next; link != &fsm->owners.departures;
         link = link->next) {
        const struct departed *departed = CONTAINER_OF_CONST(link, struct departed, age_link);
        if (departed->version <= before || ++count > fsm->owners.departure_count) {
            return "the departures of all owners are out of order";
        }
        before = departed->version;
    }
    return count == fsm->owners.departure_count ? NULL : "a departure is missing";
}

static const char *check_marks(const struct fsm *fsm, uint64_t marked)
{
    uint64_t before = 0;
    uint64_t before_ms = 0;
    uint64_t count = 0;
    uint64_t remaining = 0;
    uint64_t digest = 0;
    for (const struct list *link = fsm->marks.all.next; link != &fsm->marks.all;
         link = link->next) {
        const struct mark *mark = CONTAINER_OF_CONST(link, struct mark, link);
        if (mark->upto <= before || mark->upto > fsm->token || mark->set_ms < before_ms ||
            mark->set_ms > fsm->clock_ms) {
            return "the marks are out of order";
        }
        if (mark->remaining == 0 || mark->remaining != count_remaining(mark)) {
            return "a mark counts its leases wrongly";
        }
        before = mark->upto;
        before_ms = mark->set_ms;
        remaining += mark->remaining;
        digest += mark_digest(mark);
        count++;
    }
    if (count != fsm->marks.count || digest != fsm->marks.digest) {
        return "the marks are summed up wrongly";
    }
    return remaining == marked ? NULL : "the leases under marks are counted wrongly";
}

static uint64_t count_remaining(const struct mark *mark)
{
    uint64_t count = 0;
    for (const struct list *link = mark->space->by_token.next; link != &mark->space->by_token;
         link = link->next) {
        const struct lease *lease = CONTAINER_OF_CONST(link, struct lease, token_link);
        if (lease->token > mark->upto) {
            break;
        }
        count += mark_of(lease) == mark;
    }
    return count;
}

static const char *check_origins(const struct fsm *fsm)
{
    const struct origin_table *table = &fsm->origins;
    if (!tree_sound(&table->origins)) {
        return "the tree of origins is out of order";
    }
    uint64_t digest = 0;
    uint64_t outcome_digest = 0;
    uint64_t outcomes = 0;
    for (struct tree_node *node = tree_first(&table->origins); node != NULL;
         node = tree_next(node)) {
        const struct origin *origin = CONTAINER_OF(node, struct origin, node);
        if (origin->number == 0 || origin->number > fsm->token ||
            origin->heard_ms > fsm->clock_ms || origin->heard_index > fsm->index) {
            return "an origin is of the future";
        }
        const char *broken = check_outcomes(fsm, origin, &outcome_digest);
        if (broken != NULL) {
            return broken;
        }
        outcomes += origin->count;
        digest += origin_digest(origin);
    }
    if (outcomes != table->outcome_count || digest != table->origin_digest ||
        outcome_digest != table->outcome_digest) {
        return "the origins are summed up wrongly";
    }
    return check_silence(fsm);
}

static const char *check_outcomes(const struct fsm *fsm, const struct origin *origin,
                                  uint64_t *digest)
{
    if (origin->count > UNCONFIRMED_MAX) {
        return "an origin has more outcomes than may be";
    }
    uint64_t before = origin->confirmed;
    size_t results_len = 0;
    for (size_t i = 0; i < origin->count; i++) {
        const struct origin_outcome *outcome = origin_outcome_at(origin, i);
        if (outcome->sequence <= before) {
            return "the outcomes of an origin are out of order";
        }
        if (outcome->is_void != (outcome->result_len == 0) || outcome->index > fsm->index) {
            return "an outcome is neither void nor a result";
        }
        struct slice rest = origin_outcome_grants(outcome);
        struct origin_grant grant;
        uint32_t grants = 0;
        while (origin_grant_next(&rest, &grant)) {
            grants++;
        }
        if (rest.len != 0 || grants != outcome->grant_count ||
            (grants > 0) != (outcome->ns_len > 0)) {
            return "the grants of an outcome are malformed";
        }
        before = outcome->sequence;
        results_len += outcome->result_len;
        *digest += origin_outcome_digest(origin, outcome);
    }
    return results_len == origin->results_len ? NULL : "the outcomes of an origin are mismeasured";
}

static const char *check_silence(const struct fsm *fsm)
{
    const struct origin *before = NULL;
    uint64_t count = 0;
    for (const struct list *link = fsm->origins.silence.next; link != &fsm->origins.silence;
         link = link->next) {
        const struct origin *origin = CONTAINER_OF_CONST(link, struct origin, silence);
        if (before != NULL && (before->heard_index > origin->heard_index ||
                               (before->heard_index == origin->heard_index &&
                                before->heard_place >= origin->heard_place) ||
                               before->heard_ms > origin->heard_ms)) {
            return "the origins are not in the order of their silence";
        }
        if (++count > fsm->origins.origins.count) {
            return "the order of silence has too many origins";
        }
        before = origin;
    }
    return count == fsm->origins.origins.count ? NULL : "an origin is missing in the silence";
}

static const char *check_sums(const struct fsm *fsm, const struct sums *sums)
{
    const struct lease_table *table = &fsm->table;
    if (sums->own != table->own_count || sums->del != table->del_count ||
        sums->tombstones != table->tombstone_count || sums->owners != fsm->owners.owner_count ||
        sums->departures != fsm->owners.departure_count) {
        return "a count is wrong";
    }
    if (sums->tombstones != table->ages.count || sums->floors != table->floors.count ||
        sums->idle != fsm->owners.idle.count || sums->spaces_with_leases != table->due.count) {
        return "a queue has too many elements";
    }
    if (sums->space_digest != table->space_digest || sums->lease_digest != table->lease_digest ||
        sums->tombstone_digest != table->tombstone_digest ||
        sums->owner_digest != fsm->owners.owner_digest ||
        sums->departure_digest != fsm->owners.departure_digest) {
        return "a digest is wrong";
    }
    return NULL;
}
