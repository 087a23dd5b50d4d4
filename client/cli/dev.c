/* cluster dev: a cluster of N nodes on this machine, in the background, to try things on.
 *
 * DIR/1 .. DIR/N have each node's data, api.sock, log, pid and address. The first start lets the
 * kernel choose the ports; a node that is started again gets the address that it had, so that the
 * others find it. Running it again starts what does not run. A pid counts as ours only while its
 * command line names our data directory. */
#include "client/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES_MAX      15u
#define SOCKET_LEN_MAX 107u
#define DIR_DEFAULT    "tenure-dev"
#define START_NS_MAX   60000000000ull /* of the whole command; a slow disk needs its time */
#define STOP_NS_MAX    10000000000ull /* then they are killed */
#define STEP_MS        50
#define VOTERS_WANTED  3u
#define ENDING_MS_MAX  1000u
#define TEXT_LEN_MAX   256u

/* One node of the cluster and where its things are. */
struct node {
    unsigned number;
    char folder[PATH_MAX];
    char data[PATH_MAX];
    char socket[PATH_MAX];
    char log[PATH_MAX];
    char pid_file[PATH_MAX];
    char address_file[PATH_MAX];
    pid_t pid;    /* 0: does not run */
    bool child;   /* started by this process and not collected yet */
    bool started; /* by this process */
    char address[TEXT_LEN_MAX];
    struct tenure_client *client;
};

struct dev {
    char dir[PATH_MAX];
    char program[PATH_MAX]; /* tenured */
    struct node nodes[NODES_MAX];
    unsigned count;
    uint64_t until_ns;
};

static enum exit_code start(struct cli *cli, struct dev *dev);
static enum exit_code stop(struct cli *cli, struct dev *dev);
static bool dev_open(struct dev *dev, const char *dir, bool create);
static bool node_open(struct dev *dev, unsigned number, bool create);
static bool path_of(char *out, const char *folder, const char *name);
static bool find_program(char *out);
static bool node_start(struct dev *dev, struct node *node);
static void node_run(const struct dev *dev, const struct node *node);
static bool node_await(struct dev *dev, struct node *node);
static bool node_lives(struct node *node);
static bool cluster_await(struct dev *dev);
static unsigned voters_of(struct dev *dev);
static bool status_field(struct node *node, const char *name, char *out_text);
static pid_t running_pid(const struct node *node);
static pid_t filed_pid(const struct node *node);
static size_t arguments_of(pid_t pid, char *out, size_t size);
static void end_await(const struct node *node);
static bool read_line(const char *path, char *out, size_t size);
static bool write_line(const char *path, const char *line);
static void show_log(const struct node *node);
static void step_wait(void);
static void show(const struct cli *cli, const struct dev *dev);

enum exit_code command_cluster_dev(struct cli *cli)
{
    const struct options *options = &cli->options;
    const char *dir = options->dir == NULL ? DIR_DEFAULT : options->dir;
    uint64_t count = 0;
    if (options->stop) {
        if (options->arg_count > 0) {
            return usage_error(cli, "--stop takes no argument", options->args[0]);
        }
    } else if (options->arg_count != 1 || !parse_u64(options->args[0], &count) || count < 1 ||
               count > NODES_MAX) {
        return usage_error(cli, "the number of nodes must be a whole number in 1..15, got",
                           options->arg_count > 0 ? options->args[0] : "nothing");
    }
    struct dev *dev = calloc(1, sizeof *dev);
    if (dev == NULL) {
        complain("out of memory", NULL);
        return EXIT_CODE_INTERNAL;
    }
    dev->count = (unsigned)count;
    enum exit_code code = EXIT_CODE_USAGE;
    if (dev_open(dev, dir, !options->stop)) {
        code = options->stop ? stop(cli, dev) : start(cli, dev);
    }
    for (unsigned i = 0; i < NODES_MAX; i++) {
        tenure_client_destroy(dev->nodes[i].client);
    }
    free(dev);
    return code;
}

