/* A node that does what a script says: a thread behind a unix socket in a folder of its own.
 *
 * Each request that arrives, on whatever connection, takes the next step of the script; when the
 * script is at its end the last step is repeated. */
#ifndef TESTS_CLIENT_FAKE_NODE_H_
#define TESTS_CLIENT_FAKE_NODE_H_

#include "client/protocol.h"

#define FAKE_NODE_STEPS_MAX 16u

enum fake_step_kind {
    FAKE_STEP_ANSWER,       /* with `reply` */
    FAKE_STEP_SILENCE,      /* never */
    FAKE_STEP_HANG_UP,      /* close the connection instead */
    FAKE_STEP_STRAY_FIRST,  /* replies with other ids, then `reply` */
    FAKE_STEP_LATE,         /* `reply`, delay_ms after the request */
    FAKE_STEP_HALF,         /* the first half of `reply`, then silence */
    FAKE_STEP_REFUSE_ALL,   /* an error with id 0 (BUSY), then close */
    FAKE_STEP_GARBAGE,      /* bytes that are no message */
    FAKE_STEP_ANSWER_CLOSE, /* `reply`, then close */
};

struct fake_step {
    enum fake_step_kind kind;
    struct proto_reply reply; /* id and method are filled in */
    uint64_t delay_ms;
};

/* What the node has seen. */
struct fake_seen {
    unsigned connections;
    unsigned requests;
    unsigned hang_ups;        /* connections that the other end closed */
    unsigned write_failures;  /* replies that could not be written wholly */
    enum proto_method method; /* of the last request */
    uint64_t deadline_ns;
    uint32_t id;
    char owner[256];
    char key[1024];
    struct op op; /* slices of it are not valid */
};

struct fake_node;

/* Listens at once. Steps are copied; what their replies borrow must live on. */
struct fake_node *fake_node_start(const struct fake_step *steps, size_t count);

/* The same on a path that is there already (fake_node_path of one that was stopped). */
struct fake_node *fake_node_start_at(const char *path, const struct fake_step *steps, size_t count);

/* Closes every connection; `keep_folder` leaves the path usable for another one. */
void fake_node_stop(struct fake_node *node, bool keep_folder);

const char *fake_node_path(const struct fake_node *node);

/* Waits until the step that runs, if one does, has ended. */
struct fake_seen fake_node_seen(struct fake_node *node);

/* Begin the script anew with these steps. */
void fake_node_script(struct fake_node *node, const struct fake_step *steps, size_t count);

/* A folder that is removed by fake_folder_remove. */
void fake_folder_make(char *out_path, size_t size);
void fake_folder_remove(const char *path);

#endif
