/* Values are chosen so that every width of integer and of text header occurs. */
#include "tests/client/samples.h"

#define TEXT(literal)                                                                              \
    {                                                                                              \
        .base = (const uint8_t *)(literal), .len = sizeof(literal) - 1                             \
    }
#define LONG_TEXT                                                                                  \
    "a text that is longer than thirty-one bytes and so has a header of its own, and more than "   \
    "two hundred and fifty-five bytes together with what follows here: 0123456789 0123456789 "     \
    "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"

static const struct key_item one_key[] = {{.key = TEXT("sbx-1")}};
static const struct key_item full_key[] = {{
    .key = TEXT("\xc3\xa4-key"),
    .has_if_token = true,
    .if_token = UINT64_MAX,
    .meta = TEXT("http://127.0.0.1:8080\0\xff"),
    .identity = TEXT(""),
}};
static const struct key_item many_keys[] = {
    {.key = TEXT("a")},
    {.key = TEXT("b"), .has_if_token = true, .if_token = 7},
    {.key = TEXT("a")},
    {.key = TEXT("c"), .meta = TEXT(""), .identity = TEXT("0123456789abcdef0123456789abcdef")},
};

static const struct request_sample request_table[] = {
    {"hello", {.id = 1, .method = PROTO_METHOD_HELLO, .client_version = 1}},
    {"take",
     {.id = 2,
      .method = PROTO_METHOD_TAKE,
      .op = {.kind = OP_KIND_TAKE,
             .owner = TEXT("host:1"),
             .ttl_ms = 30000,
             .keys = one_key,
             .key_count = 1}}},
    {"claim_everything",
     {.id = 300,
      .method = PROTO_METHOD_CLAIM,
      .deadline_ns = 5000000000,
      .client_version = 1,
      .op = {.kind = OP_KIND_CLAIM,
             .ns = TEXT("team-1"),
             .owner = TEXT(LONG_TEXT),
             .ttl_ms = 86400000,
             .destroy = true,
             .adopt = true,
             .grace_ms = 600000,
             .keys = full_key,
             .key_count = 1}}},
    {"claim_adopt_without_grace",
     {.id = 4,
      .method = PROTO_METHOD_CLAIM,
      .op = {.kind = OP_KIND_CLAIM,
             .owner = TEXT("o"),
             .ttl_ms = 10,
             .adopt = true,
             .keys = one_key,
             .key_count = 1}}},
    {"renew_many",
     {.id = 70000,
      .method = PROTO_METHOD_RENEW,
      .op = {.kind = OP_KIND_RENEW,
             .owner = TEXT("host:1"),
             .ttl_ms = 100,
             .reestablish = true,
             .keys = many_keys,
             .key_count = 4}}},
    {"heartbeat",
     {.id = UINT32_MAX,
      .method = PROTO_METHOD_HEARTBEAT,
      .op = {.kind = OP_KIND_HEARTBEAT,
             .owner = TEXT("host:1"),
             .ttl_ms = 2000,
             .keys = one_key,
             .key_count = 1}}},
    {"release",
     {.id = 7,
      .method = PROTO_METHOD_RELEASE,
      .op = {.kind = OP_KIND_RELEASE,
             .owner = TEXT("host:1"),
             .keys = &many_keys[1],
             .key_count = 1}}},
    {"renew_all",
     {.id = 8,
      .method = PROTO_METHOD_RENEW_ALL,
      .op = {.kind = OP_KIND_RENEW_ALL,
             .owner = TEXT("host:1"),
             .ttl_ms = 30000,
             .has_set_version = true,
             .set_version = 0}}},
    {"release_all",
     {.id = 9,
      .method = PROTO_METHOD_RELEASE_ALL,
      .op = {.kind = OP_KIND_RELEASE_ALL, .owner = TEXT("host:1")}}},
    {"purge",
     {.id = 10, .method = PROTO_METHOD_PURGE, .op = {.kind = OP_KIND_PURGE, .ns = TEXT("team-1")}}},
    {"owner_many",
     {.id = 11,
      .method = PROTO_METHOD_OWNER,
      .stale = true,
      .op = {.keys = one_key, .key_count = 1}}},
    {"list",
     {.id = 12,
      .method = PROTO_METHOD_LIST,
      .stale = true,
      .prefix = TEXT("sbx-"),
      .after = TEXT("sbx-0"),
      .state = LEASE_STATE_DEL,
      .limit = 1000,
      .op = {.ns = TEXT("team-1"), .owner = TEXT("host:1")}}},
    {"count",
     {.id = 13, .method = PROTO_METHOD_COUNT, .prefix = TEXT(""), .state = LEASE_STATE_OWN}},
    {"status", {.id = 14, .method = PROTO_METHOD_STATUS}},
    {"members", {.id = 15, .method = PROTO_METHOD_MEMBERS}},
    {"metrics", {.id = 16, .method = PROTO_METHOD_METRICS}},
    {"cluster_init",
     {.id = 17,
      .method = PROTO_METHOD_CLUSTER_INIT,
      .has_token_floor = true,
      .token_floor = 65536,
      .voters_wanted = 3}},
    {"cluster_transfer",
     {.id = 18, .method = PROTO_METHOD_CLUSTER_TRANSFER, .node_id = UINT64_MAX}},
};

