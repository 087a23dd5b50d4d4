/* See the header. */
#include "tests/raft/one_node.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"

#define START_NS (1000000ull * NS_PER_MS)

/* --- environment --------------------------------------------------------------------------- */

static uint64_t env_now(void *ctx)
{
    struct one_node *node = ctx;
    return node->clock.now_ns;
}

static void env_schedule(void *ctx, uint64_t at_ns, void (*run)(void *arg), void *arg)
{
    struct one_node *node = ctx;
    fake_clock_schedule(&node->clock, at_ns, run, arg);
}

static uint64_t env_random(void *ctx)
{
    struct one_node *node = ctx;
    return rng_next(&node->rng);
}

static void on_send(void *ctx, const struct raft_message *message)
{
    struct one_node *node = ctx;
    CHECK(node->sent_count < ONE_NODE_SENT_MAX);
    node->sent[node->sent_count++] = *message;
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct one_node *node = ctx;
    node->fatal_count++;
    node->fatal_status = status;
    (void)snprintf(node->fatal_detail, sizeof(node->fatal_detail), "%s", detail);
}

static int on_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct one_node *node = fsm->data;
    uint64_t value = 0;
    memcpy(&value, buf->base, buf->len < sizeof(value) ? buf->len : sizeof(value));
    sum_state_add(&node->state, value);
    *result = NULL;
    return 0;
}

static int on_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct one_node *node = fsm->data;
    sum_state_save(&node->state, bufs, n_bufs);
    return 0;
}

static int on_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
    struct one_node *node = fsm->data;
    sum_state_load(&node->state, buf);
    return 0;
}

/* --- life ---------------------------------------------------------------------------------- */

void one_node_init(struct one_node *node, raft_id id)
{
    memset(node, 0, sizeof(*node));
    node->id = id;
    node->cures = GUARD_CURES_ALL;
    node->snapshot_threshold = 1u << 30;
    node->snapshot_trailing = 2;
    node->disk_stall_ns_max = GUARD_DISK_STALL_NS_MAX;
    fake_clock_init(&node->clock, START_NS);
    rng_init(&node->rng, id);
    struct fake_disk_env env = {
        .ctx = node, .now_ns = env_now, .schedule = env_schedule, .random = env_random};
    node->disk = fake_disk_create(&env);
    node->fsm = (struct raft_fsm){
        .version = 1,
        .data = node,
        .apply = on_apply,
        .snapshot = on_snapshot,
        .restore = on_restore,
    };
}

void one_node_deinit(struct one_node *node)
{
    if (node->up) {
        one_node_close(node);
    }
    fake_disk_destroy(node->disk);
    fake_clock_deinit(&node->clock);
}

struct one_node *one_node_create(raft_id id, unsigned cures)
{
    struct one_node *node = calloc(1, sizeof(*node));
    CHECK(node != NULL);
    one_node_init(node, id);
    node->cures = cures;
    return node;
}

void one_node_destroy(struct one_node *node)
{
    one_node_deinit(node);
    free(node);
}

static void make_configuration(struct raft_configuration *configuration, unsigned voters,
                               unsigned spares)
{
    raft_configuration_init(configuration);
    for (unsigned id = 1; id <= voters + spares; id++) {
        char address[16];
        (void)snprintf(address, sizeof(address), "%u", id);
        CHECK(raft_configuration_add(configuration, id, address,
                                     id <= voters ? RAFT_VOTER : RAFT_SPARE) == 0);
    }
}

void one_node_boot(struct one_node *node, unsigned voters, unsigned spares)
{
    CHECK(!node->up);
    struct guard_options options;
    guard_options_init(&options);
    options.on_send = on_send;
    options.on_fatal = on_fatal;
    options.ctx = node;
    options.cures = node->cures;
    options.disk_stall_ns_max = node->disk_stall_ns_max;
    node->guard = guard_create(fake_disk_boot(node->disk), &options);
    memset(&node->raft, 0, sizeof(node->raft));
    node->state = (struct sum_state){0};
    char address[16];
    (void)snprintf(address, sizeof(address), "%llu", node->id);
    CHECK(raft_init(&node->raft, guard_io(node->guard), &node->fsm, node->id, address) == 0);
    node->raft.tracer = NULL;
    raft_seed(&node->raft, (unsigned)rng_next(&node->rng));
    raft_set_pre_vote(&node->raft, true);
    raft_set_heartbeat_timeout(&node->raft, ONE_NODE_TICK_MS);
    raft_set_election_timeout(&node->raft, ONE_NODE_ELECTION_MS);
    raft_set_snapshot_threshold(&node->raft, node->snapshot_threshold);
    raft_set_snapshot_trailing(&node->raft, node->snapshot_trailing);
    if (voters > 0) {
        struct raft_configuration configuration;
        make_configuration(&configuration, voters, spares);
        CHECK(raft_bootstrap(&node->raft, &configuration) == 0);
        raft_configuration_close(&configuration);
    }
    CHECK(raft_start(&node->raft) == 0);
    raft_set_heartbeat_timeout(&node->raft, 5);
    node->up = true;
}

