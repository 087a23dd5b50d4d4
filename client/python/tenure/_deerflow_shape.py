"""The shape of DeerFlow's ownership contract, for where DeerFlow cannot be imported.

Type checkers read it instead of DeerFlow, and the store uses it in processes without DeerFlow: in
scripts and tests. Where DeerFlow can be imported its own classes are used, because its callers
compare enum members by identity and catch its exception.
"""

from __future__ import annotations

import abc
import enum


class OwnershipBackendError(RuntimeError):
    """It is not known whose the sandbox is, which is not the same as "not ours"."""


class RenewOutcome(enum.Enum):
    """What a renewal found."""

    RENEWED = "renewed"
    LAPSED = "lapsed"
    LOST = "lost"


class SandboxOwnershipStore(abc.ABC):
    """Base of every ownership store."""

    supports_cross_process = False

    @property
    @abc.abstractmethod
    def owner_id(self) -> str: ...

    @abc.abstractmethod
    def take(self, sandbox_id: str) -> bool: ...

    @abc.abstractmethod
    def claim(self, sandbox_id: str, *, for_destroy: bool = False) -> bool: ...

    @abc.abstractmethod
    def renew(self, sandbox_id: str) -> RenewOutcome: ...

    @abc.abstractmethod
    def release(self, sandbox_id: str) -> None: ...

    @abc.abstractmethod
    def owner(self, sandbox_id: str) -> str | None: ...

    def close(self) -> None:
        """Lets go of what the store holds in this process; leases stay."""
