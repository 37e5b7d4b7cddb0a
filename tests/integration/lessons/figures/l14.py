"""Lesson 14: a rank dies, the others wait and are ended, then fresh processes run the journal's cells again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.integration.lessons.figures.drawing import BUSY, LINE, LOST, WAITING, Box, Drawing

_N_RANKS, _KILLED = 4, 2
_LEFT, _CELL, _TOP, _STEP = 78, 38, 78, 44
_NAMES = {"setup": "define", "train": "3 steps", "save": "save", "more": "2 steps"}
"""The cells that the replay runs again, and what they do."""


def _death() -> Drawing:
    numbers = _cell_numbers()
    killed, ended = _LEFT + _CELL * len(_NAMES), _LEFT + _CELL * len(_NAMES) + 116
    fresh = ended + 124
    after = fresh + _CELL * len(_NAMES)
    bottom = _TOP + _STEP * _N_RANKS
    drawing = Drawing(
        760,
        332,
        title="A rank dies, and the cells are replayed",
        description=f"Rank {_KILLED} of {_N_RANKS} is killed in a cell. The other ranks wait for it until mhnb ends them. "
        f"Fresh processes run cells {', '.join(map(str, numbers.values()))} again and go on.",
    )
    for words, x, width in (
        ("your cells", _LEFT, killed - _LEFT),
        ("the cell that kills", killed, ended - killed),
        ("restart", ended, fresh - ended),
        ("the replay", fresh, after - fresh),
        ("go on", after, 96),
    ):
        drawing.text(x + width / 2, 24, words, size="small", style="strong", anchor="middle")
        drawing.line((x, 38), (x, bottom))
    for rank in range(_N_RANKS):
        y = _TOP + _STEP * rank
        drawing.text(_LEFT - 12, y + 15, f"rank {rank}", anchor="end")
        for start in (_LEFT, fresh):
            for place, cell in enumerate(_NAMES):
                drawing.bar(Box(start + _CELL * place + 2, y, _CELL - 4, 30), str(numbers[cell]), color=BUSY)
        _draw_end(drawing, rank, Box(killed + 2, y, ended - killed - 4, 30))
        drawing.arrow((ended + 10, y + 15), (fresh - 6, y + 15), color=LINE)
        drawing.bar(Box(after + 2, y, 92, 30), "same values", color=BUSY)
    drawing.text((ended + fresh) / 2, _TOP - 16, "fresh processes", size="small", style="quiet", anchor="middle")
    cells = ", ".join(f"[{numbers[cell]}] {words}" for cell, words in _NAMES.items())
    drawing.text(_LEFT, bottom + 14, f"Cells in the journal: {cells}", size="small", style="quiet")
    drawing.legend(
        _LEFT, bottom + 52, [([BUSY], "runs a cell"), ([WAITING], "waits in a sum"), ([LOST], "the process ends")]
    )
    return drawing


def _draw_end(drawing: Drawing, rank: int, box: Box) -> None:
    """Draw the last cell of a rank: the killed one ends at once, and the others wait for it."""
    end = box.x + 14 if rank == _KILLED else box.right
    color, words = (BUSY, "") if rank == _KILLED else (WAITING, "waits")
    drawing.bar(Box(box.x, box.y, end - box.x, box.height), words, color=color)
    drawing.box(Box(end - 3, box.y - 3, 6, box.height + 6), fill=LOST, radius=0)
    if rank == _KILLED:
        drawing.text(end + 9, box.y + 15, "signal 9", size="small")


def _cell_numbers() -> dict[str, int]:
    """Return the numbers that Jupyter gives the cells if all are run in order."""
    code = [cell.id for cell in read_lesson(next(NOTEBOOKS.glob("*_death.ipynb"))).code]
    return {name: code.index(name) + 1 for name in _NAMES}


FIGURES: Mapping[str, Callable[[], Drawing]] = {"14_death.svg": _death}
