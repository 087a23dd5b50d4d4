"""How ``tenure.deerflow`` gets into a DeerFlow process: URLs, ``install()``, what it leaves alone.

No node is needed. With DeerFlow's own factory, loader and provider the same is tested in
tests/deerflow/test_injection.py.
"""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import deerflow_shape  # noqa: E402

deerflow_shape.provide()

import tenure.deerflow as plugin  # noqa: E402
from tenure.errors import InvalidError  # noqa: E402

URL = "tenure+unix:///run/tenure/api.sock"
ARGUMENTS = {"owner_id": "gateway:1", "ttl_seconds": 60.0, "key_prefix": "deerflow:owner"}


@pytest.fixture(autouse=True)
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(plugin.OTHER_URLS_VARIABLE, raising=False)
    before = sys.modules.pop(deerflow_shape.REDIS, None)
    yield
    sys.modules.pop(deerflow_shape.REDIS, None)
    if before is not None:
        sys.modules[deerflow_shape.REDIS] = before


def build(url: str, **options: object) -> object:
    """A store, as DeerFlow's factory builds one."""
    module = importlib.import_module(deerflow_shape.REDIS)
    return module.RedisOwnershipStore(redis_url=url, **{**ARGUMENTS, **options})


# --- URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path", "deadline_ms"),
    [
        (URL, "/run/tenure/api.sock", None),
        ("TENURE+UNIX:///run/x.sock", "/run/x.sock", None),
        (f"{URL}?deadline_ms=3000", "/run/tenure/api.sock", 3000),
        ("tenure+unix:///run/a%3Fb%25.sock", "/run/a?b%.sock", None),
    ],
)
def test_url_of_ours(url: str, path: str, deadline_ms: int | None) -> None:
    assert plugin.parse_url(url) == plugin.StoreUrl(path, deadline_ms)


@pytest.mark.parametrize(
    "url", ["redis://host:6379/0", "rediss://host", "unix:///run/redis.sock", "/run/x.sock", ""]
)
def test_url_of_another_kind(url: str) -> None:
    assert plugin.parse_url(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "tenure+unix://",
        "tenure+unix:///",
        "tenure+unix://run/tenure/api.sock",
        "tenure+unix:run/tenure/api.sock",
        f"{URL}#part",
        f"{URL}?retry=1",
        f"{URL}?deadline_ms=",
        f"{URL}?deadline_ms=1.5",
        f"{URL}?deadline_ms=-1",
    ],
)
def test_bad_url_of_ours_names_field_value_and_rule(url: str) -> None:
    with pytest.raises(InvalidError) as caught:
        plugin.parse_url(url)
    assert (caught.value.field, caught.value.value) == ("redis_url", url)
    assert caught.value.rule


