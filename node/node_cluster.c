/* A node among others: its links, the peers that it knows, joining, and the birth of a cluster.
 *
 * Joining: a node with seeds and an empty directory dials them; the first that answers says which
 * cluster it is (on_cluster_met). The node draws its id, writes both down, and from then on asks
 * whoever leads to add it, until a leader says that it is a member. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "node/node_internal.h"
#include "node/peer_frame.h"

_Static_assert((int)FRAME_ROLE_SPARE == (int)REPLICA_MEMBER_ROLE_SPARE &&
                   (int)FRAME_ROLE_STANDBY == (int)REPLICA_MEMBER_ROLE_STANDBY &&
                   (int)FRAME_ROLE_VOTER == (int)REPLICA_MEMBER_ROLE_VOTER,
               "roles travel by these numbers");

#define PATH_LEN (CONFIG_PATH_LEN_MAX + 16u)

static void data_path(const struct node *node, const char *name, char *out_path);
static void on_peers_unsaved(void *ctx, int error);
static void learn_peer(struct node *node, uint64_t peer_id, const char *address, bool itself);
static void send_peers(struct node *node, uint64_t peer_id);
static uint8_t role_of(const struct replica_member *members, unsigned count, uint64_t id);
static void learn_roles(struct node *node, const struct frame_peer *told, uint32_t count);
static void on_peers_frame(struct node *node, struct slice payload);
static void on_admit_frame(struct node *node, uint64_t peer_id, struct slice payload);
static void on_admit_reply_frame(struct node *node, struct slice payload);
static void admit_reply(struct node *node, uint64_t peer_id, enum status status);
static void on_admitted(void *ctx, enum status status);
static enum status found(struct node *node, const struct proto_request *request,
                         const char **out_detail);
static void answer_all(struct node *node, enum status status);

/* --- the peers file */

static void data_path(const struct node *node, const char *name, char *out_path)
{
    (void)snprintf(out_path, PATH_LEN, "%s/%s", node->config.data, name);
}

void node_read_peers(struct node *node)
{
    char path[PATH_LEN];
    data_path(node, "peers", path);
    node->peers_file = small_file_create(node->loop, path, on_peers_unsaved, node);
    struct buf text;
    buf_init(&text, PEERS_FILE_LEN_MAX);
    bool absent = false;
    enum status st = small_file_read(path, &text, &absent);
    if (st == STATUS_OK) {
        st = peers_decode(&node->peers, buf_slice(&text));
    }
    if (st != STATUS_OK && !absent) {
        LOG_EVENT(node->log, LOG_LEVEL_WARN, "peers_file_unread", log_text("path", path),
                  log_text("status", status_name(st)));
    }
    buf_deinit(&text);
}

void node_save_peers(struct node *node)
{
    (void)snprintf(node->peers.self_address, sizeof node->peers.self_address, "%s",
                   links_address(node->links));
    struct buf text;
    buf_init(&text, PEERS_FILE_LEN_MAX);
    peers_encode(&node->peers, &text);
    small_file_write(node->peers_file, buf_slice(&text));
    buf_deinit(&text);
    node->peers_unsaved = false;
}

static void on_peers_unsaved(void *ctx, int error)
{
    struct node *node = ctx;
    node->peers_unsaved = true; /* the next upkeep tries again */
    LOG_EVENT(node->log, LOG_LEVEL_WARN, "peers_file_unwritten",
              log_text("why", strerror(error)));
}
/* --- links */

static void on_link_up(void *ctx, uint64_t peer_id)
{
    struct node *node = ctx;
    const char *address = links_peer_address(node->links, peer_id);
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "link_up", log_id("peer", peer_id),
              log_text("address", address));
    if (address != NULL) {
        learn_peer(node, peer_id, address, true);
    }
    dispatch_peer_up(node->dispatch, peer_id, loop_now_ns(node->loop));
    send_peers(node, peer_id);
}

