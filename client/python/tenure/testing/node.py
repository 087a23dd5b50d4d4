"""A node in memory: the lease table behind a real unix socket, one thread, no disk, no cluster.

The thread waits in one selector; whatever it shares with the test's threads is under one lock,
which it holds while it handles what came. Requests are carried out as they come, one after the
other, so the answers are linearizable without more. A grant whose reply was not wholly written is
settled when its connection ends, as a real node does.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import selectors
import socket
import stat
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgpack  # type: ignore

from tenure.errors import DeniedError, TenureError, UnavailableError
from tenure.results import State
from tenure.testing import answer, request
from tenure.testing.clock import BootClock, Clock
from tenure.testing.table import Grant, LeaseTable, Limits

PROTOCOL_VERSION = 1
_READ_LEN = 64 * 1024
_OUTPUT_LEN_EAGER = 256 * 1024
_OUTPUT_LEN_MAX = 32 * 1024 * 1024  # that a caller leaves unread, as at a real node
_NO_LEADER = "no leader is known"


class _Mode(enum.Enum):
    """What the node does with a request."""

    SERVING = 0
    UNAVAILABLE = 1
    SILENT = 2
    SILENT_BUT_DONE = 3


class _Connection:
    """One caller: what it sent and is not whole yet, what it has not read yet."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.unpacker = request.unpacker()
        self.fed = 0  # bytes given to the unpacker
        self.begins = 0  # where the message that is not whole begins
        self.output = bytearray()
        self.sent = 0  # bytes handed over, of all that was ever put out
        self.unheard: deque[tuple[int, list[Grant]]] = deque()  # by the end of their reply
        self.silenced: list[Grant] = []  # of replies that are held back
        self.has_silence = False
        self.ending = False  # ends once its output is written


