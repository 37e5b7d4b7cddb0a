"""Hints below a plain cell: a misspelt magic, the notebook's own JAX.

IPython shows its error itself, so nothing of it is replaced. A hint follows in the same place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.core.arguments import find_meant_magic, find_missing_magic
from mhnb.core.cell_request import find_first_code
from mhnb.core.ranks import pluralize
from mhnb.magics.commands import find_command
from mhnb.rank.jax_private import backend_is_initialized
from mhnb.view.document import Line
from mhnb.view.live.screen import show_document

_ASKS_FOR_DEVICES = re.compile(
    r"\bjax\s*\.\s*(?:(?:local_)?devices|(?:local_)?device_count|process_(?:count|index|indices)|make_mesh)\s*\("
)
"""Calls whose answer is about this process, and which users expect to be about the cluster."""
_LINE_WITHOUT_PERCENT = re.compile(r"^((?:\w+\s*=\s*)?)(mhjax(?:\s+[\w-].*)?)$")


def hint_at_magic(error: BaseException | None) -> str:
    """Return a hint about an unknown magic; empty if nothing is close.

    >>> hint_at_magic(UsageError("Cell magic `%%mhajx` not found."))
    'did you mean %%mhjax?'
    >>> hint_at_magic(UsageError("Line magic function `%status` not found."))
    'did you mean %mhjax status?'
    """
    if isinstance(error, SyntaxError):
        # In a cell of its own IPython adds the percent sign.
        typed = _LINE_WITHOUT_PERCENT.match((error.text or "").strip())
        return f"mhjax needs a % before it: {typed[1]}%{typed[2]}" if typed else ""
    missing = find_missing_magic(str(error)) if isinstance(error, UsageError) else None
    if missing is None:
        return ""
    percent, name = missing
    meant = find_meant_magic(name)
    if name == meant and percent == "%%":
        return f"%%{name} must be the first line of its cell: put the code above it into a cell of its own"
    if find_command(name) is not None:
        return f"did you mean %mhjax {name}?"
    return f"did you mean {percent}{meant}?" if meant else ""


class CellHints:
    """Shows the hints of one shell, from `install` to `uninstall`.

    Args:
        shell: of the notebook.
        is_auto_mode: returns whether plain cells go to the ranks too.
    """

    def __init__(self, shell: Any, is_auto_mode: Callable[[], bool]) -> None:
        self._shell, self._is_auto_mode = shell, is_auto_mode
        self._callbacks = {"pre_run_cell": self._before_cell, "post_run_cell": self._after_cell}
        self._had_backend = False
        self._has_explained_backend = False

    def install(self) -> None:
        """Follow the cells of the shell."""
        self._had_backend = backend_is_initialized()
        for event, callback in self._callbacks.items():
            self._shell.events.register(event, callback)

    def uninstall(self) -> None:
        """Stop following them."""
        for event, callback in self._callbacks.items():
            self._shell.events.unregister(event, callback)

    def _before_cell(self, _info: Any) -> None:
        self._had_backend = backend_is_initialized()

    def _after_cell(self, result: Any) -> None:
        if result is None:
            # IPython passes none if it was interrupted before it had one.
            return
        if hint := hint_at_magic(result.error_before_exec or result.error_in_exec):
            # IPython writes its own line there, too.
            print(hint, file=sys.stderr)
        if not self._has_explained_backend and self._used_own_backend(result.info):
            self._has_explained_backend = True
            show_document([Line(_describe_own_backend(), "quiet")])

    def _used_own_backend(self, info: Any) -> bool:
        """Return whether a plain cell created or queried the notebook's JAX backend."""
        if info is None or not backend_is_initialized() or self._is_auto_mode() or not manager.all_clusters():
            return False
        lines = info.raw_cell.splitlines()
        first = find_first_code(lines)
        if first is None or lines[first].lstrip().startswith("%%mhjax"):
            return False
        return not self._had_backend or _ASKS_FOR_DEVICES.search(info.raw_cell) is not None


def _describe_own_backend() -> str:
    devices = sys.modules["jax"].local_devices()
    count = pluralize(len(devices), f"{devices[0].platform.upper()} device")
    return f"this is the notebook's own JAX ({count}), not that of the ranks; %%mhjax runs a cell on the ranks"
