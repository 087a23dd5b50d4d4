/* What the codecs of this folder share: packing fields into and reading fields out of MessagePack.
 *
 * Reading is strict: a field has exactly the type it must have, or the whole object is malformed.
 * `mp_open` looks at the bytes before msgpack-c may allocate by what they announce, so that memory
 * is bounded by the length of the input (hazard I1). Included by codecs and the snapshot only. */
#ifndef FSM_MP_CODEC_H_
#define FSM_MP_CODEC_H_

#include <msgpack.h>

#include "fsm/base/buf.h"
#include "fsm/base/mp_scan.h"

/* Fields of an array that are read one after the other. A wrong type or a missing field sets
 * `failed`; whoever reads checks it once at the end with mp_fields_done. */
struct mp_fields {
    const msgpack_object *next;
    uint32_t left;
    bool failed;
};

static inline void mp_packer_init(msgpack_packer *packer, struct buf *out)
{
    msgpack_packer_init(packer, out, buf_write_cb);
}

static inline void mp_pack_bin(msgpack_packer *packer, struct slice bytes)
{
    (void)msgpack_pack_bin_with_body(packer, bytes.len == 0 ? "" : (const char *)bytes.base,
                                     bytes.len);
}

/* An absent slice (base NULL) becomes nil. */
static inline void mp_pack_optional_bin(msgpack_packer *packer, struct slice bytes)
{
    if (bytes.base == NULL) {
        (void)msgpack_pack_nil(packer);
    } else {
        mp_pack_bin(packer, bytes);
    }
}

static inline void mp_pack_u64(msgpack_packer *packer, uint64_t value)
{
    (void)msgpack_pack_uint64(packer, value);
}

static inline void mp_pack_optional_u64(msgpack_packer *packer, bool has, uint64_t value)
{
    if (has) {
        mp_pack_u64(packer, value);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

static inline void mp_pack_bool(msgpack_packer *packer, bool value)
{
    (void)(value ? msgpack_pack_true(packer) : msgpack_pack_false(packer));
}

static inline void mp_pack_array(msgpack_packer *packer, size_t count)
{
    (void)msgpack_pack_array(packer, count);
}

/* Exactly one object in `bytes`, laid out in `zone` (cleared first). False when malformed. */
static inline bool mp_open(struct slice bytes, const struct mp_scan_limits *limits,
                           msgpack_zone *zone, msgpack_object *out_object)
{
    size_t len = 0;
    if (bytes.len == 0 || mp_scan(bytes, limits, &len) != MP_SCAN_WHOLE || len != bytes.len) {
        return false;
    }
    msgpack_zone_clear(zone);
    size_t at = 0;
    return msgpack_unpack((const char *)bytes.base, bytes.len, &at, zone, out_object) ==
               MSGPACK_UNPACK_SUCCESS &&
           at == bytes.len;
}

/* The fields of an array; failed from the start when the object is none. */
static inline struct mp_fields mp_fields_of(const msgpack_object *object)
{
    if (object == NULL || object->type != MSGPACK_OBJECT_ARRAY) {
        return (struct mp_fields){.failed = true};
    }
    return (struct mp_fields){.next = object->via.array.ptr, .left = object->via.array.size};
}

/* True when nothing failed and nothing is left over. */
static inline bool mp_fields_done(const struct mp_fields *fields)
{
    return !fields->failed && fields->left == 0;
}

/* The next field, or NULL. */
static inline const msgpack_object *mp_read_any(struct mp_fields *fields)
{
    if (fields->failed || fields->left == 0) {
        fields->failed = true;
        return NULL;
    }
    fields->left--;
    return fields->next++;
}

/* The next field if it has this type, else NULL and failed. */
static inline const msgpack_object *mp_read_typed(struct mp_fields *fields,
                                                  msgpack_object_type type)
{
    const msgpack_object *object = mp_read_any(fields);
    if (object == NULL || object->type != type) {
        fields->failed = true;
        return NULL;
    }
    return object;
}

static inline uint64_t mp_read_u64(struct mp_fields *fields)
{
    const msgpack_object *object = mp_read_typed(fields, MSGPACK_OBJECT_POSITIVE_INTEGER);
    return object == NULL ? 0 : object->via.u64;
}

/* A whole number in min..max. */
static inline uint64_t mp_read_u64_within(struct mp_fields *fields, uint64_t min, uint64_t max)
{
    uint64_t value = mp_read_u64(fields);
    if (value < min || value > max) {
        fields->failed = true;
    }
    return value;
}

static inline bool mp_read_bool(struct mp_fields *fields)
{
    const msgpack_object *object = mp_read_typed(fields, MSGPACK_OBJECT_BOOLEAN);
    return object != NULL && object->via.boolean;
}

/* Never absent: an empty field has a base and length 0. */
static inline struct slice mp_read_bin(struct mp_fields *fields)
{
    const msgpack_object *object = mp_read_typed(fields, MSGPACK_OBJECT_BIN);
    if (object == NULL || object->via.bin.size == 0) {
        return slice_from("", 0);
    }
    return slice_from(object->via.bin.ptr, object->via.bin.size);
}

/* True and skipped when the next field is nil. */
static inline bool mp_read_nil(struct mp_fields *fields)
{
    if (fields->failed || fields->left == 0 || fields->next->type != MSGPACK_OBJECT_NIL) {
        return false;
    }
    fields->left--;
    fields->next++;
    return true;
}

static inline struct slice mp_read_optional_bin(struct mp_fields *fields)
{
    return mp_read_nil(fields) ? slice_from(NULL, 0) : mp_read_bin(fields);
}

static inline uint64_t mp_read_optional_u64(struct mp_fields *fields, bool *out_has)
{
    *out_has = !mp_read_nil(fields);
    return *out_has ? mp_read_u64(fields) : 0;
}

#endif
