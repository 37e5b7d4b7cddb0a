"""Private names of IPython and ipykernel that a rank's shell uses. No other module of a rank knows such names.

IPython calls private methods, which here call public ones; a rank's shell overrides those. Each name may be missing in another version:
then a rank works without it, and its log says what that means.
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
    """Return a line for each private name that this IPython does not have."""
    missing = [name for name in _EFFECTS if not hasattr(ZMQInteractiveShell, name)]
    return [f"this IPython has no InteractiveShell.{name}: {_EFFECTS[name]}" for name in missing]


class PublicShell(ZMQInteractiveShell):
    """ipykernel's shell with a public method in place of each private one that a rank's shell overrides or calls."""

    def show_drawn_error(self, kind: type[BaseException], error: BaseException, drawn: list[str]) -> None:
        """Show an error whose lines are drawn already."""
        show = getattr(super(), "_showtraceback", None)
        if show is None:
            print("\n".join(drawn), file=sys.stderr)
        else:
            show(kind, error, drawn)

    def call_error_hook(self, error: BaseException, drawn: list[str]) -> None:
        """Show an error as IPython does: by `show_drawn_error`, or by what a library or a cell has put in its place."""
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
        """The lines of the error that was shown last; None if the running cell has shown none.

        ipykernel sends them to a client that runs code on this engine itself. A version without the name would not read it.
        """
        return getattr(self, "_last_traceback", None)

    @drawn_error.setter
    def drawn_error(self, drawn: list[str] | None) -> None:
        self._last_traceback = drawn
