/* Life of the links of a node: listening, dialling, time, closing. Who is at the other end is
 * link_greet.c's, bytes are link_io.c's, whom to reach is link_peers.c's.
 *
 * One timer runs `step`: pings, silence, deadlines of greetings, dials that are due. Timers run
 * after the input of a turn, so what waited in the sockets during a stall of ours counts before
 * anybody is judged silent; and after a stall each link gets its time anew. */
#include "node/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "node/link_internal.h"

#define WHY_LEN 256u
#define PING_NS (50 * NS_PER_MS)
#define SILENT_NS (300 * NS_PER_MS)
#define DEAD_NS (2000 * NS_PER_MS)
#define DIAL_NS (500 * NS_PER_MS)     /* to be connected */
#define WELCOME_NS (1000 * NS_PER_MS) /* from connected to UP, where we dialled */
#define HELLO_NS (5000 * NS_PER_MS)   /* from accepted to UP */
#define STRANGERS_MAX 64u
#define STALL_NS (4 * PING_NS) /* a step that comes later than this was kept from running */

/* The higher id lets the lower one dial first: both at once is legal, but costs a connection. */
#define YIELD_NS (100 * NS_PER_MS)

/* One message per link may be incomplete; this is far beyond what a cluster's links keep. */
#define INPUT_LEN_MAX (256u * 1024u * 1024u)
#define NOTSENT_LEN (128u * 1024u)

static enum status bind_server(struct links *links, const struct address *address, char *out_why);
static enum status set_addresses(struct links *links, const struct link_config *config,
                                 struct address *out_listen, char *out_why);
static enum status refuse_open(char *out_why, enum status status, const char *what,
                               const char *why);
static void on_server_closed(uv_handle_t *handle);
static void on_connection(uv_stream_t *server, int st);
static void on_connect(uv_connect_t *connect, int st);
static struct link *create_link(struct links *links, enum link_state state);
static void set_socket_options(struct link *link);
static void dial(struct links *links, struct link_target *target, uint64_t now_ns);
static void drop_oldest_stranger(struct links *links);
static void on_timer(void *ctx, uint64_t now_ns);
static void step_link(struct link *link, bool stalled, uint64_t now_ns);
static void step_targets(struct links *links, uint64_t now_ns);
static void ping(struct link *link, uint64_t now_ns);
static void finish_close(struct links *links);
static void socket_address(const struct address *address, struct sockaddr_storage *out_name);

enum status links_open(struct loop *loop, const struct link_config *config,
                       const struct link_callbacks *callbacks, char *out_why,
                       struct links **out_links)
{
    struct links *links = calloc(1, sizeof *links);
    CHECK(links != NULL);
    links->loop = loop;
    links->callbacks = *callbacks;
    links->insecure_network = config->insecure_network;
    struct address address;
    enum status st = set_addresses(links, config, &address, out_why);
    if (st != STATUS_OK) {
        free(links);
        return st;
    }
    uint64_t random[2];
    CHECK(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random);
    links->instance = random[0];
    rng_init(&links->rng, random[1]);
    link_targets_init(&links->targets);
    list_init(&links->all);
    list_init(&links->dirty);
    list_init(&links->strangers);
    buf_init(&links->scratch, LINK_FRAME_HELLO_LEN_MAX + LINK_FRAME_HEADER_LEN);
    conn_pool_init(&links->pool, loop, INPUT_LEN_MAX);
    links->timer = loop_timer_create(loop, on_timer, links);
    links->step_at_ns = UINT64_MAX;
    st = bind_server(links, &address, out_why);
    if (st != STATUS_OK) {
        links_close(links, NULL, NULL);
        return st;
    }
    *out_links = links;
    return STATUS_OK;
}

void links_set_self(struct links *links, const struct link_self *self)
{
    bool other = self->node_id != links->self.node_id ||
                 !link_identity_equal(&self->identity, &links->self.identity);
    links->self = *self;
    if (!other) {
        return;
    }
    uint64_t now_ns = loop_now_ns(links->loop);
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &links->all)
    {
        struct link *one = CONTAINER_OF(link, struct link, link);
        if (one->state != LINK_STATE_LEAVING) {
            link_close(one, false);
        }
    }
    links_remove_peer(links, self->node_id);
    for (unsigned i = 0; i < links->targets.peer_count; i++) {
        links->targets.peers[i]->dial_at_ns = now_ns;
    }
    for (unsigned i = 0; i < links->targets.seed_count; i++) {
        links->targets.seeds[i]->dial_at_ns = now_ns;
    }
    links_wake(links, now_ns);
}

