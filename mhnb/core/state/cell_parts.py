"""What features add to cells: each keeps something of a cluster's cells, and adds its part to each cell.

A feature is known here alone: `Cell`, the state machine and `CellResult` know only the interface `CellPart`, and a value in the result
by its class.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mhnb.core.memory import FailedAllocations
from mhnb.core.messages import CellEnded, OutputProduced
from mhnb.core.metrics import CellMetrics, Metrics, MetricStore
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell, CellPart
from mhnb.core.state.events import Command, Event
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.core.stragglers import (
    CellArrivals,
    ClockBounds,
    ClockOffsets,
    Lateness,
    align_clocks,
    describe_standing_out,
)


class ClusterParts:
    """What features keep of all cells of one generation of a cluster.

    Args:
        registry: the registry of its ranks.
        generation: its number.
    """

    def __init__(self, registry: RankRegistry, generation: int) -> None:
        self._generation = generation
        self.metrics = MetricStore()
        """What the cells have logged."""
        self.stragglers = Stragglers(registry)

    def begin_cell(self, cell: Cell) -> Sequence[CellPart]:
        """Return the parts that features add to a cell."""
        return (
            _MetricPart(cell, self.metrics, self._generation),
            _AllocationPart(),
            _ArrivalPart(self.stragglers),
        )


class _MetricPart(CellPart):
    """What the ranks log in a cell; a replayed cell replaces what it has logged before."""

    def __init__(self, cell: Cell, store: MetricStore, generation: int) -> None:
        self._store = store
        self._metrics = CellMetrics(cell.seq, cell.ranks, generation, cell.request.place.execution_count)
        if cell.request.replayed_seq is not None:
            store.replace_earlier(cell.seq)

    def handle(self, _cell: Cell, event: Event, _now: float, /) -> Sequence[Command]:
        if isinstance(event, CellEnded | OutputProduced) and self._metrics.add(event.rank, event.events):
            self._store.add(self._metrics)
        return ()

    def end(self, _cell: Cell, /) -> Sequence[str]:
        self._metrics.is_done = True
        return ()

    def result(self) -> Metrics | None:
        return self._metrics.snapshot(done=self._metrics.is_done) or None


class _AllocationPart(CellPart):
    """What the memory of a rank held when an allocation failed."""

    def __init__(self) -> None:
        self._found = FailedAllocations()

    def handle(self, cell: Cell, event: Event, _now: float, /) -> Sequence[Command]:
        # An error in late output did not end the cell.
        if isinstance(event, CellEnded | OutputProduced) and cell.wall_s is None:
            for error in event.events:
                if isinstance(error, ErrorRaised):
                    self._found.pop(event.rank, None)
                    self._found.update({} if error.memory is None else {event.rank: error.memory})
        return ()

    def result(self) -> FailedAllocations | None:
        return FailedAllocations(self._found) or None


class Stragglers:
    """When ranks came to launches. The event loop writes it; any thread may read it.

    Args:
        registry: of the ranks; it names the clock and the host of each.
    """

    def __init__(self, registry: RankRegistry) -> None:
        self._registry = registry
        self._last: tuple[CellArrivals, str] | None = None
        """The arrivals of the last cell that had any launches on which the ranks agreed, and the cell's name."""
        self._clock_bounds: ClockBounds = {}
        """What the launches of all cells say about the clocks of the hosts."""

    def add(self, arrivals: CellArrivals, cell_name: str) -> None:
        """Record the arrivals of a cell that has ended."""
        clocks = self._identify_clocks()
        if len(set(clocks.values())) > 1:
            self._clock_bounds = arrivals.bound_clocks(clocks, self._clock_bounds)
        self._last = arrivals, cell_name

    def align_clocks(self) -> tuple[dict[int, int], ClockOffsets]:
        """Return how far the clock of each rank is ahead, in ns, and what that is from: from the launches so far."""
        clocks = self._identify_clocks()
        offsets = align_clocks(self._clock_bounds, clocks)
        return {rank: offsets.by_clock[clock] for rank, clock in clocks.items()}, offsets

    def _identify_clocks(self) -> dict[int, str]:
        return {entry.rank: str(entry.facts.get("clock", entry.host)) for entry in self._registry.entries}

    def measure(self) -> Lateness | None:
        """Measure how late the ranks came to the launches of the last cell that had any; None without such a cell."""
        last, bounds = self._last, self._clock_bounds
        if last is None:
            return None
        arrivals, cell_name = last
        hosts = {entry.rank: str(entry.facts.get("hostname", entry.host)) for entry in self._registry.entries}
        lateness = arrivals.measure(self._identify_clocks(), hosts, bounds)
        return None if lateness is None else replace(lateness, cell_name=cell_name)


class _ArrivalPart(CellPart):
    """When the ranks came to the launches of a cell: a rank that stands out is named."""

    def __init__(self, stragglers: Stragglers) -> None:
        self._stragglers = stragglers

    def end(self, cell: Cell, /) -> Sequence[str]:
        logs = {rank: part.report.arrivals for rank, part in cell.parts.items() if part.report.arrivals.packed}
        if not logs:
            return ()
        arrivals = CellArrivals(cell.seq, logs)
        self._stragglers.add(arrivals, cell.name)
        lateness = self._stragglers.measure() if arrivals.may_stand_out() else None
        text = "" if lateness is None else describe_standing_out(lateness)
        return (f"{text} · %mhjax flight",) if text else ()