@pytest.mark.parametrize(
    "url",
    [
        "tenure+unix://me:secret@host/run/x.sock",
        "tenure+unix://me:sec/ret@host/run/x.sock",
        "tenure+unix://me:sec?ret@host/run/x.sock",
        "tenure+unix://me:secret@[host/run/x.sock",
        "tenure+unix://me:secret@h\u2100st/run/x.sock",
        "tenure+unix:me:secret@host/run/x.sock",
        f"{URL}?password=secret",
        f"{URL}?Password=secret#part",
        "redis://me:secret@[host/0",
        "redis://me:secret@h\u2100st/0",
        "me:secret@[host",
    ],
)
def test_bad_url_is_refused_without_telling_the_password(url: str) -> None:
    plugin.install()
    with pytest.raises(InvalidError) as caught:
        build(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in str(error) and "ret@" not in str(error)
        error = error.__context__
    assert "secret" not in str(caught.value.value)


@pytest.mark.parametrize("query", [f"deadline_ms={'9' * 5000}", "deadline_ms=300&deadline_ms=400"])
def test_deadline_of_the_url_is_one_number_of_few_digits(query: str) -> None:
    with pytest.raises(InvalidError) as caught:
        plugin.parse_url(f"{URL}?{query}")
    assert caught.value.field == "redis_url" and "deadline_ms" in str(caught.value.rule)


# --- install() ------------------------------------------------------------------------------------


def test_our_url_gives_our_store_in_the_prefix_as_namespace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin.install()
    with caplog.at_level(logging.INFO, "tenure.deerflow"):
        store = build(URL, key_prefix="deerflow:sandbox:owner::")
    assert isinstance(store, plugin.RaftOwnershipStore)
    assert store.owner_id == "gateway:1"
    assert "socket /run/tenure/api.sock, namespace deerflow:sandbox:owner" in caplog.text


def test_key_prefix_may_be_left_out() -> None:
    plugin.install()
    module = importlib.import_module(deerflow_shape.REDIS)
    store = module.RedisOwnershipStore(owner_id="gateway:1", redis_url=URL, ttl_seconds=60)
    assert isinstance(store, plugin.RaftOwnershipStore)


def test_deadline_of_the_url_reaches_the_store() -> None:
    plugin.install()
    with pytest.raises(InvalidError) as caught:
        build(f"{URL}?deadline_ms=5001")
    assert caught.value.field == "deadline_ms"
    assert build(f"{URL}?deadline_ms=5000")


def test_prefix_that_is_no_namespace_is_refused_at_construction() -> None:
    plugin.install()
    with pytest.raises(InvalidError):
        build(URL, key_prefix="Upper Case")


def test_client_of_redis_is_refused_with_our_url() -> None:
    plugin.install()
    assert build(URL, client=None)
    with pytest.raises(InvalidError):
        build(URL, client=object())


def test_module_that_was_imported_before_is_replaced() -> None:
    importlib.import_module(deerflow_shape.OWNERSHIP)
    sys.modules[deerflow_shape.REDIS] = type(sys)("imported before")
    plugin.install()
    assert isinstance(build(URL), plugin.RaftOwnershipStore)


def test_other_urls_are_refused_without_telling_the_password() -> None:
    plugin.install()
    with pytest.raises(ValueError) as caught:
        build("redis://:secret@host:6379/0")
    assert isinstance(caught.value, InvalidError)
    assert caught.value.field == "redis_url" and caught.value.value == "redis://..."
    assert "secret" not in str(caught.value) and "host" not in str(caught.value)


def test_installing_again_does_not_change_the_module() -> None:
    plugin.install()
    first = sys.modules[deerflow_shape.REDIS]
    plugin.install()
    assert sys.modules[deerflow_shape.REDIS] is first


def use_the_shapes_own_store() -> None:
    """With DeerFlow itself its Redis store needs the redis package, which may be missing."""
    try:
        importlib.import_module(deerflow_shape.REDIS)
    except ImportError:
        pytest.skip("DeerFlow's own store needs the redis package")
    sys.modules.pop(deerflow_shape.REDIS)


def test_other_urls_get_deerflows_own_store_when_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_the_shapes_own_store()
    plugin.install(allow_other_urls=True)
    with caplog.at_level(logging.WARNING, "tenure.deerflow"):
        store = build("redis://:secret@127.0.0.1:1/0")
    assert type(store).__name__ == "RedisOwnershipStore"
    assert not isinstance(store, plugin.RaftOwnershipStore)
    assert "NOT in Tenure" in caplog.text and "secret" not in caplog.text
    assert isinstance(build(URL), plugin.RaftOwnershipStore)
    assert type(build("redis://127.0.0.1:1/0")) is type(store), "loaded twice"


def test_environment_may_ask_for_other_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_shapes_own_store()
    monkeypatch.setenv(plugin.OTHER_URLS_VARIABLE, "allow")
    plugin.install()
    assert build("redis://127.0.0.1:1/0")
    plugin.install(allow_other_urls=False)
    with pytest.raises(InvalidError):
        build("redis://127.0.0.1:1/0")


def test_any_other_word_of_the_environment_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.OTHER_URLS_VARIABLE, "1")
    plugin.install()
    with pytest.raises(InvalidError):
        build("redis://127.0.0.1:1/0")


