/* What the files of the local API's codec share: the decoder's memory, the shape of a message, and
 * reading a MessagePack map by the names that are known. Included by client/protocol*.c only. */
#ifndef CLIENT_PROTOCOL_INTERNAL_H_
#define CLIENT_PROTOCOL_INTERNAL_H_

#include "client/protocol.h"

struct msgpack_object;
struct msgpack_packer;
struct msgpack_zone;

/* First element of a message (MessagePack-RPC). */
#define PROTO_TYPE_REQUEST 0u
#define PROTO_TYPE_REPLY   1u

/* Objects in one message. A key of a request is a map of four names, a newer client may know as
 * many again; an outcome is a map of ten with a holder of four in it. Beside them: metrics and
 * members. */
#define PROTO_PARAMS_MAX        64u
#define PROTO_REQUEST_ITEMS_MAX (KEYS_MAX * 16u + 4u * PROTO_PARAMS_MAX)
#define PROTO_REPLY_ITEMS_MAX   (KEYS_MAX * 32u + 65536u)

#define PROTO_FIELD_LEN_MAX 64u /* of an error's field and rule, as far as a client keeps them */
#define PROTO_RULE_LEN_MAX  192u

/* Arrays grow to the largest message seen and are used again; all owned. */
struct proto_decoder {
    struct msgpack_zone *zone;
    struct key_item *items;
    struct keyed_outcome *outcomes;
    struct departure *departures;
    struct lease_view *leases;
    struct proto_field *fields;
    uint32_t item_cap;
    uint32_t outcome_cap;
    uint32_t departure_cap;
    uint32_t lease_cap;
    uint32_t field_cap;
    char field[PROTO_FIELD_LEN_MAX + 1];
    char rule[PROTO_RULE_LEN_MAX + 1];
};

/* `array` with room for `count` elements of `size` bytes; its old contents need not survive. */
void *proto_room(void *array, uint32_t *cap, uint32_t count, size_t size);

/* Exactly one object with at most `items` in it; borrows from bytes and from the decoder's zone,
 * which is cleared first. NULL: malformed. */
const struct msgpack_object *proto_unpack(struct proto_decoder *decoder, struct slice bytes,
                                          uint32_t items, struct msgpack_object *object);

/* True when the object is text or bytes; an empty one has a base. */
bool proto_slice_of(const struct msgpack_object *object, struct slice *out_slice);

/* Packing: names and texts as str, opaque bytes as bin. */
void proto_pack_text(struct msgpack_packer *packer, struct slice text);
void proto_pack_bytes(struct msgpack_packer *packer, struct slice bytes);

/* A map whose number of pairs is known only at its end; at most 15 of them, so that its header is
 * one byte. */
struct proto_map {
    struct buf *out;
    struct msgpack_packer *packer;
    size_t at; /* of the header byte */
    unsigned count;
};
struct proto_map proto_map_begin(struct buf *out, struct msgpack_packer *packer);
void proto_map_end(const struct proto_map *map);

/* The name of the next pair; its value is packed by the caller. */
void proto_map_name(struct proto_map *map, const char *name);
void proto_map_u64(struct proto_map *map, const char *name, uint64_t value);
void proto_map_bool(struct proto_map *map, const char *name, bool value);
void proto_map_text(struct proto_map *map, const char *name, struct slice text);

/* Nothing when the slice is absent. */
void proto_map_optional_text(struct proto_map *map, const char *name, struct slice text);
void proto_map_optional_bytes(struct proto_map *map, const char *name, struct slice bytes);

/* Names of a reply's map, in the order in which they are written. */
enum reply_slot {
    REPLY_SLOT_INDEX,
    REPLY_SLOT_PLACE,
    REPLY_SLOT_CLOCK_MS,
    REPLY_SLOT_STALE,
    REPLY_SLOT_OUTCOMES,
    REPLY_SLOT_COUNT,
    REPLY_SLOT_SET_VERSION,
    REPLY_SLOT_LIST_AGAIN,
    REPLY_SLOT_DEPARTURES,
    REPLY_SLOT_LEASES,
    REPLY_SLOT_MORE,
    REPLY_SLOT_FIELDS,
    REPLY_SLOT_MEMBERS,
    REPLY_SLOT_NAMES,
};

/* True where a reply to this method has that name. */
bool proto_method_answers(enum proto_method method, enum reply_slot slot);

#endif
