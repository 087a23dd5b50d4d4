/* A cursor that remembers whether it ran out stands in for a check at every field. */
#include "node/link_frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fsm/base/check.h"

#define MAGIC "TNRL"
#define MAGIC_LEN 4u
#define SMALL_LEN_MAX 4096u

/* A command is at most an entry; a batch that is forwarded whole may be some of them. */
#define FORWARD_LEN_MAX (1024u * 1024u)
#define FORWARD_REPLY_LEN_MAX (UNCONFIRMED_LEN_MAX + SMALL_LEN_MAX)
#define PEERS_LEN_MAX (256u * 1024u)

_Static_assert(FORWARD_LEN_MAX > ENTRY_LEN_MAX, "what fits an entry can be forwarded");
_Static_assert(MESSAGE_LEN_MAX + SMALL_LEN_MAX <= FRAME_LEN_MAX, "a request fits a query");

struct cursor {
    const uint8_t *base;
    size_t len;
    bool short_; /* something did not fit */
};

static const uint8_t *take(struct cursor *cursor, size_t len);
static uint64_t take_number(struct cursor *cursor, unsigned width);
static void take_printable(struct cursor *cursor, size_t len, char *out_text, size_t len_max);
static bool take_magic(struct cursor *cursor);

size_t link_frame_len_max(enum frame_type type)
{
    switch (type) {
    case FRAME_TYPE_HELLO:
    case FRAME_TYPE_WELCOME:
    case FRAME_TYPE_REFUSED:
        return LINK_FRAME_HELLO_LEN_MAX;
    case FRAME_TYPE_PING:
        return 0;
    case FRAME_TYPE_REPLICA:
        return FRAME_REPLICA_LEN_MAX;
    case FRAME_TYPE_FORWARD:
        return FORWARD_LEN_MAX;
    case FRAME_TYPE_FORWARD_REPLY:
        return FORWARD_REPLY_LEN_MAX;
    case FRAME_TYPE_QUERY:
        return MESSAGE_LEN_MAX + SMALL_LEN_MAX;
    case FRAME_TYPE_QUERY_REPLY:
        return FRAME_LEN_MAX;
    case FRAME_TYPE_PEERS:
        return PEERS_LEN_MAX;
    case FRAME_TYPE_READ_POINT:
    case FRAME_TYPE_READ_POINT_REPLY:
    case FRAME_TYPE_LEADER:
    case FRAME_TYPE_ADMIT:
    case FRAME_TYPE_ADMIT_REPLY:
        return SMALL_LEN_MAX;
    }
    return 0;
}

bool link_frame_for_owner(enum frame_type type)
{
    return type >= FRAME_TYPE_REPLICA && link_frame_len_max(type) > 0;
}

enum link_frame_verdict link_frame_scan(struct slice bytes, struct link_frame *out_frame,
                                        size_t *out_len)
{
    if (bytes.len < LINK_FRAME_HEADER_LEN) {
        return LINK_FRAME_VERDICT_MORE;
    }
    struct cursor cursor = {.base = bytes.base, .len = bytes.len};
    size_t len = (size_t)take_number(&cursor, 4);
    enum frame_type type = (enum frame_type)take_number(&cursor, 1);
    uint64_t rest = take_number(&cursor, 3); /* flags and reserved */
    bool known = type == FRAME_TYPE_PING || link_frame_len_max(type) > 0;
    if (!known || rest != 0 || len > link_frame_len_max(type)) {
        return LINK_FRAME_VERDICT_REFUSED;
    }
    if (cursor.len < len) {
        return LINK_FRAME_VERDICT_MORE;
    }
    *out_frame = (struct link_frame){.type = type, .payload = slice_from(cursor.base, len)};
    *out_len = LINK_FRAME_HEADER_LEN + len;
    return LINK_FRAME_VERDICT_WHOLE;
}

void link_frame_head(enum frame_type type, size_t payload_len, struct buf *out)
{
    CHECK(payload_len <= link_frame_len_max(type));
    buf_append_u32(out, (uint32_t)payload_len);
    buf_append_u8(out, (uint8_t)type);
    buf_append_u8(out, 0);
    buf_append_u16(out, 0);
}

void link_frame_greet(enum frame_type type, const struct link_greeting *greeting, struct buf *out)
{
    CHECK(type == FRAME_TYPE_HELLO || type == FRAME_TYPE_WELCOME);
    size_t address_len = strlen(greeting->address);
    CHECK(address_len <= LINK_FRAME_ADDRESS_LEN_MAX);
    size_t len = MAGIC_LEN + 2 + 2 + CLUSTER_ID_LEN + 8 + 8 + 8 + 8 + 1 + address_len;
    link_frame_head(type, len, out);
    buf_append(out, MAGIC, MAGIC_LEN);
    buf_append_u16(out, greeting->version_min);
    buf_append_u16(out, greeting->version_max);
    buf_append(out, greeting->identity.id, CLUSTER_ID_LEN);
    buf_append_u64(out, greeting->identity.generation);
    buf_append_u64(out, greeting->identity.generation_random);
    buf_append_u64(out, greeting->node_id);
    buf_append_u64(out, greeting->instance);
    buf_append_u8(out, (uint8_t)address_len);
    buf_append(out, greeting->address, address_len);
}

