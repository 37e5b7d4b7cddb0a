"""The pause that a kernel makes before it answers, so that output still on its way comes first: none where nothing was put out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import ExecutionResult

__all__ = ["Pause"]

_MAGIC = "%%mhjax"
_ATTRIBUTE = "_execute_sleep"
"""Of ipykernel's kernels, in seconds; a setting of theirs."""


class Pause:
    """Stands between one shell's cells and its kernel's answers; `uninstall` takes it back.

    Args:
        shell: the notebook's.
        is_blank: whether the cell of the ranks that ran last has put out nothing.
    """

    def __init__(self, shell: Any, is_blank: Callable[[], bool]) -> None:
        self._events, self._kernel, self._is_blank = shell.events, getattr(shell, "kernel", None), is_blank
        self._own: float | None = None
        """The kernel's own pause, while it is spared."""

    def install(self) -> None:
        """Stand there, where a kernel has such a pause."""
        if hasattr(self._kernel, _ATTRIBUTE):
            self._events.register("pre_execute", self._restore)
            self._events.register("post_run_cell", self._end_cell)

    def uninstall(self) -> None:
        """Go away, and leave the pause as it was."""
        self._restore()
        if hasattr(self._kernel, _ATTRIBUTE):
            self._events.unregister("pre_execute", self._restore)
            self._events.unregister("post_run_cell", self._end_cell)

    def _end_cell(self, result: ExecutionResult) -> None:
        # A cell that runs others within it ends last, and may have put out what they have not.
        self._restore()
        source = "" if result.info is None else str(result.info.raw_cell)
        if result.success and source.startswith(_MAGIC) and self._is_blank():
            self._own = getattr(self._kernel, _ATTRIBUTE)
            setattr(self._kernel, _ATTRIBUTE, 0.0)

    def _restore(self) -> None:
        if self._own is not None:
            setattr(self._kernel, _ATTRIBUTE, self._own)
            self._own = None
