/* Values are chosen to differ from each other, so that two fields that are swapped show. */
#include "tests/fsm/samples.h"

#define NUMBERED .origin = 7, .sequence = 300, .confirmed = 299
#define CALLER .ns = TEXT("default"), .owner = TEXT("gw-1:2f1c")
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct key_item one_key[] = {
    {.key = TEXT("thread/42")},
};
static const struct key_item one_key_full[] = {
    {.key = TEXT("thread/\xc3\xa4"), .meta = TEXT("http://10.0.0.7:8080"),
     .identity = TEXT("\x01\x02\x03\x00\xff")},
};
static const struct key_item one_key_guarded[] = {
    {.key = TEXT("thread/42"), .has_if_token = true, .if_token = 1799999999999ull},
};
static const struct key_item three_keys[] = {
    {.key = TEXT("a"), .has_if_token = true, .if_token = 5},
    {.key = TEXT("b"), .meta = TEXT("")},
    {.key = TEXT("c"), .has_if_token = true, .if_token = UINT64_MAX, .meta = TEXT("m"),
     .identity = TEXT("i")},
};
static const struct key_item two_keys_guarded[] = {
    {.key = TEXT("a"), .has_if_token = true, .if_token = 0},
    {.key = TEXT("b")},
};

#define IDENTITY \
    .identity = {.id = {0xa0, 0xa1, 0xa2, 0xa3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xaf}, \
                 .generation = 3, .generation_random = 0x1122334455667788ull}, \
    .token_floor = 1843200000000000ull
#define SETTINGS \
    .settings = {.leases_max = 1000000, .leases_per_namespace_max = 0, .tombstones_max = 999999, \
                 .tombstone_retention_ms = 600000, .departures_max = 1024, .origins_max = 4096, \
                 .origin_retention_ms = 3600000, .removal_slice = 1000, .voters_wanted = 5}

static const struct sample_command commands[] = {
    {"take", {NUMBERED, .op = {.kind = OP_KIND_TAKE, CALLER, .ttl_ms = 90000, .keys = one_key,
                               .key_count = 1}}},
    {"take_full", {NUMBERED, .op = {.kind = OP_KIND_TAKE, CALLER, .ttl_ms = 10,
                                    .keys = one_key_full, .key_count = 1}}},
    {"claim", {NUMBERED, .op = {.kind = OP_KIND_CLAIM, CALLER, .ttl_ms = 86400000,
                                .keys = one_key_full, .key_count = 1}}},
    {"claim_destroy", {NUMBERED, .op = {.kind = OP_KIND_CLAIM, CALLER, .ttl_ms = 30000,
                                        .destroy = true, .keys = three_keys, .key_count = 3}}},
    {"claim_adopt", {NUMBERED, .op = {.kind = OP_KIND_CLAIM, CALLER, .ttl_ms = 30000,
                                      .adopt = true, .grace_ms = 120000, .keys = one_key,
                                      .key_count = 1}}},
    {"claim_adopt_zero_destroy",
     {NUMBERED, .op = {.kind = OP_KIND_CLAIM, CALLER, .ttl_ms = 30000, .adopt = true,
                       .destroy = true, .keys = one_key, .key_count = 1}}},
    {"renew", {NUMBERED, .op = {.kind = OP_KIND_RENEW, CALLER, .ttl_ms = 90001,
                                .keys = two_keys_guarded, .key_count = 2}}},
    {"renew_reestablish",
     {NUMBERED, .op = {.kind = OP_KIND_RENEW, CALLER, .ttl_ms = 90000, .reestablish = true,
                       .keys = three_keys, .key_count = 3}}},
    {"heartbeat", {NUMBERED, .op = {.kind = OP_KIND_HEARTBEAT, CALLER, .ttl_ms = 500,
                                    .keys = one_key, .key_count = 1}}},
    {"heartbeat_guarded",
     {NUMBERED, .op = {.kind = OP_KIND_HEARTBEAT, CALLER, .ttl_ms = 500,
                       .keys = one_key_guarded, .key_count = 1}}},
    {"release", {NUMBERED, .op = {.kind = OP_KIND_RELEASE, CALLER, .keys = two_keys_guarded,
                                  .key_count = 2}}},
    {"renew_all", {NUMBERED, .op = {.kind = OP_KIND_RENEW_ALL, CALLER, .ttl_ms = 90000}}},
    {"renew_all_version",
     {NUMBERED, .op = {.kind = OP_KIND_RENEW_ALL, CALLER, .ttl_ms = 90000,
                       .has_set_version = true, .set_version = 77}}},
    {"release_all", {NUMBERED, .op = {.kind = OP_KIND_RELEASE_ALL, CALLER}}},
    {"purge", {NUMBERED, .op = {.kind = OP_KIND_PURGE, .ns = TEXT("tenant:eu-1._x")}}},
    {"open_origin", {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 0xfedcba9876543210ull,
                            .nonce = 12345}}},
    {"settle", {.op = {.kind = OP_KIND_SETTLE, .target_origin = 7, .target_sequence = 301}}},
    {"birth", {.op = {.kind = OP_KIND_BIRTH, IDENTITY, SETTINGS}}},
    {"configure", {.op = {.kind = OP_KIND_CONFIGURE, SETTINGS}}},
    {"restore", {.op = {.kind = OP_KIND_RESTORE, IDENTITY}}},
    {"recover", {.op = {.kind = OP_KIND_RECOVER, IDENTITY}}},
};

