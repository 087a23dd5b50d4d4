/* A real API on a unix socket in a folder of its own, an owner that answers or holds back, and raw
 * client sockets in the same thread. */
#ifndef TESTS_NODE_API_BED_H_
#define TESTS_NODE_API_BED_H_

#include "fsm/base/buf.h"
#include "node/api.h"
#include "tests/node/drive.h"

#define BED_REPLY_LEN_MAX (9u * 1024u * 1024u)

struct bed_call {
    struct api_call api;
    struct list link; /* in held */
    struct slice message; /* owned */
};

struct api_bed {
    struct loop *loop;
    struct api *api;
    char folder[64];
    char path[96];
    bool hold;        /* keep calls instead of echoing them */
    bool refuse;      /* end the connection of the next message */
    size_t reply_len; /* answer with so many bytes instead of the message */
    size_t keep_len;  /* say that so many bytes are kept for each call */
    struct list held;
    unsigned held_count;
    unsigned messages;
    unsigned lost;
    unsigned written;
    unsigned unwritten;
    struct api_peer peer;
    bool closed;
};

void bed_open(struct api_bed *bed);

/* api_open with these; the path is the bed's where NULL. */
enum status bed_listen(struct api_bed *bed, struct api_config config, char *out_why);

/* Close the API; everything that was held is given up. */
void bed_close_api(struct api_bed *bed);
void bed_close(struct api_bed *bed);

/* Answer the oldest held call with its own message. */
void bed_answer_one(struct api_bed *bed);

/* A socket that is connected and does not block; -1 when refused. */
int bed_connect(const struct api_bed *bed);

/* Write as much as goes at once; returns how much. */
size_t bed_write(int fd, struct slice bytes);

/* Run until so many bytes came. False when the other end closed or the deadline passed. */
bool bed_read(struct api_bed *bed, int fd, size_t len, struct buf *out);

/* Write all while the loop runs, then run until the other end closes. */
bool bed_say_until_closed(struct api_bed *bed, int fd, struct slice bytes, struct buf *out);

/* [0, id, "m", {"p": bin of len bytes}] */
void bed_message(uint32_t id, size_t len, struct buf *out);

/* Resident memory of this process in KiB. */
size_t bed_rss_kib(void);

#endif
