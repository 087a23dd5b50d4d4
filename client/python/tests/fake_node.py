"""A node that does what a test says, on a real unix socket."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import Any, Callable

import msgpack

BASE = {"index": 1, "place": 0, "clock_ms": 0}
GRANTED = {"outcome": "GRANTED", "token": 7, "ms_left": 1000}


def packed(*parts: object) -> bytes:
    """A message of these elements."""
    return bytes(msgpack.packb(list(parts), use_bin_type=True))


class Peer:
    """One connection of a client; ``number`` counts them from 0."""

    def __init__(self, connected: socket.socket, number: int) -> None:
        self.socket = connected
        self.number = number
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)

    def request(self) -> tuple[int, str, dict[str, Any]] | None:
        """(number, method, parameters) of the next one; None when the client has gone."""
        while True:
            for message in self._unpacker:
                return message[1], message[2], message[3]
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self._unpacker.feed(data)

    def write(self, *parts: object) -> None:
        self.socket.sendall(packed(*parts))

    def answer(self, number: int, **names: object) -> None:
        self.write(1, number, None, {**BASE, **names})

    def grant(self, number: int, **names: object) -> None:
        self.answer(number, outcomes=[{**GRANTED, **names}])

    def refuse(self, number: int, code: str, status: str) -> None:
        self.write(1, number, {"code": code, "status": status, "message": status.lower()}, None)


Handler = Callable[[Peer, int, str, "dict[str, Any]"], object]


class FakeNode:
    """Calls ``on_request`` for each request; a connection ends when that gives False.

    ``requests`` has (connection, method, parameters) of all of them; what a handler raises fails
    the test that leaves the ``with`` block.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.on_request: Handler = lambda peer, number, method, names: peer.grant(number)
        self.requests: list[tuple[int, str, dict[str, Any]]] = []
        self.ended: queue.Queue[int] = queue.Queue()
        self.connections = 0
        self._failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> FakeNode:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        for one in self._open:
            one.close()
        if self._failures:
            raise self._failures[0]

    def methods(self) -> list[str]:
        return [method for _, method, _ in self.requests]

    def _spawn(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connected)
            self.connections += 1
            self._spawn(self._serve, Peer(connected, self.connections - 1))

    def _serve(self, peer: Peer) -> None:
        try:
            while (request := peer.request()) is not None:
                number, method, names = request
                self.requests.append((peer.number, method, names))
                if self.on_request(peer, number, method, names) is False:
                    break
        except BrokenPipeError:
            pass
        except BaseException as error:
            self._failures.append(error)
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
        self.ended.put(peer.number)
