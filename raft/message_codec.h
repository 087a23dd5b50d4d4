/* What two replicas say to each other <-> bytes.
 *
 * Six kinds are libraft's own messages, the others are ours: confirmation rounds of reads, and the
 * pieces of a snapshot. Layout, all numbers little-endian: format version (1 byte), kind (1 byte),
 * libraft's version of the message (1 byte), flags (1 byte), CRC-32C of all the rest (4 bytes),
 * then the fields of the kind in the order of their declaration. docs/protocol.md lists them;
 * golden bytes pin them.
 *
 * A decoder meets bytes of another process, so that nothing is trusted: every length and count is
 * compared with what is there before it is used, and whatever libraft would take on trust (it
 * follows the lengths inside a configuration entry without a look at the end) is checked here. The
 * sender is not in the bytes: the link has authenticated it.
 *
 * Pure. Driven by raft/replica. */
#ifndef RAFT_MESSAGE_CODEC_H_
#define RAFT_MESSAGE_CODEC_H_

#include <raft.h>

#include "fsm/base/buf.h"
#include "fsm/types.h"

#define MESSAGE_FORMAT_VERSION 1u

/* Entries in one message. libraft sends a follower as many as may be unacknowledged by it, and is
 * told this number for that. */
#define MESSAGE_ENTRIES_MAX 64u

/* Members of a configuration; a bootstrapped one must fit one block of 4 KiB. */
#define MESSAGE_MEMBERS_MAX 64u

#define MESSAGE_SNAPSHOT_LEN_MAX (1024ull * 1024 * 1024)
#define MESSAGE_CHUNK_LEN_MAX (64u * 1024u)

/* No message is longer: a full one of entries, and room for its headers. */
#define MESSAGE_PEER_LEN_MAX (MESSAGE_ENTRIES_MAX * (ENTRY_LEN_MAX + 16u) + 64u)

enum message_kind {
    MESSAGE_KIND_APPEND_ENTRIES = 1,
    MESSAGE_KIND_APPEND_ENTRIES_RESULT = 2,
    MESSAGE_KIND_REQUEST_VOTE = 3,
    MESSAGE_KIND_REQUEST_VOTE_RESULT = 4,
    MESSAGE_KIND_SNAPSHOT_BEGIN = 5, /* an InstallSnapshot without its data */
    MESSAGE_KIND_TIMEOUT_NOW = 6,
    MESSAGE_KIND_READ_CONFIRM = 16,
    MESSAGE_KIND_READ_CONFIRM_RESULT = 17,
    MESSAGE_KIND_SNAPSHOT_CHUNK = 18,
    MESSAGE_KIND_SNAPSHOT_ACK = 19,
};

/* "Is it still so that nobody has a later term than mine?" and the answer. */
struct message_confirm {
    uint64_t term;
    uint64_t nonce;
    bool ok; /* results only */
};

struct message_chunk {
    uint64_t transfer; /* number of the transfer that it belongs to */
    uint64_t offset;
    struct slice bytes; /* borrows from the decoded bytes */
};

struct message_ack {
    uint64_t transfer;
    uint64_t received; /* bytes in order from the beginning */
    bool refused;      /* the receiver can't take it; stop */
};

struct message {
    enum message_kind kind;
    uint64_t transfer; /* SNAPSHOT_BEGIN: its number */
    union {
        /* Kinds 1 to 6. Of SNAPSHOT_BEGIN, install_snapshot.data has the announced length and no
         * base. server_id and server_address are not part of the bytes. */
        struct raft_message raft;
        struct message_confirm confirm;
        struct message_chunk chunk;
        struct message_ack ack;
    };
};

/* Append the bytes of one message. Of AppendEntries there must be at most MESSAGE_ENTRIES_MAX
 * entries (CHECK). */
void message_encode(const struct message *message, struct buf *out);

/* The kind that carries a message of libraft. */
enum message_kind message_kind_of(const struct raft_message *message);

/* Exactly one message in `bytes`. STATUS_OK; STATUS_INCOMPATIBLE for another format version;
 * STATUS_MALFORMED; STATUS_NO_MEMORY. On OK the memory inside *out_message is from raft_malloc, one
 * batch for all entries, as libraft wants to own it; give it to libraft or to message_release. */
NODISCARD enum status message_decode(struct slice bytes, struct message *out_message);

/* Free what decoding allocated. */
void message_release(struct message *message);

/* True for the bytes of a configuration that libraft can decode: every length inside, ids unique
 * and not 0, each address the id in decimal, roles that exist. */
bool message_configuration_valid(struct slice bytes);

#endif
