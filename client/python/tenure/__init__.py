"""Tenure: who answers for a sandbox. The client for Python.

Blocking calls, from any thread, to the node of this host over its unix socket::

    import tenure

    client = tenure.Client("/run/tenure/api.sock", namespace="sandboxes")
    outcome = client.claim("sandbox-1", ttl_ms=30_000)
    if outcome.ok:
        ...  # ours until outcome.deadline_ns; outcome.token is the fencing token

What is promised and what outcomes mean: docs/protocol.md.
"""

from __future__ import annotations

from tenure.client import Client
from tenure.errors import (
    DeniedError,
    IncompatibleError,
    InternalError,
    InvalidError,
    TenureError,
    UnavailableError,
    UnknownError,
)
from tenure.process import new_owner, now_ns
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

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Count",
    "DeniedError",
    "Departure",
    "Fields",
    "Holder",
    "IncompatibleError",
    "InternalError",
    "InvalidError",
    "Item",
    "Kind",
    "Lease",
    "Outcome",
    "Page",
    "Position",
    "Reason",
    "RenewAll",
    "State",
    "TenureError",
    "UnavailableError",
    "UnknownError",
    "Value",
    "__version__",
    "new_owner",
    "now_ns",
]
