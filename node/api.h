/* The local API's socket: accepts connections, cuts the stream into messages, hands each to the
 * owner and carries replies back, in any order.
 *
 * Bounded everywhere: a message is at most MESSAGE_LEN_MAX, all input buffers together
 * API_INPUT_LEN_MAX (reading pauses beyond it), a connection has at most API_IN_FLIGHT_MAX calls
 * unanswered (the rest waits in its socket), connections are counted. What the owner keeps of calls
 * is counted too: a message waits, and its connection with it, until there is room for as many
 * bytes below API_KEPT_LEN_MAX; small ones have as much again, so that they pass whoever keeps
 * much. An incomplete message that is older than API_MESSAGE_AGE_MS_MAX ends its connection.
 *
 * A caller that does not read must not keep others waiting, since a number is confirmed only when
 * its reply is written: replies of which the socket takes nothing for API_UNREAD_MS_MAX end their
 * connection, and when all output together is too much, whoever has left most unread goes first.
 * Knows nothing of methods. */
#ifndef NODE_API_H_
#define NODE_API_H_

#include "fsm/base/buf.h"
#include "fsm/base/list.h"
#include "fsm/base/status.h"
#include "node/loop.h"

#define API_INPUT_LEN_MAX (64u * 1024u * 1024u)
#define API_KEPT_LEN_MAX (64u * 1024u * 1024u)
#define API_SMALL_LEN 4096u
#define API_IN_FLIGHT_MAX 1024u
#define API_CONNECTIONS_MAX 16384u
#define API_MESSAGE_AGE_MS_MAX 30000u
#define API_UNREAD_MS_MAX 5000u

struct api;
struct api_conn;

/* Who is at the other end, by SO_PEERCRED. */
struct api_peer {
    uint32_t uid;
    uint32_t gid;
    int32_t pid;
};

/* A call that is not answered yet; embedded in or owned by whatever the owner makes of it. */
struct api_call {
    struct api_conn *conn; /* NULL once the connection is gone */
    struct list link;      /* in the connection's calls */
    uint64_t end;          /* the API's own: where the reply ends in the stream */
    size_t kept_len;       /* the API's own: see api_call_keep */
};

struct api_callbacks {
    void *ctx;

    /* One whole message (proto_scan said so). Valid during the call. Start a call with
     * api_call_begin when it will be answered later or at once. */
    void (*on_message)(void *ctx, struct api_conn *conn, const struct api_peer *peer,
                       struct slice message);

    /* The connection of this unanswered call is gone; conn is NULL already. */
    void (*on_call_lost)(void *ctx, struct api_call *call);

    /* The reply was wholly written to the socket, or (false) never will be. */
    void (*on_written)(void *ctx, struct api_call *call, bool wholly);
};

struct api_config {
    const char *path; /* of the unix socket, at most 107 bytes */
    uint32_t mode;    /* 0600 by default */
    int64_t gid;      /* group of the socket, -1: the process' own */
    uint32_t connections_max; /* 0: API_CONNECTIONS_MAX or the process' limit less 64 */
};

/* Bind and listen. Replaces only a dead socket of the same user; never follows a symlink at the
 * path; created with its mode before anybody can connect. On failure a sentence in out_why (256
 * bytes). */
NODISCARD enum status api_open(struct loop *loop, const struct api_config *config,
                               const struct api_callbacks *callbacks, char *out_why,
                               struct api **out_api);

void api_call_begin(struct api_conn *conn, struct api_call *call);

/* The owner keeps so many bytes for this call, in all; until on_call_lost or on_written, or until
 * it says another figure. */
void api_call_keep(struct api *api, struct api_call *call, size_t len);

/* Queue the reply: copied; all replies of a loop turn are written to their connection at once, at
 * the end of the turn (api_flush). Then on_written. */
void api_call_reply(struct api *api, struct api_call *call, struct slice reply);

/* End the connection; its unanswered calls get on_call_lost. */
void api_conn_refuse(struct api_conn *conn);

/* Write what this turn has queued. Called once at the end of every loop turn. */
void api_flush(struct api *api);

struct api_stats {
    uint64_t connections;
    uint64_t connections_accepted;
    uint64_t connections_refused; /* over the limit */
    uint64_t messages;
    uint64_t refused; /* connections closed for what they sent */
    uint64_t unread;  /* connections closed for what they did not read */
    uint64_t input_len;
    uint64_t kept_len; /* by calls */
};
void api_stats(const struct api *api, struct api_stats *out_stats);

/* Stop accepting; close everything; unlink the socket when it is still ours; then cb. */
void api_close(struct api *api, void (*cb)(void *ctx), void *ctx);

#endif