#define HOLDER \
    .holder = {.owner = TEXT("gw-2:77aa"), .state = LEASE_STATE_OWN, .token = 1001, \
               .ms_left = 59999}
#define MARKER \
    .holder = {.owner = TEXT("gw-2:77aa"), .state = LEASE_STATE_DEL, .token = 1002, .ms_left = 0}
#define AT .position = {.index = 123456, .place = 2}, .clock_ms = 987654

static const struct outcome granted[] = {
    {.kind = OUTCOME_KIND_GRANTED, .token = 1003, .expiry_ms = 1077654},
};
static const struct outcome granted_before[] = {
    {.kind = OUTCOME_KIND_GRANTED, .token = 1003, .expiry_ms = 1077654, .held_before = true},
};
static const struct outcome granted_takeover[] = {
    {.kind = OUTCOME_KIND_GRANTED, .token = 1003, .expiry_ms = 1077654, HOLDER},
};
static const struct outcome every_outcome[] = {
    {.kind = OUTCOME_KIND_GRANTED, .token = UINT64_MAX, .expiry_ms = UINT64_MAX, MARKER},
    {.kind = OUTCOME_KIND_HELD, HOLDER},
    {.kind = OUTCOME_KIND_TEARDOWN, MARKER},
    {.kind = OUTCOME_KIND_GRACE, .grace_ms_left = 4321},
    {.kind = OUTCOME_KIND_RENEWED, .token = 1004, .expiry_ms = 1077655},
    {.kind = OUTCOME_KIND_LAPSED},
    {.kind = OUTCOME_KIND_LOST, HOLDER},
    {.kind = OUTCOME_KIND_REESTABLISHED, .token = 1005, .expiry_ms = 1077656},
    {.kind = OUTCOME_KIND_RELEASED},
    {.kind = OUTCOME_KIND_NOT_OWNER},
    {.kind = OUTCOME_KIND_NOT_OWNER, HOLDER},
    {.kind = OUTCOME_KIND_STALE, HOLDER},
    {.kind = OUTCOME_KIND_MISMATCH, MARKER},
    {.kind = OUTCOME_KIND_UNAVAILABLE, .limit = LIMIT_KIND_LEASES},
    {.kind = OUTCOME_KIND_UNAVAILABLE, .limit = LIMIT_KIND_LEASES_PER_NAMESPACE},
    {.kind = OUTCOME_KIND_UNKNOWN},
};
static const struct departure departures[] = {
    {.key = TEXT("a"), .token = 900, .reason = END_REASON_RELEASED},
    {.key = TEXT("bb"), .token = 901, .reason = END_REASON_TEARDOWN},
    {.key = TEXT("a"), .token = 902, .reason = END_REASON_TAKEN},
};