static enum exit_code start(struct cli *cli, struct dev *dev)
{
    if (!find_program(dev->program)) {
        return EXIT_CODE_INTERNAL;
    }
    dev->until_ns = tenure_now_ns() + START_NS_MAX;
    struct node *first = &dev->nodes[0];
    if (!node_start(dev, first) || !node_await(dev, first)) {
        return EXIT_CODE_UNAVAILABLE;
    }
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (tenure_cluster_init(first->client, NULL, &reply, &failure) != TENURE_ERROR_NONE) {
        show_log(first);
        return report_failure(cli, &failure);
    }
    tenure_reply_free(reply);
    for (unsigned i = 1; i < dev->count; i++) {
        if (!node_start(dev, &dev->nodes[i])) {
            return EXIT_CODE_UNAVAILABLE;
        }
    }
    for (unsigned i = 1; i < dev->count; i++) {
        if (!node_await(dev, &dev->nodes[i])) {
            return EXIT_CODE_UNAVAILABLE;
        }
    }
    if (!cluster_await(dev)) {
        return EXIT_CODE_UNAVAILABLE;
    }
    show(cli, dev);
    return EXIT_CODE_DONE;
}

/* All are asked at once, then waited for. */
static enum exit_code stop(struct cli *cli, struct dev *dev)
{
    unsigned stopped = 0;
    for (unsigned i = 0; i < NODES_MAX; i++) {
        struct node *node = &dev->nodes[i];
        node->pid = node->number == 0 ? 0 : running_pid(node);
        if (node->pid != 0) {
            stopped++;
            (void)kill(node->pid, SIGTERM);
        }
    }
    uint64_t until_ns = tenure_now_ns() + STOP_NS_MAX;
    for (unsigned i = 0; i < NODES_MAX; i++) {
        struct node *node = &dev->nodes[i];
        while (node->pid != 0 && running_pid(node) == node->pid) {
            if (tenure_now_ns() >= until_ns) {
                (void)kill(node->pid, SIGKILL);
            }
            step_wait();
        }
        if (node->number != 0) {
            (void)unlink(node->pid_file);
        }
    }
    if (cli->options.json) {
        json_t *object = json_object();
        json_set(object, "stopped", json_number(stopped));
        json_print(object);
    } else {
        printf("stopped %u nodes\n", stopped);
    }
    return EXIT_CODE_DONE;
}

static bool dev_open(struct dev *dev, const char *dir, bool create)
{
    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST) {
        complain(dir, strerror(errno));
        return false;
    }
    if (realpath(dir, dev->dir) == NULL) {
        complain(dir, strerror(errno));
        return false;
    }
    unsigned count = create ? dev->count : NODES_MAX;
    for (unsigned i = 0; i < count; i++) {
        if (!node_open(dev, i + 1, create)) {
            return false;
        }
    }
    return true;
}

static bool node_open(struct dev *dev, unsigned number, bool create)
{
    struct node *node = &dev->nodes[number - 1];
    char name[16];
    (void)snprintf(name, sizeof name, "%u", number);
    if (!path_of(node->folder, dev->dir, name) || !path_of(node->data, node->folder, "data") ||
        !path_of(node->socket, node->folder, "api.sock") ||
        !path_of(node->log, node->folder, "log") || !path_of(node->pid_file, node->folder, "pid") ||
        !path_of(node->address_file, node->folder, "address")) {
        return false;
    }
    if (!create && access(node->folder, F_OK) != 0) {
        return true; /* number stays 0: there is no such node */
    }
    if (strlen(node->socket) > SOCKET_LEN_MAX) {
        complain("--dir must be shorter: a socket's path has at most 107 bytes", node->socket);
        return false;
    }
    if (create && ((mkdir(node->folder, 0700) != 0 && errno != EEXIST) ||
                   (mkdir(node->data, 0700) != 0 && errno != EEXIST))) {
        complain(node->folder, strerror(errno));
        return false;
    }
    node->number = number;
    struct tenure_options options = {.socket = node->socket, .deadline_ms = 1000};
    struct tenure_failure failure;
    if (tenure_client_create(&options, &node->client, &failure) != TENURE_ERROR_NONE) {
        complain(node->socket, failure.message);
        return false;
    }
    return true;
}

static bool path_of(char *out, const char *folder, const char *name)
{
    int len = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    if (len < 0 || len >= PATH_MAX) {
        complain("the path is too long", folder);
        return false;
    }
    return true;
}

