/* One bed at a time: its folder is removed when it closes. */
#include "tests/node/api_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void give_up(struct api_bed *bed, struct bed_call *call)
{
    if (list_linked(&call->link)) {
        list_remove(&call->link);
        bed->held_count--;
    }
    free((void *)(uintptr_t)call->message.base);
    free(call);
}

static void reply(struct api_bed *bed, struct bed_call *call)
{
    if (bed->reply_len == 0) {
        api_call_reply(bed->api, &call->api, call->message);
        return;
    }
    uint8_t *bytes = calloc(1, bed->reply_len);
    CHECK(bytes != NULL);
    api_call_reply(bed->api, &call->api, slice_from(bytes, bed->reply_len));
    free(bytes);
}

static void on_message(void *ctx, struct api_conn *conn, const struct api_peer *peer,
                       struct slice message)
{
    struct api_bed *bed = ctx;
    bed->messages++;
    bed->peer = *peer;
    if (bed->refuse) {
        bed->refuse = false;
        api_conn_refuse(conn);
        return;
    }
    struct bed_call *call = calloc(1, sizeof *call);
    uint8_t *copy = malloc(message.len);
    CHECK(call != NULL && copy != NULL);
    memcpy(copy, message.base, message.len);
    call->message = slice_from(copy, message.len);
    list_init(&call->link);
    api_call_begin(conn, &call->api);
    api_call_keep(bed->api, &call->api, bed->keep_len);
    if (bed->hold) {
        list_append(&bed->held, &call->link);
        bed->held_count++;
    } else {
        reply(bed, call);
    }
}

static void on_call_lost(void *ctx, struct api_call *api_call)
{
    struct api_bed *bed = ctx;
    CHECK(api_call->conn == NULL);
    bed->lost++;
    give_up(bed, CONTAINER_OF(api_call, struct bed_call, api));
}

static void on_written(void *ctx, struct api_call *api_call, bool wholly)
{
    struct api_bed *bed = ctx;
    bed->written += wholly ? 1 : 0;
    bed->unwritten += wholly ? 0 : 1;
    give_up(bed, CONTAINER_OF(api_call, struct bed_call, api));
}

static void on_turn_end(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct api_bed *bed = ctx;
    if (bed->api != NULL) {
        api_flush(bed->api);
    }
}

static void on_closed(void *ctx)
{
    struct api_bed *bed = ctx;
    bed->closed = true;
}

void bed_open(struct api_bed *bed)
{
    *bed = (struct api_bed){.folder = "/tmp/test_api.XXXXXX"};
    list_init(&bed->held);
    CHECK(mkdtemp(bed->folder) != NULL);
    (void)snprintf(bed->path, sizeof bed->path, "%s/api.sock", bed->folder);
    CHECK(loop_create(&bed->loop) == STATUS_OK);
    loop_add_turn_end(bed->loop, on_turn_end, bed);
}

enum status bed_listen(struct api_bed *bed, struct api_config config, char *out_why)
{
    struct api_callbacks callbacks = {
        .ctx = bed,
        .on_message = on_message,
        .on_call_lost = on_call_lost,
        .on_written = on_written,
    };
    config.path = config.path != NULL ? config.path : bed->path;
    out_why[0] = '\0';
    return api_open(bed->loop, &config, &callbacks, out_why, &bed->api);
}

void bed_close_api(struct api_bed *bed)
{
    struct api *api = bed->api;
    bed->api = NULL;
    bed->closed = false;
    api_close(api, on_closed, bed);
    CHECK(drive(bed->loop, drive_flag, &bed->closed));
    CHECK(list_empty(&bed->held));
}

void bed_close(struct api_bed *bed)
{
    if (bed->api != NULL) {
        bed_close_api(bed);
    }
    loop_close(bed->loop);
    loop_destroy(bed->loop);
    (void)unlink(bed->path);
    CHECK(rmdir(bed->folder) == 0);
}

void bed_answer_one(struct api_bed *bed)
{
    struct list *link = list_pop(&bed->held);
    CHECK(link != NULL);
    bed->held_count--;
    reply(bed, CONTAINER_OF(link, struct bed_call, link));
}

int bed_connect(const struct api_bed *bed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    memcpy(address.sun_path, bed->path, strlen(bed->path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

size_t bed_write(int fd, struct slice bytes)
{
    ssize_t len = send(fd, bytes.base, bytes.len, MSG_NOSIGNAL);
    return len > 0 ? (size_t)len : 0;
}

struct talk {
    int fd;
    struct slice left;
    struct buf *out;
    size_t wanted;
    bool closed;
};

static bool go_on(void *ctx)
{
    struct talk *talk = ctx;
    size_t done = bed_write(talk->fd, talk->left);
    talk->left = slice_from(talk->left.base + done, talk->left.len - done);
    for (;;) {
        uint8_t chunk[65536];
        ssize_t len = recv(talk->fd, chunk, sizeof chunk, 0);
        if (len > 0) {
            buf_append(talk->out, chunk, (size_t)len);
            continue;
        }
        talk->closed = len == 0 || errno != EAGAIN;
        return talk->closed || talk->out->len >= talk->wanted;
    }
}

bool bed_read(struct api_bed *bed, int fd, size_t len, struct buf *out)
{
    struct talk talk = {.fd = fd, .out = out, .wanted = len};
    return drive(bed->loop, go_on, &talk) && out->len >= len;
}

bool bed_say_until_closed(struct api_bed *bed, int fd, struct slice bytes, struct buf *out)
{
    struct talk talk = {.fd = fd, .left = bytes, .out = out, .wanted = SIZE_MAX};
    bool closed = drive(bed->loop, go_on, &talk) && talk.closed;
    (void)close(fd);
    return closed;
}

void bed_message(uint32_t id, size_t len, struct buf *out)
{
    buf_append(out, "\x94\x00\xce", 3);
    for (unsigned i = 0; i < 4; i++) {
        buf_append_u8(out, (uint8_t)(id >> (24 - 8 * i)));
    }
    buf_append(out, "\xa1m\x81\xa1p\xc6", 6);
    for (unsigned i = 0; i < 4; i++) {
        buf_append_u8(out, (uint8_t)(len >> (24 - 8 * i)));
    }
    buf_append_zeros(out, len);
}

size_t bed_rss_kib(void)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    ssize_t len = read(fd, text, sizeof text - 1);
    (void)close(fd);
    CHECK(len > 0);
    text[len] = '\0';
    const char *line = strstr(text, "VmRSS:");
    CHECK(line != NULL);
    return strtoul(line + 6, NULL, 10);
}
