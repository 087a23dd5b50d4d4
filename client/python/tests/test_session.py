"""The machine of one call, event by event, without sockets or clocks."""

from __future__ import annotations

import pytest

from tenure.errors import (
    DeniedError,
    IncompatibleError,
    InternalError,
    InvalidError,
    TenureError,
    UnavailableError,
    UnknownError,
)
from tenure.session import (
    NS_PER_MS,
    PAUSE_NS_MAX,
    PAUSE_NS_MIN,
    Action,
    Event,
    Session,
    not_connected,
    not_submitted,
    retryable,
)

END_NS = 5_000 * NS_PER_MS
BUSY = UnavailableError("busy", status="BUSY")


def session(read_only: bool = False, chance: float = 0.0) -> Session:
    return Session(END_NS, read_only, chance=lambda: chance)


def test_a_call_connects_first() -> None:
    assert session().start() is Action.CONNECT


WRITE, READ = False, True
BEFORE, LATE = 0, END_NS
# read only, events before, event, its error, now -> action, status at the end
STEPS: list[tuple[bool, tuple[Event, ...], Event, TenureError | None, int, Action, str | None]] = [
    (WRITE, (), Event.CONNECTED, None, BEFORE, Action.SEND, "DEADLINE"),
    (WRITE, (), Event.REUSED, None, BEFORE, Action.SEND, "DEADLINE"),
    (WRITE, (), Event.CONNECTED, None, LATE, Action.FINISH, "DEADLINE"),
    (WRITE, (), Event.CONNECT_FAILED, not_connected(), BEFORE, Action.WAIT, "NOT_CONNECTED"),
    (WRITE, (), Event.CONNECT_FAILED, not_connected(), LATE, Action.FINISH, "NOT_CONNECTED"),
    (WRITE, (), Event.CONNECT_FAILED, DeniedError("no"), BEFORE, Action.FINISH, "DENIED"),
    (WRITE, (Event.CONNECTED,), Event.SENT, None, BEFORE, Action.RECEIVE, "DEADLINE"),
    (WRITE, (Event.CONNECTED,), Event.SEND_FAILED, not_connected(), BEFORE, Action.WAIT,
     "NOT_CONNECTED"),
    (WRITE, (Event.REUSED,), Event.SEND_FAILED, not_connected(), BEFORE, Action.CONNECT,
     "DEADLINE"),
    (WRITE, (Event.REUSED,), Event.SEND_FAILED, not_submitted(), LATE, Action.FINISH, "DEADLINE"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.ANSWERED, None, BEFORE, Action.FINISH, None),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.ANSWERED, None, LATE, Action.FINISH, None),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.ANSWERED, BUSY, BEFORE, Action.WAIT, "BUSY"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.ANSWERED, UnknownError("?"), BEFORE,
     Action.FINISH, "UNKNOWN"),
    (READ, (Event.CONNECTED, Event.SENT), Event.ANSWERED, UnknownError("?"), BEFORE,
     Action.FINISH, "UNKNOWN"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.LOST, None, BEFORE, Action.FINISH, "LINK_LOST"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.LOST, None, LATE, Action.FINISH, "UNKNOWN"),
    (READ, (Event.CONNECTED, Event.SENT), Event.LOST, None, BEFORE, Action.WAIT, "NOT_CONNECTED"),
    (READ, (Event.CONNECTED, Event.SENT), Event.LOST, None, LATE, Action.FINISH, "UNKNOWN"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.TIMED_OUT, None, LATE, Action.FINISH, "UNKNOWN"),
    (WRITE, (Event.CONNECTED, Event.SENT), Event.REFUSED, BUSY, BEFORE, Action.WAIT, "BUSY"),
]


