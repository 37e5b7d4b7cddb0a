"""Make `%time` and `%%time` include what the cell has launched, which continues when Python is done with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from IPython.utils import timing

from mhnb.rank.cell.shell import RankShell

__all__ = ["include_launches_in_time"]


def include_launches_in_time(shell: RankShell, wait: Callable[[], None], is_stopped: Callable[[], bool]) -> None:
    """Make IPython's clock of processor time wait first; its magics read it before and after the code.

    The wall clock is read before the first and after the second reading: so the magics themselves wait before they begin.

    Args:
        shell: the rank's shell.
        wait: waits until what was launched has finished, and raises its error. Called on the main thread.
        is_stopped: returns whether the cell was asked to stop, so that there is nothing more to measure.
    """
    read = timing.clock2

    def finish() -> None:
        if threading.current_thread() is threading.main_thread() and not is_stopped():
            wait()

    def wait_and_read() -> tuple[float, float]:
        finish()
        return read()

    timing.clock2 = wait_and_read
    shell.before_time_magic = finish
