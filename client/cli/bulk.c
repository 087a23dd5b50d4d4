/* renew-all, release-all, purge: whole sets of leases. */
#include "client/cli/cli.h"

#define TTL_MS_DEFAULT 30000u

static enum exit_code show_count(const struct cli *cli, struct tenure_reply *reply);
static json_t *json_of_departure(const struct tenure_departure *departure);

enum exit_code command_renew_all(struct cli *cli)
{
    const struct options *options = &cli->options;
    struct tenure_call call = {
        .ttl_ms = options->has_ttl ? options->ttl_ms : TTL_MS_DEFAULT,
        .has_set_version = options->has_set_version,
        .set_version = options->set_version,
    };
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_renew_all(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    json_t *departures = options->json ? json_array() : NULL;
    if (departures == NULL) {
        printf("renewed=%llu set_version=%llu%s\n", (unsigned long long)reply->count,
               (unsigned long long)reply->set_version, reply->list_again ? " list_again=yes" : "");
    }
    for (size_t i = 0; i < reply->departure_count; i++) {
        const struct tenure_departure *departure = &reply->departures[i];
        if (departures != NULL) {
            json_array_append_new(departures, json_of_departure(departure));
        } else {
            fputs("left ", stdout);
            print_text(stdout, departure->key);
            printf(" token=%llu reason=%s\n", (unsigned long long)departure->token,
                   tenure_reason_name(departure->reason));
        }
    }
    if (departures != NULL) {
        json_t *object = json_object();
        json_set(object, "owner", json_text(tenure_client_owner(cli->client)));
        json_set(object, "count", json_number(reply->count));
        json_set(object, "set_version", json_number(reply->set_version));
        json_set(object, "list_again", json_boolean(reply->list_again));
        json_set(object, "departures", departures);
        json_set_position(object, reply);
        json_print(object);
    }
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

enum exit_code command_release_all(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_release_all(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    return show_count(cli, reply);
}

enum exit_code command_purge(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_purge(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    return show_count(cli, reply);
}

/* Takes the reply. */
static enum exit_code show_count(const struct cli *cli, struct tenure_reply *reply)
{
    if (cli->options.json) {
        json_t *object = json_object();
        json_set(object, "count", json_number(reply->count));
        json_set_position(object, reply);
        json_print(object);
    } else {
        printf("ended=%llu\n", (unsigned long long)reply->count);
    }
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

static json_t *json_of_departure(const struct tenure_departure *departure)
{
    json_t *object = json_object();
    json_set(object, "key", json_text(departure->key));
    json_set(object, "token", json_number(departure->token));
    json_set(object, "reason", json_text(tenure_reason_name(departure->reason)));
    return object;
}
