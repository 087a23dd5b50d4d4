/* Wiring and life of a node. Everything here happens on the loop's thread.
 *
 *   RUNNING ──stop──► TRANSFERRING ──► DRAINING ──► CLOSING ──► the loop stops
 *      │                (a leader only)                ▲
 *      └────────────────── second stop ────────────────┘
 *
 * Joining: a node with seeds and an empty directory dials them; the first that answers says which
 * cluster it is (on_cluster_met). The node draws its id, writes both down, and from then on asks
 * whoever leads to add it, until a leader says that it is a member. */
#include "node/node.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "node/node_internal.h"
#include "node/options.h"
#include "node/peer_frame.h"

#define WHY_LEN 512u
#define PATH_LEN (CONFIG_PATH_LEN_MAX + 16u)
#define UPKEEP_NS (200 * NS_PER_MS)       /* while this node is not a member yet */
#define UPKEEP_SLOW_NS (5000 * NS_PER_MS) /* afterwards nothing here is urgent */
#define TRANSFER_NS (1500 * NS_PER_MS)    /* three election time-outs */
#define DRAIN_NS (2000 * NS_PER_MS)

static enum node_exit open_all(struct node *node);
static enum node_exit open_directory(struct node *node);
static enum node_exit open_replica(struct node *node);
static enum node_exit open_links(struct node *node);
static enum node_exit open_api(struct node *node);
static enum node_exit refuse(struct node *node, const char *event, enum status status,
                             const char *why);
static void read_peers(struct node *node);
static void save_peers(struct node *node);
static void data_path(const struct node *node, const char *name, char *out_path);
static void announce_self(struct node *node);
static void on_view(void *ctx);
static void tell_stall(struct node *node);
static void on_turn_end(void *ctx, uint64_t now_ns);
static void on_timer(void *ctx, uint64_t now_ns);
static void on_upkeep(void *ctx, uint64_t now_ns);
static void on_signal(void *ctx, int signal_number);
static void on_peers_unsaved(void *ctx, int error);
static void on_transferred(void *ctx, enum status status);
static void drain(struct node *node);
static void on_drained(void *ctx);
static void close_all(struct node *node);
static void on_part_closed(void *ctx);
static struct replica_callbacks replica_callbacks_of(struct node *node);
static struct link_callbacks link_callbacks_of(struct node *node);
static struct service_node service_node_of(struct node *node);
static uint64_t token_floor_by_wall_clock(void);
static void ask_to_be_admitted(struct node *node);
static void learn_peer(struct node *node, uint64_t peer_id, const char *address, bool itself);
static void send_peers(struct node *node, uint64_t peer_id);
static void broadcast_peers(struct node *node);
static void on_peers_frame(struct node *node, struct slice payload);
static void on_admit_frame(struct node *node, uint64_t peer_id, struct slice payload);
static void on_admit_reply_frame(struct node *node, struct slice payload);
static void admit_reply(struct node *node, uint64_t peer_id, enum status status);
static void on_admitted(void *ctx, enum status status);

/* --- life ------------------------------------------------------------------------------------- */

enum node_exit node_create(const struct config *config, const struct node_callbacks *callbacks,
                           struct node **out_node)
{
    struct node *node = calloc(1, sizeof *node);
    CHECK(node != NULL);
    node->config = *config;
    node->callbacks = *callbacks;
    node->start_ns = loop_clock_ns();
    node->log = log_create(&(struct log_config){.level = (enum log_level)config->log_level});
    peers_init(&node->peers);
    if (loop_create(&node->loop) != STATUS_OK) {
        node->exit = NODE_EXIT_FAILED;
    } else {
        node->exit = open_all(node);
    }
    if (node->exit != NODE_EXIT_STOPPED) {
        enum node_exit code = node->exit;
        if (node->loop != NULL) {
            close_all(node);
            loop_run(node->loop);
        }
        node_destroy(node);
        return code;
    }
    node->phase = NODE_PHASE_RUNNING;
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "started", log_text("version", TENURE_VERSION),
              log_text("data", node->config.data), log_text("socket", node->config.socket),
              log_text("address", links_address(node->links)));
    *out_node = node;
    return NODE_EXIT_STOPPED;
}

enum node_exit node_run(struct node *node)
{
    loop_run(node->loop);
    return node->exit;
}

