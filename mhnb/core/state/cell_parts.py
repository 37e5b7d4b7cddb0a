"""What features add to cells: each keeps something of a cluster's cells, and adds its part to each cell.

A feature is known here alone: `Cell`, the state machine and `CellResult` know only the interface `CellPart`, and a value in the result
by its class.
"""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.memory import FailedAllocations
from mhnb.core.messages import CellEnded, OutputProduced
from mhnb.core.metrics import CellMetrics, Metrics, MetricStore
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell, CellPart
from mhnb.core.state.events import Command, Event


class ClusterParts:
    """What features keep of all cells of one generation of a cluster.

    Args:
        generation: its number.
    """

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self.metrics = MetricStore()
        """What the cells have logged."""

    def begin_cell(self, cell: Cell) -> Sequence[CellPart]:
        """Return the parts that features add to a cell."""
        return _MetricPart(cell, self.metrics, self._generation), _AllocationPart()


class _MetricPart(CellPart):
    """What the ranks log in a cell; a replayed cell replaces what it has logged before."""

    def __init__(self, cell: Cell, store: MetricStore, generation: int) -> None:
        self._store = store
        self._metrics = CellMetrics(cell.seq, cell.ranks, generation, cell.request.place.execution_count)
        if cell.request.replayed_seq is not None:
            store.replace_earlier(cell.seq)

    def handle(self, event: Event, _now: float, /) -> Sequence[Command]:
        if isinstance(event, CellEnded | OutputProduced) and self._metrics.add(event.rank, event.events):
            self._store.add(self._metrics)
        return ()

    def end(self) -> Sequence[str]:
        self._metrics.is_done = True
        return ()

    def result(self) -> Metrics | None:
        return self._metrics.snapshot(done=self._metrics.is_done) or None


class _AllocationPart(CellPart):
    """What the memory of a rank held when an allocation failed."""

    def __init__(self) -> None:
        self._found = FailedAllocations()
        self._is_done = False

    def handle(self, event: Event, _now: float, /) -> Sequence[Command]:
        # An error in late output did not end the cell.
        if isinstance(event, CellEnded | OutputProduced) and not self._is_done:
            for error in event.events:
                if isinstance(error, ErrorRaised):
                    self._found.pop(event.rank, None)
                    self._found.update({} if error.memory is None else {event.rank: error.memory})
        return ()

    def end(self) -> Sequence[str]:
        self._is_done = True
        return ()

    def result(self) -> FailedAllocations | None:
        return FailedAllocations(self._found) or None
