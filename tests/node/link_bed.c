/* Each turn end flushes all links, as the composition root does. */
#include "tests/node/link_bed.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/address.h"

const struct cluster_identity bed_identity = {
    .id = {0xaa, 0xbb}, .generation = 1, .generation_random = 5};
const struct cluster_identity bed_foreign = {
    .id = {0xcc, 0xdd}, .generation = 1, .generation_random = 6};

static void set_self(struct bed_node *node, const struct cluster_identity *identity)
{
    struct link_self self = {.node_id = identity != NULL ? node->id : 0};
    if (identity != NULL) {
        self.identity = *identity;
    }
    (void)snprintf(self.address, sizeof self.address, "%s", links_address(node->links));
    links_set_self(node->links, &self);
}

static void on_turn_end(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct link_bed *bed = ctx;
    for (unsigned i = 0; i < BED_NODES; i++) {
        if (bed->nodes[i].links != NULL) {
            links_flush(bed->nodes[i].links);
        }
    }
}

static void on_up(void *ctx, uint64_t peer_id)
{
    struct bed_node *node = ctx;
    CHECK(peer_id < BED_PEERS && links_peer_up(node->links, peer_id));
    node->up[peer_id]++;
    CHECK(node->up[peer_id] == node->down[peer_id] + 1);
}

static void on_down(void *ctx, uint64_t peer_id)
{
    struct bed_node *node = ctx;
    CHECK(peer_id < BED_PEERS);
    node->down[peer_id]++;
    CHECK(node->up[peer_id] == node->down[peer_id]);
}

static void on_silent(void *ctx, uint64_t peer_id)
{
    struct bed_node *node = ctx;
    node->silent[peer_id]++;
}

static void on_heard(void *ctx, uint64_t peer_id)
{
    struct bed_node *node = ctx;
    CHECK(node->silent[peer_id] == node->heard[peer_id] + 1);
    node->heard[peer_id]++;
}

static void on_frame(void *ctx, uint64_t peer_id, enum frame_type type, struct slice payload)
{
    struct bed_node *node = ctx;
    CHECK(node->up[peer_id] == node->down[peer_id] + 1);
    node->frames++;
    node->frame_bytes += payload.len;
    node->last_type = type;
    if (type == FRAME_TYPE_QUERY_REPLY) {
        node->query_at = node->frames;
    }
    if (payload.len >= sizeof node->last_sequence) {
        uint64_t sequence;
        memcpy(&sequence, payload.base, sizeof sequence);
        node->out_of_order |= sequence < node->last_sequence;
        node->last_sequence = sequence;
    }
}

static void on_cluster_met(void *ctx, const struct cluster_identity *identity, uint64_t peer_id,
                           const char *address)
{
    struct bed_node *node = ctx;
    node->met++;
    node->met_identity = *identity;
    node->met_id = peer_id;
    (void)snprintf(node->met_address, sizeof node->met_address, "%s", address);
    if (node->take_over) {
        set_self(node, identity);
    }
}

static void on_refused(void *ctx, const char *address, const char *why)
{
    struct bed_node *node = ctx;
    node->refused++;
    (void)snprintf(node->why, sizeof node->why, "%s", why);
    (void)snprintf(node->refused_address, sizeof node->refused_address, "%s", address);
}

static void on_closed(void *ctx)
{
    struct bed_node *node = ctx;
    node->closed = true;
}

void bed_open(struct link_bed *bed)
{
    *bed = (struct link_bed){0};
    CHECK(loop_create(&bed->loop) == STATUS_OK);
    loop_add_turn_end(bed->loop, on_turn_end, bed);
}

void bed_close(struct link_bed *bed)
{
    for (unsigned i = 0; i < BED_NODES; i++) {
        if (bed->nodes[i].links != NULL) {
            bed_stop(&bed->nodes[i]);
        }
    }
    loop_close(bed->loop);
    loop_destroy(bed->loop);
}

struct bed_node *bed_start(struct link_bed *bed, unsigned idx, uint64_t id,
                           const struct cluster_identity *identity)
{
    struct bed_node *node = &bed->nodes[idx];
    *node = (struct bed_node){.bed = bed, .id = id};
    struct link_callbacks callbacks = {
        .ctx = node,
        .on_up = on_up,
        .on_down = on_down,
        .on_silent = on_silent,
        .on_heard = on_heard,
        .on_frame = on_frame,
        .on_cluster_met = on_cluster_met,
        .on_refused = on_refused,
    };
    struct link_config config = {.listen = "127.0.0.1:0"};
    char why[256];
    CHECK(links_open(bed->loop, &config, &callbacks, why, &node->links) == STATUS_OK);
    set_self(node, identity);
    return node;
}

void bed_stop(struct bed_node *node)
{
    struct links *links = node->links;
    node->links = NULL;
    links_close(links, on_closed, node);
    CHECK(drive(node->bed->loop, drive_flag, &node->closed));
}

void bed_introduce(struct bed_node *node, const struct bed_node *peer)
{
    links_add_peer(node->links, peer->id, links_address(peer->links));
}

struct pair {
    struct bed_node *a;
    struct bed_node *b;
};

static bool is_linked(void *ctx)
{
    struct pair *pair = ctx;
    return links_peer_up(pair->a->links, pair->b->id) && links_peer_up(pair->b->links, pair->a->id);
}

bool bed_linked(struct bed_node *a, struct bed_node *b)
{
    struct pair pair = {.a = a, .b = b};
    return drive(a->bed->loop, is_linked, &pair);
}

bool bed_send(struct bed_node *from, const struct bed_node *to, bool bulk, uint64_t sequence,
              size_t len)
{
    uint8_t *bytes = calloc(1, len);
    CHECK(bytes != NULL && len >= sizeof sequence);
    memcpy(bytes, &sequence, sizeof sequence);
    struct transport transport = links_transport(from->links);
    bool sent = transport.send(transport.ctx, to->id,
                               bulk ? FRAME_TYPE_REPLICA : FRAME_TYPE_QUERY_REPLY, bulk,
                               slice_from(bytes, len));
    free(bytes);
    return sent;
}

int bed_connect(const struct bed_node *node)
{
    struct address address;
    CHECK(address_parse(slice_text(links_address(node->links)), &address) == STATUS_OK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(address.port)};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    return fd;
}

struct talk {
    int fd;
    struct slice left;
    struct buf *out;
};

static bool is_closed(void *ctx)
{
    struct talk *talk = ctx;
    ssize_t len = send(talk->fd, talk->left.base, talk->left.len, MSG_NOSIGNAL);
    if (len > 0) {
        talk->left = slice_from(talk->left.base + len, talk->left.len - (size_t)len);
    }
    uint8_t chunk[4096];
    len = recv(talk->fd, chunk, sizeof chunk, 0);
    if (len > 0) {
        buf_append(talk->out, chunk, (size_t)len);
    }
    return len == 0 || (len < 0 && errno != EAGAIN);
}

bool bed_say_until_closed(struct link_bed *bed, int fd, struct slice bytes, struct buf *out)
{
    struct talk talk = {.fd = fd, .left = bytes, .out = out};
    bool closed = drive(bed->loop, is_closed, &talk);
    (void)close(fd);
    return closed;
}
