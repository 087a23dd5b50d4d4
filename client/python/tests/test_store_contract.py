"""The contract of DeerFlow's ownership store, in our own words, on `RaftOwnershipStore`.

Runs without DeerFlow, on the classes of deerflow_shape.py, against a real node where TENURE_BUILD
names a build and against the node in memory; tests/deerflow/run runs it with DeerFlow's own classes
against three nodes, whose sockets stand in TENURE_TEST_SOCKETS.

A lease says who answers for reaping a sandbox, not who may use it. "me" is the caller, "peer" any
other gateway; the owner ids have ':' in them, as DeerFlow's have.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgpack  # type: ignore[import]
import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import deerflow_shape  # noqa: E402

deerflow_shape.provide()

import tenure  # noqa: E402
from tenure.deerflow import (  # noqa: E402
    OwnershipBackendError,
    RaftOwnershipStore,
    RenewOutcome,
    SandboxOwnershipStore,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
ME = "gateway-1.example:0123456789abcdef"
PEER = "gateway-2.example:fedcba9876543210"
BEFORE_S, MINE_S = 60.0, 40.0  # TTL of the lease that is there, and of the caller

CALLS: dict[str, Callable[[RaftOwnershipStore, str], object]] = {
    "take": lambda store, key: store.take(key),
    "claim": lambda store, key: store.claim(key),
    "claim_destroy": lambda store, key: store.claim(key, for_destroy=True),
    "renew": lambda store, key: store.renew(key),
    "release": lambda store, key: store.release(key),
    "owner": lambda store, key: store.owner(key),
}


# --- Where the leases are -------------------------------------------------------------------------


def _places() -> list[str]:
    if os.environ.get("TENURE_TEST_SOCKETS"):
        return ["cluster"]
    return ["node", "memory"]


@contextlib.contextmanager
def _real_node() -> Iterator[list[str]]:
    if not os.environ.get("TENURE_BUILD"):
        pytest.skip("TENURE_BUILD names no build directory with a tenured")
    cluster_tests = str(ROOT / "tests" / "cluster")
    sys.path.append(cluster_tests)
    try:
        import harness  # type: ignore[import]
    finally:
        sys.path.remove(cluster_tests)
    with harness.Cluster(1) as cluster:
        yield [node.socket_path for node in cluster.nodes]


@contextlib.contextmanager
def _memory_node() -> Iterator[list[str]]:
    testing = pytest.importorskip("tenure.testing")
    with testing.MemoryNode() as node:
        yield [node.socket_path]


@pytest.fixture(scope="module", params=_places())
def sockets(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Paths of the local API, one or several, all of one table."""
    if request.param == "cluster":
        yield os.environ["TENURE_TEST_SOCKETS"].split(",")
        return
    with _real_node() if request.param == "node" else _memory_node() as paths:
        yield paths


class Place:
    """Stores of one test, all in one namespace of its own, spread over the sockets."""

    def __init__(self, sockets: list[str]) -> None:
        self.sockets = sockets
        self.namespace = f"contract-{uuid.uuid4().hex}"
        self._made: list[RaftOwnershipStore] = []
        self.client = tenure.Client(sockets[-1], namespace=self.namespace, owner="observer")

    def store(
        self, owner: str, *, ttl: float = MINE_S, at: int = 0, namespace: str | None = None
    ) -> RaftOwnershipStore:
        store = RaftOwnershipStore(
            owner_id=owner,
            socket_path=self.sockets[at % len(self.sockets)],
            ttl_seconds=ttl,
            namespace=namespace or self.namespace,
        )
        self._made.append(store)
        return store

    def lease(self, key: str) -> tenure.results.Lease | None:
        return self.client.owner(key)

    def close(self) -> None:
        for store in self._made:
            store.close()
        self.client.close()


@pytest.fixture
def place(sockets: list[str]) -> Iterator[Place]:
    place = Place(sockets)
    yield place
    place.close()


# --- The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What a call returns, what is there afterwards, and whether the lease was written."""

    result: object
    after: str
    written: bool


def same(result: object, state: str) -> Cell:
    return Cell(result, state, written=False)


def mine(result: object, state: str) -> Cell:
    return Cell(result, state, written=True)


