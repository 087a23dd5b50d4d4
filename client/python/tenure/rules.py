"""What a parameter may be, in the words that a node has for it.

A rule is checked here before anything is sent, and by the node again; whoever finds it broken names
the same field, the same value and the same rule. Numbers are exact: True, 3.0 and "3" are no
numbers. The words stand in fsm/types.h and client/protocol_request.c, too; a test compares them.
"""

from __future__ import annotations

import re

from tenure.errors import InvalidError
from tenure.origin import is_raised_in

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

NAMESPACE_DEFAULT = "default"
NAMESPACE_LEN_MAX = 64
KEY_LEN_MAX = 512
OWNER_LEN_MAX = 255
META_LEN_MAX = 1024
IDENTITY_LEN_MAX = 32
TTL_MS_MIN = 10
TTL_MS_MAX = 86_400_000
GRACE_MS_MAX = 86_400_000  # what the retention of tombstones can be at most
KEYS_MAX = 10_000
LIST_PAGE_MAX = 1000
DEADLINE_MS_MIN = 10
DEADLINE_MS_MAX = 60_000
SOCKET_LEN_MAX = 107
IDLE_MAX_MAX = 1024

RULE_NAMESPACE = "must be 1..64 bytes of [a-z0-9._:-]"
RULE_KEY = "must be 1..512 bytes of UTF-8 without control characters"
RULE_OWNER = "must be 1..255 bytes of UTF-8 without control characters"
RULE_META = "must be 0..1024 bytes"
RULE_IDENTITY = "must be 0..32 bytes"
RULE_TTL_MS = "must be a whole number of milliseconds in 10..86400000"
RULE_GRACE_MS = "must be a whole number of milliseconds in 0..the retention of tombstones"
RULE_KEYS = "must be 1..10000 keys"
RULE_IF_TOKEN = "goes with claim destroy, renew, heartbeat and release only"
RULE_META_WHERE = "goes with take, claim and renew reestablish only"
RULE_BOOL = "must be true or false"
RULE_U64 = "must be a whole number in 0..18446744073709551615"
RULE_STATE = "must be own or del"
RULE_PREFIX = "must be 0..512 bytes"
RULE_LIMIT = "must be a whole number in 1..1000"
RULE_DEADLINE_MS = "must be a whole number of milliseconds in 10..60000"
RULE_SOCKET = "must be a path of 1..107 bytes"
RULE_IDLE_MAX = "must be a whole number in 0..1024"

_VALUE_LEN_MAX = 92  # bytes of a value in an error, before the ellipsis
_NOT_PLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # C0, DEL, C1, surrogates
_NAMESPACE_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._:-")
_NUMBER_BITS_MAX = 512  # of a number that is written out: the value is cut long before


def escape(value: bytes) -> str:
    """Printable ASCII as it is, other bytes and backslashes as ``\\xNN``, cut with ``...``."""
    text = ""
    for byte in value:
        piece = chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}"
        if len(text) + len(piece) > _VALUE_LEN_MAX:
            return text + "..."
        text += piece
    return text


def describe(value: object) -> str:
    """A value that has the wrong type, or a number, as errors show it."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        bits = value.bit_length()
        return escape(b"%d" % value) if bits <= _NUMBER_BITS_MAX else f"a number of {bits} bits"
    if isinstance(value, float):
        return "a float"
    if isinstance(value, str):
        return _quoted(_utf8(value))
    if isinstance(value, (bytes, bytearray)):
        return _quoted(bytes(value))
    if isinstance(value, (list, tuple)):
        return "an array"
    if isinstance(value, dict):
        return "a map"
    return "something else"


def _quoted(value: bytes) -> str:
    return escape(b'"' + value[: _VALUE_LEN_MAX + 2] + b'"')


def _utf8(text: str) -> bytes:
    """Its bytes; those of a lone surrogate, which are no UTF-8, in order to name them."""
    return text.encode("utf-8", "surrogatepass")


def invalid(field: str, value: str, rule: str, *, status: str = "INVALID") -> InvalidError:
    """The error that says which field broke which rule."""
    return InvalidError(
        f"{field} {rule}, got: {value}", status=status, field=field, value=value, rule=rule
    )


def check_number(field: str, value: object, low: int, high: int, rule: str) -> int:
    """A whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(field, describe(value), rule)
    return int(value)


def check_flag(field: str, value: object) -> bool:
    """True or False, and not what is merely true."""
    if not isinstance(value, bool):
        raise invalid(field, describe(value), RULE_BOOL)
    return value


def check_text(field: str, value: object, len_max: int, rule: str) -> str:
    """1..len_max bytes of UTF-8 without control characters."""
    if not isinstance(value, str):
        raise invalid(field, describe(value), rule)
    if value.isascii():
        if value.isprintable() and 1 <= len(value) <= len_max:
            return str(value)
    elif _NOT_PLAIN.search(value) is None and len(value.encode("utf-8")) <= len_max:
        return str(value)
    raise invalid(field, escape(_utf8(value)), rule)


def check_namespace(value: object) -> str:
    """1..64 bytes of ``[a-z0-9._:-]``."""
    if not isinstance(value, str):
        raise invalid("namespace", describe(value), RULE_NAMESPACE)
    if not 1 <= len(value) <= NAMESPACE_LEN_MAX or not _NAMESPACE_CHARS.issuperset(value):
        raise invalid("namespace", escape(_utf8(value)), RULE_NAMESPACE)
    return str(value)


def check_bytes(field: str, value: object, len_max: int, rule: str) -> bytes:
    """0..len_max opaque bytes."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise invalid(field, describe(value), rule)
    data = bytes(value)
    if len(data) > len_max:
        raise invalid(field, escape(data), rule)
    return data


def check_prefix(field: str, value: object) -> str:
    """The beginning of a key, 0..512 bytes."""
    if not isinstance(value, str):
        raise invalid(field, describe(value), RULE_PREFIX)
    data = _utf8(value)
    if len(data) > KEY_LEN_MAX:
        raise invalid(field, describe(value), RULE_PREFIX)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not is_raised_in(error, frozenset((__name__,))):
            raise
        raise invalid(field, describe(value), RULE_PREFIX) from None
    return str(value)


def check_deadline_ms(value: object) -> int:
    """The length of a call."""
    return check_number(
        "deadline_ms", value, DEADLINE_MS_MIN, DEADLINE_MS_MAX, RULE_DEADLINE_MS
    )
