"""What a call raises when it did not end in an outcome.

An error never means "not yours": refusals (HELD, LOST, ...) are outcomes and are returned. The six
kinds are those of docs/protocol.md, section 1.4, and nothing else is to be decided by:

    InvalidError       breaks a rule; names field, value and rule
    UnavailableError   certainly not done; trying again may help
    UnknownError       may have been done; look, through the same node, before trying again
    DeniedError        this caller may not do that
    IncompatibleError  versions or clusters that cannot work together; names both
    InternalError      a bug or a broken disk; certainly not done
"""

from __future__ import annotations


class TenureError(Exception):
    """Base of everything that this package raises of its own.

    Attributes:
        code: one of the six words of the protocol, e.g. ``"UNAVAILABLE"``.
        status: the exact reason, e.g. ``"NO_LEADER"``; for logs, not for decisions.
        detail: which node, limit or version is meant; None if there is none to name.
        field, value, rule: what broke which rule; None unless the error speaks of a field.
    """

    code = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        status: str | None = None,
        detail: str | None = None,
        field: str | None = None,
        value: str | None = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status if status is not None else self.code
        self.detail = detail
        self.field = field
        self.value = value
        self.rule = rule


class InvalidError(TenureError, ValueError):
    """A parameter breaks a rule: ``field``, ``value`` and ``rule`` name it. Nothing was done."""

    code = "INVALID"


class UnavailableError(TenureError):
    """Certainly not done: no node, no leader, no quorum, disk full, overloaded, a limit reached."""

    code = "UNAVAILABLE"


class UnknownError(TenureError):
    """May have been done. The node settles it; look through the same node before trying again."""

    code = "UNKNOWN"


class DeniedError(TenureError):
    """This caller may not do that. Nothing was done."""

    code = "DENIED"


class IncompatibleError(TenureError):
    """Client and node, or two nodes, cannot work together. The message names both versions."""

    code = "INCOMPATIBLE"


class InternalError(TenureError):
    """A bug or a broken disk; certainly not done. The node's log has the details."""

    code = "INTERNAL"


ERRORS_BY_CODE: dict[str, type[TenureError]] = {
    error.code: error
    for error in (
        InvalidError,
        UnavailableError,
        UnknownError,
        DeniedError,
        IncompatibleError,
        InternalError,
    )
}