const char *links_address(const struct links *links)
{
    return links->address;
}

void links_add_peer(struct links *links, uint64_t peer_id, const char *address)
{
    struct address parsed;
    if (peer_id == 0 || peer_id == links->self.node_id || links->closing) {
        return;
    }
    if (!links_address_fine(links, slice_text(address), &parsed)) {
        links->callbacks.on_refused(links->callbacks.ctx, address,
                                    "no address that may be used: " ADDRESS_RULE
                                    ", and loopback unless the network may be insecure");
        return;
    }
    uint64_t now_ns = loop_now_ns(links->loop);
    bool known = link_targets_find(&links->targets, peer_id) != NULL;
    struct link_target *target = link_targets_put(&links->targets, peer_id, &parsed, now_ns);
    if (target != NULL && target->up == NULL) {
        if (!known && links->self.node_id > peer_id) {
            target->dial_at_ns = now_ns + YIELD_NS;
        }
        links_wake(links, target->dial_at_ns);
    }
}

void links_remove_peer(struct links *links, uint64_t peer_id)
{
    struct link_target *target = link_targets_find(&links->targets, peer_id);
    if (target == NULL) {
        return;
    }
    struct link *up = target->up;
    if (target->dial != NULL) {
        link_close(target->dial, false);
    }
    if (up != NULL) {
        link_detach(up, false);
    }
    link_targets_drop(&links->targets, target);
    if (up != NULL) {
        link_close(up, false);
    }
}

void links_add_seed(struct links *links, const char *address)
{
    struct address parsed;
    if (links->closing) {
        return;
    }
    if (!links_address_fine(links, slice_text(address), &parsed)) {
        links->callbacks.on_refused(links->callbacks.ctx, address,
                                    "no address that may be used: " ADDRESS_RULE
                                    ", and loopback unless the network may be insecure");
        return;
    }
    uint64_t now_ns = loop_now_ns(links->loop);
    link_targets_put_seed(&links->targets, &parsed, now_ns);
    links_wake(links, now_ns);
}

void links_clear_seeds(struct links *links)
{
    while (links->targets.seed_count > 0) {
        struct link_target *seed = links->targets.seeds[0];
        if (seed->dial != NULL) {
            link_close(seed->dial, false);
        }
        link_targets_drop(&links->targets, seed);
    }
}

const char *links_peer_address(const struct links *links, uint64_t peer_id)
{
    const struct link_target *target = link_targets_find(&links->targets, peer_id);
    return target != NULL ? target->text : NULL;
}

bool links_peer_up(const struct links *links, uint64_t peer_id)
{
    const struct link_target *target = link_targets_find(&links->targets, peer_id);
    return target != NULL && target->up != NULL;
}

unsigned links_peers(const struct links *links, uint64_t *out_ids, unsigned count_max)
{
    unsigned count = links->targets.peer_count < count_max ? links->targets.peer_count : count_max;
    for (unsigned i = 0; i < count; i++) {
        out_ids[i] = links->targets.peers[i]->id;
    }
    return count;
}

struct transport links_transport(struct links *links)
{
    return (struct transport){.ctx = links, .send = links_send, .waits = links_wait};
}

void links_flush(struct links *links)
{
    /* A link that has written its part of this turn marks itself again: for the next one. */
    struct list now;
    struct list *link;
    list_init(&now);
    while ((link = list_pop(&links->dirty)) != NULL) {
        list_append(&now, link);
    }
    while ((link = list_pop(&now)) != NULL) {
        link_write(CONTAINER_OF(link, struct link, dirty));
    }
    conn_pool_turn(&links->pool);
}

void link_stats(const struct links *links, struct link_stats *out_stats)
{
    *out_stats = links->stats;
}

void links_close(struct links *links, void (*cb)(void *ctx), void *ctx)
{
    CHECK(!links->closing);
    links->closing = true;
    links->on_closed = cb;
    links->closed_ctx = ctx;
    loop_timer_destroy(links->timer);
    links->timer = NULL;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &links->all)
    {
        link_close(CONTAINER_OF(link, struct link, link), false);
    }
    CHECK(links->server_open);
    uv_close((uv_handle_t *)&links->server, on_server_closed);
}

