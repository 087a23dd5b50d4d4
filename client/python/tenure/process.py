"""Which process this is, what time it has, and who it is to the cluster."""

from __future__ import annotations

import os
import socket
import time
import uuid

_HOST_LEN_MAX = 200  # of the host's name in an owner

_generation = 0


def _count_fork() -> None:
    global _generation  # one number for the whole process is what this is about
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


def process_stamp() -> tuple[int, int]:
    """Equal in one process only. A pid alone could return among descendants, and the count alone
    misses a fork that was not Python's."""
    return (_generation, os.getpid())


def now_ns() -> int:
    """Now on CLOCK_BOOTTIME, in nanoseconds: the clock of deadlines, which counts suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def new_owner() -> str:
    """``HOST:UUID``, the UUID random: an owner that no other instance has or will have."""
    host = "".join(char if "!" <= char <= "~" else "-" for char in socket.gethostname())
    return f"{host[:_HOST_LEN_MAX] or 'host'}:{uuid.uuid4()}"
