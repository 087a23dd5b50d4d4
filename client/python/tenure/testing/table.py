"""The lease table of a node in memory: what docs/protocol.md, part 1, promises, without I/O.

Pure: it is told what time it is (``advance``) and what is asked, and answers. Everything that is
due is removed as the clock moves, so that whatever is in the table is alive; the end of a lease
that expired is its expiry, however late the clock came. Names are bytes and compared as such;
whoever calls has judged them (``tenure.testing.request``).
"""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tenure.results import Kind, Reason, State

_Name = TypeVar("_Name")

PLACE_END = 4_294_967_295
"""Place of a read: the end of the entry."""


@dataclass(frozen=True)
class Limits:
    """What the table keeps at most, by the names and with the defaults of a real cluster.

    Attributes:
        leases_max: in all; beyond it a new lease is UNAVAILABLE, limit ``leases``.
        leases_per_namespace_max: likewise ``leases_per_namespace``; None: no such limit.
        tombstones_max: ends that are remembered; beyond it the oldest is forgotten.
        tombstone_retention_ms: for how long, and the longest grace.
        departures_max: per owner, for ``renew_all``; beyond it the oldest is forgotten.
    """

    leases_max: int = 1_000_000
    leases_per_namespace_max: int | None = None
    tombstones_max: int = 1_000_000
    tombstone_retention_ms: int = 600_000
    departures_max: int = 1024


@dataclass(frozen=True)
class KeyItem:
    """One key of a request and what is said about it alone."""

    key: bytes
    if_token: int | None = None
    meta: bytes | None = None
    identity: bytes | None = None


class Verb(enum.Enum):
    """The rows of the decision table."""

    TAKE = "take"
    CLAIM = "claim"
    DESTROY = "claim destroy"
    RENEW = "renew"
    REESTABLISH = "renew reestablish"
    HEARTBEAT = "heartbeat"
    RELEASE = "release"


@dataclass(frozen=True)
class Ask:
    """What one owner asks about keys. ``grace_ms`` not None: adopt; ``ttl_ms`` 0: release."""

    verb: Verb
    namespace: bytes
    owner: bytes
    ttl_ms: int = 0
    grace_ms: int | None = None


@dataclass(eq=False)
class HeldLease:
    """A lease in the table; whoever is handed one must not change it."""

    namespace: bytes
    key: bytes
    owner: bytes
    state: State
    ttl_ms: int
    expiry_ms: int
    token: int
    since_ms: int
    written_index: int
    meta: bytes | None = None
    identity: bytes | None = None


@dataclass(frozen=True)
class Decision:
    """What became of one key.

    Attributes:
        kind, token, held_before, grace_ms_left, limit: as in ``tenure.Outcome``.
        expiry_ms: of the lease that was granted or renewed, in cluster time.
        holder: a copy of the lease that is in the way or was taken over.
        grant: what is to be settled if nobody hears of it; None where nothing is.
    """

    kind: Kind
    token: int | None = None
    expiry_ms: int | None = None
    held_before: bool = False
    holder: HeldLease | None = None
    grace_ms_left: int | None = None
    limit: str | None = None
    grant: Grant | None = None


@dataclass(frozen=True)
class Grant:
    """A lease that its owner did not have before, as it was granted."""

    namespace: bytes
    key: bytes
    token: int
    index: int


@dataclass(frozen=True)
class Departed:
    """A lease that left its owner's set, and the set's version from then on."""

    version: int
    key: bytes
    token: int
    reason: Reason


@dataclass(frozen=True)
class SetRenewed:
    """Answer to ``renew_all``."""

    count: int
    set_version: int
    departures: tuple[Departed, ...]
    list_again: bool


@dataclass(frozen=True)
class Filter:
    """Which leases of a namespace are meant: all that is not None must fit."""

    namespace: bytes
    owner: bytes | None = None
    state: State | None = None
    prefix: bytes = b""
    after: bytes | None = None