void node_stop(struct node *node)
{
    if (node->phase == NODE_PHASE_CLOSING) {
        return;
    }
    if (node->phase != NODE_PHASE_RUNNING) {
        close_all(node);
        return;
    }
    log_event(node->log, LOG_LEVEL_INFO, "stopping");
    struct replica_view view;
    replica_view(node->replica, &view);
    node->phase = NODE_PHASE_TRANSFERRING;
    node->transfer_deadline_ns = loop_now_ns(node->loop) + TRANSFER_NS;
    if (!view.leader ||
        replica_transfer(node->replica, 0, on_transferred, node) != STATUS_OK) {
        drain(node);
    } else {
        loop_timer_set(node->upkeep, node->transfer_deadline_ns);
    }
}

void node_destroy(struct node *node)
{
    if (node->loop != NULL) {
        loop_close(node->loop);
        loop_destroy(node->loop);
    }
    peers_deinit(&node->peers);
    log_destroy(node->log);
    free(node);
}

static enum node_exit open_all(struct node *node)
{
    node->timer = loop_timer_create(node->loop, on_timer, node);
    node->upkeep = loop_timer_create(node->loop, on_upkeep, node);
    loop_add_turn_end(node->loop, on_turn_end, node);
    enum node_exit code = open_directory(node);
    if (code == NODE_EXIT_STOPPED) {
        code = open_replica(node);
    }
    if (code == NODE_EXIT_STOPPED) {
        code = open_links(node);
    }
    if (code != NODE_EXIT_STOPPED) {
        return code;
    }
    node->dispatch = dispatch_create(&(struct dispatch_config){
        .replica = node->replica,
        .transport = links_transport(node->links),
        .seed = node->start_ns,
    });
    on_view(node);
    code = open_api(node);
    if (code != NODE_EXIT_STOPPED) {
        return code;
    }
    loop_catch_signals(node->loop, on_signal, node);
    announce_self(node);
    for (uint32_t i = 0; i < node->peers.count; i++) {
        links_add_peer(node->links, node->peers.items[i].id, node->peers.items[i].address);
    }
    node->peers_unsaved = true;
    loop_timer_set(node->upkeep, loop_now_ns(node->loop));
    return NODE_EXIT_STOPPED;
}

/* The directory itself; its parent must be there. */
static enum node_exit open_directory(struct node *node)
{
    if (mkdir(node->config.data, 0700) != 0 && errno != EEXIST) {
        return refuse(node, "no_data_directory", STATUS_IO, strerror(errno));
    }
    return NODE_EXIT_STOPPED;
}

static enum node_exit open_replica(struct node *node)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        return refuse(node, "no_randomness", STATUS_IO, strerror(errno));
    }
    struct replica_config config = {
        .dir = node->config.data,
        .loop = loop_uv(node->loop),
        .seed = seed,
        .tick_ms = (unsigned)node->config.tick_ms,
        .election_ms = (unsigned)node->config.election_ms,
        .voters_wanted = (unsigned)node->config.voters,
        .snapshot_entries = node->config.snapshot_entries,
        .snapshot_bytes = node->config.snapshot_bytes,
        .reserve_len = node->config.reserve_bytes,
        .birth_token_floor = token_floor_by_wall_clock(),
    };
    struct replica_callbacks callbacks = replica_callbacks_of(node);
    char why[WHY_LEN] = "";
    enum status st = replica_open(&config, &callbacks, why, &node->replica);
    if (st != STATUS_OK) {
        return refuse(node, "data_refused", st, why);
    }
    /* Only now: the lock says that nobody else writes here. */
    read_peers(node);
    return NODE_EXIT_STOPPED;
}

/* With port 0 the port of last time is tried first, so that a restarted node is where it was. */
static enum node_exit open_links(struct node *node)
{
    struct link_config config = {
        .listen = node->config.listen,
        .advertise = node->config.advertise[0] != '\0' ? node->config.advertise : NULL,
        .insecure_network = node->config.insecure_network,
    };
    struct link_callbacks callbacks = link_callbacks_of(node);
    char why[WHY_LEN] = "";
    size_t listen_len = strlen(node->config.listen);
    bool any_port = listen_len > 2 && strcmp(node->config.listen + listen_len - 2, ":0") == 0;
    bool same_host = strncmp(node->peers.self_address, node->config.listen, listen_len - 1) == 0;
    if (any_port && same_host) {
        config.listen = node->peers.self_address;
        if (links_open(node->loop, &config, &callbacks, why, &node->links) == STATUS_OK) {
            return NODE_EXIT_STOPPED;
        }
        config.listen = node->config.listen;
    }
    enum status st = links_open(node->loop, &config, &callbacks, why, &node->links);
    if (st != STATUS_OK) {
        (void)refuse(node, "address_refused", st, why);
        return NODE_EXIT_CONFIG;
    }
    if (node->config.insecure_network) {
        log_event(node->log, LOG_LEVEL_WARN, "insecure_network");
    }
    return NODE_EXIT_STOPPED;
}