# --- install_extension() --------------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, {}, {"allow_other_urls": False}])
def test_plugin_installs_and_uses_no_registry(config: dict[str, object] | None) -> None:
    plugin.install_extension(None, config)
    assert isinstance(build(URL), plugin.RaftOwnershipStore)
    with pytest.raises(InvalidError):
        build("redis://127.0.0.1:1/0")


def test_plugin_config_may_ask_for_other_urls() -> None:
    use_the_shapes_own_store()
    plugin.install_extension(None, {"allow_other_urls": True})
    assert build("redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    "config", [{"allow_other_url": True}, {"allow_other_urls": "yes"}, {"allow_other_urls": 1}]
)
def test_bad_plugin_config_is_refused_and_nothing_is_installed(config: dict[str, object]) -> None:
    with pytest.raises(InvalidError) as caught:
        plugin.install_extension(None, config)
    assert caught.value.field in config and caught.value.rule
    assert deerflow_shape.REDIS not in sys.modules


# --- What it leaves alone -------------------------------------------------------------------------


def run(program: str, *, with_deerflow: bool) -> subprocess.CompletedProcess[str]:
    def has_deerflow(path: str) -> bool:
        return os.path.isdir(os.path.join(path, "deerflow"))

    paths = [path for path in sys.path if path and (with_deerflow or not has_deerflow(path))]
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def test_importing_and_installing_import_nothing_of_deerflow() -> None:
    done = run(
        "import sys, threading, tenure.deerflow as plugin\n"
        "plugin.install()\n"
        "print([name for name in sys.modules if name.startswith('deerflow')], 'redis' in "
        "sys.modules, threading.active_count())",
        with_deerflow=True)
    assert done.stdout.strip() == f"['{deerflow_shape.REDIS}'] False 1", done.stderr


def test_without_deerflow_the_store_has_errors_of_its_own() -> None:
    done = run(
        "import tenure.deerflow as plugin\n"
        "print(plugin.RenewOutcome.LAPSED.value, plugin.RenewOutcome.__module__)\n"
        "store = plugin.RaftOwnershipStore(owner_id='A', socket_path='/none', ttl_seconds=1,"
        " deadline_ms=200)\n"
        "try: store.take('box')\n"
        "except plugin.OwnershipBackendError as error: print(type(error.__cause__).__name__)",
        with_deerflow=False)
    assert done.stdout.split() == ["lapsed", "tenure._deerflow_shape", "UnavailableError"]
    assert "DeerFlow cannot be imported here" in done.stderr


def test_without_deerflow_its_factory_gets_a_clear_error() -> None:
    done = run(
        "import sys, tenure.deerflow as plugin\n"
        "plugin.install()\n"
        f"factory = sys.modules['{deerflow_shape.REDIS}'].RedisOwnershipStore\n"
        "factory(owner_id='A', redis_url='tenure+unix:///none', ttl_seconds=1)",
        with_deerflow=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: tenure.deerflow needs DeerFlow: No module"), done.stderr


def test_store_made_before_deerflow_could_be_imported_is_not_given_to_it() -> None:
    done = run(
        "import sys\n"
        "path, sys.path = sys.path, [p for p in sys.path if 'deerflow-shape' not in p]\n"
        "import tenure.deerflow as plugin\n"
        "plugin.RaftOwnershipStore\n"
        "sys.path = path\n"
        "plugin.install()\n"
        f"factory = sys.modules['{deerflow_shape.REDIS}'].RedisOwnershipStore\n"
        "factory(owner_id='A', redis_url='tenure+unix:///none', ttl_seconds=1)",
        with_deerflow=True)
    last = done.stderr.strip().splitlines()[-1]
    if not any("deerflow-shape" in path for path in sys.path):
        pytest.skip("DeerFlow itself stands in the place of its shape")
    assert last.startswith("ImportError: tenure.deerflow was first used when"), done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = plugin.Nothing
