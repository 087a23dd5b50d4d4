/* What a call does after each event: by the class of a status, inside one deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "client/session.h"

#define DEADLINE_NS (1000 * NS_PER_MS)

static struct session started(bool read_only)
{
    struct session session;
    assert_int_equal(session_start(&session, DEADLINE_NS, read_only, 7), SESSION_ACTION_CONNECT);
    return session;
}

/* A session that waits for its answer on a connection that is `event`. */
static struct session receiving(bool read_only, enum session_event event)
{
    struct session session = started(read_only);
    assert_int_equal(session_step(&session, event, STATUS_OK, 0), SESSION_ACTION_SEND);
    assert_int_equal(session_step(&session, SESSION_EVENT_SENT, STATUS_OK, 0),
                     SESSION_ACTION_RECEIVE);
    return session;
}

static void test_session__an_answer_ends_it(void **state)
{
    (void)state;
    static const enum status finals[] = {
        STATUS_OK,       STATUS_INVALID,       STATUS_DENIED,    STATUS_INCOMPATIBLE,
        STATUS_INTERNAL, STATUS_UNKNOWN,       STATUS_LINK_LOST, STATUS_LEADERSHIP_LOST,
        STATUS_LIMIT,    STATUS_UNINITIALISED, STATUS_DEADLINE,  STATUS_QUARANTINED,
    };
    for (size_t i = 0; i < sizeof finals / sizeof finals[0]; i++) {
        struct session session = receiving(false, SESSION_EVENT_CONNECTED);
        assert_int_equal(session_step(&session, SESSION_EVENT_ANSWERED, finals[i], 1),
                         SESSION_ACTION_FINISH);
        assert_int_equal(session.status, finals[i]);
    }
}

static void test_session__what_is_not_done_is_sent_again_on_the_same_connection(void **state)
{
    (void)state;
    static const enum status again[] = {STATUS_NO_LEADER,   STATUS_NOT_LEADER,    STATUS_WRONG_TERM,
                                        STATUS_NO_QUORUM,   STATUS_OVERLOADED,    STATUS_DISK_FULL,
                                        STATUS_NOT_SERVING, STATUS_CLOSING,       STATUS_BUSY,
                                        STATUS_VOID,        STATUS_ORIGIN_UNKNOWN};
    for (size_t i = 0; i < sizeof again / sizeof again[0]; i++) {
        struct session session = receiving(false, SESSION_EVENT_CONNECTED);
        assert_int_equal(session_step(&session, SESSION_EVENT_ANSWERED, again[i], 1),
                         SESSION_ACTION_WAIT);
        assert_true(session.wait_until_ns > 1);
        assert_true(session.wait_until_ns <= 1 + SESSION_PAUSE_NS_MIN);
        assert_int_equal(
            session_step(&session, SESSION_EVENT_WAITED, STATUS_OK, session.wait_until_ns),
            SESSION_ACTION_SEND);
    }
}

/* P8: no answer after the last byte is UNKNOWN, and the library does not send it again. */
static void test_session__a_lost_answer_to_a_write_is_final(void **state)
{
    (void)state;
    struct session session = receiving(false, SESSION_EVENT_REUSED);
    assert_int_equal(session_step(&session, SESSION_EVENT_LOST, STATUS_OK, 1),
                     SESSION_ACTION_FINISH);
    assert_int_equal(session.status, STATUS_LINK_LOST);
    assert_int_equal(status_api_error(session.status), API_ERROR_UNKNOWN);
    session = receiving(false, SESSION_EVENT_CONNECTED);
    assert_int_equal(session_step(&session, SESSION_EVENT_TIMED_OUT, STATUS_OK, DEADLINE_NS),
                     SESSION_ACTION_FINISH);
    assert_int_equal(session.status, STATUS_UNKNOWN);
}

static void test_session__a_lost_answer_to_a_read_is_asked_again(void **state)
{
    (void)state;
    struct session session = receiving(true, SESSION_EVENT_CONNECTED);
    assert_int_equal(session_step(&session, SESSION_EVENT_LOST, STATUS_OK, 1), SESSION_ACTION_WAIT);
    assert_int_equal(session_step(&session, SESSION_EVENT_WAITED, STATUS_OK, 2),
                     SESSION_ACTION_CONNECT);
    assert_true(session.fresh);
    session = receiving(true, SESSION_EVENT_CONNECTED);
    assert_int_equal(session_step(&session, SESSION_EVENT_LOST, STATUS_OK, DEADLINE_NS),
                     SESSION_ACTION_FINISH);
    assert_int_equal(session.status, STATUS_UNKNOWN);
}

