"""A node in memory for tests of whatever uses Tenure: no daemon, no disk, no waiting.

``MemoryNode`` listens at a real unix socket and speaks docs/protocol.md, so that ``tenure.Client``,
a client in another language and the command line can all talk to it; ``ManualClock`` makes leases
expire without a sleep; ``LeaseTable`` is the table alone. ``purge_namespace`` empties a namespace
of any node, real or in memory::

    import tenure
    from tenure.testing import ManualClock, MemoryNode

    def test_a_sandbox_that_was_abandoned_is_adopted():
        clock = ManualClock()
        with MemoryNode(clock=clock) as node:
            ours = tenure.Client(node.socket_path, owner="ours")
            theirs = tenure.Client(node.socket_path, owner="theirs")
            theirs.take("sandbox-1", ttl_ms=30_000)
            clock.advance(30_001)
            assert ours.claim("sandbox-1", ttl_ms=30_000, grace_ms=5_000).kind == "GRACE"
            clock.advance(5_000)
            assert ours.claim("sandbox-1", ttl_ms=30_000, grace_ms=5_000).ok

Faults: ``stop()`` and ``start()``, ``start(forget=True)``, ``unavailable()``, ``silent()``.
"""

from __future__ import annotations

from tenure.testing.clock import BootClock, Clock, ManualClock
from tenure.testing.node import MemoryNode
from tenure.testing.purge import purge_namespace
from tenure.testing.table import LeaseTable, Limits

__all__ = [
    "BootClock",
    "Clock",
    "LeaseTable",
    "Limits",
    "ManualClock",
    "MemoryNode",
    "purge_namespace",
]
