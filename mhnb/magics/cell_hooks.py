"""Hooks into IPython and ipykernel that make a `%%mhjax` cell faster and leave every other cell alone.

One lets a `%%mhjax` cell skip IPython's parsing. The other leaves out the kernel's pause after a cell that printed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core import prefilter
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

_MAGIC = "%%mhjax"
_NEEDS_CLEANUP = re.compile(r"^[^\S\n]+$|>>>|In \[|\.\.\.:", re.MULTILINE)
"""Text in a body that IPython's own clean-up may change: lines of blanks only, and pasted prompts."""
_SAMPLE = f"{_MAGIC} --ranks '0'\nif x:\n    y = \"a\\n\" 'b'\n"


class FastTransform:
    """Replaces one shell's `transform_cell`. `uninstall` restores it.

    Args:
        shell: the notebook's shell.
        own_transformers: mhnb's own transformers, at the end of the clean-up transformers.
    """

    def __init__(self, shell: Any, own_transformers: Sequence[Callable[[list[str]], list[str]]]) -> None:
        self._shell = shell
        manager = TransformerManager()
        self._expected_transformers = [
            [*manager.cleanup_transforms, *own_transformers],
            manager.line_transforms,
            manager.token_transformers,
            [],
            [],
            _builtin_checkers(shell),
        ]
        self._original_transform: Callable[[str], str] = shell.transform_cell

    def install(self) -> None:
        """Install the replacement, unless `transform_cell` is already patched or this IPython transforms a sample differently."""
        is_unpatched = getattr(self._original_transform, "__func__", None) is InteractiveShell.transform_cell
        if is_unpatched and TransformerManager().transform_cell(_SAMPLE) == _format_magic_call(_SAMPLE):
            self._shell.transform_cell = self.transform

    def uninstall(self) -> None:
        """Restore `transform_cell`, unless it was patched again in the meantime by code that may call the replacement."""
        if vars(self._shell).get("transform_cell") == self.transform:
            del self._shell.transform_cell

    def transform(self, cell: str) -> str:
        """Return the code that IPython would run."""
        return (
            _format_magic_call(cell)
            if _is_simple_cell(cell) and self._current_transformers() == self._expected_transformers
            else self._original_transform(cell)
        )

    def _current_transformers(self) -> list[list[Any]]:
        """Return all transformers and checkers that would see the cell, because those that the user added must run."""
        shell, manager = self._shell, self._shell.input_transformer_manager
        return [
            manager.cleanup_transforms,
            manager.line_transforms,
            manager.token_transformers,
            shell.input_transformers_post,
            shell.prefilter_manager.transformers,
            shell.prefilter_manager.checkers,
        ]


def _builtin_checkers(shell: Any) -> list[Any]:
    return [each for each in shell.prefilter_manager.checkers if type(each).__module__ == prefilter.__name__]


def _is_simple_cell(cell: str) -> bool:
    head, _, body = cell.partition("\n")
    # IPython may end the line before the newline, for example at a form feed.
    return (head == _MAGIC or head.startswith(f"{_MAGIC} ")) and head.isprintable() and not _NEEDS_CLEANUP.search(body)


def _format_magic_call(cell: str) -> str:
    head, _, body = cell.partition("\n")
    _, _, line = head.rstrip()[2:].partition(" ")
    body = body if body.endswith("\n") else f"{body}\n"
    return f"get_ipython().run_cell_magic('mhjax', {line!r}, {body!r})\n"


# -- skip ipykernel's pause before a reply


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
