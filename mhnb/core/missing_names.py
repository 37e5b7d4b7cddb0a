"""Find which cell or push had set a name that a cell lacks, or that an exported script lacks.

Names that only left-out cells define do not exist after a replay, or in an exported script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mhnb.core.replay import SkippedStep

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def note_undefined_names(
    included: Mapping[str, str], left_out: Mapping[str, str], pushed: Iterable[str] = ()
) -> list[str]:
    """Return for each such name which cell reads it, and which cell sets it.

    Args:
        included: the text of each cell of the script, by the cell's name.
        left_out: likewise of the cells that are not in it. A text that is not plain Python is ignored.
        pushed: names that the script also sets.

    >>> note_undefined_names({"cell 3": "print(n)"}, {"cell 2": "n = f()"})
    ['cell 3 reads n, which only cell 2 sets, and that is left out']
    """
    set_here = {*pushed, *(name for source in included.values() for name in _find_names(source, stored=True))}
    setters: dict[str, str] = {}
    for cell, source in left_out.items():
        for name in _find_names(source, stored=True):
            setters.setdefault(name, cell)
    notes: dict[str, str] = {}
    for cell, source in included.items():
        for name in _find_names(source, stored=False):
            if name in setters and name not in set_here:
                notes.setdefault(name, f"{cell} reads {name}, which only {setters[name]} sets, and that is left out")
    return list(notes.values())


def find_setter(name: str, left_out: Iterable[tuple[str, str]]) -> str | None:
    """Return the last cell that sets a name, or None.

    Args:
        left_out: each cell's name and text, in order. A text that is not plain Python is ignored.

    >>> find_setter("n", [("cell 2", "n = f()"), ("cell 3", "m = 1")])
    'cell 2'
    """
    setters = [cell for cell, source in left_out if name in _find_names(source, stored=True)]
    return setters[-1] if setters else None


def _find_names(source: str, *, stored: bool) -> Iterator[str]:
    """Yield every name that the text sets or reads, in any scope: a function's own names are set where they are read."""
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


def describe_setter(evalue: str, left_out: Sequence[SkippedStep], seq: int) -> str:
    """Describe which left-out cell or push had set a name that a cell lacks; empty if none is known.

    Args:
        evalue: the text of the cell's NameError.
        seq: the cell's number: later cells and pushes had not set anything yet.

    >>> describe_setter("name 'tqdm' is not defined", [SkippedStep("cell 12", "interrupted", 12, "import tqdm")], 14)
    '`tqdm` was set by cell 12, which was left out (interrupted)'
    """
    found = _UNDEFINED.match(evalue)
    if found is None:
        return ""
    before = [each for each in left_out if each.seq < seq]
    setter = find_setter(
        found[1], [(str(at), each.source or _format_assignments(each)) for at, each in enumerate(before)]
    )
    if setter is None:
        return ""
    by = before[int(setter)]
    return f"`{found[1]}` was set by {by.what}, which was left out ({by.why})"


def _format_assignments(push: SkippedStep) -> str:
    return "".join(f"{name} = ...\n" for name in push.what.split()[1:])
