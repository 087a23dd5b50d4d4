/* Layout of a result, a MessagePack array:
 *
 *   status kind index place clock_ms, and where the status is OK:
 *
 *   take, claim, renew, heartbeat, release   [outcome ...]
 *   renew_all                                count set_version list_again [[key token reason] ...]
 *   release_all, purge                       count
 *   open_origin                              origin
 *   settle                                   applied ended
 *   birth, configure, restore, recover       nothing more
 *
 * An outcome is an array that starts with its kind:
 *
 *   GRANTED                                            token expiry_ms held_before holder?
 *   RENEWED, REESTABLISHED                             token expiry_ms
 *   HELD, TEARDOWN, LOST, NOT_OWNER, STALE, MISMATCH   holder?
 *   GRACE                                              grace_ms_left
 *   UNAVAILABLE                                        limit
 *   LAPSED, RELEASED, UNKNOWN                          nothing more
 *
 * A holder is [owner state token ms_left]. Statuses have numbers of their own here, since those of
 * enum status may move when the table grows. */
#include "fsm/result.h"

#include <stdlib.h>

#include "fsm/mp_codec.h"

#define HEAD_FIELDS 5u /* status kind index place clock */
#define HOLDER_FIELDS 4u
#define DEPARTURE_FIELDS 3u

/* Encoded lengths, for result_len_max: a u64 has at most 9 bytes, an array header 5, a bin header
 * of what we store 3. */
#define LEN_U64 9u
#define LEN_ARRAY 5u
#define LEN_BIN_HEADER 3u
#define LEN_HEAD (LEN_ARRAY + 5u * LEN_U64)
#define LEN_HOLDER (LEN_ARRAY + LEN_BIN_HEADER + OWNER_LEN_MAX + 3u * LEN_U64)
#define LEN_OUTCOME (LEN_ARRAY + 4u * LEN_U64 + LEN_HOLDER)
#define LEN_DEPARTURE (LEN_ARRAY + LEN_BIN_HEADER + KEY_LEN_MAX + 2u * LEN_U64)

_Static_assert((size_t)KEYS_MAX * LEN_OUTCOME < MESSAGE_LEN_MAX,
               "the outcomes of a request with the most keys fit a message");
_Static_assert(LEN_HEAD + LEN_ARRAY + 3u * LEN_U64 + DEPARTURES_MAX_MAX * LEN_DEPARTURE <
                   UNCONFIRMED_LEN_MAX,
               "one renew_all fits what an origin may have unconfirmed");

/* Numbers of the statuses on the wire. */
static const enum status wire_statuses[] = {
    STATUS_OK,      STATUS_VOID,       STATUS_FORGOTTEN,     STATUS_ORIGIN_UNKNOWN,
    STATUS_INVALID, STATUS_OVERLOADED, STATUS_UNINITIALISED,
};
#define WIRE_STATUS_COUNT (sizeof wire_statuses / sizeof wire_statuses[0])

struct result_decoder {
    struct outcome *outcomes; /* owned */
    size_t outcome_cap;
    struct departure *departures; /* owned */
    size_t departure_cap;
};

static size_t wire_status_of(enum status status);
static uint32_t body_field_count(enum op_kind kind);
static void encode_body(const struct result *result, struct buf *out);
static void encode_outcome(const struct outcome *outcome, struct buf *out);
static uint8_t *put_outcome(uint8_t *at, const struct outcome *outcome);
static uint8_t *put_holder(uint8_t *at, const struct holder *holder);
static void encode_renew_all(const struct result *result, struct buf *out);
static void decode_body(struct result_decoder *decoder, struct mp_reader *reader,
                        struct result *out_result);
static void decode_outcomes(struct result_decoder *decoder, struct mp_reader *reader,
                            struct result *out_result);
static uint32_t outcome_field_count(enum outcome_kind kind);
static void decode_outcome(struct mp_reader *reader, struct outcome *out_outcome);
static void decode_holder(struct mp_reader *reader, struct holder *out_holder);
static void decode_renew_all(struct result_decoder *decoder, struct mp_reader *reader,
                             struct result *out_result);

void result_encode(const struct result *result, struct buf *out)
{
    bool fine = result->status == STATUS_OK;
    mp_write_array(out, HEAD_FIELDS + (fine ? body_field_count(result->kind) : 0));
    mp_write_u64(out, wire_status_of(result->status));
    mp_write_u64(out, (uint64_t)result->kind);
    mp_write_u64(out, result->position.index);
    mp_write_u64(out, result->position.place);
    mp_write_u64(out, result->clock_ms);
    if (fine) {
        encode_body(result, out);
    }
}

