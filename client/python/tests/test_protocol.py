"""Requests, replies and rules, against the golden bytes and against the words of the node."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import msgpack
import pytest

from conftest import ROOT
from tenure import rules
from tenure.errors import ERRORS_BY_CODE, IncompatibleError, InvalidError, UnknownError
from tenure.protocol import Request, decode_result, encode_request, parse_reply
from tenure.reader import DEPTH_MAX, MESSAGE_LEN_MAX, REPLY_ITEMS_MAX, BrokenReply, Reader
from tenure.results import (
    Count,
    Departure,
    Fields,
    Holder,
    Item,
    Kind,
    Lease,
    Outcome,
    Page,
    Position,
    Reason,
    RenewAll,
    State,
)

LONG_TEXT = (
    "a text that is longer than thirty-one bytes and so has a header of its own, and more than "
    "two hundred and fifty-five bytes together with what follows here: 0123456789 0123456789 "
    "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"
)
ONE = (Item("sbx-1"),)
U64_MAX = 2**64 - 1


def golden(name: str) -> dict[str, bytes]:
    lines = {}
    with open(os.path.join(ROOT, "tests", "golden", name), encoding="ascii") as file:
        for line in file:
            sample, _, digits = line.partition(": ")
            lines[sample] = bytes.fromhex(digits)
    return lines


# Name: (number, deadline_ns, request), as tests/client/samples.c has them.
REQUESTS = {
    "hello": (1, None, Request("hello", version=1)),
    "take": (2, None, Request("take", owner="host:1", ttl_ms=30000, items=ONE)),
    "claim_everything": (
        300,
        5_000_000_000,
        Request(
            "claim",
            version=1,
            namespace="team-1",
            owner=LONG_TEXT,
            ttl_ms=86_400_000,
            destroy=True,
            grace_ms=600_000,
            items=(Item("\u00e4-key", U64_MAX, b"http://127.0.0.1:8080\0\xff", b""),),
        ),
    ),
    "claim_adopt_without_grace": (
        4, None, Request("claim", owner="o", ttl_ms=10, grace_ms=0, items=ONE)
    ),
    "renew_many": (
        70000,
        None,
        Request(
            "renew",
            owner="host:1",
            ttl_ms=100,
            reestablish=True,
            items=(
                Item("a"),
                Item("b", if_token=7),
                Item("a"),
                Item("c", meta=b"", identity=b"0123456789abcdef0123456789abcdef"),
            ),
        ),
    ),
    "heartbeat": (2**32 - 1, None, Request("heartbeat", owner="host:1", ttl_ms=2000, items=ONE)),
    "release": (7, None, Request("release", owner="host:1", items=(Item("b", if_token=7),))),
    "renew_all": (8, None, Request("renew_all", owner="host:1", ttl_ms=30000, set_version=0)),
    "release_all": (9, None, Request("release_all", owner="host:1")),
    "purge": (10, None, Request("purge", namespace="team-1")),
    "owner_many": (11, None, Request("owner", stale=True, items=ONE)),
    "list": (
        12,
        None,
        Request(
            "list",
            namespace="team-1",
            owner="host:1",
            stale=True,
            prefix="sbx-",
            after="sbx-0",
            state=State.DEL,
            limit=1000,
        ),
    ),
    "count": (13, None, Request("count", prefix="", state=State.OWN)),
    "status": (14, None, Request("status")),
    "members": (15, None, Request("members")),
    "metrics": (16, None, Request("metrics")),
    "cluster_init": (17, None, Request("cluster_init", token_floor=65536, voters=3)),
    "cluster_transfer": (18, None, Request("cluster_transfer", node_id=U64_MAX)),
}


@pytest.mark.parametrize("name", sorted(golden("protocol_requests.hex")))
def test_request_is_the_golden_bytes(name: str) -> None:
    number, deadline_ns, request = REQUESTS[name]
    assert encode_request(request, number, deadline_ns) == golden("protocol_requests.hex")[name]


AT = Position(5, 2, 1000)
SENT_NS = 10_000_000_000
DEADLINE_NS = SENT_NS + 29_700_000_000  # of 30 s
HOLDER = Holder("host:2", State.OWN, 9, 700)


def leased(kind: Kind, token: int, ms_left: int, **more: object) -> Outcome:
    names = {"token": token, "ms_left": ms_left, "deadline_ns": DEADLINE_NS, **more}
    return Outcome("k", kind, names.pop("position", AT), **names)  # type: ignore[arg-type]


EVERY_OUTCOME = (
    leased(Kind.GRANTED, 1, 30000),
    leased(Kind.GRANTED, 70000, 30000, held_before=True),
    leased(Kind.GRANTED, 5_000_000_000, 30000, holder=HOLDER),
    Outcome("k", Kind.HELD, AT, holder=HOLDER),
    Outcome("k", Kind.TEARDOWN, AT, holder=Holder("me", State.DEL, 3, 0)),
    Outcome("k", Kind.GRACE, AT, grace_ms_left=599999),
    leased(Kind.RENEWED, 1, 10),
    Outcome("k", Kind.LAPSED, AT),
    Outcome("k", Kind.LOST, AT, holder=HOLDER),
    leased(Kind.REESTABLISHED, 8, 30000),
    Outcome("k", Kind.RELEASED, AT),
    Outcome("k", Kind.NOT_OWNER, AT),
    Outcome("k", Kind.STALE, AT, holder=HOLDER),
    Outcome("k", Kind.MISMATCH, AT, holder=HOLDER),
    Outcome("k", Kind.UNAVAILABLE, AT, limit="leases"),
    Outcome("k", Kind.UNAVAILABLE, AT, limit="leases_per_namespace"),
    Outcome("k", Kind.UNKNOWN, AT),
    leased(Kind.RENEWED, 1, 1000, position=Position(4, 0, 999)),
)
LEASE_A = Lease(
    "default", "a", "host:1", State.OWN, 30000, 19000, 12, 0, None, None,
    Position(9, 2**32 - 1, 1000),
)
OWNER_AT = Position(U64_MAX, 2**32 - 1, 1000)
LEASE_B = Lease(
    "default", "b", "host:2", State.DEL, 86_400_000, 86_400_000, U64_MAX, 999,
    LONG_TEXT.encode(), b"\x00\xff", OWNER_AT,
)
ZERO = Position(0, 0, 0)

# Name: (number, the request it answers, what it says).
REPLIES = {
    "take": (1, Request("take", ttl_ms=30000, items=(Item("k"),)), EVERY_OUTCOME[:1]),
    "claim_every_outcome": (
        2, Request("claim", ttl_ms=30000, items=(Item("k"),) * 18), EVERY_OUTCOME
    ),
    "renew_all": (
        3,
        Request("renew_all", ttl_ms=30000),
        RenewAll(
            10000,
            77,
            tuple(
                Departure(key, number, reason)
                for key, number, reason in zip("abcdefgh", range(1, 9), Reason)
            ),
            False,
            DEADLINE_NS,
            AT,
        ),
    ),
    "renew_all_list_again": (
        4, Request("renew_all", ttl_ms=30000), RenewAll(0, 78, (), True, DEADLINE_NS, AT)
    ),
    "purge": (5, Request("purge", namespace="x"), Count(3, False, Position(5, 2, 0))),
    "owner": (
        6,
        Request("owner", items=(Item("a"), Item("x"), Item("b"))),
        (Lease(**{**vars(LEASE_A), "position": OWNER_AT}), None, LEASE_B),
    ),
    "list_stale": (7, Request("list"), Page((LEASE_A,), True, True, LEASE_A.position)),
    "count": (8, Request("count"), Count(256, False, ZERO)),
    "status": (
        9, Request("status"), Fields({"state": "leader", "ready": True, "term": 4}, ZERO)
    ),
    "members": (
        10,
        Request("members"),
        (
            {"state": "leader", "ready": True, "term": 4},
            {"state": "", "ready": False, "term": U64_MAX},
        ),
    ),
    "members_none": (11, Request("members"), ()),
    "cluster_transfer": (12, Request("cluster_transfer"), Fields({}, ZERO)),
}

# Name: (number, code, status, what the text must have, field, value, rule).
ERRORS = {
    "error_invalid": (13, "INVALID", "INVALID", "got: 9", "ttl_ms", "9", rules.RULE_TTL_MS),
    "error_no_leader": (14, "UNAVAILABLE", "NO_LEADER", "no leader", None, None, None),
    "error_unknown": (15, "UNKNOWN", "LEADERSHIP_LOST", "leadership", None, None, None),
    "error_limit": (16, "UNAVAILABLE", "LIMIT", "leases 1000000", None, None, None),
    "error_of_connection": (0, "UNAVAILABLE", "BUSY", "busy", None, None, None),
}


@pytest.mark.parametrize("name", sorted(golden("protocol_replies.hex")))
def test_golden_reply_is_understood(name: str) -> None:
    message = golden("protocol_replies.hex")[name]
    reader = Reader()
    for at in range(len(message)):
        assert reader.next() is None
        reader.feed(message[at : at + 1])
    assert reader.next() == message and reader.is_empty
    reply = parse_reply(message)
    if name in ERRORS:
        number, code, status, text, field, value, rule = ERRORS[name]
        assert isinstance(reply.error, ERRORS_BY_CODE[code]) and reply.number == number
        assert reply.error.status == status and text in str(reply.error)
        assert (reply.error.field, reply.error.value, reply.error.rule) == (field, value, rule)
        return
    number, request, expected = REPLIES[name]
    assert reply.number == number and reply.error is None
    assert decode_result(request, reply.result, SENT_NS) == expected


PURE = """
import sys, msgpack, pytest
assert msgpack.Packer.__module__ == "msgpack.fallback"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not pure_python", sys.argv[1]]))
"""


def test_pure_python_msgpack_does_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", PURE, __file__],
        env={**os.environ, "MSGPACK_PUREPYTHON": "1"}, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- what is no reply ---


def packed(*parts: object) -> bytes:
    return bytes(msgpack.packb(list(parts), use_bin_type=True))


GOOD = {"index": 1, "place": 0, "clock_ms": 0}


@pytest.mark.parametrize(
    "data",
    [
        b"\x00", b"\x93", b"\x95", b"\xc1", b"GET / HTTP/1.1\r\n", b"\x84\x01\x01",
        b"\x94\x01\x01\xc1", b"\x94\x01\x01\xd4\x01\x00", b"\x94\x01\x01\xc7\x01\x01\x00",
        b"\x94\x01\x01\xdd\xff\xff\xff\xff", b"\x94\x01\x01\xdf\x7f\xff\xff\xff",
        b"\x94\x01\x01\xdb\xff\xff\xff\xff", b"\x94\x01\x01\xc6\x00\x80\x00\x00",
        b"\x94\x01\x01" + b"\x91" * DEPTH_MAX,
    ],
)
def test_bytes_that_begin_no_message_break_the_connection(data: bytes) -> None:
    reader = Reader()
    reader.feed(data)
    if data in (b"\x93", b"\x95"):
        with pytest.raises(BrokenReply):
            reader.next()
        return
    with pytest.raises(BrokenReply):
        message = reader.next()
        assert message is not None, "the reader waits for more"
        parse_reply(message)


def test_depth_of_eight_is_read_and_nine_is_not() -> None:
    reader = Reader()
    reader.feed(b"\x94\x01\x01\xc0" + b"\x91" * (DEPTH_MAX - 1) + b"\x01")
    assert reader.next() is not None


def test_a_message_of_the_longest_length_is_read_and_one_byte_more_is_not() -> None:
    body = MESSAGE_LEN_MAX - 9
    message = b"\x94\x01\x01\xc0\xc6" + body.to_bytes(4, "big") + bytes(body)
    assert len(message) == MESSAGE_LEN_MAX
    reader = Reader()
    for at in range(0, len(message), 65536):
        assert reader.next() is None
        reader.feed(message[at : at + 65536])
    assert reader.next() == message
    reader.feed(b"\x94\x01\x01\xc0\xc6" + (body + 1).to_bytes(4, "big"))
    with pytest.raises(BrokenReply):
        reader.next()


def test_a_count_that_no_reply_has_is_refused_by_its_header() -> None:
    reader = Reader()
    reader.feed(b"\x94\x01\x01\xc0\xdd" + (REPLY_ITEMS_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(BrokenReply):
        reader.next()


def test_two_messages_in_one_piece_come_one_after_the_other() -> None:
    first, second = packed(1, 1, None, GOOD), packed(1, 2, None, GOOD)
    reader = Reader()
    reader.feed(first + second + first[:3])
    assert [reader.next(), reader.next(), reader.next()] == [first, second, None]
    assert not reader.is_empty


@pytest.mark.parametrize(
    "parts",
    [
        (0, 1, "take", {}), (2, 1, None, {}), (True, 1, None, {}), (1.0, 1, None, {}),
        (1, -1, None, {}), (1, 2**32, None, {}), (1, "1", None, {}), (1, None, None, {}),
        (1, 1, 5, None), (1, 1, {}, None), (1, 1, {"code": 3}, None), (1, 1, [], None),
        (1, 1, {"code": b"\xff"}, None), (1, 1, {7: "x"}, None), (1, 1, None),
    ],
)
def test_a_message_that_is_no_reply_is_refused(parts: tuple[object, ...]) -> None:
    with pytest.raises(BrokenReply):
        parse_reply(packed(*parts))


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(BrokenReply):
        parse_reply(b"\x94\x01\x01\xc0\x82\xa1a\x01\xa1a\x01")


GRANTED = {"outcome": "GRANTED", "token": 1, "ms_left": 1}


@pytest.mark.parametrize(
    "outcome",
    [
        5, {}, {"outcome": "PERHAPS"}, {"outcome": "GRANTED"}, {**GRANTED, "token": True},
        {**GRANTED, "token": 1.0}, {**GRANTED, "token": "1"}, {**GRANTED, "token": -1},
        {**GRANTED, "held_before": 1}, {**GRANTED, "place": 2**32}, {**GRANTED, "holder": 3},
        {**GRANTED, "holder": {"owner": "x", "state": "lost", "token": 1, "ms_left": 1}},
        {"outcome": "GRACE"}, {"outcome": b"\xff"},
    ],
)
def test_an_outcome_that_lacks_something_breaks_the_connection(outcome: object) -> None:
    reply = parse_reply(packed(1, 1, None, {**GOOD, "outcomes": [outcome]}))
    with pytest.raises(BrokenReply):
        decode_result(Request("take", ttl_ms=10, items=ONE), reply.result, 0)


@pytest.mark.parametrize("method", ["take", "renew_all", "count", "owner", "list", "members",
                                    "status"])
@pytest.mark.parametrize("result", [None, [], {}, GOOD, {"index": 1.0}])
def test_a_result_without_its_names_breaks_the_connection(method: str, result: object) -> None:
    with pytest.raises(BrokenReply):
        reply = parse_reply(packed(1, 1, None, result))
        decode_result(Request(method, ttl_ms=10, items=ONE), reply.result, 0)


def test_outcomes_for_other_keys_than_were_asked_break_the_connection() -> None:
    reply = parse_reply(packed(1, 1, None, {**GOOD, "outcomes": [GRANTED, GRANTED]}))
    with pytest.raises(BrokenReply):
        decode_result(Request("take", ttl_ms=10, items=ONE), reply.result, 0)


def test_names_of_a_newer_node_are_ignored() -> None:
    names = {**GOOD, "!shiny": [1, {"x": None}], "outcomes": [{**GRANTED, "mood": 3.5}]}
    reply = parse_reply(packed(1, 1, None, names))
    (outcome,) = decode_result(Request("take", ttl_ms=10, items=ONE), reply.result, 0)
    assert outcome.kind is Kind.GRANTED


def test_texts_are_taken_as_bytes_and_bytes_as_text() -> None:
    lease = {"ns": b"default", "key": b"a", "owner": b"o", "state": b"own", "ttl_ms": 1,
             "ms_left": 1, "token": 1, "since_ms": 1, "meta": "text", "identity": b""}
    reply = parse_reply(packed(1, 1, None, {**GOOD, "leases": [lease]}))
    (found,) = decode_result(Request("owner", items=ONE), reply.result, 0)
    assert (found.key, found.meta, found.identity) == ("a", b"text", b"")


def test_an_error_code_of_a_newer_node_is_unknown() -> None:
    error = parse_reply(packed(1, 1, {"code": "LUNCH", "message": "back soon"}, None)).error
    assert isinstance(error, UnknownError) and "LUNCH: back soon" in str(error)


def test_incompatible_names_both_versions() -> None:
    names = {"code": "INCOMPATIBLE", "status": "INCOMPATIBLE", "message": "m",
             "field": "method", "value": "take", "rule": "is no method of protocol version 7"}
    error = parse_reply(packed(1, 1, names, None)).error
    assert isinstance(error, IncompatibleError)
    assert "version 7" in str(error) and "this client speaks protocol version 1" in str(error)


# --- rules ---


def words_of_the_node() -> dict[str, str]:
    """Every rule that stands in C, by its name."""
    words = {}
    for name in ("fsm/types.h", "client/protocol.h", "client/protocol_request.c",
                 "client/client.c"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            found = re.findall(r'#define (?:PROTO_)?(RULE_\w+)\s+"([^"]+)"', file.read())
        words.update(found)
    return words


def test_rules_have_the_words_of_the_node() -> None:
    ours = {name: text for name, text in vars(rules).items() if name.startswith("RULE_")}
    del ours["RULE_IDLE_MAX"]  # of this client alone
    node = words_of_the_node()
    assert ours == {name: node[name] for name in ours}


def number_of(text: str) -> object:
    kind, _, rest = text.partition(":")
    if kind == "float":
        return float(rest)
    if kind == "text":
        return rest
    return {"true": True, "nil": None, "-": None}[text] if text in ("true", "nil", "-") \
        else int(text)


def text_of(text: str) -> str:
    if text.startswith("text*"):
        return "x" * int(text[5:])
    return bytes.fromhex(text[4:]).decode("utf-8", "surrogatepass")


def invalid_rows() -> list[tuple[str, ...]]:
    """tests/contract/invalid.txt, without what Python cannot say (bytes that are no UTF-8)."""
    rows = []
    with open(os.path.join(ROOT, "tests", "contract", "invalid.txt"), encoding="utf-8") as file:
        for line in file:
            words = tuple(line.split(None, 5))
            if len(words) == 6 and not line.startswith("#") and \
                    words[2] not in ("hex:ff", "hex:c0af", "hex:610062x"):
                rows.append((*words[:5], words[5].strip()))
    return rows


@pytest.mark.parametrize("row", invalid_rows(), ids=lambda row: "-".join(row[:3]))
def test_what_the_contract_calls_invalid_is_invalid_here(row: tuple[str, ...]) -> None:
    operation, parameter, text, field, _, rule = row
    method, *flags = operation.split("-")
    names: dict[str, object] = {"namespace": "default", "owner": "o"}
    if method not in ("release",):
        names["ttl_ms"] = 1000
    item: dict[str, object] = {"key": "k"}
    if "adopt" in flags:
        names["grace_ms"] = 0
    for flag in ("destroy", "reestablish"):
        if flag in flags:
            names[flag] = True
    if parameter in ("ttl_ms", "grace_ms"):
        names[parameter] = number_of(text)
    elif parameter == "if_token":
        item[parameter] = number_of(text)
    elif parameter in ("meta", "identity"):
        item[parameter] = text_of(text).encode()
    elif parameter == "key":
        item[parameter] = text_of(text)
    else:
        names[{"ns": "namespace"}.get(parameter, parameter)] = text_of(text)
    items = () if method == "renew_all" else (Item(**item),)  # type: ignore[arg-type]
    request = Request(method, items=items, **names)  # type: ignore[arg-type]
    if rule == "goes with adopt only" or (rule == rules.RULE_GRACE_MS and text == "600001"):
        request.check()  # not to be said here, or known to the node alone
        return
    with pytest.raises(InvalidError) as caught:
        request.check()
    assert (caught.value.field, caught.value.rule) == (field, rule)


@pytest.mark.parametrize(
    "value, shown",
    [
        (True, "true"), (False, "false"), (None, "nil"), (3.0, "a float"), (math.nan, "a float"),
        (math.inf, "a float"), (-0.0, "a float"), (1e300, "a float"), ("30", '"30"'),
        (b"30", '"30"'), (-1, "-1"), (9, "9"), (2**63, str(2**63)), (2**64, str(2**64)),
        ([1], "an array"), ({}, "a map"), (object(), "something else"),
        pytest.param(10**10000, "a number of 33220 bits", id="huge"),
        ("x" * 200, '"' + "x" * 91 + "..."),
        ("\u00e4\n\\", '"\\xc3\\xa4\\x0a\\x5c"'),
    ],
)
def test_ttl_that_is_no_number_in_range_is_named(value: object, shown: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Request("take", ttl_ms=value, items=ONE).check()  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == ("ttl_ms", shown)
    assert caught.value.rule == rules.RULE_TTL_MS


@pytest.mark.parametrize("ttl_ms", [10, 86_400_000])
def test_ttl_at_its_bounds_is_fine(ttl_ms: int) -> None:
    Request("take", ttl_ms=ttl_ms, items=ONE).check()


@pytest.mark.parametrize("count, fine", [(0, False), (1, True), (10_000, True), (10_001, False)])
def test_number_of_keys(count: int, fine: bool) -> None:
    request = Request("claim", ttl_ms=10, items=ONE * count)
    if fine:
        request.check()
        return
    with pytest.raises(InvalidError) as caught:
        request.check()
    assert (caught.value.field, caught.value.value) == ("keys", str(count))


@pytest.mark.parametrize("field, value", [("destroy", 1), ("stale", None), ("reestablish", "x")])
def test_a_flag_is_true_or_false(field: str, value: object) -> None:
    with pytest.raises(InvalidError) as caught:
        Request("status", **{field: value}).check()  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.rule) == (field, rules.RULE_BOOL)


@pytest.mark.parametrize(
    "field, value, rule",
    [
        ("limit", 0, rules.RULE_LIMIT), ("limit", 1001, rules.RULE_LIMIT),
        ("limit", True, rules.RULE_LIMIT), ("state", "lost", rules.RULE_STATE),
        ("prefix", "x" * 513, rules.RULE_PREFIX), ("after", "\ud800", rules.RULE_PREFIX),
        ("prefix", b"x", rules.RULE_PREFIX), ("node_id", 2**64, rules.RULE_U64),
        ("token_floor", -1, rules.RULE_U64), ("voters", 3.0, rules.RULE_U64),
        ("set_version", "1", rules.RULE_U64), ("owner", 5, rules.RULE_OWNER),
        ("namespace", "a\n", rules.RULE_NAMESPACE), ("namespace", "\u0661", rules.RULE_NAMESPACE),
    ],
)
def test_filters_and_numbers_have_their_rules(field: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Request("list", **{field: value}).check()  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.rule) == (field, rule)


def test_a_request_longer_than_a_message_is_refused() -> None:
    items = tuple(Item(f"{number:05}".ljust(512, "k"), meta=bytes(1024))
                  for number in range(10_000))
    request = Request("claim", ttl_ms=10, items=items)
    request.check()
    with pytest.raises(InvalidError) as caught:
        encode_request(request, 1)
    assert caught.value.status == "TOO_LARGE"