enum status link_frame_read_greeting(struct slice payload, struct link_greeting *out_greeting)
{
    struct cursor cursor = {.base = payload.base, .len = payload.len};
    struct link_greeting greeting = {0};
    if (!take_magic(&cursor)) {
        return STATUS_MALFORMED;
    }
    greeting.version_min = (uint16_t)take_number(&cursor, 2);
    greeting.version_max = (uint16_t)take_number(&cursor, 2);
    const uint8_t *id = take(&cursor, CLUSTER_ID_LEN);
    if (id != NULL) {
        memcpy(greeting.identity.id, id, CLUSTER_ID_LEN);
    }
    greeting.identity.generation = take_number(&cursor, 8);
    greeting.identity.generation_random = take_number(&cursor, 8);
    greeting.node_id = take_number(&cursor, 8);
    greeting.instance = take_number(&cursor, 8);
    size_t address_len = (size_t)take_number(&cursor, 1);
    take_printable(&cursor, address_len, greeting.address, LINK_FRAME_ADDRESS_LEN_MAX);
    if (cursor.short_ || greeting.version_min > greeting.version_max) {
        return STATUS_MALFORMED;
    }
    *out_greeting = greeting;
    return STATUS_OK;
}

void link_frame_refuse(enum link_refusal code, const char *why, struct buf *out)
{
    size_t why_len = strnlen(why, LINK_FRAME_WHY_LEN_MAX);
    link_frame_head(FRAME_TYPE_REFUSED, MAGIC_LEN + 1 + 2 + why_len, out);
    buf_append(out, MAGIC, MAGIC_LEN);
    buf_append_u8(out, (uint8_t)code);
    buf_append_u16(out, (uint16_t)why_len);
    buf_append(out, why, why_len);
}

enum status link_frame_read_refused(struct slice payload, struct link_refused *out_refused)
{
    struct cursor cursor = {.base = payload.base, .len = payload.len};
    struct link_refused refused = {0};
    if (!take_magic(&cursor)) {
        return STATUS_MALFORMED;
    }
    refused.code = (enum link_refusal)take_number(&cursor, 1);
    size_t why_len = (size_t)take_number(&cursor, 2);
    take_printable(&cursor, why_len, refused.why, LINK_FRAME_WHY_LEN_MAX);
    if (cursor.short_) {
        return STATUS_MALFORMED;
    }
    *out_refused = refused;
    return STATUS_OK;
}

void link_identity_text(const struct cluster_identity *identity,
                        char out_text[LINK_IDENTITY_TEXT_LEN])
{
    size_t len = 0;
    for (unsigned i = 0; i < CLUSTER_ID_LEN; i++) {
        (void)snprintf(out_text + len, LINK_IDENTITY_TEXT_LEN - len, "%02x",
                       (unsigned)identity->id[i]);
        len += 2;
    }
    (void)snprintf(out_text + len, LINK_IDENTITY_TEXT_LEN - len, ".%" PRIu64 ".%016" PRIx64,
                   identity->generation, identity->generation_random);
}

bool link_identity_equal(const struct cluster_identity *a, const struct cluster_identity *b)
{
    return memcmp(a->id, b->id, CLUSTER_ID_LEN) == 0 && a->generation == b->generation &&
           a->generation_random == b->generation_random;
}

bool link_identity_none(const struct cluster_identity *identity)
{
    struct cluster_identity none = {0};
    return link_identity_equal(identity, &none);
}

static const uint8_t *take(struct cursor *cursor, size_t len)
{
    if (cursor->short_ || len > cursor->len) {
        cursor->short_ = true;
        return NULL;
    }
    const uint8_t *at = cursor->base;
    cursor->base += len;
    cursor->len -= len;
    return at;
}

static uint64_t take_number(struct cursor *cursor, unsigned width)
{
    const uint8_t *bytes = take(cursor, width);
    uint64_t number = 0;
    for (unsigned i = 0; bytes != NULL && i < width; i++) {
        number |= (uint64_t)bytes[i] << (8 * i);
    }
    return number;
}

/* Anything that is not printable, or longer than may be, counts as missing. */
static void take_printable(struct cursor *cursor, size_t len, char *out_text, size_t len_max)
{
    const uint8_t *bytes = take(cursor, len);
    if (bytes == NULL || len > len_max) {
        cursor->short_ = true;
        return;
    }
    for (size_t i = 0; i < len; i++) {
        cursor->short_ |= bytes[i] < 0x20 || bytes[i] >= 0x7f;
        out_text[i] = (char)bytes[i];
    }
    out_text[len] = '\0';
}

static bool take_magic(struct cursor *cursor)
{
    const uint8_t *magic = take(cursor, MAGIC_LEN);
    return magic != NULL && memcmp(magic, MAGIC, MAGIC_LEN) == 0;
}
