/* Every decision of a call is in session_step; what it does not say is not retried. */
#include "client/session.h"

static enum session_action finish(struct session *session, enum status status);
static enum session_action again(struct session *session, enum status status, uint64_t now_ns);
static enum session_action lost(struct session *session, uint64_t now_ns);

enum session_action session_start(struct session *session, uint64_t deadline_ns, bool read_only,
                                  uint64_t seed)
{
    *session = (struct session){
        .deadline_ns = deadline_ns,
        .pause_ns = SESSION_PAUSE_NS_MIN,
        .read_only = read_only,
        .status = STATUS_DEADLINE,
    };
    rng_init(&session->rng, seed);
    return SESSION_ACTION_CONNECT;
}

enum session_action session_step(struct session *session, enum session_event event,
                                 enum status status, uint64_t now_ns)
{
    switch (event) {
    case SESSION_EVENT_CONNECTED:
    case SESSION_EVENT_REUSED:
        session->connected = true;
        session->fresh = false;
        session->pooled = event == SESSION_EVENT_REUSED;
        return now_ns < session->deadline_ns ? SESSION_ACTION_SEND
                                             : finish(session, session->status);
    case SESSION_EVENT_CONNECT_FAILED:
    case SESSION_EVENT_REFUSED:
        session->connected = false;
        return again(session, status, now_ns);
    case SESSION_EVENT_SENT:
        return SESSION_ACTION_RECEIVE;
    case SESSION_EVENT_SEND_FAILED:
        session->connected = false;
        if (session->pooled && now_ns < session->deadline_ns) {
            /* The node was restarted since; its successor may be there already. */
            session->fresh = true;
            return SESSION_ACTION_CONNECT;
        }
        return again(session, status, now_ns);
    case SESSION_EVENT_ANSWERED:
        return again(session, status, now_ns);
    case SESSION_EVENT_LOST:
        return lost(session, now_ns);
    case SESSION_EVENT_TIMED_OUT:
        session->connected = false;
        return finish(session, STATUS_UNKNOWN);
    case SESSION_EVENT_WAITED:
        return session->connected ? SESSION_ACTION_SEND : SESSION_ACTION_CONNECT;
    }
    CHECK(false);
    return SESSION_ACTION_FINISH;
}

bool session_retryable(enum status status)
{
    if (status_class(status) != STATUS_CLASS_NOT_DONE) {
        return false;
    }
    /* These last longer than a call: somebody has to do something first. */
    return status != STATUS_LIMIT && status != STATUS_UNINITIALISED &&
           status != STATUS_QUARANTINED && status != STATUS_DEADLINE;
}

static enum session_action finish(struct session *session, enum status status)
{
    session->status = status;
    return SESSION_ACTION_FINISH;
}

/* Once more after a pause, if that can help and fits. */
static enum session_action again(struct session *session, enum status status, uint64_t now_ns)
{
    session->status = status;
    if (!session_retryable(status)) {
        return SESSION_ACTION_FINISH;
    }
    uint64_t left_ns = sub_or_zero_u64(session->deadline_ns, now_ns);
    if (left_ns <= SESSION_PAUSE_NS_MIN) {
        return SESSION_ACTION_FINISH;
    }
    uint64_t pause_ns = session->pause_ns / 2 + rng_below(&session->rng, session->pause_ns / 2 + 1);
    /* The last attempt is made just before the end. */
    pause_ns = min_u64(pause_ns, left_ns - SESSION_PAUSE_NS_MIN);
    session->pause_ns = min_u64(session->pause_ns * 2, SESSION_PAUSE_NS_MAX);
    session->wait_until_ns = now_ns + pause_ns;
    return SESSION_ACTION_WAIT;
}

static enum session_action lost(struct session *session, uint64_t now_ns)
{
    session->connected = false;
    if (now_ns >= session->deadline_ns) {
        return finish(session, STATUS_UNKNOWN);
    }
    if (!session->read_only) {
        return finish(session, STATUS_LINK_LOST);
    }
    session->fresh = true;
    return again(session, STATUS_NOT_CONNECTED, now_ns);
}
