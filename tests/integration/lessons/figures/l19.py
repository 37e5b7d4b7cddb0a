"""Lesson 19: a job that dies and goes on from its checkpoint, and a parameter on two meshes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.integration.lessons.figures.drawing import BUSY, INK, LINE, LOST, WAITING, Box, Cell, Drawing

_LEFT, _STEP = 110, 37
_ROWS = {"first job": 74, "second job": 162}


def _cells() -> dict[str, str]:
    """Return the source of each cell of the lesson."""
    return {cell.id: cell.source for cell in read_lesson(next(NOTEBOOKS.glob("*_capstone.ipynb"))).code}


def _numbers(cell: str, pattern: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, _cells()[cell])]


def _resume() -> Drawing:
    [every] = _numbers("begin", r"save_interval_steps=(\d+)")
    killed, _ = _numbers("kill", r"train\(state, (\d+)")
    [last] = _numbers("resumed", r"\), (\d+), mesh")
    restored = killed - killed % every
    drawing = Drawing(
        760,
        268,
        title="A job dies and goes on from its checkpoint",
        description=f"The first job saves every {every} steps and is killed after step {killed}. The second one restores "
        f"step {restored}, repeats steps {restored + 1} to {killed} and goes on to step {last}.",
    )
    drawing.text(_LEFT, 24, "steps", size="small", style="quiet")
    jobs = {"first job": range(1, killed + 1), "second job": range(restored + 1, last + 1)}
    for job, steps in jobs.items():
        y = _ROWS[job]
        drawing.text(_LEFT - 12, y + 15, job, anchor="end")
        for n in steps:
            again = job == "second job" and n <= killed
            drawing.bar(_place(n, y), "", color=WAITING if again else BUSY)
            drawing.text(*_place(n, y).middle, str(n), size="small", anchor="middle")
    for n in range(every, restored + 1, every):
        edge = _place(n, 0).right + 1
        drawing.box(Box(edge - 2, _ROWS["first job"] - 12, 4, 54), fill=INK, radius=0)
        drawing.text(edge, _ROWS["first job"] - 22, f"save {n}", size="small", anchor="middle")
    end = _place(killed, 0).right + 1
    drawing.box(Box(end - 3, _ROWS["first job"] - 4, 6, 38), fill=LOST, radius=0)
    drawing.text(end + 10, _ROWS["first job"] + 15, "killed", size="small")
    edge = _place(restored, 0).right + 1
    drawing.arrow((edge, _ROWS["first job"] + 46), (edge, _ROWS["second job"] - 6))
    drawing.text(edge - 10, 132, f"restore {restored}: parameters, moments, position", size="small", anchor="end")
    drawing.legend(_LEFT, 236, [([BUSY], "a step"), ([WAITING], "a step that is repeated, with the same batch")])
    return drawing


def _place(n: int, y: float) -> Box:
    """Return the place of step n."""
    return Box(_LEFT + (n - 1) * _STEP + 1, y, _STEP - 4, 30)


def _meshes() -> Drawing:
    import jax

    drawing = Drawing(
        760,
        398,
        title="One parameter on two meshes",
        description="On 4 x 2, each of four hosts has both halves of the columns. On 2 x 4, hosts 0 and 1 have the four "
        "quarters of the columns, and so have hosts 2 and 3.",
    )
    for left, sizes in ((20, (4, 2)), (396, (2, 4))):
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), ("data", "model"))
        # The last dim of `up`, the inner width of the MLP, is split as in the lesson.
        spec = jax.P(None, None, "model")
        indices = jax.sharding.NamedSharding(mesh, spec).devices_indices_map((2, 64, 256))
        drawing.text(left, 26, f"{sizes[0]} x {sizes[1]}", size="title", style="strong")
        drawing.text(left + 62, 27, "columns of up on each device", size="small", style="quiet")
        parts = sorted({index[2].start or 0 for index in indices.values()})
        for host in range(4):
            top = 48 + 80 * host
            # Without the colour of the host: here a colour is a part.
            drawing.box(Box(left, top, 344, 70), line=LINE, radius=6)
            drawing.text(left + 12, top + 14, f"host {host}", size="small", style="strong")
            for local in range(2):
                columns = indices[jax.devices()[2 * host + local]][2]
                first, stop = columns.start or 0, columns.stop or 256
                cell = Cell(f"{first}:{stop}", (parts.index(first),))
                drawing.cells(left + 14 + 162 * local, top + 27, [[cell]], cell=Box(0, 0, 154, 34))
    drawing.text(20, 380, "The same colour: copies of the same part.", size="small", style="quiet")
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"19_meshes.svg": _meshes, "19_resume.svg": _resume}
