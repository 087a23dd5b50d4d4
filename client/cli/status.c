/* status, metrics: the named values that a node says about itself. */
#include "client/cli/cli.h"

#include <string.h>

static const struct tenure_field *field_of(const struct tenure_reply *reply, const char *name);
static bool asked_to_be(const struct cli *cli, const struct tenure_reply *reply);

enum exit_code command_status(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (cli->options.voter && !cli->options.ready) {
        return usage_error(cli, "--voter goes with --ready only", NULL);
    }
    if (tenure_status(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    show_fields(cli, reply);
    bool refused = cli->options.ready && !asked_to_be(cli, reply);
    tenure_reply_free(reply);
    return refused ? EXIT_CODE_REFUSED : EXIT_CODE_DONE;
}

enum exit_code command_metrics(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_metrics(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    show_fields(cli, reply);
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

static const struct tenure_field *field_of(const struct tenure_reply *reply, const char *name)
{
    for (size_t i = 0; i < reply->field_count; i++) {
        if (strcmp(reply->fields[i].name, name) == 0) {
            return &reply->fields[i];
        }
    }
    return NULL;
}

/* True when the node is ready and, if that was asked, a voter. */
static bool asked_to_be(const struct cli *cli, const struct tenure_reply *reply)
{
    const struct tenure_field *ready = field_of(reply, "ready");
    const struct tenure_field *role = field_of(reply, "role");
    bool is_ready = ready != NULL && ready->is_flag && ready->number != 0;
    bool is_voter = role != NULL && role->text != NULL && strcmp(role->text, "voter") == 0;
    return is_ready && (!cli->options.voter || is_voter);
}
