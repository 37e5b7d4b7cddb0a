"""The source of the package as syntax trees, for the policy tests. Imports and runs nothing of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

__all__ = ["PACKAGE", "ROOT", "Function", "Module", "functions", "parse_module", "read_package"]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mhnb"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One module: its dotted name, text and tree."""

    name: str
    text: str
    tree: ast.Module
    is_package: bool = False

    @property
    def part(self) -> str:
        """The top-level part: the name below `mhnb`, or `mhnb` for the package's `__init__`."""
        return self.name.split(".")[1] if "." in self.name else self.name

    @property
    def package(self) -> str:
        """The package that a relative import starts from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def parse_module(name: str, text: str, *, is_package: bool = False) -> Module:
    """Parse a module from text, which may be an example in a test."""
    return Module(name, text, ast.parse(text), is_package)


@cache
def read_package(package: Path = PACKAGE) -> list[Module]:
    """Parse every module of the package, in the order of their names."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(parse_module(name, path.read_text(encoding="utf-8"), is_package=is_package))
    return found


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function, including nested functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
