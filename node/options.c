/* Two passes: the first finds the file and the mode, the second takes the options over the file. */
#include "node/options.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/check.h"

#define OPTIONS_MAX 64u
#define NAME_LEN_MAX 32u

/* One option of the command line, cut into its parts. */
struct option {
    char name[NAME_LEN_MAX + 1]; /* without hyphens */
    const char *value;           /* NULL: none */
};

static enum status cut(int argc, char **argv, int *at, struct option *out_option,
                       struct config_error *out_error);
static enum status take_modes(const struct option *option, enum options_mode *mode,
                              const char **file, struct config_error *out_error);
static enum status read_file(const char *path, struct config *config,
                             struct config_error *out_error);
static enum status read_text(const char *path, struct buf *out, struct config_error *out_error);
static enum status refuse(struct config_error *out_error, const char *what, const char *why);
static bool is_mode(const char *name);

enum status options_read(int argc, char **argv, struct config *out_config,
                         enum options_mode *out_mode, struct config_error *out_error)
{
    struct option options[OPTIONS_MAX];
    unsigned count = 0;
    enum options_mode mode = OPTIONS_MODE_RUN;
    const char *file = NULL;
    for (int at = 1; at < argc;) {
        if (count == OPTIONS_MAX) {
            return refuse(out_error, "command line", "too many options");
        }
        struct option *option = &options[count];
        if (cut(argc, argv, &at, option, out_error) != STATUS_OK ||
            take_modes(option, &mode, &file, out_error) != STATUS_OK) {
            return STATUS_INVALID;
        }
        for (unsigned i = 0; i < count; i++) {
            if (strcmp(options[i].name, option->name) == 0) {
                return refuse(out_error, argv[at - 1], "given twice");
            }
        }
        count++;
    }

    struct config config;
    node_config_init(&config);
    if (mode == OPTIONS_MODE_RUN || mode == OPTIONS_MODE_CHECK) {
        if (file != NULL && read_file(file, &config, out_error) != STATUS_OK) {
            return STATUS_INVALID;
        }
        for (unsigned i = 0; i < count; i++) {
            if (!is_mode(options[i].name) &&
                node_config_option(&config, options[i].name, options[i].value, out_error) !=
                    STATUS_OK) {
                return STATUS_INVALID;
            }
        }
        if (node_config_validate(&config, out_error) != STATUS_OK) {
            return STATUS_INVALID;
        }
    }
    *out_config = config;
    *out_mode = mode;
    return STATUS_OK;
}

void options_help(struct buf *out)
{
    static const char head[] =
        "Usage: tenured [--config FILE] [OPTION VALUE]...\n"
        "\n"
        "Runs one node of a Tenure cluster. A configuration file has the same options, with\n"
        "underscores: `socket_mode = \"0660\"`. The command line goes over the file.\n"
        "\n"
        "  --config FILE\n      read this configuration file\n"
        "  --check-config\n      validate, print the configuration, and end\n"
        "  --help, --version\n      print, and end\n";
    buf_append(out, head, sizeof head - 1);
    node_config_help(out);
}

enum status options_group(const struct config *config, int64_t *out_gid,
                          struct config_error *out_error)
{
    const char *name = config->socket_group;
    if (name[0] == '\0') {
        *out_gid = -1;
        return STATUS_OK;
    }
    if (name[strspn(name, "0123456789")] == '\0' && strlen(name) <= 9) {
        int64_t gid = 0;
        for (const char *at = name; *at != '\0'; at++) {
            gid = gid * 10 + (*at - '0');
        }
        *out_gid = gid;
        return STATUS_OK;
    }
    /* Before the loop runs: the only place where this may block. */
    const struct group *group = getgrnam(name);
    if (group == NULL) {
        (void)snprintf(out_error->text, sizeof out_error->text,
                       "socket_group: %s: there is no such group", name);
        return STATUS_INVALID;
    }
    *out_gid = (int64_t)group->gr_gid;
    return STATUS_OK;
}