static void on_link_down(void *ctx, uint64_t peer_id)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_WARN, "link_down", log_id("peer", peer_id));
    if (node->phase != NODE_PHASE_CLOSING) {
        dispatch_peer_down(node->dispatch, peer_id, loop_now_ns(node->loop));
    }
}

static void on_link_silent(void *ctx, uint64_t peer_id)
{
    struct node *node = ctx;
    if (node->phase != NODE_PHASE_CLOSING) {
        dispatch_peer_silent(node->dispatch, peer_id, loop_now_ns(node->loop));
    }
}

static void on_link_heard(void *ctx, uint64_t peer_id)
{
    struct node *node = ctx;
    if (node->phase != NODE_PHASE_CLOSING) {
        dispatch_peer_heard(node->dispatch, peer_id, loop_now_ns(node->loop));
    }
}

static void on_frame(void *ctx, uint64_t peer_id, enum frame_type type, struct slice payload)
{
    struct node *node = ctx;
    if (node->phase == NODE_PHASE_CLOSING || node->failed) {
        return;
    }
    if (type == FRAME_TYPE_PEERS) {
        on_peers_frame(node, payload);
    } else if (type == FRAME_TYPE_ADMIT) {
        on_admit_frame(node, peer_id, payload);
    } else if (type == FRAME_TYPE_ADMIT_REPLY) {
        on_admit_reply_frame(node, payload);
    } else {
        uint64_t now_ns = loop_refresh_ns(node->loop);
        node_tell_stall(node); /* before what waited in it is judged */
        dispatch_receive(node->dispatch, peer_id, type, payload, now_ns);
    }
}

static void on_cluster_met(void *ctx, const struct cluster_identity *identity, uint64_t peer_id,
                           const char *address)
{
    struct node *node = ctx;
    struct replica_view view;
    replica_view(node->replica, &view);
    if (view.state != REPLICA_STATE_EMPTY || node->config.join_count == 0 ||
        node->phase != NODE_PHASE_RUNNING) {
        return;
    }
    uint64_t node_id = 0;
    while (node_id == 0) {
        if (getrandom(&node_id, sizeof node_id, 0) != (ssize_t)sizeof node_id) {
            return;
        }
    }
    enum status st = replica_join_cluster(node->replica, identity, node_id);
    LOG_EVENT(node->log, st == STATUS_OK ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "joining",
              log_id("node_id", node_id), log_id("seed", peer_id), log_text("address", address),
              log_text("status", status_name(st)));
    if (st == STATUS_OK) {
        learn_peer(node, peer_id, address, true);
        node_announce_self(node);
    }
}

static void on_link_refused(void *ctx, const char *address, const char *why)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_WARN, "link_refused", log_text("address", address),
              log_text("why", why));
}

struct link_callbacks node_link_callbacks(struct node *node)
{
    return (struct link_callbacks){
        .ctx = node,
        .on_up = on_link_up,
        .on_down = on_link_down,
        .on_silent = on_link_silent,
        .on_heard = on_link_heard,
        .on_frame = on_frame,
        .on_cluster_met = on_cluster_met,
        .on_refused = on_link_refused,
    };
}

/* Tell links who we are; while we belong to no cluster, look for one where seeds were given. */
void node_announce_self(struct node *node)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    struct link_self self = {0};
    if (view.state == REPLICA_STATE_RUNNING) {
        self.node_id = view.node_id;
        self.identity = view.identity;
        links_clear_seeds(node->links);
    }
    (void)snprintf(self.address, sizeof self.address, "%s", links_address(node->links));
    links_set_self(node->links, &self);
    /* A member whose peers all moved finds them through its seeds again. */
    for (unsigned i = 0; i < node->config.join_count; i++) {
        if (view.state != REPLICA_STATE_RUNNING || node->peers.count == 0) {
            links_add_seed(node->links, node->config.join[i]);
        }
    }
}

/* --- peers and joining */

