"""Private names of JAX, IPython and ipykernel: each is used in one module, which has a fallback for its absence."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from tests.support.source import Module, parse_module, read_package

_IPYTHON = ("IPython", "ipykernel", "comm", "ipywidgets", "traitlets")
_KNOWS_IPYTHON = {
    "mhnb.rank.execution.ipython_private": "the rank's shell",
    "mhnb.view.live.widget": "the notebook's widgets",
}
"""The modules that may use private names of IPython and its kernel, one for each side."""
_NAMES_JAX_MODULES = {
    "mhnb.rank.jax_private": "uses them",
    "mhnb.rank.guard.callables": "compares them with the modules of a program's functions; reads nothing there",
}
"""The modules that may name private modules of JAX in text."""
_PRIVATE_JAX = re.compile(r"(?:jax|jaxlib)(?:\.\w+)*\._\w+(?:\.\w+)*")
_FOREIGN_SHELLS = {"shell", "_shell", "kernel", "_kernel", "comm", "ip", "ipython", "history_manager", "display_pub"}
"""Names under which the package holds objects of IPython."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def _uses_of_shells(module: Module) -> Iterator[str]:
    """Yield private attributes of objects that are IPython's by their name, as in `self._shell._ofind`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name in _FOREIGN_SHELLS:
                yield f"{module.name}:{node.lineno}: {ast.unparse(node)} is private"


def _names_in_class(node: ast.ClassDef) -> set[str]:
    """Return the names of the methods, and of the attributes of `self` and `super()`."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            owner = each.value
            is_own = isinstance(owner, ast.Name) and owner.id == "self"
            is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
            found |= {each.attr} if is_own or is_super else set()
    return found


def _inherited_uses(module: Module) -> Iterator[str]:
    """Yield private names that a class shares with a base class of IPython."""
    for node in module.tree.body:
        if not (isinstance(node, ast.ClassDef) and node.bases):
            continue
        kind = getattr(importlib.import_module(module.name), node.name)
        foreign = [base for base in inspect.getmro(kind) if base.__module__.partition(".")[0] in _IPYTHON]
        for name in sorted(filter(_is_private, _names_in_class(node))):
            owners = [base.__name__ for base in foreign if name in vars(base)]
            if owners:
                yield f"{module.name}:{node.lineno}: {node.name} uses {owners[0]}.{name}, which is private"


def test_private_names_of_ipython_are_in_one_module_for_each_side() -> None:
    """No other module overrides, calls or reads a private name of IPython's or ipykernel's classes."""
    modules = [module for module in read_package() if module.name not in _KNOWS_IPYTHON]
    found = [line for module in modules for line in _uses_of_shells(module)]
    sides = ("mhnb.rank.execution", "mhnb.rank.engine", "mhnb.magics", "mhnb.view")
    found += [line for module in modules if module.name.startswith(sides) for line in _inherited_uses(module)]
    assert not found, "\n".join(found)


def test_private_modules_of_jax_are_named_in_one_module() -> None:
    """Private modules of JAX are not named in text either, as `import_module` or a comparison would do."""
    found = [
        f"{module.name}:{node.lineno}: {node.value!r} is private: for rank/jax_private.py only"
        for module in read_package()
        if module.name not in _NAMES_JAX_MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PRIVATE_JAX.fullmatch(node.value)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["shell._inspect", "self._shell._ofind(name)", "widget.comm._reply_subshell_for = f", "kernel._execute_sleep"],
)
def test_a_private_use_is_found(text: str) -> None:
    """A made-up module that uses a private name of a shell, kernel or comm is found."""
    assert list(_uses_of_shells(parse_module("mhnb.magics.bad", text)))


def test_a_private_override_is_found() -> None:
    """The module that may override private methods is found by the same check."""
    (module,) = [each for each in read_package() if each.name == "mhnb.rank.execution.ipython_private"]
    assert {line.rpartition(".")[2].partition(",")[0] for line in _inherited_uses(module)} >= {
        "_showtraceback",
        "_format_exception_for_storage",
    }
