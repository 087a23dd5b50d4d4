"""The life of one call: connect, send, receive, and once more where that is right. No I/O.

A session is told what happened and what time it is, and answers with what to do next. It decides by
the code of an error, and by nothing else:

    UNAVAILABLE  certainly not done: once more inside the deadline, after a pause that doubles
    UNKNOWN      may have been done: final; reads change nothing and are asked again
    others       final

             +------------------ WAIT <----------------+ not done, time left
             v                                         |
    start > CONNECT --> SEND --> RECEIVE --answer--> decide --> FINISH
             ^           |          +---lost: unknown---+
             +-----------+ a pooled connection that is gone: a fresh one, at once

The same machine as client/session.h.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import Callable

from tenure.errors import TenureError, UnavailableError, UnknownError

NS_PER_MS = 1_000_000
PAUSE_NS_MIN = 5 * NS_PER_MS  # a restarting node is back in tens of ms
PAUSE_NS_MAX = 500 * NS_PER_MS  # an election fits several times into a deadline

# These last longer than a call: somebody has to do something first.
_LASTING = frozenset(("LIMIT", "UNINITIALISED", "QUARANTINED", "DEADLINE"))


class Action(enum.Enum):
    """What to do next."""

    CONNECT = enum.auto()
    """Get a connection: an idle one or, if ``fresh``, a new one."""
    SEND = enum.auto()
    """Send the request, all of it."""
    RECEIVE = enum.auto()
    """Wait for the reply with its number until the deadline."""
    WAIT = enum.auto()
    """Do nothing until ``wait_until_ns``."""
    FINISH = enum.auto()
    """``error`` has how it ended; None: with a result."""


class Event(enum.Enum):
    """What happened. Those marked * come with an error."""

    CONNECTED = enum.auto()
    """A new connection."""
    REUSED = enum.auto()
    """An idle connection."""
    CONNECT_FAILED = enum.auto()
    """* There is none."""
    SENT = enum.auto()
    """The last byte was handed over."""
    SEND_FAILED = enum.auto()
    """* It was not: the node cannot have the request whole."""
    ANSWERED = enum.auto()
    """The reply is there, * if it is an error; the connection is good."""
    LOST = enum.auto()
    """The connection broke, or what came is no reply."""
    REFUSED = enum.auto()
    """* The node spoke of the connection: nothing is done."""
    TIMED_OUT = enum.auto()
    """No answer until the deadline."""
    WAITED = enum.auto()


def link_lost() -> UnknownError:
    """The connection broke after the request was sent."""
    return UnknownError("the connection broke after it was sent", status="LINK_LOST")


def no_answer() -> UnknownError:
    """The deadline passed after the request was sent."""
    return UnknownError("no answer before the deadline", status="UNKNOWN")


def not_submitted() -> UnavailableError:
    """The deadline passed before the request was sent."""
    return UnavailableError("the deadline passed before it was submitted", status="DEADLINE")


def not_connected(detail: str | None = None) -> UnavailableError:
    """Nobody listens, or the connection broke before the request was sent."""
    text = "not connected" if detail is None else f"not connected: {detail}"
    return UnavailableError(text, status="NOT_CONNECTED", detail=detail)


def retryable(error: TenureError | None) -> bool:
    """True when trying again inside a deadline can help."""
    return isinstance(error, UnavailableError) and error.status not in _LASTING


@dataclass
class Session:
    """One call. ``chance`` gives 0 <= x < 1 and spreads the pauses of callers that failed together.
    """

    deadline_ns: int
    read_only: bool
    chance: Callable[[], float] = random.random
    error: TenureError | None = field(default_factory=not_submitted)
    fresh: bool = False
    """The next connection must be a new one."""
    wait_until_ns: int = 0
    _pause_ns: int = PAUSE_NS_MIN
    _connected: bool = False
    _pooled: bool = False

    def start(self) -> Action:
        """The first thing to do."""
        return Action.CONNECT

    def step(self, event: Event, error: TenureError | None, now_ns: int) -> Action:
        """What to do after that event; ``error`` counts where the event has one."""
        if event is Event.ANSWERED:
            return self._again(error, now_ns)
        if event in (Event.CONNECTED, Event.REUSED):
            self._connected = True
            self.fresh = False
            self._pooled = event is Event.REUSED
            return Action.SEND if now_ns < self.deadline_ns else Action.FINISH
        if event is Event.SENT:
            return Action.RECEIVE
        if event is Event.WAITED:
            return Action.SEND if self._connected else Action.CONNECT
        self._connected = False
        if event is Event.SEND_FAILED and self._pooled and now_ns < self.deadline_ns:
            # The node was restarted since; its successor may be there already.
            self.fresh = True
            return Action.CONNECT
        if event is Event.SEND_FAILED and error is not None and error.status == "DEADLINE":
            # Not done either way; what an attempt before has met says more.
            return Action.FINISH
        if event is Event.LOST:
            return self._lost(now_ns)
        if event is Event.TIMED_OUT:
            return self._finish(no_answer())
        return self._again(error, now_ns)

    def _finish(self, error: TenureError | None) -> Action:
        self.error = error
        return Action.FINISH

    def _again(self, error: TenureError | None, now_ns: int) -> Action:
        """Once more after a pause, if that can help and fits."""
        left_ns = self.deadline_ns - now_ns
        if not retryable(error) or left_ns <= PAUSE_NS_MIN:
            return self._finish(error)
        self.error = error
        half_ns = self._pause_ns // 2
        pause_ns = half_ns + int(self.chance() * (half_ns + 1))
        # The last attempt is made just before the end.
        pause_ns = min(pause_ns, left_ns - PAUSE_NS_MIN)
        self._pause_ns = min(self._pause_ns * 2, PAUSE_NS_MAX)
        self.wait_until_ns = now_ns + pause_ns
        return Action.WAIT

    def _lost(self, now_ns: int) -> Action:
        if now_ns >= self.deadline_ns:
            return self._finish(no_answer())
        if not self.read_only:
            return self._finish(link_lost())
        self.fresh = True
        return self._again(not_connected(), now_ns)