RENEWED, LAPSED, LOST = RenewOutcome.RENEWED, RenewOutcome.LAPSED, RenewOutcome.LOST
TABLE = {
    "absent": {
        "take": mine(True, "own me"),
        "claim": mine(True, "own me"),
        "claim_destroy": mine(True, "del me"),
        "renew": same(LAPSED, "absent"),
        "release": same(None, "absent"),
        "owner": same(None, "absent"),
    },
    "own me": {
        "take": mine(True, "own me"),
        "claim": mine(True, "own me"),
        "claim_destroy": mine(True, "del me"),
        "renew": mine(RENEWED, "own me"),
        "release": same(None, "absent"),
        "owner": same(ME, "own me"),
    },
    "own peer": {
        "take": mine(True, "own me"),
        "claim": same(False, "own peer"),
        "claim_destroy": same(False, "own peer"),
        "renew": same(LOST, "own peer"),
        "release": same(None, "own peer"),
        "owner": same(PEER, "own peer"),
    },
    "del me": {
        "take": same(False, "del me"),
        "claim": same(False, "del me"),
        "claim_destroy": mine(True, "del me"),
        "renew": same(LOST, "del me"),
        "release": same(None, "absent"),
        "owner": same(ME, "del me"),
    },
    "del peer": {
        "take": same(False, "del peer"),
        "claim": same(False, "del peer"),
        "claim_destroy": same(False, "del peer"),
        "renew": same(LOST, "del peer"),
        "release": same(None, "del peer"),
        "owner": same(PEER, "del peer"),
    },
}
TABLE["expired"] = TABLE["absent"]


def prepare(place: Place, state: str, key: str) -> None:
    """Brings the key into that state, with a TTL that is not the caller's."""
    if state == "absent":
        return
    if state == "expired":
        assert place.store(ME, ttl=0.05).take(key)
        wait_until(lambda: place.lease(key) is None)
        return
    kind, who = state.split()
    store = place.store({"me": ME, "peer": PEER}[who], ttl=BEFORE_S, at=1)
    assert store.claim(key, for_destroy=kind == "del")


def wait_until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s} s"
        threading.Event().wait(0.01)


def describe(lease: tenure.results.Lease | None) -> str:
    if lease is None:
        return "absent"
    return f"{lease.state.value} {'me' if lease.owner == ME else 'peer'}"


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("state", sorted(TABLE))
def test_table(place: Place, state: str, call: str) -> None:
    cell = TABLE[state][call]
    prepare(place, state, "box")
    before = place.lease("box")

    result = CALLS[call](place.store(ME), "box")

    assert result is cell.result if not isinstance(result, str) else result == cell.result
    after = place.lease("box")
    assert describe(after) == cell.after
    if cell.written:
        assert after is not None and after.ttl_ms == int(MINE_S * 1000)
        assert after.ms_left > MINE_S * 1000 - 5000
    elif after is not None:
        assert before is not None
        assert (after.ttl_ms, after.token) == (before.ttl_ms, before.token)
        assert after.ms_left <= before.ms_left


# --- Rules beside the table -----------------------------------------------------------------------


def test_peer_that_was_taken_from_learns_it_at_its_next_renewal(place: Place) -> None:
    me, peer = place.store(ME), place.store(PEER, at=1)
    assert peer.take("box") and peer.renew("box") is RENEWED
    assert me.take("box")
    assert peer.renew("box") is LOST


def test_lapsed_lease_comes_back_only_by_the_callers_own_claim(place: Place) -> None:
    me = place.store(ME, ttl=0.05)
    assert me.take("box")
    wait_until(lambda: me.owner("box") is None)
    assert me.renew("box") is LAPSED
    assert me.owner("box") is None
    assert me.claim("box")


def test_renewed_lease_outlives_its_ttl(place: Place) -> None:
    me, peer = place.store(ME, ttl=0.4), place.store(PEER, at=1)
    assert me.take("box")
    for _ in range(6):
        threading.Event().wait(0.15)
        assert me.renew("box") is RENEWED
    assert peer.claim("box") is False


def test_taking_ones_own_lease_again_prolongs_it(place: Place) -> None:
    me, peer = place.store(ME, ttl=0.4), place.store(PEER, at=1)
    for _ in range(6):
        assert me.take("box")
        threading.Event().wait(0.15)
    assert peer.claim("box") is False


