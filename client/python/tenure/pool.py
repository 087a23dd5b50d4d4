"""Connections that no call uses now.

There is no lock, so that a fork cannot leave one locked in the child, and a signal handler can call
the client on top of a running call: each operation on a deque happens as a whole. The connection
that was used last is used first, so that those beyond what is needed stay idle and are the first to
go.
"""

from __future__ import annotations

from collections import deque

from tenure.connection import Connection, open_connection
from tenure.errors import TenureError
from tenure.origin import is_raised_in

_OURS = frozenset((__name__,))


class Pool:
    """At most ``idle_max`` idle connections to the node at ``path``; makes new ones on demand."""

    def __init__(self, path: bytes, idle_max: int) -> None:
        self._path = path
        self._idle_max = idle_max
        self._idle: deque[Connection] = deque()

    def take(self) -> Connection | None:
        """An idle connection that is fit for use, or None. It is the caller's until given back."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError as error:
                if not is_raised_in(error, _OURS):
                    raise
                return None
            try:
                if connection.is_ours and connection.is_quiet():
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()

    def connect(self) -> Connection | TenureError:
        """A new connection, or why there is none."""
        return open_connection(self._path)

    def give(self, connection: Connection) -> None:
        """Takes a connection back, whatever it has been through."""
        if not connection.is_ours or not connection.is_reusable:
            connection.close()
            return
        connection.reader.clear()
        self._idle.append(connection)
        self._shrink(self._idle_max)

    def close(self) -> None:
        """Closes the idle connections; those in use are closed or come back by their calls."""
        self._shrink(0)

    def _shrink(self, count: int) -> None:
        while len(self._idle) > count:
            try:
                self._idle.popleft().close()
            except IndexError as error:
                if not is_raised_in(error, _OURS):
                    raise
                return
