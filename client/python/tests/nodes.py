"""A real node and one in memory for tests that both have to pass, and how to talk to them.

``Wire`` speaks docs/protocol.md without any of the client's own checks, so that what is INVALID
reaches the node, and what the node says is seen as it came.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack  # type: ignore[import]
import pytest

from tenure.testing import MemoryNode

ROOT = Path(__file__).resolve().parents[3]
ANSWER_DEADLINE_S = 10.0
KINDS = ("real", "memory")

Map = dict[str, Any]


class NoAnswer(Exception):
    """The node closed the connection, or said nothing for ten seconds."""


class Wire:
    """One connection; asks one thing at a time."""

    def __init__(self, socket_path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(ANSWER_DEADLINE_S)
        self.socket.connect(socket_path)
        self.unpacker = msgpack.Unpacker(raw=False, max_buffer_size=64 * 1024 * 1024)
        self.number = 0

    def close(self) -> None:
        self.socket.close()

    def write(self, message: object) -> None:
        """Any object at all, as one message."""
        self.socket.sendall(msgpack.packb(message))

    def read(self) -> list[Any]:
        """The next reply, whole."""
        end_s = time.monotonic() + ANSWER_DEADLINE_S
        while True:
            for message in self.unpacker:
                assert isinstance(message, list)
                return message
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self.socket], [], [], left_s)[0]:
                raise NoAnswer("no answer")
            data = self.socket.recv(1 << 18)
            if not data:
                raise NoAnswer("closed")
            self.unpacker.feed(data)

    def call(self, method: object, parameters: object) -> tuple[Map | None, Map | None]:
        """(error, result): one of them is None."""
        self.number += 1
        self.write([0, self.number, method, parameters])
        kind, number, error, result = self.read()
        assert (kind, number) == (1, self.number)
        assert (error is None) != (result is None)
        return error, result

    def ask(self, method: str, **parameters: object) -> Map:
        """The result, of a call that must not end in an error."""
        error, result = self.call(method, parameters)
        assert error is None and result is not None, error
        return result

    def refusal(self, method: str, **parameters: object) -> Map:
        """The error of a call that must end in one."""
        error, _ = self.call(method, parameters)
        assert error is not None
        return error

    def one(self, method: str, key: object, **parameters: object) -> Map:
        """The outcome of a verb on one key."""
        [outcome] = self.ask(method, key=key, **parameters)["outcomes"]
        assert isinstance(outcome, dict)
        return outcome

    def many(self, method: str, keys: list[Any], **parameters: object) -> list[Map]:
        """The outcomes of a verb on many keys."""
        outcomes: list[Map] = self.ask(method, keys=keys, **parameters)["outcomes"]
        return outcomes

    def lease(self, key: str, **parameters: object) -> Map | None:
        """Who has the key."""
        [lease] = self.ask("owner", key=key, **parameters)["leases"]
        assert lease is None or isinstance(lease, dict)
        return lease

    def wait_for_end(self, key: str, **parameters: object) -> None:
        """Until nobody has the key."""
        end_s = time.monotonic() + ANSWER_DEADLINE_S
        while self.lease(key, **parameters) is not None:
            assert time.monotonic() < end_s, "the lease does not end"
            time.sleep(0.005)


def load(folder: str, name: str) -> ModuleType:
    """A module of the repository's tests, which are no package."""
    path = str(ROOT / "tests" / folder)
    sys.path.insert(0, path)
    try:
        return __import__(name)
    finally:
        sys.path.remove(path)


@contextlib.contextmanager
def running(kind: str) -> Iterator[str]:
    """The socket of a node whose cluster was just born; ``kind`` is one of KINDS."""
    if kind == "memory":
        with MemoryNode() as node:
            yield node.socket_path
        return
    if not os.environ.get("TENURE_BUILD"):
        pytest.skip("TENURE_BUILD names no build directory with a tenured")
    with load("cluster", "harness").Cluster(1) as cluster:
        yield cluster.nodes[0].socket_path