static void learn_peer(struct node *node, uint64_t peer_id, const char *address, bool itself)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    if (peer_id == view.node_id ||
        !peers_learn(&node->peers, peer_id, slice_text(address), itself)) {
        return;
    }
    links_add_peer(node->links, peer_id, address);
    node->peers_unsaved = true;
    if (node->phase == NODE_PHASE_RUNNING) { /* when stopping the timer has another end */
        loop_timer_set(node->upkeep, loop_now_ns(node->loop));
    }
    node_tell_peers(node);
}

/* Only the leader's word on roles is worth something; it names itself too, since whoever hears it
 * lists all members. */
static void send_peers(struct node *node, uint64_t peer_id)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned member_count = view.leader ? replica_members(node->replica, members) : 0;
    struct frame_peer *known = calloc(PEERS_MAX + 1, sizeof *known);
    CHECK(known != NULL);
    uint32_t count = 0;
    if (view.leader) {
        known[count++] = (struct frame_peer){
            .id = view.node_id,
            .role = role_of(members, member_count, view.node_id),
            .address = slice_text(links_address(node->links)),
        };
    }
    for (uint32_t i = 0; i < node->peers.count && count < PEER_FRAME_PEERS_MAX; i++) {
        const struct peer *peer = &node->peers.items[i];
        known[count++] = (struct frame_peer){
            .id = peer->id,
            .role = role_of(members, member_count, peer->id),
            .address = slice_text(peer->address),
        };
    }
    struct buf payload;
    buf_init(&payload, FRAME_LEN_MAX);
    frame_peers_encode(known, count, &payload);
    struct transport transport = links_transport(node->links);
    (void)transport.send(transport.ctx, peer_id, FRAME_TYPE_PEERS, false, buf_slice(&payload));
    buf_deinit(&payload);
    free(known);
}

void node_tell_peers(struct node *node)
{
    for (uint32_t i = 0; i < node->peers.count; i++) {
        if (links_peer_up(node->links, node->peers.items[i].id)) {
            send_peers(node, node->peers.items[i].id);
        }
    }
}

static uint8_t role_of(const struct replica_member *members, unsigned count, uint64_t id)
{
    for (unsigned i = 0; i < count; i++) {
        if (members[i].id == id) {
            return (uint8_t)members[i].role;
        }
    }
    return FRAME_ROLE_UNKNOWN;
}

/* As the leader told last; a frame without any role is not the leader's. */
static void learn_roles(struct node *node, const struct frame_peer *told, uint32_t count)
{
    unsigned members = 0;
    struct replica_member known[REPLICA_MEMBERS_MAX];
    for (uint32_t i = 0; i < count && members < REPLICA_MEMBERS_MAX; i++) {
        if (told[i].role >= FRAME_ROLE_SPARE && told[i].role <= FRAME_ROLE_VOTER) {
            known[members++] = (struct replica_member){
                .id = told[i].id,
                .role = (enum replica_member_role)told[i].role,
            };
        }
    }
    if (members > 0) {
        memcpy(node->told, known, members * sizeof known[0]);
        node->told_count = members;
    }
}

static void on_peers_frame(struct node *node, struct slice payload)
{
    struct frame_peer *told = calloc(PEERS_MAX, sizeof *told);
    CHECK(told != NULL);
    uint32_t count = 0;
    if (frame_peers_decode(payload, PEERS_MAX, told, &count) != STATUS_OK) {
        count = 0;
    }
    learn_roles(node, told, count);
    for (uint32_t i = 0; i < count; i++) {
        char address[PEER_ADDRESS_LEN_MAX];
        if (told[i].address.len < sizeof address) {
            memcpy(address, told[i].address.base, told[i].address.len);
            address[told[i].address.len] = '\0';
            learn_peer(node, told[i].id, address, false);
        }
    }
    free(told);
}

