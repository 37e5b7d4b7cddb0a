"""Lesson 15: cells, the lines of the script that the export makes of them, and the nodes on which srun starts it."""

from __future__ import annotations

import re

from mhnb.core.export import CellStep, PushStep, Step, export_script, format_sbatch
from tests.integration.lessons.figures.drawing import PAPER, QUIET, Box, Drawing

_CELLS: tuple[tuple[str, Step], ...] = (
    ("%%mhjax", CellStep("In [2]", "x = jnp.arange(16.0)")),
    ("%mhjax push rate", PushStep(("rate",), literals={"rate": "0.25"})),
    ("%%mhjax", CellStep("In [4]", "x = x - rate * x.mean()")),
    ("%%mhjax --ranks 0", CellStep("In [5]", 'print("log:", x.mean())', (0,))),
)
"""The magic of each cell, and what it becomes."""
_NODES = 2
_TOP, _ROW, _HEIGHT = 104, 66, 52
"""The top of the first cell, the distance to the next, and the height of one."""
_CELL, _SCRIPT, _NODE = Box(20, 0, 222, _HEIGHT), Box(290, 52, 264, 322), Box(622, 92, 118, 116)


def _find_lines(script: str) -> list[list[str]]:
    """Return the lines of each part of a script, without comments."""
    parts = re.split(r"^# -- .*\n", script, flags=re.MULTILINE)[1:]
    return [[line for line in part.splitlines() if line and not line.startswith("#")] for part in parts]


def _write(drawing: Drawing, box: Box, lines: list[str]) -> None:
    """Write lines of code into a box."""
    first = box.middle[1] - 10 * (len(lines) - 1)
    for at, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        drawing.text(box.x + 8 + 8.5 * indent, first + 20 * at, line.strip(), size="small", style="code")


def draw_script() -> Drawing:
    """Draw how the cells become a script, and the script a process on each node."""
    steps = [step for _, step in _CELLS]
    script = export_script(steps, name="train.py", process_count=_NODES).text
    call = next(line.strip() for line in script.splitlines() if line.strip() == "jax.distributed.initialize()")
    batch = format_sbatch("train.py", nodes=_NODES, tasks_per_node=1)
    assert f"--nodes={_NODES}" in batch
    assert batch.splitlines()[-1].startswith("srun ")
    drawing = Drawing(
        760,
        390,
        title="From cells to processes",
        description=(
            "Four cells become lines of train.py below a call of initialize. Srun starts the script on two nodes. "
            "The process on node 0 runs the cell for rank 0, and the one on node 1 skips it."
        ),
    )
    for x, words in ((_CELL.x, "cells"), (_SCRIPT.x, "train.py"), (_NODE.x, "srun")):
        drawing.text(x, 28, words, size="title", style="strong")
    drawing.box(_SCRIPT, line=QUIET)
    _write(drawing, Box(_SCRIPT.x, 58, _SCRIPT.width, 40), [call])
    for at, ((magic, step), lines) in enumerate(zip(_CELLS, _find_lines(script), strict=True)):
        cell = Box(_CELL.x, _TOP + at * _ROW, _CELL.width, _HEIGHT)
        source = step.source.splitlines() if isinstance(step, CellStep) else []
        drawing.box(cell, fill=PAPER, line=QUIET)
        _write(drawing, cell, [magic, *source])
        drawing.text(cell.right - 8, cell.y + 16, f"In [{at + 2}]", size="small", anchor="end", style="quiet")
        drawing.arrow((cell.right + 4, cell.middle[1]), (_SCRIPT.x - 4, cell.middle[1]))
        _write(drawing, Box(_SCRIPT.x, cell.y, _SCRIPT.width, _HEIGHT), lines)
    for node in range(_NODES):
        box = Box(_NODE.x, _NODE.y + node * (_NODE.height + 14), _NODE.width, _NODE.height)
        drawing.host(box, f"node {node}", number=node)
        drawing.text(box.x + 10, box.y + 38, f"process {node}", size="small")
        for at, step in enumerate(step for step in steps if isinstance(step, CellStep)):
            does = "runs" if step.ranks is None or node in step.ranks else "skips"
            drawing.text(box.x + 10, box.y + 60 + 18 * at, f"{does} {step.name}", size="small", style="quiet")
        drawing.arrow((_SCRIPT.right + 4, box.middle[1]), (box.x - 4, box.middle[1]))
    return drawing


FIGURES = {"15_script.svg": draw_script}
