"""What a node in memory answers: a request carried out on a table, as the maps of a reply.

Pure; docs/protocol.md, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenure.errors import TenureError
from tenure.testing.request import KEY_METHODS, Request
from tenure.testing.table import (
    PLACE_END,
    Ask,
    Decision,
    Filter,
    Grant,
    HeldLease,
    LeaseTable,
    Verb,
)


@dataclass
class Answer:
    """The result map, and the grants to settle if it is not wholly written."""

    result: dict[str, Any]
    grants: list[Grant] = field(default_factory=list)


def carry_out(table: LeaseTable, request: Request) -> Answer:
    """Of every method that is about leases; others are the node's own."""
    if request.method in KEY_METHODS:
        return _decide(table, request)
    place = 0
    if request.method == "renew_all":
        body = _renew_all(table, request)
    elif request.method == "release_all":
        body = {"count": table.release_all(request.namespace, request.owner or b"")}
    elif request.method == "purge":
        body = {"count": table.purge(request.namespace)}
    else:
        place = PLACE_END
        body = _read(table, request)
    return Answer({**position(table, place), **body})


def position(table: LeaseTable, place: int = PLACE_END) -> dict[str, Any]:
    """What every reply is true of."""
    return {"index": table.index, "place": place, "clock_ms": table.clock_ms}


def error_map(error: TenureError) -> dict[str, Any]:
    """An error as it is sent."""
    named = {
        "code": error.code,
        "status": error.status,
        "message": error.message,
        "detail": error.detail,
        "field": error.field,
        "value": error.value,
        "rule": error.rule,
    }
    return {name: value for name, value in named.items() if value is not None}


def _decide(table: LeaseTable, request: Request) -> Answer:
    ask = Ask(
        _verb_of(request),
        request.namespace,
        request.owner or b"",
        request.ttl_ms,
        request.grace_ms if request.adopt else None,
    )
    decisions = table.decide(ask, request.items)
    outcomes = [_outcome_map(decision, table.clock_ms) for decision in decisions]
    grants = [decision.grant for decision in decisions if decision.grant is not None]
    return Answer({**position(table, 0), "outcomes": outcomes}, grants)


def _verb_of(request: Request) -> Verb:
    if request.method == "claim" and request.destroy:
        return Verb.DESTROY
    if request.method == "renew" and request.reestablish:
        return Verb.REESTABLISH
    return Verb(request.method)


def _outcome_map(decision: Decision, clock_ms: int) -> dict[str, Any]:
    outcome: dict[str, Any] = {"outcome": decision.kind.value}
    if decision.token is not None and decision.expiry_ms is not None:
        outcome["token"] = decision.token
        outcome["ms_left"] = decision.expiry_ms - clock_ms
    if decision.held_before:
        outcome["held_before"] = True
    if decision.holder is not None:
        outcome["holder"] = {
            "owner": decision.holder.owner.decode(),
            "state": decision.holder.state.value,
            "token": decision.holder.token,
            "ms_left": decision.holder.expiry_ms - clock_ms,
        }
    if decision.grace_ms_left is not None:
        outcome["grace_ms_left"] = decision.grace_ms_left
    if decision.limit is not None:
        outcome["limit"] = decision.limit
    return outcome


def _renew_all(table: LeaseTable, request: Request) -> dict[str, Any]:
    renewed = table.renew_all(
        request.namespace, request.owner or b"", request.ttl_ms, request.set_version
    )
    body: dict[str, Any] = {
        "count": renewed.count,
        "set_version": renewed.set_version,
        "departures": [
            {"key": one.key.decode(), "token": one.token, "reason": one.reason.value}
            for one in renewed.departures
        ],
    }
    if renewed.list_again:
        body["list_again"] = True
    return body


def _read(table: LeaseTable, request: Request) -> dict[str, Any]:
    body: dict[str, Any] = {"stale": True} if request.stale else {}
    wanted = Filter(
        request.namespace, request.owner, request.state, request.prefix, request.after
    )
    if request.method == "count":
        body["count"] = table.count(wanted)
    elif request.method == "list":
        leases, more = table.page(wanted, request.limit)
        body["leases"] = [_lease_map(lease, table.clock_ms) for lease in leases]
        if more:
            body["more"] = True
    else:
        held = [table.owner(request.namespace, item.key) for item in request.items]
        body["leases"] = [
            None if lease is None else _lease_map(lease, table.clock_ms) for lease in held
        ]
    return body


def _lease_map(lease: HeldLease, clock_ms: int) -> dict[str, Any]:
    named: dict[str, Any] = {
        "ns": lease.namespace.decode(),
        "key": lease.key.decode(),
        "owner": lease.owner.decode(),
        "state": lease.state.value,
        "ttl_ms": lease.ttl_ms,
        "ms_left": lease.expiry_ms - clock_ms,
        "token": lease.token,
        "since_ms": lease.since_ms,
        "meta": lease.meta,
        "identity": lease.identity,
    }
    return {name: value for name, value in named.items() if value is not None}