@pytest.mark.parametrize("step", STEPS)
def test_step(
    step: tuple[bool, tuple[Event, ...], Event, TenureError | None, int, Action, str | None]
) -> None:
    read_only, before, event, error, now_ns, action, status = step
    machine = session(read_only)
    machine.start()
    for earlier in before:
        machine.step(earlier, None, 0)
    assert machine.step(event, error, now_ns) is action
    assert (machine.error.status if machine.error else None) == status


@pytest.mark.parametrize(
    "before, action",
    [
        ((Event.CONNECTED, Event.SENT, Event.ANSWERED), Action.SEND),
        ((Event.CONNECTED, Event.SENT, Event.REFUSED), Action.CONNECT),
        ((Event.CONNECT_FAILED,), Action.CONNECT),
    ],
)
def test_after_a_pause_a_good_connection_is_used_again(
    before: tuple[Event, ...], action: Action
) -> None:
    machine = session()
    for event in before:
        last = machine.step(event, BUSY, 0)
    assert last is Action.WAIT
    assert machine.step(Event.WAITED, None, machine.wait_until_ns) is action


def test_a_pooled_connection_that_is_gone_is_replaced_by_a_fresh_one_once() -> None:
    machine = session()
    machine.step(Event.REUSED, None, 0)
    assert machine.step(Event.SEND_FAILED, not_connected(), 0) is Action.CONNECT and machine.fresh
    machine.step(Event.CONNECTED, None, 0)
    assert not machine.fresh
    assert machine.step(Event.SEND_FAILED, not_connected(), 0) is Action.WAIT


def test_a_deadline_that_passes_in_the_last_attempt_leaves_the_error_of_the_one_before() -> None:
    machine = session()
    machine.step(Event.CONNECTED, None, 0)
    machine.step(Event.SENT, None, 0)
    machine.step(Event.ANSWERED, BUSY, 0)
    assert machine.step(Event.WAITED, None, END_NS - 1) is Action.SEND
    assert machine.step(Event.SEND_FAILED, not_submitted(), END_NS) is Action.FINISH
    assert machine.error is BUSY


@pytest.mark.parametrize("chance, first_ns", [(0.0, PAUSE_NS_MIN // 2), (0.999999, PAUSE_NS_MIN)])
def test_pauses_double_up_to_their_longest(chance: float, first_ns: int) -> None:
    machine = session(chance=chance)
    pauses = []
    now_ns = -(10**12)
    for _ in range(12):
        assert machine.step(Event.CONNECT_FAILED, not_connected(), now_ns) is Action.WAIT
        pauses.append(machine.wait_until_ns - now_ns)
        now_ns = machine.wait_until_ns
    assert abs(pauses[0] - first_ns) <= 10
    assert pauses == sorted(pauses) and pauses[-1] <= PAUSE_NS_MAX
    assert pauses[-1] == pauses[-2]


def test_the_last_attempt_is_made_just_before_the_end() -> None:
    machine = session(chance=0.99)
    now_ns = 0
    attempts = 0
    while machine.step(Event.CONNECT_FAILED, not_connected(), now_ns) is Action.WAIT:
        now_ns = machine.wait_until_ns
        attempts += 1
        assert attempts < 100
    assert now_ns == END_NS - PAUSE_NS_MIN


@pytest.mark.parametrize(
    "error, again",
    [
        (None, False), (BUSY, True), (UnavailableError("x"), True),
        (UnavailableError("x", status="NO_LEADER"), True),
        (UnavailableError("x", status="A_NEWER_ONE"), True),
        (UnavailableError("x", status="LIMIT"), False),
        (UnavailableError("x", status="UNINITIALISED"), False),
        (UnavailableError("x", status="QUARANTINED"), False),
        (UnavailableError("x", status="DEADLINE"), False),
        (UnknownError("x"), False), (InvalidError("x"), False), (DeniedError("x"), False),
        (IncompatibleError("x"), False), (InternalError("x"), False),
    ],
)
def test_what_is_worth_trying_again(error: TenureError | None, again: bool) -> None:
    assert retryable(error) is again