static void on_closed(struct raft *raft)
{
    (void)raft;
}

void one_node_close(struct one_node *node)
{
    CHECK(node->up);
    raft_close(&node->raft, on_closed);
    guard_destroy(node->guard);
    node->guard = NULL;
    node->up = false;
}

void one_node_crash(struct one_node *node)
{
    fake_disk_crash(node->disk);
    one_node_close(node);
}

static void end_turn(struct one_node *node)
{
    if (node->up && !guard_failed(node->guard)) {
        fake_disk_fire(node->disk);
        guard_end_turn(node->guard);
    }
}

void one_node_run_ms(struct one_node *node, uint64_t ms)
{
    uint64_t until_ns = node->clock.now_ns + ms_to_ns(ms);
    while (fake_clock_step(&node->clock, until_ns)) {
        end_turn(node);
    }
}

/* --- messages ------------------------------------------------------------------------------ */

bool one_node_receive(struct one_node *node, struct raft_message *message)
{
    char address[16];
    (void)snprintf(address, sizeof(address), "%llu", message->server_id);
    message->server_address = address;
    bool seen = guard_receive(node->guard, message);
    end_turn(node);
    return seen;
}

/* The entries as they come from a decoder: one batch of raft_malloc. */
static void make_entries(const struct one_node_append *append, struct raft_append_entries *out)
{
    struct raft_buffer bufs[64];
    CHECK(append->count <= sizeof(bufs) / sizeof(bufs[0]));
    size_t len = 0;
    for (unsigned idx = 0; idx < append->count; idx++) {
        const struct one_node_entry *entry = &append->entries[idx];
        if (entry->voters > 0) {
            struct raft_configuration configuration;
            make_configuration(&configuration, entry->voters, 0);
            CHECK(raft_configuration_encode(&configuration, &bufs[idx]) == 0);
            raft_configuration_close(&configuration);
        } else {
            bufs[idx].len = sizeof(entry->value);
            bufs[idx].base = raft_malloc(bufs[idx].len);
            CHECK(bufs[idx].base != NULL);
            memcpy(bufs[idx].base, &entry->value, bufs[idx].len);
        }
        len += bufs[idx].len;
    }
    uint8_t *batch = raft_malloc(len);
    out->entries = raft_malloc(append->count * sizeof(*out->entries));
    CHECK(batch != NULL && out->entries != NULL);
    out->n_entries = append->count;
    uint8_t *at = batch;
    for (unsigned idx = 0; idx < append->count; idx++) {
        memcpy(at, bufs[idx].base, bufs[idx].len);
        out->entries[idx] = (struct raft_entry){
            .term = append->entries[idx].term,
            .type = append->entries[idx].voters > 0 ? RAFT_CHANGE : RAFT_COMMAND,
            .buf = {.base = at, .len = bufs[idx].len},
            .batch = batch,
        };
        at += bufs[idx].len;
        raft_free(bufs[idx].base);
    }
}

bool one_node_append(struct one_node *node, const struct one_node_append *append)
{
    struct raft_message message = {
        .type = RAFT_APPEND_ENTRIES,
        .server_id = append->from,
        .append_entries =
            {
                .version = 1,
                .term = append->term,
                .prev_log_index = append->prev_index,
                .prev_log_term = append->prev_term,
                .leader_commit = append->commit,
            },
    };
    if (append->count > 0) {
        make_entries(append, &message.append_entries);
    }
    return one_node_receive(node, &message);
}

bool one_node_ack(struct one_node *node, raft_id from, raft_index rejected, raft_index last_index)
{
    struct raft_message message = {
        .type = RAFT_APPEND_ENTRIES_RESULT,
        .server_id = from,
        .append_entries_result =
            {
                .version = 1,
                .term = raft_current_term(&node->raft),
                .rejected = rejected,
                .last_log_index = last_index,
                .features = 1,
                .capacity = 16384,
            },
    };
    return one_node_receive(node, &message);
}

bool one_node_install(struct one_node *node, raft_id from, raft_term term, raft_index last_index)
{
    struct raft_message message = {
        .type = RAFT_INSTALL_SNAPSHOT,
        .server_id = from,
        .install_snapshot =
            {
                .version = 1,
                .term = term,
                .last_index = last_index,
                .last_term = term,
                .conf_index = 1,
            },
    };
    struct sum_state state = {.applied = last_index, .sum = last_index};
    make_configuration(&message.install_snapshot.conf, 3, 0);
    message.install_snapshot.data.len = sizeof(state);
    message.install_snapshot.data.base = raft_malloc(sizeof(state));
    CHECK(message.install_snapshot.data.base != NULL);
    memcpy(message.install_snapshot.data.base, &state, sizeof(state));
    return one_node_receive(node, &message);
}

