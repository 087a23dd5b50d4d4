/* Frames of the peer links <-> structs: the header of every frame, and the link's own frames. Pure.
 *
 *   header   u32 length of the payload, u8 type, u8 flags (0), u16 reserved (0)
 *   HELLO, WELCOME
 *            "TNRL", u16 lowest and u16 highest protocol version, 16 bytes cluster id, u64
 *            generation, u64 generation's random part, u64 node id, u64 instance, u8 length and
 *            bytes of the address where the sender is reached
 *   REFUSED  "TNRL", u8 code, u16 length and bytes of a sentence
 *   PING     nothing
 *
 * All numbers are little-endian. Bytes behind the last field of HELLO, WELCOME and REFUSED are
 * ignored, so that a later version may add some and still be told apart by its version numbers.
 * Decoding trusts nothing. */
#ifndef NODE_LINK_FRAME_H_
#define NODE_LINK_FRAME_H_

#include "fsm/base/buf.h"
#include "fsm/types.h"
#include "node/transport.h"

#define LINK_FRAME_HEADER_LEN 8u
#define LINK_FRAME_VERSION_MIN 1u
#define LINK_FRAME_VERSION_MAX 1u
#define LINK_FRAME_HELLO_LEN_MAX 1024u /* a stranger may send no more than one of these */
#define LINK_FRAME_ADDRESS_LEN_MAX 63u
#define LINK_FRAME_WHY_LEN_MAX 400u

enum link_frame_verdict {
    LINK_FRAME_VERDICT_WHOLE,
    LINK_FRAME_VERDICT_MORE,
    LINK_FRAME_VERDICT_REFUSED,
};

struct link_frame {
    enum frame_type type;
    struct slice payload; /* borrowed from the input */
};

/* The longest payload of that type; 0 for types that may have none and for unknown ones. */
size_t link_frame_len_max(enum frame_type type);

/* True for the types that the owner of the links gets to see. */
bool link_frame_for_owner(enum frame_type type);

/* Look at the front of the stream; *out_frame and *out_len (header included) where WHOLE. A length
 * beyond the type's maximum is refused as soon as the header is there. */
enum link_frame_verdict link_frame_scan(struct slice bytes, struct link_frame *out_frame,
                                        size_t *out_len);

/* Append a header; the payload follows. */
void link_frame_head(enum frame_type type, size_t payload_len, struct buf *out);

struct link_greeting {
    uint16_t version_min;
    uint16_t version_max;
    struct cluster_identity identity; /* all zero: in no cluster yet */
    uint64_t node_id;                 /* 0: none yet */
    uint64_t instance;                /* random, drawn at each start */
    char address[LINK_FRAME_ADDRESS_LEN_MAX + 1];
};

/* Append a whole frame; `type` is HELLO or WELCOME. */
void link_frame_greet(enum frame_type type, const struct link_greeting *greeting, struct buf *out);

/* STATUS_MALFORMED. The address is printable ASCII, nothing else is promised of it. */
NODISCARD enum status link_frame_read_greeting(struct slice payload,
                                               struct link_greeting *out_greeting);

/* Why a greeting was refused. The values are part of the peer protocol. */
enum link_refusal {
    LINK_REFUSAL_VERSION = 1,
    LINK_REFUSAL_CLUSTER = 2,       /* another cluster, or another generation of it */
    LINK_REFUSAL_UNINITIALISED = 3, /* the refuser is in no cluster yet */
    LINK_REFUSAL_DUPLICATE = 4,     /* another connection of the pair stays */
    LINK_REFUSAL_SELF = 5,          /* both ends are the same node */
    LINK_REFUSAL_MALFORMED = 6,
    LINK_REFUSAL_BUSY = 7,          /* no room for another peer */
};

struct link_refused {
    enum link_refusal code; /* may be a number of a later version */
    char why[LINK_FRAME_WHY_LEN_MAX + 1]; /* printable ASCII */
};

void link_frame_refuse(enum link_refusal code, const char *why, struct buf *out);
NODISCARD enum status link_frame_read_refused(struct slice payload,
                                              struct link_refused *out_refused);

/* A cluster's identity for people: 32 hexadecimal digits, '.', generation, '.', 16 digits. */
#define LINK_IDENTITY_TEXT_LEN 96u
void link_identity_text(const struct cluster_identity *identity,
                        char out_text[LINK_IDENTITY_TEXT_LEN]);
bool link_identity_equal(const struct cluster_identity *a, const struct cluster_identity *b);
bool link_identity_none(const struct cluster_identity *identity);

#endif
