"""Removal of a cell's input box once the kernel stops waiting.

Jupyter's protocol has no message for that. JupyterLab's box would stay below the cell, and every later cell would be refused with
"Cell not executed due to pending input". So a display of the cell presses Enter in the box. A front end whose boxes are
others, such as a terminal, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhnb.view.html import new_uid
from mhnb.view.live.screen import Screen

_EMPTY: Mapping[str, Any] = {"text/html": "", "text/plain": ""}
# since JupyterLab 4.6.0: the display is in the page only after its script, so the script's work waits for the end of the event.
# Other front ends that run scripts name no `element`. What is typed so far would be stored as if it had been answered.
_PRESS_ENTER: Mapping[str, Any] = {
    "application/javascript": """\
if (typeof element !== "undefined") queueMicrotask(() => {
  const boxes = element.closest(".jp-OutputArea")?.querySelectorAll("input.jp-Stdin-input") ?? [];
  for (const box of boxes) {
    box.value = "";
    box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  }
});"""
}

_LIMIT_S = 1.0
"""For a page far away. One without a box, or that runs no scripts, never sends a line."""


class InputBox:
    """The input box below one cell.

    A display of the cell removes the box, so the screen must be the cell's own. It is a view for the debugger's console
    if the cell has no other one.

    Args:
        screen: Where the cell's displays appear.
        uid: Unique in the notebook; a new id by default.
        limit_s: How long `close_input` waits at most.
    """

    def __init__(self, screen: Screen, uid: str | None = None, *, limit_s: float = _LIMIT_S) -> None:
        self._screen, self._display_id, self._limit_s = screen, f"{uid or new_uid()}-input", limit_s
        self._is_prepared = False

    def suspend(self) -> None:
        """Prepare for the first line that the user types, from any thread.

        Each line that is typed leaves two outputs, and JupyterLab draws only the first 50 of a cell. So the display that removes the
        box is created before them, and is empty until then.
        """
        if self._screen.rich and not self._is_prepared:
            self._is_prepared = True
            self._screen.show_late(_EMPTY, self._display_id)

    def resume(self) -> None:
        """Do nothing, because only an abandoned line leaves a box."""

    def close_input(self) -> None:
        """Remove the box, if there is one.

        Call it in the cell's own thread, when `input()` has raised. The page sends a line when its box is removed. The
        kernel drops lines that arrive before it asks for the next one, so this waits for that line: an `input()` of the
        next cell would take it for its answer.
        """
        if self._screen.rich:
            self.suspend()
            self._screen.replace_late(_PRESS_ENTER, self._display_id)
            self._screen.wait_for_input(self._limit_s)
            # So that no script is stored in the notebook.
            self._screen.replace_late(_EMPTY, self._display_id)
