"""Messages of the local API: requests to bytes, bytes to replies. No I/O.

docs/protocol.md is the specification. Bytes from a node are trusted no more than those of anybody:
only a whole message, within the limits that ``tenure.reader`` keeps, is handed to msgpack. Whatever
is no reply raises ``BrokenReply``: the connection it came on is of no use any more.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Iterable, TypeVar, Union

import msgpack  # type: ignore

from tenure import rules
from tenure.errors import (
    ERRORS_BY_CODE,
    IncompatibleError,
    InvalidError,
    TenureError,
    UnknownError,
)
from tenure.origin import is_raised_in
from tenure.reader import MESSAGE_LEN_MAX, REPLY_ITEMS_MAX, BrokenReply
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
    Value,
)

PROTOCOL_VERSION = 1

Wire = dict[Any, Any]  # a map of a message; names and texts are bytes
Members = tuple[dict[str, Value], ...]
Result = Union[
    tuple[Outcome, ...], RenewAll, Count, tuple[Union[Lease, None], ...], Page, Fields, Members
]

_KEYED = frozenset(("take", "claim", "renew", "heartbeat", "release"))
_READS = frozenset(("hello", "owner", "list", "count", "status", "members", "metrics"))
_FIELDS = frozenset(("hello", "status", "metrics", "cluster_init", "cluster_transfer"))


# Where an error about what came is raised; from anywhere else it is a signal handler's.
_DECODING = frozenset(
    (
        __name__,
        "msgpack",
        "msgpack._cmsgpack",
        "msgpack._unpacker",
        "msgpack.exceptions",
        "msgpack.fallback",
    )
)
_Word = TypeVar("_Word", bound="Kind | State | Reason")


# --- requests ------------------------------------------------------------------------------------


@dataclass
class Request:
    """One request; what a method does not have stays as it is here. ``check`` judges it."""

    method: str
    namespace: str | None = None
    owner: str | None = None
    items: tuple[Item, ...] = ()
    ttl_ms: int | None = None
    destroy: bool = False
    grace_ms: int | None = None
    """Not None: adopt."""
    reestablish: bool = False
    set_version: int | None = None
    stale: bool = False
    prefix: str | None = None
    after: str | None = None
    state: State | None = None
    limit: int | None = None
    token_floor: int | None = None
    voters: int | None = None
    node_id: int | None = None
    version: int | None = None

    @property
    def read_only(self) -> bool:
        """It changes nothing and may be asked again."""
        return self.method in _READS

    def check(self) -> None:
        """Raises InvalidError for the first rule that is broken."""
        if self.namespace is not None:
            self.namespace = rules.check_namespace(self.namespace)
        if self.owner is not None:
            self.owner = rules.check_text(
                "owner", self.owner, rules.OWNER_LEN_MAX, rules.RULE_OWNER
            )
        rules.check_flag("destroy", self.destroy)
        rules.check_flag("reestablish", self.reestablish)
        rules.check_flag("stale", self.stale)
        self._check_numbers()
        if self.prefix is not None:
            self.prefix = rules.check_prefix("prefix", self.prefix)
        if self.after is not None:
            self.after = rules.check_prefix("after", self.after)
        if self.state is not None:
            self.state = _check_state(self.state)
        if self.items or self.method in _KEYED or self.method == "owner":
            self._check_items()

    def _check_numbers(self) -> None:
        if self.method in _TIMED:
            rules.check_number(
                "ttl_ms", self.ttl_ms, rules.TTL_MS_MIN, rules.TTL_MS_MAX, rules.RULE_TTL_MS
            )
        if self.grace_ms is not None:
            rules.check_number(
                "grace_ms", self.grace_ms, 0, rules.GRACE_MS_MAX, rules.RULE_GRACE_MS
            )
        if self.limit is not None:
            rules.check_number("limit", self.limit, 1, rules.LIST_PAGE_MAX, rules.RULE_LIMIT)
        for field in ("set_version", "token_floor", "voters", "node_id"):
            value = getattr(self, field)
            if value is not None:
                rules.check_number(field, value, 0, rules.U64_MAX, rules.RULE_U64)

    def _check_items(self) -> None:
        if not 1 <= len(self.items) <= rules.KEYS_MAX:
            raise rules.invalid("keys", str(len(self.items)), rules.RULE_KEYS)
        guarded = self.method in _GUARDED or (self.method == "claim" and self.destroy)
        attaching = self.method in ("take", "claim") or (
            self.method == "renew" and self.reestablish
        )
        for item in self.items:
            _check_item(item, guarded, attaching)


_TIMED = frozenset(("take", "claim", "renew", "heartbeat", "renew_all"))
_GUARDED = frozenset(("renew", "heartbeat", "release"))
_CHECKING = frozenset((__name__, "enum"))


def _check_state(value: object) -> State:
    try:
        return State(value)
    except ValueError as error:
        if not is_raised_in(error, _CHECKING):
            raise
        raise rules.invalid("state", rules.describe(value), rules.RULE_STATE) from None


def _check_item(item: Item, guarded: bool, attaching: bool) -> None:
    rules.check_text("key", item.key, rules.KEY_LEN_MAX, rules.RULE_KEY)
    if item.if_token is not None:
        rules.check_number("if_token", item.if_token, 0, rules.U64_MAX, rules.RULE_U64)
        if not guarded:
            raise rules.invalid("if_token", str(item.if_token), rules.RULE_IF_TOKEN)
    for field, len_max, rule in (
        ("meta", rules.META_LEN_MAX, rules.RULE_META),
        ("identity", rules.IDENTITY_LEN_MAX, rules.RULE_IDENTITY),
    ):
        value = getattr(item, field)
        if value is None:
            continue
        data = rules.check_bytes(field, value, len_max if attaching else rules.U64_MAX, rule)
        if not attaching:
            raise rules.invalid(field, rules.escape(data), rules.RULE_META_WHERE)


def encode_request(request: Request, number: int, deadline_ns: int | None = None) -> bytes:
    """The message. InvalidError (status TOO_LARGE) if it is longer than one may be."""
    names = _names_of(request)
    if deadline_ns is not None:
        names["deadline_ns"] = deadline_ns
    data: bytes = msgpack.packb([0, number, request.method, names], use_bin_type=True)
    if len(data) > MESSAGE_LEN_MAX:
        raise InvalidError("larger than a message may be", status="TOO_LARGE")
    return data


def _names_of(request: Request) -> dict[str, object]:
    """The parameters in the order in which they are written."""
    names: dict[str, object] = {}
    if request.namespace is not None and request.namespace != rules.NAMESPACE_DEFAULT:
        names["ns"] = request.namespace
    if request.owner is not None:
        names["owner"] = request.owner
    if len(request.items) == 1:
        names.update(_names_of_item(request.items[0]))
    elif request.items:
        names["keys"] = [_packed_item(item) for item in request.items]
    if request.ttl_ms is not None:
        names["ttl_ms"] = request.ttl_ms
    if request.destroy:
        names["destroy"] = True
    if request.grace_ms is not None:
        names["adopt"] = True
        names["grace_ms"] = request.grace_ms
    if request.reestablish:
        names["reestablish"] = True
    if request.set_version is not None:
        names["set_version"] = request.set_version
    if request.stale:
        names["stale"] = True
    for name in _PLAIN:
        value = getattr(request, name)
        if value is not None:
            names[name] = value
    return names


_PLAIN = (
    "prefix", "after", "state", "limit", "token_floor", "voters", "node_id", "version"
)


def _names_of_item(item: Item) -> dict[str, object]:
    names: dict[str, object] = {"key": item.key}
    if item.if_token is not None:
        names["if_token"] = item.if_token
    if item.meta is not None:
        names["meta"] = bytes(item.meta)
    if item.identity is not None:
        names["identity"] = bytes(item.identity)
    return names


def _packed_item(item: Item) -> object:
    names = _names_of_item(item)
    return item.key if len(names) == 1 else names


# --- replies -------------------------------------------------------------------------------------


@dataclass
class Reply:
    """A reply by its number; ``result`` waits for ``decode_result``. 0: of the connection."""

    number: int
    error: TenureError | None
    result: object


def _refuse_extension(code: int, data: bytes) -> object:
    raise BrokenReply(f"extension type {code}")


def _map_of(pairs: Iterable[tuple[object, object]]) -> Wire:
    listed = list(pairs)  # the extension of msgpack gives a list, its fallback a generator
    names = dict(listed)
    if len(names) != len(listed):
        raise BrokenReply("a name stands twice")
    return names


def parse_reply(message: bytes) -> Reply:
    """Number and kind of one whole message; BrokenReply if it is none."""
    try:
        parts = msgpack.unpackb(
            message,
            raw=True,
            use_list=True,
            strict_map_key=True,
            object_pairs_hook=_map_of,
            ext_hook=_refuse_extension,
            max_str_len=MESSAGE_LEN_MAX,
            max_bin_len=MESSAGE_LEN_MAX,
            max_array_len=REPLY_ITEMS_MAX,
            max_map_len=REPLY_ITEMS_MAX,
            max_ext_len=0,
        )
    except BrokenReply:
        raise
    except Exception as cause:  # msgpack has several, and not all of them are ValueErrors
        # It calls back into Python, and so signal handlers run inside it.
        if not is_raised_in(cause, _DECODING):
            raise
        raise BrokenReply(f"not MessagePack: {cause}") from None
    if not isinstance(parts, list) or len(parts) != 4 or not _is_number(parts[0], 1):
        raise BrokenReply("not an array of four")
    kind, number, error, result = parts
    if kind != 1 or not _is_number(number, rules.U32_MAX):
        raise BrokenReply("not a reply")
    return Reply(number, None if error is None else _error_of(error), result)


def _is_number(value: object, high: int) -> bool:
    return type(value) is int and 0 <= value <= high


def _error_of(value: object) -> TenureError:
    names = _wire_map(value)
    code = _text(names, b"code")
    status = _text_or_none(names, b"status")
    message = _text_or_none(names, b"message") or status or code
    detail = _text_or_none(names, b"detail")
    field = _text_or_none(names, b"field")
    known = ERRORS_BY_CODE.get(code)
    if known is None:
        # Of a newer node: that it may have been done is the only thing that is safe to say.
        return UnknownError(f"{code}: {message}", status=status, detail=detail)
    shown = None if field is None else _text_or_none(names, b"value") or ""
    rule = None if field is None else _text_or_none(names, b"rule") or ""
    text = message if field is None else f"{field} {rule}, got: {shown}"
    if detail is not None:
        text += f": {detail}" if field is None else f" ({detail})"
    if known is IncompatibleError:
        text += f"; this client speaks protocol version {PROTOCOL_VERSION}"
    return known(text, status=status, detail=detail, field=field, value=shown, rule=rule)


def decode_result(request: Request, result: object, sent_ns: int) -> Result:
    """What a reply without an error says in answer to ``request``; BrokenReply if it does not.

    ``sent_ns``: CLOCK_BOOTTIME before the request was written; local deadlines count from there.
    """
    names = _wire_map(result)
    position = Position(
        _number(names, b"index"),
        _number(names, b"place", rules.U32_MAX),
        _number(names, b"clock_ms"),
    )
    if request.method in _KEYED:
        return _outcomes(request, names, position, _local_deadline_ns(request, sent_ns))
    if request.method == "renew_all":
        return _renew_all(names, position, _local_deadline_ns(request, sent_ns))
    if request.method in ("release_all", "purge", "count"):
        return Count(_number(names, b"count"), _flag(names, b"stale"), position)
    if request.method == "owner":
        return _leases(names, position, len(request.items))
    if request.method == "list":
        return _page(names, position)
    if request.method == "members":
        return tuple(_values(row) for row in _array(names, b"members"))
    if request.method in _FIELDS:
        return Fields(_values(names.get(b"fields")), position)
    raise ValueError(f"no method of this client: {request.method}")


def _local_deadline_ns(request: Request, sent_ns: int) -> int:
    ttl_ns = (request.ttl_ms or 0) * 1_000_000
    return sent_ns + ttl_ns - ttl_ns // 100


def _outcomes(
    request: Request, names: Wire, position: Position, deadline_ns: int
) -> tuple[Outcome, ...]:
    values = _array(names, b"outcomes")
    if len(values) != len(request.items):
        raise BrokenReply(f"{len(values)} outcomes for {len(request.items)} keys")
    return tuple(
        _outcome(item.key, value, position, deadline_ns)
        for item, value in zip(request.items, values)
    )


_KINDS = {kind.value.encode(): kind for kind in Kind}
_STATES = {state.value.encode(): state for state in State}
_REASONS = {reason.value.encode(): reason for reason in Reason}
_PLACED = frozenset((b"index", b"place", b"clock_ms"))
_LEASED = frozenset((Kind.GRANTED, Kind.RENEWED, Kind.REESTABLISHED))


def decodable_outcomes(request: Request, result: object, sent_ns: int) -> tuple[Outcome, ...]:
    """Those of a result that ``decode_result`` refused which can be read; they have no position."""
    values = result.get(b"outcomes") if isinstance(result, dict) else None
    if request.method not in _KEYED or not isinstance(values, list):
        return ()
    deadline_ns = _local_deadline_ns(request, sent_ns)
    outcomes = []
    for item, value in zip(request.items, values):
        with contextlib.suppress(BrokenReply):
            outcomes.append(_outcome(item.key, value, Position(0, 0, 0), deadline_ns))
    return tuple(outcomes)


def _outcome(key: str, value: object, shared: Position, deadline_ns: int) -> Outcome:
    names = _wire_map(value)
    kind = _word(names, b"outcome", _KINDS)
    position = shared
    if not names.keys().isdisjoint(_PLACED):
        position = Position(
            _number_or(names, b"index", shared.index),
            _number_or(names, b"place", shared.place, rules.U32_MAX),
            _number_or(names, b"clock_ms", shared.clock_ms),
        )
    leased = kind in _LEASED
    return Outcome(
        key,
        kind,
        position,
        _number(names, b"token") if leased else None,
        _number(names, b"ms_left") if leased else None,
        deadline_ns if leased else None,
        _flag(names, b"held_before") if b"held_before" in names else False,
        _holder(names[b"holder"]) if b"holder" in names else None,
        _number(names, b"grace_ms_left") if kind is Kind.GRACE else None,
        _text_or_none(names, b"limit") if b"limit" in names else None,
    )


def _holder(value: object) -> Holder:
    names = _wire_map(value)
    return Holder(
        _text(names, b"owner"),
        _word(names, b"state", _STATES),
        _number(names, b"token"),
        _number(names, b"ms_left"),
    )


def _renew_all(names: Wire, position: Position, deadline_ns: int) -> RenewAll:
    departures = tuple(
        Departure(_text(row, b"key"), _number(row, b"token"), _word(row, b"reason", _REASONS))
        for row in map(_wire_map, _array(names, b"departures"))
    )
    return RenewAll(
        _number(names, b"count"),
        _number(names, b"set_version"),
        departures,
        _flag(names, b"list_again"),
        deadline_ns,
        position,
    )


def _leases(names: Wire, position: Position, count: int) -> tuple[Lease | None, ...]:
    values = _array(names, b"leases")
    if len(values) != count:
        raise BrokenReply(f"{len(values)} leases for {count} keys")
    return tuple(None if value is None else _lease(value, position) for value in values)


def _page(names: Wire, position: Position) -> Page:
    leases = tuple(_lease(value, position) for value in _array(names, b"leases"))
    return Page(leases, _flag(names, b"more"), _flag(names, b"stale"), position)


def _lease(value: object, position: Position) -> Lease:
    names = _wire_map(value)
    return Lease(
        namespace=_text(names, b"ns"),
        key=_text(names, b"key"),
        owner=_text(names, b"owner"),
        state=_word(names, b"state", _STATES),
        ttl_ms=_number(names, b"ttl_ms"),
        ms_left=_number(names, b"ms_left"),
        token=_number(names, b"token"),
        since_ms=_number(names, b"since_ms"),
        meta=_bytes_or_none(names, b"meta"),
        identity=_bytes_or_none(names, b"identity"),
        position=position,
    )


# --- names of a map ------------------------------------------------------------------------------


def _wire_map(value: object) -> Wire:
    if not isinstance(value, dict):
        raise BrokenReply("not a map")
    return value


def _array(names: Wire, name: bytes) -> list[object]:
    value = names.get(name)
    if not isinstance(value, list):
        raise BrokenReply(f"{name.decode()} is no array")
    return value


def _number(names: Wire, name: bytes, high: int = rules.U64_MAX) -> int:
    value = names.get(name)
    if type(value) is not int or not 0 <= value <= high:
        raise BrokenReply(f"{name.decode()} is no number")
    return value


def _number_or(names: Wire, name: bytes, absent: int, high: int = rules.U64_MAX) -> int:
    return _number(names, name, high) if name in names else absent


def _flag(names: Wire, name: bytes) -> bool:
    value = names.get(name, False)
    if not isinstance(value, bool):
        raise BrokenReply(f"{name.decode()} is no flag")
    return value


def _bytes_or_none(names: Wire, name: bytes) -> bytes | None:
    if name not in names:
        return None
    value = names[name]
    if not isinstance(value, bytes):
        raise BrokenReply(f"{name.decode()} is neither text nor bytes")
    return value


def _text_or_none(names: Wire, name: bytes) -> str | None:
    value = _bytes_or_none(names, name)
    return None if value is None else _decoded(value)


def _text(names: Wire, name: bytes) -> str:
    value = _text_or_none(names, name)
    if value is None:
        raise BrokenReply(f"{name.decode()} is missing")
    return value


def _decoded(value: object) -> str:
    if not isinstance(value, bytes):
        raise BrokenReply("a name that is no text")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        if not is_raised_in(error, _DECODING):
            raise
        raise BrokenReply("a text that is no UTF-8") from None


def _word(names: Wire, name: bytes, words: dict[bytes, _Word]) -> _Word:
    """A word of the enum; one that this version does not know cannot be acted upon."""
    value = names.get(name)
    word = words.get(value) if isinstance(value, bytes) else None
    if word is None:
        shown = rules.escape(_text(names, name).encode())
        raise BrokenReply(f"{name.decode()} is {shown}")
    return word


def _values(value: object) -> dict[str, Value]:
    """Named values: numbers, texts, flags."""
    values: dict[str, Value] = {}
    for name, one in _wire_map(value).items():
        if isinstance(one, bytes):
            values[_decoded(name)] = _decoded(one)
        elif isinstance(one, bool) or _is_number(one, rules.U64_MAX):
            values[_decoded(name)] = one
        else:
            raise BrokenReply(f"{_decoded(name)} is neither number, text nor flag")
    return values
