"""The contract of DeerFlow's ownership store as a program: what a store must answer.

Time comes from outside, as two instants between which the store did what it was asked. A lease is
then surely alive, surely over, or not to be told; the last raises `Undecided`, and a comparison
gives that run up rather than guess.
"""

from __future__ import annotations

from dataclasses import dataclass


class Undecided(Exception):
    """The call ran too near to the end of a lease."""


@dataclass(frozen=True)
class Moment:
    """When a call was carried out: not before `earliest_s`, not after `latest_s`."""

    earliest_s: float
    latest_s: float


@dataclass(frozen=True)
class Caller:
    owner: str
    ttl_s: float


@dataclass(frozen=True)
class Lease:
    owner: str
    is_teardown: bool
    alive_until_s: float
    over_from_s: float


class Model:
    """One table of leases. Whoever writes a lease gives it his own TTL."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}

    def ask(self, call: str, key: str, caller: Caller, when: Moment) -> object:
        """The answer to that call; `renew` answers with the value of DeerFlow's enum."""
        lease = self._live(key, when)
        is_mine = lease is not None and lease.owner == caller.owner
        is_teardown = lease is not None and lease.is_teardown
        if call == "owner":
            return lease.owner if lease else None
        if call == "release":
            if is_mine:
                del self.leases[key]
            return None
        if call == "renew":
            if lease is None:
                return "lapsed"
            if not is_mine or is_teardown:
                return "lost"
            self._write(key, caller, when, is_teardown=False)
            return "renewed"
        may_write = {
            "take": not is_teardown,
            "claim": lease is None or (is_mine and not is_teardown),
            "claim_destroy": lease is None or is_mine,
        }[call]
        if may_write:
            self._write(key, caller, when, is_teardown=call == "claim_destroy")
        return may_write

    def _live(self, key: str, when: Moment) -> Lease | None:
        lease = self.leases.get(key)
        if lease is None or when.latest_s < lease.alive_until_s:
            return lease
        if when.earliest_s < lease.over_from_s:
            raise Undecided(key)
        del self.leases[key]
        return None

    def _write(self, key: str, caller: Caller, when: Moment, *, is_teardown: bool) -> None:
        self.leases[key] = Lease(caller.owner, is_teardown, when.earliest_s + caller.ttl_s,
                                 when.latest_s + caller.ttl_s)
