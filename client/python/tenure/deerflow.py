"""DeerFlow on Tenure, by configuration alone: DeerFlow itself is not changed.

DeerFlow keeps which gateway answers for which sandbox in an ownership store, in memory or in Redis.
Its factory imports the Redis store *by module name when it builds one*. ``install()`` puts a module
of ours under that name, which builds a `RaftOwnershipStore` for URLs of the form

    tenure+unix:///run/tenure/api.sock

and refuses every other URL, so that a gateway that was moved cannot fall back to Redis unnoticed.
In config.yaml that is (docs/deerflow.md has the whole story)::

    plugins:
      - name: tenure
        use: "tenure.deerflow:install_extension"
        required: true
    sandbox:
      ownership:
        type: redis
        redis_url: "tenure+unix:///run/tenure/api.sock"

Importing this module, and ``install()``, import nothing of DeerFlow, connect to nothing and start
nothing: they may run in processes that never serve a request. DeerFlow is imported when the store
is first used. Where it is not installed the class can still be used, with outcomes and errors of
its own; DeerFlow's factory, however, is never given such a store but gets an ImportError.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tenure.errors import InvalidError

if TYPE_CHECKING:
    from tenure._deerflow_shape import OwnershipBackendError, RenewOutcome, SandboxOwnershipStore
    from tenure._deerflow_store import RaftOwnershipStore

__all__ = [
    "OwnershipBackendError",
    "RaftOwnershipStore",
    "RenewOutcome",
    "SandboxOwnershipStore",
    "install",
    "install_extension",
    "parse_url",
]

SCHEME = "tenure+unix"
OTHER_URLS_VARIABLE = "TENURE_DEERFLOW_OTHER_URLS"
KEY_PREFIX = "deerflow:sandbox:owner"
"""DeerFlow's own default of ``key_prefix``."""

_FROM_STORE = frozenset(
    ("OwnershipBackendError", "RaftOwnershipStore", "RenewOutcome", "SandboxOwnershipStore")
)
_PACKAGE = "deerflow.community.aio_sandbox.ownership"
_REDIS_MODULE = f"{_PACKAGE}.redis"
_ORIGINAL_MODULE = f"{_PACKAGE}._redis_beside_tenure"

