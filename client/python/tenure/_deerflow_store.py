"""DeerFlow's ownership store over a `tenure.Client`: the part of ``tenure.deerflow`` that imports
DeerFlow, apart from it so that the rest can be imported anywhere.

What each call means is DeerFlow's contract, restated in tests/test_store_contract.py. A definite
answer is returned; whatever leaves it open raises DeerFlow's own ``OwnershipBackendError``, so that
its callers fail closed. The client knows nothing of DeerFlow.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NoReturn

from tenure.client import Client
from tenure.errors import InvalidError, TenureError
from tenure.results import Kind, Outcome

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tenure._deerflow_shape import OwnershipBackendError, RenewOutcome, SandboxOwnershipStore
else:
    try:
        from deerflow.community.aio_sandbox.ownership.base import (
            OwnershipBackendError,
            RenewOutcome,
            SandboxOwnershipStore,
        )
    except ModuleNotFoundError as missing:
        # Only this kind: any other ImportError may be of a DeerFlow that is being imported.
        logger.warning(
            "DeerFlow cannot be imported here (%s): the store has outcomes and errors of its own",
            missing,
        )
        from tenure._deerflow_shape import (
            OwnershipBackendError,
            RenewOutcome,
            SandboxOwnershipStore,
        )

CALL_MS_MAX = 5000
"""One call in all. DeerFlow waits 12 s for a teardown's last refresh and its release together."""

CALL_MS_MIN = 200

CALL_OVERRUN_MS = 100
"""What a client's call may last beyond its deadline; the deadline is that much shorter, so that a
call really ends within the time that is promised here."""

TTL_MS_MIN = 10
TTL_MS_MAX = 24 * 60 * 60 * 1000

_RENEWED = {
    Kind.RENEWED: RenewOutcome.RENEWED,
    Kind.LAPSED: RenewOutcome.LAPSED,
    Kind.LOST: RenewOutcome.LOST,
}


def _invalid(field: str, value: object, rule: str) -> InvalidError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return InvalidError(
        f"{field}: {shown}: {rule}", status="INVALID", field=field, value=shown, rule=rule
    )


def ttl_ms_of(ttl_seconds: float) -> int:
    """Milliseconds of a TTL as DeerFlow configures it, cut to whole ones as its own stores do.

    Raises:
        InvalidError: not a finite number, or outside what a node takes: better no gateway than one
            that starts and then fails every take.
    """
    rule = f"must be a finite number of seconds in {TTL_MS_MIN / 1000}..{TTL_MS_MAX // 1000}"
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, (int, float)):
        raise _invalid("ttl_seconds", ttl_seconds, rule)
    if abs(ttl_seconds) > TTL_MS_MAX or not math.isfinite(ttl_seconds):
        raise _invalid("ttl_seconds", ttl_seconds, rule)
    ttl_ms = max(1, int(ttl_seconds * 1000))
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise _invalid("ttl_seconds", ttl_seconds, rule)
    return ttl_ms


