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
