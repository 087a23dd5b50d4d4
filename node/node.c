/* Wiring and life of a node. Everything here happens on the loop's thread.
 *
 *   RUNNING ──stop──► TRANSFERRING ──► DRAINING ──► CLOSING ──► the loop stops
 *      │                (a leader only)                ▲
 *      └────────────────── second stop ────────────────┘ */
#include "node/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "node/node_internal.h"
#include "node/options.h"

#define WHY_LEN 512u
#define UPKEEP_NS (200 * NS_PER_MS)       /* while this node is not a member yet */
#define UPKEEP_SLOW_NS (5000 * NS_PER_MS) /* afterwards nothing here is urgent */
#define TRANSFER_NS (1500 * NS_PER_MS)    /* three election time-outs */
#define DRAIN_NS (2000 * NS_PER_MS)

/* The two are written alike today, in headers that do not know each other. */
/* NOLINTNEXTLINE(misc-redundant-expression) */
_Static_assert(FRAME_REPLICA_LEN_MAX == REPLICA_MESSAGE_LEN_MAX,
               "what a replica sends fits a frame, or libraft sends it again for ever");

static enum node_exit open_all(struct node *node);
static enum node_exit open_directory(struct node *node);
static enum node_exit open_replica(struct node *node);
static enum node_exit open_links(struct node *node);
static enum node_exit open_api(struct node *node);
static enum node_exit refuse(struct node *node, const char *event, enum status status,
                             const char *why);
static void on_view(void *ctx);
static void on_turn_end(void *ctx, uint64_t now_ns);
static void on_timer(void *ctx, uint64_t now_ns);
static void on_upkeep(void *ctx, uint64_t now_ns);
static void on_signal(void *ctx, int signal_number);
static void on_transferred(void *ctx, enum status status);
static void drain(struct node *node);
static void on_drained(void *ctx);
static void close_all(struct node *node);
static void on_links_closed(void *ctx);
static void on_part_closed(void *ctx);
static uint64_t on_now(void *ctx);
static struct replica_callbacks replica_callbacks_of(struct node *node);

/* --- life */

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
    list_init(&node->founders);
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
        .clock_ns = on_now,
        .clock_ctx = node,
    });
    on_view(node);
    node_note_founding(node);
    code = open_api(node);
    if (code != NODE_EXIT_STOPPED) {
        return code;
    }
    loop_catch_signals(node->loop, on_signal, node);
    node_announce_self(node);
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
    struct hash_key hash_key = {0};
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed ||
        getrandom(&hash_key, sizeof hash_key, 0) != (ssize_t)sizeof hash_key) {
        return refuse(node, "no_randomness", STATUS_IO, strerror(errno));
    }
    struct replica_config config = {
        .dir = node->config.data,
        .loop = loop_uv(node->loop),
        .seed = seed,
        .hash_key = hash_key,
        .tick_ms = (unsigned)node->config.tick_ms,
        .election_ms = (unsigned)node->config.election_ms,
        .voters_wanted = (unsigned)node->config.voters,
        .token_floor = node_token_floor(),
        .snapshot_entries = node->config.snapshot_entries,
        .snapshot_bytes = node->config.snapshot_bytes,
        .reserve_len = node->config.reserve_bytes,
    };
    struct replica_callbacks callbacks = replica_callbacks_of(node);
    char why[WHY_LEN] = "";
    enum status st = replica_open(&config, &callbacks, why, &node->replica);
    if (st != STATUS_OK) {
        return refuse(node, "data_refused", st, why);
    }
    /* Only now: the lock says that nobody else writes here. */
    node_read_peers(node);
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
    struct link_callbacks callbacks = node_link_callbacks(node);
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
        .node = node_service_node(node),
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

/* --- turns and timers */

static void on_turn_end(void *ctx, uint64_t now_ns)
{
    struct node *node = ctx;
    if (node->dispatch == NULL || node->failed || node->phase == NODE_PHASE_CLOSING) {
        if (node->links != NULL && !node->failed) {
            links_flush(node->links);
        }
        return;
    }
    node_tell_stall(node);
    dispatch_turn(node->dispatch, now_ns);
    node_answer_founders(node);
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
void node_tell_stall(struct node *node)
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
        node_save_peers(node);
    }
    struct replica_view view;
    replica_view(node->replica, &view);
    bool member = view.role != REPLICA_MEMBER_ROLE_NONE || node->admitted;
    if (view.state == REPLICA_STATE_RUNNING && !member) {
        node_ask_to_be_admitted(node);
    }
    loop_timer_set(node->upkeep, now_ns + (member ? UPKEEP_SLOW_NS : UPKEEP_NS));
}

static void on_signal(void *ctx, int signal_number)
{
    struct node *node = ctx;
    LOG_EVENT(node->log, LOG_LEVEL_INFO, "signal", log_i64("number", signal_number));
    node_stop(node);
}

/* --- stopping */

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
    node_end_founders(node);
    if (node->api != NULL) {
        node->parts_open++;
        api_flush(node->api);
        api_close(node->api, on_part_closed, node);
    }
    if (node->links != NULL) {
        node->parts_open++;
        links_close(node->links, on_links_closed, node);
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

/* Gone while other parts still close, whose turns would flush them. */
static void on_links_closed(void *ctx)
{
    struct node *node = ctx;
    node->links = NULL;
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
    if (node->exit == NODE_EXIT_STOPPED) { /* else it never ran, and one line said why */
        log_event(node->log, LOG_LEVEL_INFO, "stopped");
    }
    loop_stop(node->loop);
}

/* --- callbacks of the replica */

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
                  log_id("leader", view.leader_id), log_text("role", node_role_name(view.role)),
                  log_text("leads", view.leader ? "yes" : "no"),
                  log_text("serving", view.serving ? "yes" : "no"));
    }
    node->view = view;
    dispatch_on_view(node->dispatch);
    if (view.leader && node->phase != NODE_PHASE_CLOSING) {
        node_tell_peers(node); /* spares hold no configuration and know roles from this alone */
    }
    if (node->phase == NODE_PHASE_TRANSFERRING && !view.leader) {
        drain(node); /* handed over, or lost to the stop of everybody else */
    }
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
