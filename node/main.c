/* tenured: options, configuration, run, exit code. Everything else is node/node.c. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/node.h"
#include "node/options.h"

#define TEXT_LEN_MAX 65536u
/* libraft writes through libuv's pool of four threads by default; a stuck write must not keep the
 * others waiting. */
#define POOL_THREADS "8"

static void on_fatal(void *ctx, enum node_exit code);
static int print(void (*fill)(struct buf *out));
static int check(const struct config *config);

int main(int argc, char **argv)
{
    struct config config;
    enum options_mode mode = OPTIONS_MODE_RUN;
    struct config_error error;
    if (options_read(argc, argv, &config, &mode, &error) != STATUS_OK) {
        (void)fprintf(stderr, "tenured: %s\n", error.text);
        return NODE_EXIT_CONFIG;
    }
    switch (mode) {
    case OPTIONS_MODE_HELP:
        return print(options_help);
    case OPTIONS_MODE_VERSION:
        return puts("tenured " TENURE_VERSION) < 0 ? NODE_EXIT_FAILED : NODE_EXIT_STOPPED;
    case OPTIONS_MODE_CHECK:
        return check(&config);
    case OPTIONS_MODE_RUN:
        break;
    }
    (void)setenv("UV_THREADPOOL_SIZE", POOL_THREADS, 0);
    struct node_callbacks callbacks = {.on_fatal = on_fatal};
    struct node *node = NULL;
    enum node_exit code = node_create(&config, &callbacks, &node);
    if (code != NODE_EXIT_STOPPED) {
        return (int)code;
    }
    code = node_run(node);
    node_destroy(node);
    return (int)code;
}

/* Not exit(): it would wait for a pool thread that may be stuck in the disk. */
static void on_fatal(void *ctx, enum node_exit code)
{
    (void)ctx;
    _exit((int)code);
}

static int print(void (*fill)(struct buf *out))
{
    struct buf text;
    buf_init(&text, TEXT_LEN_MAX);
    fill(&text);
    bool written = fwrite(text.base, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
    buf_deinit(&text);
    return written ? NODE_EXIT_STOPPED : NODE_EXIT_FAILED;
}

static int check(const struct config *config)
{
    struct buf text;
    buf_init(&text, TEXT_LEN_MAX);
    node_config_print(config, &text);
    bool written = fwrite(text.base, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
    buf_deinit(&text);
    return written ? NODE_EXIT_STOPPED : NODE_EXIT_FAILED;
}