static enum node_exit open_api(struct node *node)
{
    node->service = service_create(&(struct service_config){
        .loop = node->loop,
        .dispatch = node->dispatch,
        .node = service_node_of(node),
        .admin_uid = (uint32_t)geteuid(),
    });
    int64_t gid = -1;
    struct config_error error;
    if (options_group(&node->config, &gid, &error) != STATUS_OK) {
        (void)refuse(node, "socket_refused", STATUS_INVALID, error.text);
        return NODE_EXIT_CONFIG;
    }
    struct api_config config = {
        .path = node->config.socket,
        .mode = node->config.socket_mode,
        .gid = gid,
        .connections_max = (uint32_t)node->config.connections_max,
    };
    struct api_callbacks callbacks = service_api_callbacks(node->service);
    char why[WHY_LEN] = "";
    enum status st = api_open(node->loop, &config, &callbacks, why, &node->api);
    if (st != STATUS_OK) {
        (void)refuse(node, "socket_refused", st, why);
        return NODE_EXIT_CONFIG;
    }
    service_set_api(node->service, node->api);
    return NODE_EXIT_STOPPED;
}

static enum node_exit refuse(struct node *node, const char *event, enum status status,
                             const char *why)
{
    LOG_EVENT(node->log, LOG_LEVEL_ERROR, event, log_text("status", status_name(status)),
              log_text("data", node->config.data), log_text("why", why));
    return NODE_EXIT_REFUSED;
}

/* --- the peers file ----------------------------------------------------------------------------- */

static void data_path(const struct node *node, const char *name, char *out_path)
{
    (void)snprintf(out_path, PATH_LEN, "%s/%s", node->config.data, name);
}

static void read_peers(struct node *node)
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

static void save_peers(struct node *node)
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

/* --- turns and timers --------------------------------------------------------------------------- */

static void on_turn_end(void *ctx, uint64_t now_ns)
{
    struct node *node = ctx;
    if (node->dispatch == NULL || node->failed || node->phase == NODE_PHASE_CLOSING) {
        if (node->links != NULL && !node->failed) {
            links_flush(node->links);
        }
        return;
    }
    tell_stall(node);
    dispatch_turn(node->dispatch, now_ns);
    links_flush(node->links);
    if (node->api != NULL) {
        api_flush(node->api);
    }
    if (node->phase == NODE_PHASE_CLOSING || node->failed) {
        return; /* this very turn ended the last call, and the timers with it */
    }
    loop_timer_set(node->timer, min_u64(dispatch_next_timer_ns(node->dispatch),
                                        replica_next_timer_ns(node->replica)));
}

/* The loop did not run for a while, and the dispatcher has not heard of it yet. */
static void tell_stall(struct node *node)
{
    uint64_t stall_ns = loop_stall_ns(node->loop);
    if (stall_ns > 0) {
        dispatch_stalled(node->dispatch, stall_ns, loop_now_ns(node->loop));
    }
}

/* The turn's end does the work. */
static void on_timer(void *ctx, uint64_t now_ns)
{
    (void)ctx;
    (void)now_ns;
}

static void on_upkeep(void *ctx, uint64_t now_ns)
{
    struct node *node = ctx;
    if (node->phase == NODE_PHASE_TRANSFERRING) {
        drain(node);
        return;
    }
    if (node->phase != NODE_PHASE_RUNNING || node->failed) {
        return;
    }
    if (node->peers_unsaved) {
        save_peers(node);
    }
    struct replica_view view;
    replica_view(node->replica, &view);
    bool member = view.role != REPLICA_MEMBER_ROLE_NONE || node->admitted;
    if (view.state == REPLICA_STATE_RUNNING && !member) {
        ask_to_be_admitted(node);
    }
    loop_timer_set(node->upkeep, now_ns + (member ? UPKEEP_SLOW_NS : UPKEEP_NS));
}

static void on_signal(void *ctx, int signal_number)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "signal", log_i64("number", signal_number));
    node_stop(node);
}

