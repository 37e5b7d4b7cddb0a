"""Lesson 01 and the tour: the processes of a cluster, and what they send each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.integration.lessons.figures.drawing import LINE, PALE, PAPER, Box, Drawing, color_of

RANKS, DEVICES = 4, 2


def read_assignment() -> str:
    """Return what the lesson's cell `bind` runs on every rank."""
    cells = read_lesson(NOTEBOOKS / "01_many_pythons.ipynb").code
    return next(cell.source for cell in cells if cell.id == "bind").removeprefix("%%mhjax\n")


def _draw_processes(assignment: str, *, note: str) -> Drawing:
    """Draw the notebook's process above those of the ranks.

    Args:
        assignment: what is bound on each rank; empty for nothing.
        note: what the notebook does not have.
    """
    drawing = Drawing(
        600,
        372,
        title="the processes of a cluster",
        description=f"A notebook's process, and below it {RANKS} ranks with {DEVICES} devices each. The notebook sends source "
        "to each rank and gets output back. Neighbouring ranks send array data to each other.",
    )
    notebook = Box(150, 16, 300, 62)
    drawing.box(notebook, fill=PALE, line=LINE)
    drawing.text(300, 36, "notebook: one more Python process", anchor="middle")
    drawing.text(300, 58, note, anchor="middle", size="small", style="quiet")
    ranks = [Box(16 + 146 * rank, 158, 130, 136) for rank in range(RANKS)]
    for rank, box in enumerate(ranks):
        drawing.host(box, f"rank {rank}", number=rank)
        drawing.text(box.x + 10, 190, "a Python process", size="small")
        if assignment:
            drawing.text(box.x + box.width / 2, 212, assignment, anchor="middle", style="code")
        _draw_devices(drawing, box, rank)
        x, start = box.x + box.width / 2, 174 + 84 * rank
        drawing.arrow((start - 7, notebook.bottom), (x - 7, box.y - 2))
        drawing.arrow((x + 7, box.y - 2), (start + 7, notebook.bottom + 2))
    for left, right in pairwise(ranks):
        ends = (left.right - 26, left.bottom + 2), (right.x + 26, right.bottom + 2)
        drawing.arrow(*ends, bend=-26)
        drawing.arrow((ends[1][0] - 14, ends[1][1]), (ends[0][0] + 14, ends[0][1]), bend=14)
    drawing.text(110, 100, "source ↓", size="small", anchor="end")
    drawing.text(490, 100, "↑ output", size="small")
    words = "array data, in a computation over all devices"
    drawing.text(300, 350, words, anchor="middle", size="small")
    return drawing


def _draw_devices(drawing: Drawing, box: Box, rank: int) -> None:
    for place in range(DEVICES):
        device = Box(box.x + 12 + 56 * place, box.bottom - 46, 50, 34)
        drawing.box(device, f"{rank}:{place}", fill=PAPER, line=color_of(rank))
    drawing.text(box.x + box.width / 2, box.bottom - 58, "devices", anchor="middle", size="small", style="quiet")


def _hosts() -> Drawing:
    return _draw_processes("", note="no device of the cluster")


def _ranks() -> Drawing:
    return _draw_processes(read_assignment(), note="no x, and no device of the cluster")


FIGURES: Mapping[str, Callable[[], Drawing]] = {"00_hosts.svg": _hosts, "01_ranks.svg": _ranks}