/* Beside this program, or by PATH. */
static bool find_program(char *out)
{
    char own[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    if (len > 0) {
        own[len] = '\0';
        char *name = strrchr(own, '/');
        if (name != NULL) {
            *name = '\0';
            if (path_of(out, own, "tenured") && access(out, X_OK) == 0) {
                return true;
            }
        }
    }
    memcpy(out, "tenured", sizeof "tenured");
    return true;
}

/* In the background, unless it runs already. */
static bool node_start(struct dev *dev, struct node *node)
{
    node->pid = running_pid(node);
    if (node->pid != 0) {
        return true;
    }
    end_await(node);
    if (!read_line(node->address_file, node->address, sizeof node->address)) {
        memcpy(node->address, "127.0.0.1:0", sizeof "127.0.0.1:0");
    }
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        complain("fork", strerror(errno));
        return false;
    }
    if (pid == 0) {
        node_run(dev, node);
    }
    node->pid = pid;
    node->child = true;
    node->started = true;
    char line[32];
    (void)snprintf(line, sizeof line, "%ld", (long)pid);
    return write_line(node->pid_file, line);
}

/* In the child: becomes the node, away from terminal and descriptors of ours. */
__attribute__((noreturn)) static void node_run(const struct dev *dev, const struct node *node)
{
    (void)setsid();
    (void)signal(SIGPIPE, SIG_DFL);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int log = open(node->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (nothing < 0 || log < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0) {
        _exit(127);
    }
    const char *join = node->number == 1 ? NULL : dev->nodes[0].address;
    execlp(dev->program, "tenured", "--data", node->data, "--socket", node->socket, "--listen",
           node->address, join == NULL ? NULL : "--join", join, NULL);
    fprintf(stderr, "cannot run %s: %s\n", dev->program, strerror(errno));
    _exit(127);
}

/* Until it answers; then its address is known. */
static bool node_await(struct dev *dev, struct node *node)
{
    char address[TEXT_LEN_MAX];
    while (!status_field(node, "address", address)) {
        if (!node_lives(node)) {
            if (!node->started && node_start(dev, node)) {
                continue; /* it was ending while we took it for running */
            }
            complain("the node ended, see", node->log);
            show_log(node);
            return false;
        }
        if (tenure_now_ns() >= dev->until_ns) {
            complain("the node does not answer, see", node->log);
            show_log(node);
            return false;
        }
        step_wait();
    }
    memcpy(node->address, address, sizeof address);
    return write_line(node->address_file, address);
}

static bool node_lives(struct node *node)
{
    int status = 0;
    if (node->child && waitpid(node->pid, &status, WNOHANG) == node->pid) {
        node->child = false;
        node->pid = 0;
        return false;
    }
    /* Between fork and exec the command line is still ours: a child that was not waited for lives.
     */
    return node->child || running_pid(node) != 0;
}

/* Until every node is ready and as many vote as shall. */
static bool cluster_await(struct dev *dev)
{
    unsigned wanted = dev->count >= VOTERS_WANTED ? VOTERS_WANTED : 1;
    for (unsigned i = 0; i < dev->count;) {
        struct node *node = &dev->nodes[i];
        char ready[TEXT_LEN_MAX];
        if (status_field(node, "ready", ready) && strcmp(ready, "yes") == 0) {
            i++;
            continue;
        }
        if (!node_lives(node) || tenure_now_ns() >= dev->until_ns) {
            complain("the node does not become ready, see", node->log);
            show_log(node);
            return false;
        }
        step_wait();
    }
    while (voters_of(dev) < wanted) {
        if (tenure_now_ns() >= dev->until_ns) {
            complain("fewer voters than wanted: see `tenure cluster members` and", dev->dir);
            return false;
        }
        step_wait();
    }
    return true;
}

static unsigned voters_of(struct dev *dev)
{
    struct tenure_reply *reply = NULL;
    unsigned voters = 0;
    if (tenure_members(dev->nodes[0].client, NULL, &reply, NULL) != TENURE_ERROR_NONE) {
        return 0;
    }
    for (size_t i = 0; i < reply->field_count; i++) {
        const struct tenure_field *field = &reply->fields[i];
        if (strcmp(field->name, "role") == 0 && field->text != NULL &&
            strcmp(field->text, "voter") == 0) {
            voters++;
        }
    }
    tenure_reply_free(reply);
    return voters;
}

/* A field of the node's status as text, a flag as yes or no. */
static bool status_field(struct node *node, const char *name, char *out_text)
{
    struct tenure_reply *reply = NULL;
    bool found = false;
    if (tenure_status(node->client, NULL, &reply, NULL) != TENURE_ERROR_NONE) {
        return false;
    }
    for (size_t i = 0; i < reply->field_count && !found; i++) {
        const struct tenure_field *field = &reply->fields[i];
        if (strcmp(field->name, name) == 0) {
            const char *flag = field->number != 0 ? "yes" : "no";
            (void)snprintf(out_text, TEXT_LEN_MAX, "%s", field->text != NULL ? field->text : flag);
            found = out_text[0] != '\0';
        }
    }
    tenure_reply_free(reply);
    return found;
}

/* The pid that the node's file names, if that process runs on our data directory; else 0. */
static pid_t running_pid(const struct node *node)
{
    char arguments[4 * PATH_MAX];
    pid_t pid = filed_pid(node);
    size_t len = arguments_of(pid, arguments, sizeof arguments);
    for (size_t at = 0; at < len; at += strlen(arguments + at) + 1) {
        if (strcmp(arguments + at, node->data) == 0) {
            return pid;
        }
    }
    return 0;
}

/* What stands in the node's file; 0: nothing. */
static pid_t filed_pid(const struct node *node)
{
    char line[32];
    uint64_t pid = 0;
    bool valid = read_line(node->pid_file, line, sizeof line) && parse_u64(line, &pid);
    return valid && pid <= INT32_MAX ? (pid_t)pid : 0;
}

/* The command line of a process, a NUL behind each word; 0 bytes of one that ends or is no more. */
static size_t arguments_of(pid_t pid, char *out, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)pid);
    FILE *file = pid == 0 ? NULL : fopen(path, "re");
    size_t len = 0;
    if (file != NULL) {
        len = fread(out, 1, size - 1, file);
        (void)fclose(file);
    }
    out[len] = '\0';
    return len;
}

