"""Lesson 08: two ranks that meet in different programs, and the numbers that they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.integration.lessons.figures.drawing import LINE, PALE, Box, Cell, Drawing, color_of, mix

_HALVES = np.arange(8, dtype=np.int32).reshape(2, 4)
_PROGRAMS: Mapping[str, Callable[[Any], Any]] = {"total": jnp.sum, "top": jnp.max}
_ORDERS = (("total", "top"), ("top", "total"))
"""The programs of each rank, in the order in which it calls them."""
_FORMULAS = {"total": "{} + {} = {}", "top": "max({}, {}) = {}"}


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One collective."""

    brought: tuple[int, int]
    """What each rank brings: the result of its own program on its own half."""
    result: int
    """What both ranks get. The collective is that of rank 0, as the lesson's cell shows."""


def _meet(number: int) -> _Meeting:
    programs = [jax.jit(_PROGRAMS[order[number]]) for order in _ORDERS]
    brought = [int(program(half)) for program, half in zip(programs, _HALVES, strict=True)]
    return _Meeting((brought[0], brought[1]), int(programs[0](np.array(brought))))


def _two_orders() -> Drawing:
    meetings = [_meet(0), _meet(1)]
    right_values = " and ".join(f"{name} {int(program(_HALVES))}" for name, program in _PROGRAMS.items())
    words = "; ".join(
        f"at meeting {number + 1}, rank 0 brings {each.brought[0]} and rank 1 brings {each.brought[1]}, and both get {each.result}"
        for number, each in enumerate(meetings)
    )
    drawing = Drawing(750, 320, title="Two ranks that meet in different programs", description=f"{words}.")
    rows, columns, width = (64, 244), (200, 436), 150
    for rank, y in enumerate(rows):
        drawing.text(20, y - 34, f"rank {rank} holds", size="small", style="strong")
        drawing.cells(
            20, y - 17, [[Cell(str(value), (rank,)) for value in _HALVES[rank].tolist()]], cell=Box(0, 0, 34, 34)
        )
        drawing.text(646, y - 22, "it gets", size="small", style="strong")
        for number, name in enumerate(_ORDERS[rank]):
            drawing.text(646, y + 2 + 22 * number, f"{name} {meetings[number].result}", style="code")
    for number, (x, meeting) in enumerate(zip(columns, meetings, strict=True)):
        middle = x + width / 2, (rows[0] + rows[1]) / 2
        drawing.text(middle[0], rows[0] - 34, f"meeting {number + 1}", size="small", style="quiet", anchor="middle")
        for rank, y in enumerate(rows):
            name = _ORDERS[rank][number]
            box = Box(x, y - 19, width, 38)
            drawing.box(box, fill=mix(color_of(rank), 0.3), line=color_of(rank))
            drawing.text(box.x + 10, y, name, style="code")
            drawing.text(box.right - 10, y, f"brings {meeting.brought[rank]}", size="small", anchor="end")
            side = 1 if rank == 0 else -1
            drawing.arrow((middle[0], y + 19 * side), (middle[0], middle[1] - 22 * side))
        box = Box(x, middle[1] - 22, width, 44)
        drawing.box(box, fill=PALE, line=LINE)
        drawing.text(
            middle[0],
            middle[1],
            _FORMULAS[_ORDERS[0][number]].format(*meeting.brought, meeting.result),
            anchor="middle",
        )
    right = columns[0] + width
    for y in rows:
        drawing.arrow((162, y), (columns[0] - 4, y))
        drawing.arrow((right + 4, y), (columns[1] - 4, y))
        drawing.arrow((columns[1] + width + 4, y), (636, y))
    drawing.text(
        20,
        302,
        f"No rank is told which program the other one runs. Right would be {right_values}.",
        size="small",
        style="quiet",
    )
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"08_two_orders.svg": _two_orders}
