"""The client against a real node, and against a node that misbehaves as a test says."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import threading
import time
import types
from typing import Any, Iterator

import pytest

from fake_node import BASE, GRANTED, FakeNode, Peer, packed
from harness import Node
from tenure import (
    Client,
    InvalidError,
    Item,
    Kind,
    Outcome,
    Position,
    Reason,
    State,
    UnavailableError,
    UnknownError,
    call,
    connection,
    new_owner,
    now_ns,
    pool,
    protocol,
)

NS_PER_MS = 1_000_000
SLACK_MS = 100  # by which a call may end after its deadline


class Stopwatch:
    """How long a block took, in ms of CLOCK_BOOTTIME and of this thread's processor time."""

    def __enter__(self) -> Stopwatch:
        self._began_ns = now_ns()
        self._cpu_ns = time.process_time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self.ms = (now_ns() - self._began_ns) / NS_PER_MS
        self.cpu_ms = (time.process_time_ns() - self._cpu_ns) / NS_PER_MS


# --- verbs, on a real node ---


def test_take_grants_and_names_whom_it_was_taken_from(client: Client) -> None:
    before_ns = now_ns()
    outcome = client.take("a", ttl_ms=60_000, meta=b"\x00m", identity=b"i")
    assert outcome.ok and outcome.kind is Kind.GRANTED and outcome.key == "a"
    assert outcome.deadline_ns is not None and outcome.ms_left == 60_000
    assert before_ns + 59_400 * NS_PER_MS <= outcome.deadline_ns <= now_ns() + 59_400 * NS_PER_MS
    taken = client.take("a", ttl_ms=60_000, owner="you")
    assert taken.holder is not None and taken.holder.owner == "me"
    assert taken.token is not None and outcome.token is not None and taken.token > outcome.token
    assert taken.position > outcome.position


def test_claim_is_refused_where_a_peer_has_it(client: Client) -> None:
    client.claim("a", ttl_ms=60_000, owner="you")
    refused = client.claim("a", ttl_ms=60_000)
    assert refused.kind is Kind.HELD and not refused.ok
    assert refused.holder is not None and refused.holder.owner == "you"
    assert refused.holder.state is State.OWN
    assert (refused.token, refused.ms_left, refused.deadline_ns) == (None, None, None)


def test_claim_again_was_held_before(client: Client) -> None:
    assert not client.claim("a", ttl_ms=60_000).held_before
    assert client.claim("a", ttl_ms=60_000).held_before


def test_claim_adopt_tells_the_grace_that_is_left(client: Client) -> None:
    client.claim("a", ttl_ms=60_000, owner="you")
    client.release("a", owner="you")
    outcome = client.claim("a", ttl_ms=60_000, grace_ms=600_000)
    assert outcome.kind is Kind.GRACE and outcome.grace_ms_left is not None
    assert 0 < outcome.grace_ms_left <= 600_000
    assert client.claim("a", ttl_ms=60_000, grace_ms=0).kind is Kind.GRANTED


def test_renew_never_creates_unless_it_is_asked_to(client: Client) -> None:
    assert client.renew("a", ttl_ms=60_000).kind is Kind.LAPSED
    made = client.renew("a", ttl_ms=60_000, reestablish=True, meta=b"m")
    assert made.kind is Kind.REESTABLISHED
    renewed = client.renew("a", ttl_ms=60_000, if_token=made.token)
    assert renewed.kind is Kind.RENEWED and renewed.token == made.token
    stale = client.renew("a", ttl_ms=60_000, if_token=1)
    assert stale.kind is Kind.STALE and stale.holder is not None
    assert stale.holder.token == made.token


def test_teardown_is_claimed_kept_alive_and_released(client: Client) -> None:
    client.take("a", ttl_ms=60_000)
    marker = client.claim("a", ttl_ms=60_000, destroy=True)
    assert client.heartbeat("a", ttl_ms=60_000, if_token=marker.token).kind is Kind.RENEWED
    lease = client.owner("a")
    assert lease is not None and lease.state is State.DEL
    assert client.release("a", if_token=marker.token).kind is Kind.RELEASED
    assert client.release("a").kind is Kind.NOT_OWNER
    assert client.owner("a") is None