@dataclass(frozen=True)
class _Tombstone:
    """What is remembered of a key after its lease ended."""

    owner: bytes
    state: State
    token: int
    reason: Reason
    ended_ms: int


@dataclass
class _Space:
    """The leases of one namespace, by key, and the keys in byte order."""

    leases: dict[bytes, HeldLease] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)


@dataclass
class _OwnerSet:
    """What an owner has in state ``own``, in the order of tokens, and what left it lately."""

    own: dict[bytes, HeldLease] = field(default_factory=dict)
    marker_count: int = 0
    set_version: int = 0
    forgotten_version: int = 0
    departures: deque[Departed] = field(default_factory=deque)


class _Standing(enum.IntEnum):
    """How a key stands to the caller; the columns of the decision table."""

    ABSENT = 0
    OWN_SELF = 1
    OWN_PEER = 2
    DEL_SELF = 3
    DEL_PEER = 4


# Columns: absent, own/self, own/peer, del/self, del/peer.
_DECISIONS: dict[Verb, tuple[Kind, Kind, Kind, Kind, Kind]] = {
    Verb.TAKE: (Kind.GRANTED, Kind.GRANTED, Kind.GRANTED, Kind.TEARDOWN, Kind.TEARDOWN),
    Verb.CLAIM: (Kind.GRANTED, Kind.GRANTED, Kind.HELD, Kind.TEARDOWN, Kind.HELD),
    Verb.DESTROY: (Kind.GRANTED, Kind.GRANTED, Kind.HELD, Kind.GRANTED, Kind.HELD),
    Verb.RENEW: (Kind.LAPSED, Kind.RENEWED, Kind.LOST, Kind.LOST, Kind.LOST),
    Verb.REESTABLISH: (Kind.REESTABLISHED, Kind.RENEWED, Kind.LOST, Kind.LOST, Kind.LOST),
    Verb.HEARTBEAT: (Kind.LAPSED, Kind.LOST, Kind.LOST, Kind.RENEWED, Kind.LOST),
    Verb.RELEASE: (
        Kind.NOT_OWNER,
        Kind.RELEASED,
        Kind.NOT_OWNER,
        Kind.RELEASED,
        Kind.NOT_OWNER,
    ),
}