const struct request_sample *request_samples(size_t *out_count)
{
    *out_count = sizeof request_table / sizeof request_table[0];
    return request_table;
}

#define HOLDER                                                                                     \
    {                                                                                              \
        .owner = TEXT("host:2"), .state = LEASE_STATE_OWN, .token = 9, .ms_left = 700              \
    }
#define AT                                                                                         \
    {                                                                                              \
        .index = 5, .place = 2                                                                     \
    }
#define OUTCOME(...)                                                                               \
    {                                                                                              \
        .outcome = {__VA_ARGS__}, .position = AT, .clock_ms = 1000                                 \
    }
static const struct keyed_outcome outcomes[] = {
    OUTCOME(.kind = OUTCOME_KIND_GRANTED, .token = 1, .expiry_ms = 31000),
    OUTCOME(.kind = OUTCOME_KIND_GRANTED, .token = 70000, .expiry_ms = 31000, .held_before = true),
    OUTCOME(.kind = OUTCOME_KIND_GRANTED, .token = 5000000000, .expiry_ms = 31000,
            .holder = HOLDER),
    OUTCOME(.kind = OUTCOME_KIND_HELD, .holder = HOLDER),
    OUTCOME(.kind = OUTCOME_KIND_TEARDOWN,
            .holder = {.owner = TEXT("me"), .state = LEASE_STATE_DEL, .token = 3, .ms_left = 0}),
    OUTCOME(.kind = OUTCOME_KIND_GRACE, .grace_ms_left = 599999),
    OUTCOME(.kind = OUTCOME_KIND_RENEWED, .token = 1, .expiry_ms = 1010),
    OUTCOME(.kind = OUTCOME_KIND_LAPSED),
    OUTCOME(.kind = OUTCOME_KIND_LOST, .holder = HOLDER),
    OUTCOME(.kind = OUTCOME_KIND_REESTABLISHED, .token = 8, .expiry_ms = 31000),
    OUTCOME(.kind = OUTCOME_KIND_RELEASED),
    OUTCOME(.kind = OUTCOME_KIND_NOT_OWNER),
    OUTCOME(.kind = OUTCOME_KIND_STALE, .holder = HOLDER),
    OUTCOME(.kind = OUTCOME_KIND_MISMATCH, .holder = HOLDER),
    OUTCOME(.kind = OUTCOME_KIND_UNAVAILABLE, .limit = LIMIT_KIND_LEASES),
    OUTCOME(.kind = OUTCOME_KIND_UNAVAILABLE, .limit = LIMIT_KIND_LEASES_PER_NAMESPACE),
    OUTCOME(.kind = OUTCOME_KIND_UNKNOWN),
    {.outcome = {.kind = OUTCOME_KIND_RENEWED, .token = 1, .expiry_ms = 1999},
     .position = {.index = 4, .place = 0},
     .clock_ms = 999},
};

static const struct departure departures[] = {
    {TEXT("a"), 1, END_REASON_RELEASED}, {TEXT("b"), 2, END_REASON_EXPIRED},
    {TEXT("c"), 3, END_REASON_TAKEN},    {TEXT("d"), 4, END_REASON_SETTLED},
    {TEXT("e"), 5, END_REASON_PURGED},   {TEXT("f"), 6, END_REASON_RESTORED},
    {TEXT("g"), 7, END_REASON_TEARDOWN},
};

