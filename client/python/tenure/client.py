"""The client: verbs on leases, for any number of threads."""

from __future__ import annotations

import itertools
import os
from types import TracebackType
from typing import Callable, Iterable, Iterator, Sequence, TypeVar, Union

from tenure import rules
from tenure.call import Call
from tenure.errors import UnavailableError, UnknownError
from tenure.pool import Pool
from tenure.process import new_owner, now_ns, process_stamp
from tenure.protocol import PROTOCOL_VERSION, Request, Result
from tenure.results import (
    Count,
    Fields,
    Item,
    Kind,
    Lease,
    Outcome,
    Page,
    RenewAll,
    State,
    Value,
)
from tenure.session import NS_PER_MS

SOCKET_DEFAULT = "/run/tenure/api.sock"

# `list` is a verb of the class below.
Keys = Iterable[Union[str, Item]]
Outcomes = list[Outcome]
Leases = list[Union[Lease, None]]
Members = list[dict[str, Value]]
_Answer = TypeVar("_Answer")


class Client:
    """Talks to the node of this host. Making one connects to nothing; the first call does.

    May be used from many threads and from signal handlers at once: each call has a connection of
    its own while it lasts, and there is no lock. After a fork the child makes connections and,
    unless ``owner`` was given, an owner of its own. Nothing happens at exit: leases that are not
    released end with their TTL.

    Args:
        socket_path: of the node, 1..107 bytes.
        namespace: of the keys, where a call names no other.
        owner: who asks, where a call names no other: unique per instance of a caller, not per
            host. None: made anew by each process that uses the client.
        deadline_ms: of each call, 10..60000: for connecting, sending, waiting and every retry.
        connections_idle_max: connections that are kept while no call uses them, 0..1024.

    Every verb takes ``namespace``, ``owner`` and ``deadline_ms`` for that call alone. A refusal is
    a returned ``Outcome``; errors are raised, see ``tenure.errors``. A call ends by its deadline
    + 100 ms.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] = SOCKET_DEFAULT,
        *,
        namespace: str = rules.NAMESPACE_DEFAULT,
        owner: str | None = None,
        deadline_ms: int = 5000,
        connections_idle_max: int = 32,
    ) -> None:
        path = _checked_path(socket_path)
        self._namespace = rules.check_namespace(namespace)
        self._owner = owner
        if owner is not None:
            self._owner = rules.check_text("owner", owner, rules.OWNER_LEN_MAX, rules.RULE_OWNER)
        self._deadline_ms = rules.check_deadline_ms(deadline_ms)
        rules.check_number(
            "connections_idle_max",
            connections_idle_max,
            0,
            rules.IDLE_MAX_MAX,
            rules.RULE_IDLE_MAX,
        )
        self._pool = Pool(path, connections_idle_max)
        self._made_owners: dict[tuple[int, int], str] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections and releases no lease. The client may be used again."""
        self._pool.close()

    @property
    def owner_id(self) -> str:
        """Who asks. Another one after a fork, if the client made it itself."""
        if self._owner is not None:
            return self._owner
        stamp = process_stamp()
        made = self._made_owners.get(stamp)
        # Of two threads that make one at the same time the first has made it.
        return made if made is not None else self._made_owners.setdefault(stamp, new_owner())

    # --- one key ---

    def take(
        self,
        key: str,
        *,
        ttl_ms: int,
        meta: bytes | None = None,
        identity: bytes | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcome:
        """Makes the lease ours, whoever has it: GRANTED, TEARDOWN or MISMATCH."""
        request = self._write("take", namespace, owner, ttl_ms=ttl_ms)
        return self._one(request, Item(key, None, meta, identity), deadline_ms)

    def claim(
        self,
        key: str,
        *,
        ttl_ms: int,
        destroy: bool = False,
        grace_ms: int | None = None,
        if_token: int | None = None,
        meta: bytes | None = None,
        identity: bytes | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcome:
        """Makes the lease ours unless a peer has it.

        ``destroy``: as a teardown marker. ``grace_ms``: adopt, only if nobody has had it for so
        long. ``if_token``: with destroy, only if our lease has that token.
        """
        request = self._write(
            "claim", namespace, owner, ttl_ms=ttl_ms, destroy=destroy, grace_ms=grace_ms
        )
        return self._one(request, Item(key, if_token, meta, identity), deadline_ms)

    def renew(
        self,
        key: str,
        *,
        ttl_ms: int,
        reestablish: bool = False,
        if_token: int | None = None,
        meta: bytes | None = None,
        identity: bytes | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcome:
        """Extends our lease: RENEWED, LAPSED, LOST or STALE.

        ``reestablish``: grants it anew where nobody has it; with that ``meta`` and ``identity``.
        """
        request = self._write("renew", namespace, owner, ttl_ms=ttl_ms, reestablish=reestablish)
        return self._one(request, Item(key, if_token, meta, identity), deadline_ms)

    def heartbeat(
        self,
        key: str,
        *,
        ttl_ms: int,
        if_token: int | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcome:
        """Extends our teardown marker: RENEWED, LAPSED, LOST or STALE."""
        request = self._write("heartbeat", namespace, owner, ttl_ms=ttl_ms)
        return self._one(request, Item(key, if_token), deadline_ms)

    def release(
        self,
        key: str,
        *,
        if_token: int | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcome:
        """Ends our lease or marker: RELEASED, NOT_OWNER or STALE."""
        request = self._write("release", namespace, owner)
        return self._one(request, Item(key, if_token), deadline_ms)

    # --- many keys: 1..10000, one outcome each, in their order ---

    def claim_many(
        self,
        keys: Keys,
        *,
        ttl_ms: int,
        destroy: bool = False,
        grace_ms: int | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcomes:
        """As ``claim``. A key may carry UNAVAILABLE or UNKNOWN in place of its outcome."""
        request = self._write(
            "claim", namespace, owner, ttl_ms=ttl_ms, destroy=destroy, grace_ms=grace_ms
        )
        return self._many(request, keys, deadline_ms)

    def renew_many(
        self,
        keys: Keys,
        *,
        ttl_ms: int,
        reestablish: bool = False,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcomes:
        """As ``renew``. A key may carry UNAVAILABLE or UNKNOWN in place of its outcome."""
        request = self._write("renew", namespace, owner, ttl_ms=ttl_ms, reestablish=reestablish)
        return self._many(request, keys, deadline_ms)

    def release_many(
        self,
        keys: Keys,
        *,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Outcomes:
        """As ``release``. A key may carry UNKNOWN in place of its outcome."""
        return self._many(self._write("release", namespace, owner), keys, deadline_ms)

    # --- all that an owner has ---

    def renew_all(
        self,
        *,
        ttl_ms: int,
        set_version: int | None = None,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> RenewAll:
        """Renews every lease of ours in state ``own``; see ``RenewAll`` for ``set_version``."""
        request = self._write(
            "renew_all", namespace, owner, ttl_ms=ttl_ms, set_version=set_version
        )
        return self._run(request, deadline_ms, _renew_all)

    def release_all(
        self,
        *,
        namespace: str | None = None,
        owner: str | None = None,
        deadline_ms: int | None = None,
    ) -> Count:
        """Ends every lease of ours in state ``own``."""
        return self._run(self._write("release_all", namespace, owner), deadline_ms, _count)

    # --- reads ---

    def owner(
        self,
        key: str,
        *,
        stale: bool = False,
        namespace: str | None = None,
        deadline_ms: int | None = None,
    ) -> Lease | None:
        """The lease of the key, None where nobody has it. ``stale``: as this node knows it."""
        return self.owners((key,), stale=stale, namespace=namespace, deadline_ms=deadline_ms)[0]

    def owners(
        self,
        keys: Iterable[str],
        *,
        stale: bool = False,
        namespace: str | None = None,
        deadline_ms: int | None = None,
    ) -> Leases:
        """Likewise for 1..10000 keys, in their order."""
        began_ns = now_ns()
        items = _items_of(keys)
        request = Request("owner", self._space(namespace), None, items, stale=stale)
        return self._run(request, deadline_ms, _leases, began_ns)

    def list(
        self,
        *,
        prefix: str | None = None,
        owner: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int | None = None,
        stale: bool = False,
        namespace: str | None = None,
        deadline_ms: int | None = None,
    ) -> Page:
        """One page of leases in byte order of their keys; ``owner`` is a filter here.

        ``after``: only greater keys. ``limit``: at most so many, 1..1000.
        """
        request = Request(
            "list",
            self._space(namespace),
            owner,
            stale=stale,
            prefix=prefix,
            state=state,
            after=after,
            limit=limit,
        )
        return self._run(request, deadline_ms, _page)

    def leases(
        self,
        *,
        prefix: str | None = None,
        owner: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int | None = None,
        stale: bool = False,
        namespace: str | None = None,
        deadline_ms: int | None = None,
    ) -> Iterator[Lease]:
        """The leases of all pages; each page is true of its own position. ``limit``: of a page,
        ``deadline_ms``: of the call for each."""
        while True:
            page = self.list(
                prefix=prefix,
                owner=owner,
                state=state,
                after=after,
                limit=limit,
                stale=stale,
                namespace=namespace,
                deadline_ms=deadline_ms,
            )
            yield from page.leases
            if not page.more or not page.leases:
                return
            after = page.leases[-1].key

    def count(
        self,
        *,
        prefix: str | None = None,
        owner: str | None = None,
        state: State | None = None,
        stale: bool = False,
        namespace: str | None = None,
        deadline_ms: int | None = None,
    ) -> Count:
        """How many leases there are of that kind; ``owner`` is a filter here."""
        request = Request(
            "count", self._space(namespace), owner, stale=stale, prefix=prefix, state=state
        )
        return self._run(request, deadline_ms, _count)

    # --- node and cluster ---

    def hello(self, *, deadline_ms: int | None = None) -> Fields:
        """Versions and identity of the node."""
        return self._fields(Request("hello", version=PROTOCOL_VERSION), deadline_ms)

    def status(self, *, deadline_ms: int | None = None) -> Fields:
        """How the node is."""
        return self._fields(Request("status"), deadline_ms)

    def metrics(self, *, deadline_ms: int | None = None) -> Fields:
        """What the node counts."""
        return self._fields(Request("metrics"), deadline_ms)

    def members(self, *, deadline_ms: int | None = None) -> Members:
        """One map per node of the cluster."""
        return self._run(Request("members"), deadline_ms, _members)

    def purge(self, *, namespace: str, deadline_ms: int | None = None) -> Count:
        """Administrator: ends every lease of a namespace, markers too."""
        request = Request("purge", rules.check_namespace(namespace))
        return self._run(request, deadline_ms, _count)

    def cluster_init(
        self,
        voters: int | None = None,
        token_floor: int | None = None,
        *,
        deadline_ms: int | None = None,
    ) -> Fields:
        """Administrator: makes a cluster of this node alone, which others may join."""
        request = Request("cluster_init", voters=voters, token_floor=token_floor)
        return self._fields(request, deadline_ms)

    def cluster_transfer(
        self, node_id: int | None = None, *, deadline_ms: int | None = None
    ) -> Fields:
        """Administrator: another node shall lead; None: any."""
        return self._fields(Request("cluster_transfer", node_id=node_id), deadline_ms)

    # --- how all of them are done ---

    def _space(self, namespace: str | None) -> str:
        return self._namespace if namespace is None else namespace

    def _write(
        self,
        method: str,
        namespace: str | None,
        owner: str | None,
        *,
        ttl_ms: int | None = None,
        destroy: bool = False,
        grace_ms: int | None = None,
        reestablish: bool = False,
        set_version: int | None = None,
    ) -> Request:
        return Request(
            method,
            self._space(namespace),
            self.owner_id if owner is None else owner,
            ttl_ms=ttl_ms,
            destroy=destroy,
            grace_ms=grace_ms,
            reestablish=reestablish,
            set_version=set_version,
        )

    def _one(self, request: Request, item: Item, deadline_ms: int | None) -> Outcome:
        request.items = (item,)
        return self._run(request, deadline_ms, _outcome)

    def _many(self, request: Request, keys: Keys, deadline_ms: int | None) -> Outcomes:
        began_ns = now_ns()
        request.items = _items_of(keys)
        return self._run(request, deadline_ms, _outcomes, began_ns)

    def _fields(self, request: Request, deadline_ms: int | None) -> Fields:
        return self._run(request, deadline_ms, _fields_of)

    def _run(
        self,
        request: Request,
        deadline_ms: int | None,
        finish: Callable[[Result], _Answer],
        began_ns: int | None = None,
    ) -> _Answer:
        """``began_ns``: when the caller called, if something was done since; the deadline counts
        from there."""
        if began_ns is None:
            began_ns = now_ns()
        length_ms = self._deadline_ms
        if deadline_ms is not None:
            length_ms = rules.check_deadline_ms(deadline_ms)
        request.check()
        return Call(self._pool, request, began_ns + length_ms * NS_PER_MS, finish).run()


# --- what is made of a result; the decoder answers each method with its own kind ---


def _expect(kind: type[_Answer], value: object) -> _Answer:
    if not isinstance(value, kind):
        raise AssertionError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _outcome(result: Result) -> Outcome:
    """Of one key; an error in place of its outcome is raised."""
    (outcome,) = _outcomes(result)
    if outcome.kind is Kind.UNAVAILABLE:
        raise UnavailableError(
            f"a limit of the table is reached: {outcome.limit}",
            status="LIMIT",
            detail=outcome.limit,
        )
    if outcome.kind is Kind.UNKNOWN:
        raise UnknownError("no answer before the deadline", status="UNKNOWN")
    return outcome


def _outcomes(result: Result) -> Outcomes:
    return [_expect(Outcome, one) for one in _expect(tuple, result)]


def _leases(result: Result) -> Leases:
    return [None if one is None else _expect(Lease, one) for one in _expect(tuple, result)]


def _members(result: Result) -> Members:
    return [_expect(dict, row) for row in _expect(tuple, result)]


def _renew_all(result: Result) -> RenewAll:
    return _expect(RenewAll, result)


def _count(result: Result) -> Count:
    return _expect(Count, result)


def _page(result: Result) -> Page:
    return _expect(Page, result)


def _fields_of(result: Result) -> Fields:
    return _expect(Fields, result)


def _checked_path(socket_path: object) -> bytes:
    """The path as the kernel takes it."""
    if not isinstance(socket_path, (str, os.PathLike)):
        raise rules.invalid("socket", rules.describe(socket_path), rules.RULE_SOCKET)
    path = os.fsencode(socket_path)
    if not 1 <= len(path) <= rules.SOCKET_LEN_MAX or b"\0" in path:
        raise rules.invalid("socket", rules.escape(path), rules.RULE_SOCKET)
    return path


def _items_of(keys: Keys) -> tuple[Item, ...]:
    """One item per key; a text is no list of its letters."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise rules.invalid("keys", rules.describe(keys), rules.RULE_KEYS)
    if isinstance(keys, Sequence) and len(keys) > rules.KEYS_MAX:
        raise rules.invalid("keys", str(len(keys)), rules.RULE_KEYS)
    some = itertools.islice(keys, rules.KEYS_MAX + 1)
    return tuple(key if isinstance(key, Item) else Item(key) for key in some)
