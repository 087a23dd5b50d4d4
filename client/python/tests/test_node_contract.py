"""The contract of a node, in one suite that a real node and the one in memory pass alike.

The decision table with every guard and identity, the stories, the edges and what is INVALID are the
literals of tests/contract; what they do not say (sets, pages, graces, the values of INVALID, the
shape of messages) stands here, as literals too.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import]
import pytest

from nodes import KINDS, Map, NoAnswer, Wire, load, running

contract = load("contract", "contract")
paths = load("contract", "paths")
api = load("cluster", "api")

A, B = "gw-1:self", "gw-2:peer"
TTL_MS = 60_000

RULE_TTL = "must be a whole number of milliseconds in 10..86400000"
RULE_GRACE = "must be a whole number of milliseconds in 0..the retention of tombstones"
RULE_NAMESPACE = "must be 1..64 bytes of [a-z0-9._:-]"
RULE_KEY = "must be 1..512 bytes of UTF-8 without control characters"
RULE_OWNER = "must be 1..255 bytes of UTF-8 without control characters"
RULE_KEYS = "must be 1..10000 keys"
RULE_U64 = "must be a whole number in 0..18446744073709551615"
RULE_FLAG = "must be true or false"
RULE_NOT_HERE = "is not part of this operation"
RULE_GUARD = "goes with claim destroy, renew, heartbeat and release only"
RULE_META_WHERE = "goes with take, claim and renew reestablish only"
RULE_PREFIX = "must be 0..512 bytes"
RULE_LIMIT = "must be a whole number in 1..1000"
RULE_STATE = "must be own or del"
RULE_DEADLINE = "must be an instant of CLOCK_BOOTTIME in ns, at most 60000 ms ahead"


@pytest.fixture(scope="module", params=KINDS)
def socket_path(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param) as path:
        yield path


@pytest.fixture
def wire(socket_path: str) -> Iterator[Wire]:
    connection = Wire(socket_path)
    yield connection
    connection.close()


@pytest.fixture
def player(socket_path: str) -> Iterator[Any]:
    """Plays the tables of tests/contract; raises contract.Wrong."""
    player = contract.Player(paths.Socket("API", api.Api(socket_path)))
    yield player
    player.path.close()


@pytest.fixture
def ns() -> str:
    """A namespace that nobody used before."""
    return f"t-{uuid.uuid4().hex}"


# --- the tables of tests/contract ---------------------------------------------------------------


def _cells() -> Iterator[Any]:
    for _, (op, guard, identity, *expected) in contract.rows("cells.txt"):
        assert len(expected) == len(contract.STATES)
        for state, literal in zip(contract.STATES, expected):
            name = f"{op} guard={guard} identity={identity} {state}"
            yield pytest.param(op, guard, identity, state, literal, id=name)


@pytest.mark.parametrize(("op", "guard", "identity", "state", "literal"), _cells())
def test_cell(
    player: Any, op: str, guard: str, identity: str, state: str, literal: str
) -> None:
    player.cell(op, guard, identity, state, literal)


def _stories() -> Iterator[Any]:
    name, steps = "", []
    for where, words in contract.rows("stories.txt"):
        if words[0] != "story":
            steps.append((where, words))
            continue
        if steps:
            yield pytest.param(steps, id=name)
        name, steps = " ".join(words[1:]), []
    yield pytest.param(steps, id=name)


@pytest.mark.parametrize("steps", _stories())
def test_story(player: Any, steps: list[Any]) -> None:
    player.story(steps)


def _rows(name: str) -> Iterator[Any]:
    for where, words in contract.rows(name):
        yield pytest.param(words, id=f"{where} {' '.join(words[:3])}")


@pytest.mark.parametrize("words", _rows("invalid.txt"))
def test_what_is_invalid(player: Any, words: list[str]) -> None:
    op, name, value, field, _, *rule = words
    player.invalid(op, name, contract.parse(value), field, " ".join(rule))


@pytest.mark.parametrize("words", _rows("edges.txt"))
def test_what_is_just_inside(player: Any, words: list[str]) -> None:
    op, name, value, outcome = words
    player.edge(op, name, contract.parse(value), outcome)


# --- many keys ----------------------------------------------------------------------------------


def test_many_keys_are_answered_in_the_order_of_the_request(wire: Wire, ns: str) -> None:
    wire.one("take", "mine", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("take", "theirs", ns=ns, owner=B, ttl_ms=TTL_MS)
    asked = ["theirs", "mine", "free", "mine"]
    outcomes = wire.many("renew", asked, ns=ns, owner=A, ttl_ms=TTL_MS)
    assert [one["outcome"] for one in outcomes] == ["LOST", "RENEWED", "LAPSED", "RENEWED"]


def test_each_of_many_keys_has_its_own_guard_and_attachments(wire: Wire, ns: str) -> None:
    first, second = (
        wire.one("take", key, ns=ns, owner=A, ttl_ms=TTL_MS)["token"] for key in ("a", "b")
    )
    outcomes = wire.many(
        "claim",
        [
            {"key": "a", "if_token": first, "meta": b"m"},
            {"key": "b", "if_token": second + 1},
            "c",
        ],
        ns=ns,
        owner=A,
        ttl_ms=TTL_MS,
        destroy=True,
    )
    assert [one["outcome"] for one in outcomes] == ["GRANTED", "STALE", "GRANTED"]
    lease = wire.lease("a", ns=ns)
    assert lease is not None and (lease["state"], lease["meta"]) == ("del", b"m")


def test_a_key_that_is_named_twice_is_done_once_as_first_named(wire: Wire, ns: str) -> None:
    outcomes = wire.many(
        "claim",
        [{"key": "k", "meta": b"first"}, {"key": "k", "meta": b"second"}],
        ns=ns,
        owner=A,
        ttl_ms=TTL_MS,
    )
    assert outcomes[0] == outcomes[1] and outcomes[0]["outcome"] == "GRANTED"
    lease = wire.lease("k", ns=ns)
    assert lease is not None and lease["meta"] == b"first"


def test_ten_thousand_keys_are_granted_renewed_and_released(wire: Wire, ns: str) -> None:
    keys = [f"k/{number}" for number in range(10_000)]
    granted = wire.many("claim", keys, ns=ns, owner=A, ttl_ms=TTL_MS)
    tokens = [one["token"] for one in granted]
    assert tokens == sorted(set(tokens))
    for method, outcome in (("renew", "RENEWED"), ("release", "RELEASED")):
        ttl = {} if method == "release" else {"ttl_ms": TTL_MS}
        outcomes = wire.many(method, keys, ns=ns, owner=A, **ttl)
        assert {one["outcome"] for one in outcomes} == {outcome}


def test_owner_answers_each_key_with_its_lease_or_nil(wire: Wire, ns: str) -> None:
    wire.one("take", "a", ns=ns, owner=A, ttl_ms=TTL_MS)
    leases = wire.ask("owner", ns=ns, keys=["x", "a", "x", "a"])["leases"]
    assert [lease and lease["owner"] for lease in leases] == [None, A, None, A]


def test_a_lease_is_shown_with_all_its_names(wire: Wire, ns: str) -> None:
    granted = wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS, meta=b"\xff", identity=b"i")
    reply = wire.ask("owner", ns=ns, key="k")
    [lease] = reply["leases"]
    assert 0 < TTL_MS - lease.pop("ms_left") + 1 < 5000
    assert 0 <= reply["clock_ms"] - lease.pop("since_ms") < 5000
    assert lease == {
        "ns": ns,
        "key": "k",
        "owner": A,
        "state": "own",
        "ttl_ms": TTL_MS,
        "token": granted["token"],
        "meta": b"\xff",
        "identity": b"i",
    }
    assert reply["place"] == 4294967295 and "stale" not in reply


def test_a_lease_without_attachments_does_not_name_them(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    lease = wire.lease("k", ns=ns)
    assert lease is not None and not {"meta", "identity"} & set(lease)


def test_empty_attachments_are_there(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS, meta=b"", identity=b"")
    lease = wire.lease("k", ns=ns)
    assert lease is not None and (lease["meta"], lease["identity"]) == (b"", b"")


def test_since_lasts_as_long_as_the_same_owner_has_the_lease(wire: Wire, ns: str) -> None:
    def since() -> int:
        lease = wire.lease("k", ns=ns)
        assert lease is not None
        return int(lease["since_ms"])

    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    first = since()
    time.sleep(0.02)
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("claim", "k", ns=ns, owner=A, ttl_ms=TTL_MS, destroy=True)
    assert since() == first
    wire.one("release", "k", ns=ns, owner=A)
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    again = since()
    assert again > first
    time.sleep(0.02)
    wire.one("take", "k", ns=ns, owner=B, ttl_ms=TTL_MS)
    assert since() > again


def test_a_stale_read_says_so(wire: Wire, ns: str) -> None:
    assert wire.ask("owner", ns=ns, key="k", stale=True)["stale"] is True
    assert wire.ask("list", ns=ns, stale=True)["stale"] is True
    assert wire.ask("count", ns=ns, stale=True)["stale"] is True


def test_keys_of_different_namespaces_never_meet(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    assert wire.lease("k", ns=ns + ".other") is None
    granted = wire.one("claim", "k", ns=ns + ".other", owner=B, ttl_ms=TTL_MS)
    assert granted["outcome"] == "GRANTED"


# --- sets ---------------------------------------------------------------------------------------


def _renew_all(wire: Wire, ns: str, version: int | None = None, owner: str = A) -> Map:
    named = {} if version is None else {"set_version": version}
    reply = wire.ask("renew_all", ns=ns, owner=owner, ttl_ms=TTL_MS, **named)
    names = ("count", "set_version", "departures", "list_again")
    return {name: reply[name] for name in names if name in reply}


def test_renew_all_renews_what_the_owner_has_and_no_markers(wire: Wire, ns: str) -> None:
    for key in ("a", "b"):
        wire.one("take", key, ns=ns, owner=A, ttl_ms=1_000_000)
    wire.one("claim", "marker", ns=ns, owner=A, ttl_ms=1_000_000, destroy=True)
    wire.one("take", "theirs", ns=ns, owner=B, ttl_ms=1_000_000)
    assert _renew_all(wire, ns)["count"] == 2
    keys = ["a", "b", "marker", "theirs"]
    leases = wire.ask("owner", ns=ns, keys=keys)["leases"]
    assert [one["ttl_ms"] for one in leases] == [TTL_MS, TTL_MS, 1_000_000, 1_000_000]


def test_the_set_version_stays_while_nothing_leaves(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    version = _renew_all(wire, ns)["set_version"]
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("take", "other", ns=ns, owner=A, ttl_ms=TTL_MS)
    assert _renew_all(wire, ns, version) == {
        "count": 2,
        "set_version": version,
        "departures": [],
    }


@pytest.mark.parametrize(
    ("reason", "method", "parameters"),
    [
        ("released", "release", {"key": "k", "owner": A}),
        ("taken", "take", {"key": "k", "owner": B, "ttl_ms": TTL_MS}),
        ("teardown", "claim", {"key": "k", "owner": A, "ttl_ms": TTL_MS, "destroy": True}),
        ("purged", "purge", {}),
        ("released", "release_all", {"owner": A}),
    ],
)
def test_renew_all_names_what_left(
    wire: Wire, ns: str, reason: str, method: str, parameters: Map
) -> None:
    token = wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)["token"]
    version = _renew_all(wire, ns)["set_version"]
    wire.ask(method, ns=ns, **parameters)
    after = _renew_all(wire, ns, version)
    assert after["departures"] == [{"key": "k", "token": token, "reason": reason}]
    assert after["set_version"] > version and after["count"] == 0
    assert _renew_all(wire, ns, after["set_version"])["departures"] == []


def test_what_is_due_has_left(wire: Wire, ns: str) -> None:
    token = wire.one("take", "k", ns=ns, owner=A, ttl_ms=10)["token"]
    wire.one("take", "stays", ns=ns, owner=A, ttl_ms=TTL_MS)
    time.sleep(0.3)  # longer than a leader waits with the next stamp
    after = _renew_all(wire, ns, 0)
    assert after["departures"] == [{"key": "k", "token": token, "reason": "expired"}]
    assert after["count"] == 1


def test_a_marker_that_ends_leaves_no_set(wire: Wire, ns: str) -> None:
    wire.one("claim", "k", ns=ns, owner=A, ttl_ms=TTL_MS, destroy=True)
    version = _renew_all(wire, ns)["set_version"]
    wire.one("release", "k", ns=ns, owner=A)
    assert _renew_all(wire, ns, version)["set_version"] == version


@pytest.mark.parametrize("version", [1, (1 << 64) - 1])
def test_a_version_of_another_table_means_list_again(
    wire: Wire, ns: str, version: int
) -> None:
    keys = [f"{number}" for number in range(1100)]  # more than are remembered of one owner
    wire.many("claim", keys, ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.many("release", keys, ns=ns, owner=A)
    after = _renew_all(wire, ns, version)
    assert after["list_again"] is True and after["departures"] == []


def test_release_all_ends_own_leases_only(wire: Wire, ns: str) -> None:
    for key in ("a", "b"):
        wire.one("take", key, ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("claim", "marker", ns=ns, owner=A, ttl_ms=TTL_MS, destroy=True)
    wire.one("take", "theirs", ns=ns, owner=B, ttl_ms=TTL_MS)
    assert wire.ask("release_all", ns=ns, owner=A)["count"] == 2
    assert wire.ask("release_all", ns=ns, owner=A)["count"] == 0
    leases = wire.ask("list", ns=ns)["leases"]
    assert [lease["key"] for lease in leases] == ["marker", "theirs"]


def test_what_release_all_ended_is_not_reestablished_by_its_token(wire: Wire, ns: str) -> None:
    token = wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)["token"]
    wire.ask("release_all", ns=ns, owner=A)
    late = {"ns": ns, "owner": A, "ttl_ms": TTL_MS, "reestablish": True, "if_token": token}
    assert wire.one("renew", "k", **late)["outcome"] == "LAPSED"


def test_purge_ends_every_lease_of_the_namespace_markers_too(wire: Wire, ns: str) -> None:
    token = wire.one("take", "a", ns=ns, owner=A, ttl_ms=TTL_MS)["token"]
    wire.one("claim", "b", ns=ns, owner=B, ttl_ms=TTL_MS, destroy=True)
    wire.one("take", "a", ns=ns + ".other", owner=A, ttl_ms=TTL_MS)
    assert wire.ask("purge", ns=ns)["count"] == 2
    assert wire.ask("count", ns=ns)["count"] == 0
    assert wire.ask("count", ns=ns + ".other")["count"] == 1
    again = {"ns": ns, "owner": A, "ttl_ms": TTL_MS, "reestablish": True, "if_token": token}
    assert wire.one("renew", "a", **again)["outcome"] == "REESTABLISHED"


# --- grace --------------------------------------------------------------------------------------


def _adopt(wire: Wire, ns: str, grace_ms: int, key: str = "k", **more: object) -> Map:
    return wire.one(
        "claim", key, ns=ns, owner=B, ttl_ms=TTL_MS, adopt=True, grace_ms=grace_ms, **more
    )


def test_a_key_is_adopted_after_the_grace_and_not_before(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("release", "k", ns=ns, owner=A)
    refused = _adopt(wire, ns, 400)
    assert refused["outcome"] == "GRACE" and 200 < refused["grace_ms_left"] <= 400
    asked_s = time.monotonic()
    while _adopt(wire, ns, 400)["outcome"] == "GRACE":
        assert time.monotonic() < asked_s + 5
        time.sleep(0.02)
    assert time.monotonic() - asked_s > 0.15


def test_a_grace_of_zero_is_over_at_once(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("release", "k", ns=ns, owner=A)
    assert _adopt(wire, ns, 0, destroy=True)["outcome"] == "GRANTED"


def test_adopt_without_a_grace_is_a_grace_of_zero(wire: Wire, ns: str) -> None:
    granted = wire.one("claim", "k", ns=ns, owner=B, ttl_ms=TTL_MS, adopt=True)
    assert granted["outcome"] == "GRANTED"


def test_the_grace_of_an_expired_lease_counts_from_its_expiry(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=10)
    time.sleep(0.4)
    refused = _adopt(wire, ns, 100_000)
    assert refused["outcome"] == "GRACE" and 90_000 < refused["grace_ms_left"] <= 99_800


def test_the_grace_of_a_purged_namespace_counts_from_the_purge(wire: Wire, ns: str) -> None:
    time.sleep(0.3)
    wire.ask("purge", ns=ns)
    refused = _adopt(wire, ns, 200, "nobody had it")
    assert refused["outcome"] == "GRACE" and refused["grace_ms_left"] <= 200


def test_a_refusal_by_grace_changes_nothing(wire: Wire, ns: str) -> None:
    assert _adopt(wire, ns, 600_000)["outcome"] == "GRACE"
    assert wire.lease("k", ns=ns) is None
    assert wire.one("claim", "k", ns=ns, owner=A, ttl_ms=TTL_MS)["outcome"] == "GRANTED"


# --- pages --------------------------------------------------------------------------------------


def _keys(reply: Map) -> list[str]:
    return [lease["key"] for lease in reply["leases"]]


def _fill(wire: Wire, ns: str) -> None:
    for key in ("a/1", "a/2", "b", "Z", "ä"):
        wire.one("take", key, ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.one("take", "a/3", ns=ns, owner=B, ttl_ms=TTL_MS)
    wire.one("claim", "a/del", ns=ns, owner=A, ttl_ms=TTL_MS, destroy=True)


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({}, ["Z", "a/1", "a/2", "a/3", "a/del", "b", "ä"]),
        ({"prefix": ""}, ["Z", "a/1", "a/2", "a/3", "a/del", "b", "ä"]),
        ({"prefix": "a/"}, ["a/1", "a/2", "a/3", "a/del"]),
        ({"prefix": "a/1"}, ["a/1"]),
        ({"prefix": "c"}, []),
        ({"owner": A}, ["Z", "a/1", "a/2", "a/del", "b", "ä"]),
        ({"owner": B}, ["a/3"]),
        ({"owner": "nobody"}, []),
        ({"state": "own"}, ["Z", "a/1", "a/2", "a/3", "b", "ä"]),
        ({"state": "del"}, ["a/del"]),
        ({"prefix": "a/", "owner": A, "state": "own"}, ["a/1", "a/2"]),
    ],
)
def test_list_and_count_show_what_passes_every_filter(
    wire: Wire, ns: str, wanted: Map, keys: list[str]
) -> None:
    _fill(wire, ns)
    reply = wire.ask("list", ns=ns, **wanted)
    assert _keys(reply) == keys and "more" not in reply
    assert wire.ask("count", ns=ns, **wanted)["count"] == len(keys)


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        ("", ["Z", "a/1", "a/2", "a/3", "a/del", "b", "ä"]),
        ("a/2", ["a/3", "a/del", "b", "ä"]),
        ("a/20", ["a/3", "a/del", "b", "ä"]),
        ("ä", []),
    ],
)
def test_a_page_begins_after_a_key_in_byte_order(
    wire: Wire, ns: str, after: str, keys: list[str]
) -> None:
    _fill(wire, ns)
    assert _keys(wire.ask("list", ns=ns, after=after)) == keys


def test_a_prefix_and_a_key_before_it_go_together(wire: Wire, ns: str) -> None:
    _fill(wire, ns)
    assert _keys(wire.ask("list", ns=ns, prefix="a/", after="Z")) == [
        "a/1",
        "a/2",
        "a/3",
        "a/del",
    ]
    assert _keys(wire.ask("list", ns=ns, prefix="a/", after="a/2")) == ["a/3", "a/del"]
    assert _keys(wire.ask("list", ns=ns, prefix="a/", after="b")) == []


def test_pages_show_each_key_once_and_only_the_last_has_no_more(wire: Wire, ns: str) -> None:
    _fill(wire, ns)
    pages = []
    after: Map = {}
    while True:
        reply = wire.ask("list", ns=ns, limit=3, **after)
        pages.append(_keys(reply))
        if not reply.get("more"):
            break
        after = {"after": pages[-1][-1]}
    assert pages == [["Z", "a/1", "a/2"], ["a/3", "a/del", "b"], ["ä"]]


def test_a_page_that_holds_exactly_all_has_no_more(wire: Wire, ns: str) -> None:
    _fill(wire, ns)
    assert "more" not in wire.ask("list", ns=ns, limit=7)
    assert wire.ask("list", ns=ns, limit=6)["more"] is True


def test_a_page_has_a_thousand_leases_where_no_limit_is_named(wire: Wire, ns: str) -> None:
    wire.many("claim", [f"{n:04}" for n in range(1001)], ns=ns, owner=A, ttl_ms=TTL_MS)
    reply = wire.ask("list", ns=ns)
    assert len(reply["leases"]) == 1000 and reply["more"] is True


def test_what_is_due_is_not_listed_and_not_counted(wire: Wire, ns: str) -> None:
    wire.one("take", "short", ns=ns, owner=A, ttl_ms=10)
    wire.one("take", "stays", ns=ns, owner=A, ttl_ms=TTL_MS)
    wire.wait_for_end("short", ns=ns)
    assert _keys(wire.ask("list", ns=ns)) == ["stays"]
    assert wire.ask("count", ns=ns)["count"] == 1


# --- what is INVALID, with the value in words ---------------------------------------------------

_KEY: Map = {"key": "k"}
_TAKE: Map = {"owner": A, "ttl_ms": TTL_MS, "key": "k"}
_LONG = "x" * 513

INVALID: list[tuple[str, Map, str, str, str]] = [
    ("take", {**_TAKE, "ttl_ms": 9}, "ttl_ms", "9", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": -9}, "ttl_ms", "-9", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": 9.0}, "ttl_ms", "a float", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": "9"}, "ttl_ms", '"9"', RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": b"9"}, "ttl_ms", '"9"', RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": True}, "ttl_ms", "true", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": None}, "ttl_ms", "nil", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": [1]}, "ttl_ms", "an array", RULE_TTL),
    ("take", {**_TAKE, "ttl_ms": {}}, "ttl_ms", "a map", RULE_TTL),
    ("take", {"owner": A, "key": "k"}, "ttl_ms", "0", RULE_TTL),
    ("renew_all", {"owner": A, "ttl_ms": 86400001}, "ttl_ms", "86400001", RULE_TTL),
    ("release", {"owner": A, **_KEY, "ttl_ms": 10}, "ttl_ms", "10", RULE_NOT_HERE),
    ("release_all", {"owner": A, "ttl_ms": 10}, "ttl_ms", "10", RULE_NOT_HERE),
    ("take", {**_TAKE, "ns": ""}, "namespace", "", RULE_NAMESPACE),
    ("take", {**_TAKE, "ns": "Ab"}, "namespace", "Ab", RULE_NAMESPACE),
    ("take", {**_TAKE, "ns": "ä"}, "namespace", "\\xc3\\xa4", RULE_NAMESPACE),
    ("take", {**_TAKE, "ns": 7}, "namespace", "7", RULE_NAMESPACE),
    ("list", {"ns": "a\\"}, "namespace", "a\\x5c", RULE_NAMESPACE),
    ("hello", {"ns": "default"}, "namespace", '"default"', RULE_NOT_HERE),
    ("take", {"ttl_ms": TTL_MS, "key": "k"}, "owner", "", RULE_OWNER),
    ("take", {**_TAKE, "owner": "a\n"}, "owner", "a\\x0a", RULE_OWNER),
    ("take", {**_TAKE, "owner": "x" * 256}, "owner", "x" * 92 + "...", RULE_OWNER),
    ("list", {"owner": ""}, "owner", "", RULE_OWNER),
    ("owner", {"owner": A, **_KEY}, "owner", f'"{A}"', RULE_NOT_HERE),
    ("purge", {"owner": A}, "owner", A, RULE_NOT_HERE),
    ("take", {"owner": A, "ttl_ms": TTL_MS}, "keys", "0", "must be exactly one key"),
    ("take", {"owner": A, "ttl_ms": TTL_MS, "keys": ["a", "b"]}, "keys", "2",
     "must be exactly one key"),
    ("claim", {"owner": A, "ttl_ms": TTL_MS}, "keys", "0", RULE_KEYS),
    ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": []}, "keys", "0", RULE_KEYS),
    ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": ["k"] * 10001}, "keys", "10001", RULE_KEYS),
    ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": "k"}, "keys", '"k"', RULE_KEYS),
    ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": [7]}, "key", "7", RULE_KEY),
    ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": [{}]}, "key", "", RULE_KEY),
    ("claim", {**_TAKE, "keys": ["k"]}, "keys", "both", "excludes key"),
    ("owner", {}, "keys", "0", RULE_KEYS),
    ("owner", {"keys": ["k"] * 10000}, "keys", "10000",
     "the largest reply must fit one message of 8 MiB"),
    ("owner", {"key": "\x00"}, "key", "\\x00", RULE_KEY),
    ("renew_all", {"owner": A, "ttl_ms": TTL_MS, **_KEY}, "keys", "1", RULE_NOT_HERE),
    ("list", _KEY, "key", '"k"', RULE_NOT_HERE),
    ("take", {**_TAKE, "key": _LONG}, "key", "x" * 92 + "...", RULE_KEY),
    ("take", {**_TAKE, "key": 1.5}, "key", "a float", RULE_KEY),
    ("take", {**_TAKE, "if_token": 7}, "if_token", "7", RULE_GUARD),
    ("claim", {**_TAKE, "if_token": 0}, "if_token", "0", RULE_GUARD),
    ("renew", {**_TAKE, "if_token": "7"}, "if_token", '"7"', RULE_U64),
    ("renew", {"owner": A, "ttl_ms": TTL_MS, "if_token": 7}, "if_token", "without key",
     "goes with key; each of keys names its own"),
    ("owner", {**_KEY, "if_token": 7}, "if_token", "7", RULE_NOT_HERE),
    ("renew", {**_TAKE, "meta": b"m"}, "meta", "m", RULE_META_WHERE),
    ("take", {**_TAKE, "meta": b"\xff" * 1025}, "meta", "\\xff" * 23 + "...",
     "must be 0..1024 bytes"),
    ("take", {**_TAKE, "meta": 7}, "meta", "7", "must be 0..1024 bytes"),
    ("take", {**_TAKE, "identity": b"i" * 33}, "identity", "i" * 33, "must be 0..32 bytes"),
    ("heartbeat", {**_TAKE, "identity": b"i"}, "identity", "i", RULE_META_WHERE),
    ("take", {**_TAKE, "destroy": True}, "destroy", "true", RULE_NOT_HERE),
    ("claim", {**_TAKE, "destroy": 1}, "destroy", "1", RULE_FLAG),
    ("renew", {**_TAKE, "adopt": True}, "adopt", "true", RULE_NOT_HERE),
    ("claim", {**_TAKE, "grace_ms": 5}, "grace_ms", "5",
     "goes with adopt only"),
    ("claim", {**_TAKE, "adopt": True, "grace_ms": 600001}, "grace_ms", "600001", RULE_GRACE),
    ("claim", {**_TAKE, "adopt": True, "grace_ms": 86400001}, "grace_ms", "86400001", RULE_GRACE),
    ("claim", {**_TAKE, "adopt": True, "grace_ms": -1}, "grace_ms", "-1", RULE_GRACE),
    ("claim", {**_TAKE, "reestablish": True}, "reestablish", "true", RULE_NOT_HERE),
    ("renew", {**_TAKE, "set_version": 3}, "set_version", "3", RULE_NOT_HERE),
    ("renew_all", {"owner": A, "ttl_ms": TTL_MS, "set_version": -3}, "set_version", "-3", RULE_U64),
    ("take", {**_TAKE, "stale": True}, "stale", "true", RULE_NOT_HERE),
    ("owner", {**_KEY, "stale": 1}, "stale", "1", RULE_FLAG),
    ("list", {"prefix": _LONG}, "prefix", '"' + "x" * 91 + "...", RULE_PREFIX),
    ("list", {"prefix": "a\t"}, "prefix", "a\\x09", RULE_KEY),
    ("owner", {**_KEY, "prefix": "a"}, "prefix", '"a"', RULE_NOT_HERE),
    ("list", {"after": 3}, "after", "3", RULE_PREFIX),
    ("count", {"after": "a"}, "after", '"a"', RULE_NOT_HERE),
    ("list", {"state": "gone"}, "state", '"gone"', RULE_STATE),
    ("list", {"limit": 0}, "limit", "0", RULE_LIMIT),
    ("list", {"limit": 1001}, "limit", "1001", RULE_LIMIT),
    ("count", {"limit": 1}, "limit", "1", RULE_NOT_HERE),
    ("take", {**_TAKE, "deadline_ns": 0}, "deadline_ns", "0", RULE_DEADLINE),
    ("take", {**_TAKE, "deadline_ns": "now"}, "deadline_ns", '"now"', RULE_DEADLINE),
    ("take", {**_TAKE, "deadline_ns": (1 << 64) - 1}, "deadline_ns", "18446744073709551615",
     RULE_DEADLINE),
    ("hello", {"version": -1}, "version", "-1", "must be a whole number in 0..4294967295"),
    ("cluster_init", {"voters": 2}, "voters", "2", "must be 1, 3 or 5"),
    ("cluster_init", {"token_floor": (1 << 62) + 1}, "token_floor", "4611686018427387905",
     "must be 0..2^62"),
    ("cluster_transfer", {"node_id": 7}, "node_id", "7",
     "must be a voter of this cluster, and not the one that leads"),
    ("status", {"node_id": 1}, "node_id", "1", RULE_NOT_HERE),
]


@pytest.mark.parametrize(
    ("method", "parameters", "field", "value", "rule"),
    [pytest.param(*row, id=f"{row[0]} {row[2]} {row[3][:20]}") for row in INVALID],
)
def test_invalid_names_field_value_and_rule(
    wire: Wire, method: str, parameters: Map, field: str, value: str, rule: str
) -> None:
    assert wire.refusal(method, **parameters) == {
        "code": "INVALID",
        "status": "INVALID",
        "message": "breaks a rule",
        "field": field,
        "value": value,
        "rule": rule,
    }


# --- messages -----------------------------------------------------------------------------------


def _pairs(*pairs: tuple[object, object]) -> bytes:
    """A map whose names may repeat."""
    packed = b"".join(msgpack.packb(part) for pair in pairs for part in pair)
    return bytes([0x80 | len(pairs)]) + packed


def _send(wire: Wire, method: str, packed_parameters: bytes) -> Map:
    """The error of a request whose map was packed by hand."""
    head = bytes([0x94]) + b"".join(msgpack.packb(part) for part in (0, 1, method))
    wire.socket.sendall(head + packed_parameters)
    error = wire.read()[2]
    assert isinstance(error, dict)
    return error


def test_a_name_that_stands_twice_is_invalid(wire: Wire) -> None:
    error = _send(wire, "count", _pairs(("stale", True), ("stale", True)))
    words = (error["code"], error["field"], error["value"], error["rule"])
    assert words == ("INVALID", "stale", "twice", "must be named once")


def test_an_unknown_name_that_stands_twice_is_invalid(wire: Wire) -> None:
    error = _send(wire, "count", _pairs(("future", 1), ("future", 2)))
    words = (error["code"], error["field"], error["value"], error["rule"])
    assert words == ("INVALID", "parameters", "future", "must be named once")


def test_names_and_texts_may_be_bytes(wire: Wire, ns: str) -> None:
    asked = {b"ns": ns.encode(), b"owner": A.encode(), b"key": b"k", b"ttl_ms": TTL_MS}
    error, result = wire.call(b"take", asked)
    assert error is None and result is not None
    assert result["outcomes"][0]["outcome"] == "GRANTED"


def test_meta_may_be_text(wire: Wire, ns: str) -> None:
    wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS, meta="m")
    lease = wire.lease("k", ns=ns)
    assert lease is not None and lease["meta"] == b"m"


def test_unknown_names_are_ignored(wire: Wire, ns: str) -> None:
    granted = wire.one("take", "k", ns=ns, owner=A, ttl_ms=TTL_MS, future={"x": [1]})
    assert granted["outcome"] == "GRANTED"


@pytest.mark.parametrize(
    ("method", "parameters", "field", "value", "rule"),
    [
        ("take", {**_TAKE, "!fence": 1}, "parameters", "!fence",
         "is required by the caller and unknown to protocol version 1"),
        ("claim", {"owner": A, "ttl_ms": TTL_MS, "keys": [{"key": "k", "!x": 1}]}, "parameters",
         "!x", "is required by the caller and unknown to protocol version 1"),
        ("steal", {}, "method", "steal", "is no method of protocol version 1"),
    ],
)
def test_what_must_be_known_and_is_not_is_incompatible(
    wire: Wire, method: str, parameters: Map, field: str, value: str, rule: str
) -> None:
    assert wire.refusal(method, **parameters) == {
        "code": "INCOMPATIBLE",
        "status": "INCOMPATIBLE",
        "message": "versions or clusters that cannot work together",
        "field": field,
        "value": value,
        "rule": rule,
    }


def test_parameters_that_are_no_map_are_invalid(wire: Wire) -> None:
    error, _ = wire.call("count", [])
    assert error is not None and (error["code"], error["field"]) == ("INVALID", "parameters")


def test_a_method_that_is_no_text_is_invalid(wire: Wire) -> None:
    error, _ = wire.call(7, {})
    assert error is not None and (error["code"], error["field"]) == ("INVALID", "method")


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x93\x02\xa4take\x80", id="a notification"),
        pytest.param(b"\x94\x01\x01\xc0\x80", id="a reply"),
        pytest.param(b"\x94\x00\xa1a\xa5hello\x80", id="an id of text"),
        pytest.param(b"\x94\x00\x00\xa5hello\x80", id="an id of 0"),
        pytest.param(b"\x07", id="a number"),
        pytest.param(b"\x94\x00\x01\xa5hello\x81\xa1x" + b"\x91" * 9 + b"\x01", id="too deep"),
        pytest.param(b"\x94\x00\x01\xa5hello\x81\xa1x\xd4\x05\x00", id="an extension"),
        pytest.param(b"\x94\x00\x01\xa5hello\x81\xa1x\xd6\xff\x00\x00\x00\x00", id="a time"),
        pytest.param(b"\x94\x00\x01\xc1", id="no MessagePack"),
    ],
)
def test_what_is_no_request_closes_the_connection(wire: Wire, message: bytes) -> None:
    wire.socket.sendall(message)
    with pytest.raises((NoAnswer, ConnectionError)):
        while True:
            kind, number, error, _ = wire.read()
            assert (kind, number, error["code"]) == (1, 0, "INVALID")


def test_a_message_larger_than_eight_mebibytes_closes_the_connection(wire: Wire) -> None:
    with pytest.raises((NoAnswer, ConnectionError)):
        wire.write([0, 1, "count", {"x": b"\x00" * (8 << 20)}])
        while True:
            kind, number, error, _ = wire.read()
            assert (kind, number, error["code"]) == (1, 0, "INVALID")


def test_requests_without_waiting_are_answered_by_their_numbers(wire: Wire, ns: str) -> None:
    for number in range(1, 301):
        asked = {"ns": ns, "owner": A, "key": f"{number}", "ttl_ms": TTL_MS}
        wire.write([0, number, "take", asked])
    answers = {number: result for _, number, _, result in (wire.read() for _ in range(300))}
    assert sorted(answers) == list(range(1, 301))
    assert all(one["outcomes"][0]["outcome"] == "GRANTED" for one in answers.values())


def test_a_message_may_come_byte_by_byte(wire: Wire, ns: str) -> None:
    for byte in msgpack.packb([0, 1, "count", {"ns": ns}]):
        wire.socket.sendall(bytes([byte]))
    assert wire.read()[3]["count"] == 0


def test_a_deadline_that_has_passed_is_not_done(wire: Wire, ns: str) -> None:
    past_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 1
    error = wire.refusal("take", ns=ns, owner=A, key="k", ttl_ms=TTL_MS, deadline_ns=past_ns)
    assert (error["code"], error["status"]) == ("UNAVAILABLE", "DEADLINE")
    assert wire.lease("k", ns=ns) is None


def test_later_answers_have_higher_positions(wire: Wire, ns: str) -> None:
    positions = []
    for _ in range(3):
        reply = wire.ask("take", ns=ns, owner=A, key="k", ttl_ms=TTL_MS)
        positions.append((reply["index"], reply["place"]))
        reply = wire.ask("owner", ns=ns, key="k")
        positions.append((reply["index"], reply["place"]))
    assert all(before < after for before, after in itertools.pairwise(positions))


def test_hello_names_versions_and_the_cluster(wire: Wire) -> None:
    fields = wire.ask("hello")["fields"]
    assert set(fields) == {"version", "protocol", "cluster_id", "generation", "node_id"}
    assert fields["protocol"] == 1 and len(fields["cluster_id"]) == 32


def test_status_says_that_the_node_is_ready(wire: Wire) -> None:
    fields = wire.ask("status")["fields"]
    assert (fields["live"], fields["ready"], fields["write"]) == (True, True, True)
    assert (fields["role"], fields["state"], fields["reason"]) == ("voter", "leader", "")


def test_members_are_one_leading_voter(wire: Wire) -> None:
    [member] = wire.ask("members")["members"]
    names = {"id", "address", "role", "state", "leader", "self", "lag_entries"}
    assert set(member) == names
    assert (member["role"], member["leader"], member["self"]) == ("voter", True, True)


def test_a_cluster_that_is_born_already_is_not_born_again(wire: Wire) -> None:
    before = wire.ask("hello")["fields"]
    assert wire.ask("cluster_init")["fields"] == before


def test_a_cluster_of_one_has_nobody_to_hand_leadership_to(wire: Wire) -> None:
    error = wire.refusal("cluster_transfer")
    assert (error["code"], error["status"]) == ("UNAVAILABLE", "NO_QUORUM")
