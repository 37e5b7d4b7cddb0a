"""One of N plain processes: `python plain_rank.py RANK COUNT PORT FOLDER PROGRAM...`, as a user without mhnb runs them.

Runs each program cell by cell in a namespace of its own and leaves what every cell printed, and the repr of its last
expression, in `FOLDER/RANK.json`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "cells_of", "main"]

PROGRAMS = Path(__file__).with_name("programs")


def cells_of(program: str) -> list[str]:
    """The cells of a program; what stands before the first `# %%` is about the file."""
    return re.split(r"^# %%\n", (PROGRAMS / f"{program}.py").read_text(), flags=re.MULTILINE)[1:]


def run_cell(source: str, scope: dict[str, Any]) -> str | None:
    """Run a cell and give the repr of its last expression; None if there is none, or it has no value."""
    tree, kept = ast.parse(source), ast.parse("_ = None")
    last, assignment = tree.body[-1], kept.body[0]
    if isinstance(last, ast.Expr) and isinstance(assignment, ast.Assign):
        assignment.value = last.value
        tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), scope)
    exec(compile(kept, "<cell>", "exec"), scope)
    return None if scope["_"] is None else repr(scope["_"])


def run_program(program: str) -> list[dict[str, str | None]]:
    """Run all cells in order."""
    import jax

    scope: dict[str, Any] = {"__name__": "__main__"}
    said: list[dict[str, str | None]] = []
    for source in cells_of(program):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            text = run_cell(source, scope)
            # Prints from compiled code come when they like: they belong to their cell, as on a cluster.
            jax.effects_barrier()
        said.append({"stdout": out.getvalue(), "text": text})
    return said


def main(rank: str, count: str, port: str, folder: str, *programs: str) -> None:
    """Be one process of `count`."""
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(rank), cluster_detection_method="deactivate")
    said = {program: run_program(program) for program in programs}
    Path(folder, f"{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
