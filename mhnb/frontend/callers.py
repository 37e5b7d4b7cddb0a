"""Detect whether the code that called a magic uses its return value."""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["uses_result"]

_UNUSED_OPCODES = frozenset(("POP_TOP", "PRINT_EXPR", "CALL_INTRINSIC_1"))
"""Opcodes after a call whose result is unused: dropped, or shown as a cell's last expression. Python 3.12 renamed the latter."""


def uses_result(namespace: Mapping[str, Any]) -> bool:
    """Return whether the innermost caller with these globals assigns the result or computes with it."""
    frame = sys._getframe(1)  # noqa: SLF001  # the documented way to reach caller frames
    while frame.f_globals is not namespace:
        if frame.f_back is None:
            return True
        frame = frame.f_back
    following = (step.opname for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    # `%time` evaluates its expression and shows the value, so a return at module level is also a display.
    # The return of a function is a use by its caller.
    unused_opcodes = _UNUSED_OPCODES | {"RETURN_VALUE"} if frame.f_code.co_name == "<module>" else _UNUSED_OPCODES
    return next(following, "") not in unused_opcodes
