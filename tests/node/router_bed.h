/* A router between callers who are written down and a leader who is played: the test bed of
 * node/router.
 *
 * Every sending is kept with its encoded command. A test decides what becomes of each: `bed_apply`
 * puts it into a log (a real state machine, in the order of the calls), `bed_reply` hands the
 * result back, `bed_refuse` says why not, and whatever is not done is lost. Time passes only by
 * `bed_run`. */
#ifndef TESTS_NODE_ROUTER_BED_H_
#define TESTS_NODE_ROUTER_BED_H_

#include "fsm/fsm.h"
#include "fsm/result.h"
#include "node/router.h"

#define BED_MS 1000000ull
#define BED_SENDINGS_MAX 65536u
#define BED_CALLS_MAX 20000u

struct bed_sending {
    struct router_ticket ticket;
    bool here;
    uint64_t peer_id;
    uint64_t term;
    uint64_t at_ns;
    uint64_t deadline_ns;
    struct buf command; /* encoded */
    enum op_kind kind;
    uint64_t origin;
    uint64_t sequence;
    uint64_t confirmed;
    bool applied;
    bool withdrawn;
    struct buf result;
    enum status result_status;
};

struct bed_call {
    struct proto_request asked;
    struct key_item key;
    char key_text[24];
    char owner_text[24];
    uint64_t deadline_ns;
    struct request *request; /* NULL: refused, answered and delivered, or abandoned */
    unsigned replies;
    uint64_t replied_ns;
    enum status status;
    uint32_t outcome_count;
    enum outcome_kind outcome; /* of the first key */
    bool held_before;
    uint64_t token;
    uint64_t count;
    enum outcome_kind *outcomes; /* owned: all of them */
};

struct bed {
    struct router *router;
    struct fsm *fsm;
    uint64_t index;
    uint64_t clock_ms;
    uint64_t now_ns;
    struct route route;
    struct bed_sending *sendings;
    uint32_t sending_count;
    struct bed_call *calls;
    uint32_t call_count;
    bool withdrawable; /* the replica here submits nothing: what it has can be taken back */
    uint32_t withdrawn;
    bool keep_replies; /* replies are not delivered; the test calls bed_deliver */
    /* Effects of reads, the last of each kind. */
    struct read_effect read_last;
    uint32_t reads_asked_here;
    uint32_t reads_asked_peer;
    uint32_t reads_waited;
    uint32_t reads_cancelled;
    uint32_t queries;
    uint32_t answers;
    bool answers_due; /* the table would show a due lease */
};

/* A cluster that is born; this node is 1 and leads in term 1. */
void bed_init(struct bed *bed, uint64_t seed);
void bed_deinit(struct bed *bed);

void bed_lead(struct bed *bed, uint64_t term);
void bed_follow(struct bed *bed, uint64_t peer_id, uint64_t term);
void bed_orphan(struct bed *bed); /* no leader is known */

/* Time passes, timers fire, effects are carried out. */
void bed_run(struct bed *bed, uint64_t ms);
void bed_turn(struct bed *bed);

/* take `key` for `owner` with a TTL of 60 s and this deadline; runs a turn. Returns the call's
 * index. */
uint32_t bed_take(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms);
uint32_t bed_claim(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms);
uint32_t bed_renew(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms);
uint32_t bed_owner(struct bed *bed, const char *key, uint64_t deadline_ms);

/* Anything; the request is copied but not what it borrows. Its status where it was refused. */
enum status bed_submit(struct bed *bed, const struct proto_request *asked, uint64_t deadline_ms,
                       uint32_t *out_call);
void bed_deliver(struct bed *bed, uint32_t call, bool wholly);
void bed_abandon(struct bed *bed, uint32_t call);

/* Into the log; again for a copy. */
void bed_apply(struct bed *bed, uint32_t sending);
void bed_reply(struct bed *bed, uint32_t sending);
void bed_refuse(struct bed *bed, uint32_t sending, enum status status);
/* The state machine's answer is this status and nothing else. */
void bed_answer(struct bed *bed, uint32_t sending, enum op_kind kind, enum status status);

/* Apply and answer everything that was sent and not applied yet, until nothing comes any more. */
void bed_settle_all(struct bed *bed);

/* Open the origin, so that a test begins with its own commands: sendings are forgotten. */
void bed_open(struct bed *bed);

/* The holder of a key in the state machine; an absent slice when there is none. */
struct slice bed_holder(const struct bed *bed, const char *key);

#endif