/* --- stopping ----------------------------------------------------------------------------------- */

static void on_transferred(void *ctx, enum status status)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "leadership_handed_over",
              log_text("status", status_name(status)));
    if (node->phase == NODE_PHASE_TRANSFERRING) {
        drain(node);
    }
}

static void drain(struct node *node)
{
    node->phase = NODE_PHASE_DRAINING;
    dispatch_drain(node->dispatch, loop_now_ns(node->loop) + DRAIN_NS, on_drained, node);
}

static void on_drained(void *ctx)
{
    struct node *node = ctx;
    if (node->phase == NODE_PHASE_DRAINING) {
        close_all(node);
    }
}

/* Everything that was opened, each on its own; the loop stops when the last one is gone. */
static void close_all(struct node *node)
{
    node->phase = NODE_PHASE_CLOSING;
    node->parts_open = 1; /* this function itself */
    loop_timer_destroy(node->timer);
    loop_timer_destroy(node->upkeep);
    if (node->api != NULL) {
        node->parts_open++;
        api_flush(node->api);
        api_close(node->api, on_part_closed, node);
    }
    if (node->links != NULL) {
        node->parts_open++;
        links_close(node->links, on_part_closed, node);
    }
    if (node->peers_file != NULL) {
        node->parts_open++;
        small_file_close(node->peers_file, on_part_closed, node);
    }
    if (node->replica != NULL) {
        node->parts_open++;
        replica_close(node->replica, on_part_closed, node);
    }
    on_part_closed(node);
}

static void on_part_closed(void *ctx)
{
    struct node *node = ctx;
    CHECK(node->parts_open > 0);
    if (--node->parts_open > 0) {
        return;
    }
    if (node->service != NULL) {
        service_destroy(node->service);
    }
    if (node->dispatch != NULL) {
        dispatch_destroy(node->dispatch);
    }
    if (node->replica != NULL) {
        replica_destroy(node->replica);
    }
    log_event(node->log, LOG_LEVEL_INFO, "stopped");
    loop_stop(node->loop);
}

/* --- callbacks of the replica ------------------------------------------------------------------- */

static uint64_t on_now(void *ctx)
{
    (void)ctx;
    return loop_clock_ns();
}

static bool on_replica_send(void *ctx, uint64_t peer_id, bool bulk, struct slice bytes)
{
    struct node *node = ctx;
    if (node->links == NULL || node->phase == NODE_PHASE_CLOSING) {
        return false;
    }
    struct transport transport = links_transport(node->links);
    return transport.send(transport.ctx, peer_id, FRAME_TYPE_REPLICA, bulk, bytes);
}

static void on_view(void *ctx)
{
    struct node *node = ctx;
    if (node->replica == NULL || node->dispatch == NULL) {
        return;
    }
    struct replica_view view;
    replica_view(node->replica, &view);
    struct replica_view *last = &node->view;
    if (view.term != last->term || view.leader_id != last->leader_id ||
        view.role != last->role || view.serving != last->serving || view.leader != last->leader) {
        LOG_EVENT(node->log, LOG_LEVEL_INFO, "view", log_u64("term", view.term),
                  log_u64("leader", view.leader_id), log_text("role", node_role_name(view.role)),
                  log_text("leads", view.leader ? "yes" : "no"),
                  log_text("serving", view.serving ? "yes" : "no"));
    }
    node->view = view;
    dispatch_on_view(node->dispatch);
}

static void on_applied(void *ctx, uint64_t index, const struct changes *changes)
{
    struct node *node = ctx;
    if (node->dispatch != NULL) {
        dispatch_on_applied(node->dispatch, index, changes);
    }
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct node *node = ctx;
    node->failed = true;
    LOG_EVENT(node->log, LOG_LEVEL_ERROR, "fail_stop", log_text("status", status_name(status)),
              log_text("why", detail));
    node->exit = status == STATUS_INCOMPATIBLE ? NODE_EXIT_REFUSED : NODE_EXIT_FAILED;
    node->callbacks.on_fatal(node->callbacks.ctx, node->exit);
}

static void on_replica_log(void *ctx, int level, const char *text)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, (enum log_level)level, "replica", log_text("what", text));
}

static struct replica_callbacks replica_callbacks_of(struct node *node)
{
    return (struct replica_callbacks){
        .ctx = node,
        .now_ns = on_now,
        .send = on_replica_send,
        .on_view = on_view,
        .on_applied = on_applied,
        .on_fatal = on_fatal,
        .on_log = on_replica_log,
    };
}

