"""The floors of the house: who may import whom. Reads every import, also those inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.source import PACKAGE, ROOT, Module, parse_module, read_package

FLOORS = {
    "errors": 0,
    "values": 0,
    "core": 1,
    "sharding": 1,
    "system": 1.5,
    "launch": 2,
    "link": 2,
    "rank": 2,
    "view": 2,
    "cluster": 3,
    "teach": 3,
    "cli": 4,
    "magics": 4,
    "__main__": 5,
    "mhnb": 5,
}
"""Where each part of the package stands; `mhnb` is its `__init__`, the front door above everything.
Between two floors stands what serves all of the upper one and needs the lower one.
A new part is entered here, and reviewed."""

ROOMS = {
    "drive": "cluster",
    "exchange": "cluster",
    "explore": "cluster",
    "keep": "cluster",
    "startup": "cluster",
    "supply": "cluster",
    "frontend": "magics",
    "verbs": "magics",
    "commands": "cli",
}
"""Folders that hold the work of one of these parts: the part itself is what its user meets."""

_KNOW_JAX = ("mhnb.rank.jax_private", "mhnb.rank.jax_private")
"""Launches, and everything else, of which private names must be known."""
PURE = ("core", "sharding")
SHARED_BY_PURE = ("errors", "values")
WORLD = (
    "asyncio",
    "concurrent",
    "ctypes",
    "glob",
    "multiprocessing",
    "os",
    "pathlib",
    "platform",
    "random",
    "secrets",
    "select",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
)
"""Standard modules that read a clock, the environment, a file, a socket or chance: the pure wings take values."""


def _imports(module: Module) -> Iterator[tuple[str, int]]:
    """Give every imported dotted name with its line: import, from-import, relative, and `import_module("name")`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = module.package.rsplit(".", node.level - 1)[0]
                base = f"{start}.{base}" if base else start
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
            yield from ((arg.value, node.lineno) for arg in node.args[:1] if _is_text(arg))  # type: ignore[attr-defined]