class RaftOwnershipStore(SandboxOwnershipStore):
    """Which gateway answers for which sandbox, kept in the cluster of the node on this host.

    Construction connects to nothing. Calls block, at most ``deadline_ms`` in all, and may come from
    any thread, from signal handlers and after a fork.

    Args:
        owner_id: this gateway instance; other text than any other instance's, 1..255 bytes.
        socket_path: the local API of the node, for example ``/run/tenure/api.sock``.
        ttl_seconds: how long a lease lives that is not renewed: 0.01 s .. 24 h.
        namespace: leases of different namespaces never meet: 1..64 bytes of ``[a-z0-9._:-]``.
        deadline_ms: longest duration of one call, with connecting and every retry: 200..5000.

    Raises:
        InvalidError: (a ValueError) a parameter breaks a rule; it names field, value and rule.

    Every other method raises DeerFlow's ``OwnershipBackendError`` where the answer is not known:
    nobody listens on the socket, no leader in time, an answer that does not come, a sandbox id that
    a node refuses. Its ``__cause__`` is the `tenure.TenureError` with the exact status.
    """

    supports_cross_process = True

    def __init__(
        self,
        *,
        owner_id: str,
        socket_path: str,
        ttl_seconds: float,
        namespace: str = "default",
        deadline_ms: int = CALL_MS_MAX,
    ) -> None:
        if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int) or not (
            CALL_MS_MIN <= deadline_ms <= CALL_MS_MAX
        ):
            rule = f"must be a whole number of milliseconds in {CALL_MS_MIN}..{CALL_MS_MAX}"
            raise _invalid("deadline_ms", deadline_ms, rule)
        if not isinstance(owner_id, str):
            raise _invalid("owner_id", owner_id, "must be text")
        self._ttl_ms = ttl_ms_of(ttl_seconds)
        self._owner_id = owner_id
        self._client = Client(
            socket_path,
            namespace=namespace,
            owner=owner_id,
            deadline_ms=deadline_ms - CALL_OVERRUN_MS,
        )

    @property
    def owner_id(self) -> str:
        """This instance, as leases name it."""
        return self._owner_id

    def take(self, sandbox_id: str) -> bool:
        """Makes it ours, also from a live peer. False: it is being torn down, by whomever."""
        try:
            outcome = self._client.take(sandbox_id, ttl_ms=self._ttl_ms)
        except TenureError as error:
            _raise_unknown("take", sandbox_id, error)
        return _is_granted(outcome, "take", (Kind.TEARDOWN,))

    def claim(self, sandbox_id: str, *, for_destroy: bool = False) -> bool:
        """Makes it ours if nobody else has it, ``for_destroy`` as a teardown that nobody may take.

        False: a peer has it, or without ``for_destroy`` we are tearing it down ourselves.
        """
        try:
            outcome = self._client.claim(
                sandbox_id, ttl_ms=self._ttl_ms, destroy=bool(for_destroy)
            )
        except TenureError as error:
            _raise_unknown("claim", sandbox_id, error)
        return _is_granted(outcome, "claim", (Kind.HELD, Kind.TEARDOWN))

    def renew(self, sandbox_id: str) -> RenewOutcome:
        """Prolongs our lease. LAPSED: nobody has it. LOST: a peer's, or a teardown, also our own.

        Never makes a lease; turning LAPSED into a claim is the caller's decision.
        """
        try:
            outcome = self._client.renew(sandbox_id, ttl_ms=self._ttl_ms)
        except TenureError as error:
            _raise_unknown("renew", sandbox_id, error)
        if outcome.kind not in _RENEWED:
            _raise_unexpected("renew", outcome)
        return _RENEWED[outcome.kind]

    def release(self, sandbox_id: str) -> None:
        """Ends our lease in either state; somebody else's, or none, is left as it is."""
        try:
            outcome = self._client.release(sandbox_id)
        except TenureError as error:
            _raise_unknown("release", sandbox_id, error)
        if outcome.kind not in (Kind.RELEASED, Kind.NOT_OWNER):
            _raise_unexpected("release", outcome)

    def owner(self, sandbox_id: str) -> str | None:
        """Who has it, also if it is being torn down; None: nobody. Sees every earlier write."""
        try:
            lease = self._client.owner(sandbox_id)
        except TenureError as error:
            _raise_unknown("owner", sandbox_id, error)
        return None if lease is None else lease.owner

    def close(self) -> None:
        """Closes idle connections. Leases stay, and a later call connects again."""
        self._client.close()


def _is_granted(outcome: Outcome, verb: str, refusals: tuple[Kind, ...]) -> bool:
    if outcome.kind is Kind.GRANTED:
        return True
    if outcome.kind not in refusals:
        _raise_unexpected(verb, outcome)
    return False


def _raise_unknown(verb: str, sandbox_id: str, error: TenureError) -> NoReturn:
    raise OwnershipBackendError(
        f"tenure could not {verb} sandbox {sandbox_id!r}: {error.code} ({error.status}): {error}"
    ) from error


def _raise_unexpected(verb: str, outcome: Outcome) -> NoReturn:
    """An outcome outside DeerFlow's contract says nothing that its callers could act upon."""
    raise OwnershipBackendError(
        f"tenure answered {verb} of sandbox {outcome.key!r} with {outcome.kind.value}"
    )
