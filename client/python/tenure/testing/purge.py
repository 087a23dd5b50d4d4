"""Emptying a namespace between tests."""

from __future__ import annotations

from tenure.client import Client


def purge_namespace(socket_path: str, namespace: str) -> None:
    """Ends every lease of the namespace, markers too, at a real node or at one in memory.

    The keys count as unowned since now: whoever adopts waits for a full grace. For a test that
    needs keys that nobody ever had, a namespace of its own is the better choice.

    Raises DeniedError for everybody but root and the node's own user, and like any call of
    ``tenure.Client`` where the node does not answer.
    """
    with Client(socket_path) as client:
        client.purge(namespace=namespace)