void node_ask_to_be_admitted(struct node *node)
{
    struct dispatch_view known;
    dispatch_view(node->dispatch, &known);
    struct replica_view view;
    replica_view(node->replica, &view);
    struct frame_admit admit = {
        .node_id = view.node_id,
        .address = slice_text(links_address(node->links)),
    };
    struct buf payload;
    buf_init(&payload, FRAME_LEN_MAX);
    frame_admit_encode(&admit, &payload);
    struct transport transport = links_transport(node->links);
    for (uint32_t i = 0; i < node->peers.count; i++) {
        uint64_t id = node->peers.items[i].id;
        /* Whoever does not lead says who does, so asking everybody finds the leader. */
        if (known.leader_id == 0 || known.leader_id == id) {
            (void)transport.send(transport.ctx, id, FRAME_TYPE_ADMIT, false, buf_slice(&payload));
        }
    }
    buf_deinit(&payload);
}

/* Who waits for an admission to be carried out. */
struct admission {
    struct node *node;
    uint64_t peer_id;
};

static void on_admit_frame(struct node *node, uint64_t peer_id, struct slice payload)
{
    struct frame_admit admit;
    /* A node speaks for itself only. */
    if (frame_admit_decode(payload, &admit) != STATUS_OK || admit.node_id != peer_id) {
        return;
    }
    struct replica_view view;
    replica_view(node->replica, &view);
    if (!view.leader) {
        admit_reply(node, peer_id, STATUS_NOT_LEADER);
        return;
    }
    struct admission *admission = calloc(1, sizeof *admission);
    CHECK(admission != NULL);
    *admission = (struct admission){.node = node, .peer_id = peer_id};
    enum status st = replica_admit(node->replica, peer_id, on_admitted, admission);
    if (st != STATUS_OK) {
        free(admission);
        admit_reply(node, peer_id, st);
    }
}

static void on_admitted(void *ctx, enum status status)
{
    struct admission *admission = ctx;
    struct node *node = admission->node;
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "admitted", log_id("peer", admission->peer_id),
              log_text("status", status_name(status)));
    if (node->phase != NODE_PHASE_CLOSING) { /* then the links are closed too, or gone */
        admit_reply(node, admission->peer_id, status);
    }
    free(admission);
}

static void admit_reply(struct node *node, uint64_t peer_id, enum status status)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    const struct peer *leader = peers_find(&node->peers, view.leader_id);
    struct frame_admit_reply reply = {
        .status = status,
        .leader_id = view.leader_id,
        .address = leader == NULL ? (struct slice){0} : slice_text(leader->address),
    };
    struct buf payload;
    buf_init(&payload, FRAME_LEN_MAX);
    frame_admit_reply_encode(&reply, &payload);
    struct transport transport = links_transport(node->links);
    (void)transport.send(transport.ctx, peer_id, FRAME_TYPE_ADMIT_REPLY, false,
                         buf_slice(&payload));
    buf_deinit(&payload);
}

static void on_admit_reply_frame(struct node *node, struct slice payload)
{
    struct frame_admit_reply reply;
    if (frame_admit_reply_decode(payload, &reply) != STATUS_OK) {
        return;
    }
    if (reply.status == STATUS_OK) {
        node->admitted = true;
        return;
    }
    if (reply.leader_id != 0 && reply.address.len > 0 &&
        reply.address.len < PEER_ADDRESS_LEN_MAX) {
        char address[PEER_ADDRESS_LEN_MAX];
        memcpy(address, reply.address.base, reply.address.len);
        address[reply.address.len] = '\0';
        learn_peer(node, reply.leader_id, address, false);
    }
}

/* --- administration */

uint64_t node_token_floor(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seconds = t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec;
    if (seconds < TENURE_BUILD_UNIX_S) {
        return 0;
    }
    return (seconds * MS_PER_S + (uint64_t)t.tv_nsec / NS_PER_MS) * 1024;
}

/* Who asked for a cluster, and waits: also when nobody hears the answer any more, so that a birth
 * which hangs must not gather them without end. */
#define FOUNDERS_MAX 64u

struct founder {
    struct list link;
    service_later_cb cb;
    void *call;
};

