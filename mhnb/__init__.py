"""mhnb: one notebook, many JAX hosts.

Use `%load_ext mhnb`, `%mhjax start` and `%%mhjax` cells; or, without IPython, `mhnb.start()` and `cluster.run(...)`.
Public names are imported on first use, so `import mhnb` costs almost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mhnb.cluster.cluster import Cluster
    from mhnb.cluster.manager import attach, current, start
    from mhnb.core.output.results import CellResult
    from mhnb.errors import CellError, CellFailed, MhnbError
    from mhnb.fits import fit
    from mhnb.layouts import expect, layout, reshard
    from mhnb.rank.guard.callables import per_rank
    from mhnb.rank.metrics import log
    from mhnb.rank.requests.sharding import collectives

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
    "fit",
    "layout",
    "load_ipython_extension",
    "log",
    "per_rank",
    "reshard",
    "start",
    "unload_ipython_extension",
]

__version__ = "0.1.0"

_MODULE_OF = {
    "CellError": "mhnb.errors",
    "CellFailed": "mhnb.errors",
    "CellResult": "mhnb.core.output.results",
    "Cluster": "mhnb.cluster.cluster",
    "MhnbError": "mhnb.errors",
    "attach": "mhnb.cluster.manager",
    "collectives": "mhnb.rank.requests.sharding",
    "current": "mhnb.cluster.manager",
    "expect": "mhnb.layouts",
    "fit": "mhnb.fits",
    "layout": "mhnb.layouts",
    "log": "mhnb.rank.metrics",
    "per_rank": "mhnb.rank.guard.callables",
    "reshard": "mhnb.layouts",
    "start": "mhnb.cluster.manager",
}


def __getattr__(name: str) -> Any:
    if name == "teach":
        return importlib.import_module("mhnb.teach")
    if (home := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module 'mhnb' has no attribute {name!r}; it has {', '.join(sorted(_MODULE_OF))}")
    value = getattr(importlib.import_module(home), name)
    if name == "log":
        # Loops call it, and finding it here takes longer than the call.
        globals()[name] = value
    return value


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics `%mhjax` and `%%mhjax` in a notebook."""
    from mhnb.magics.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the magics and stop the clusters that were started."""
    from mhnb.magics.magics import unload

    unload(shell)
