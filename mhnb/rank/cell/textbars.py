"""Make libraries that draw in a browser draw what a rank can send: tqdm draws text, and matplotlib draws pictures.

Widgets of a rank reach no browser; text bars can be folded into one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["NO_BROWSER_NOTE", "install_text_output"]

_TQDM_MODULES = {
    # The module in which tqdm checks whether it runs in a notebook. The check has changed between versions.
    "tqdm.autonotebook": ("tqdm", "trange"),
    "tqdm.notebook": ("tnrange", "tqdm", "tqdm_notebook", "trange"),
}
"""The names that each of them provides."""


class _TqdmTextFinder(MetaPathFinder, Loader):
    """Import hook that provides tqdm's text bars in place of its automatic choice and of its widgets."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for those modules."""
        return ModuleSpec(fullname, self) if fullname in _TQDM_MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Use Python's default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module as tqdm does in a terminal."""
        # tqdm's own package has loaded `tqdm.std` before it imports this module.
        std, names = sys.modules["tqdm.std"], _TQDM_MODULES[module.__name__]
        vars(module).update({name: std.trange if "range" in name else std.tqdm for name in names}, __all__=list(names))


_BROWSER_BACKENDS = ("matplotlib.backends.backend_nbagg", "ipympl.backend_nbagg")
"""Backends of matplotlib that need a browser."""


class _InlineBackendFinder(MetaPathFinder, Loader):
    """Import hook that provides matplotlib's inline backend in place of one that needs a browser."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for those modules."""
        return ModuleSpec(fullname, self) if fullname in _BROWSER_BACKENDS else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Use Python's default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the inline backend's names, and print a note."""
        # Installed with IPython, like the inline backend itself.
        backend_inline = importlib.import_module("matplotlib_inline.backend_inline")
        vars(module).update({name: value for name, value in vars(backend_inline).items() if name[:1] != "_"})
        print(f"mhnb: {NO_BROWSER_NOTE.format(f'the backend {module.__name__}')}", file=sys.stderr)


NO_BROWSER_NOTE = "{} needs a browser or a screen, which a rank does not have; inline is used"


def install_text_output() -> None:
    """Install the import hooks; a second call changes nothing."""
    if not any(isinstance(finder, _TqdmTextFinder) for finder in sys.meta_path):
        sys.meta_path[:0] = [_TqdmTextFinder(), _InlineBackendFinder()]
