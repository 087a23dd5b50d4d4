"""What time it is for a node in memory: the host's clock, or one that a test moves by hand."""

from __future__ import annotations

import time
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Whatever tells milliseconds that never run backwards; from where they count is its own."""

    def now_ms(self) -> int:
        """Whole milliseconds."""


class BootClock:
    """CLOCK_BOOTTIME, which counts while the host is suspended: the clock of a real node."""

    def now_ms(self) -> int:
        """Milliseconds since the host was booted."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS


class ManualClock:
    """A clock that stands still until it is told to move, so that no test has to sleep::

        clock = ManualClock()
        with MemoryNode(clock=clock) as node:
            client = tenure.Client(node.socket_path)
            client.take("sandbox-1", ttl_ms=30_000)
            clock.advance(30_000)
            assert client.owner("sandbox-1") is not None   # due, and still there
            clock.advance(1)
            assert client.owner("sandbox-1") is None       # expired

    Only leases, tombstones and graces follow it. Deadlines of calls and ``Outcome.deadline_ns`` are
    of the client, which goes by the host's clock.
    """

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        """How far it was moved so far, in milliseconds."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Moves it on by ``ms`` milliseconds, at once; ValueError unless 0 or more."""
        if isinstance(ms, bool) or not isinstance(ms, int) or ms < 0:
            raise ValueError(f"ms must be a whole number of milliseconds, 0 or more, got {ms!r}")
        self._now_ms += ms
