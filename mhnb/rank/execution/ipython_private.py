"""Private names of IPython and ipykernel that a rank's shell uses.

No other module of a rank knows such names. IPython calls private methods, which here call public ones; a rank's shell
overrides those. Each name may be missing in another version: a rank then works without it, and logs the effect.
"""

from __future__ import annotations

import sys
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell

_EFFECTS = {
    "_showtraceback": "libraries that replace this method to format errors have no effect",
    "_format_exception_for_storage": "IPython formats each error a second time, for its history",
}
"""The names that are looked up at the start, with the effect if one is missing."""


def describe_missing_names() -> list[str]:
    """Return a line for each private name that this IPython lacks."""
    missing = [name for name in _EFFECTS if not hasattr(ZMQInteractiveShell, name)]
    return [f"this IPython has no InteractiveShell.{name}: {_EFFECTS[name]}" for name in missing]


class PublicShell(ZMQInteractiveShell):
    """ipykernel's shell with public methods in place of private ones."""

    def show_drawn_error(self, kind: type[BaseException], error: BaseException, drawn: list[str]) -> None:
        """Show an error whose lines are drawn already."""
        show = getattr(super(), "_showtraceback", None)
        if show is None:
            print("\n".join(drawn), file=sys.stderr)
        else:
            show(kind, error, drawn)

    def call_error_hook(self, error: BaseException, drawn: list[str]) -> None:
        """Show an error as IPython does: by `show_drawn_error` or its replacement."""
        self._showtraceback(type(error), error, drawn)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.show_drawn_error(etype, evalue, stb)

    def summarise_error(self, error: BaseException) -> dict[str, Any]:
        """Return what the history keeps of an error."""
        return {"ename": type(error).__name__, "evalue": str(error), "traceback": self.drawn_error or []}

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        return self.summarise_error(exception)

    @property
    def drawn_error(self) -> list[str] | None:
        """The lines of the running cell's last shown error, or None.

        ipykernel sends them to a client that runs code on this engine itself. A version without the name would not read it.
        """
        return getattr(self, "_last_traceback", None)

    @drawn_error.setter
    def drawn_error(self, drawn: list[str] | None) -> None:
        self._last_traceback = drawn
