"""What the tests of the Python client share: where things are, and a node to ask."""

from __future__ import annotations

import os
import sys
from typing import Iterator

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))

from fake_node import FakeNode  # noqa: E402
from harness import Cluster, Node  # noqa: E402
from tenure import Client  # noqa: E402


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One real node for the whole run; tests keep apart by their namespaces."""
    if "TENURE_BUILD" not in os.environ:
        pytest.skip("TENURE_BUILD names no build")
    with Cluster(1) as running:
        yield running


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return cluster.nodes[0]


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    """A namespace of this test alone."""
    letters = (char if char.isalnum() else "-" for char in request.node.name.lower())
    return "".join(letters)[-64:].strip("-")


@pytest.fixture
def client(node: Node, space: str) -> Iterator[Client]:
    with Client(node.socket_path, namespace=space, owner="me") as made:
        yield made


@pytest.fixture
def fake(tmp_path: os.PathLike[str]) -> Iterator[FakeNode]:
    with FakeNode(os.path.join(tmp_path, "api.sock")) as made:
        yield made