@pytest.mark.parametrize("for_destroy", [False, True])
def test_lease_that_is_not_renewed_is_gone_soon_after_its_ttl(
    place: Place, for_destroy: bool
) -> None:
    me, peer = place.store(ME, ttl=0.2), place.store(PEER, at=1)
    assert me.claim("box", for_destroy=for_destroy)
    threading.Event().wait(0.35)
    assert peer.take("box") is True


def test_shorter_ttl_of_the_last_write_counts(place: Place) -> None:
    peer = place.store(PEER, at=1)
    assert place.store(ME).claim("box")
    assert place.store(ME, ttl=0.2).renew("box") is RENEWED
    threading.Event().wait(0.35)
    assert peer.owner("box") is None


@pytest.mark.parametrize("for_destroy", [False, True])
@pytest.mark.parametrize("call", ["claim", "claim_destroy", "renew"])
def test_refusals_do_not_keep_a_lease_alive(
    place: Place, call: str, for_destroy: bool
) -> None:
    holder, peer = place.store(ME, ttl=0.5), place.store(PEER, at=1)
    began_s = time.monotonic()
    assert holder.claim("box", for_destroy=for_destroy)
    wait_until(lambda: CALLS[call](peer, "box") not in (False, LOST), deadline_s=1.5)
    assert time.monotonic() - began_s >= 0.495


def test_heartbeat_holds_a_teardown_that_lasts_longer_than_its_ttl(place: Place) -> None:
    me, peer = place.store(ME, ttl=0.4), place.store(PEER, at=1)
    for _ in range(6):
        assert me.claim("box", for_destroy=True)
        threading.Event().wait(0.15)
    assert peer.take("box") is False
    me.release("box")
    assert peer.take("box") is True


def test_fraction_of_a_millisecond_is_cut(place: Place) -> None:
    assert place.store(ME, ttl=12.3459).take("box")
    lease = place.lease("box")
    assert lease is not None and lease.ttl_ms == 12345


def test_one_of_eight_simultaneous_claims_wins(place: Place) -> None:
    stores = [place.store(f"gateway:{number}", at=number) for number in range(8)]
    start = threading.Barrier(len(stores))
    won: list[str] = []

    def contend(store: RaftOwnershipStore) -> None:
        start.wait()
        if store.claim("box"):
            won.append(store.owner_id)

    run_all([lambda store=store: contend(store) for store in stores])  # type: ignore[misc]
    assert len(won) == 1
    assert stores[0].owner("box") == won[0]


def test_write_is_seen_through_every_other_client_at_once(place: Place) -> None:
    stores = [place.store(f"gateway:{number}", at=number) for number in range(3)]
    for turn in range(30):
        writer, loser = stores[turn % 3], stores[(turn + 1) % 3]
        assert writer.take("box") is True
        assert [reader.owner("box") for reader in stores] == [writer.owner_id] * 3
        assert loser.claim("box") is False
        assert loser.renew("box") is LOST


@pytest.mark.parametrize(
    "key",
    ["0123456789abcdef", "a:b", "a/b", "with space", "\u00fc\u4e2d", "own:A", "del:B", "x" * 512],
)
def test_any_id_and_owner_come_back_as_they_are(place: Place, key: str) -> None:
    me = place.store(ME)
    assert me.take(key)
    assert me.owner(key) == ME
    assert me.owner(key[:-1] + "~") is None


def test_namespaces_do_not_meet(place: Place) -> None:
    me = place.store(ME)
    other = place.store(PEER, namespace=f"{place.namespace}.other")
    assert me.claim("box") and other.claim("box")
    assert (me.owner("box"), other.owner("box")) == (ME, PEER)


def test_two_stores_with_one_owner_id_are_one_owner(place: Place) -> None:
    first, second = place.store(ME), place.store(ME, at=1)
    assert first.take("box")
    assert second.renew("box") is RENEWED
    second.release("box")
    assert first.owner("box") is None


def test_store_that_lost_everything_says_lapsed_not_lost(place: Place) -> None:
    me = place.store(ME)
    assert me.take("box")
    place.client.purge(namespace=place.namespace)
    assert me.renew("box") is LAPSED


def test_close_keeps_leases_and_the_store_works_again(place: Place) -> None:
    me, peer = place.store(ME), place.store(PEER, at=1)
    assert me.claim("box")
    me.close()
    me.close()
    assert peer.claim("box") is False
    assert me.renew("box") is RENEWED


# --- Its class ------------------------------------------------------------------------------------