class MemoryNode:
    """A node for tests, in memory, that any client can talk to; with faults to order::

        with MemoryNode() as node:
            client = tenure.Client(node.socket_path)
            assert client.claim("sandbox-1", ttl_ms=30_000).ok

    As a fixture::

        @pytest.fixture
        def node():
            with tenure.testing.MemoryNode() as node:
                yield node

    It answers as a cluster of one node does: the same outcomes, the same words of INVALID, the same
    limits of names, keys and pages. It keeps nothing on disk and is no match for a real node in
    speed. One thread, which ends with ``stop()``; all methods may be called from any thread. Not to
    be used by a child after a fork, except as a client would.
    """

    def __init__(
        self,
        socket_path: str | None = None,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Makes the node, with an empty table; ``start`` opens the socket.

        Args:
            socket_path: where to listen, at most 107 bytes; a socket file that nobody listens at
                is replaced. None: in a folder of its own, which goes with the node.
            clock: None: the host's; or a ``ManualClock``, or whatever has a ``now_ms``.
            limits: how much the table keeps; None: the defaults of a real cluster.
        """
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if socket_path is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tenure-")
            socket_path = os.path.join(self._folder.name, "api.sock")
        self.socket_path = socket_path
        self._clock: Clock = BootClock() if clock is None else clock
        self._limits = limits
        self._lock = threading.Lock()
        self._mode = _Mode.SERVING
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._connections: set[_Connection] = set()
        self._calls = 0
        self._birth(0)

    # --- life -----------------------------------------------------------------------------------

    def start(self, *, forget: bool = False) -> None:
        """Opens the socket and serves; does nothing if the node runs already.

        After ``stop`` the leases are those of before, with as much of their TTL left: the cluster's
        clock stood still. ``forget=True`` instead makes a cluster anew, without leases and with
        another id, like a restore does: tokens go on growing, and nobody adopts a key before a
        full grace has passed::

            node.stop()
            node.start(forget=True)
            assert client.owner("sandbox-1") is None

        Raises OSError where the path cannot be bound, or somebody listens there.
        """
        with self._lock:
            if self._thread is not None:
                return
            if self._folder is not None:
                os.makedirs(self._folder.name, mode=0o700, exist_ok=True)
            self._listener = _listen(self.socket_path)
            if forget:
                self._birth(self._table.token)
            self._selector = selectors.DefaultSelector()
            woken, self._waker = socket.socketpair()
            self._selector.register(self._listener, selectors.EVENT_READ, None)
            self._selector.register(woken, selectors.EVENT_READ, woken)
            self._clock_runs_from(self._clock.now_ms())
            self._thread = threading.Thread(
                target=self._serve, args=(woken,), name="tenure-memory-node", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Closes every connection and the socket, and waits for the thread; idempotent.

        Calls find nobody then and end in UnavailableError, at their deadline. The clock of the
        leases stands still until ``start``.
        """
        with self._lock:
            self._tick()
            thread, self._thread = self._thread, None
            if thread is None:
                return
            assert self._waker is not None
            self._waker.close()
        thread.join()

    def __enter__(self) -> MemoryNode:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()

    # --- faults ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def unavailable(self) -> Iterator[None]:
        """While it lasts, leases and reads are answered UNAVAILABLE, status NO_LEADER: nothing is
        done. ``hello``, ``status``, ``members`` and ``metrics`` are answered. The clock of the
        leases stands still, as it does in a cluster without a leader: none of them expires::

            with node.unavailable(), pytest.raises(tenure.UnavailableError):
                client.claim("sandbox-1", ttl_ms=30_000, deadline_ms=100)
        """
        with self._fault(_Mode.UNAVAILABLE):
            yield

    @contextlib.contextmanager
    def silent(self, *, done: bool = False) -> Iterator[None]:
        """While it lasts, connections are accepted and nothing is answered, so that calls end in
        UnknownError at their deadline. At its end, the connections that wait for an answer are
        closed::

            with node.silent(), pytest.raises(tenure.UnknownError):
                client.take("sandbox-1", ttl_ms=30_000, deadline_ms=100)

        Args:
            done: False: what is asked is never done. True: it is done, and nobody hears of it; a
                grant of a key that the caller did not hold before is settled, that is ended, when
                its connection closes, and everything else stays done.
        """
        with self._fault(_Mode.SILENT_BUT_DONE if done else _Mode.SILENT):
            yield

    @contextlib.contextmanager
    def _fault(self, mode: _Mode) -> Iterator[None]:
        with self._lock:
            if self._mode is not _Mode.SERVING:
                raise RuntimeError("one fault at a time")
            self._tick()
            self._mode = mode
        try:
            yield
        finally:
            with self._lock:
                if mode is _Mode.UNAVAILABLE:
                    self._clock_runs_from(self._clock.now_ms())
                self._mode = _Mode.SERVING
                self._wake()

    # --- time -----------------------------------------------------------------------------------

    def _birth(self, token_before: int) -> None:
        token_floor = max(token_before, time.time_ns() // 1_000_000 * 1024)
        self._table = LeaseTable(limits=self._limits, token_floor=token_floor)
        self._cluster_id = secrets.token_hex(16)
        self._clock_runs_from(self._clock.now_ms())

    def _clock_runs_from(self, now_ms: int) -> None:
        """From here on the cluster's clock follows the node's; what was before is not caught up."""
        self._clock_offset_ms = self._table.clock_ms - now_ms

    def _tick(self) -> None:
        """Moves the table's clock, unless it stands still."""
        if self._thread is not None and self._mode is not _Mode.UNAVAILABLE:
            self._table.advance(self._clock.now_ms() + self._clock_offset_ms)

    # --- the thread -----------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is not None and self._waker is not None:
            self._waker.send(b"!")

    def _serve(self, woken: socket.socket) -> None:
        assert self._selector is not None
        while True:
            events = self._selector.select()
            with self._lock:
                if any(key.data is woken for key, _ in events) and woken.recv(4096) == b"":
                    self._shut(woken)
                    return
                self._end_silence()
                # Whoever may be gone first: what it never heard of is settled before others ask.
                events.sort(key=lambda event: not _is_owed(event[0].data))
                for key, mask in events:
                    if key.data is None:
                        self._accept()
                    elif isinstance(key.data, _Connection):
                        self._attend(key.data, mask)

    def _shut(self, woken: socket.socket) -> None:
        assert self._selector is not None and self._listener is not None
        for connection in list(self._connections):
            self._close(connection)
        self._selector.close()
        self._listener.close()
        woken.close()
        with contextlib.suppress(OSError):
            os.unlink(self.socket_path)

    def _accept(self) -> None:
        assert self._selector is not None and self._listener is not None
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            peer.setblocking(False)
            connection = _Connection(peer)
            self._connections.add(connection)
            self._selector.register(peer, selectors.EVENT_READ, connection)

    def _attend(self, connection: _Connection, mask: int) -> None:
        if connection not in self._connections:
            return  # closed since the selector named it
        try:
            if mask & selectors.EVENT_READ:
                self._read(connection)
            self._write(connection)
        except OSError:
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(_READ_LEN)
        if data == b"":
            raise ConnectionResetError
        connection.unpacker.feed(data)
        connection.fed += len(data)
        self._tick()
        try:
            self._read_messages(connection)
        except (request.Malformed, ValueError, msgpack.UnpackException):
            self._turn_away(connection)  # the last two: what the unpacker says of other bytes

    def _read_messages(self, connection: _Connection) -> None:
        for message in connection.unpacker:
            end = connection.unpacker.tell()
            too_long = end - connection.begins > request.MESSAGE_LEN_MAX
            connection.begins = end
            if too_long:
                self._turn_away(connection)
                return
            self._handle(connection, message)
            if len(connection.output) > _OUTPUT_LEN_EAGER:
                self._flush(connection)
            if len(connection.output) > _OUTPUT_LEN_MAX:
                raise ConnectionAbortedError  # whoever asks for so much and reads nothing
        if connection.fed - connection.begins > request.MESSAGE_LEN_MAX:
            self._turn_away(connection)

    def _turn_away(self, connection: _Connection) -> None:
        """Says with an id of 0 that the connection ends, and ends it."""
        error = request.invalid_message()
        self._put(connection, [1, 0, answer.error_map(error), None], [])
        connection.ending = True

    def _flush(self, connection: _Connection) -> None:
        """Hands over as much as the socket takes; what was granted in it is heard."""
        with contextlib.suppress(BlockingIOError):
            while connection.output:
                count = connection.socket.send(connection.output)
                del connection.output[:count]
                connection.sent += count
        while connection.unheard and connection.unheard[0][0] <= connection.sent:
            connection.unheard.popleft()

    def _write(self, connection: _Connection) -> None:
        self._flush(connection)
        if connection.ending and not connection.output:
            self._close(connection)
            return
        wanted = selectors.EVENT_READ
        if connection.output:
            wanted = selectors.EVENT_WRITE  # whoever does not read is not read from
        assert self._selector is not None
        self._selector.modify(connection.socket, wanted, connection)

    def _close(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._tick()
        for grant in connection.silenced:
            self._table.settle(grant)
        for _, grants in connection.unheard:
            for grant in grants:
                self._table.settle(grant)

    def _end_silence(self) -> None:
        if self._mode in (_Mode.SILENT, _Mode.SILENT_BUT_DONE):
            return
        for connection in list(self._connections):
            if connection.has_silence:
                self._close(connection)

    # --- requests -------------------------------------------------------------------------------

    def _handle(self, connection: _Connection, message: Any) -> None:
        number = request.read_id(message)
        self._calls += 1
        if self._mode is _Mode.SILENT:
            connection.has_silence = True
            return
        grants: list[Grant] = []
        try:
            done = self._carry_out(connection, message)
        except TenureError as error:
            reply = [1, number, answer.error_map(error), None]
        else:
            reply = [1, number, None, done.result]
            grants = done.grants
        if self._mode is _Mode.SILENT_BUT_DONE:
            connection.has_silence = True
            connection.silenced += grants
            return
        self._put(connection, reply, grants)

    def _put(self, connection: _Connection, reply: list[Any], grants: list[Grant]) -> None:
        connection.output += msgpack.packb(reply)
        if grants:
            end = connection.sent + len(connection.output)
            connection.unheard.append((end, grants))

    def _carry_out(self, connection: _Connection, message: Any) -> answer.Answer:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        retention_ms = self._table.limits.tombstone_retention_ms
        asked = request.read_request(message, now_ns)
        if asked.method in request.ADMINISTRATOR_METHODS:
            _judge_caller(connection.socket)
        request.judge(asked, retention_ms)
        if asked.method in request.OTHER_METHODS:
            return answer.Answer(self._own_affairs(asked))
        if asked.deadline_ns is not None and asked.deadline_ns <= now_ns:
            raise UnavailableError(
                "the deadline passed before it was submitted", status="DEADLINE"
            )
        if self._mode is _Mode.UNAVAILABLE:
            raise UnavailableError(_NO_LEADER, status="NO_LEADER")
        return answer.carry_out(self._table, asked)

    def _own_affairs(self, asked: request.Request) -> dict[str, Any]:
        """What is asked of the node and not of its table."""
        result = answer.position(self._table)
        if asked.method == "members":
            result["members"] = [self._member()]
        elif asked.method == "metrics":
            result["fields"] = {
                "tenure_api_connections": len(self._connections),
                "tenure_calls_total": self._calls,
            }
        elif asked.method == "status":
            result["fields"] = {**self._identity(), **self._health()}
        elif asked.method == "cluster_transfer":
            if asked.node_id != 0:
                raise request.invalid("node_id", str(asked.node_id), request.RULE_NODE_ID)
            raise UnavailableError("no majority of the voters answers", status="NO_QUORUM")
        else:
            result["fields"] = self._identity()  # cluster_init too: it is born already
        return result

    def _identity(self) -> dict[str, Any]:
        return {
            "version": "memory",
            "protocol": PROTOCOL_VERSION,
            "cluster_id": self._cluster_id,
            "generation": 1,
            "node_id": self._cluster_id[:16],
        }

    def _health(self) -> dict[str, Any]:
        leads = self._mode is not _Mode.UNAVAILABLE
        table = self._table
        return {
            "name": "",
            "pid": os.getpid(),
            "role": "voter",
            "state": "leader" if leads else "follower",
            "leader_id": self._cluster_id[:16] if leads else "",
            "live": True,
            "ready": leads,
            "read": leads,
            "write": leads,
            "reason": "" if leads else _NO_LEADER,
            "voters_designed": 1,
            "voters": 1,
            "voters_up": 1,
            "standbys": 0,
            "redundancy_left": 0,
            "degraded": False,
            "clock_ms": table.clock_ms,
            "token": table.token,
            "leases_own": table.count_state(State.OWN),
            "leases_del": table.count_state(State.DEL),
            "tombstones": table.tombstone_count,
            "owners": table.owner_count,
        }

    def _member(self) -> dict[str, Any]:
        return {
            "id": self._cluster_id[:16],
            "address": "",
            "role": "voter",
            "state": "up",
            "leader": self._mode is not _Mode.UNAVAILABLE,
            "self": True,
            "lag_entries": 0,
        }


def _is_owed(data: object) -> bool:
    return isinstance(data, _Connection) and bool(data.silenced or data.unheard)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _unlink_stale(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(1024)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _unlink_stale(path: str) -> None:
    """Removes a socket file that nobody listens at, and nothing else."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _judge_caller(peer: socket.socket) -> None:
    """Root and the node's own user may do what an administrator does."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (0, os.geteuid()):
        raise DeniedError(
            "not allowed for this caller",
            status="DENIED",
            detail="only for root and the node's own user",
        )
