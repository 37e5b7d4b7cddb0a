"""What `%%mhjax` becomes for IPython, found out at a tenth of IPython's cost.

IPython takes every cell apart twice before it runs it. Of one that begins with `%%mhjax` the outcome is known: a call of the
magic with the rest of the first line, and the lines below as they are. Whatever could come out otherwise is left to IPython.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["Shortcut"]

_MAGIC = "%%mhjax"
_CLEANED = re.compile(r"^[^\S\n]+$|>>>|In \[|\.\.\.:", re.MULTILINE)
"""What IPython's own clean-up may change in a body: lines of nothing but blanks, and pasted prompts."""
_SAMPLE = f"{_MAGIC} --ranks '0'\nif x:\n    y = \"a\\n\" 'b'\n"


class Shortcut:
    """Stands before one shell's `transform_cell`; `uninstall` takes it back.

    Args:
        shell: the notebook's, with every transformer of ours in place.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._own: Callable[[str], str] = shell.transform_cell
        self._known = self._transformers()

    def install(self) -> None:
        """Stand there, where this IPython makes of a cell what is expected of it."""
        if self._own(_SAMPLE) == self.transform(_SAMPLE):
            self._shell.transform_cell = self.transform

    def uninstall(self) -> None:
        """Go away, unless somebody else stands there by now and may call on us."""
        if vars(self._shell).get("transform_cell") == self.transform:
            del self._shell.transform_cell

    def transform(self, cell: str) -> str:
        """Give what IPython would run."""
        head, _, body = cell.partition("\n")
        if (
            not (head == _MAGIC or head.startswith(f"{_MAGIC} "))
            # The line may end before the newline for IPython, at a form feed say.
            or not head.isprintable()
            or _CLEANED.search(body)
            or self._transformers() != self._known
        ):
            return self._own(cell)
        if not body.endswith("\n"):
            body += "\n"
        _, _, line = head.rstrip()[2:].partition(" ")
        return f"get_ipython().run_cell_magic('mhjax', {line!r}, {body!r})\n"

    def _transformers(self) -> tuple[int, ...]:
        """How many there are of each kind: the user's own ones want to see the cell."""
        shell, manager, prefilter = self._shell, self._shell.input_transformer_manager, self._shell.prefilter_manager
        kinds = (
            manager.cleanup_transforms,
            manager.line_transforms,
            manager.token_transformers,
            shell.input_transformers_post,
            prefilter.transformers,
            prefilter.checkers,
        )
        return tuple(map(len, kinds))
