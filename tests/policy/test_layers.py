"""Import rules of the package: which layer may import which, and no import circles among files or packages.

Every import counts: those for typing, those inside functions, and `import_module("name")`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.support.source import ROOT, Module, parse_module, read_package

LAYERS = (
    ("errors", "types"),
    ("sharding",),
    ("core",),
    ("system",),
    ("transport", "adapters"),
    ("launchers", "rank", "view"),
    ("cluster", "layouts", "compiler", "teach"),
    ("commands", "fits"),
    ("magics", "cli"),
    ("__main__", "mhnb"),
)
"""The top-level packages and modules from the bottom up; `mhnb` is the package's own `__init__`.

A part imports itself and the layers below its own. A new part is entered here, and reviewed.
"""
_LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

_KNOWS_JAX = ("mhnb.rank.jax_private",)
"""The only module that may use private names of JAX."""
PURE = ("core", "sharding")
SHARED_BY_PURE = ("errors", "types")
PURE_LIBRARIES = ("msgspec",)
"""They turn values into bytes and back, and have no effects."""
EFFECTS = (
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
"""Standard modules that read a clock, the environment, a file, a socket or a random source. Pure code takes values instead."""


DIRECTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "view": {
        "drawings": (),
        "reports": ("drawings",),
        "cell": ("drawings", "reports"),
        "live": ("cell", "drawings", "reports"),
    },
    "core": {"guard": (), "launch": (), "output": (), "state": ("guard", "launch", "output")},
    "rank": {"execution": ("guard",), "guard": ("execution",), "requests": ("execution", "guard")},
}
"""Which folders of a part each of its folders imports. The part's other modules are free, as long as they close no circle."""
KNOTS = {
    ("core.hang_report", "core.messages", "core.metrics", "core.output"): (
        "the result of a cell has a hang report and metrics, and all of them are made of the events of outputs"
    ),
    ("core.cell_request", "core.export", "core.missing_names", "core.state"): (
        "a request becomes an event of the state machine, which asks which names a cell lacks"
    ),
    ("rank.execution", "rank.guard", "rank.host_setup", "rank.jax_private", "rank.memory", "rank.trace"): (
        "the runner of a cell begins and ends what watches it, and what watches it needs the cell's names, streams and interrupts"
    ),
}
"""Folders and modules directly in one part that import each other, with the reason; a test says when one is gone."""

WRITES_TAGS = (
    "view.ansi",
    "view.drawings",
    "view.html",
    "view.mime",
    "view.print_html",
    "view.sanitize",
    # The HTML of a card has folds, tabs and grids, which its text has not; the live view is made of the same blocks.
    "view.cell.html",
    "view.cell.blocks_html",
    "view.live.frame",
    "view.live.placeholder",
    "view.live.strip",
)
"""Modules and folders whose strings have tags of HTML, and which escape text; all others build documents."""
_TAG = re.compile(
    r"</?(?:a|b|br|button|code|details|div|g|h\d|i|iframe|img|input|label|li|ol|p|pre|progress|rect|script|small|span|style|"
    r"summary|svg|table|tbody|td|text|th|thead|tr|ul)[ >]"
)