def test_many_keys_are_answered_in_their_order(client: Client) -> None:
    client.take("b", ttl_ms=60_000, owner="you")
    outcomes = client.claim_many(["a", Item("b", meta=b"x"), "c", "a"], ttl_ms=60_000)
    assert [one.key for one in outcomes] == ["a", "b", "c", "a"]
    assert [one.ok for one in outcomes] == [True, False, True, True]
    renewed = client.renew_many((key for key in "abz"), ttl_ms=60_000)
    assert [one.kind for one in renewed] == [Kind.RENEWED, Kind.LOST, Kind.LAPSED]
    released = client.release_many([Item("a", if_token=outcomes[0].token), Item("c", if_token=1)])
    assert [one.kind for one in released] == [Kind.RELEASED, Kind.STALE]
    assert [lease and lease.owner for lease in client.owners(["b", "a", "c"])] == [
        "you", None, "me"
    ]


def test_ten_thousand_keys_go_in_one_call(client: Client) -> None:
    keys = [f"k{number}" for number in range(10_000)]
    assert all(one.ok for one in client.claim_many(keys, ttl_ms=60_000))
    assert client.count().count == 10_000
    assert sum(1 for _ in client.leases(limit=999)) == 10_000
    assert client.release_all().count == 10_000


def test_renew_all_tells_what_left(client: Client) -> None:
    client.claim_many(["a", "b"], ttl_ms=60_000)
    first = client.renew_all(ttl_ms=60_000)
    assert (first.count, first.departures, first.list_again) == (2, (), False)
    assert first.deadline_ns > now_ns()
    client.take("a", ttl_ms=60_000, owner="you")
    second = client.renew_all(ttl_ms=60_000, set_version=first.set_version)
    assert second.count == 1 and second.set_version != first.set_version
    assert [(gone.key, gone.reason) for gone in second.departures] == [("a", Reason.TAKEN)]


def test_list_filters_and_pages(client: Client) -> None:
    client.claim_many(["x-1", "x-2", "y-1"], ttl_ms=60_000)
    client.claim("x-3", ttl_ms=60_000, destroy=True, owner="you")
    assert [lease.key for lease in client.list(prefix="x-").leases] == ["x-1", "x-2", "x-3"]
    page = client.list(prefix="x-", owner="me", limit=1)
    assert [lease.key for lease in page.leases] == ["x-1"] and page.more and not page.stale
    assert [lease.key for lease in client.list(after="x-1", state=State.OWN).leases] == [
        "x-2", "y-1"
    ]
    assert [lease.key for lease in client.leases(limit=1)] == ["x-1", "x-2", "x-3", "y-1"]
    assert client.count(state=State.DEL).count == 1
    assert client.list(stale=True).stale and client.count(stale=True).stale


def test_node_and_cluster_say_what_they_are(client: Client) -> None:
    assert client.hello().values["protocol"] == 1
    assert client.status().values["ready"] is True
    assert client.metrics().values
    assert [row["leader"] for row in client.members()] == [True]
    with pytest.raises(UnavailableError):
        client.cluster_transfer(deadline_ms=300)  # there is nobody else


def test_purge_ends_a_namespace(client: Client, space: str) -> None:
    client.claim_many(["a", "b"], ttl_ms=60_000)
    assert client.purge(namespace=space).count == 2
    assert client.count().count == 0


def test_namespaces_of_calls_keep_keys_apart(client: Client, space: str) -> None:
    client.take("a", ttl_ms=60_000)
    other = client.claim("a", ttl_ms=60_000, owner="you", namespace=space[:60] + "-2")
    assert other.kind is Kind.GRANTED


# --- construction ---