static void test_session__a_dead_pooled_connection_is_replaced_at_once(void **state)
{
    (void)state;
    struct session session = started(false);
    assert_int_equal(session_step(&session, SESSION_EVENT_REUSED, STATUS_OK, 0),
                     SESSION_ACTION_SEND);
    assert_int_equal(session_step(&session, SESSION_EVENT_SEND_FAILED, STATUS_NOT_CONNECTED, 0),
                     SESSION_ACTION_CONNECT);
    assert_true(session.fresh);
    assert_int_equal(session_step(&session, SESSION_EVENT_CONNECTED, STATUS_OK, 0),
                     SESSION_ACTION_SEND);
    assert_false(session.fresh);
    /* a fresh one that fails as well is another matter */
    assert_int_equal(session_step(&session, SESSION_EVENT_SEND_FAILED, STATUS_NOT_CONNECTED, 0),
                     SESSION_ACTION_WAIT);
}

static void test_session__a_refused_connection_means_not_done(void **state)
{
    (void)state;
    struct session session = receiving(false, SESSION_EVENT_CONNECTED);
    assert_int_equal(session_step(&session, SESSION_EVENT_REFUSED, STATUS_BUSY, 1),
                     SESSION_ACTION_WAIT);
    assert_int_equal(session_step(&session, SESSION_EVENT_WAITED, STATUS_OK, 2),
                     SESSION_ACTION_CONNECT);
}

/* C9: pauses double, stay bounded, and the last attempt is just before the end. */
static void test_session__pauses_grow_and_end_with_the_deadline(void **state)
{
    (void)state;
    struct session session = started(false);
    uint64_t now_ns = 0;
    unsigned attempts = 0;
    uint64_t longest_ns = 0;
    for (;;) {
        attempts++;
        enum session_action action =
            session_step(&session, SESSION_EVENT_CONNECT_FAILED, STATUS_NOT_CONNECTED, now_ns);
        if (action == SESSION_ACTION_FINISH) {
            break;
        }
        assert_int_equal(action, SESSION_ACTION_WAIT);
        assert_true(session.wait_until_ns >= now_ns);
        assert_true(session.wait_until_ns < DEADLINE_NS);
        uint64_t pause_ns = session.wait_until_ns - now_ns;
        longest_ns = max_u64(longest_ns, pause_ns);
        assert_true(pause_ns <= SESSION_PAUSE_NS_MAX);
        now_ns = session.wait_until_ns;
        assert_int_equal(session_step(&session, SESSION_EVENT_WAITED, STATUS_OK, now_ns),
                         SESSION_ACTION_CONNECT);
    }
    assert_int_equal(session.status, STATUS_NOT_CONNECTED);
    assert_true(now_ns >= DEADLINE_NS - 2 * SESSION_PAUSE_NS_MIN);
    assert_in_range(attempts, 6, 40);
    assert_true(longest_ns >= 50 * NS_PER_MS);
}

static void test_session__what_cannot_help_is_not_tried_again(void **state)
{
    (void)state;
    static const enum status finals[] = {STATUS_DENIED, STATUS_TOO_LARGE};
    for (size_t i = 0; i < sizeof finals / sizeof finals[0]; i++) {
        struct session session = started(false);
        assert_int_equal(session_step(&session, SESSION_EVENT_CONNECT_FAILED, finals[i], 0),
                         SESSION_ACTION_FINISH);
        assert_int_equal(session.status, finals[i]);
    }
}

static void test_session__retry_looks_at_the_class(void **state)
{
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        if (session_retryable((enum status)i)) {
            assert_int_equal(status_class((enum status)i), STATUS_CLASS_NOT_DONE);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session__an_answer_ends_it),
        cmocka_unit_test(test_session__what_is_not_done_is_sent_again_on_the_same_connection),
        cmocka_unit_test(test_session__a_lost_answer_to_a_write_is_final),
        cmocka_unit_test(test_session__a_lost_answer_to_a_read_is_asked_again),
        cmocka_unit_test(test_session__a_dead_pooled_connection_is_replaced_at_once),
        cmocka_unit_test(test_session__a_refused_connection_means_not_done),
        cmocka_unit_test(test_session__pauses_grow_and_end_with_the_deadline),
        cmocka_unit_test(test_session__what_cannot_help_is_not_tried_again),
        cmocka_unit_test(test_session__retry_looks_at_the_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
