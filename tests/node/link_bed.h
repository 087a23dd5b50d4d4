/* A few nodes' links in one loop, on loopback and ports that the system chooses, with what each was
 * told; and a raw socket that can say anything to one of them. */
#ifndef TESTS_NODE_LINK_BED_H_
#define TESTS_NODE_LINK_BED_H_

#include "node/link.h"
#include "node/link_frame.h"
#include "tests/node/drive.h"

#define BED_NODES 3u
#define BED_PEERS 32u /* ids are below this */

struct link_bed;

struct bed_node {
    struct link_bed *bed;
    struct links *links;
    uint64_t id;
    unsigned up[BED_PEERS];
    unsigned down[BED_PEERS];
    unsigned silent[BED_PEERS];
    unsigned heard[BED_PEERS];
    unsigned frames;
    size_t frame_bytes;
    enum frame_type last_type;
    unsigned query_at; /* the how-manieth frame the last one was that is not bulk */
    uint64_t last_sequence; /* first eight bytes of the last frame */
    bool out_of_order;
    unsigned refused;
    char why[512];
    char refused_address[128];
    unsigned met;
    struct cluster_identity met_identity;
    uint64_t met_id;
    char met_address[128];
    bool take_over; /* in on_cluster_met: become a member with id `id` */
    bool closed;
};

struct link_bed {
    struct loop *loop;
    struct bed_node nodes[BED_NODES];
};

extern const struct cluster_identity bed_identity;
extern const struct cluster_identity bed_foreign;

void bed_open(struct link_bed *bed);
void bed_close(struct link_bed *bed);

/* Start node `idx` under that id; identity NULL: in no cluster. */
struct bed_node *bed_start(struct link_bed *bed, unsigned idx, uint64_t id,
                           const struct cluster_identity *identity);
void bed_stop(struct bed_node *node);
void bed_introduce(struct bed_node *node, const struct bed_node *peer);

/* Runs until both have exactly one link to each other that is up. */
bool bed_linked(struct bed_node *a, struct bed_node *b);

/* Send a frame with that sequence and length at least 8. */
bool bed_send(struct bed_node *from, const struct bed_node *to, bool bulk, uint64_t sequence,
              size_t len);

/* A blocking socket connected to the node; what it reads ends after a second of nothing. */
int bed_connect(const struct bed_node *node);

/* Write all, run the loop until the other end has closed: everything that it sent is in `out`. */
bool bed_say_until_closed(struct link_bed *bed, int fd, struct slice bytes, struct buf *out);

#endif
