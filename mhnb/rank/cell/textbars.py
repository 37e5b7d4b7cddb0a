"""Have libraries that draw in a browser draw on a rank what can be sent: tqdm text, and matplotlib pictures.

Widgets of a rank reach no browser; bars of text fold into one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["NO_BROWSER", "draw_text_bars"]

_MODULES = {
    # The module in which tqdm looks whether it runs in a notebook. How it looks has changed between versions.
    "tqdm.autonotebook": ("tqdm", "trange"),
    "tqdm.notebook": ("tnrange", "tqdm", "tqdm_notebook", "trange"),
}
"""What each of them offers."""


class _TextBars(MetaPathFinder, Loader):
    """Gives tqdm's text bars where its own choice, or its widgets, are asked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Know those modules."""
        return ModuleSpec(fullname, self) if fullname in _MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it as tqdm does in a terminal."""
        # tqdm's own package has loaded it before it asks.
        std, names = sys.modules["tqdm.std"], _MODULES[module.__name__]
        vars(module).update({name: std.trange if "range" in name else std.tqdm for name in names}, __all__=list(names))


_INTERACTIVE = ("matplotlib.backends.backend_nbagg", "ipympl.backend_nbagg")
"""Backends of matplotlib that need a browser."""


class _Pictures(MetaPathFinder, Loader):
    """Gives matplotlib's inline backend where one that needs a browser is asked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Know those modules."""
        return ModuleSpec(fullname, self) if fullname in _INTERACTIVE else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it with the inline backend's names, and say so."""
        # It comes with IPython, as the inline backend itself.
        backend_inline = importlib.import_module("matplotlib_inline.backend_inline")
        vars(module).update({name: value for name, value in vars(backend_inline).items() if name[:1] != "_"})
        print(f"mhnb: {NO_BROWSER.format(f'the backend {module.__name__}')}", file=sys.stderr)


NO_BROWSER = "{} needs a browser or a screen, which a rank does not have; inline is used"


def draw_text_bars() -> None:
    """Have it so from now on; a second call changes nothing."""
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path[:0] = [_TextBars(), _Pictures()]