void link_move(struct link *link, enum link_state state)
{
    static const bool allowed[LINK_STATE_CLOSED + 1][LINK_STATE_CLOSED + 1] = {
        [LINK_STATE_DIALLING] = {[LINK_STATE_GREETING] = true, [LINK_STATE_CLOSED] = true},
        [LINK_STATE_GREETING] = {[LINK_STATE_UP] = true, [LINK_STATE_LEAVING] = true,
                                 [LINK_STATE_CLOSED] = true},
        [LINK_STATE_EXPECTING] = {[LINK_STATE_UP] = true, [LINK_STATE_LEAVING] = true,
                                  [LINK_STATE_CLOSED] = true},
        [LINK_STATE_UP] = {[LINK_STATE_CLOSED] = true},
        [LINK_STATE_LEAVING] = {[LINK_STATE_CLOSED] = true},
    };
    struct links *links = link->links;
    CHECK(allowed[link->state][state]);
    link->state = state;
    if (list_linked(&link->stranger) &&
        (state == LINK_STATE_UP || state == LINK_STATE_CLOSED)) {
        list_remove(&link->stranger);
        links->stranger_count--;
    }
}

void link_close(struct link *link, bool refused)
{
    if (link->state == LINK_STATE_CLOSED) {
        return;
    }
    struct links *links = link->links;
    bool up = link->state == LINK_STATE_UP;
    link_detach(link, refused);
    link_move(link, LINK_STATE_CLOSED);
    list_remove(&link->dirty);
    link_drop_bulk(link);
    conn_close(link->conn);
    if (up) {
        links->stats.up--;
        if (!links->closing) {
            links->callbacks.on_down(links->callbacks.ctx, link->peer_id);
        }
    }
}

void link_detach(struct link *link, bool refused)
{
    struct links *links = link->links;
    struct link_target *target = link->target;
    link->target = NULL;
    if (target == NULL) {
        return;
    }
    uint64_t now_ns = loop_now_ns(links->loop);
    if (target->dial == link) {
        target->dial = NULL;
        link_target_failed(target, refused, &links->rng, now_ns);
    } else if (target->up == link) {
        target->up = NULL;
        link_target_failed(target, refused, &links->rng, now_ns);
        target->dial_at_ns += links->self.node_id > target->id ? YIELD_NS : 0;
    }
    if (!links->closing) {
        links_wake(links, target->dial_at_ns);
    }
}

void link_free(struct link *link)
{
    struct links *links = link->links;
    list_remove(&link->link);
    list_remove(&link->dirty);
    free(link);
    if (links->closing) {
        finish_close(links);
    }
}

void links_wake(struct links *links, uint64_t at_ns)
{
    if (at_ns < links->step_at_ns) {
        links->step_at_ns = at_ns;
        loop_timer_set(links->timer, at_ns);
    }
}

bool links_address_fine(const struct links *links, struct slice text, struct address *out_address)
{
    struct address address;
    if (address_parse(text, &address) != STATUS_OK || address.port == 0 ||
        address_is_any(&address) ||
        (!links->insecure_network && !address_is_loopback(&address))) {
        return false;
    }
    *out_address = address;
    return true;
}

static enum status set_addresses(struct links *links, const struct link_config *config,
                                 struct address *out_listen, char *out_why)
{
    if (address_parse(slice_text(config->listen), out_listen) != STATUS_OK) {
        return refuse_open(out_why, STATUS_INVALID, config->listen, ADDRESS_RULE);
    }
    if (!config->insecure_network && !address_is_loopback(out_listen)) {
        return refuse_open(out_why, STATUS_INVALID, config->listen,
                           "is not a loopback address: needs insecure_network");
    }
    struct address advertised = *out_listen;
    if (config->advertise != NULL && config->advertise[0] != '\0' &&
        !links_address_fine(links, slice_text(config->advertise), &advertised)) {
        return refuse_open(out_why, STATUS_INVALID, config->advertise,
                           "is no address at which others may reach this node");
    }
    if (address_is_any(&advertised)) {
        return refuse_open(out_why, STATUS_INVALID, config->listen,
                           "needs an address to advertise");
    }
    address_format(&advertised, links->address);
    return STATUS_OK;
}