static const struct lease_view leases[] = {
    {.ns = TEXT("default"),
     .key = TEXT("a"),
     .owner = TEXT("host:1"),
     .state = LEASE_STATE_OWN,
     .ttl_ms = 30000,
     .expiry_ms = 20000,
     .token = 12,
     .since_ms = 0},
    {.ns = {0}},
    {.ns = TEXT("default"),
     .key = TEXT("b"),
     .owner = TEXT("host:2"),
     .state = LEASE_STATE_DEL,
     .ttl_ms = 86400000,
     .expiry_ms = 86401000,
     .token = UINT64_MAX,
     .since_ms = 999,
     .meta = TEXT(LONG_TEXT),
     .identity = TEXT("\x00\xff")},
};

static const struct proto_field fields[] = {
    {.name = TEXT("state"), .kind = PROTO_VALUE_KIND_TEXT, .text = TEXT("leader")},
    {.name = TEXT("ready"), .kind = PROTO_VALUE_KIND_BOOL, .number = 1},
    {.name = TEXT("term"), .kind = PROTO_VALUE_KIND_U64, .number = 4},
    {.name = TEXT("state"), .kind = PROTO_VALUE_KIND_TEXT, .text = TEXT("")},
    {.name = TEXT("ready"), .kind = PROTO_VALUE_KIND_BOOL, .number = 0},
    {.name = TEXT("term"), .kind = PROTO_VALUE_KIND_U64, .number = UINT64_MAX},
};

static const struct reply_sample reply_table[] = {
    {"take",
     {.id = 1,
      .method = PROTO_METHOD_TAKE,
      .position = AT,
      .clock_ms = 1000,
      .outcomes = outcomes,
      .outcome_count = 1}},
    {"claim_every_outcome",
     {.id = 2,
      .method = PROTO_METHOD_CLAIM,
      .position = AT,
      .clock_ms = 1000,
      .outcomes = outcomes,
      .outcome_count = sizeof outcomes / sizeof outcomes[0]}},
    {"renew_all",
     {.id = 3,
      .method = PROTO_METHOD_RENEW_ALL,
      .position = AT,
      .clock_ms = 1000,
      .count = 10000,
      .set_version = 77,
      .departures = departures,
      .departure_count = sizeof departures / sizeof departures[0]}},
    {"renew_all_list_again",
     {.id = 4,
      .method = PROTO_METHOD_RENEW_ALL,
      .position = AT,
      .clock_ms = 1000,
      .set_version = 78,
      .list_again = true}},
    {"purge", {.id = 5, .method = PROTO_METHOD_PURGE, .position = AT, .count = 3}},
    {"owner",
     {.id = 6,
      .method = PROTO_METHOD_OWNER,
      .position = {.index = UINT64_MAX, .place = POSITION_PLACE_END},
      .clock_ms = 1000,
      .leases = leases,
      .lease_count = 3}},
    {"list_stale",
     {.id = 7,
      .method = PROTO_METHOD_LIST,
      .position = {.index = 9, .place = POSITION_PLACE_END},
      .clock_ms = 1000,
      .stale = true,
      .leases = leases,
      .lease_count = 1,
      .more = true}},
    {"count", {.id = 8, .method = PROTO_METHOD_COUNT, .count = 256}},
    {"status", {.id = 9, .method = PROTO_METHOD_STATUS, .fields = fields, .field_count = 3}},
    {"members",
     {.id = 10, .method = PROTO_METHOD_MEMBERS, .fields = fields, .field_count = 6, .row_len = 3}},
    {"members_none", {.id = 11, .method = PROTO_METHOD_MEMBERS}},
    {"cluster_transfer", {.id = 12, .method = PROTO_METHOD_CLUSTER_TRANSFER}},
    {"error_invalid",
     {.id = 13,
      .method = PROTO_METHOD_TAKE,
      .status = STATUS_INVALID,
      .violation = {.field = "ttl_ms", .value = "9", .rule = RULE_TTL_MS}}},
    {"error_no_leader", {.id = 14, .method = PROTO_METHOD_TAKE, .status = STATUS_NO_LEADER}},
    {"error_unknown", {.id = 15, .method = PROTO_METHOD_TAKE, .status = STATUS_LEADERSHIP_LOST}},
    {"error_limit",
     {.id = 16,
      .method = PROTO_METHOD_TAKE,
      .status = STATUS_LIMIT,
      .detail = TEXT("leases 1000000")}},
    {"error_of_connection", {.id = 0, .status = STATUS_BUSY}},
};

const struct reply_sample *reply_samples(size_t *out_count)
{
    *out_count = sizeof reply_table / sizeof reply_table[0];
    return reply_table;
}