def _imports(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every imported dotted name with its line, also of imports inside functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = module.package.rsplit(".", node.level - 1)[0]
                base = f"{start}.{base}" if base else start
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called_name(node.func) in ("import_module", "__import__"):
            yield from ((arg.value, node.lineno) for arg in node.args[:1] if _is_text(arg))  # type: ignore[attr-defined]


def _called_name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _part_of(imported: str) -> str:
    """Return the part that an import of `mhnb...` reaches; a name that is not a part belongs to `__init__`."""
    parts = imported.split(".")
    name = parts[1] if len(parts) > 1 else "mhnb"
    return name if name in _LAYER_OF else "mhnb"


def _is_jax_private(name: str) -> bool:
    parts = name.split(".")
    return parts[0] in ("jax", "jaxlib") and any(part.startswith("_") for part in parts[1:])


def _breach(module: Module, imported: str) -> str | None:
    """Describe the rule that an import breaks; None if it breaks none."""
    top, part = imported.partition(".")[0], module.part
    if top == "mhnb":
        reached = _part_of(imported)
        if reached != part and _LAYER_OF[reached] >= _LAYER_OF[part]:
            return f"imports go down: {part} is in layer {_LAYER_OF[part]}, {reached} in layer {_LAYER_OF[reached]}"
    elif part in PURE and top not in sys.stdlib_module_names and top not in PURE_LIBRARIES:
        return "pure code imports only the standard library, and msgspec"
    elif part in PURE and top in EFFECTS:
        return "pure code does not use clock, files, sockets, environment or random numbers"
    elif top == "ipyparallel" and part not in ("launchers", "rank"):
        return "ipyparallel is imported in launchers/ and rank/ only"
    elif _is_jax_private(imported) and module.name not in _KNOWS_JAX:
        return "private JAX names are used in rank/jax_private.py only"
    return None


def _private_jax_attributes(module: Module) -> Iterator[str]:
    """Find `jax._src...` used without an import of its own."""
    if module.name in _KNOWS_JAX:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _is_jax_private(ast.unparse(node)) and not node.attr.startswith("__"):
            yield f"{module.name}:{node.lineno}: {ast.unparse(node)} is private: for rank/jax_private.py only"


def breaches(module: Module) -> list[str]:
    """List the import rules that a module breaks, one line each."""
    if module.part not in _LAYER_OF:
        return [f"{module.name}: is in no layer; enter it in LAYERS"]
    found = [
        f"{module.name}:{line}: imports {name}: {rule}"
        for name, line in _imports(module)
        if (rule := _breach(module, name))
    ]
    return found + list(_private_jax_attributes(module))


def file_imports(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Return for each module the modules of the package that it imports."""
    modules = list(modules)
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for imported, _ in _imports(module):
            target = imported if imported in names else imported.rpartition(".")[0]
            if target in names and target not in (module.name, "mhnb"):
                graph[module.name].add(target)
    return graph


def package_imports(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the same graph among the top-level parts."""
    parts: dict[str, set[str]] = {}
    for name, imported in graph.items():
        parts.setdefault(_part_of(name), set()).update({_part_of(each) for each in imported} - {_part_of(name)})
    return parts


def inner_imports(graph: Mapping[str, set[str]], part: str) -> dict[str, set[str]]:
    """Return the same graph among the folders and modules directly in one part, as `view.cell`."""
    inner: dict[str, set[str]] = {}
    for name, imported in graph.items():
        names = [each.split(".")[1:3] for each in (name, *sorted(imported))]
        own, *others = [".".join(each) for each in names]
        if own.startswith(f"{part}."):
            inner.setdefault(own, set()).update(each for each in others if each.startswith(f"{part}.") and each != own)
    return inner


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """List the strongly connected components of more than one node (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for reached in sorted(graph.get(node, ())):
            if reached not in order:
                visit(reached)
                lowest[node] = min(lowest[node], lowest[reached])
            elif reached in stack:
                lowest[node] = min(lowest[node], order[reached])
        if lowest[node] == order[node]:
            at = stack.index(node)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def test_imports_go_down() -> None:
    """No module imports another part of its own layer or of a higher one, and each outside package stays in its place."""
    found = [line for module in read_package() for line in breaches(module)]
    assert not found, "\n".join(found)


def test_files_import_in_no_circle() -> None:
    """No chain of imports leads from a file back to it."""
    found = circles(file_imports(read_package()))
    assert not found, "\n".join(" <-> ".join(circle) for circle in found)


def test_packages_import_in_no_circle() -> None:
    """No chain of imports leads from a top-level part back to it."""
    assert not circles(package_imports(file_imports(read_package())))


def test_a_circle_is_found() -> None:
    """Three made-up modules that import each other are a circle, also if one imports for typing and one in a function."""
    texts = {
        "mhnb.core.a": "from mhnb.core.b import x",
        "mhnb.core.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mhnb.core import c",
        "mhnb.core.c": "def f():\n    import mhnb.core.a",
        "mhnb.core.d": "from mhnb.core.a import x",
    }
    modules = [parse_module(name, text) for name, text in texts.items()]
    assert circles(file_imports(modules)) == [["mhnb.core.a", "mhnb.core.b", "mhnb.core.c"]]
    assert circles({"core": {"view"}, "view": {"core"}}) == [["core", "view"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mhnb.core.bad", "import numpy"),
        ("mhnb.core.bad", "def f():\n    import zmq"),
        ("mhnb.core.bad", "import time"),
        ("mhnb.core.bad", "from os import environ"),
        ("mhnb.core.bad", "from mhnb import transport"),
        ("mhnb.core.bad", "from mhnb import start"),
        ("mhnb.core.bad", "from .. import view"),
        ("mhnb.core.bad", "from ..system import resources"),
        ("mhnb.sharding.bad", "import mhnb.core.ranks"),
        ("mhnb.sharding.bad", "import importlib\nimportlib.import_module('jax')"),
        ("mhnb.view.bad", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mhnb.cluster import cluster"),
        ("mhnb.view.bad", "from mhnb.launchers import base"),
        ("mhnb.view.bad", "import ipyparallel"),
        ("mhnb.cluster.bad", "from mhnb.magics import commands"),
        ("mhnb.cluster.bad", "import ipyparallel as ipp"),
        ("mhnb.cluster.bad", "from ipyparallel.client import client"),
        ("mhnb.rank.bad", "from jax._src import pjit"),
        ("mhnb.rank.bad", "import jax\njax._src.pjit"),
        ("mhnb.rank.bad", "def f():\n    from jaxlib import _jax"),
        ("mhnb.errors", "from mhnb.core import ranks"),
        ("mhnb.helpers", ""),
    ],
)
def test_a_breach_is_found(name: str, text: str) -> None:
    """Each rule is seen when a made-up module breaks it."""
    assert breaches(parse_module(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mhnb.core.good", "import json\nfrom mhnb.errors import MhnbError\nfrom mhnb.core.ranks import parse_ranks"),
        ("mhnb.core.good", "from . import ranks\nfrom .. import types"),
        ("mhnb.core.good", "from mhnb.sharding import spec"),
        ("mhnb.core.good", "from msgspec import Struct"),
        ("mhnb.launchers.ipcluster", "import ipyparallel"),
        ("mhnb.rank.jax_private", "from jax._src import pjit\nimport jax\njax._src.pjit"),
        ("mhnb.rank.main", "import jax\njax.__version__\nimport ipyparallel.engine.app"),
        ("mhnb.cluster.cluster", "from mhnb.transport.server import SocketServer\nimport threading"),
    ],
)
def test_an_allowed_import_passes(name: str, text: str) -> None:
    """The rules do not stop an import that is allowed."""
    assert breaches(parse_module(name, text)) == []


def _loaded_by(modules: list[str], *, among: str) -> str:
    """Import modules in a fresh interpreter and return those of `among` that were loaded."""
    program = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    program += f"print(*sorted(set({among.split()!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_pure_code_loads_nothing_else() -> None:
    """Importing all of core and sharding loads no package from outside."""
    pure = [module.name for module in read_package() if module.part in PURE]
    assert pure
    assert _loaded_by(pure, among="IPython ipykernel ipyparallel ipywidgets jax jaxlib numpy psutil zmq") == ""


def test_notebook_side_never_loads_jax() -> None:
    """Importing everything that the notebook's process uses does not import JAX."""
    ours = [module.name for module in read_package() if module.part not in ("__main__", "adapters", "rank", "teach")]
    assert _loaded_by(ours, among="jax jaxlib") == ""


def test_import_mhnb_is_light() -> None:
    """`import mhnb` alone loads neither IPython nor ZeroMQ nor NumPy: names are loaded when they are used."""
    assert _loaded_by(["mhnb"], among="IPython ipykernel ipyparallel ipywidgets jax numpy zmq") == ""


def test_loaded_by_finds_a_heavy_import() -> None:
    """The check in a fresh interpreter finds a module that is imported."""
    assert _loaded_by(["zmq"], among="zmq numpy") == "zmq"


@pytest.mark.parametrize("part", DIRECTIONS)
def test_folders_import_in_the_named_directions(part: str) -> None:
    """A new arrow between two folders of one part is entered in DIRECTIONS, and reviewed."""
    folders = DIRECTIONS[part]
    found = {
        folder: {each.partition(".")[2] for each in imported} & folders.keys()
        for name, imported in inner_imports(file_imports(read_package()), part).items()
        if (folder := name.partition(".")[2]) in folders
    }
    assert found == {folder: set(allowed) for folder, allowed in folders.items()}


def test_knots_are_known() -> None:
    """No folder of `view` imports one that imports it; those of `core` and `rank` that do are listed with a reason."""
    graph = file_imports(read_package())
    found = {tuple(knot) for part in DIRECTIONS for knot in circles(inner_imports(graph, part))}
    assert found == KNOTS.keys()


def _tags(module: Module) -> Iterator[str]:
    """Find strings with tags, docstrings aside, and imports of `escape`."""
    documentation = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if (isinstance(node, ast.ImportFrom) and node.module == "html") or (
            isinstance(node, ast.Import) and any(each.name == "html" for each in node.names)
        ):
            yield f"{module.name}:{node.lineno}: imports html"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield from (f"{module.name}:{node.lineno}: writes {tag}" for tag in _TAG.findall(node.value))


def test_tags_are_written_in_few_places() -> None:
    """Whatever is shown is a document. The printer and the drawings write its HTML, and those named above that of cells."""
    found = {module.name.removeprefix("mhnb."): list(_tags(module)) for module in read_package()}
    writers = {
        next((each for each in WRITES_TAGS if f"{name}.".startswith(f"{each}.")), name)
        for name, lines in found.items()
        if lines
    }
    assert writers == set(WRITES_TAGS), "\n".join(line for lines in found.values() for line in lines)
