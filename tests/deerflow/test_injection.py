"""DeerFlow's real factory, plugin loader and provider get our store by configuration alone.

Needs DeerFlow and a node; tests/deerflow/run starts this.
"""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from types import SimpleNamespace

import pytest
from deerflow.community.aio_sandbox import ownership
from deerflow.config.sandbox_config import SandboxConfig, SandboxOwnershipConfig

import tenure.deerflow as plugin

SOCKET = os.environ["TENURE_TEST_SOCKETS"].split(",")[0]
URL = f"tenure+unix://{SOCKET}"
REDIS_MODULE = "deerflow.community.aio_sandbox.ownership.redis"
VARIABLE = "DEER_FLOW_SANDBOX_OWNERSHIP_REDIS_URL"
STREAMS_VARIABLE = "DEER_FLOW_STREAM_BRIDGE_REDIS_URL"


@pytest.fixture(autouse=True)
def not_installed(monkeypatch):
    for name in (VARIABLE, STREAMS_VARIABLE, plugin.OTHER_URLS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    sys.modules.pop(REDIS_MODULE, None)
    yield
    sys.modules.pop(REDIS_MODULE, None)


def section(**options):
    return SandboxOwnershipConfig(
        **{"type": "redis", "redis_url": URL, "key_prefix": f"it:{uuid.uuid4().hex}:", **options})


def test_section_of_the_configuration_gives_our_store():
    plugin.install()
    store = ownership.make_sandbox_ownership_store(
        section(renewal_interval_seconds=10, ttl_multiplier=3), owner_id="gateway:1")
    assert isinstance(store, plugin.RaftOwnershipStore)
    assert isinstance(store, ownership.SandboxOwnershipStore)
    assert store.supports_cross_process is True
    assert store.owner_id == "gateway:1"
    assert store.take("box") is True
    assert store.renew("box") is ownership.RenewOutcome.RENEWED
    assert store.owner("box") == "gateway:1"
    store.release("box")
    assert store.renew("box") is ownership.RenewOutcome.LAPSED


def test_variable_alone_gives_our_store(monkeypatch):
    plugin.install()
    monkeypatch.setenv(VARIABLE, URL)
    monkeypatch.setenv(STREAMS_VARIABLE, "redis://redis:6379/0")
    resolved = ownership.resolve_ownership_config(None)
    assert resolved.type == "redis"
    assert isinstance(ownership.make_sandbox_ownership_store(resolved), plugin.RaftOwnershipStore)


def test_generated_owner_id_is_taken():
    plugin.install()
    store = ownership.make_sandbox_ownership_store(section())
    assert store.take("box") is True
    assert store.owner("box") == store.owner_id
    store.release("box")


def test_plugin_list_of_deerflow_installs_it():
    loader = importlib.import_module("deerflow.extensions.loader")
    spec = loader.ExtensionSpec(
        name="tenure", use="tenure.deerflow:install_extension", required=True)
    _, problems = loader.load_extensions([spec])
    assert problems == []
    assert isinstance(
        ownership.make_sandbox_ownership_store(section()), plugin.RaftOwnershipStore)


def test_plugin_with_an_unknown_option_stops_the_gateway():
    loader = importlib.import_module("deerflow.extensions.loader")
    spec = loader.ExtensionSpec(
        use="tenure.deerflow:install_extension", required=True, config={"retries": 3})
    with pytest.raises(loader.ExtensionLoadError):
        loader.load_extensions([spec])
    assert REDIS_MODULE not in sys.modules


def provider_of(config, monkeypatch):
    """DeerFlow's provider on that ownership section, with no containers and no signal handlers."""
    aio = importlib.import_module("deerflow.community.aio_sandbox.aio_sandbox_provider")
    sandbox = SandboxConfig(
        use="deerflow.community.aio_sandbox:AioSandboxProvider", ownership=config)
    monkeypatch.setattr(
        aio, "get_app_config", lambda: SimpleNamespace(sandbox=sandbox, stream_bridge=None))
    monkeypatch.setattr(aio.AioSandboxProvider, "_create_backend",
                        lambda self: SimpleNamespace(list_running=lambda: []))
    monkeypatch.setattr(aio.AioSandboxProvider, "_register_signal_handlers", lambda self: None)
    monkeypatch.setattr(aio.atexit, "register", lambda *_, **__: None)
    return aio.AioSandboxProvider()


def test_provider_of_deerflow_uses_our_store(monkeypatch):
    plugin.install()
    provider = provider_of(section(), monkeypatch)
    try:
        assert isinstance(provider._ownership, plugin.RaftOwnershipStore)
        assert provider._ownership.owner_id == provider._owner_id
        provider._publish_ownership("box")
        assert provider._ownership.owner("box") == provider._owner_id
        provider._ownership.release("box")
    finally:
        provider.shutdown()


def test_moved_gateway_does_not_start_on_another_url(monkeypatch):
    plugin.install()
    with pytest.raises(ValueError, match="tenure"):
        provider_of(section(redis_url="redis://127.0.0.1:1/0"), monkeypatch)


def test_moved_gateway_does_not_start_on_deerflows_default_url(monkeypatch):
    plugin.install()
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(ValueError, match="tenure"):
        provider_of(section(redis_url=None), monkeypatch)


def test_dead_node_is_deerflows_own_error(tmp_path):
    plugin.install()
    store = ownership.make_sandbox_ownership_store(
        section(redis_url=f"tenure+unix://{tmp_path}/none.sock?deadline_ms=300"))
    with pytest.raises(ownership.OwnershipBackendError):
        store.claim("box")


def test_ttl_that_no_node_takes_is_refused_at_construction():
    plugin.install()
    with pytest.raises(ValueError, match="ttl_seconds"):
        ownership.make_sandbox_ownership_store(
            section(renewal_interval_seconds=0.001, ttl_multiplier=2))


def test_other_urls_get_deerflows_own_store_when_asked_for():
    pytest.importorskip("redis")
    plugin.install(allow_other_urls=True)
    store = ownership.make_sandbox_ownership_store(section(redis_url="redis://127.0.0.1:1/0"))
    assert type(store).__name__ == "RedisOwnershipStore"
    assert isinstance(store, ownership.SandboxOwnershipStore)
    with pytest.raises(ownership.OwnershipBackendError):
        store.claim("box")
    store.close()