struct result_decoder *result_decoder_create(void)
{
    struct result_decoder *decoder = calloc(1, sizeof *decoder);
    CHECK(decoder != NULL);
    return decoder;
}

void result_decoder_destroy(struct result_decoder *decoder)
{
    if (decoder == NULL) {
        return;
    }
    free(decoder->outcomes);
    free(decoder->departures);
    free(decoder);
}

enum status result_decode(struct result_decoder *decoder, struct slice bytes,
                          struct result *out_result)
{
    struct mp_reader reader = mp_reader_of(bytes);
    struct result result = {0};
    uint32_t count = mp_read_array(&reader);
    uint64_t status = mp_read_u64_within(&reader, 0, WIRE_STATUS_COUNT - 1);
    result.status = wire_statuses[status];
    result.kind = (enum op_kind)mp_read_u64_within(&reader, OP_KIND_TAKE, OP_KIND_RECOVER);
    result.position.index = mp_read_u64(&reader);
    result.position.place = (uint32_t)mp_read_u64_within(&reader, 0, UINT32_MAX);
    result.clock_ms = mp_read_u64(&reader);
    bool fine = result.status == STATUS_OK;
    if (reader.failed || count != HEAD_FIELDS + (fine ? body_field_count(result.kind) : 0)) {
        return STATUS_MALFORMED;
    }
    if (fine) {
        decode_body(decoder, &reader, &result);
    }
    if (!mp_done(&reader)) {
        return STATUS_MALFORMED;
    }
    *out_result = result;
    return STATUS_OK;
}

size_t result_len_max(const struct op *op)
{
    switch (op->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
        return LEN_HEAD + LEN_ARRAY + (size_t)op->key_count * LEN_OUTCOME;
    case OP_KIND_RENEW_ALL:
        return LEN_HEAD + 3 * LEN_U64 + LEN_ARRAY + DEPARTURES_MAX_MAX * LEN_DEPARTURE;
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
    case OP_KIND_OPEN_ORIGIN:
    case OP_KIND_SETTLE:
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return LEN_HEAD + 2 * LEN_U64;
    }
    CHECK(false);
    return 0;
}

static size_t wire_status_of(enum status status)
{
    size_t wire = 0;
    while (wire < WIRE_STATUS_COUNT && wire_statuses[wire] != status) {
        wire++;
    }
    CHECK(wire < WIRE_STATUS_COUNT);
    return wire;
}

static uint32_t body_field_count(enum op_kind kind)
{
    static const uint8_t counts[] = {
        [OP_KIND_TAKE] = 1,        [OP_KIND_CLAIM] = 1,   [OP_KIND_RENEW] = 1,
        [OP_KIND_HEARTBEAT] = 1,   [OP_KIND_RELEASE] = 1, [OP_KIND_RENEW_ALL] = 4,
        [OP_KIND_RELEASE_ALL] = 1, [OP_KIND_PURGE] = 1,   [OP_KIND_OPEN_ORIGIN] = 1,
        [OP_KIND_SETTLE] = 2,      [OP_KIND_BIRTH] = 0,   [OP_KIND_CONFIGURE] = 0,
        [OP_KIND_RESTORE] = 0,     [OP_KIND_RECOVER] = 0,
    };
    CHECK((size_t)kind < sizeof counts);
    return counts[kind];
}

static void encode_body(const struct result *result, struct buf *out)
{
    switch (result->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
        mp_write_array(out, result->outcome_count);
        for (uint32_t i = 0; i < result->outcome_count; i++) {
            encode_outcome(&result->outcomes[i], out);
        }
        return;
    case OP_KIND_RENEW_ALL:
        encode_renew_all(result, out);
        return;
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
        mp_write_u64(out, result->count);
        return;
    case OP_KIND_OPEN_ORIGIN:
        mp_write_u64(out, result->origin);
        return;
    case OP_KIND_SETTLE:
        mp_write_bool(out, result->settled_applied);
        mp_write_bool(out, result->settled_ended);
        return;
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return;
    }
    CHECK(false);
}

