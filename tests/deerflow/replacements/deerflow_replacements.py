"""pytest plugin: replaces what DeerFlow imports and its ownership suites never use.

Importing DeerFlow's sandbox package pulls in agent, model and database packages, only because they
stand in some ``__init__``. For each name below that is *not* installed an empty module takes its
place, whose attributes are classes that accept whatever is done with a name at import time:
deriving, subscripting, decorating, ``|``. What is installed is always used. pydantic, of which more
is needed, has a folder beside this file, which goes to the very end of the path.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types

# With the version that DeerFlow asks the metadata for.
REPLACEABLE = {
    "agent_sandbox": "0.0.30",
    "e2b": "2.30.0",
    "e2b_code_interpreter": "2.8.1",
    "fastapi": "0.136.1",
    "kubernetes": "35.0.0",
    "langchain": "1.3.14",
    "langchain_core": "1.4.9",
    "langchain_openai": "1.2.1",
    "langgraph": "1.2.9",
    "sqlalchemy": "2.0.49",
}


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _NameKind(type):
    """Of a replaced name: whatever is asked of the class itself gives a class again."""

    def __getattr__(cls, name):
        if _is_special(name):
            raise AttributeError(name)
        return replaced_name(name)

    def __getitem__(cls, _):
        return cls

    def __or__(cls, _):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())


class _Name(metaclass=_NameKind):
    def __init__(self, *_, **__):
        pass

    def __init_subclass__(cls, **_):
        pass

    def __getattr__(self, name):
        if _is_special(name):
            raise AttributeError(name)
        return replaced_name(name)

    def __call__(self, *arguments, **options):
        is_decorating = len(arguments) == 1 and callable(arguments[0]) and not options
        return arguments[0] if is_decorating else self


def replaced_name(name: str) -> type:
    """A class for that name; an exception if it is called like one, for `except` clauses."""
    base = Exception if name.endswith(("Error", "Exception")) else _Name
    return type(base)(name, (base,), {"__module__": __name__})


class _EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        if _is_special(name):
            raise AttributeError(name)
        value = replaced_name(name)
        setattr(self, name, value)
        return value


class _Replacer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _EmptyModule(spec.name)

    def exec_module(self, module):
        pass


def _replace_what_is_absent() -> list[str]:
    absent = [name for name in REPLACEABLE if importlib.util.find_spec(name) is None]
    if absent:
        sys.meta_path.append(_Replacer(frozenset(absent)))
        installed_version = importlib.metadata.version

        def version(name: str) -> str:
            module = name.replace("-", "_").lower()
            return REPLACEABLE[module] if module in absent else installed_version(name)

        importlib.metadata.version = version
    if importlib.util.find_spec("pydantic") is None:
        absent.append("pydantic")
        sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    return absent


# The folder of this file comes with it on the path; pydantic in it must not hide the real one.
sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
REPLACED = _replace_what_is_absent()


def pytest_report_header():
    return f"replaced: {', '.join(sorted(REPLACED)) or 'nothing'}"
