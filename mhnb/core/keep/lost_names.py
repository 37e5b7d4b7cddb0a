"""Names that only cells set which are not in a script, or which a replay leaves out: there they do not exist."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["find_setter", "note_lost_names"]


def note_lost_names(kept: Mapping[str, str], left_out: Mapping[str, str], pushed: Iterable[str] = ()) -> list[str]:
    """Say of each such name which cell reads it, and which set it.

    Args:
        kept: the text of each cell of the script, by what it is called.
        left_out: likewise of those that are not in it. What is not plain Python says nothing.
        pushed: names that the script sets besides.

    >>> note_lost_names({"cell 3": "print(n)"}, {"cell 2": "n = f()"})
    ['cell 3 reads n, which only cell 2 sets, and that is left out']
    """
    set_here = {*pushed, *(name for source in kept.values() for name in _names(source, stored=True))}
    setters: dict[str, str] = {}
    for cell, source in left_out.items():
        for name in _names(source, stored=True):
            setters.setdefault(name, cell)
    notes: dict[str, str] = {}
    for cell, source in kept.items():
        for name in _names(source, stored=False):
            if name in setters and name not in set_here:
                notes.setdefault(name, f"{cell} reads {name}, which only {setters[name]} sets, and that is left out")
    return list(notes.values())


def find_setter(name: str, left_out: Iterable[tuple[str, str]]) -> str | None:
    """Find the last cell that sets a name.

    Args:
        left_out: what each cell is called and its text, in order. What is not plain Python says nothing.

    >>> find_setter("n", [("cell 2", "n = f()"), ("cell 3", "m = 1")])
    'cell 2'
    """
    setters = [cell for cell, source in left_out if name in _names(source, stored=True)]
    return setters[-1] if setters else None


def _names(source: str, *, stored: bool) -> Iterator[str]:
    """Every name that the text sets or reads, in whatever scope: a function's own is set where it is read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) != stored:
                yield node.id
        elif not stored:
            continue
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