def test_store_is_of_deerflows_kind(place: Place) -> None:
    store = place.store(ME)
    assert isinstance(store, SandboxOwnershipStore)
    assert store.supports_cross_process is True
    assert store.owner_id == ME


def test_attribute_may_be_replaced_on_the_instance(place: Place) -> None:
    store = place.store(ME)
    setattr(store, "renew", lambda sandbox_id: LOST)
    store.supports_cross_process = False
    assert store.renew("box") is LOST
    assert type(store).supports_cross_process is True


def make_at(path: object, **options: object) -> RaftOwnershipStore:
    arguments: dict[str, object] = {
        "owner_id": ME, "socket_path": str(path), "ttl_seconds": 60, "namespace": "n", **options
    }
    return RaftOwnershipStore(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ttl_seconds", float("nan")),
        ("ttl_seconds", float("inf")),
        ("ttl_seconds", float("-inf")),
        ("ttl_seconds", 1e300),
        ("ttl_seconds", 10**400),
        ("ttl_seconds", 0),
        ("ttl_seconds", -1),
        ("ttl_seconds", 0.0099),
        ("ttl_seconds", 86400.01),
        ("ttl_seconds", "60"),
        ("ttl_seconds", True),
        ("deadline_ms", 199),
        ("deadline_ms", 5001),
        ("deadline_ms", 1000.0),
        ("deadline_ms", True),
        ("owner_id", ""),
        ("owner_id", "x" * 256),
        ("owner_id", None),
        ("namespace", ""),
        ("namespace", "Upper"),
        ("namespace", "n" * 65),
        ("socket_path", "/" + "x" * 108),
    ],
)
def test_bad_parameter_is_refused_at_construction(
    tmp_path: pathlib.Path, field: str, value: object
) -> None:
    with pytest.raises(ValueError) as caught:
        make_at(tmp_path / "none.sock", **{field: value})
    assert isinstance(caught.value, tenure.InvalidError)
    assert caught.value.field is not None and caught.value.rule and caught.value.value is not None


@pytest.mark.parametrize("ttl", [0.01, 1, 86400])
def test_ttl_at_the_edge_is_taken(place: Place, ttl: float) -> None:
    assert place.store(ME, ttl=ttl).take("box")


# --- Not knowing is never a refusal ---------------------------------------------------------------


@pytest.mark.parametrize("call", sorted(CALLS))
def test_nobody_at_the_socket(tmp_path: pathlib.Path, call: str) -> None:
    store = make_at(tmp_path / "none.sock", deadline_ms=300)
    with pytest.raises(OwnershipBackendError) as caught:
        CALLS[call](store, "box")
    assert isinstance(caught.value.__cause__, tenure.UnavailableError)


@pytest.mark.parametrize("call", sorted(CALLS))
def test_id_over_the_limit(place: Place, call: str) -> None:
    with pytest.raises(OwnershipBackendError) as caught:
        CALLS[call](place.store(ME), "x" * 513)
    assert isinstance(caught.value.__cause__, tenure.InvalidError)


