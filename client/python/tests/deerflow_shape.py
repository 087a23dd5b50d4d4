"""The few names of DeerFlow that ``tenure.deerflow`` uses, as a package written into a folder.

Tests of the store run with DeerFlow itself where it is installed (tests/deerflow/run) and with this
package everywhere else. It has DeerFlow's module names and the shape of its classes, no more.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile

# DeerFlow's base module is another one than tenure's own shape, which must not be used instead.
_SHAPE = pathlib.Path(__file__).resolve().parents[1] / "tenure" / "_deerflow_shape.py"
_BASE = _SHAPE.read_text(encoding="utf-8")

_PACKAGE = '''
from .base import OwnershipBackendError, RenewOutcome, SandboxOwnershipStore


def make(redis_url, **options):
    """As DeerFlow's factory does it: the store's module is imported when one is built."""
    from .redis import RedisOwnershipStore

    return RedisOwnershipStore(redis_url=redis_url, **options)
'''

_REDIS = '''
from .base import SandboxOwnershipStore


class RedisOwnershipStore:
    """Only keeps what it was built with."""

    base = SandboxOwnershipStore

    def __init__(self, **options):
        self.options = options
'''

OWNERSHIP = "deerflow.community.aio_sandbox.ownership"
REDIS = f"{OWNERSHIP}.redis"
_FILES = {
    "deerflow/__init__.py": "",
    "deerflow/community/__init__.py": "",
    "deerflow/community/aio_sandbox/__init__.py": "",
    "deerflow/community/aio_sandbox/ownership/__init__.py": _PACKAGE,
    "deerflow/community/aio_sandbox/ownership/base.py": _BASE,
    "deerflow/community/aio_sandbox/ownership/redis.py": _REDIS,
}




def provide() -> None:
    """Makes ``deerflow`` importable if it is not already."""
    if importlib.util.find_spec("deerflow") is not None:
        return
    folder = tempfile.mkdtemp(prefix="deerflow-shape-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in _FILES.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    sys.path.append(folder)
