/* owner, list, count: what the table has. */
#include "client/cli/cli.h"

#include <stdlib.h>
#include <string.h>

static bool filter_of(const struct cli *cli, struct tenure_call *out_call);
static void show_lease(const struct tenure_lease *lease);
static json_t *json_of_lease(const struct tenure_lease *lease);
static void show_bytes(const char *name, const void *bytes, size_t len);

enum exit_code command_owner(struct cli *cli)
{
    const struct options *options = &cli->options;
    if (options->arg_count == 0) {
        return usage_error(cli, "name at least one key", NULL);
    }
    struct tenure_item *items = calloc(options->arg_count, sizeof *items);
    if (items == NULL) {
        complain("out of memory", NULL);
        return EXIT_CODE_INTERNAL;
    }
    for (size_t i = 0; i < options->arg_count; i++) {
        items[i].key = options->args[i];
    }
    struct tenure_call call = {
        .stale = options->stale, .items = items, .item_count = options->arg_count};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    enum tenure_error error = tenure_owner(cli->client, &call, &reply, &failure);
    free(items);
    if (error != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    json_t *leases = options->json ? json_array() : NULL;
    for (size_t i = 0; i < reply->lease_count && i < options->arg_count; i++) {
        struct tenure_lease lease = reply->leases[i];
        lease.key = options->args[i];
        if (leases != NULL) {
            json_array_append_new(leases, json_of_lease(&lease));
        } else {
            show_lease(&lease);
        }
    }
    if (leases != NULL) {
        json_t *object = json_object();
        json_set(object, "leases", leases);
        json_set_position(object, reply);
        json_print(object);
    }
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

/* Page by page to the end, or one page of --limit; each lease is printed as it comes. */
enum exit_code command_list(struct cli *cli)
{
    const struct options *options = &cli->options;
    struct tenure_call call = {.after = options->after, .limit = options->limit};
    if (!filter_of(cli, &call)) {
        return EXIT_CODE_USAGE;
    }
    char *after = NULL;
    bool first = true;
    bool more = true;
    while (more) {
        struct tenure_reply *reply = NULL;
        struct tenure_failure failure;
        if (tenure_list(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
            free(after);
            return report_failure(cli, &failure);
        }
        for (size_t i = 0; i < reply->lease_count; i++) {
            if (!options->json) {
                show_lease(&reply->leases[i]);
                continue;
            }
            fputs(first ? "{\"leases\": [" : ", ", stdout);
            first = false;
            json_t *lease = json_of_lease(&reply->leases[i]);
            json_write(lease);
            json_decref(lease);
        }
        more = reply->more && reply->lease_count > 0 && !options->has_limit && !ferror(stdout);
        if (more) {
            free(after);
            after = strdup(reply->leases[reply->lease_count - 1].key);
            call.after = after;
        } else if (options->json) {
            json_t *position = json_object();
            json_set(position, "more", json_boolean(reply->more));
            json_set_position(position, reply);
            char *tail = json_dumps(position, JSON_ENSURE_ASCII);
            printf("%s], %s\n", first ? "{\"leases\": [" : "", tail == NULL ? "}" : tail + 1);
            free(tail);
            json_decref(position);
        }
        tenure_reply_free(reply);
    }
    free(after);
    return EXIT_CODE_DONE;
}

enum exit_code command_count(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!filter_of(cli, &call)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_count(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    if (cli->options.json) {
        json_t *object = json_object();
        json_set(object, "count", json_number(reply->count));
        json_set_position(object, reply);
        json_print(object);
    } else {
        printf("%llu\n", (unsigned long long)reply->count);
    }
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

static bool filter_of(const struct cli *cli, struct tenure_call *out_call)
{
    const struct options *options = &cli->options;
    if (options->arg_count > 0) {
        (void)usage_error(cli, "takes no argument", options->args[0]);
        return false;
    }
    if (options->state != NULL) {
        if (strcmp(options->state, "own") == 0) {
            out_call->state = TENURE_STATE_OWN;
        } else if (strcmp(options->state, "del") == 0) {
            out_call->state = TENURE_STATE_DEL;
        } else {
            (void)usage_error(cli, "state must be own or del, got", options->state);
            return false;
        }
    }
    out_call->owner = options->owner;
    out_call->prefix = options->prefix;
    out_call->stale = options->stale;
    return true;
}

static void show_lease(const struct tenure_lease *lease)
{
    print_text(stdout, lease->key);
    if (lease->owner == NULL) {
        fputs(" none\n", stdout);
        return;
    }
    printf(" %s token=%llu ms_left=%llu ttl_ms=%llu", tenure_state_name(lease->state),
           (unsigned long long)lease->token, (unsigned long long)lease->ms_left,
           (unsigned long long)lease->ttl_ms);
    fputs(" owner=", stdout);
    print_text(stdout, lease->owner);
    show_bytes("meta", lease->meta, lease->meta_len);
    show_bytes("identity", lease->identity, lease->identity_len);
    fputc('\n', stdout);
}

static json_t *json_of_lease(const struct tenure_lease *lease)
{
    if (lease->owner == NULL) {
        return json_null();
    }
    json_t *object = json_object();
    json_set(object, "key", json_text(lease->key));
    json_set(object, "owner", json_text(lease->owner));
    json_set(object, "namespace", json_text(lease->ns));
    json_set(object, "state", json_text(tenure_state_name(lease->state)));
    json_set(object, "ttl_ms", json_number(lease->ttl_ms));
    json_set(object, "ms_left", json_number(lease->ms_left));
    json_set(object, "token", json_number(lease->token));
    json_set(object, "since_ms", json_number(lease->since_ms));
    json_set_bytes(object, "meta", lease->meta, lease->meta_len);
    json_set_bytes(object, "identity", lease->identity, lease->identity_len);
    return object;
}

static void show_bytes(const char *name, const void *bytes, size_t len)
{
    if (bytes != NULL) {
        printf(" %s=", name);
        print_bytes(stdout, bytes, len);
    }
}
