"""End the rank visibly when mhnb itself fails in it.

An event loop would log the exception and continue, and the notebook would wait for a reply that never comes.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["INTERNAL_ERROR_EXIT_CODE", "exit_on_internal_error"]

INTERNAL_ERROR_EXIT_CODE = 70
"""The value of `EX_SOFTWARE` in sysexits.h: an internal error."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def exit_on_internal_error(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a callback of the event loop that runs no user code unguarded: an exception from it is mhnb's own."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001  # reported below, and the process ends
            # The real descriptor: the supervisor reads the last output there.
            traceback.print_exc(file=sys.__stderr__)
            print("mhnb failed in this rank; please report this", file=sys.__stderr__, flush=True)
            os._exit(INTERNAL_ERROR_EXIT_CODE)

    return guarded