def _called(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _wing_of(imported: str) -> str:
    """The part of the package that an import of `mhnb...` reaches; a name that is no part belongs to `__init__`."""
    parts = imported.split(".")
    name = parts[1] if len(parts) > 1 else "mhnb"
    return ROOMS.get(name, name if name in FLOORS else "mhnb")


def _own_wing(module: Module) -> str:
    return ROOMS.get(module.wing, module.wing)


def _is_jax_private(name: str) -> bool:
    parts = name.split(".")
    return parts[0] in ("jax", "jaxlib") and any(part.startswith("_") for part in parts[1:])


def _breach(module: Module, imported: str) -> str | None:
    """Say which rule an import breaks, or None."""
    top, wing = imported.partition(".")[0], _own_wing(module)
    if top == "mhnb":
        reached = _wing_of(imported)
        if wing in PURE and reached not in (wing, *SHARED_BY_PURE):
            return "a pure wing imports only errors, values and itself"
        if reached != wing and FLOORS[reached] >= FLOORS[wing]:
            return f"imports run downward: {wing} is on floor {FLOORS[wing]}, {reached} on floor {FLOORS[reached]}"
    elif wing in PURE and top not in sys.stdlib_module_names:
        return "a pure wing imports nothing but the standard library"
    elif wing in PURE and top in WORLD:
        return "a pure wing does not touch clock, files, sockets, environment or chance"
    elif top == "ipyparallel" and wing not in ("launch", "rank"):
        return "ipyparallel is imported in launch/ and rank/ only"
    elif _is_jax_private(imported) and module.name not in _KNOW_JAX:
        return "private JAX names are touched in rank/jax_private.py and rank/jax_private.py only"
    return None


def _private_jax_attributes(module: Module) -> Iterator[str]:
    """Find `jax._src...` reached without an import of its own."""
    if module.name in _KNOW_JAX:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _is_jax_private(ast.unparse(node)) and not node.attr.startswith("__"):
            yield f"{module.name}:{node.lineno}: {ast.unparse(node)} is private: for rank/jax_private.py and rank/jax_private.py only"


def breaches(module: Module) -> list[str]:
    """List what a module does against the floors, a line each."""
    if _own_wing(module) not in FLOORS:
        return [f"{module.name}: has no floor; enter it in FLOORS"]
    found = [
        f"{module.name}:{line}: imports {name}: {rule}"
        for name, line in _imports(module)
        if (rule := _breach(module, name))
    ]
    return found + list(_private_jax_attributes(module))


def test_imports_run_downward() -> None:
    """No module imports from its own floor's other wings or from above, and each outside package stays in its place."""
    found = [line for module in read_package() for line in breaches(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mhnb.core.bad", "import numpy"),
        ("mhnb.core.bad", "def f():\n    import zmq"),
        ("mhnb.core.bad", "import time"),
        ("mhnb.core.bad", "from os import environ"),
        ("mhnb.core.bad", "from mhnb.sharding import spec"),
        ("mhnb.core.bad", "from mhnb import link"),
        ("mhnb.core.bad", "from mhnb import start"),
        ("mhnb.core.bad", "from .. import view"),
        ("mhnb.core.bad", "from ..resources import profile_dir"),
        ("mhnb.sharding.bad", "import mhnb.core.ranks"),
        ("mhnb.sharding.bad", "import importlib\nimportlib.import_module('jax')"),
        (
            "mhnb.view.bad",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mhnb.cluster.cluster import Cluster",
        ),
        ("mhnb.view.bad", "from mhnb.link import sockets"),
        ("mhnb.view.bad", "import ipyparallel"),
        ("mhnb.cluster.cluster", "from mhnb.magics.magics import load"),
        ("mhnb.cluster.cluster", "import ipyparallel as ipp"),
        ("mhnb.cluster.cluster", "from ipyparallel.client import client"),
        ("mhnb.rank.bad", "from jax._src import pjit"),
        ("mhnb.rank.bad", "import jax\njax._src.pjit"),
        ("mhnb.rank.bad", "def f():\n    from jaxlib import _jax"),
        ("mhnb.errors", "from mhnb.core import ranks"),
        ("mhnb.helpers", ""),
    ],
)
def test_a_breach_is_found(name: str, text: str) -> None:
    """Each rule of the house is seen when a made-up module breaks it."""
    assert breaches(parse_module(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mhnb.core.good", "import json\nfrom mhnb.errors import MhnbError\nfrom mhnb.core.ranks import parse_ranks"),
        ("mhnb.core.good", "from . import ranks\nfrom .. import values"),
        ("mhnb.launchers.ipcluster", "import ipyparallel"),
        ("mhnb.rank.jax_private", "from jax._src import pjit\nimport jax\njax._src.pjit"),
        ("mhnb.rank.main", "import jax\njax.__version__\nimport ipyparallel.engine.app"),
        ("mhnb.cluster.cluster", "from mhnb.transport.server import SocketServer\nimport threading"),
    ],
)
def test_what_is_allowed_passes(name: str, text: str) -> None:
    """The rules do not stop an import that the house allows."""
    assert breaches(parse_module(name, text)) == []


def _loaded_by(modules: list[str], *, among: str) -> str:
    """Import modules in a fresh interpreter and give those of `among` that came along."""
    program = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    program += f"print(*sorted(set({among.split()!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_pure_wings_load_nothing_else() -> None:
    """Importing all of core and sharding loads no package from outside."""
    pure = [module.name for module in read_package() if module.wing in PURE]
    assert pure
    assert _loaded_by(pure, among="IPython ipykernel ipyparallel ipywidgets jax jaxlib numpy psutil zmq") == ""


def test_notebook_side_never_loads_jax() -> None:
    """Importing everything that the notebook's process uses does not import JAX."""
    ours = [module.name for module in read_package() if module.wing not in ("__main__", "rank", "teach")]
    assert _loaded_by(ours, among="jax jaxlib") == ""


@pytest.mark.skipif(not (PACKAGE / "__init__.py").exists(), reason="the package's front door is not built yet")
def test_import_mhnb_is_light() -> None:
    """`import mhnb` alone loads neither IPython nor ZeroMQ nor NumPy: names come when they are asked for."""
    assert _loaded_by(["mhnb"], among="IPython ipykernel ipyparallel ipywidgets jax numpy zmq") == ""


def test_a_heavy_import_is_seen() -> None:
    """The look into a fresh interpreter can fail."""
    assert _loaded_by(["zmq"], among="zmq numpy") == "zmq"