static enum status bind_server(struct links *links, const struct address *address, char *out_why)
{
    struct sockaddr_storage name;
    int name_len = sizeof name;
    socket_address(address, &name);
    CHECK(uv_tcp_init(loop_uv(links->loop), &links->server) == 0);
    links->server.data = links;
    links->server_open = true;
    char text[ADDRESS_TEXT_LEN];
    address_format(address, text);
    int st = uv_tcp_bind(&links->server, (const struct sockaddr *)&name, 0);
    if (st == 0) {
        st = uv_listen((uv_stream_t *)&links->server, 128, on_connection);
    }
    if (st == 0) {
        st = uv_tcp_getsockname(&links->server, (struct sockaddr *)&name, &name_len);
    }
    if (st != 0) {
        return refuse_open(out_why, st == UV_EADDRINUSE ? STATUS_IN_USE : STATUS_IO, text,
                           uv_strerror(st));
    }
    /* The port that the system chose, where any was fine. */
    struct address known;
    CHECK(address_parse(slice_text(links->address), &known) == STATUS_OK);
    if (known.port == 0) {
        known.port = ntohs(address->v6 ? ((const struct sockaddr_in6 *)&name)->sin6_port
                                       : ((const struct sockaddr_in *)&name)->sin_port);
        address_format(&known, links->address);
    }
    return STATUS_OK;
}

static enum status refuse_open(char *out_why, enum status status, const char *what,
                               const char *why)
{
    (void)snprintf(out_why, WHY_LEN, "%.80s: %s", what, why);
    return status;
}

static void on_server_closed(uv_handle_t *handle)
{
    struct links *links = handle->data;
    links->server_open = false;
    finish_close(links);
}

static void on_connection(uv_stream_t *server, int st)
{
    struct links *links = server->data;
    if (st != 0 || links->closing) {
        return;
    }
    if (links->stranger_count >= STRANGERS_MAX) {
        drop_oldest_stranger(links);
    }
    struct link *link = create_link(links, LINK_STATE_EXPECTING);
    list_append(&links->strangers, &link->stranger);
    links->stranger_count++;
    if (uv_accept(server, conn_stream(link->conn)) != 0) {
        link_close(link, false);
        return;
    }
    links->stats.accepted++;
    set_socket_options(link);
    link->deadline_ns = loop_now_ns(links->loop) + HELLO_NS;
    links_wake(links, link->deadline_ns);
    conn_read(link->conn);
}

/* The oldest had the longest time to say who it is: a peer needs one round trip. */
static void drop_oldest_stranger(struct links *links)
{
    struct list *oldest = list_first(&links->strangers);
    links->stats.refused++;
    link_close(CONTAINER_OF(oldest, struct link, stranger), false);
}

static struct link *create_link(struct links *links, enum link_state state)
{
    struct link *link = calloc(1, sizeof *link);
    CHECK(link != NULL);
    link->links = links;
    link->state = state;
    list_init(&link->link);
    list_init(&link->dirty);
    list_init(&link->stranger);
    list_init(&link->bulk);
    list_append(&links->all, &link->link);
    link->conn = conn_create(&links->pool, CONN_KIND_TCP, &link_conn_callbacks, link);
    return link;
}

/* Best effort: a socket without one of these still works. */
static void set_socket_options(struct link *link)
{
    uv_tcp_t *tcp = (uv_tcp_t *)conn_stream(link->conn);
    uv_os_fd_t fd;
    (void)uv_tcp_nodelay(tcp, 1);
    (void)uv_tcp_keepalive(tcp, 1, 1);
    if (uv_fileno((const uv_handle_t *)tcp, &fd) == 0) {
        unsigned dead_ms = (unsigned)ns_to_ms_floor(DEAD_NS);
        unsigned notsent_len = NOTSENT_LEN;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &notsent_len, sizeof notsent_len);
    }
}

static void dial(struct links *links, struct link_target *target, uint64_t now_ns)
{
    struct link *link = create_link(links, LINK_STATE_DIALLING);
    struct sockaddr_storage name;
    link->dialled = true;
    link->target = target;
    link->deadline_ns = now_ns + DIAL_NS;
    link->connect.data = link;
    target->dial = link;
    links->stats.dialled++;
    socket_address(&target->address, &name);
    if (uv_tcp_connect(&link->connect, (uv_tcp_t *)conn_stream(link->conn),
                       (const struct sockaddr *)&name, on_connect) != 0) {
        link_close(link, false);
    }
}

