/* tenure: the words of a command -> its function, and the exit code.
 *
 * A run that could not say what happened has not succeeded: when standard output takes nothing
 * (closed, full disk, a reader that went away) the exit code is that of INTERNAL (hazard O8). */
#include "client/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *words[2]; /* the second may be NULL */
    unsigned groups;      /* of options */
    enum exit_code (*run)(struct cli *cli);
    const char *help;
};

#define KEYED (OPTION_GROUP_WRITE | OPTION_GROUP_NAMESPACE)
static const struct command commands[] = {
    {{"take", NULL},
     KEYED | OPTION_GROUP_TTL | OPTION_GROUP_META,
     command_take,
     "KEY [--ttl T] [--meta TEXT] [--identity TEXT]"},
    {{"claim", NULL},
     KEYED | OPTION_GROUP_TTL | OPTION_GROUP_META | OPTION_GROUP_GUARD | OPTION_GROUP_CLAIM,
     command_claim,
     "KEY... [--ttl T] [--destroy [--if-token N]] [--adopt [--grace T]] [--meta TEXT]"},
    {{"renew", NULL},
     KEYED | OPTION_GROUP_TTL | OPTION_GROUP_META | OPTION_GROUP_GUARD | OPTION_GROUP_RENEW,
     command_renew,
     "KEY... [--ttl T] [--if-token N] [--reestablish [--meta TEXT]]"},
    {{"heartbeat", NULL},
     KEYED | OPTION_GROUP_TTL | OPTION_GROUP_GUARD,
     command_heartbeat,
     "KEY [--ttl T] [--if-token N]"},
    {{"release", NULL}, KEYED | OPTION_GROUP_GUARD, command_release, "KEY... [--if-token N]"},
    {{"owner", NULL},
     OPTION_GROUP_READ | OPTION_GROUP_NAMESPACE,
     command_owner,
     "KEY... [--stale]"},
    {{"list", NULL},
     OPTION_GROUP_READ | OPTION_GROUP_FILTER | OPTION_GROUP_PAGE | OPTION_GROUP_NAMESPACE,
     command_list,
     "[--owner O] [--prefix P] [--state own|del] [--after KEY] [--limit N] [--stale]"},
    {{"count", NULL},
     OPTION_GROUP_READ | OPTION_GROUP_FILTER | OPTION_GROUP_NAMESPACE,
     command_count,
     "[--owner O] [--prefix P] [--state own|del] [--stale]"},
    {{"renew-all", NULL},
     KEYED | OPTION_GROUP_TTL | OPTION_GROUP_SET,
     command_renew_all,
     "[--ttl T] [--set-version N]"},
    {{"release-all", NULL}, KEYED, command_release_all, ""},
    {{"purge", NULL}, OPTION_GROUP_NAMESPACE, command_purge, ""},
    {{"status", NULL}, OPTION_GROUP_READY, command_status, "[--ready [--voter]]"},
    {{"metrics", NULL}, 0, command_metrics, ""},
    {{"cluster", "init"},
     OPTION_GROUP_INIT,
     command_cluster_init,
     "[--voters N] [--token-floor N]"},
    {{"cluster", "members"}, 0, command_cluster_members, ""},
    {{"cluster", "transfer"}, 0, command_cluster_transfer, "[NODE]"},
    {{"cluster", "dev"},
     OPTION_GROUP_DEV,
     command_cluster_dev,
     "N [--dir DIR] | --stop [--dir DIR]"},
};

#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static bool outputs_open(void);
static void usage(FILE *out);
static enum exit_code dispatch(int argc, char **argv);
static const struct command *find(int argc, char **argv, int *out_words);
static enum exit_code run(const struct command *command, int argc, char **argv);

int main(int argc, char **argv)
{
    if (!outputs_open()) {
        return EXIT_CODE_INTERNAL;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    enum exit_code code = EXIT_CODE_USAGE;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("tenure %s, protocol %u\n", TENURE_VERSION, TENURE_PROTOCOL_VERSION);
        code = EXIT_CODE_DONE;
    } else if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)) {
        usage(stdout);
        code = EXIT_CODE_DONE;
    } else {
        code = dispatch(argc - 1, argv + 1);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        complain("INTERNAL: standard output", strerror(errno));
        return EXIT_CODE_INTERNAL;
    }
    return (int)code;
}

/* A closed descriptor would be given to the next thing that is opened, and what we print would go
 * there: a closed output ends the run before anything is asked, the other two get nothing at all.
 */
static bool outputs_open(void)
{
    bool closed = fcntl(STDOUT_FILENO, F_GETFD) < 0;
    const int others[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (fcntl(others[i], F_GETFD) < 0 && open("/dev/null", O_RDWR) != others[i]) {
            return false;
        }
    }
    if (closed) {
        complain("INTERNAL: standard output is closed", NULL);
    }
    return !closed;
}

static void usage(FILE *out)
{
    fputs("usage: tenure COMMAND [--socket PATH] [--namespace NS] [--owner OWNER] [--deadline T] "
          "[--json] ...\n",
          out);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const struct command *command = &commands[i];
        fprintf(out, "  tenure %s%s%s %s\n", command->words[0],
                command->words[1] == NULL ? "" : " ",
                command->words[1] == NULL ? "" : command->words[1], command->help);
    }
}

/* Options may stand before the command, as people know it from other tools: they are put behind its
 * words, where they are read. */
static enum exit_code dispatch(int argc, char **argv)
{
    int leading = options_leading(argc, argv);
    int words = 0;
    const struct command *command = find(argc - leading, argv + leading, &words);
    if (command == NULL) {
        complain(leading < argc ? "unknown command" : "name a command",
                 leading < argc ? argv[leading] : NULL);
        usage(stderr);
        return EXIT_CODE_USAGE;
    }
    memmove(argv + words, argv, (size_t)leading * sizeof *argv);
    return run(command, argc - words, argv + words);
}

static const struct command *find(int argc, char **argv, int *out_words)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const char *const *words = commands[i].words;
        if (argc < 1 || strcmp(argv[0], words[0]) != 0) {
            continue;
        }
        if (words[1] == NULL || (argc >= 2 && strcmp(argv[1], words[1]) == 0)) {
            *out_words = words[1] == NULL ? 1 : 2;
            return &commands[i];
        }
    }
    return NULL;
}

static enum exit_code run(const struct command *command, int argc, char **argv)
{
    struct cli cli = {.command = command->words[0]};
    enum exit_code code = EXIT_CODE_USAGE;
    if (!options_parse(&cli, command->groups, argc, argv)) {
        code = EXIT_CODE_USAGE;
    } else if (cli.options.help) {
        usage(stdout);
        code = EXIT_CODE_DONE;
    } else {
        const char *owner = getenv("TENURE_OWNER");
        if (cli.options.owner != NULL) {
            owner = cli.options.owner;
        }
        struct tenure_options options = {
            .socket = cli.options.socket,
            .ns = cli.options.ns,
            .owner = owner != NULL && owner[0] == '\0' && cli.options.owner == NULL ? NULL : owner,
            .deadline_ms = cli.options.deadline_ms,
        };
        struct tenure_failure failure;
        if (tenure_client_create(&options, &cli.client, &failure) != TENURE_ERROR_NONE) {
            code = report_failure(&cli, &failure);
        } else {
            code = command->run(&cli);
            tenure_client_destroy(cli.client);
        }
    }
    free(cli.options.args);
    return code;
}
