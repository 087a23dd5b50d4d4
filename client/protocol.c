/* What both ends of the local API share: where a message ends, the names of the methods, memory.
 *
 * A message ends where its MessagePack object ends; mp_scan() finds that without allocating, so
 * that a header that promises four billion elements costs nothing (hazard I1). Objects are then
 * laid out by msgpack-c in a zone that is cleared and used again: no allocation per message. */
#include "client/protocol.h"

#include <stdlib.h>

#include <msgpack.h>

#include "client/protocol_internal.h"
#include "fsm/base/mp_scan.h"

#define ZONE_CHUNK_LEN (16u * 1024u) /* holds the objects of any request on a few keys */

static enum proto_verdict begin_scan(struct proto_scanner *scanner, struct slice bytes);
static bool integer_at(struct slice bytes, size_t *at, uint64_t *out_value);
static bool header_of(struct slice bytes, uint64_t *out_type, uint64_t *out_id);

const char *proto_method_name(enum proto_method method)
{
    switch (method) {
    case PROTO_METHOD_HELLO:
        return "hello";
    case PROTO_METHOD_TAKE:
        return "take";
    case PROTO_METHOD_CLAIM:
        return "claim";
    case PROTO_METHOD_RENEW:
        return "renew";
    case PROTO_METHOD_HEARTBEAT:
        return "heartbeat";
    case PROTO_METHOD_RELEASE:
        return "release";
    case PROTO_METHOD_RENEW_ALL:
        return "renew_all";
    case PROTO_METHOD_RELEASE_ALL:
        return "release_all";
    case PROTO_METHOD_PURGE:
        return "purge";
    case PROTO_METHOD_OWNER:
        return "owner";
    case PROTO_METHOD_LIST:
        return "list";
    case PROTO_METHOD_COUNT:
        return "count";
    case PROTO_METHOD_STATUS:
        return "status";
    case PROTO_METHOD_MEMBERS:
        return "members";
    case PROTO_METHOD_METRICS:
        return "metrics";
    case PROTO_METHOD_CLUSTER_INIT:
        return "cluster_init";
    case PROTO_METHOD_CLUSTER_TRANSFER:
        return "cluster_transfer";
    }
    CHECK(false);
    return NULL;
}

bool proto_method_admin(enum proto_method method)
{
    return method == PROTO_METHOD_PURGE || method == PROTO_METHOD_CLUSTER_INIT ||
           method == PROTO_METHOD_CLUSTER_TRANSFER;
}

enum proto_verdict proto_scan(struct slice bytes, size_t *out_len)
{
    struct proto_scanner scanner;
    proto_scanner_init(&scanner);
    return proto_scanner_look(&scanner, bytes, out_len);
}

void proto_scanner_init(struct proto_scanner *scanner)
{
    scanner->begun = false;
}

enum proto_verdict proto_scanner_look(struct proto_scanner *scanner, struct slice bytes,
                                      size_t *out_len)
{
    if (!scanner->begun) {
        enum proto_verdict verdict = begin_scan(scanner, bytes);
        if (verdict != PROTO_VERDICT_WHOLE) {
            return verdict;
        }
    }
    switch (mp_scanner_look(&scanner->object, bytes, out_len)) {
    case MP_SCAN_WHOLE:
        scanner->begun = false;
        return PROTO_VERDICT_WHOLE;
    case MP_SCAN_MORE:
        return PROTO_VERDICT_MORE;
    case MP_SCAN_REFUSED:
        return PROTO_VERDICT_REFUSED;
    }
    CHECK(false);
    return PROTO_VERDICT_REFUSED;
}

/* An array of four, or refused at once: whatever else is there would be read to its end only to be
 * refused then. WHOLE once the first two bytes say which limits hold. */
static enum proto_verdict begin_scan(struct proto_scanner *scanner, struct slice bytes)
{
    if (bytes.len > 0 && bytes.base[0] != 0x94 && bytes.base[0] != 0xdc && bytes.base[0] != 0xdd) {
        return PROTO_VERDICT_REFUSED;
    }
    if (bytes.len < 2) {
        return PROTO_VERDICT_MORE;
    }
    bool reply = bytes.base[0] == 0x94 && bytes.base[1] == PROTO_TYPE_REPLY;
    struct mp_scan_limits limits = {
        .depth = PROTOCOL_DEPTH_MAX,
        .items = reply ? PROTO_REPLY_ITEMS_MAX : PROTO_REQUEST_ITEMS_MAX,
        .len = MESSAGE_LEN_MAX,
    };
    mp_scanner_init(&scanner->object, &limits);
    scanner->begun = true;
    return PROTO_VERDICT_WHOLE;
}

struct proto_decoder *proto_decoder_create(void)
{
    struct proto_decoder *decoder = calloc(1, sizeof *decoder);
    CHECK(decoder != NULL);
    decoder->zone = msgpack_zone_new(ZONE_CHUNK_LEN);
    CHECK(decoder->zone != NULL);
    return decoder;
}

void proto_decoder_destroy(struct proto_decoder *decoder)
{
    if (decoder == NULL) {
        return;
    }
    msgpack_zone_free(decoder->zone);
    free(decoder->items);
    free(decoder->outcomes);
    free(decoder->departures);
    free(decoder->leases);
    free(decoder->fields);
    free(decoder);
}