static void on_connect(uv_connect_t *connect, int st)
{
    struct link *link = connect->data;
    struct links *links = link->links;
    if (link->state == LINK_STATE_CLOSED) {
        return;
    }
    bool needless = link->target == NULL || link->target->up != NULL;
    if (st != 0 || needless) {
        link_close(link, false);
        return;
    }
    set_socket_options(link);
    link->deadline_ns = loop_now_ns(links->loop) + WELCOME_NS;
    link_move(link, LINK_STATE_GREETING);
    conn_read(link->conn);
    link_send_hello(link);
}

static void on_timer(void *ctx, uint64_t now_ns)
{
    struct links *links = ctx;
    bool stalled = links->stepped_ns != 0 && links->stats.up > 0 &&
                   now_ns - links->stepped_ns > STALL_NS;
    links->stepped_ns = now_ns;
    links->step_at_ns = UINT64_MAX;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &links->all)
    {
        step_link(CONTAINER_OF(link, struct link, link), stalled, now_ns);
        if (links->closing) {
            return;
        }
    }
    step_targets(links, now_ns);
}

static void step_link(struct link *link, bool stalled, uint64_t now_ns)
{
    struct links *links = link->links;
    if (link->state == LINK_STATE_CLOSED) {
        return;
    }
    if (link->state != LINK_STATE_UP) {
        if (link->deadline_ns <= now_ns) {
            link_close(link, false);
        } else {
            links_wake(links, link->deadline_ns);
        }
        return;
    }
    if (stalled) {
        link->received_ns = now_ns;
    }
    uint64_t silence_ns = now_ns - link->received_ns;
    if (silence_ns >= DEAD_NS) {
        link_close(link, false);
        return;
    }
    ping(link, now_ns);
    links_wake(links, now_ns + PING_NS);
    if (silence_ns >= SILENT_NS && !link->silence_told) {
        link->silence_told = true;
        links->callbacks.on_silent(links->callbacks.ctx, link->peer_id);
    }
}

/* Whatever is sent says that we live; a ping is for want of anything else. While something waits to
 * be written a ping would come too late anyway. */
static void ping(struct link *link, uint64_t now_ns)
{
    struct links *links = link->links;
    if (now_ns - link->sent_ns < PING_NS / 2 || conn_output_len(link->conn) > 0) {
        return;
    }
    buf_clear(&links->scratch);
    link_frame_head(FRAME_TYPE_PING, 0, &links->scratch);
    conn_send(link->conn, buf_slice(&links->scratch));
    link_mark_dirty(link);
}

static void step_targets(struct links *links, uint64_t now_ns)
{
    struct link_targets *targets = &links->targets;
    for (unsigned i = 0; i < targets->peer_count + targets->seed_count; i++) {
        struct link_target *target = i < targets->peer_count
                                         ? targets->peers[i]
                                         : targets->seeds[i - targets->peer_count];
        bool known = target->id == 0 || links->self.node_id != 0;
        if (!known || target->up != NULL || target->dial != NULL) {
            continue;
        }
        if (target->dial_at_ns <= now_ns) {
            dial(links, target, now_ns);
        }
        if (target->dial != NULL) {
            links_wake(links, target->dial->deadline_ns);
        } else {
            links_wake(links, target->dial_at_ns);
        }
    }
}

static void finish_close(struct links *links)
{
    if (links->server_open || !list_empty(&links->all)) {
        return;
    }
    void (*cb)(void *ctx) = links->on_closed;
    void *ctx = links->closed_ctx;
    link_targets_deinit(&links->targets);
    conn_pool_deinit(&links->pool);
    buf_deinit(&links->scratch);
    free(links);
    if (cb != NULL) {
        cb(ctx);
    }
}

static void socket_address(const struct address *address, struct sockaddr_storage *out_name)
{
    memset(out_name, 0, sizeof *out_name);
    if (address->v6) {
        struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
        memcpy(&name.sin6_addr, address->ip, sizeof name.sin6_addr);
        memcpy(out_name, &name, sizeof name);
    } else {
        struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(address->port)};
        memcpy(&name.sin_addr, address->ip, sizeof name.sin_addr);
        memcpy(out_name, &name, sizeof name);
    }
}
