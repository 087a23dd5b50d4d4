/* The state machine from inside: shared by fsm*.c, snapshot*.c and invariants.c, by nobody else. */
#ifndef FSM_FSM_STATE_H_
#define FSM_FSM_STATE_H_

#include "fsm/base/buf.h"
#include "fsm/fsm.h"
#include "fsm/lease_table.h"
#include "fsm/marks.h"
#include "fsm/origin_table.h"
#include "fsm/owner_index.h"

struct fsm {
    /* The state. All of it is in snapshot and digest, or follows from what is. */
    bool born;
    struct cluster_identity identity;
    struct settings settings;
    uint64_t index;
    uint64_t clock_ms;
    uint64_t token;        /* the last one drawn */
    uint64_t lost_ms;      /* cluster time of the last loss of state: birth, restore, recovery */
    uint64_t grace_end_ms; /* when the last GRACE that was answered ends */
    /* What ended before the first, and origins that were heard last before the second, are
     * forgotten, removed or not, and stay so: both only grow (fsm_forget.c). */
    uint64_t forgotten_before_ms;
    uint64_t silent_before_ms;
    struct lease_table table;
    struct owner_index owners;
    struct marks marks;
    struct origin_table origins;

    /* Scratch of one command, meaningless between two. */
    struct changes *changes; /* of the last entry */
    uint32_t place;          /* of the command that is applied, or POSITION_PLACE_END */
    struct buf result;
    struct buf grants; /* keys that the command gave its caller anew */
    uint32_t grant_count;
    struct outcome *outcomes; /* owned */
    size_t outcome_cap;
    struct departure *departures; /* owned */
    size_t departure_cap;
    /* Marks of what waits for removal, as they were found for this forgotten_before_ms. */
    struct forgotten waiting;
    uint64_t waiting_before_ms;
};

static inline struct position fsm_position(const struct fsm *fsm)
{
    return (struct position){.index = fsm->index, .place = fsm->place};
}

/* The end of a period; it never ends where the sum does not fit. */
static inline uint64_t fsm_after_ms(uint64_t start_ms, uint64_t period_ms)
{
    uint64_t end_ms;
    return add_u64(start_ms, period_ms, &end_ms) ? end_ms : EXPIRY_NEVER;
}

/* --- fsm.c */

uint64_t fsm_draw_token(struct fsm *fsm);
void fsm_set_settings(struct fsm *fsm, const struct settings *settings);
void fsm_set_identity(struct fsm *fsm, const struct cluster_identity *identity);

/* --- fsm_forget.c: what age and room make of tombstones, purges, owners and origins. */

/* The clock or a retention changed. */
void fsm_forget_advance(struct fsm *fsm);

/* Removes a slice of whatever is dead or forgotten; tidying is the caller's. */
void fsm_sweep(struct fsm *fsm);

/* Whether a tombstone of this end is forgotten by age. */
static inline bool fsm_forgotten_end(const struct fsm *fsm, uint64_t ended_ms)
{
    return ended_ms < fsm->forgotten_before_ms;
}

/* The marks of everything that is forgotten, removed or not. Looks at all that waits for removal,
 * unless fsm_forgotten_refresh did so since the clock moved. */
struct forgotten fsm_forgotten(const struct fsm *fsm);
void fsm_forgotten_refresh(struct fsm *fsm);
/* Whether a tombstone with a larger token is forgotten. */
bool fsm_forgotten_after(struct fsm *fsm, uint64_t token);

/* The origin of this number, or NULL. One that is forgotten by age is removed, so that whether
 * removal came that far makes no difference. */
struct origin *fsm_meet_origin(struct fsm *fsm, uint64_t number);

/* --- fsm_lease.c: what the beginning and the end of a lease mean for everything else. */

/* Due or under a mark at this clock: absent, removed or not. */
static inline bool fsm_lease_dead(const struct lease *lease, uint64_t now_ms)
{
    return lease->expiry_ms < now_ms || lease_marked(lease);
}

/* Why and when a dead lease ended. */
struct tombstone_end fsm_dead_end(const struct lease *lease);

/* Ends a lease: change, departure, tombstone, mark; frees it. */
void fsm_lease_end(struct fsm *fsm, struct lease *lease, enum end_reason reason,
                   uint64_t ended_ms);
void fsm_lease_end_dead(struct fsm *fsm, struct lease *lease);

/* The live lease of the key, or NULL. A dead one is ended, and a tombstone that is due forgotten,
 * so that whether removal came that far makes no difference. */
struct lease *fsm_meet(struct fsm *fsm, struct space *space, struct slice key);

/* Removes every lease that is dead now. */
void fsm_end_all_dead(struct fsm *fsm);

/* A new lease, or another grant of a live one. */
struct lease *fsm_lease_begin(struct fsm *fsm, const struct op *op, const struct key_item *item,
                              enum lease_state state);
void fsm_lease_regrant(struct fsm *fsm, struct lease *lease, const struct op *op,
                       const struct key_item *item);

void fsm_note(struct fsm *fsm, enum change_kind kind, const struct lease *lease,
              struct slice previous_owner);

/* --- fsm_keys.c, fsm_sets.c, fsm_admin.c: carry out one operation, fill in the result. */

void fsm_apply_keys(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_renew_all(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_release_all(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_purge(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_open_origin(struct fsm *fsm, struct result *out_result);
void fsm_apply_settle(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_birth(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_restore(struct fsm *fsm, const struct op *op, struct result *out_result);
void fsm_apply_recover(struct fsm *fsm, const struct op *op, struct result *out_result);

/* --- fsm_query.c */

/* Cluster time since which an absent key is unowned; `space` may be NULL. */
uint64_t fsm_unowned_since(const struct fsm *fsm, const struct space *space, struct slice key);

#endif
