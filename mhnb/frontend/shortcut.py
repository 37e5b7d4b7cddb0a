"""Transform `%%mhjax` cells at a tenth of the cost of IPython's own transformation.

IPython parses every cell twice before it runs it. For a cell that begins with `%%mhjax` the outcome is known: a call of the magic
with the rest of the first line, and the lines below unchanged. Any cell that might be transformed differently is left to IPython.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core import prefilter
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Shortcut"]

_MAGIC = "%%mhjax"
_CLEANED = re.compile(r"^[^\S\n]+$|>>>|In \[|\.\.\.:", re.MULTILINE)
"""Text in a body that IPython's own clean-up may change: lines of blanks only, and pasted prompts."""
_SAMPLE = f"{_MAGIC} --ranks '0'\nif x:\n    y = \"a\\n\" 'b'\n"


class Shortcut:
    """Replaces one shell's `transform_cell`. `uninstall` restores it.

    Args:
        shell: the notebook's shell.
        own: mhnb's own transformers, at the end of the clean-up transformers.
    """

    def __init__(self, shell: Any, own: Sequence[Callable[[list[str]], list[str]]]) -> None:
        self._shell = shell
        ipythons = TransformerManager()
        self._known = [
            [*ipythons.cleanup_transforms, *own],
            ipythons.line_transforms,
            ipythons.token_transformers,
            [],
            [],
            _ipythons_checkers(shell),
        ]
        self._transform: Callable[[str], str] = shell.transform_cell

    def install(self) -> None:
        """Install the replacement, unless `transform_cell` is already patched or this IPython transforms a sample differently."""
        is_ipythons = getattr(self._transform, "__func__", None) is InteractiveShell.transform_cell
        if is_ipythons and TransformerManager().transform_cell(_SAMPLE) == _call(_SAMPLE):
            self._shell.transform_cell = self.transform

    def uninstall(self) -> None:
        """Restore `transform_cell`, unless it was patched again in the meantime by code that may call the replacement."""
        if vars(self._shell).get("transform_cell") == self.transform:
            del self._shell.transform_cell

    def transform(self, cell: str) -> str:
        """Return the code that IPython would run."""
        return _call(cell) if _is_ordinary(cell) and self._transformers() == self._known else self._transform(cell)

    def _transformers(self) -> list[list[Any]]:
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


def _ipythons_checkers(shell: Any) -> list[Any]:
    return [each for each in shell.prefilter_manager.checkers if type(each).__module__ == prefilter.__name__]


def _is_ordinary(cell: str) -> bool:
    head, _, body = cell.partition("\n")
    # IPython may end the line before the newline, for example at a form feed.
    return (head == _MAGIC or head.startswith(f"{_MAGIC} ")) and head.isprintable() and not _CLEANED.search(body)


def _call(cell: str) -> str:
    head, _, body = cell.partition("\n")
    _, _, line = head.rstrip()[2:].partition(" ")
    body = body if body.endswith("\n") else f"{body}\n"
    return f"get_ipython().run_cell_magic('mhjax', {line!r}, {body!r})\n"