/* --- links -------------------------------------------------------------------------------------- */

static void on_link_up(void *ctx, uint64_t peer_id)
{
    struct node *node = ctx;
    const char *address = links_peer_address(node->links, peer_id);
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "link_up", log_u64("peer", peer_id),
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
    LOG_EVENT(node->log, LOG_LEVEL_WARN, "link_down", log_u64("peer", peer_id));
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
        tell_stall(node); /* before what waited in it is judged */
        dispatch_receive(node->dispatch, peer_id, type, payload, loop_now_ns(node->loop));
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
              log_u64("node_id", node_id), log_u64("seed", peer_id), log_text("address", address),
              log_text("status", status_name(st)));
    if (st == STATUS_OK) {
        learn_peer(node, peer_id, address, true);
        announce_self(node);
    }
}

static void on_link_refused(void *ctx, const char *address, const char *why)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_WARN, "link_refused", log_text("address", address),
              log_text("why", why));
}

static struct link_callbacks link_callbacks_of(struct node *node)
{
    return (struct link_callbacks){
        .ctx = node,
        .on_up = on_link_up,
        .on_down = on_link_down,
        .on_silent = on_link_silent,
        .on_frame = on_frame,
        .on_cluster_met = on_cluster_met,
        .on_refused = on_link_refused,
    };
}

/* Tell links who we are; while we belong to no cluster, look for one where seeds were given. */
static void announce_self(struct node *node)
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

/* --- peers and joining -------------------------------------------------------------------------- */

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
    loop_timer_set(node->upkeep, loop_now_ns(node->loop));
    broadcast_peers(node);
}

static void send_peers(struct node *node, uint64_t peer_id)
{
    struct frame_peer *known = calloc(PEERS_MAX, sizeof *known);
    CHECK(known != NULL);
    for (uint32_t i = 0; i < node->peers.count; i++) {
        known[i].id = node->peers.items[i].id;
        known[i].address = slice_text(node->peers.items[i].address);
    }
    struct buf payload;
    buf_init(&payload, FRAME_LEN_MAX);
    frame_peers_encode(known, node->peers.count, &payload);
    struct transport transport = links_transport(node->links);
    (void)transport.send(transport.ctx, peer_id, FRAME_TYPE_PEERS, false, buf_slice(&payload));
    buf_deinit(&payload);
    free(known);
}

static void broadcast_peers(struct node *node)
{
    for (uint32_t i = 0; i < node->peers.count; i++) {
        if (links_peer_up(node->links, node->peers.items[i].id)) {
            send_peers(node, node->peers.items[i].id);
        }
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

static void ask_to_be_admitted(struct node *node)
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
    LOG_EVENT(admission->node->log, LOG_LEVEL_INFO, "admitted",
              log_u64("peer", admission->peer_id), log_text("status", status_name(status)));
    admit_reply(admission->node, admission->peer_id, status);
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

/* --- administration ----------------------------------------------------------------------------- */

/* What the token counter of a new cluster is raised to; 0 where the wall clock can't be right. */
static uint64_t token_floor_by_wall_clock(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seconds = t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec;
    if (seconds < TENURE_BUILD_UNIX_S) {
        return 0;
    }
    return (seconds * MS_PER_S + (uint64_t)t.tv_nsec / NS_PER_MS) * 1024;
}

static enum status on_cluster_init(void *ctx, const struct proto_request *request,
                                   const char **out_detail)
{
    struct node *node = ctx;
    struct replica_view view;
    replica_view(node->replica, &view);
    if (view.state == REPLICA_STATE_RUNNING) {
        return STATUS_OK; /* already so; the reply says which cluster */
    }
    if (node->config.join_count > 0) {
        *out_detail = "this node was told to join a cluster (--join)";
        return STATUS_INCOMPATIBLE;
    }
    uint64_t floor = request->has_token_floor ? request->token_floor : token_floor_by_wall_clock();
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
        announce_self(node);
        replica_view(node->replica, &view);
        LOG_EVENT(node->log, LOG_LEVEL_INFO, "cluster_born", log_u64("node_id", view.node_id));
    }
    return st;
}

static enum status on_transfer(void *ctx, uint64_t node_id,
                               void (*cb)(void *call, enum status status), void *call)
{
    struct node *node = ctx;
    return replica_transfer(node->replica, node_id, cb, call);
}

static struct service_node service_node_of(struct node *node)
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
