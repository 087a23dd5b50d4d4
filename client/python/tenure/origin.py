"""Where an exception comes from: from the code that was called, or from a signal handler on top.

CPython runs signal handlers between any two instructions of the main thread, so that whatever a
handler raises seems to be raised by the call that it came upon, be it an error with a number of the
kernel. What tells them apart is the frame of the handler.
"""

from __future__ import annotations


from types import CodeType
from typing import Collection


def is_raised_in(
    error: BaseException, modules: frozenset[str], trusted: Collection[CodeType] = ()
) -> bool:
    """True when every frame that the error went through belongs to one of these modules.

    Ask where it is caught: the frames of whoever calls that code do not count. What goes on below a
    ``trusted`` function is its own affair.
    """
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if frame.f_globals.get("__name__") not in modules:
            return frame.f_code in trusted
        step = step.tb_next
    return True
