"""Convert a notebook file to export steps: the cells that run on the ranks, and the values pushed before them.

The input is the file's JSON. Stored outputs show whether a cell failed; nothing is run.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mhnb.core.asked.select import route_cell
from mhnb.core.keep.export import CellStep, PushStep, Step
from mhnb.core.ranks import resolve_ranks
from mhnb.errors import InvalidRequest

__all__ = ["NotebookSteps", "drop_pushed", "format_literal", "read_notebook"]

_LITERAL_CHARS = 2000
_RAISES_TAG = "raises-exception"


@dataclass(slots=True)
class NotebookSteps:
    """A notebook's steps on its ranks, and the state while its cells are read."""

    steps: list[Step] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each cell that failed or is meant to fail, or that the caller left out."""
    process_count: int = 4
    devices: int | None = 2
    is_auto: bool = False
    """Whether plain cells go to the ranks at this point."""
    literals: dict[str, str] = field(default_factory=dict)
    """Variables that plain cells have bound to a literal, which can therefore be pushed."""


def read_notebook(notebook: Mapping[str, Any], without: Sequence[str] = ()) -> NotebookSteps:
    r"""Read a notebook's cells in order.

    Args:
        notebook: the JSON of an .ipynb file.
        without: what to leave out: numbers of code cells, counted from 1, and names that are pushed.

    Raises:
        InvalidRequest: the file is not a notebook, or a `%%mhjax` line is invalid.

    >>> read_notebook({"cells": [{"cell_type": "code", "source": "%%mhjax\nx = 1"}]}).steps[0].source
    'x = 1'
    """
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise InvalidRequest("this file is no notebook: it has no cells; give an .ipynb file of format 4")
    found = NotebookSteps()
    for number, cell in enumerate((each for each in cells if each.get("cell_type") == "code"), 1):
        source = cell.get("source", "")
        text = source if isinstance(source, str) else "".join(source)
        name = f"code cell {number}"
        if str(number) in without:
            found.left_out.append(f"{name}: as asked")
        else:
            _read_cell(found, name, text, cell)
    found.steps, dropped = drop_pushed(found.steps, without)
    found.left_out += dropped
    return found


def drop_pushed(steps: Sequence[Step], without: Sequence[str]) -> tuple[list[Step], list[str]]:
    """Leave out the requested pushed names; return the steps, and a sentence for each name that was left out.

    >>> drop_pushed([PushStep(("a", "b"))], ["b", "3"])[1]
    ['push b: as asked; the script has no b until you write it in']
    """
    kept: list[Step] = []
    dropped: list[str] = []
    for step in steps:
        if isinstance(step, PushStep):
            dropped_names = [name for name in step.names if name in without]
            dropped += [
                f"push {name}: as asked; the script has no {name} until you write it in" for name in dropped_names
            ]
            names = tuple(name for name in step.names if name not in dropped_names)
            kept += [replace(step, names=names)] if names else []
        else:
            kept.append(step)
    return kept, dropped


def _read_cell(found: NotebookSteps, name: str, text: str, cell: Mapping[str, Any]) -> None:
    flags, body = _split_flags(text)
    if flags is None and not (found.is_auto and route_cell(text) == "ranks"):
        _read_plain_cell(found, text)
    elif why := _omission_reason(cell):
        found.left_out.append(f"{name}: {why}")
    else:
        ranks = resolve_ranks(_flag_value(flags or "", "--ranks"), found.process_count)
        found.steps.append(CellStep(name, body, ranks))


def _split_flags(text: str) -> tuple[str | None, str]:
    """Split a cell into the flags of its `%%mhjax` line and the rest; the flags are None for a plain cell."""
    lines = text.lstrip("\n").split("\n")
    if lines[0].split()[:1] != ["%%mhjax"]:
        return None, text
    return lines[0].removeprefix("%%mhjax"), "\n".join(lines[1:])


def _flag_value(words: str, name: str) -> str | None:
    found = shlex.split(words)
    for at, word in enumerate(found):
        if word == name and at + 1 < len(found):
            return found[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _omission_reason(cell: Mapping[str, Any]) -> str:
    errors = [output for output in cell.get("outputs", ()) if output.get("output_type") == "error"]
    if errors:
        return f"it failed with {errors[0].get('ename', 'an error')}"
    is_meant_to = _RAISES_TAG in cell.get("metadata", {}).get("tags", ())
    return f"it is meant to fail (tag {_RAISES_TAG})" if is_meant_to else ""


def _read_plain_cell(found: NotebookSteps, text: str) -> None:
    """Read a cell of the notebook's own process: it may start the ranks, push values or bind literals; the rest is ignored."""
    magic_lines = [line.strip() for line in text.splitlines() if line.strip().startswith("%mhjax ")]
    code = [line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))]
    found.literals |= dict(_find_literals("\n".join(code)))
    for line in magic_lines:
        command, _, rest = line.removeprefix("%mhjax ").strip().partition(" ")
        if command == "start":
            _read_start(found, rest)
        elif command == "auto":
            found.is_auto = rest.strip() == "on"
        elif command == "push":
            found.steps.append(_build_push_step(found, rest))


def _read_start(found: NotebookSteps, rest: str) -> None:
    machines, devices = _flag_value(rest, "--hosts"), _flag_value(rest, "--devices")
    hosts = len(machines.split(",")) if machines else int(_flag_value(rest, "-n") or 4)
    found.process_count = hosts * int(_flag_value(rest, "--per-host") or 1)
    # Simulated hosts have two devices each by default; real machines have their own.
    is_simulated = machines is None and (_flag_value(rest, "--profile") or "local") == "local"
    found.devices = int(devices) if devices else 2 if is_simulated else None


def _build_push_step(found: NotebookSteps, rest: str) -> PushStep:
    ranks = _flag_value(rest, "--ranks")
    names = tuple(word for word in rest.split() if word.isidentifier() and word != ranks)
    literals = {name: found.literals[name] for name in names if name in found.literals}
    return PushStep(names, resolve_ranks(ranks, found.process_count), literals)


def _find_literals(code: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        # For example magics inside a block: the cell's literals are unknown.
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if (text := format_literal(value)) is not None:
                yield node.targets[0].id, text


def format_literal(value: object) -> str | None:
    """Format a value as a Python literal; None if it is too large, or has no such form.

    >>> format_literal({"lr": 0.1}), format_literal(object()), format_literal(float("nan"))
    ("{'lr': 0.1}", None, None)
    """
    text = repr(value)
    if len(text) > _LITERAL_CHARS:
        return None
    try:
        again = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return text if type(again) is type(value) and again == value else None