/* OK: a cluster is there, or on its way. Whoever asks while it is waits for the same birth. */
static enum status on_cluster_init(void *ctx, const struct proto_request *request,
                                   const char **out_detail, service_later_cb cb, void *call)
{
    struct node *node = ctx;
    if (node->phase == NODE_PHASE_CLOSING) {
        return STATUS_CLOSING; /* the founders have been told already */
    }
    if (node->founder_count >= FOUNDERS_MAX) {
        *out_detail = "64 requests wait for the birth of the cluster already, which goes on";
        return STATUS_OVERLOADED;
    }
    struct replica_view view;
    replica_view(node->replica, &view);
    if (view.state != REPLICA_STATE_RUNNING) {
        if (node->phase != NODE_PHASE_RUNNING) {
            return STATUS_CLOSING;
        }
        enum status st = found(node, request, out_detail);
        if (st != STATUS_OK) {
            return st;
        }
    }
    struct founder *founder = calloc(1, sizeof *founder);
    CHECK(founder != NULL);
    *founder = (struct founder){.cb = cb, .call = call};
    list_init(&founder->link);
    list_append(&node->founders, &founder->link);
    node->founder_count++;
    return STATUS_OK;
}

static enum status found(struct node *node, const struct proto_request *request,
                         const char **out_detail)
{
    if (node->config.join_count > 0) {
        *out_detail = "this node was told to join a cluster (--join)";
        return STATUS_INCOMPATIBLE;
    }
    uint64_t floor = request->has_token_floor ? request->token_floor : node_token_floor();
    if (floor == 0) {
        *out_detail = "the wall clock lies before this build's date; set it, or give --token-floor";
        return STATUS_INCOMPATIBLE;
    }
    uint8_t random[40];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        *out_detail = "the kernel gave no random bytes";
        return STATUS_IO;
    }
    enum status st = replica_init_cluster(node->replica, floor, request->voters_wanted, random);
    if (st == STATUS_OK) {
        node_announce_self(node);
        node_note_founding(node);
    } else if (node->failed || status_class(st) == STATUS_CLASS_MAYBE) {
        *out_detail = "the disk failed while it was founded; the next start may go on with it";
        st = STATUS_UNKNOWN;
    }
    return st;
}

void node_note_founding(struct node *node)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    node->founding = view.founding;
    if (view.founding) {
        LOG_EVENT(node->log, LOG_LEVEL_INFO, "cluster_founding", log_id("node_id", view.node_id));
    }
}

void node_answer_founders(struct node *node)
{
    if (node->founding) {
        struct replica_view view;
        replica_view(node->replica, &view);
        if (view.state != REPLICA_STATE_RUNNING || view.founding) {
            return;
        }
        node->founding = false;
        LOG_EVENT(node->log, LOG_LEVEL_INFO, "cluster_born", log_id("node_id", view.node_id));
    }
    answer_all(node, STATUS_OK);
}

void node_end_founders(struct node *node)
{
    answer_all(node, STATUS_UNKNOWN);
}

static void answer_all(struct node *node, enum status status)
{
    node->founder_count = 0;
    struct list *link;
    while ((link = list_pop(&node->founders)) != NULL) {
        struct founder *founder = CONTAINER_OF(link, struct founder, link);
        founder->cb(founder->call, status);
        free(founder);
    }
}

static enum status on_transfer(void *ctx, uint64_t node_id, service_later_cb cb, void *call)
{
    struct node *node = ctx;
    enum status st = replica_transfer(node->replica, node_id, cb, call);
    /* Nobody was named, so nothing that was said is wrong. */
    return st == STATUS_INVALID && node_id == 0 ? STATUS_NO_QUORUM : st;
}

struct service_node node_service_node(struct node *node)
{
    return (struct service_node){
        .ctx = node,
        .status = node_report_status,
        .metrics = node_report_metrics,
        .members = node_report_members,
        .hello = node_report_hello,
        .cluster_init = on_cluster_init,
        .transfer = on_transfer,
    };
}