static void grant(struct one_node *node, raft_id voter, bool pre_vote)
{
    struct raft_message message = {
        .type = RAFT_REQUEST_VOTE_RESULT,
        .server_id = voter,
        .request_vote_result =
            {
                .version = 2,
                .term = raft_current_term(&node->raft) + (pre_vote ? 1 : 0),
                .vote_granted = true,
                .pre_vote = pre_vote,
                .features = 1,
                .capacity = 16384,
            },
    };
    (void)one_node_receive(node, &message);
}

void one_node_elect(struct one_node *node, raft_id voter)
{
    for (unsigned round = 0; round < 100 && raft_state(&node->raft) != RAFT_LEADER; round++) {
        guard_campaign(node->guard);
        end_turn(node);
        one_node_run_ms(node, ONE_NODE_TICK_MS);
        if (raft_state(&node->raft) == RAFT_CANDIDATE) {
            grant(node, voter, true);
            grant(node, voter, false);
        }
    }
    CHECK(raft_state(&node->raft) == RAFT_LEADER);
}

static void on_applied(struct raft_apply *request, int status, void *result)
{
    (void)status;
    (void)result;
    free(request);
}

int one_node_propose(struct one_node *node, uint64_t value)
{
    struct raft_apply *request = calloc(1, sizeof(*request));
    struct raft_buffer buf = {.len = sizeof(value), .base = raft_malloc(sizeof(value))};
    CHECK(request != NULL && buf.base != NULL);
    memcpy(buf.base, &value, sizeof(value));
    int code = raft_apply(&node->raft, request, &buf, 1, on_applied);
    if (code != 0) {
        free(request);
        raft_free(buf.base);
    }
    end_turn(node);
    return code;
}

unsigned one_node_count_sent(const struct one_node *node, unsigned since,
                             enum raft_message_type type, struct raft_message *out_last)
{
    unsigned count = 0;
    for (unsigned idx = since; idx < node->sent_count; idx++) {
        if (node->sent[idx].type == type) {
            count++;
            if (out_last != NULL) {
                *out_last = node->sent[idx];
            }
        }
    }
    return count;
}

/* --- crashes and leaks --------------------------------------------------------------------- */

/* Run `body` in a child; how it ended, as from waitpid(). */
static int run_child(void (*body)(void *arg), void *arg)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        /* cmocka catches these, and a core file helps nobody. */
        const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
        for (size_t idx = 0; idx < sizeof(signals) / sizeof(signals[0]); idx++) {
            (void)signal(signals[idx], SIG_DFL);
        }
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        CHECK(freopen("/dev/null", "w", stderr) != NULL);
        body(arg);
        _exit(0);
    }
    int wstatus = 0;
    CHECK(waitpid(pid, &wstatus, 0) == pid);
    return wstatus;
}

bool one_node_survives(void (*body)(void *arg), void *arg)
{
    int wstatus = run_child(body, arg);
    return WIFEXITED(wstatus) && WEXITSTATUS(wstatus) == 0;
}

bool one_node_shows(void (*body)(void *arg), void *arg)
{
    int wstatus = run_child(body, arg);
#ifdef TENURE_RAFT_ASSERTS
    if (WIFSIGNALED(wstatus) && WTERMSIG(wstatus) == SIGABRT) {
        return true;
    }
#endif
    return WIFEXITED(wstatus) && WEXITSTATUS(wstatus) == 0;
}

static long *heap_balance(void)
{
    static long balance;
    return &balance;
}

static void *count_malloc(void *data, size_t size)
{
    void *memory = malloc(size);
    *(long *)data += memory != NULL ? 1 : 0;
    return memory;
}

static void count_free(void *data, void *memory)
{
    *(long *)data -= memory != NULL ? 1 : 0;
    free(memory);
}

static void *count_calloc(void *data, size_t count, size_t size)
{
    void *memory = calloc(count, size);
    *(long *)data += memory != NULL ? 1 : 0;
    return memory;
}

static void *count_realloc(void *data, void *memory, size_t size)
{
    *(long *)data += memory == NULL ? 1 : 0;
    return realloc(memory, size);
}

static void *count_aligned_alloc(void *data, size_t alignment, size_t size)
{
    void *memory = aligned_alloc(alignment, size);
    *(long *)data += memory != NULL ? 1 : 0;
    return memory;
}

static void count_aligned_free(void *data, size_t alignment, void *memory)
{
    (void)alignment;
    count_free(data, memory);
}

void one_node_heap_count(void)
{
    static struct raft_heap heap;
    heap = (struct raft_heap){
        .data = heap_balance(),
        .malloc = count_malloc,
        .free = count_free,
        .calloc = count_calloc,
        .realloc = count_realloc,
        .aligned_alloc = count_aligned_alloc,
        .aligned_free = count_aligned_free,
    };
    *heap_balance() = 0;
    raft_heap_set(&heap);
}

long one_node_heap_balance(void)
{
    return *heap_balance();
}
