/* Which nodes are known and where they are reached, and the file that remembers it.
 *
 * A node's id never changes, its address may. The address that a node says of itself on its own
 * link counts; what others say of it only fills a gap. The file is a hint and no more: without it a
 * node needs one seed, with it it finds its cluster again by itself. Pure: text in, text out. */
#ifndef NODE_PEERS_H_
#define NODE_PEERS_H_

#include "fsm/base/buf.h"
#include "fsm/base/status.h"

#define PEERS_MAX 1024u
#define PEER_ADDRESS_LEN_MAX 128u /* with the NUL */
#define PEERS_FILE_LEN_MAX (256u * 1024u)

struct peer {
    uint64_t id;
    char address[PEER_ADDRESS_LEN_MAX];
    bool told_by_itself;
};

struct peers {
    struct peer *items; /* owned, in the order of ids */
    uint32_t count;
    char self_address[PEER_ADDRESS_LEN_MAX]; /* where this node listened last; "" at first */
};

void peers_init(struct peers *peers);
void peers_deinit(struct peers *peers);

/* Learn an address. True when something changed. Refused (false) for id 0, for an address that is
 * too long, and for a new peer beyond PEERS_MAX. */
bool peers_learn(struct peers *peers, uint64_t id, struct slice address, bool told_by_itself);

/* NULL when unknown. Valid until the next peers_learn. */
const struct peer *peers_find(const struct peers *peers, uint64_t id);

/* The file's text. */
void peers_encode(const struct peers *peers, struct buf *out);

/* Take over what a file says. STATUS_MALFORMED leaves the peers as they were. */
NODISCARD enum status peers_decode(struct peers *peers, struct slice text);

#endif
