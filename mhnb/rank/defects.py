"""What a rank does when mhnb itself fails in it: it ends, in plain sight.

An event loop would log the exception and go on, and the notebook would wait for an answer that never comes.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["DEFECT_EXIT_CODE", "ends_rank_on_defect"]

DEFECT_EXIT_CODE = 70
"""As `EX_SOFTWARE` of sysexits.h: an internal error."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def ends_rank_on_defect(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap an entrance from the event loop that runs no user code unguarded: an exception out of it is mhnb's own."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001  # told below, and the process ends
            # The real descriptor: the supervisor reads the last words there.
            traceback.print_exc(file=sys.__stderr__)
            print("mhnb failed in this rank; please report this", file=sys.__stderr__, flush=True)
            os._exit(DEFECT_EXIT_CODE)

    return guarded
