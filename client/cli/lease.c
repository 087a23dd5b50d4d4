/* take, claim, renew, heartbeat, release: one outcome for each key. */
#include "client/cli/cli.h"

#include <stdlib.h>
#include <string.h>

#define TTL_MS_DEFAULT       30000u
#define GRACE_MS_DEFAULT_MAX 600000u /* the retention of tombstones that a cluster is born with */

typedef enum tenure_error (*lease_verb)(struct tenure_client *client,
                                        const struct tenure_call *call,
                                        struct tenure_reply **out_reply,
                                        struct tenure_failure *out_failure);

static enum exit_code run(struct cli *cli, lease_verb verb, bool timed);
static enum exit_code show(const struct cli *cli, const struct tenure_reply *reply);
static void show_outcome(const struct cli *cli, const struct tenure_outcome *outcome);
static json_t *json_of_outcome(const struct tenure_outcome *outcome);
static enum exit_code code_of_outcome(enum tenure_outcome_kind kind);
static bool has_lease(enum tenure_outcome_kind kind);
static const char *owner_of(const struct cli *cli);

enum exit_code command_take(struct cli *cli)
{
    return run(cli, tenure_take, true);
}

enum exit_code command_claim(struct cli *cli)
{
    return run(cli, tenure_claim, true);
}

enum exit_code command_renew(struct cli *cli)
{
    return run(cli, tenure_renew, true);
}

enum exit_code command_heartbeat(struct cli *cli)
{
    return run(cli, tenure_heartbeat, true);
}

enum exit_code command_release(struct cli *cli)
{
    return run(cli, tenure_release, false);
}

static enum exit_code run(struct cli *cli, lease_verb verb, bool timed)
{
    const struct options *options = &cli->options;
    if (options->arg_count == 0) {
        return usage_error(cli, "name at least one key", NULL);
    }
    if (options->has_grace && !options->adopt) {
        return usage_error(cli, "--grace goes with --adopt only", NULL);
    }
    struct tenure_item *items = calloc(options->arg_count, sizeof *items);
    if (items == NULL) {
        complain("out of memory", NULL);
        return EXIT_CODE_INTERNAL;
    }
    for (size_t i = 0; i < options->arg_count; i++) {
        items[i] = (struct tenure_item){
            .key = options->args[i],
            .has_if_token = options->has_if_token,
            .if_token = options->if_token,
            .meta = options->meta,
            .meta_len = options->meta == NULL ? 0 : strlen(options->meta),
            .identity = options->identity,
            .identity_len = options->identity == NULL ? 0 : strlen(options->identity),
        };
    }
    uint64_t ttl_ms = options->has_ttl ? options->ttl_ms : TTL_MS_DEFAULT;
    uint64_t grace_ms = ttl_ms < GRACE_MS_DEFAULT_MAX ? ttl_ms : GRACE_MS_DEFAULT_MAX;
    struct tenure_call call = {
        .ttl_ms = timed ? ttl_ms : 0,
        .destroy = options->destroy,
        .adopt = options->adopt,
        .grace_ms = !options->adopt      ? 0
                    : options->has_grace ? options->grace_ms
                                         : grace_ms,
        .reestablish = options->reestablish,
        .items = items,
        .item_count = options->arg_count,
    };
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    enum tenure_error error = verb(cli->client, &call, &reply, &failure);
    enum exit_code code = EXIT_CODE_DONE;
    if (error != TENURE_ERROR_NONE) {
        code = report_failure(cli, &failure);
    } else {
        code = show(cli, reply);
    }
    tenure_reply_free(reply);
    free(items);
    return code;
}

/* The exit code of several is that of the worst: unknown, unavailable, refused, done. */
static enum exit_code show(const struct cli *cli, const struct tenure_reply *reply)
{
    enum exit_code code = EXIT_CODE_DONE;
    json_t *outcomes = cli->options.json ? json_array() : NULL;
    for (size_t i = 0; i < reply->outcome_count; i++) {
        const struct tenure_outcome *outcome = &reply->outcomes[i];
        enum exit_code own = code_of_outcome(outcome->kind);
        code = own > code ? own : code;
        if (outcomes != NULL) {
            json_array_append_new(outcomes, json_of_outcome(outcome));
        } else {
            show_outcome(cli, outcome);
        }
    }
    if (outcomes != NULL) {
        json_t *object = json_object();
        json_set(object, "owner", json_text(owner_of(cli)));
        json_set(object, "outcomes", outcomes);
        json_set_position(object, reply);
        json_print(object);
    }
    return code;
}