def test_a_client_is_made_without_a_node(tmp_path: os.PathLike[str]) -> None:
    Client(os.path.join(tmp_path, "nobody")).close()


@pytest.mark.parametrize(
    "names, field",
    [
        ({"socket_path": ""}, "socket"), ({"socket_path": "x" * 108}, "socket"),
        ({"socket_path": "a\0b"}, "socket"), ({"socket_path": 5}, "socket"),
        ({"namespace": "A"}, "namespace"), ({"owner": ""}, "owner"),
        ({"deadline_ms": 9}, "deadline_ms"), ({"deadline_ms": 60_001}, "deadline_ms"),
        ({"deadline_ms": 5.0}, "deadline_ms"), ({"deadline_ms": True}, "deadline_ms"),
        ({"connections_idle_max": -1}, "connections_idle_max"),
    ],
)
def test_a_client_with_bad_parameters_is_not_made(names: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Client(**names)
    assert caught.value.field == field


def test_an_owner_that_the_client_makes_is_host_and_uuid(tmp_path: os.PathLike[str]) -> None:
    client = Client(os.path.join(tmp_path, "x"))
    assert re.fullmatch(r"[!-~]{1,200}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", client.owner_id)
    assert client.owner_id == client.owner_id != new_owner()


def test_threads_see_one_owner(tmp_path: os.PathLike[str]) -> None:
    client = Client(os.path.join(tmp_path, "x"))
    seen: list[str] = []
    start = threading.Barrier(16)

    def look() -> None:
        start.wait()
        seen.append(client.owner_id)

    threads = [threading.Thread(target=look) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 16 and len(set(seen)) == 1


@pytest.mark.parametrize("keys", ["abc", b"abc", 5, None])
def test_a_text_is_no_list_of_keys(tmp_path: os.PathLike[str], keys: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        Client(os.path.join(tmp_path, "x")).claim_many(keys, ttl_ms=10)
    assert caught.value.field == "keys"


# --- connections ---


def test_a_connection_is_used_again(fake: FakeNode) -> None:
    with Client(fake.path) as client:
        for _ in range(5):
            client.take("a", ttl_ms=10)
    assert fake.connections == 1


def test_close_ends_idle_connections_and_the_client_goes_on(fake: FakeNode) -> None:
    client = Client(fake.path)
    client.take("a", ttl_ms=10)
    client.close()
    assert fake.ended.get(timeout=10) == 0
    client.take("a", ttl_ms=10)
    client.close()
    assert fake.connections == 2


def test_no_more_connections_stay_idle_than_allowed(fake: FakeNode) -> None:
    together = threading.Barrier(8)

    def answer_together(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        together.wait(10)
        peer.grant(number)

    fake.on_request = answer_together
    with Client(fake.path, connections_idle_max=2) as client:
        threads = [threading.Thread(target=client.take, args=("a",), kwargs={"ttl_ms": 10})
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(6):
            fake.ended.get(timeout=10)
        assert fake.ended.empty()


def test_a_restarted_node_costs_no_error(cluster: Any, node: Node, client: Client) -> None:
    client.take("a", ttl_ms=60_000)
    assert node.stop() == 0
    cluster.restart(node)
    assert client.renew("a", ttl_ms=60_000).kind is Kind.RENEWED


@pytest.mark.parametrize("idle", [False, True])
def test_bytes_that_nobody_asked_for_end_a_connection(fake: FakeNode, idle: bool) -> None:
    returned, written = threading.Event(), threading.Event()

    def twice(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        first, second = ([{**GRANTED, "token": token}] for token in (peer.number, 99))
        if idle:
            peer.answer(number, outcomes=first)
            returned.wait(10)
            returned.clear()
            peer.answer(number + 1, outcomes=second)  # what the next call would ask for
        else:
            peer.socket.sendall(
                packed(1, number, None, {**BASE, "outcomes": first})
                + packed(1, number + 1, None, {**BASE, "outcomes": second})
            )
        written.set()

    fake.on_request = twice
    with Client(fake.path) as client:
        for call in range(3):
            assert client.take("a", ttl_ms=10).token == call
            returned.set()
            assert written.wait(10)
            written.clear()


def test_the_deadline_travels(fake: FakeNode) -> None:
    with Client(fake.path, deadline_ms=777) as client:
        before_ns = now_ns()
        client.take("a", ttl_ms=10)
        after_ns = now_ns()
        client.take("a", ttl_ms=10, deadline_ms=60_000)
    first, second = (names["deadline_ns"] for _, _, names in fake.requests)
    assert before_ns <= first - 777 * NS_PER_MS <= after_ns
    assert second > first + 50_000 * NS_PER_MS


# --- retry ---


def test_what_is_not_done_is_asked_again_on_the_same_connection(fake: FakeNode) -> None:
    def no_leader_twice(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        if len(fake.requests) < 3:
            peer.refuse(number, "UNAVAILABLE", "NO_LEADER")
        else:
            peer.grant(number)

    fake.on_request = no_leader_twice
    with Client(fake.path) as client:
        assert client.take("a", ttl_ms=10).ok
    assert len(fake.requests) == 3 and fake.connections == 1


def test_what_stays_not_done_is_unavailable_by_the_deadline(fake: FakeNode) -> None:
    fake.on_request = lambda peer, number, *_: peer.refuse(number, "UNAVAILABLE", "NO_LEADER")
    with Client(fake.path, deadline_ms=300) as client, Stopwatch() as watch:
        with pytest.raises(UnavailableError) as caught:
            client.take("a", ttl_ms=10)
    assert caught.value.status == "NO_LEADER" and watch.ms <= 300 + SLACK_MS


def test_a_lasting_limit_is_told_at_once(fake: FakeNode) -> None:
    fake.on_request = lambda peer, number, *_: peer.refuse(number, "UNAVAILABLE", "LIMIT")
    with Client(fake.path) as client, pytest.raises(UnavailableError):
        client.take("a", ttl_ms=10)
    assert len(fake.requests) == 1


def test_a_node_that_has_no_room_is_asked_again_on_a_fresh_connection(fake: FakeNode) -> None:
    def busy_once(peer: Peer, number: int, method: str, names: dict[str, Any]) -> object:
        if peer.number > 0:
            return peer.grant(number)
        peer.refuse(0, "UNAVAILABLE", "BUSY")
        return False

    fake.on_request = busy_once
    with Client(fake.path) as client:
        assert client.take("a", ttl_ms=10).ok
    assert fake.connections == 2


@pytest.mark.parametrize("noise", [b"", b"\xc1", b"HTTP/1.1 400\r\n", b"\x94\x01\x01\xc0"])
def test_a_write_whose_connection_breaks_is_unknown_and_not_sent_again(
    fake: FakeNode, noise: bytes
) -> None:
    def breaks(peer: Peer, *_: object) -> object:
        peer.socket.sendall(noise)
        return False

    fake.on_request = breaks
    with Client(fake.path) as client, pytest.raises(UnknownError) as caught:
        client.take("a", ttl_ms=10)
    assert caught.value.status == "LINK_LOST" and len(fake.requests) == 1


def test_a_read_whose_connection_breaks_is_asked_again(fake: FakeNode) -> None:
    def breaks_once(peer: Peer, number: int, *_: object) -> object:
        return False if peer.number == 0 else peer.answer(number, leases=[None])

    fake.on_request = breaks_once
    with Client(fake.path) as client:
        assert client.owner("a") is None
    assert fake.connections == 2


def test_a_reply_to_somebody_else_is_dropped(fake: FakeNode) -> None:
    def noisy(peer: Peer, number: int, *_: object) -> None:
        peer.grant(number + 1, token=1)
        peer.grant(number, token=2)

    fake.on_request = noisy
    with Client(fake.path) as client:
        assert client.take("a", ttl_ms=10).token == 2


@pytest.mark.parametrize(
    "outcome, error",
    [({"outcome": "UNAVAILABLE", "limit": "leases"}, UnavailableError),
     ({"outcome": "UNKNOWN"}, UnknownError)],
)
def test_one_key_without_an_outcome_is_an_error(
    fake: FakeNode, outcome: dict[str, Any], error: type[Exception]
) -> None:
    fake.on_request = lambda peer, number, *_: peer.answer(number, outcomes=[outcome])
    with Client(fake.path) as client:
        with pytest.raises(error):
            client.take("a", ttl_ms=10)
        assert client.claim_many(["a"], ttl_ms=10)[0].kind.value == outcome["outcome"]


# --- late ---


def test_an_answer_just_after_the_deadline_counts(fake: FakeNode) -> None:
    def at_the_end(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        while now_ns() < names["deadline_ns"] + 10 * NS_PER_MS:
            pass
        peer.grant(number)

    fake.on_request = at_the_end
    with Client(fake.path, deadline_ms=200) as client:
        assert client.take("a", ttl_ms=1000).ok


def test_an_answer_that_does_not_come_is_unknown_and_can_come_no_more(fake: FakeNode) -> None:
    late = threading.Event()
    written: list[bool] = []

    def too_late(peer: Peer, number: int, *_: object) -> None:
        late.wait(10)
        try:
            peer.grant(number)
            written.append(True)
        except BrokenPipeError:
            written.append(False)

    fake.on_request = too_late
    with Client(fake.path, deadline_ms=100) as client:
        with Stopwatch() as watch, pytest.raises(UnknownError):
            client.take("a", ttl_ms=10)
        late.set()
        fake.ended.get(timeout=10)
    assert watch.ms <= 100 + SLACK_MS and written == [False]


def test_a_large_answer_comes_in_pieces(fake: FakeNode) -> None:
    lease = {"ns": "default", "key": "k" * 512, "owner": "o", "state": "own", "ttl_ms": 10,
             "ms_left": 1, "token": 1, "since_ms": 1, "meta": bytes(1024)}
    fake.on_request = lambda peer, number, *_: peer.answer(number, leases=[lease] * 1000)
    with Client(fake.path) as client:
        assert len(client.list().leases) == 1000


def test_what_a_broken_answer_has_granted_is_released(fake: FakeNode) -> None:
    def serve(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        if method == "claim":
            before = {**GRANTED, "held_before": True}
            peer.answer(number, outcomes=[GRANTED, {"outcome": "GRANTED"}, before])
        else:
            peer.answer(number, outcomes=[{"outcome": "RELEASED"}])

    fake.on_request = serve
    with Client(fake.path) as client, pytest.raises(UnknownError):
        client.claim_many(["a", "b", "c"], ttl_ms=1000)
    assert fake.methods() == ["claim", "release"]
    names = fake.requests[1][2]
    assert (names["key"], names["if_token"]) == ("a", 7)


def test_a_node_that_talks_of_other_calls_without_end_is_left(fake: FakeNode) -> None:
    other = packed(1, 2**32 - 1, None, {"filler": bytes(7 * 1024 * 1024)})

    def serve(peer: Peer, *_: object) -> bool:
        for _ in range(3):
            peer.socket.sendall(other)
        return bool(peer.socket.recv(1))

    fake.on_request = serve
    with Client(fake.path) as client, pytest.raises(UnknownError) as caught:
        client.take("a", ttl_ms=1000, deadline_ms=60_000)
    assert caught.value.status == "LINK_LOST"


def test_all_that_is_there_is_received_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    message = packed(1, 1, None, {"filler": bytes(150_000)})
    with contextlib.closing(connection.Connection(ours)) as receiving, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(message)
        assert receiving.receive(now_ns() + 10_000 * NS_PER_MS)
        assert receiving.reader.next() == message


def test_a_long_wait_is_made_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspend is not counted by a wait of the kernel, but by the deadline."""
    asked: list[float] = []

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            asked.append(value or 0)
            super().settimeout(value)

    monkeypatch.setattr(connection, "SLICE_S", 0.01)
    ours, theirs = socket.socketpair()
    watched = Watched(fileno=ours.detach())
    with contextlib.closing(connection.Connection(watched)) as receiving, theirs:
        until_ns = now_ns() + 100 * NS_PER_MS
        assert not receiving.receive(until_ns)
        assert now_ns() >= until_ns
    assert max(asked) <= 0.01 and len(asked) >= 5


def test_the_deadline_counts_from_before_the_keys_are_looked_at(fake: FakeNode) -> None:
    def slow_keys() -> Iterator[str]:
        until_ns = now_ns() + 20 * NS_PER_MS
        while now_ns() < until_ns:
            pass
        yield "a"

    with Client(fake.path, deadline_ms=10) as client:
        for ask in (lambda: client.claim_many(slow_keys(), ttl_ms=10),
                    lambda: client.owners(slow_keys())):
            with pytest.raises(UnavailableError) as caught:
                ask()
            assert caught.value.status == "DEADLINE"
    assert fake.requests == []


# --- signals ---


class Signalled(BaseException):
    """Raised by a handler."""


@pytest.fixture
def handler() -> Iterator[Any]:
    """Sets the handler of SIGUSR1 for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, function)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def alarm() -> Iterator[Any]:
    """Raises Signalled after so many seconds, unless it is set to 0 before."""

    def on_alarm(*_: object) -> None:
        raise Signalled

    before = signal.signal(signal.SIGALRM, on_alarm)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupting(fake: FakeNode, handler: Any, error: BaseException, grants: bool) -> None:
    """The first take is interrupted: before its answer is written, or when it is there unread."""
    written = threading.Event()

    def on_signal(*_: object) -> None:
        written.wait(10)
        raise error

    def serve(peer: Peer, number: int, method: str, names: dict[str, Any]) -> object:
        if len(fake.requests) > 1:
            return peer.grant(number, token=8) if method == "take" else \
                peer.answer(number, outcomes=[{"outcome": "RELEASED"}])
        os.kill(os.getpid(), signal.SIGUSR1)
        if grants:
            peer.grant(number, token=7)
        written.set()
        return None

    fake.on_request = serve
    handler(on_signal)


@pytest.mark.parametrize("error", [Signalled(), KeyboardInterrupt(), TimeoutError("mine"),
                                   UnavailableError("of another call"), OSError("mine"),
                                   BlockingIOError(errno.EAGAIN, "mine"),
                                   BrokenPipeError(errno.EPIPE, "mine")],
                         ids=lambda error: type(error).__name__)
def test_what_a_handler_raises_ends_the_call_and_its_connection(
    fake: FakeNode, handler: Any, error: BaseException
) -> None:
    interrupting(fake, handler, error, grants=False)
    with Client(fake.path) as client:
        with pytest.raises(type(error)) as caught:
            client.take("a", ttl_ms=1000)
        assert caught.value is error
        assert fake.ended.get(timeout=10) == 0
        assert client.take("b", ttl_ms=1000).token == 8
    assert fake.methods() == ["take", "take"] and fake.connections == 2


def raising_after(
    monkeypatch: pytest.MonkeyPatch, handler: Any, owner: Any, name: str, error: BaseException
) -> None:
    """A signal strikes when that operation of a connection or the pool has first been done."""
    done = getattr(owner, name)

    def on_signal(*_: object) -> None:
        raise error

    def struck(*arguments: Any, **options: Any) -> Any:
        given = done(*arguments, **options)
        monkeypatch.setattr(owner, name, done)
        signal.raise_signal(signal.SIGUSR1)
        return given

    handler(on_signal)
    monkeypatch.setattr(owner, name, struck)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EPIPE])
@pytest.mark.parametrize("operation", ["socket", "settimeout", "send", "recv"])
def test_an_error_of_a_handler_is_not_taken_for_the_kernels(
    fake: FakeNode, handler: Any, monkeypatch: pytest.MonkeyPatch, operation: str, number: int
) -> None:
    error = OSError(number, "mine")

    class Struck(socket.socket):
        """A socket on which the signal comes after one operation."""

    if operation == "socket":
        raising_after(monkeypatch, handler, Struck, "__init__", error)
    else:
        setattr(Struck, operation, getattr(socket.socket, operation))
        raising_after(monkeypatch, handler, Struck, operation, error)
    struck = types.SimpleNamespace(**{**vars(socket), "socket": Struck})
    monkeypatch.setattr(connection, "socket", struck)
    with Client(fake.path) as client, pytest.raises(OSError) as caught:
        client.take("a", ttl_ms=1000)
    assert caught.value is error
    assert fake.methods().count("take") <= 1


@pytest.mark.parametrize("error", [ValueError("mine"), UnicodeDecodeError("x", b"", 0, 1, "mine")],
                         ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["_map_of", "_number"])
def test_an_error_of_a_handler_while_a_reply_is_read_releases_its_grant(
    fake: FakeNode, handler: Any, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    raising_after(monkeypatch, handler, protocol, step, error)
    with Client(fake.path) as client, pytest.raises(type(error)) as caught:
        client.take("a", ttl_ms=1000)
    assert caught.value is error
    assert fake.methods() == ["take", "release"]


def test_an_error_of_a_handler_during_the_release_of_a_grant_is_raised(
    fake: FakeNode, handler: Any
) -> None:
    second = UnavailableError("of another call")
    signals = [Signalled(), second]
    written = threading.Event()

    def on_signal(*_: object) -> None:
        written.wait(10)
        raise signals.pop(0)

    def strike(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        if method == "take":
            peer.grant(number)
            written.set()

    fake.on_request = strike
    handler(on_signal)
    with Client(fake.path) as client, pytest.raises(UnavailableError) as caught:
        client.take("a", ttl_ms=1000)
    assert caught.value is second
    assert fake.methods() == ["take", "release"]


def test_a_grant_that_nobody_will_see_is_released_by_its_token(
    fake: FakeNode, handler: Any
) -> None:
    interrupting(fake, handler, Signalled(), grants=True)
    with Client(fake.path, owner="me", namespace="x") as client, pytest.raises(Signalled):
        client.take("a", ttl_ms=1000)
    assert fake.methods() == ["take", "release"] and fake.connections == 2
    names = fake.requests[1][2]
    assert [names[name] for name in ("key", "owner", "ns", "if_token")] == ["a", "me", "x", 7]


def test_a_handler_may_call_on_top_of_a_running_call(client: Client, handler: Any) -> None:
    inner: list[str] = []
    stop = threading.Event()
    handled = threading.Event()

    def on_signal(*_: object) -> None:
        key = f"inner-{len(inner)}"
        assert client.take(key, ttl_ms=60_000).ok
        inner.append(key)
        handled.set()

    def send_signals() -> None:
        while not stop.wait(0.002):
            handled.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            handled.wait(10)

    handler(on_signal)

    sender = threading.Thread(target=send_signals)
    sender.start()
    tokens = {}
    try:
        for number in range(200):
            outcome = client.take(f"outer-{number}", ttl_ms=60_000)
            tokens[outcome.key] = outcome.token
    finally:
        stop.set()
        sender.join()
    assert len(inner) >= 10
    held = {lease.key: lease.token for lease in client.leases()}
    assert {key: held[key] for key in tokens} == tokens
    assert len(set(held.values())) == len(held) == 200 + len(inner)


def test_an_interrupted_call_is_settled_by_a_real_node(client: Client, alarm: Any) -> None:
    """Wherever the signal strikes nothing stays granted, and no later reply is another call's."""
    interrupted = 0
    for number in range(150):
        key = f"k{number}"
        outcome = None
        try:
            alarm(0.0001 * (1 + number % 60))
            outcome = client.take(key, ttl_ms=60_000)
            alarm(0)
        except Signalled:
            interrupted += 1
        alarm(0)
        lease = client.owner(key)
        if outcome is None:
            assert lease is None, f"{key} stays granted after its call was interrupted"
        else:
            assert lease is not None and lease.token == outcome.token
    assert 10 <= interrupted


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_child_forked_on_top_of_a_call_leaves_the_answer_to_the_parent(
    fake: FakeNode, handler: Any, goes_on: bool
) -> None:
    parent = os.getpid()
    reaped = threading.Event()

    def on_signal(*_: object) -> None:
        child = os.fork()
        if child != 0:
            assert os.waitpid(child, 0)[1] == 0
            reaped.set()
        elif not goes_on:
            raise Signalled

    def serve(peer: Peer, number: int, *_: object) -> None:
        os.kill(parent, signal.SIGUSR1)
        reaped.wait(10)
        peer.grant(number)

    fake.on_request = serve
    handler(on_signal)
    expected = UnknownError if goes_on else Signalled
    is_child_right = False
    with Client(fake.path) as client:
        try:
            outcome = client.take("a", ttl_ms=1000, deadline_ms=20_000)
        except BaseException as error:
            is_child_right = type(error) is expected
            if os.getpid() == parent:
                raise
        finally:
            if os.getpid() != parent:
                os._exit(0 if is_child_right else 1)
    assert outcome.token == 7 and fake.methods() == ["take"] and fake.connections == 1


def test_the_release_of_a_grant_that_nobody_will_see_ends_with_the_call(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_ns: list[int] = []

    def encode(request: protocol.Request, number: int, deadline_ns: int) -> bytes:
        ends_ns.append(deadline_ns)
        return protocol.encode_request(request, number, deadline_ns)

    monkeypatch.setattr(call, "encode_request", encode)
    idle = pool.Pool(os.fsencode(os.path.join(tmp_path, "nobody")), 0)
    request = protocol.Request("take", owner="me", items=(Item("a"),), ttl_ms=1000)
    late = call.Call(idle, request, now_ns() - 40 * NS_PER_MS, lambda result: result)
    late._result = (Outcome("a", Kind.GRANTED, Position(1, 0, 0), token=7),)
    late._abandon()
    assert len(ends_ns) == 2
    assert ends_ns[1] + call.ANSWER_GRACE_NS <= ends_ns[0] + SLACK_MS * NS_PER_MS


# --- threads ---


def test_sixty_four_threads_share_a_client(client: Client) -> None:
    failures: list[str] = []

    def work(name: int) -> None:
        for number in range(20):
            key = f"t{name}-{number}"
            outcome = client.take(key, ttl_ms=60_000)
            lease = client.owner(key)
            if outcome.key != key or lease is None or lease.token != outcome.token:
                failures.append(f"{key}: {outcome} but {lease}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and client.count().count == 64 * 20


def test_a_full_backlog_is_unavailable_by_the_deadline(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "full")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first, Client(path, deadline_ms=200) as client:
            first.connect(path)
            with Stopwatch() as watch, pytest.raises(UnavailableError):
                client.take("a", ttl_ms=10)
    assert watch.ms <= 200 + SLACK_MS


def test_a_wrapper_around_the_sockets_operations_changes_no_error(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detectors of blocking calls put functions of their own in the place of the class's."""

    def wrapped(operation: Any) -> Any:
        def detecting(*arguments: Any) -> Any:
            return operation(*arguments)
        return detecting

    for name in ("connect", "send", "recv", "shutdown"):
        monkeypatch.setattr(socket.socket, name, wrapped(getattr(socket.socket, name)))
    fake.on_request = lambda peer, number, *_: peer.grant(number, token=7)
    with Client(fake.path) as client, Client(fake.path + "x", deadline_ms=30) as nobodys:
        assert client.take("a", ttl_ms=1000).token == 7
        assert client.take("a", ttl_ms=1000).token == 7
        with pytest.raises(UnavailableError):
            nobodys.take("a", ttl_ms=1000)
    assert fake.connections == 1
