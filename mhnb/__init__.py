"""mhnb: one notebook, many JAX hosts.

`%load_ext mhnb`, then `%mhjax start` and `%%mhjax` cells; or, without IPython, `mhnb.start()` and `cluster.run(...)`.
Names load on first use, so that `import mhnb` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mhnb.cluster import Cluster
    from mhnb.core.output.results import CellResult
    from mhnb.errors import CellError, CellFailed, MhnbError
    from mhnb.explore.layouts import expect, layout, reshard
    from mhnb.rank.asks.lowering import collectives
    from mhnb.startup.starting import attach, current, start

__all__ = [
    "CellError",
    "CellFailed",
    "CellResult",
    "Cluster",
    "MhnbError",
    "__version__",
    "attach",
    "collectives",
    "current",
    "expect",
    "layout",
    "load_ipython_extension",
    "reshard",
    "start",
    "unload_ipython_extension",
]

__version__ = "0.1.0"

_HOMES = {
    "CellError": "mhnb.errors",
    "CellFailed": "mhnb.errors",
    "CellResult": "mhnb.core.output.results",
    "Cluster": "mhnb.cluster",
    "MhnbError": "mhnb.errors",
    "attach": "mhnb.startup.starting",
    "collectives": "mhnb.rank.asks.lowering",
    "current": "mhnb.startup.starting",
    "expect": "mhnb.explore.layouts",
    "layout": "mhnb.explore.layouts",
    "reshard": "mhnb.explore.layouts",
    "start": "mhnb.startup.starting",
}


def __getattr__(name: str) -> Any:
    if name == "teach":
        return importlib.import_module("mhnb.teach")
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'mhnb' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    return getattr(importlib.import_module(home), name)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give a notebook the magics `%mhjax` and `%%mhjax`."""
    from mhnb.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away again and stop what was started."""
    from mhnb.magics import unload

    unload(shell)
