"""Lesson 09: a collective with a rank that comes late, and with one that never comes, as timelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.integration.lessons.figures.drawing import BUSY, INK, LOST, WAITING, Box, Drawing, mix

_LEFT, _SECOND, _SHOWN_S = 92, 80, 8.0
"""The x of the start, the width of a second, and the seconds that are shown."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank does in a cell."""

    number: int
    elsewhere: str
    elsewhere_s: float
    """How long it is somewhere else."""
    calls_sum: bool = True


@dataclass(frozen=True, slots=True)
class _Case:
    """A cell on two of the ranks."""

    title: str
    ranks: tuple[_Rank, ...]
    limit_s: float = 7.0
    """When a time limit ends the cell."""

    @property
    def met_s(self) -> float | None:
        """When all ranks are in the sum; None if one never is."""
        return max(rank.elsewhere_s for rank in self.ranks) if all(rank.calls_sum for rank in self.ranks) else None


_CASES = (
    _Case("Late: rank 2 sleeps, then it calls the sum", (_Rank(0, "runs", 1.0), _Rank(2, "sleeps", 5.0))),
    _Case("Never: rank 2 skips the sum", (_Rank(0, "runs", 1.0), _Rank(2, "ends the cell", 1.0, calls_sum=False))),
)


def _two_timelines() -> Drawing:
    drawing = Drawing(
        760,
        338,
        title="A late rank and a missing rank",
        description="Rank 0 waits in a sum. In the first case rank 2 comes late, and both go on. In the second it never comes, "
        "and rank 0 waits until a time limit ends the cell.",
    )
    for place, case in enumerate(_CASES):
        _draw_case(drawing, case, 20 + 146 * place)
    drawing.legend(
        _LEFT, 318, [([BUSY], "does something"), ([WAITING], "waits in the sum"), ([LOST], "ended by the time limit")]
    )
    return drawing


def _draw_case(drawing: Drawing, case: _Case, y: float) -> None:
    drawing.text(20, y + 10, case.title, style="strong")
    rows = [y + 34 + 46 * place for place in range(len(case.ranks))]
    end = case.limit_s if case.met_s is None else case.met_s
    for rank, top in zip(case.ranks, rows, strict=True):
        drawing.text(_LEFT - 12, top + 15, f"rank {rank.number}", anchor="end")
        drawing.bar(_bar(top, 0, rank.elsewhere_s), rank.elsewhere, color=BUSY)
        if rank.calls_sum and end > rank.elsewhere_s:
            drawing.bar(_bar(top, rank.elsewhere_s, end), "waits in the sum", color=WAITING)
        if case.met_s is not None:
            drawing.bar(_bar(top, end, end + 1.4), "goes on", color=BUSY)
    x, low = _LEFT + end * _SECOND, rows[-1] + 36
    color = INK if case.met_s is not None else LOST
    drawing.line((x, rows[0] - 6), (x, low), color=color)
    if case.met_s is None:
        drawing.box(Box(x - 3, rows[0] - 3, 6, 36), fill=mix(LOST, 0.8), radius=0)
        drawing.text(x + 9, rows[0] + 15, "time limit", size="small")
        drawing.text(
            _LEFT + 2.4 * _SECOND,
            rows[1] + 15,
            "no line of code is left that could reach the sum",
            size="small",
            style="quiet",
        )
    else:
        drawing.arrow((x, rows[1]), (x, rows[0] + 31), color=INK)


def _bar(top: float, start_s: float, stop_s: float) -> Box:
    return Box(_LEFT + start_s * _SECOND, top, (min(stop_s, _SHOWN_S) - start_s) * _SECOND, 30)


FIGURES: Mapping[str, Callable[[], Drawing]] = {"09_two_timelines.svg": _two_timelines}
