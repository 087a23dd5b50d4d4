"""Requests as a node in memory reads them: bytes in, a ``Request`` or the words of an error out.

Pure. Field, value and rule of an INVALID are those of a real node, in the order in which a real
node looks: first each parameter as it stands in the map, then what the method makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore

from tenure import rules
from tenure.errors import IncompatibleError, InvalidError
from tenure.results import State
from tenure.testing.table import KeyItem

MESSAGE_LEN_MAX = 8 * 1024 * 1024
DEPTH_MAX = 8
ELEMENTS_MAX = 16 * rules.KEYS_MAX  # of one container; room for what a newer client says of a key
NAMES_MAX = 64
TOKEN_FLOOR_MAX = 1 << 62

RULE_ONE_KEY = "must be exactly one key"
RULE_NOT_HERE = "is not part of this operation"
RULE_ONLY_ADOPT = "goes with adopt only"
RULE_DEADLINE = "must be an instant of CLOCK_BOOTTIME in ns, at most 60000 ms ahead"
RULE_VERSION = "must be a whole number in 0..4294967295"
RULE_ONCE = "must be named once"
RULE_UNKNOWN_NAME = "is required by the caller and unknown to protocol version 1"
RULE_UNKNOWN_METHOD = "is no method of protocol version 1"
RULE_METHOD_TEXT = "must be the name of a method"
RULE_PARAMETERS = "must be a map of at most 64 names"
RULE_NAME = "must have names of text"
RULE_KEY_OR_KEYS = "excludes key"
RULE_WITH_KEY = "goes with key; each of keys names its own"
RULE_REPLY_LEN = "the largest reply must fit one message of 8 MiB"
RULE_VOTERS = "must be 1, 3 or 5"
RULE_NODE_ID = "must be a voter of this cluster, and not the one that leads"
RULE_TOKEN_FLOOR = "must be 0..2^62"

_WRITES = frozenset(
    ("take", "claim", "renew", "heartbeat", "release", "renew_all", "release_all", "purge")
)
_LISTS = frozenset(("list", "count"))
_READS = _LISTS | {"owner"}
OTHER_METHODS = frozenset(
    ("hello", "status", "members", "metrics", "cluster_init", "cluster_transfer")
)
METHODS = _WRITES | _READS | OTHER_METHODS
ADMINISTRATOR_METHODS = frozenset(("purge", "cluster_init", "cluster_transfer"))
KEY_METHODS = frozenset(("take", "claim", "renew", "heartbeat", "release"))

_NAMESPACE = re.compile(rb"[a-z0-9._:-]{1,64}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_REPLY_BASE_LEN = 512
_REPLY_LEASE_LEN = 192 + 64 + 255 + 1024 + 32


class Malformed(Exception):
    """No message of this protocol: the connection is to be closed."""


class Pairs(tuple[tuple[Any, Any], ...]):
    """A MessagePack map as it came: in order, with names that stand twice."""


@dataclass
class Request:
    """One request whose every rule is kept. Texts are bytes."""

    id: int
    method: str
    namespace: bytes = b"default"
    owner: bytes | None = None
    items: list[KeyItem] = field(default_factory=list)
    ttl_ms: int = 0
    destroy: bool = False
    adopt: bool = False
    grace_ms: int = 0
    reestablish: bool = False
    set_version: int | None = None
    stale: bool = False
    prefix: bytes = b""
    after: bytes | None = None
    state: State | None = None
    limit: int = rules.LIST_PAGE_MAX
    deadline_ns: int | None = None
    token_floor: int | None = None
    voters: int = 0
    node_id: int = 0


@dataclass(frozen=True)
class _Kind:
    """What a value must be: ``read`` gives it as it is kept, or raises ValueError."""

    rule: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class _Parameter:
    """Where a name may stand, what it may be, how errors and ``Request`` call it."""

    kind: _Kind
    methods: frozenset[str]
    field: str


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _read_whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return read


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _read_state(value: Any) -> State:
    return State(_read_bytes(value).decode("ascii", "replace"))


def _read_short(value: Any) -> bytes:
    if len(_read_bytes(value)) > 512:
        raise ValueError
    return _read_bytes(value)


_u64 = _read_whole(0, rules.U64_MAX)
_FLAG = _Kind(rules.RULE_BOOL, _read_flag)
_U64 = _Kind(rules.RULE_U64, _u64)

_REQUEST_PARAMETERS: dict[bytes, _Parameter] = {
    b"deadline_ns": _Parameter(_Kind(RULE_DEADLINE, _u64), METHODS, "deadline_ns"),
    b"version": _Parameter(_Kind(RULE_VERSION, _read_whole(0, rules.U32_MAX)), METHODS, "version"),
    b"ns": _Parameter(_Kind(rules.RULE_NAMESPACE, _read_bytes), _WRITES | _READS, "namespace"),
    b"owner": _Parameter(_Kind(rules.RULE_OWNER, _read_bytes), _WRITES | _LISTS, "owner"),
    b"ttl_ms": _Parameter(_Kind(rules.RULE_TTL_MS, _u64), _WRITES, "ttl_ms"),
    b"destroy": _Parameter(_FLAG, _WRITES, "destroy"),
    b"adopt": _Parameter(_FLAG, _WRITES, "adopt"),
    b"grace_ms": _Parameter(_Kind(rules.RULE_GRACE_MS, _u64), _WRITES, "grace_ms"),
    b"reestablish": _Parameter(_FLAG, _WRITES, "reestablish"),
    b"set_version": _Parameter(_U64, _WRITES, "set_version"),
    b"stale": _Parameter(_FLAG, _READS, "stale"),
    b"prefix": _Parameter(_Kind(rules.RULE_PREFIX, _read_short), _LISTS, "prefix"),
    b"after": _Parameter(_Kind(rules.RULE_PREFIX, _read_short), frozenset(("list",)), "after"),
    b"state": _Parameter(_Kind(rules.RULE_STATE, _read_state), _LISTS, "state"),
    b"limit": _Parameter(
        _Kind(rules.RULE_LIMIT, _read_whole(1, rules.LIST_PAGE_MAX)), frozenset(("list",)), "limit"
    ),
    b"token_floor": _Parameter(_U64, frozenset(("cluster_init",)), "token_floor"),
    b"voters": _Parameter(_U64, frozenset(("cluster_init",)), "voters"),
    b"node_id": _Parameter(_U64, frozenset(("cluster_transfer",)), "node_id"),
}
_KEYS = _Parameter(_Kind(rules.RULE_KEYS, _read_bytes), _WRITES | {"owner"}, "keys")
_ITEM_PARAMETERS: dict[bytes, _Parameter] = {
    b"key": _Parameter(_Kind(rules.RULE_KEY, _read_bytes), _WRITES | {"owner"}, "key"),
    b"if_token": _Parameter(_U64, _WRITES, "if_token"),
    b"meta": _Parameter(_Kind(rules.RULE_META, _read_bytes), _WRITES, "meta"),
    b"identity": _Parameter(_Kind(rules.RULE_IDENTITY, _read_bytes), _WRITES, "identity"),
}


def unpacker() -> msgpack.Unpacker:
    """Reads a stream of messages into lists, bytes, numbers and ``Pairs``."""
    return msgpack.Unpacker(
        raw=True,
        strict_map_key=False,
        object_pairs_hook=Pairs,
        ext_hook=_refuse_extension,
        timestamp=0,
        max_buffer_size=2 * MESSAGE_LEN_MAX,
        max_array_len=ELEMENTS_MAX,
        max_map_len=ELEMENTS_MAX,
    )


def read_id(message: Any) -> int:
    """Of a whole message; raises Malformed where no answer can be addressed."""
    if (
        not isinstance(message, list)
        or len(message) != 4
        or type(message[0]) is not int
        or message[0] != 0
        or type(message[1]) is not int
        or not 1 <= message[1] <= rules.U32_MAX
        or _depth(message) > DEPTH_MAX
    ):
        raise Malformed
    return message[1]


def read_request(message: Any, now_ns: int) -> Request:
    """Of a whole message with an id; raises InvalidError and IncompatibleError.

    ``now_ns`` is CLOCK_BOOTTIME and judges the deadline. What the method makes of the values is
    left to ``judge``.
    """
    request = Request(message[1], _read_method(message[2]))
    seen = _read_parameters(request, message[3])
    if b"deadline_ns" in seen:
        last_ns = now_ns + rules.DEADLINE_MS_MAX * 1_000_000
        if request.deadline_ns == 0 or (request.deadline_ns or 0) > last_ns:
            raise invalid("deadline_ns", str(request.deadline_ns), RULE_DEADLINE)
    return request


def invalid(field_name: str, value: str | bytes, rule: str) -> InvalidError:
    """The error that names what broke which rule; the value is made printable and cut."""
    data = value.encode() if isinstance(value, str) else value
    return _invalid_as_said(field_name, rules.escape(data), rule)


def _invalid_as_said(field_name: str, value: str, rule: str) -> InvalidError:
    return InvalidError("breaks a rule", field=field_name, value=value, rule=rule)


def invalid_message() -> InvalidError:
    """What is no message, or too large for one."""
    return InvalidError(
        "malformed bytes",
        status="MALFORMED",
        detail="no message of this protocol, or too large",
    )


# --- the map ------------------------------------------------------------------------------------


def _read_method(value: Any) -> str:
    if not isinstance(value, bytes):
        raise _unfit("method", value, RULE_METHOD_TEXT)
    name = value.decode("ascii", "replace")
    if name not in METHODS:
        raise _incompatible("method", value, RULE_UNKNOWN_METHOD)
    return name


def _read_parameters(request: Request, given: Any) -> set[bytes]:
    """Fills the request in; which names there were."""
    if not isinstance(given, Pairs) or len(given) > NAMES_MAX:
        raise invalid("parameters", "something else", RULE_PARAMETERS)
    seen: set[bytes] = set()
    single: dict[str, Any] = {}
    for name, value in given:
        if not isinstance(name, bytes):
            raise invalid("parameters", "another name", RULE_NAME)
        parameter = _parameter(name)
        _once(name, parameter, seen)
        if parameter is None:
            continue
        _here(parameter, request.method, value)
        if parameter is _KEYS:
            request.items = _read_keys(request.method, value)
        elif name in _ITEM_PARAMETERS:
            single[parameter.field] = _read_value(parameter, value)
        elif name != b"version":
            setattr(request, parameter.field, _read_value(parameter, value))
        else:
            _read_value(parameter, value)
    _join(request, single, b"keys" in seen)
    return seen


def _parameter(name: bytes) -> _Parameter | None:
    if name == b"keys":
        return _KEYS
    return _REQUEST_PARAMETERS.get(name) or _ITEM_PARAMETERS.get(name)


def _once(name: bytes, parameter: _Parameter | None, seen: set[bytes]) -> None:
    """Notes the name; refuses one that stands twice, or that must be known and is not."""
    if parameter is None and name.startswith(b"!"):
        raise _incompatible("parameters", name, RULE_UNKNOWN_NAME)
    if name in seen:
        if parameter is None:
            raise invalid("parameters", name, RULE_ONCE)
        raise invalid(parameter.field, "twice", RULE_ONCE)
    seen.add(name)


def _here(parameter: _Parameter, method: str, value: Any) -> None:
    if method not in parameter.methods:
        raise _unfit(parameter.field, value, RULE_NOT_HERE)


def _read_value(parameter: _Parameter, value: Any) -> Any:
    try:
        return parameter.kind.read(value)
    except ValueError:
        raise _unfit(parameter.field, value, parameter.kind.rule) from None


def _read_keys(method: str, given: Any) -> list[KeyItem]:
    if not isinstance(given, list):
        raise _unfit("keys", given, rules.RULE_KEYS)
    if len(given) > rules.KEYS_MAX:
        raise invalid("keys", str(len(given)), rules.RULE_KEYS)
    return [_read_item(method, one) for one in given]


def _read_item(method: str, given: Any) -> KeyItem:
    """One of many keys: text, or a map that says more about it."""
    if isinstance(given, bytes):
        return KeyItem(given)
    if not isinstance(given, Pairs):
        raise _unfit("key", given, rules.RULE_KEY)
    if len(given) > NAMES_MAX:
        raise invalid("keys", "a larger map", RULE_PARAMETERS)
    seen: set[bytes] = set()
    values: dict[str, Any] = {"key": b""}
    for name, value in given:
        if not isinstance(name, bytes):
            raise invalid("keys", "another name", RULE_NAME)
        parameter = _ITEM_PARAMETERS.get(name)
        _once(name, parameter, seen)
        if parameter is not None:
            _here(parameter, method, value)
            values[parameter.field] = _read_value(parameter, value)
    return KeyItem(**values)


def _join(request: Request, single: dict[str, Any], has_keys: bool) -> None:
    """``key`` and what stands beside it becomes the only one of the keys."""
    if "key" in single:
        if has_keys:
            raise invalid("keys", "both", RULE_KEY_OR_KEYS)
        request.items = [KeyItem(**single)]
        return
    for name in ("if_token", "meta", "identity"):
        if name in single:
            raise invalid(name, "without key", RULE_WITH_KEY)


# --- what the method makes of it ----------------------------------------------------------------


def judge(request: Request, retention_ms: int) -> None:
    """Raises InvalidError for what breaks a rule; ``retention_ms`` bounds a grace."""
    if request.method in _WRITES:
        _judge_write(request)
        if request.grace_ms > retention_ms:  # last of all, as it belongs to the table
            raise invalid("grace_ms", str(request.grace_ms), rules.RULE_GRACE_MS)
    elif request.method in _READS:
        _judge_read(request)
    elif request.method == "cluster_init":
        _judge_init(request)


def _judge_write(request: Request) -> None:
    method = request.method
    _judge_namespace(request.namespace)
    if method != "purge":
        _judge_text("owner", request.owner or b"", 255, rules.RULE_OWNER)
    elif request.owner is not None:
        raise invalid("owner", request.owner, RULE_NOT_HERE)
    if method not in ("release", "release_all", "purge"):
        if not 10 <= request.ttl_ms <= 86_400_000:
            raise invalid("ttl_ms", str(request.ttl_ms), rules.RULE_TTL_MS)
    elif request.ttl_ms != 0:
        raise invalid("ttl_ms", str(request.ttl_ms), RULE_NOT_HERE)
    _judge_flags(request)
    if method in KEY_METHODS:
        _judge_items(request)
    elif request.items:
        raise invalid("keys", str(len(request.items)), RULE_NOT_HERE)


def _judge_flags(request: Request) -> None:
    for name in ("destroy", "adopt"):
        if getattr(request, name) and request.method != "claim":
            raise invalid(name, "true", RULE_NOT_HERE)
    if not request.adopt and request.grace_ms != 0:
        raise invalid("grace_ms", str(request.grace_ms), RULE_ONLY_ADOPT)
    if request.grace_ms > rules.GRACE_MS_MAX:
        raise invalid("grace_ms", str(request.grace_ms), rules.RULE_GRACE_MS)
    if request.reestablish and request.method != "renew":
        raise invalid("reestablish", "true", RULE_NOT_HERE)
    if request.set_version is not None and request.method != "renew_all":
        raise invalid("set_version", str(request.set_version), RULE_NOT_HERE)


def _judge_items(request: Request) -> None:
    method, count = request.method, len(request.items)
    if method in ("take", "heartbeat") and count != 1:
        raise invalid("keys", str(count), RULE_ONE_KEY)
    if not 1 <= count <= rules.KEYS_MAX:
        raise invalid("keys", str(count), rules.RULE_KEYS)
    guard = method in ("renew", "heartbeat", "release") or request.destroy
    attachments = method in ("take", "claim") or request.reestablish
    for item in request.items:
        _judge_text("key", item.key, 512, rules.RULE_KEY)
        if item.if_token is not None and not guard:
            raise invalid("if_token", str(item.if_token), rules.RULE_IF_TOKEN)
        _judge_bytes("meta", item.meta, 1024, rules.RULE_META if attachments else None)
        _judge_bytes("identity", item.identity, 32, rules.RULE_IDENTITY if attachments else None)


def _judge_bytes(name: str, value: bytes | None, len_max: int, rule: str | None) -> None:
    if value is not None and rule is None:
        raise invalid(name, value, rules.RULE_META_WHERE)
    if value is not None and rule is not None and len(value) > len_max:
        raise invalid(name, value, rule)


def _judge_read(request: Request) -> None:
    _judge_namespace(request.namespace)
    if request.owner is not None:
        _judge_text("owner", request.owner, 255, rules.RULE_OWNER)
    if request.method == "owner" and not 1 <= len(request.items) <= rules.KEYS_MAX:
        raise invalid("keys", str(len(request.items)), rules.RULE_KEYS)
    reply_len = _REPLY_BASE_LEN
    for item in request.items:
        _judge_text("key", item.key, 512, rules.RULE_KEY)
        reply_len += _REPLY_LEASE_LEN + len(item.key)
    if request.prefix:
        _judge_text("prefix", request.prefix, 512, rules.RULE_KEY)
    if reply_len > MESSAGE_LEN_MAX:
        raise invalid("keys", str(len(request.items)), RULE_REPLY_LEN)


def _judge_init(request: Request) -> None:
    if request.voters not in (0, 1, 3, 5):
        raise invalid("voters", str(request.voters), RULE_VOTERS)
    if request.token_floor is not None and request.token_floor > TOKEN_FLOOR_MAX:
        raise invalid("token_floor", str(request.token_floor), RULE_TOKEN_FLOOR)


def _judge_namespace(namespace: bytes) -> None:
    if _NAMESPACE.fullmatch(namespace) is None:
        raise invalid("namespace", namespace, rules.RULE_NAMESPACE)


def _judge_text(name: str, value: bytes, len_max: int, rule: str) -> None:
    try:
        fits = 1 <= len(value) <= len_max and _CONTROL.search(value.decode()) is None
    except UnicodeDecodeError:
        fits = False
    if not fits:
        raise invalid(name, value, rule)


# --- values in words ----------------------------------------------------------------------------


def _unfit(field_name: str, value: Any, rule: str) -> InvalidError:
    """A value of the wrong type or size; a text stands in quotes, so that "3" is told from 3."""
    text = "a map" if isinstance(value, Pairs) else rules.describe(value)
    return _invalid_as_said(field_name, text, rule)


def _incompatible(field_name: str, value: bytes, rule: str) -> IncompatibleError:
    return IncompatibleError(
        "versions or clusters that cannot work together",
        status="INCOMPATIBLE",
        field=field_name,
        value=rules.escape(value),
        rule=rule,
    )


def _depth(message: Any) -> int:
    """How many containers are inside each other, at least; without recursion."""
    depth, level = 0, [message]
    while level and depth <= DEPTH_MAX:
        depth += 1
        level = [inner for one in level for inner in _contained(one)]
    return depth


def _contained(container: Any) -> list[Any]:
    values: Sequence[Any] = container
    if isinstance(container, Pairs):
        values = [part for pair in container for part in pair]
    if any(isinstance(one, msgpack.Timestamp) for one in values):
        raise Malformed  # the one extension that the hook does not see
    return [one for one in values if isinstance(one, (list, Pairs))]


def _refuse_extension(code: int, data: bytes) -> None:
    raise Malformed(f"an extension of type {code} with {len(data)} bytes")
