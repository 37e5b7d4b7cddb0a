"""Recorded output played into a view, in a kernel without a cluster, to measure the cost of the view alone.

Cells of `tests.bench.outputs` call it. Time is this thread's processor time, so that load on the machine does not count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mhnb.core.messages import CellEnded
from mhnb.core.output.events import Stream
from mhnb.core.state.cell import Cell
from mhnb.core.state.events import CellRequest
from mhnb.view.html import RankLocations
from mhnb.view.live.view import CellView

__all__ = ["play_mhnb", "play_tab"]

STEPS = 20
"""A cell of two seconds, sampled ten times per second."""


def line_of(rank: int, step: int, *, numbers: bool, groups: int = 0) -> str:
    """Return a rank's line: its number, optionally with a loss of its own; or, with `groups`, the text of its group."""
    if groups:
        return f"group {chr(97 + rank % groups // 26)}{chr(97 + rank % groups % 26)} step {step}\n"
    return f"rank {rank} step {step}" + (f" loss {(step * 7 + rank * 13) % 101 / 100:.2f}\n" if numbers else "\n")


def play_mhnb(ranks: int, lines: int, report: str, *, numbers: bool = False, groups: int = 0) -> None:
    """Play the output into mhnb's own view, and write the time to a file."""
    cell = Cell(1, CellRequest("x"), seq=1, ranks=tuple(range(ranks)), now=0.0)
    places = RankLocations({r: f"host{r}" for r in range(ranks)}, {r: f"/logs/bench/rank{r}.log" for r in range(ranks)})
    view, spent = CellView(locations=places), [0.0]
    for step in range(STEPS):
        for rank, part in cell.parts.items():
            part.add_output(
                [Stream("stdout", text) for text in _batch(rank, lines, step, numbers=numbers, groups=groups)]
            )
        _timed(spent, lambda: view.update(cell.result(0.2 + step / 10, ranks)))  # noqa: B023 - called at once
        time.sleep(0.05)
    for rank in range(ranks):
        cell.end_rank(CellEnded(rank, 1, "ok", [], 2.0))
    cell.wall_s = 2.0
    _timed(spent, lambda: view.finish(cell.result(2.2, ranks)))
    _write(report, spent[0])


def play_tab(ranks: int, lines: int, report: str, *, numbers: bool = False) -> None:
    """Play the output into a Tab of ipywidgets' Output, with one text per rank and step."""
    import ipywidgets  # type: ignore[import-untyped]
    from IPython.display import display

    outputs = [ipywidgets.Output() for _ in range(ranks)]
    display(ipywidgets.Tab(outputs))
    spent = [0.0]
    for step in range(STEPS):
        for rank, output in enumerate(outputs):
            text = "".join(_batch(rank, lines, step, numbers=numbers))
            _timed(spent, lambda: output.append_stdout(text))  # noqa: B023 - called at once
        time.sleep(0.05)
    _write(report, spent[0])


def _batch(rank: int, lines: int, step: int, *, numbers: bool, groups: int = 0) -> list[str]:
    each = lines // STEPS
    return [line_of(rank, at, numbers=numbers, groups=groups) for at in range(step * each, (step + 1) * each)]


def _timed(spent: list[float], act: Callable[[], Any]) -> None:
    began = time.thread_time()
    act()
    spent[0] += time.thread_time() - began


def _write(report: str, seconds: float) -> None:
    Path(report).write_text(json.dumps({"view_s": seconds}))