logger = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name in _FROM_STORE:
        return getattr(importlib.import_module("tenure._deerflow_store"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- URLs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoreUrl:
    """What a URL of ours says. ``deadline_ms``: of one call in all; None: the store's default."""

    socket_path: str
    deadline_ms: int | None = None


_DIGITS_MAX = 10  # of a number of milliseconds: more than any store takes
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRETS = re.compile(r"(?<=:)(?P<slashes>/*).*@|(?P<name>pass\w*=)[^&#]*", re.IGNORECASE)


def _bad_url(url: str, rule: str) -> InvalidError:
    """Shows the URL without what may be a password: all before an @, an option of that name."""
    value = _SECRETS.sub(lambda found: f"{found['slashes'] or found['name'] or ''}...", url)
    return InvalidError(
        f"redis_url: {value}: {rule}", status="INVALID", field="redis_url", value=value, rule=rule
    )


def _split(url: str) -> SplitResult | None:
    """None: what looks like a host is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _scheme_of(url: str) -> str:
    """What may be said of a URL: never its host, which stands beside a password."""
    found = _SCHEME.match(url)
    return f"{found[1].lower() if found else 'no scheme'}://..."


def parse_url(url: str) -> StoreUrl | None:
    """Reads ``tenure+unix:///PATH[?deadline_ms=N]``; None for a URL of another kind.

    The path is absolute and percent-encoded where it has a ``?``, ``#`` or ``%``.

    Raises:
        InvalidError: ours by its scheme, but not of that form.
    """
    parts = _split(url)
    if parts is None:
        # Raised here and not where the cause is caught, for the cause tells what is in the URL.
        if _scheme_of(url) != f"{SCHEME}://...":
            return None
        raise _bad_url(url, "has brackets or characters that no URL has")
    if parts.scheme != SCHEME:
        return None
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/":
        raise _bad_url(url, f"must name an absolute path after three slashes: {SCHEME}:///PATH")
    if parts.fragment:
        raise _bad_url(url, "must have no fragment")
    deadline_ms = None
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "deadline_ms":
            raise _bad_url(url, f"has an unknown option `{name}`; there is deadline_ms only")
        if deadline_ms is not None:
            raise _bad_url(url, "has deadline_ms more than once")
        if not (value.isascii() and value.isdigit()) or len(value) > _DIGITS_MAX:
            raise _bad_url(
                url, f"deadline_ms must be a whole number of milliseconds, 1..{_DIGITS_MAX} digits"
            )
        deadline_ms = int(value)
    return StoreUrl(path, deadline_ms)


# --- The module in the place of DeerFlow's Redis store --------------------------------------------


def _original_store() -> Any:
    """DeerFlow's own Redis store, loaded from its file under another name."""
    module = sys.modules.get(_ORIGINAL_MODULE)
    if module is None:
        package = importlib.import_module(_PACKAGE)
        found = importlib.machinery.PathFinder.find_spec(_REDIS_MODULE, package.__path__)
        if found is None or found.origin is None:
            raise ImportError(f"DeerFlow has no {_REDIS_MODULE}")
        spec = importlib.util.spec_from_file_location(_ORIGINAL_MODULE, found.origin)
        if spec is None or spec.loader is None:
            raise ImportError(f"{found.origin} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_ORIGINAL_MODULE] = module
    return module.RedisOwnershipStore


class _Shim(types.ModuleType):
    """The module under DeerFlow's name. ``other_urls``: whether DeerFlow's own store may be built.

    It carries what it was told, so that nothing of this process' choice lives anywhere else.
    """

    def __init__(self) -> None:
        super().__init__(_REDIS_MODULE, "Builds Tenure's ownership store for Tenure's URLs.")
        self.__package__ = _PACKAGE
        self.__spec__ = importlib.machinery.ModuleSpec(_REDIS_MODULE, None)
        self.other_urls = False
        shim = self

        class RedisOwnershipStore:
            """Has the constructor of DeerFlow's class; gives a store of the kind of the URL."""

            def __new__(
                cls,
                *,
                owner_id: str,
                redis_url: str,
                ttl_seconds: float,
                key_prefix: str = KEY_PREFIX,
                **options: Any,
            ) -> Any:
                ours = parse_url(redis_url)
                if ours is None:
                    return shim.build_original(
                        owner_id=owner_id,
                        redis_url=redis_url,
                        ttl_seconds=ttl_seconds,
                        key_prefix=key_prefix,
                        **options,
                    )
                if any(value is not None for value in options.values()):
                    raise _bad_url(redis_url, f"cannot be used together with {sorted(options)}")
                return build_store(
                    ours, owner_id=owner_id, ttl_seconds=ttl_seconds, key_prefix=key_prefix
                )

        self.RedisOwnershipStore = RedisOwnershipStore

    def build_original(self, **arguments: Any) -> Any:
        """DeerFlow's own store, if that was asked for; else InvalidError."""
        if not self.other_urls:
            raise _bad_url(
                _scheme_of(arguments["redis_url"]),
                f"must be {SCHEME}:///PATH, because tenure.deerflow is installed in this process; "
                "to allow other stores beside it set allow_other_urls in the plugin's config, or "
                f"{OTHER_URLS_VARIABLE}=allow",
            )
        logger.warning(
            "sandbox ownership is NOT in Tenure: redis_url is %s and other stores are allowed",
            _scheme_of(arguments["redis_url"]),
        )
        return _original_store()(**arguments)


def _store_class() -> type[RaftOwnershipStore]:
    """Our class, if it is really of DeerFlow's kind: errors of another are not caught there."""
    from tenure._deerflow_store import RaftOwnershipStore

    try:
        base = importlib.import_module(f"{_PACKAGE}.base")
    except ModuleNotFoundError as error:
        raise ImportError(f"tenure.deerflow needs DeerFlow: {error}") from error
    if not issubclass(RaftOwnershipStore, base.SandboxOwnershipStore):
        raise ImportError(
            "tenure.deerflow was first used when DeerFlow could not be imported yet; use it later"
        )
    return RaftOwnershipStore


def build_store(
    url: StoreUrl, *, owner_id: str, ttl_seconds: float, key_prefix: str
) -> RaftOwnershipStore:
    """The store that a URL of ours names; ``key_prefix`` without trailing ':' is the namespace."""
    store_class = _store_class()
    namespace = key_prefix.rstrip(":")
    options = {} if url.deadline_ms is None else {"deadline_ms": url.deadline_ms}
    store = store_class(
        owner_id=owner_id,
        socket_path=url.socket_path,
        ttl_seconds=ttl_seconds,
        namespace=namespace,
        **options,
    )
    logger.info(
        "sandbox ownership is in Tenure: socket %s, namespace %s", url.socket_path, namespace
    )
    return store


def install(*, allow_other_urls: bool | None = None) -> None:
    """Makes DeerFlow's factory build Tenure's store; to be called before the first provider.

    Does nothing else, so it may run in any process of a gateway, and any number of times: the last
    call counts. The gateway calls it through `install_extension`; scripts, the terminal program and
    the embedded client call it themselves.

    Args:
        allow_other_urls: True: URLs that are not ours get DeerFlow's own Redis store, with a
            warning in the log. False: they are refused with InvalidError. None: False, unless the
            environment says ``TENURE_DEERFLOW_OTHER_URLS=allow``.
    """
    if allow_other_urls is None:
        allow_other_urls = os.environ.get(OTHER_URLS_VARIABLE) == "allow"
    shim = sys.modules.get(_REDIS_MODULE)
    if not isinstance(shim, _Shim):
        shim = _Shim()
    shim.other_urls = allow_other_urls
    sys.modules[_REDIS_MODULE] = shim


def install_extension(registry: object, config: Mapping[str, object] | None) -> None:
    """Entry point for DeerFlow's ``plugins:``; it contributes nothing to ``registry``.

    Args:
        config: may have ``allow_other_urls``: true or false, see `install`. Nothing else.

    Raises:
        InvalidError: an unknown name, or a value that is no flag. With ``required: true`` the
            gateway then does not start.
    """
    del registry
    allow_other_urls = None
    for name, value in (config or {}).items():
        if name != "allow_other_urls":
            rule = "is not an option of this plugin; there is allow_other_urls only"
            raise InvalidError(
                f"{name}: {rule}", status="INVALID", field=name, value=repr(value), rule=rule
            )
        if not isinstance(value, bool):
            rule = "must be true or false"
            raise InvalidError(
                f"{name}: {value!r}: {rule}",
                status="INVALID",
                field=name,
                value=repr(value),
                rule=rule,
            )
        allow_other_urls = value
    install(allow_other_urls=allow_other_urls)
