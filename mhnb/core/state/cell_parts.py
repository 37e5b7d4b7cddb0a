"""What features add to cells: each keeps something of a cluster's cells, and adds its part to each cell.

A feature is known here alone: `Cell`, the state machine and `CellResult` know only the interface `CellPart`, and a value in the result
by its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mhnb.core.debugging import DebugUpdate, RankDebugState
from mhnb.core.memory import FailedAllocations
from mhnb.core.messages import CellEnded, DebugInput, DebugPrompt, DebugResumed, OutputProduced, RankStatus
from mhnb.core.metrics import CellMetrics, Metrics, MetricStore
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell, CellPart, RankCell
from mhnb.core.state.events import Command, DebugLineTyped, Event, SendToRank, ShowDebugger
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
            DebuggerPart(),
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


@dataclass(slots=True)
class _RankConsole:
    """What a rank that has stopped in the debugger has reported."""

    prompt: DebugPrompt
    """Its latest prompt."""
    is_prompting: bool = False
    """Whether it waits for a line at that prompt; if not, it works on the last one, or runs."""
    resumed_text: str | None = None
    """What the debugger printed when it last left a prompt; None if it never has."""
    report_count: int = 0
    """How many prompts and ends of prompts it has reported. A prompt may be equal to the one before."""


class DebuggerPart(CellPart):
    """Which ranks have stopped in the debugger, what they printed there, and what the others do."""

    def __init__(self) -> None:
        self._consoles: dict[int, _RankConsole] = {}
        self._update = DebugUpdate({})
        """The latest."""

    def handle(self, cell: Cell, event: Event, now: float, /) -> Sequence[Command]:
        """Record a prompt or the end of one, send a typed line, or report what has changed."""
        match event:
            case DebugPrompt() | DebugResumed() if event.seq == cell.seq and event.rank in cell.parts:
                self._record(cell.parts[event.rank], event, now)
            case DebugLineTyped(cell.ticket, rank, line):
                return self._send_line(cell, rank, line)
            case RankStatus() | CellEnded():
                pass
            case _:
                return ()
        return self._update_caller(cell, now) if self._consoles and cell.is_running else ()

    def _record(self, part: RankCell, report: DebugPrompt | DebugResumed, now: float) -> None:
        if isinstance(report, DebugPrompt):
            console = self._consoles.setdefault(report.rank, _RankConsole(report))
            console.prompt, console.is_prompting = report, True
            part.is_stopped, part.stop_line = True, report.line
        elif report.rank in self._consoles:
            console = self._consoles[report.rank]
            console.is_prompting, console.resumed_text = False, report.text
            part.is_stopped, part.resumed_at = False, now
        else:
            return
        console.report_count += 1

    def _send_line(self, cell: Cell, rank: int, line: str | None) -> Sequence[Command]:
        """Send a line to a rank that waits for one. A line for a prompt that has ended is dropped."""
        console = self._consoles.get(rank)
        if console is None or not console.is_prompting or not cell.parts[rank].is_stopped:
            return ()
        console.is_prompting = False
        return (SendToRank(rank, DebugInput(cell.seq, console.prompt.stop, line)),)

    def _update_caller(self, cell: Cell, now: float) -> Sequence[Command]:
        """Report to the caller of the cell what has changed in the debugger."""
        cell.count_stopped_time(now)
        states = {rank: _find_state(part) for rank, part in cell.parts.items()}
        consoles = {rank: self._consoles[rank] for rank in cell.parts if rank in self._consoles}
        update = DebugUpdate(
            states,
            {r: one.prompt for r, one in consoles.items() if states[r] == "stopped" and one.is_prompting},
            {rank: _format_wait(cell.parts[rank].samples[-1]) for rank, state in states.items() if state == "waiting"},
            {rank: one.resumed_text for rank, one in consoles.items() if one.resumed_text is not None},
            {rank: one.report_count for rank, one in consoles.items()},
        )
        if update == self._update:
            return ()
        self._update = update
        return (ShowDebugger(cell.ticket, update),)


def _find_state(part: RankCell) -> RankDebugState:
    """Return what a rank does while others are in the debugger."""
    if part.outcome != "running":
        return "done"
    if part.is_stopped:
        return "stopped"
    is_sampled = bool(part.samples) and part.sampled_at > (part.resumed_at or 0.0)
    return "waiting" if is_sampled and part.samples[-1].activity == "agreement" else "running"


def _format_wait(sample: RankStatus) -> str:
    what = sample.what.partition(" ")[0]
    return what if sample.line is None else f"line {sample.line}, {what}"
