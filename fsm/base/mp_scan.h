/* A look over MessagePack bytes before a library may allocate by what they announce.
 *
 * msgpack-c reserves memory by the counts in the headers, before it has seen the elements; a frame
 * of five bytes may ask for 137 GB. This scan walks one object without allocating, bounded in depth
 * and items, and tells whether it is whole. Extension types are refused: no format of ours has any.
 * (MessagePack specification, "Formats".) */
#ifndef FSM_BASE_MP_SCAN_H_
#define FSM_BASE_MP_SCAN_H_

#include "fsm/base/slice.h"
#include "fsm/base/status.h"

#define MP_SCAN_DEPTH_MAX 16u

struct mp_scan_limits {
    uint32_t depth;   /* containers inside each other, at most MP_SCAN_DEPTH_MAX */
    uint32_t items;   /* objects in all, containers and elements each count one */
    size_t len;       /* bytes that the whole object may have */
};

enum mp_scan_verdict {
    MP_SCAN_WHOLE,   /* one object is there; *out_len has its length */
    MP_SCAN_MORE,    /* what is there is fine, but it goes on */
    MP_SCAN_REFUSED, /* malformed, or beyond a limit */
};

enum mp_scan_verdict mp_scan(struct slice bytes, const struct mp_scan_limits *limits,
                             size_t *out_len);

/* The same look at an object that arrives in pieces: each call goes on where the last one ended, so
 * that a long message costs its length once, however small the pieces. */
struct mp_scanner {
    struct mp_scan_limits limits;
    uint64_t left[MP_SCAN_DEPTH_MAX + 1]; /* elements still missing, per open container */
    uint32_t top;
    uint64_t items;
    size_t at;
};

void mp_scanner_init(struct mp_scanner *scanner, const struct mp_scan_limits *limits);

/* `bytes` is all of the object that is there, from its beginning; never fewer than last time. After
 * WHOLE or REFUSED the scanner has to be initialised anew. */
enum mp_scan_verdict mp_scanner_look(struct mp_scanner *scanner, struct slice bytes,
                                     size_t *out_len);

#endif
