"""Skip ipykernel's pause before a reply, which lets pending output arrive first, for cells without output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import ExecutionResult

__all__ = ["ReplyPause"]

_MAGIC = "%%mhjax"
_PAUSE_ATTRIBUTE = "_execute_sleep"
"""Attribute of ipykernel's kernels that holds the pause in seconds; one of their settings."""


class ReplyPause:
    """Sets the kernel's pause to 0 for `%%mhjax` cells without output in one shell. `uninstall` reverts it.

    Args:
        shell: the notebook's shell.
        has_no_output: whether the last cell on the ranks produced no output.
    """

    def __init__(self, shell: Any, has_no_output: Callable[[], bool]) -> None:
        self._events, self._kernel, self._has_no_output = shell.events, getattr(shell, "kernel", None), has_no_output
        self._original_pause_s: float | None = None
        """The kernel's own pause while it is disabled; otherwise None."""

    def install(self) -> None:
        """Register the hooks, if the kernel has this pause."""
        if hasattr(self._kernel, _PAUSE_ATTRIBUTE):
            self._events.register("pre_execute", self._restore)
            self._events.register("post_run_cell", self._end_cell)

    def uninstall(self) -> None:
        """Unregister the hooks and restore the pause."""
        self._restore()
        if hasattr(self._kernel, _PAUSE_ATTRIBUTE):
            self._events.unregister("pre_execute", self._restore)
            self._events.unregister("post_run_cell", self._end_cell)

    def _end_cell(self, result: ExecutionResult) -> None:
        # A cell that runs other cells ends last, and may have produced output even if they did not.
        self._restore()
        source = "" if result.info is None else str(result.info.raw_cell)
        if result.success and source.startswith(_MAGIC) and self._has_no_output():
            self._original_pause_s = getattr(self._kernel, _PAUSE_ATTRIBUTE)
            setattr(self._kernel, _PAUSE_ATTRIBUTE, 0.0)

    def _restore(self) -> None:
        if self._original_pause_s is not None:
            setattr(self._kernel, _PAUSE_ATTRIBUTE, self._original_pause_s)
            self._original_pause_s = None
