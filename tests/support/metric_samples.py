"""Sample metrics, as ranks log and send them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from mhnb.core.metrics import CellMetrics, Metrics, PointBuffer
from mhnb.core.output.events import OutputEvent
from mhnb.core.output.results import CellResult
from tests.support.view_samples import cell

Logged: TypeAlias = Iterable[tuple[str, float, float]]
"""Name, step and value of each point of a rank."""


def send(points: Logged, *, same: bool = False, is_final: bool = True) -> list[OutputEvent]:
    """Return the events that a rank sends for its points."""
    buffers: dict[str, PointBuffer] = {}
    for name, step, value in points:
        buffers.setdefault(name, PointBuffer()).add(step, value, is_same=same)
    events = [buffer.take(name, is_final=is_final) for name, buffer in buffers.items()]
    return [event for event in events if event is not None]


def cell_metrics(points: Callable[[int], Logged], ranks: int = 4, *, same: bool = False, seq: int = 12) -> CellMetrics:
    """Return the metrics of a cell in which each rank logs the points that a function returns for it."""
    metrics = CellMetrics(seq, range(ranks))
    for rank in range(ranks):
        metrics.add(rank, send(points(rank), same=same))
    return metrics


def log_points(
    points: Callable[[int], Logged], ranks: int = 4, *, same: bool = False, done: bool = True, seq: int = 12
) -> Metrics:
    """Return the points of such a cell."""
    return cell_metrics(points, ranks, same=same, seq=seq).snapshot(done=done)


def log_curve(values: Sequence[Sequence[float]], name: str = "loss") -> Metrics:
    """Return the points of ranks that log one metric at each step; `values` has a sequence for each rank."""
    return log_points(lambda rank: ((name, step, value) for step, value in enumerate(values[rank])), len(values))


def training_points(rank: int, odd: int) -> Logged:
    """Yield a loss and a gradient norm over 200 steps; one rank is off, and stops early to log the norm."""
    for step in range(0, 400, 2):
        yield "loss", step, 2.4 / (1 + step / 40) + (0.4 if rank == odd else 0.004 * math.sin(step * (rank + 1)))
        if rank != odd or step < 250:
            yield "grad norm", step, 10 ** (2 - step / 80) * (1 + 0.3 * math.sin(step * (rank + 2)))
        yield "lr", step, 0.001 if step < 300 or rank != odd else 0.0005


def training_cell(count: int, *, done: bool = True) -> CellResult:
    """Return the result of a cell that trains on so many ranks, of which one is off."""
    metrics = CellMetrics(12, range(count))
    for rank in range(count):
        points = list(training_points(rank, count // 2))
        metrics.add(rank, send(point for point in points if point[0] != "lr"))
        metrics.add(rank, send((point for point in points if point[0] == "lr"), same=True))
    result = cell(*[[] for _ in range(count)], done=done, wall_s=21.0)
    return replace(result, added=(metrics.snapshot(done=done),))