static uint32_t outcome_field_count(enum outcome_kind kind)
{
    static const uint8_t counts[] = {
        [OUTCOME_KIND_GRANTED] = 5,     [OUTCOME_KIND_HELD] = 2,
        [OUTCOME_KIND_TEARDOWN] = 2,    [OUTCOME_KIND_GRACE] = 2,
        [OUTCOME_KIND_RENEWED] = 3,     [OUTCOME_KIND_LAPSED] = 1,
        [OUTCOME_KIND_LOST] = 2,        [OUTCOME_KIND_REESTABLISHED] = 3,
        [OUTCOME_KIND_RELEASED] = 1,    [OUTCOME_KIND_NOT_OWNER] = 2,
        [OUTCOME_KIND_STALE] = 2,       [OUTCOME_KIND_MISMATCH] = 2,
        [OUTCOME_KIND_UNAVAILABLE] = 2, [OUTCOME_KIND_UNKNOWN] = 1,
    };
    CHECK((size_t)kind < sizeof counts && counts[kind] > 0);
    return counts[kind];
}

/* There is one for each key of a command: the room is asked for once. */
static void encode_outcome(const struct outcome *outcome, struct buf *out)
{
    uint8_t *start = buf_reserve(out, LEN_OUTCOME);
    if (start != NULL) {
        buf_commit(out, (size_t)(put_outcome(start, outcome) - start));
    }
}

static uint8_t *put_outcome(uint8_t *at, const struct outcome *outcome)
{
    at = mp_put_array(at, outcome_field_count(outcome->kind));
    at = mp_put_u64(at, (uint64_t)outcome->kind);
    switch (outcome->kind) {
    case OUTCOME_KIND_GRANTED:
        at = mp_put_u64(at, outcome->token);
        at = mp_put_u64(at, outcome->expiry_ms);
        at = mp_put_bool(at, outcome->held_before);
        return put_holder(at, &outcome->holder);
    case OUTCOME_KIND_RENEWED:
    case OUTCOME_KIND_REESTABLISHED:
        at = mp_put_u64(at, outcome->token);
        return mp_put_u64(at, outcome->expiry_ms);
    case OUTCOME_KIND_HELD:
    case OUTCOME_KIND_TEARDOWN:
    case OUTCOME_KIND_LOST:
    case OUTCOME_KIND_NOT_OWNER:
    case OUTCOME_KIND_STALE:
    case OUTCOME_KIND_MISMATCH:
        return put_holder(at, &outcome->holder);
    case OUTCOME_KIND_GRACE:
        return mp_put_u64(at, outcome->grace_ms_left);
    case OUTCOME_KIND_UNAVAILABLE:
        return mp_put_u64(at, (uint64_t)outcome->limit);
    case OUTCOME_KIND_LAPSED:
    case OUTCOME_KIND_RELEASED:
    case OUTCOME_KIND_UNKNOWN:
        return at;
    }
    CHECK(false);
    return at;
}

static uint8_t *put_holder(uint8_t *at, const struct holder *holder)
{
    if (holder->owner.base == NULL) {
        return mp_put_byte(at, MP_LEAD_NIL);
    }
    CHECK(holder->owner.len > 0 && holder->owner.len <= OWNER_LEN_MAX);
    at = mp_put_array(at, HOLDER_FIELDS);
    at = mp_put_bin_header(at, holder->owner.len);
    memcpy(at, holder->owner.base, holder->owner.len);
    at += holder->owner.len;
    at = mp_put_u64(at, (uint64_t)holder->state);
    at = mp_put_u64(at, holder->token);
    return mp_put_u64(at, holder->ms_left);
}

static void encode_renew_all(const struct result *result, struct buf *out)
{
    CHECK(result->departure_count <= DEPARTURES_MAX_MAX);
    mp_write_u64(out, result->count);
    mp_write_u64(out, result->set_version);
    mp_write_bool(out, result->list_again);
    mp_write_array(out, result->departure_count);
    for (uint32_t i = 0; i < result->departure_count; i++) {
        mp_write_array(out, DEPARTURE_FIELDS);
        mp_write_bin(out, result->departures[i].key);
        mp_write_u64(out, result->departures[i].token);
        mp_write_u64(out, (uint64_t)result->departures[i].reason);
    }
}

static void decode_body(struct result_decoder *decoder, struct mp_reader *reader,
                        struct result *out_result)
{
    switch (out_result->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
        decode_outcomes(decoder, reader, out_result);
        return;
    case OP_KIND_RENEW_ALL:
        decode_renew_all(decoder, reader, out_result);
        return;
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
        out_result->count = mp_read_u64(reader);
        return;
    case OP_KIND_OPEN_ORIGIN:
        out_result->origin = mp_read_u64(reader);
        return;
    case OP_KIND_SETTLE:
        out_result->settled_applied = mp_read_bool(reader);
        out_result->settled_ended = mp_read_bool(reader);
        return;
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return;
    }
    CHECK(false);
}

