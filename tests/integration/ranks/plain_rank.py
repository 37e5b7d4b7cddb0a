"""One of N plain processes, as a user without mhnb runs them: `python plain_rank.py RANK COUNT PORT FOLDER PROGRAM...`.

It runs each program cell by cell in its own namespace. It writes what every cell printed, and the repr of its last
expression, to `FOLDER/RANK.json`.
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

__all__ = ["PROGRAMS", "read_cells", "main"]

PROGRAMS = Path(__file__).with_name("programs")


def read_cells(program: str) -> list[str]:
    """Return the cells of a program, without the text before the first `# %%`, which describes the file."""
    return re.split(r"^# %%\n", (PROGRAMS / f"{program}.py").read_text(), flags=re.MULTILINE)[1:]


def run_cell(source: str, scope: dict[str, Any]) -> str | None:
    """Run a cell and return the repr of its last expression, or None if it has none or its value is None."""
    tree, assignment_tree = ast.parse(source), ast.parse("_ = None")
    last, assignment = tree.body[-1], assignment_tree.body[0]
    if isinstance(last, ast.Expr) and isinstance(assignment, ast.Assign):
        assignment.value = last.value
        tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), scope)
    exec(compile(assignment_tree, "<cell>", "exec"), scope)
    return None if scope["_"] is None else repr(scope["_"])


def run_program(program: str) -> list[dict[str, str | None]]:
    """Run all cells in order, and return the output and value of each."""
    import jax

    scope: dict[str, Any] = {"__name__": "__main__"}
    results: list[dict[str, str | None]] = []
    for source in read_cells(program):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            text = run_cell(source, scope)
            # Compiled code may print at any time. Wait for it, so that its output belongs to its cell, as on a cluster.
            jax.effects_barrier()
        results.append({"stdout": out.getvalue(), "text": text})
    return results


def main(rank: str, count: str, port: str, folder: str, *programs: str) -> None:
    """Run as one of `count` processes."""
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(rank), cluster_detection_method="deactivate")
    results = {program: run_program(program) for program in programs}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
