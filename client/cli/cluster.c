/* cluster init, members, transfer. */
#include "client/cli/cli.h"

#include <string.h>

#define ID_LEN      16u /* hex digits, as members shows them */
#define COLUMNS_MAX 32u /* of the table of members */

static void show_members(const struct tenure_reply *reply);
static size_t width_of(const struct tenure_field *field);
static bool parse_id(const char *text, uint64_t *out_id);

enum exit_code command_cluster_init(struct cli *cli)
{
    const struct options *options = &cli->options;
    struct tenure_cluster_call call = {
        .voters = options->voters,
        .has_token_floor = options->has_token_floor,
        .token_floor = options->token_floor,
    };
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_cluster_init(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    show_fields(cli, reply);
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

enum exit_code command_cluster_members(struct cli *cli)
{
    struct tenure_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (!no_args(cli)) {
        return EXIT_CODE_USAGE;
    }
    if (tenure_members(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    if (cli->options.json) {
        json_t *members = json_array();
        for (size_t at = 0; reply->row_len > 0 && at < reply->field_count; at += reply->row_len) {
            json_t *member = json_object();
            for (size_t i = 0; i < reply->row_len; i++) {
                const struct tenure_field *field = &reply->fields[at + i];
                json_set(member, field->name, json_of_field(field));
            }
            json_array_append_new(members, member);
        }
        json_t *object = json_object();
        json_set(object, "members", members);
        json_print(object);
    } else {
        show_members(reply);
    }
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

enum exit_code command_cluster_transfer(struct cli *cli)
{
    const struct options *options = &cli->options;
    struct tenure_cluster_call call = {0};
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (options->arg_count > 1) {
        return usage_error(cli, "takes one node id at most, not", options->args[1]);
    }
    if (options->arg_count == 1 && !parse_id(options->args[0], &call.node_id)) {
        return usage_error(cli,
                           "a node id must be 16 hex digits as `cluster members` shows them, got",
                           options->args[0]);
    }
    if (tenure_cluster_transfer(cli->client, &call, &reply, &failure) != TENURE_ERROR_NONE) {
        return report_failure(cli, &failure);
    }
    show_fields(cli, reply);
    tenure_reply_free(reply);
    return EXIT_CODE_DONE;
}

/* A table, each column as wide as what is in it. */
static void show_members(const struct tenure_reply *reply)
{
    size_t columns = reply->row_len < COLUMNS_MAX ? reply->row_len : COLUMNS_MAX;
    size_t widths[COLUMNS_MAX] = {0};
    if (columns == 0) {
        return;
    }
    for (size_t at = 0; at < reply->field_count; at += reply->row_len) {
        for (size_t i = 0; i < columns; i++) {
            size_t width = width_of(&reply->fields[at + i]);
            size_t name = strlen(reply->fields[at + i].name);
            width = name > width ? name : width;
            widths[i] = width > widths[i] ? width : widths[i];
        }
    }
    for (size_t i = 0; i < columns; i++) {
        print_text(stdout, reply->fields[i].name);
        size_t len = strlen(reply->fields[i].name);
        printf("%*s", i + 1 == columns ? 1 : (int)(widths[i] - len + 2),
               i + 1 == columns ? "\n" : "");
    }
    for (size_t at = 0; at < reply->field_count; at += reply->row_len) {
        for (size_t i = 0; i < columns; i++) {
            const struct tenure_field *field = &reply->fields[at + i];
            print_field_value(stdout, field);
            printf("%*s", i + 1 == columns ? 1 : (int)(widths[i] - width_of(field) + 2),
                   i + 1 == columns ? "\n" : "");
        }
    }
}

static size_t width_of(const struct tenure_field *field)
{
    if (field->text != NULL) {
        return strlen(field->text);
    }
    char digits[24];
    return field->is_flag
               ? (field->number != 0 ? 3 : 2)
               : (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)field->number);
}

static bool parse_id(const char *text, uint64_t *out_id)
{
    uint64_t id = 0;
    if (strlen(text) != ID_LEN || strspn(text, "0123456789abcdef") != ID_LEN) {
        return false;
    }
    for (size_t i = 0; i < ID_LEN; i++) {
        unsigned digit = (unsigned char)text[i];
        id = id << 4 | (digit <= '9' ? digit - '0' : digit - 'a' + 10u);
    }
    *out_id = id;
    return true;
}
