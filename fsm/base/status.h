/* How an operation of ours ended: one table with a text, a class and an API error each.
 *
 * The class says what can have happened to a request that ended so; retry logic looks at nothing
 * else:
 *
 *   DONE      it was carried out; the outcome says what happened
 *   NOT_DONE  certainly not carried out; any node may try again
 *   MAYBE     may have been carried out; only the same (origin, sequence) may be sent again
 *   NEVER     malformed, too large or not allowed; trying again is pointless
 *
 * "Not done" is said of one sending: once one sending of a request was MAYBE the request stays
 * MAYBE until the state machine answers for its number. */
#ifndef FSM_BASE_STATUS_H_
#define FSM_BASE_STATUS_H_

enum status_class {
    STATUS_CLASS_DONE,
    STATUS_CLASS_NOT_DONE,
    STATUS_CLASS_MAYBE,
    STATUS_CLASS_NEVER,
};

/* The errors that a client sees (docs/protocol.md 1.4). The values are part of the protocol. */
enum api_error {
    API_ERROR_NONE = 0,
    API_ERROR_INVALID = 1,
    API_ERROR_UNAVAILABLE = 2,
    API_ERROR_UNKNOWN = 3,
    API_ERROR_DENIED = 4,
    API_ERROR_INCOMPATIBLE = 5,
    API_ERROR_INTERNAL = 6,
};

/* name, class, API error, text */
#define STATUS_TABLE(X)                                                                            \
    X(OK, DONE, NONE, "ok")                                                                        \
    X(NO_LEADER, NOT_DONE, UNAVAILABLE, "no leader is known")                                      \
    X(NOT_LEADER, NOT_DONE, UNAVAILABLE, "this node does not lead")                                \
    X(WRONG_TERM, NOT_DONE, UNAVAILABLE, "the leader it was meant for leads no more")              \
    X(NOT_SERVING, NOT_DONE, UNAVAILABLE, "the leader has not committed an entry of its term yet") \
    X(NO_QUORUM, NOT_DONE, UNAVAILABLE, "no majority of the voters answers")                       \
    X(OVERLOADED, NOT_DONE, UNAVAILABLE, "too much is waiting already")                            \
    X(DISK_FULL, NOT_DONE, UNAVAILABLE, "disk full")                                               \
    X(LIMIT, NOT_DONE, UNAVAILABLE, "a limit of the table is reached")                             \
    X(DEADLINE, NOT_DONE, UNAVAILABLE, "the deadline passed before it was submitted")              \
    X(CLOSING, NOT_DONE, UNAVAILABLE, "shutting down")                                             \
    X(BUSY, NOT_DONE, UNAVAILABLE, "busy with another change")                                     \
    X(UNINITIALISED, NOT_DONE, UNAVAILABLE, "this node belongs to no cluster yet")                 \
    X(QUARANTINED, NOT_DONE, UNAVAILABLE, "this node's state differs from the majority's")         \
    X(NOT_CONNECTED, NOT_DONE, UNAVAILABLE, "not connected")                                       \
    X(LEADERSHIP_LOST, MAYBE, UNKNOWN, "leadership was lost after it was submitted")               \
    X(LINK_LOST, MAYBE, UNKNOWN, "the connection broke after it was sent")                         \
    X(UNKNOWN, MAYBE, UNKNOWN, "no answer before the deadline")                                    \
    X(VOID, NOT_DONE, UNAVAILABLE, "its number was settled before it was applied")                 \
    X(ORIGIN_UNKNOWN, NOT_DONE, UNAVAILABLE, "the origin of its number is not known")              \
    X(FORGOTTEN, MAYBE, UNKNOWN, "the outcome of its number is no longer remembered")              \
    X(INVALID, NEVER, INVALID, "breaks a rule")                                                    \
    X(TOO_LARGE, NEVER, INVALID, "larger than a message may be")                                   \
    X(DENIED, NEVER, DENIED, "not allowed for this caller")                                        \
    X(INCOMPATIBLE, NEVER, INCOMPATIBLE, "versions or clusters that cannot work together")         \
    X(MALFORMED, NEVER, INVALID, "malformed bytes")                                                \
    X(CORRUPT, NEVER, INTERNAL, "stored bytes are damaged")                                        \
    X(IN_USE, NEVER, INTERNAL, "in use by another process")                                        \
    X(IO, NEVER, INTERNAL, "an input or output error")                                             \
    X(NO_MEMORY, NOT_DONE, UNAVAILABLE, "out of memory")                                           \
    X(INTERNAL, NEVER, INTERNAL, "an internal error")

enum status {
#define STATUS_ENUM(name, class_, error, text) STATUS_##name,
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

/* Never NULL; static memory. */
const char *status_name(enum status status);
const char *status_text(enum status status);
enum status_class status_class(enum status status);

/* NONE for STATUS_OK only. */
enum api_error status_api_error(enum status status);

/* "INVALID", "UNAVAILABLE", ...: the words of docs/protocol.md 1.4. */
const char *api_error_name(enum api_error error);

#endif
