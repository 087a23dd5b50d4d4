"""pytest plugin: DeerFlow's ownership suites use Tenure where they would use Redis or memory.

DeerFlow's test code runs as it is. When one of its modules has been imported, and before pytest
looks for fixtures in it, a few names in it are pointed at Tenure:

    test_sandbox_ownership_store          the fixture `stores` gives `memory` and `tenure`
    test_sandbox_orphan_reconciliation    two gateways on one shared store: two clients
    both provider modules                 a private memory store: a client in its own namespace

TENURE_TEST_SOCKETS names the sockets of the nodes; owners are spread over them, so that two
gateways of one test speak to two nodes. TENURE_TEST_LEAVE_OUT may name a file with tests that are
not to run: a name per line, `#` begins a comment. With TENURE_TEST_AVOID_LEADER no gateway gets the
node that leads when it is made.

The store's class is looked up when a test needs it and not before: it imports DeerFlow, and the
conftest of DeerFlow's tests has to come first.
"""

from __future__ import annotations

import functools
import importlib
import os
import uuid
import zlib

import pytest

import tenure
import tenure.deerflow

CONTRACT = "test_sandbox_ownership_store"
TWO_GATEWAYS = "test_sandbox_orphan_reconciliation"
PROVIDER = (TWO_GATEWAYS, "test_aio_sandbox_provider")
SOCKETS = [path for path in os.environ.get("TENURE_TEST_SOCKETS", "").split(",") if path]


def _leads(socket_path: str) -> bool:
    try:
        with tenure.Client(socket_path, deadline_ms=500) as client:
            return client.status().values.get("state") == "leader"
    except tenure.TenureError:
        return False  # it is being restarted, and calls wait for it


def socket_for(name: str) -> str:
    """The node beside that gateway."""
    paths = SOCKETS
    if os.environ.get("TENURE_TEST_AVOID_LEADER"):
        paths = [path for path in SOCKETS if not _leads(path)]
    return paths[zlib.crc32(name.encode()) % len(paths)]


class Fleet:
    """Stores of several gateways in one namespace, each at the node that its name falls on."""

    def __init__(self, ttl_seconds: float) -> None:
        self.namespace = f"deerflow-{uuid.uuid4().hex}"
        self.ttl_seconds = ttl_seconds
        self.stores = []

    def make(self, owner_id: str, *, ttl_seconds: float | None = None):
        store = tenure.deerflow.RaftOwnershipStore(
            owner_id=owner_id,
            socket_path=socket_for(owner_id),
            ttl_seconds=self.ttl_seconds if ttl_seconds is None else ttl_seconds,
            namespace=self.namespace,
        )
        self.stores.append(store)
        return store

    def lose_everything(self) -> None:
        with tenure.Client(socket_for("administrator")) as client:
            client.purge(namespace=self.namespace)

    def cleanup(self) -> None:
        """By this name DeerFlow's fixture ends its own factory."""
        self.lose_everything()
        for store in self.stores:
            store.close()


def _point_contract(module) -> None:
    own_factory = module._StoreFactory

    @pytest.fixture(name="stores", params=["memory", "tenure"])
    def stores(request):
        factory = own_factory("memory") if request.param == "memory" else Fleet(60.0)
        try:
            yield factory
        finally:
            factory.cleanup()

    module.stores = stores


class SharedStore:
    """In place of the store object that DeerFlow's tests share between two providers."""

    def __init__(self, *, ttl_seconds: float = 600) -> None:
        self.fleet = Fleet(ttl_seconds)
        self.observer = self.fleet.make("observer")
        self._leases = self  # tests lose the store's state by `_leases.clear()`

    def clear(self) -> None:
        self.fleet.lose_everything()

    def owner(self, sandbox_id: str) -> str | None:
        return self.observer.owner(sandbox_id)


def _point_shared(module) -> None:
    module._make_shared_ownership_store = SharedStore
    module._ScopedOwnershipStore = lambda shared, owner_id: shared.fleet.make(owner_id)


class LeaseView:
    """A lease as tests look at it in the memory store's table."""

    def __init__(self, lease: tenure.results.Lease) -> None:
        self.owner_id = lease.owner
        self.destroying = lease.state is tenure.results.State.DEL


class PrivateLeases:
    def __init__(self, socket_path: str, namespace: str) -> None:
        self.client = tenure.Client(socket_path, namespace=namespace, owner="observer")

    def get(self, sandbox_id: str) -> LeaseView | None:
        lease = self.client.owner(sandbox_id)
        return None if lease is None else LeaseView(lease)


@functools.cache
def _private_store_class() -> type:
    class PrivateStore(tenure.deerflow.RaftOwnershipStore):
        """In place of a memory store. Those tests expect what it says: nobody else sees its
        leases, so that what is found without a lease is adopted without waiting."""

        supports_cross_process = False

        def __init__(self, *, owner_id: str, ttl_seconds: float) -> None:
            namespace, path = f"deerflow-{uuid.uuid4().hex}", socket_for(owner_id)
            super().__init__(owner_id=owner_id, socket_path=path, ttl_seconds=ttl_seconds,
                             namespace=namespace)
            self._leases = PrivateLeases(path, namespace)

    return PrivateStore


@pytest.fixture(autouse=True)
def _private_store_in_place_of_memory(request, monkeypatch):
    if request.module.__name__.rpartition(".")[2] in PROVIDER:
        memory = importlib.import_module("deerflow.community.aio_sandbox.ownership.memory")
        monkeypatch.setattr(memory, "MemoryOwnershipStore", _private_store_class())


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector) -> None:
    """Runs before the module's fixtures are looked for; a failing import is pytest's to report."""
    name = collector.path.stem if isinstance(collector, pytest.Module) else None
    if name not in (CONTRACT, TWO_GATEWAYS):
        return
    try:
        module = collector.obj
    except Exception:
        return
    if name == CONTRACT:
        _point_contract(module)
    else:
        _point_shared(module)


def _left_out() -> set[str]:
    path = os.environ.get("TENURE_TEST_LEAVE_OUT")
    if not path:
        return set()
    with open(path, encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    return {line for line in lines if line}


def _is_left_out(item, names: set[str]) -> bool:
    """A name stands for all of its parameters but `memory`, which no node's fault concerns."""
    return item.name in names or (
        item.originalname in names and "memory" not in item.name.partition("[")[2])


def pytest_collection_modifyitems(config, items) -> None:
    names = _left_out()
    out = [item for item in items if _is_left_out(item, names)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
    try:
        importlib.import_module("redis")
    except ImportError:
        reason = pytest.mark.skip(reason="tests the redis package, which is not installed")
        for item in items:
            if item.name == "test_redis_backend_error_is_wrapped_not_leaked":
                item.add_marker(reason)