class LeaseTable:
    """All leases of a cluster that was just born.

    Example::

        table = LeaseTable()
        ask = Ask(Verb.CLAIM, b"default", b"gateway-1", ttl_ms=30_000)
        [decision] = table.decide(ask, [KeyItem(b"sandbox-1")])
        assert decision.kind is Kind.GRANTED
        table.advance(30_001)
        assert table.owner(b"default", b"sandbox-1") is None

    Attributes:
        clock_ms: cluster time, milliseconds since the birth.
        index: how many changes were asked for.
        token: the last number that was drawn; the next one is larger.
        limits: see there.
    """

    def __init__(self, *, limits: Limits | None = None, token_floor: int = 0) -> None:
        self.limits = limits if limits is not None else Limits()
        self.clock_ms = 0
        self.index = 0
        self.token = token_floor
        self.lease_count = 0
        self._spaces: dict[bytes, _Space] = {}
        self._owners: dict[tuple[bytes, bytes], _OwnerSet] = {}
        self._idle_since: dict[tuple[bytes, bytes], int] = {}  # in the order of time
        self._purged_ms: dict[bytes, int] = {}  # likewise
        self._due: list[tuple[int, bytes, bytes]] = []  # heap; what no longer is so is skipped
        self._tombstones: dict[tuple[bytes, bytes], _Tombstone] = {}
        self._ages: list[tuple[int, bytes, bytes]] = []  # likewise
        self._forgotten_until_ms = 0
        self._forgotten_token = 0
        self._owners_forgotten_version = 0

    # --- time -----------------------------------------------------------------------------------

    def advance(self, clock_ms: int) -> None:
        """Sets the clock, never back, and ends and forgets whatever is due then."""
        self.clock_ms = max(self.clock_ms, clock_ms)
        while self._due and self._due[0][0] < self.clock_ms:
            expiry_ms, namespace, key = heapq.heappop(self._due)
            lease = self._find(namespace, key)
            if lease is not None and lease.expiry_ms == expiry_ms:
                self._end(lease, Reason.EXPIRED, expiry_ms)
        self._forget_by_age()

    def _forget_by_age(self) -> None:
        before_ms = self.clock_ms - self.limits.tombstone_retention_ms
        while self._ages and self._ages[0][0] < before_ms:
            self._forget_oldest_tombstone()
        while (owner := _first_before(self._idle_since, before_ms)) is not None:
            self._forget_owner(owner)
        while (namespace := _first_before(self._purged_ms, before_ms)) is not None:
            purged_ms = self._purged_ms.pop(namespace)  # no grace reaches back so far
            self._forgotten_until_ms = max(self._forgotten_until_ms, purged_ms)

    def _forget_oldest_tombstone(self) -> None:
        ended_ms, namespace, key = heapq.heappop(self._ages)
        tombstone = self._tombstones.get((namespace, key))
        if tombstone is not None and tombstone.ended_ms == ended_ms:
            del self._tombstones[(namespace, key)]
            self._forgotten_until_ms = max(self._forgotten_until_ms, ended_ms)
            self._forgotten_token = max(self._forgotten_token, tombstone.token)

    def _forget_owner(self, name: tuple[bytes, bytes]) -> None:
        owner = self._owners.pop(name)
        del self._idle_since[name]
        self._owners_forgotten_version = max(self._owners_forgotten_version, owner.set_version)

    # --- changes --------------------------------------------------------------------------------

    def decide(self, ask: Ask, items: Sequence[KeyItem]) -> list[Decision]:
        """Each key by itself, in order; one that is named twice is done once, as first named."""
        self.index += 1
        done: dict[bytes, Decision] = {}
        for item in items:
            if item.key not in done:
                done[item.key] = self._decide_key(ask, item)
        return [done[item.key] for item in items]

    def renew_all(
        self, namespace: bytes, owner: bytes, ttl_ms: int, set_version: int | None = None
    ) -> SetRenewed:
        """Renews what the owner has in state ``own``; ``set_version``: the one it saw last."""
        self.index += 1
        owned = self._owners.get((namespace, owner))
        if owned is None:
            version = self._owners_forgotten_version
            return SetRenewed(0, version, (), set_version not in (None, version))
        for lease in owned.own.values():
            self._extend(lease, ttl_ms)
        version = owned.set_version
        if set_version is None or set_version == version:
            return SetRenewed(len(owned.own), version, (), False)
        if not owned.forgotten_version <= set_version <= version:
            return SetRenewed(len(owned.own), version, (), True)
        left = tuple(one for one in owned.departures if one.version > set_version)
        return SetRenewed(len(owned.own), version, left, False)

    def release_all(self, namespace: bytes, owner: bytes) -> int:
        """Ends what the owner has in state ``own``; how many that were."""
        self.index += 1
        owned = self._owners.get((namespace, owner))
        leases = list(owned.own.values()) if owned is not None else []
        for lease in leases:
            self._end(lease, Reason.RELEASED, self.clock_ms)
        return len(leases)

    def purge(self, namespace: bytes) -> int:
        """Ends every lease of the namespace, markers too; its keys are unowned since now."""
        self.index += 1
        space = self._spaces.get(namespace)
        leases = list(space.leases.values()) if space is not None else []
        for lease in leases:
            self._end(lease, Reason.PURGED, self.clock_ms)
        self._purged_ms.pop(namespace, None)
        self._purged_ms[namespace] = self.clock_ms
        return len(leases)

    def settle(self, grant: Grant) -> bool:
        """Ends what was granted to a caller who never heard of it, unless it was written since."""
        self.index += 1
        lease = self._find(grant.namespace, grant.key)
        if lease is None or lease.token != grant.token or lease.written_index != grant.index:
            return False
        self._end(lease, Reason.SETTLED, self.clock_ms)
        return True

    # --- reads ----------------------------------------------------------------------------------

    def owner(self, namespace: bytes, key: bytes) -> HeldLease | None:
        """The lease of the key, or None where nobody has one."""
        return self._find(namespace, key)

    def page(self, wanted: Filter, limit: int) -> tuple[list[HeldLease], bool]:
        """The first leases in byte order of the keys, and whether there are more."""
        leases: list[HeldLease] = []
        for lease in self._walk(wanted):
            if len(leases) == limit:
                return leases, True
            leases.append(lease)
        return leases, False

    def count(self, wanted: Filter) -> int:
        """How many leases are meant."""
        return sum(1 for _ in self._walk(wanted))

    def count_state(self, state: State) -> int:
        """How many leases are in that state, in all namespaces."""
        return sum(
            lease.state is state
            for space in self._spaces.values()
            for lease in space.leases.values()
        )

    @property
    def tombstone_count(self) -> int:
        """How many ends are remembered."""
        return len(self._tombstones)

    @property
    def owner_count(self) -> int:
        """Of how many owners something is known."""
        return len(self._owners)

    def _walk(self, wanted: Filter) -> Iterator[HeldLease]:
        space = self._spaces.get(wanted.namespace)
        if space is None:
            return
        start = bisect_left(space.keys, wanted.prefix)
        if wanted.after is not None:
            start = max(start, bisect_right(space.keys, wanted.after))
        for position in range(start, len(space.keys)):
            key = space.keys[position]
            if not key.startswith(wanted.prefix):
                return
            lease = space.leases[key]
            if wanted.owner in (None, lease.owner) and wanted.state in (None, lease.state):
                yield lease

    # --- the decision table ---------------------------------------------------------------------

    def _decide_key(self, ask: Ask, item: KeyItem) -> Decision:
        lease = self._find(ask.namespace, item.key)
        kind = _DECISIONS[ask.verb][_standing(lease, ask.owner)]
        refusal = self._refusal(ask, item, lease, kind)
        if refusal is not None:
            return refusal
        if kind is Kind.RELEASED:
            assert lease is not None
            self._end(lease, Reason.RELEASED, self.clock_ms)
            return Decision(kind)
        if kind is Kind.RENEWED:
            assert lease is not None
            self._extend(lease, ask.ttl_ms)
            return Decision(kind, token=lease.token, expiry_ms=lease.expiry_ms)
        return self._grant(ask, item, lease, kind)

    def _refusal(
        self, ask: Ask, item: KeyItem, lease: HeldLease | None, kind: Kind
    ) -> Decision | None:
        """TEARDOWN and HELD go before STALE, STALE before the rest; None: nothing is in the way."""
        if kind in (Kind.TEARDOWN, Kind.HELD):
            return _refuse(kind, lease)
        if item.if_token is not None:
            if lease is None:
                if self._is_gone_for_good(ask, item.key, item.if_token):
                    return _refuse(Kind.LAPSED, None)
            elif lease.owner == ask.owner and lease.token != item.if_token:
                return _refuse(Kind.STALE, lease)
        if kind in (Kind.LAPSED, Kind.LOST, Kind.NOT_OWNER):
            return _refuse(kind, lease)
        if lease is not None:
            mismatch = kind is Kind.GRANTED and _identity_differs(lease, item)
            return _refuse(Kind.MISMATCH, lease) if mismatch else None
        return self._grace(ask, item.key) or self._limit(ask.namespace)

    def _is_gone_for_good(self, ask: Ask, key: bytes, if_token: int) -> bool:
        """Whether the guard of an absent key forbids to begin it anew."""
        if ask.verb is not Verb.REESTABLISH:
            return ask.verb is Verb.DESTROY
        tombstone = self._tombstones.get((ask.namespace, key))
        if tombstone is None:
            return self._forgotten_token > if_token
        if tombstone.token < if_token:
            return False  # of an older lease: the table was lost since
        if tombstone.owner != ask.owner or tombstone.reason is Reason.RELEASED:
            return True
        return tombstone.state is State.DEL and tombstone.token > if_token

    def _grace(self, ask: Ask, key: bytes) -> Decision | None:
        if ask.grace_ms is None:
            return None
        left_ms = self._unowned_since(ask.namespace, key) + ask.grace_ms - self.clock_ms
        return Decision(Kind.GRACE, grace_ms_left=left_ms) if left_ms > 0 else None

    def _unowned_since(self, namespace: bytes, key: bytes) -> int:
        """The birth is at 0."""
        tombstone = self._tombstones.get((namespace, key))
        ended_ms = self._forgotten_until_ms if tombstone is None else tombstone.ended_ms
        return max(ended_ms, self._purged_ms.get(namespace, 0))

    def _limit(self, namespace: bytes) -> Decision | None:
        if self.lease_count >= self.limits.leases_max:
            return Decision(Kind.UNAVAILABLE, limit="leases")
        per_namespace = self.limits.leases_per_namespace_max
        space = self._spaces.get(namespace)
        if per_namespace is not None and space and len(space.leases) >= per_namespace:
            return Decision(Kind.UNAVAILABLE, limit="leases_per_namespace")
        return None

    # --- beginning, changing hands, ending ------------------------------------------------------

    def _grant(
        self, ask: Ask, item: KeyItem, lease: HeldLease | None, kind: Kind
    ) -> Decision:
        held_before = lease is not None and lease.owner == ask.owner
        taken_from = replace(lease) if lease is not None and not held_before else None
        if lease is None:
            lease = self._begin(ask, item)
        else:
            self._regrant(ask, item, lease)
        decision = Decision(
            kind,
            token=lease.token,
            expiry_ms=lease.expiry_ms,
            held_before=held_before,
            holder=taken_from,
        )
        if kind is Kind.REESTABLISHED or held_before:
            return decision
        return replace(
            decision, grant=Grant(ask.namespace, item.key, lease.token, self.index)
        )

    def _begin(self, ask: Ask, item: KeyItem) -> HeldLease:
        lease = HeldLease(
            namespace=ask.namespace,
            key=item.key,
            owner=ask.owner,
            state=_state_of(ask.verb),
            ttl_ms=ask.ttl_ms,
            expiry_ms=0,
            token=self._draw(),
            since_ms=self.clock_ms,
            written_index=self.index,
            meta=item.meta,
            identity=item.identity,
        )
        space = self._spaces.setdefault(ask.namespace, _Space())
        space.leases[item.key] = lease
        insort(space.keys, item.key)
        self.lease_count += 1
        self._tombstones.pop((ask.namespace, item.key), None)
        self._link(lease)
        self._extend(lease, ask.ttl_ms)
        return lease

    def _regrant(self, ask: Ask, item: KeyItem, lease: HeldLease) -> None:
        """The lease goes on, for its owner or for another; own, or the caller's own marker."""
        is_self = lease.owner == ask.owner
        state = _state_of(ask.verb)
        if lease.state is State.OWN:
            token = self._draw()
            if not is_self:
                self._depart(lease, Reason.TAKEN)
            elif state is State.DEL:
                self._depart(lease, Reason.TEARDOWN)
            self._unlink(lease)
            lease.token = token
            lease.owner = ask.owner
            lease.state = state
            self._link(lease)
        if not is_self:
            lease.since_ms = self.clock_ms
        lease.meta = lease.meta if item.meta is None else item.meta
        lease.identity = lease.identity if item.identity is None else item.identity
        self._extend(lease, ask.ttl_ms)

    def _extend(self, lease: HeldLease, ttl_ms: int) -> None:
        lease.ttl_ms = ttl_ms
        lease.expiry_ms = self.clock_ms + ttl_ms
        lease.written_index = self.index
        heapq.heappush(self._due, (lease.expiry_ms, lease.namespace, lease.key))
        if len(self._due) > 2 * self.lease_count + 1000:
            self._due = [
                (lease.expiry_ms, lease.namespace, lease.key)
                for space in self._spaces.values()
                for lease in space.leases.values()
            ]
            heapq.heapify(self._due)

    def _end(self, lease: HeldLease, reason: Reason, ended_ms: int) -> None:
        if lease.state is State.OWN:
            self._depart(lease, reason)
        self._unlink(lease)
        space = self._spaces[lease.namespace]
        del space.leases[lease.key]
        del space.keys[bisect_left(space.keys, lease.key)]
        if not space.leases:
            del self._spaces[lease.namespace]
        self.lease_count -= 1
        self._tombstones[(lease.namespace, lease.key)] = _Tombstone(
            lease.owner, lease.state, lease.token, reason, ended_ms
        )
        heapq.heappush(self._ages, (ended_ms, lease.namespace, lease.key))
        while len(self._tombstones) > self.limits.tombstones_max:
            self._forget_oldest_tombstone()
        if len(self._ages) > 2 * len(self._tombstones) + 1000:
            self._ages = [(one.ended_ms, *name) for name, one in self._tombstones.items()]
            heapq.heapify(self._ages)

    def _link(self, lease: HeldLease) -> None:
        name = (lease.namespace, lease.owner)
        owned = self._owners.get(name)
        if owned is None:
            version = self._owners_forgotten_version
            owned = _OwnerSet(set_version=version, forgotten_version=version)
            self._owners[name] = owned
        self._idle_since.pop(name, None)
        if lease.state is State.OWN:
            owned.own[lease.key] = lease
        else:
            owned.marker_count += 1

    def _unlink(self, lease: HeldLease) -> None:
        name = (lease.namespace, lease.owner)
        owned = self._owners[name]
        if lease.state is State.OWN:
            del owned.own[lease.key]
        else:
            owned.marker_count -= 1
        if not owned.own and owned.marker_count == 0:
            self._idle_since[name] = self.clock_ms

    def _depart(self, lease: HeldLease, reason: Reason) -> None:
        """The lease leaves its owner's set, for whatever reason: the set has a new version."""
        owned = self._owners[(lease.namespace, lease.owner)]
        owned.set_version = self._draw()
        owned.departures.append(Departed(owned.set_version, lease.key, lease.token, reason))
        while len(owned.departures) > self.limits.departures_max:
            owned.forgotten_version = owned.departures.popleft().version

    def _find(self, namespace: bytes, key: bytes) -> HeldLease | None:
        space = self._spaces.get(namespace)
        return None if space is None else space.leases.get(key)

    def _draw(self) -> int:
        self.token += 1
        return self.token


def _first_before(times: dict[_Name, int], before_ms: int) -> _Name | None:
    """The first name, if its time is earlier; times only grow in the order of the names."""
    name = next(iter(times), None)
    return name if name is not None and times[name] < before_ms else None


def _standing(lease: HeldLease | None, owner: bytes) -> _Standing:
    if lease is None:
        return _Standing.ABSENT
    is_self = lease.owner == owner
    if lease.state is State.OWN:
        return _Standing.OWN_SELF if is_self else _Standing.OWN_PEER
    return _Standing.DEL_SELF if is_self else _Standing.DEL_PEER


def _state_of(verb: Verb) -> State:
    return State.DEL if verb is Verb.DESTROY else State.OWN


def _identity_differs(lease: HeldLease, item: KeyItem) -> bool:
    return None not in (lease.identity, item.identity) and lease.identity != item.identity


def _refuse(kind: Kind, lease: HeldLease | None) -> Decision:
    return Decision(kind, holder=None if lease is None else replace(lease))
