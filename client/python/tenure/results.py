"""What calls return: outcomes, leases, pages. Plain values; docs/protocol.md, section 2.2.

Times ending in ``_ms`` are milliseconds of the cluster's clock or a length in milliseconds; those
ending in ``_ns`` are instants of CLOCK_BOOTTIME on this host (``tenure.now_ns()``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Union

Value = Union[int, str, bool]


class Kind(str, enum.Enum):
    """What became of one key. A refusal changes nothing, not even the holder's TTL."""

    GRANTED = "GRANTED"
    HELD = "HELD"
    TEARDOWN = "TEARDOWN"
    GRACE = "GRACE"
    RENEWED = "RENEWED"
    LAPSED = "LAPSED"
    LOST = "LOST"
    REESTABLISHED = "REESTABLISHED"
    RELEASED = "RELEASED"
    NOT_OWNER = "NOT_OWNER"
    STALE = "STALE"
    MISMATCH = "MISMATCH"
    UNAVAILABLE = "UNAVAILABLE"
    """In place of an outcome, for one key of many: a limit, which ``Outcome.limit`` names."""
    UNKNOWN = "UNKNOWN"
    """Likewise: that key's part may have been done."""


class State(str, enum.Enum):
    """Of a lease: ``own`` answers for the sandbox, ``del`` is tearing it down."""

    OWN = "own"
    DEL = "del"


class Reason(str, enum.Enum):
    """Why a lease left an owner's set."""

    RELEASED = "released"
    EXPIRED = "expired"
    TAKEN = "taken"
    SETTLED = "settled"
    PURGED = "purged"
    RESTORED = "restored"
    TEARDOWN = "teardown"


@dataclass(frozen=True)
class Position:
    """A place in the replicated log; of two answers about one key the greater is the later.

    Compares as the pair (index, place).
    """

    index: int
    place: int
    clock_ms: int

    def __lt__(self, other: Position) -> bool:
        return (self.index, self.place) < (other.index, other.place)


@dataclass(frozen=True)
class Holder:
    """Who has the key that was refused, or, of a takeover, who had it."""

    owner: str
    state: State
    token: int
    ms_left: int


@dataclass(frozen=True)
class Outcome:
    """What became of one key of ``take``, ``claim``, ``renew``, ``heartbeat`` or ``release``.

    Attributes:
        key: as it was asked.
        kind: the outcome itself.
        token: the fencing token (GRANTED, RENEWED, REESTABLISHED): it only grows; hand it to
            whatever the sandbox writes to. None for the other outcomes.
        ms_left: until the lease is due, at ``position.clock_ms``; None for the other outcomes.
        deadline_ns: until when the caller may act as owner without asking again: the instant
            before the request was sent + TTL - 1 %, CLOCK_BOOTTIME. None for the other outcomes.
        held_before: GRANTED: this owner had the lease already.
        holder: of a refusal, or of a takeover from whom; None where there is nobody to name.
        grace_ms_left: GRACE: ask again after that.
        limit: UNAVAILABLE: ``leases`` or ``leases_per_namespace``.
        position: what all of it is true of.
    """

    key: str
    kind: Kind
    position: Position
    token: int | None = None
    ms_left: int | None = None
    deadline_ns: int | None = None
    held_before: bool = False
    holder: Holder | None = None
    grace_ms_left: int | None = None
    limit: str | None = None

    @property
    def ok(self) -> bool:
        """True for what was asked for: GRANTED, RENEWED, REESTABLISHED, RELEASED."""
        return self.kind in _DONE


_DONE = frozenset((Kind.GRANTED, Kind.RENEWED, Kind.REESTABLISHED, Kind.RELEASED))


@dataclass(frozen=True)
class Lease:
    """One live lease. ``since_ms``: cluster time since which this owner has it without a break."""

    namespace: str
    key: str
    owner: str
    state: State
    ttl_ms: int
    ms_left: int
    token: int
    since_ms: int
    meta: bytes | None
    identity: bytes | None
    position: Position


@dataclass(frozen=True)
class Departure:
    """A lease that left the owner's set; to be ignored if ``token`` is not the one held."""

    key: str
    token: int
    reason: Reason


@dataclass(frozen=True)
class RenewAll:
    """Answer to ``renew_all``.

    Attributes:
        count: how many leases in state ``own`` were renewed.
        set_version: pass it the next time; it changes whenever a lease leaves the set.
        departures: what left since the version that was passed.
        list_again: what left is no longer remembered: compare with ``list``.
        deadline_ns: of every lease that was renewed, as in ``Outcome``.
    """

    count: int
    set_version: int
    departures: tuple[Departure, ...]
    list_again: bool
    deadline_ns: int
    position: Position


@dataclass(frozen=True)
class Page:
    """One page of ``list``, in byte order of the keys. ``more``: ask on after the last key."""

    leases: tuple[Lease, ...]
    more: bool
    stale: bool
    position: Position


@dataclass(frozen=True)
class Count:
    """Answer to ``count``, ``release_all`` and ``purge``."""

    count: int
    stale: bool
    position: Position


@dataclass(frozen=True)
class Item:
    """One key of a call with many, where it needs more than its name."""

    key: str
    if_token: int | None = None
    meta: bytes | None = None
    identity: bytes | None = None


@dataclass(frozen=True)
class Fields:
    """Named values of ``status``, ``metrics`` and the like; reads as a mapping by ``values``."""

    values: dict[str, Value] = field(default_factory=dict)
    position: Position = Position(0, 0, 0)