/* A process that was killed gives up its memory first and its lock on the data directory last: wait
 * for what is in between, but not for ever, since nobody may be there to collect it. */
static void end_await(const struct node *node)
{
    char first[2];
    pid_t pid = filed_pid(node);
    for (uint64_t waited_ms = 0; waited_ms < ENDING_MS_MAX; waited_ms += STEP_MS) {
        if (pid == 0 || kill(pid, 0) != 0 || arguments_of(pid, first, sizeof first) > 0) {
            return;
        }
        step_wait();
    }
}

/* The first line without its end; false when there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool there = fgets(out, (int)size, file) != NULL;
    (void)fclose(file);
    if (there) {
        out[strcspn(out, "\n")] = '\0';
    }
    return there && out[0] != '\0';
}

static bool write_line(const char *path, const char *line)
{
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fprintf(file, "%s\n", line) > 0;
    if (file != NULL && fclose(file) != 0) {
        written = false;
    }
    if (!written) {
        complain(path, strerror(errno));
    }
    return written;
}

/* Its last lines, as far as one buffer holds them. */
static void show_log(const struct node *node)
{
    char tail[2048];
    FILE *file = fopen(node->log, "re");
    if (file == NULL) {
        return;
    }
    if (fseek(file, -(long)(sizeof tail - 1), SEEK_END) != 0) {
        rewind(file);
    }
    size_t len = fread(tail, 1, sizeof tail - 1, file);
    (void)fclose(file);
    for (size_t at = 0; at < len;) {
        size_t end = at;
        while (end < len && tail[end] != '\n') {
            end++;
        }
        print_bytes(stderr, tail + at, end - at);
        fputc('\n', stderr);
        at = end + 1;
    }
}

static void step_wait(void)
{
    (void)poll(NULL, 0, STEP_MS);
}

static void show(const struct cli *cli, const struct dev *dev)
{
    json_t *nodes = cli->options.json ? json_array() : NULL;
    for (unsigned i = 0; i < dev->count; i++) {
        const struct node *node = &dev->nodes[i];
        if (nodes == NULL) {
            printf("node %u: socket ", node->number);
            print_text(stdout, node->socket);
            fputs(" address ", stdout);
            print_text(stdout, node->address);
            printf(" pid %ld\n", (long)node->pid);
            continue;
        }
        json_t *object = json_object();
        json_set(object, "node", json_number(node->number));
        json_set(object, "socket", json_text(node->socket));
        json_set(object, "address", json_text(node->address));
        json_set(object, "pid", json_number((uint64_t)node->pid));
        json_array_append_new(nodes, object);
    }
    if (nodes != NULL) {
        json_t *object = json_object();
        json_set(object, "nodes", nodes);
        json_print(object);
    }
}