/* `--name value`, `--name=value` or `--switch`; *at moves behind it. */
static enum status cut(int argc, char **argv, int *at, struct option *out_option,
                       struct config_error *out_error)
{
    const char *word = argv[*at];
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0') {
        return refuse(out_error, word, "is no option; options begin with two hyphens");
    }
    size_t len = strcspn(word + 2, "=");
    if (len == 0 || len > NAME_LEN_MAX) {
        return refuse(out_error, word, "unknown option");
    }
    *out_option = (struct option){0};
    memcpy(out_option->name, word + 2, len);
    (*at)++;
    bool bare = strcmp(out_option->name, "check-config") == 0 ||
                strcmp(out_option->name, "help") == 0 ||
                strcmp(out_option->name, "version") == 0 ||
                node_config_option_is_switch(out_option->name);
    if (bare) {
        return word[2 + len] == '=' ? refuse(out_error, word, "takes no value") : STATUS_OK;
    }
    if (word[2 + len] == '=') {
        out_option->value = word + 2 + len + 1;
    } else if (*at < argc && strncmp(argv[*at], "--", 2) != 0) {
        out_option->value = argv[(*at)++];
    }
    return STATUS_OK;
}

static enum status take_modes(const struct option *option, enum options_mode *mode,
                              const char **file, struct config_error *out_error)
{
    if (strcmp(option->name, "help") == 0) {
        *mode = OPTIONS_MODE_HELP;
    } else if (strcmp(option->name, "version") == 0 && *mode != OPTIONS_MODE_HELP) {
        *mode = OPTIONS_MODE_VERSION;
    } else if (strcmp(option->name, "check-config") == 0 && *mode == OPTIONS_MODE_RUN) {
        *mode = OPTIONS_MODE_CHECK;
    } else if (strcmp(option->name, "config") == 0) {
        if (option->value == NULL || option->value[0] == '\0') {
            return refuse(out_error, "--config", "needs a value");
        }
        *file = option->value;
    }
    return STATUS_OK;
}

static bool is_mode(const char *name)
{
    return strcmp(name, "help") == 0 || strcmp(name, "version") == 0 ||
           strcmp(name, "check-config") == 0 || strcmp(name, "config") == 0;
}

static enum status read_file(const char *path, struct config *config,
                             struct config_error *out_error)
{
    struct buf text;
    buf_init(&text, CONFIG_TEXT_LEN_MAX + 1);
    enum status st = read_text(path, &text, out_error);
    if (st == STATUS_OK) {
        st = node_config_text(config, path, buf_slice(&text), out_error);
    }
    buf_deinit(&text);
    return st;
}

/* O_NONBLOCK: opening a pipe that nobody writes to must not hang. One byte more than allowed is
 * read, so that the parser's limit sees files that grew after the look at their size. */
static enum status read_text(const char *path, struct buf *out, struct config_error *out_error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return refuse(out_error, path, strerror(errno));
    }
    struct stat about;
    enum status st = STATUS_OK;
    if (fstat(fd, &about) != 0) {
        st = refuse(out_error, path, strerror(errno));
    } else if (S_ISDIR(about.st_mode)) {
        st = refuse(out_error, path, "is a directory");
    } else if (!S_ISREG(about.st_mode)) {
        st = refuse(out_error, path, "is no regular file");
    } else if (about.st_size > (off_t)CONFIG_TEXT_LEN_MAX) {
        st = refuse(out_error, path, "too long for a configuration file");
    }
    while (st == STATUS_OK && out->len <= CONFIG_TEXT_LEN_MAX) {
        uint8_t chunk[4096];
        ssize_t len = read(fd, chunk, sizeof chunk);
        if (len == 0) {
            break;
        }
        if (len < 0 && errno != EINTR) {
            st = refuse(out_error, path, strerror(errno));
        } else if (len > 0) {
            size_t room = CONFIG_TEXT_LEN_MAX + 1 - out->len;
            buf_append(out, chunk, (size_t)len < room ? (size_t)len : room);
        }
    }
    (void)close(fd);
    return st;
}

/* What a terminal sees of `what` is printable ASCII. */
static enum status refuse(struct config_error *out_error, const char *what, const char *why)
{
    char shown[256];
    size_t len = strnlen(what, sizeof shown - 1);
    for (size_t i = 0; i < len; i++) {
        shown[i] = what[i] >= 0x20 && what[i] < 0x7f ? what[i] : '?';
    }
    shown[len] = '\0';
    (void)snprintf(out_error->text, sizeof out_error->text, "%s: %s", shown, why);
    return STATUS_INVALID;
}