enum status proto_reply_id(struct slice bytes, uint32_t *out_id)
{
    uint64_t type = 0;
    uint64_t id = 0;
    if (!header_of(bytes, &type, &id) || type != PROTO_TYPE_REPLY || id > UINT32_MAX) {
        return STATUS_MALFORMED;
    }
    *out_id = (uint32_t)id;
    return STATUS_OK;
}

void *proto_room(void *array, uint32_t *cap, uint32_t count, size_t size)
{
    if (count <= *cap) {
        return array;
    }
    free(array);
    void *room = calloc(count, size);
    CHECK(room != NULL);
    *cap = count;
    return room;
}

const struct msgpack_object *proto_unpack(struct proto_decoder *decoder, struct slice bytes,
                                          uint32_t items, struct msgpack_object *object)
{
    struct mp_scan_limits limits = {
        .depth = PROTOCOL_DEPTH_MAX, .items = items, .len = MESSAGE_LEN_MAX};
    size_t len = 0;
    if (bytes.len == 0 || mp_scan(bytes, &limits, &len) != MP_SCAN_WHOLE || len != bytes.len) {
        return NULL;
    }
    msgpack_zone_clear(decoder->zone);
    size_t at = 0;
    if (msgpack_unpack((const char *)bytes.base, bytes.len, &at, decoder->zone, object) !=
            MSGPACK_UNPACK_SUCCESS ||
        at != bytes.len) {
        return NULL;
    }
    return object;
}

bool proto_slice_of(const struct msgpack_object *object, struct slice *out_slice)
{
    if (object->type == MSGPACK_OBJECT_STR) {
        *out_slice = slice_from(object->via.str.ptr, object->via.str.size);
    } else if (object->type == MSGPACK_OBJECT_BIN) {
        *out_slice = slice_from(object->via.bin.ptr, object->via.bin.size);
    } else {
        return false;
    }
    if (out_slice->len == 0) {
        *out_slice = slice_text("");
    }
    return true;
}

void proto_pack_text(struct msgpack_packer *packer, struct slice text)
{
    (void)msgpack_pack_str_with_body(packer, text.len == 0 ? "" : (const char *)text.base,
                                     text.len);
}

void proto_pack_bytes(struct msgpack_packer *packer, struct slice bytes)
{
    (void)msgpack_pack_bin_with_body(packer, bytes.len == 0 ? "" : (const char *)bytes.base,
                                     bytes.len);
}

struct proto_map proto_map_begin(struct buf *out, struct msgpack_packer *packer)
{
    struct proto_map map = {.out = out, .packer = packer, .at = out->len};
    buf_append_u8(out, 0x80);
    return map;
}

void proto_map_end(const struct proto_map *map)
{
    CHECK(map->count <= 15);
    if (map->at < map->out->len) {
        map->out->base[map->at] = (uint8_t)(0x80u | map->count);
    }
}

void proto_map_name(struct proto_map *map, const char *name)
{
    /* Names are shorter than 32 bytes: their header is one byte, as the map's is. */
    size_t len = strlen(name);
    CHECK(len < 32);
    buf_append_u8(map->out, (uint8_t)(0xa0u | len));
    buf_append(map->out, name, len);
    map->count++;
}

void proto_map_u64(struct proto_map *map, const char *name, uint64_t value)
{
    proto_map_name(map, name);
    (void)msgpack_pack_uint64(map->packer, value);
}

void proto_map_bool(struct proto_map *map, const char *name, bool value)
{
    proto_map_name(map, name);
    (void)(value ? msgpack_pack_true(map->packer) : msgpack_pack_false(map->packer));
}

void proto_map_text(struct proto_map *map, const char *name, struct slice text)
{
    proto_map_name(map, name);
    proto_pack_text(map->packer, text);
}

void proto_map_optional_text(struct proto_map *map, const char *name, struct slice text)
{
    if (text.base != NULL) {
        proto_map_text(map, name, text);
    }
}

void proto_map_optional_bytes(struct proto_map *map, const char *name, struct slice bytes)
{
    if (bytes.base != NULL) {
        proto_map_name(map, name);
        proto_pack_bytes(map->packer, bytes);
    }
}

/* The first two elements of a message, read in place: laying a whole reply out only to learn whose
 * it is would double the cost of the largest. */
static bool header_of(struct slice bytes, uint64_t *out_type, uint64_t *out_id)
{
    size_t at = 0;
    if (bytes.len >= 1 && bytes.base[0] == 0x94) {
        at = 1;
    } else if (bytes.len >= 3 && bytes.base[0] == 0xdc && bytes.base[1] == 0 &&
               bytes.base[2] == 4) {
        at = 3;
    } else {
        return false;
    }
    return integer_at(bytes, &at, out_type) && integer_at(bytes, &at, out_id);
}

static bool integer_at(struct slice bytes, size_t *at, uint64_t *out_value)
{
    if (*at >= bytes.len) {
        return false;
    }
    uint8_t lead = bytes.base[(*at)++];
    if (lead <= 0x7f) {
        *out_value = lead;
        return true;
    }
    if (lead < 0xcc || lead > 0xcf) {
        return false;
    }
    size_t width = (size_t)1 << (lead - 0xcc);
    if (bytes.len - *at < width) {
        return false;
    }
    *out_value = 0;
    for (size_t i = 0; i < width; i++) {
        *out_value = *out_value << 8 | bytes.base[(*at)++];
    }
    return true;
}