@contextlib.contextmanager
def listening(path: pathlib.Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        yield listener


def run_all(jobs: list[Callable[[], object]], deadline_s: float = 60.0) -> None:
    """Runs all at once, each in a thread; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
        assert not thread.is_alive(), "a call did not end"
    if failures:
        raise failures[0]


def test_silent_node_costs_five_seconds_in_all_and_no_more(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "silent.sock"
    took_s: dict[str, float] = {}

    def ask(name: str) -> None:
        store = make_at(path)
        began_s = time.monotonic()
        with pytest.raises(OwnershipBackendError):
            CALLS[name](store, "box")
        took_s[name] = time.monotonic() - began_s

    with listening(path):
        run_all([lambda name=name: ask(name) for name in CALLS])  # type: ignore[misc]
    assert sorted(took_s) == sorted(CALLS)
    assert max(took_s.values()) <= 5.1


@contextlib.contextmanager
def answering(path: pathlib.Path, answer: Callable[[int], bytes]) -> Iterator[None]:
    """A node that says the same to everybody: bytes made from the request's number."""
    with listening(path) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                unpacker = msgpack.Unpacker(raw=False)
                while data := connection.recv(65536):
                    unpacker.feed(data)
                    for request in unpacker:
                        reply = answer(request[1])
                        if not reply:
                            return
                        connection.sendall(reply)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def error_reply(code: str) -> Callable[[int], bytes]:
    fields = {"code": code, "status": "WHY", "message": "said the node"}
    return lambda number: bytes(msgpack.packb([1, number, fields, None]))


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize(
    "code", ["INVALID", "UNAVAILABLE", "UNKNOWN", "DENIED", "INCOMPATIBLE", "INTERNAL"]
)
def test_every_error_of_a_node_is_the_backend_error(
    tmp_path: pathlib.Path, code: str, call: str
) -> None:
    store = make_at(tmp_path / "node.sock", deadline_ms=300)
    with answering(tmp_path / "node.sock", error_reply(code)):
        with pytest.raises(OwnershipBackendError) as caught:
            CALLS[call](store, "box")
    assert isinstance(caught.value.__cause__, tenure.TenureError)
    assert caught.value.__cause__.code == code
    assert "box" in str(caught.value) and code in str(caught.value)


def outcome_reply(outcome: str) -> Callable[[int], bytes]:
    result = {"outcomes": [{"outcome": outcome}], "index": 1, "place": 1, "clock_ms": 1}
    return lambda number: bytes(msgpack.packb([1, number, None, result]))


@pytest.mark.parametrize("outcome", ["MISMATCH", "STALE", "GRACE", "SOMETHING"])
@pytest.mark.parametrize("call", ["take", "claim", "claim_destroy", "renew", "release"])
def test_outcome_outside_the_contract_is_no_refusal(
    tmp_path: pathlib.Path, call: str, outcome: str
) -> None:
    store = make_at(tmp_path / "node.sock", deadline_ms=300)
    with answering(tmp_path / "node.sock", outcome_reply(outcome)):
        with pytest.raises(OwnershipBackendError):
            CALLS[call](store, "box")


@pytest.mark.parametrize(
    "reply",
    [b"", b"\xc1", b"rubbish", msgpack.packb([1, 2, 3]), msgpack.packb({"a": 1})],
    ids=["hangs-up", "no-msgpack", "text", "short", "map"],
)
@pytest.mark.parametrize("call", sorted(CALLS))
def test_bad_reply_is_the_backend_error(
    tmp_path: pathlib.Path, call: str, reply: bytes
) -> None:
    store = make_at(tmp_path / "node.sock", deadline_ms=300)
    with answering(tmp_path / "node.sock", lambda _: reply):
        with pytest.raises(OwnershipBackendError):
            CALLS[call](store, "box")


# --- Threads, forks, signals ----------------------------------------------------------------------


def test_forty_threads_use_one_store(place: Place) -> None:
    store = place.store(ME)

    def work(thread: int) -> None:
        for turn in range(10):
            key = f"box-{thread}-{turn}"
            assert store.take(key) is True
            assert store.owner(key) == ME
            assert store.renew(key) is RENEWED
            store.release(key)
            assert store.owner(key) is None

    run_all([lambda thread=thread: work(thread) for thread in range(40)])  # type: ignore[misc]


def test_fork_does_not_share_a_connection(place: Place) -> None:
    store = place.store(ME)
    assert store.take("before")

    def work(name: str) -> bool:
        keys = [f"{name}-{turn}" for turn in range(50)]
        return all(store.take(key) and store.owner(key) == ME for key in keys)

    pid = os.fork()
    if pid == 0:
        done = False
        try:
            done = work("child")
        finally:
            os._exit(0 if done else 1)
    assert work("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _call_twice_over(path: str, said: Connection) -> None:
    """In a process of its own: a call that waits, and one more from a signal handler on top."""
    store = make_at(path, deadline_ms=1500)

    def call(name: str, ask: Callable[[str], object]) -> None:
        try:
            ask("box")
        except OwnershipBackendError:
            said.send(name)

    signal.signal(signal.SIGALRM, lambda *_: call("handler", store.release))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    call("main", store.take)


def test_call_in_a_signal_handler_on_top_of_a_running_call(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "silent.sock"
    process_kind = multiprocessing.get_context("fork")
    hearing, saying = process_kind.Pipe(duplex=False)
    child = process_kind.Process(target=_call_twice_over, args=(str(path), saying))
    with listening(path):
        child.start()
        child.join(20)
        has_ended = not child.is_alive()
        child.kill()
        child.join()
    assert has_ended, "the two calls wait for each other"
    said = [hearing.recv() for _ in range(2) if hearing.poll()]
    assert (sorted(said), child.exitcode) == (["handler", "main"], 0)
