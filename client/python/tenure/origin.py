"""Where an exception comes from: from the code that was called, or from a signal handler on top.

CPython runs signal handlers between any two instructions of the main thread, so that whatever a
handler raises seems to be raised by the call that it came upon, be it an error with a number of the
kernel. What tells them apart is the frame of the handler.
"""

from __future__ import annotations


def is_raised_in(error: BaseException, modules: frozenset[str]) -> bool:
    """True when every frame that the error went through belongs to one of these modules.

    Ask where it is caught: the frames of whoever calls that code do not count.
    """
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") not in modules:
            return False
        step = step.tb_next
    return True
