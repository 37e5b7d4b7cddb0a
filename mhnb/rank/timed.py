"""What `%time` and `%%time` measure: also what the cell has launched, which goes on while Python is done with it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils import timing

__all__ = ["time_to_the_end"]


def time_to_the_end(shell: InteractiveShell, wait: Callable[[], None], is_stopped: Callable[[], bool]) -> None:
    """Have IPython's clock of processor time, which its magics read before and after the code, wait first.

    The wall clock is read before the first and after the second reading: so the magics themselves wait before they begin.

    Args:
        shell: the rank's.
        wait: waits until what was launched has finished, and raises what that failed with. Called on the main thread.
        is_stopped: whether the cell was asked to stop, so that there is nothing more to measure.
    """
    read = timing.clock2

    def finish() -> None:
        if threading.current_thread() is threading.main_thread() and not is_stopped():
            wait()

    def wait_and_read() -> tuple[float, float]:
        finish()
        return read()

    timing.clock2 = wait_and_read
    for magics in shell.magics_manager.magics.values():
        magics["time"] = _after(finish, magics["time"])


def _after(finish: Callable[[], None], magic: Callable[..., Any]) -> Callable[..., Any]:
    # With its attributes: by one of them the shell knows that it wants the caller's names.
    @functools.wraps(magic)
    def wait_and_run(*args: Any, **kwargs: Any) -> Any:
        finish()
        return magic(*args, **kwargs)

    return wait_and_run