static const struct sample_result results[] = {
    {"take_granted", {AT, .kind = OP_KIND_TAKE, .outcomes = granted, .outcome_count = 1}},
    {"take_granted_before",
     {AT, .kind = OP_KIND_TAKE, .outcomes = granted_before, .outcome_count = 1}},
    {"take_granted_takeover",
     {AT, .kind = OP_KIND_TAKE, .outcomes = granted_takeover, .outcome_count = 1}},
    {"claim_every_outcome", {AT, .kind = OP_KIND_CLAIM, .outcomes = every_outcome,
                             .outcome_count = COUNT(every_outcome)}},
    {"renew_outcomes",
     {AT, .kind = OP_KIND_RENEW, .outcomes = every_outcome + 4, .outcome_count = 4}},
    {"heartbeat_lapsed",
     {AT, .kind = OP_KIND_HEARTBEAT, .outcomes = every_outcome + 5, .outcome_count = 1}},
    {"release_released",
     {AT, .kind = OP_KIND_RELEASE, .outcomes = every_outcome + 8, .outcome_count = 1}},
    {"renew_all", {AT, .kind = OP_KIND_RENEW_ALL, .count = 12, .set_version = 1006}},
    {"renew_all_departures",
     {AT, .kind = OP_KIND_RENEW_ALL, .count = 9, .set_version = 1007, .departures = departures,
      .departure_count = COUNT(departures)}},
    {"renew_all_list_again",
     {AT, .kind = OP_KIND_RENEW_ALL, .count = 0, .set_version = 1008, .list_again = true}},
    {"release_all", {AT, .kind = OP_KIND_RELEASE_ALL, .count = 100000}},
    {"purge", {AT, .kind = OP_KIND_PURGE, .count = 3}},
    {"open_origin", {AT, .kind = OP_KIND_OPEN_ORIGIN, .origin = 8}},
    {"settle_void", {AT, .kind = OP_KIND_SETTLE}},
    {"settle_kept", {AT, .kind = OP_KIND_SETTLE, .settled_applied = true}},
    {"settle_ended",
     {AT, .kind = OP_KIND_SETTLE, .settled_applied = true, .settled_ended = true}},
    {"birth", {AT, .kind = OP_KIND_BIRTH}},
    {"configure", {AT, .kind = OP_KIND_CONFIGURE}},
    {"restore", {AT, .kind = OP_KIND_RESTORE}},
    {"recover", {AT, .kind = OP_KIND_RECOVER}},
    {"void", {AT, .status = STATUS_VOID, .kind = OP_KIND_TAKE}},
    {"forgotten", {AT, .status = STATUS_FORGOTTEN, .kind = OP_KIND_CLAIM}},
    {"origin_unknown", {AT, .status = STATUS_ORIGIN_UNKNOWN, .kind = OP_KIND_RENEW_ALL}},
    {"invalid", {AT, .status = STATUS_INVALID, .kind = OP_KIND_CLAIM}},
    {"overloaded", {AT, .status = STATUS_OVERLOADED, .kind = OP_KIND_TAKE}},
    {"uninitialised", {AT, .status = STATUS_UNINITIALISED, .kind = OP_KIND_OPEN_ORIGIN}},
};

const struct sample_command *sample_commands(size_t *out_count)
{
    *out_count = COUNT(commands);
    return commands;
}

const struct sample_result *sample_results(size_t *out_count)
{
    *out_count = COUNT(results);
    return results;
}