static void show_outcome(const struct cli *cli, const struct tenure_outcome *outcome)
{
    print_text(stdout, outcome->key);
    printf(" %s", tenure_outcome_name(outcome->kind));
    if (has_lease(outcome->kind)) {
        printf(" token=%llu ms_left=%llu", (unsigned long long)outcome->token,
               (unsigned long long)outcome->ms_left);
        if (outcome->held_before) {
            fputs(" held_before=yes", stdout);
        }
        fputs(" owner=", stdout);
        print_text(stdout, owner_of(cli));
    }
    if (outcome->kind == TENURE_OUTCOME_GRACE) {
        printf(" grace_ms_left=%llu", (unsigned long long)outcome->grace_ms_left);
    }
    if (outcome->limit != NULL) {
        printf(" limit=%s", outcome->limit);
    }
    if (outcome->holder.owner != NULL) {
        bool taken = outcome->kind == TENURE_OUTCOME_GRANTED;
        fputs(taken ? " taken_from=" : " holder=", stdout);
        print_text(stdout, outcome->holder.owner);
        printf(" state=%s holder_token=%llu holder_ms_left=%llu",
               tenure_state_name(outcome->holder.state), (unsigned long long)outcome->holder.token,
               (unsigned long long)outcome->holder.ms_left);
    }
    fputc('\n', stdout);
}

static json_t *json_of_outcome(const struct tenure_outcome *outcome)
{
    json_t *object = json_object();
    json_set(object, "key", json_text(outcome->key));
    json_set(object, "outcome", json_text(tenure_outcome_name(outcome->kind)));
    if (has_lease(outcome->kind)) {
        json_set(object, "token", json_number(outcome->token));
        json_set(object, "ms_left", json_number(outcome->ms_left));
        json_set(object, "deadline_ns", json_number(outcome->deadline_ns));
    }
    if (outcome->kind == TENURE_OUTCOME_GRANTED) {
        json_set(object, "held_before", json_boolean(outcome->held_before));
    }
    if (outcome->holder.owner != NULL) {
        json_t *holder = json_object();
        json_set(holder, "owner", json_text(outcome->holder.owner));
        json_set(holder, "state", json_text(tenure_state_name(outcome->holder.state)));
        json_set(holder, "token", json_number(outcome->holder.token));
        json_set(holder, "ms_left", json_number(outcome->holder.ms_left));
        json_set(object, "holder", holder);
    }
    if (outcome->kind == TENURE_OUTCOME_GRACE) {
        json_set(object, "grace_ms_left", json_number(outcome->grace_ms_left));
    }
    if (outcome->limit != NULL) {
        json_set(object, "limit", json_text(outcome->limit));
    }
    json_set(object, "index", json_number(outcome->index));
    json_set(object, "place", json_number(outcome->place));
    json_set(object, "clock_ms", json_number(outcome->clock_ms));
    return object;
}

static enum exit_code code_of_outcome(enum tenure_outcome_kind kind)
{
    switch (kind) {
    case TENURE_OUTCOME_GRANTED:
    case TENURE_OUTCOME_RENEWED:
    case TENURE_OUTCOME_REESTABLISHED:
    case TENURE_OUTCOME_RELEASED:
        return EXIT_CODE_DONE;
    case TENURE_OUTCOME_HELD:
    case TENURE_OUTCOME_TEARDOWN:
    case TENURE_OUTCOME_GRACE:
    case TENURE_OUTCOME_LAPSED:
    case TENURE_OUTCOME_LOST:
    case TENURE_OUTCOME_NOT_OWNER:
    case TENURE_OUTCOME_STALE:
    case TENURE_OUTCOME_MISMATCH:
        return EXIT_CODE_REFUSED;
    case TENURE_OUTCOME_UNAVAILABLE:
        return EXIT_CODE_UNAVAILABLE;
    case TENURE_OUTCOME_UNKNOWN:
        return EXIT_CODE_UNKNOWN;
    }
    return EXIT_CODE_INTERNAL;
}

static bool has_lease(enum tenure_outcome_kind kind)
{
    return kind == TENURE_OUTCOME_GRANTED || kind == TENURE_OUTCOME_RENEWED ||
           kind == TENURE_OUTCOME_REESTABLISHED;
}

static const char *owner_of(const struct cli *cli)
{
    return tenure_client_owner(cli->client);
}
