"""One connection to a node: a unix socket on which every wait ends by its deadline.

Deadlines are instants of CLOCK_BOOTTIME in nanoseconds. A connection belongs to one call at a time
and to the process that opened it.

How an operation ended is returned and not raised: a signal handler may raise anything on top of a
running call, also a TimeoutError, an error with a number of the kernel or what a call of its own
has raised, and that must not be taken for what happened here: see ``tenure.origin``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from types import CodeType
from typing import Iterator

from tenure.errors import DeniedError, TenureError, UnavailableError
from tenure.origin import is_raised_in
from tenure.process import now_ns, process_stamp
from tenure.reader import MESSAGE_LEN_MAX, Reader
from tenure.session import not_connected, not_submitted

SLICE_S = 1.0
"""The longest single wait: the kernel does not count suspend in a wait, and deadlines do."""

_RECEIVE_LEN = 64 * 1024
_OURS = frozenset((__name__, Reader.__module__, socket.__name__))
_OPERATIONS = ("__init__", "setblocking", "settimeout", "connect", "send", "recv", "shutdown")
_NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Connection:
    """A connected socket, which it takes, and the reader of what comes from it."""

    def __init__(self, connected: socket.socket) -> None:
        self.reader = Reader()
        self._socket = connected
        self._stamp = process_stamp()
        self._is_spent = False

    @property
    def is_ours(self) -> bool:
        """This process opened it, not one that it was forked from."""
        return self._stamp == process_stamp()

    @property
    def is_reusable(self) -> bool:
        """A next call may have it: nothing was received that nobody asked for."""
        return not self._is_spent and self.reader.is_empty

    def is_quiet(self) -> bool:
        """It is open and has nothing to say: neither an end nor bytes that nobody asked for."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            _raise_if_foreign(error)
            return error.errno == errno.EAGAIN
        return False

    def send(self, data: bytes, deadline_ns: int) -> TenureError | None:
        """None when the last byte was handed over; else it was not, and why."""
        # What was read before is no part of the answer, and what is there unread belongs to nobody.
        self._is_spent = self._is_spent or not self.reader.is_empty
        self.reader.clear()
        left = memoryview(data)
        while left:
            if not self.is_ours:
                return not_connected()
            if not self._wait_until(deadline_ns):
                return not_submitted()
            try:
                left = left[self._socket.send(left, socket.MSG_NOSIGNAL) :]
            except OSError as error:
                if not _is_only_late(error):
                    return not_connected()
        return None

    def receive(self, deadline_ns: int) -> bool:
        """True when the reader got something, be it that there is no more.

        False: nothing came until then and nothing can come any more, as ``last_look`` says.
        """
        while self._wait_until(deadline_ns):
            if not self.is_ours:
                self.reader.feed(b"")
                return True
            try:
                self.reader.fill(self._socket.recv, _RECEIVE_LEN)
                self._drain()
                return True
            except OSError as error:
                if not _is_only_late(error):
                    self.reader.feed(b"")
                    return True
        return self.last_look()

    def _drain(self) -> None:
        """Adds what else is there, a whole message at most: the node can write on while this side
        reads what came."""
        if self.reader.last_len < _RECEIVE_LEN:
            return
        try:
            self._socket.setblocking(False)
            for _ in range(MESSAGE_LEN_MAX // _RECEIVE_LEN):
                self.reader.fill(self._socket.recv, _RECEIVE_LEN)
                if self.reader.last_len < _RECEIVE_LEN:
                    return
        except BlockingIOError as error:
            _raise_if_foreign(error)

    def last_look(self) -> bool:
        """Shuts the receiving side and gives the reader what is there already; False: nothing.

        From here on the node's writes fail, so that it learns that its answer was not taken; what
        it has written before counts. The connection is of no use to another call.
        """
        self._is_spent = True
        is_anything = False
        if not self.is_ours:
            return False  # the answer is of the process that this one was forked from
        with _ignoring_kernel_errors():
            self._socket.shutdown(socket.SHUT_RD)
        with _ignoring_kernel_errors():
            self._socket.setblocking(False)
            while not self.reader.is_ended:
                self.reader.fill(self._socket.recv, _RECEIVE_LEN)
                is_anything = is_anything or not self.reader.is_ended
        return is_anything

    def close(self) -> None:
        """Ends it; in a child of the process that opened it only the child's copy, for the
        connection itself lives on."""
        if self.is_ours:
            # A child may have a copy of the descriptor: without this the node would see no end.
            with _ignoring_kernel_errors():
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _wait_until(self, deadline_ns: int) -> bool:
        """Sets how long the next operation may take; False when there is no time left."""
        left_ns = deadline_ns - now_ns()
        if left_ns <= 0:
            return False
        self._socket.settimeout(min(left_ns / 1e9, SLICE_S))
        return True


def open_connection(path: bytes) -> Connection | TenureError:
    """A new one, at once; or that nobody listens (yet), that no descriptor is left, or that this
    user may not."""
    try:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        return _error_of(error, path)
    try:
        # A full backlog answers at once instead of waiting: the session tries again.
        connecting.setblocking(False)
        connecting.connect(path)
    except OSError as error:
        connecting.close()
        return _error_of(error, path)
    except BaseException:
        connecting.close()
        raise
    return Connection(connecting)


def wait_until(until_ns: int) -> None:
    """Does nothing until that instant."""
    while (left_ns := until_ns - now_ns()) > 0:
        time.sleep(min(left_ns / 1e9, SLICE_S))


def _error_of(error: OSError, path: bytes) -> TenureError:
    _raise_if_foreign(error)
    shown = os.fsdecode(path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(
            f"not allowed for this caller: {shown}", status="DENIED", detail=shown
        )
    if error.errno in _NO_DESCRIPTOR:
        return UnavailableError(f"out of memory: {error.strerror}", status="NO_MEMORY")
    return not_connected(shown)


def _raise_if_foreign(error: OSError) -> None:
    """Raises it again unless it comes from an operation on a socket."""
    if not is_raised_in(error, _OURS) and not is_raised_in(error, _OURS, _wrappers()):
        raise error


def _wrappers() -> set[CodeType]:
    """What stands in the place of the socket's own operations, which are no Python code: detectors
    of blocking calls wrap them, and gevent has its own."""
    operations = (getattr(socket.socket, name, None) for name in _OPERATIONS)
    codes = (getattr(operation, "__code__", None) for operation in operations)
    return {code for code in codes if code is not None}


def _is_only_late(error: OSError) -> bool:
    """Nothing could be done yet; False: the connection is broken. Raises what is no error of the
    socket."""
    _raise_if_foreign(error)
    # A socket's own timeout has no number.
    return error.errno in (None, errno.EAGAIN)


@contextlib.contextmanager
def _ignoring_kernel_errors() -> Iterator[None]:
    """For what is done to a socket that may be broken."""
    try:
        yield
    except OSError as error:
        _raise_if_foreign(error)
