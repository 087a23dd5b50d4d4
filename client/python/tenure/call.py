"""One call while it runs: what the session decides is done here, on one connection at a time.

If anything is raised in the middle, KeyboardInterrupt by a signal among it, the connection is
closed and never used again: no later call can find this call's reply on it. A lease that the node
has granted in a reply that nobody will see is released, by its token, as far as that is possible:
an exception that comes when the call has just returned its outcome is the caller's.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Callable, Generic, TypeVar

from tenure.connection import Connection, wait_until
from tenure.errors import TenureError
from tenure.pool import Pool
from tenure.process import now_ns, process_stamp
from tenure.protocol import (
    Reply,
    Request,
    Result,
    decodable_outcomes,
    decode_result,
    encode_request,
    parse_reply,
)
from tenure.reader import BrokenReply, Reader
from tenure.results import Item, Kind, Outcome
from tenure.rules import U32_MAX
from tenure.session import NS_PER_MS, Action, Event, Session

ANSWER_GRACE_NS = 50 * NS_PER_MS  # a node that gives up at the deadline says so just after it
_OVERRUN_NS_MAX = 100 * NS_PER_MS  # by which a call may end after its deadline
_RELEASE_NS_MIN = 40 * NS_PER_MS
_RELEASE_NS_MAX = 1000 * NS_PER_MS

_numbers = itertools.count()


_Answer = TypeVar("_Answer")


class Call(Generic[_Answer]):
    """A checked request on its way; ``run`` once.

    ``finish`` makes the caller's answer of the result and may raise a TenureError instead.
    """

    def __init__(
        self,
        pool: Pool,
        request: Request,
        deadline_ns: int,
        finish: Callable[[Result], _Answer],
    ) -> None:
        self._pool = pool
        self._request = request
        self._deadline_ns = deadline_ns
        self._number = next(_numbers) % U32_MAX + 1
        self._message = encode_request(request, self._number, deadline_ns)
        self._session = Session(deadline_ns, request.read_only)
        self._connection: Connection | None = None
        self._is_asked = False  # the connection has some of the request and no answer was read
        self._sent_ns = 0
        self._stamp = process_stamp()  # whose the connection is
        self._result: Result | None = None
        self._finish = finish

    def run(self) -> _Answer:
        """The answer; raises a TenureError, by the deadline + 50 ms at the latest.

        CPython looks for signals after calls and on jumps: none are left behind the ``try``, so
        that an answer cannot be dropped on its way to the caller of the client.
        """
        try:
            error = self._converse()
            if error is not None:
                raise error
            if self._result is None:
                raise AssertionError("a call ends with an error or a result")
            answer = self._finish(self._result)
        except BaseException:
            self._abandon()
            raise
        return answer

    def attempt(self) -> None:
        """As ``run`` where nobody wants to know how it ended: raises only what a signal handler
        raises."""
        try:
            self._converse()
        except BaseException:
            self._abandon()
            raise

    def _converse(self) -> TenureError | None:
        action = self._session.start()
        while action is not Action.FINISH:
            event, error = self._perform(action)
            action = self._session.step(event, error, now_ns())
        self._leave()
        return self._session.error

    def _perform(self, action: Action) -> tuple[Event, TenureError | None]:
        if action is Action.CONNECT:
            return self._connect()
        if action is Action.SEND:
            return self._send()
        if action is Action.RECEIVE:
            return self._receive()
        wait_until(self._session.wait_until_ns)
        return Event.WAITED, None

    def _connect(self) -> tuple[Event, TenureError | None]:
        self._disconnect()
        self._stamp = process_stamp()
        if not self._session.fresh:
            self._connection = self._pool.take()
            if self._connection is not None:
                return Event.REUSED, None
        made = self._pool.connect()
        if isinstance(made, TenureError):
            return Event.CONNECT_FAILED, made
        self._connection = made
        return Event.CONNECTED, None

    def _send(self) -> tuple[Event, TenureError | None]:
        self._sent_ns = now_ns()
        self._is_asked = True
        error = self._open().send(self._message, self._deadline_ns)
        if error is not None:
            self._disconnect()
            return Event.SEND_FAILED, error
        return Event.SENT, None

    def _receive(self) -> tuple[Event, TenureError | None]:
        connection = self._open()
        try:
            while (reply := self._find(connection.reader)) is None:
                if connection.reader.is_ended:
                    raise BrokenReply("the connection ended")
                if not connection.receive(self._deadline_ns + ANSWER_GRACE_NS):
                    self._disconnect()
                    return Event.TIMED_OUT, None
            if reply.error is None:
                self._decode(reply)
        except BrokenReply:
            self._disconnect()
            return Event.LOST, None
        self._is_asked = False
        if reply.number == 0:
            self._disconnect()
            return Event.REFUSED, reply.error
        return Event.ANSWERED, reply.error

    def _decode(self, reply: Reply) -> None:
        try:
            self._result = decode_result(self._request, reply.result, self._sent_ns)
        except BrokenReply:
            # The call ends in an error, and what was granted is released with it.
            self._result = decodable_outcomes(self._request, reply.result, self._sent_ns)
            raise

    def _find(self, reader: Reader) -> Reply | None:
        """Our reply or one that speaks of the connection, if it is there; others are dropped."""
        while (message := reader.next()) is not None:
            reply = parse_reply(message)
            if reply.number == self._number:
                return reply
            if reply.number == 0:
                if reply.error is None:
                    raise BrokenReply("a result for nobody")
                return reply
        return None

    def _open(self) -> Connection:
        if self._connection is None:
            raise AssertionError("the session sends and receives on a connection")
        return self._connection

    def _disconnect(self) -> None:
        self._is_asked = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection)

    # --- when something was raised in the middle ---

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        is_ours = self._stamp == process_stamp()
        if connection is not None:
            try:
                if self._is_asked and is_ours:
                    self._look_for_result(connection)
            finally:
                connection.close()
        # A child that was forked on top of the call leaves the answer to the parent.
        dropped = _new_grants(self._result) if is_ours else ()
        if dropped:
            self._release(dropped)

    def _look_for_result(self, connection: Connection) -> None:
        """Either the answer is there, or the node can no longer write it and settles it."""
        connection.last_look()
        connection.reader.rewind()
        with contextlib.suppress(BrokenReply):
            reply = self._find(connection.reader)
            if reply is not None and reply.error is None:
                self._decode(reply)

    def _release(self, items: tuple[Item, ...]) -> None:
        """Best effort: where it fails the leases end with their TTL."""
        request = Request(
            "release", namespace=self._request.namespace, owner=self._request.owner, items=items
        )
        began_ns = now_ns()
        length_ns = min(max(self._deadline_ns - began_ns, _RELEASE_NS_MIN), _RELEASE_NS_MAX)
        end_ns = min(began_ns + length_ns, self._deadline_ns + _OVERRUN_NS_MAX - ANSWER_GRACE_NS)
        Call(self._pool, request, end_ns, _ignore).attempt()


def _ignore(result: Result) -> None:
    """Of a release that nobody waits for."""


def _new_grants(result: Result | None) -> tuple[Item, ...]:
    """What the result has given to the caller that it did not have before."""
    if not isinstance(result, tuple):
        return ()
    return tuple(
        Item(one.key, if_token=one.token)
        for one in result
        if isinstance(one, Outcome) and one.kind is Kind.GRANTED and not one.held_before
    )
