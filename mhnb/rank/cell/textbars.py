"""Have `tqdm.auto` draw text on a rank: a widget made here reaches no browser, and bars of text fold into one.

It decides nothing else about tqdm; who asks for `tqdm.notebook` by name gets its text form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["draw_text_bars"]

_CHOOSER = "tqdm.autonotebook"
"""The module in which tqdm looks whether it runs in a notebook. How it looks has changed between versions."""


class _TextBars(MetaPathFinder, Loader):
    """Gives tqdm's text bars where its own choice is asked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Know that one module."""
        return ModuleSpec(fullname, self) if fullname == _CHOOSER else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it as tqdm does in a terminal."""
        # tqdm's own package has loaded it before it asks.
        std = sys.modules["tqdm.std"]
        vars(module).update(tqdm=std.tqdm, trange=std.trange, __all__=["tqdm", "trange"])


def draw_text_bars() -> None:
    """Have it so from now on; a second call changes nothing."""
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TextBars())