static void decode_outcomes(struct result_decoder *decoder, struct mp_reader *reader,
                            struct result *out_result)
{
    uint32_t count = mp_read_array(reader);
    if (count > KEYS_MAX) {
        mp_fail(reader);
        return;
    }
    if (count > decoder->outcome_cap) {
        struct outcome *outcomes = realloc(decoder->outcomes, count * sizeof *outcomes);
        CHECK(outcomes != NULL);
        decoder->outcomes = outcomes;
        decoder->outcome_cap = count;
    }
    for (uint32_t i = 0; i < count; i++) {
        decode_outcome(reader, &decoder->outcomes[i]);
    }
    out_result->outcomes = decoder->outcomes;
    out_result->outcome_count = count;
}

static void decode_outcome(struct mp_reader *reader, struct outcome *out_outcome)
{
    *out_outcome = (struct outcome){0};
    uint32_t count = mp_read_array(reader);
    out_outcome->kind = (enum outcome_kind)mp_read_u64_within(reader, OUTCOME_KIND_GRANTED,
                                                              OUTCOME_KIND_UNKNOWN);
    if (count != outcome_field_count(out_outcome->kind)) {
        mp_fail(reader);
        return;
    }
    switch (out_outcome->kind) {
    case OUTCOME_KIND_GRANTED:
        out_outcome->token = mp_read_u64(reader);
        out_outcome->expiry_ms = mp_read_u64(reader);
        out_outcome->held_before = mp_read_bool(reader);
        decode_holder(reader, &out_outcome->holder);
        return;
    case OUTCOME_KIND_RENEWED:
    case OUTCOME_KIND_REESTABLISHED:
        out_outcome->token = mp_read_u64(reader);
        out_outcome->expiry_ms = mp_read_u64(reader);
        return;
    case OUTCOME_KIND_HELD:
    case OUTCOME_KIND_TEARDOWN:
    case OUTCOME_KIND_LOST:
    case OUTCOME_KIND_NOT_OWNER:
    case OUTCOME_KIND_STALE:
    case OUTCOME_KIND_MISMATCH:
        decode_holder(reader, &out_outcome->holder);
        return;
    case OUTCOME_KIND_GRACE:
        out_outcome->grace_ms_left = mp_read_u64(reader);
        return;
    case OUTCOME_KIND_UNAVAILABLE:
        out_outcome->limit = (enum limit_kind)mp_read_u64_within(
            reader, LIMIT_KIND_NONE, LIMIT_KIND_LEASES_PER_NAMESPACE);
        return;
    case OUTCOME_KIND_LAPSED:
    case OUTCOME_KIND_RELEASED:
    case OUTCOME_KIND_UNKNOWN:
        return;
    }
}

static void decode_holder(struct mp_reader *reader, struct holder *out_holder)
{
    if (mp_read_lead(reader, MP_LEAD_NIL)) {
        return;
    }
    mp_read_array_of(reader, HOLDER_FIELDS);
    out_holder->owner = mp_read_bin(reader);
    out_holder->state =
        (enum lease_state)mp_read_u64_within(reader, LEASE_STATE_OWN, LEASE_STATE_DEL);
    out_holder->token = mp_read_u64(reader);
    out_holder->ms_left = mp_read_u64(reader);
    if (out_holder->owner.len < 1 || out_holder->owner.len > OWNER_LEN_MAX) {
        mp_fail(reader);
    }
}

static void decode_renew_all(struct result_decoder *decoder, struct mp_reader *reader,
                             struct result *out_result)
{
    out_result->count = mp_read_u64(reader);
    out_result->set_version = mp_read_u64(reader);
    out_result->list_again = mp_read_bool(reader);
    uint32_t count = mp_read_array(reader);
    if (count > DEPARTURES_MAX_MAX) {
        mp_fail(reader);
        return;
    }
    if (count > decoder->departure_cap) {
        struct departure *departures = realloc(decoder->departures, count * sizeof *departures);
        CHECK(departures != NULL);
        decoder->departures = departures;
        decoder->departure_cap = count;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct departure *departure = &decoder->departures[i];
        mp_read_array_of(reader, DEPARTURE_FIELDS);
        *departure = (struct departure){.key = mp_read_bin(reader)};
        departure->token = mp_read_u64(reader);
        departure->reason = (enum end_reason)mp_read_u64_within(reader, END_REASON_RELEASED,
                                                                END_REASON_TEARDOWN);
    }
    out_result->departures = decoder->departures;
    out_result->departure_count = count;
}
