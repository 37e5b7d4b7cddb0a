"""Whether the code that called a magic makes use of what it gives."""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["uses_result"]

_SHOWN = frozenset(("POP_TOP", "PRINT_EXPR", "CALL_INTRINSIC_1"))
"""What follows a call that stands alone: it is dropped, or, as a cell's last expression, shown; Python 3.12 renamed that."""


def uses_result(namespace: Mapping[str, Any]) -> bool:
    """Whether the innermost caller whose globals these are assigns the result, or goes on computing with it."""
    frame = sys._getframe(1)  # the documented way to one's callers  # noqa: SLF001
    while frame.f_globals is not namespace:
        if frame.f_back is None:
            return True
        frame = frame.f_back
    following = (step.opname for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    # `%time` evaluates what it times, and shows what that gives; a function's own return is for its caller.
    shown = _SHOWN | {"RETURN_VALUE"} if frame.f_code.co_name == "<module>" else _SHOWN
    return next(following, "") not in shown
