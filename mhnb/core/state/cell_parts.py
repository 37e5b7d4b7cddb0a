"""Parts that features add to each cell of a cluster.

A feature is known here alone: `Cell`, the state machine and `CellResult` know only the interface `CellPart`, and a value in the result
by its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mhnb.core.debugging import DebugUpdate, RankDebugState
from mhnb.core.launch.environment import LATE_VARIABLES, NotebookEnvironment, StartVariables
from mhnb.core.memory import FailedAllocations
from mhnb.core.messages import (
    CellEnded,
    DebugInput,
    DebugPrompt,
    DebugResumed,
    OutputProduced,
    RankStatus,
    ReportSoon,
)
from mhnb.core.metrics import CellMetrics, Metrics, MetricStore
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell, CellPart, RankCell
from mhnb.core.state.events import Command, DebugLineTyped, Event, SendToHosts, SendToRank, ShowDebugger, TimePassed
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.core.stragglers import (
    CellArrivals,
    ClockBounds,
    ClockOffsets,
    Stragglers,
    align_clocks,
    describe_standing_out,
)


class ClusterParts:
    """What features keep of all cells of one generation of a cluster.

    Args:
        registry: the registry of its ranks.
        generation: its number.
        environment: of the notebook's process.
    """

    def __init__(self, registry: RankRegistry, generation: int, environment: NotebookEnvironment) -> None:
        self._generation = generation
        self._environment = environment
        self._notebook_variables = StartVariables(environment.variables, devices=environment.devices)
        self.metrics = MetricStore()
        """What the cells have logged."""
        self.arrivals = ClusterArrivals(registry)

    def build(self, cell: Cell) -> Sequence[CellPart]:
        """Return the parts that features add to a cell."""
        return (
            _MetricPart(cell, self.metrics, self._generation),
            _AllocationPart(),
            _ArrivalPart(self.arrivals),
            _VariablePart(self._environment, self._notebook_variables),
            DebuggerPart(),
        )


class _MetricPart(CellPart):
    """Metrics that ranks log in a cell; a replay replaces earlier ones."""

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


class _VariablePart(CellPart):
    """Notes on variables that were changed after JAX had read them."""

    def __init__(self, environment: NotebookEnvironment, in_notebook: StartVariables) -> None:
        self._environment, self._in_notebook = environment, in_notebook
        self._on_ranks: dict[str, str] = {}

    def handle(self, _cell: Cell, event: Event, _now: float, /) -> Sequence[Command]:
        if isinstance(event, CellEnded):
            self._on_ranks |= event.facts.get(LATE_VARIABLES, {})
        return ()

    def end(self, _cell: Cell, /) -> Sequence[str]:
        # Other hosts do not get the notebook's variables at all.
        here = self._in_notebook.take_changes() if self._environment.is_local else {}
        return [
            self._environment.describe_late_variable(name, requested, in_notebook=found is here)
            for found in (self._on_ranks, here)
            for name, requested in found.items()
        ]


class ClusterArrivals:
    """Arrivals at launches, written by the event loop, readable by any thread.

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
        """Return how many ns each rank's clock is ahead, and all offsets."""
        clocks = self._identify_clocks()
        offsets = align_clocks(self._clock_bounds, clocks)
        return {rank: offsets.by_clock[clock] for rank, clock in clocks.items()}, offsets

    def _identify_clocks(self) -> dict[int, str]:
        return {entry.rank: str(entry.facts.get("clock", entry.host)) for entry in self._registry.entries}

    def measure(self) -> Stragglers | None:
        """Measure how late ranks reached the launches of the last recorded cell."""
        last, bounds = self._last, self._clock_bounds
        if last is None:
            return None
        arrivals, cell_name = last
        hosts = {entry.rank: str(entry.facts.get("hostname", entry.host)) for entry in self._registry.entries}
        stragglers = arrivals.measure(self._identify_clocks(), hosts, bounds)
        return None if stragglers is None else replace(stragglers, cell_name=cell_name)


class _ArrivalPart(CellPart):
    """Arrivals of ranks at a cell's launches, with a note on stragglers."""

    def __init__(self, arrivals: ClusterArrivals) -> None:
        self._arrivals = arrivals

    def end(self, cell: Cell, /) -> Sequence[str]:
        logs = {rank: part.report.arrivals for rank, part in cell.parts.items() if part.report.arrivals.packed}
        if not logs:
            return ()
        arrivals = CellArrivals(cell.seq, logs)
        self._arrivals.add(arrivals, cell.name)
        stragglers = self._arrivals.measure() if arrivals.may_stand_out() else None
        text = "" if stragglers is None else describe_standing_out(stragglers)
        return (f"{text} · %mhjax flight",) if text else ()


_SILENT_AFTER_S = 1.0
"""A rank that is asked where it is reports within 0.6 s. One that has not in this time is too busy to report, or to stop soon."""


@dataclass(slots=True)
class _RankConsole:
    """State of a rank's debugger, from the cell's first stop on."""

    prompt: DebugPrompt | None = None
    """Its latest prompt; None if it has not stopped yet."""
    is_prompting: bool = False
    """Whether it waits for a line at that prompt; if not, it works on the last one, or runs."""
    text: str = ""
    """What the debugger printed since the last line was sent to it."""
    is_stepping: bool = False
    """Whether it stops again at a later line, if it gets that far."""
    expected_since: float | None = None
    """Since when its next report is expected, because it may be about to stop; None if it is not."""

    def is_expected(self, part: RankCell, now: float) -> bool:
        """Check whether the rank's state stays unknown until its next report."""
        if part.outcome != "running":
            return False
        if part.is_stopped:
            return not self.is_prompting
        return self.expected_since is not None and now - self.expected_since < _SILENT_AFTER_S


class DebuggerPart(CellPart):
    """Debugger state of a cell: stopped ranks, printed text, other ranks' activity."""

    def __init__(self) -> None:
        self._consoles: dict[int, _RankConsole] = {}
        """Empty until a rank stops."""
        self._update = DebugUpdate({})
        """The latest."""

    def handle(self, cell: Cell, event: Event, now: float, /) -> Sequence[Command]:
        """Record prompts, send typed lines, and report changes to the caller."""
        commands: Sequence[Command] = ()
        match event:
            case DebugPrompt() if event.seq == cell.seq and event.rank in cell.parts:
                commands = self._record_prompt(cell, event, now)
            case DebugResumed() if event.seq == cell.seq and event.rank in self._consoles:
                self._record_resumed(cell.parts[event.rank], event, now)
            case RankStatus() if event.seq == cell.seq and event.rank in self._consoles:
                self._consoles[event.rank].expected_since = None
            case DebugLineTyped(cell.ticket, rank, line):
                return self._send_line(cell, rank, line)
            case CellEnded() | TimePassed():
                pass
            case _:
                return ()
        return (*commands, *self._update_caller(cell, now)) if self._consoles and cell.is_running else ()

    def _record_prompt(self, cell: Cell, prompt: DebugPrompt, now: float) -> Sequence[Command]:
        self._consoles = self._consoles or {rank: _RankConsole() for rank in cell.parts}
        commands = self._expect_stops(cell, now) if prompt.is_new else ()
        console, part = self._consoles[prompt.rank], cell.parts[prompt.rank]
        console.prompt, console.is_prompting, console.expected_since = prompt, True, None
        console.text += prompt.text
        part.is_stopped, part.stop_line = True, prompt.line
        return commands

    def _record_resumed(self, part: RankCell, resumed: DebugResumed, now: float) -> None:
        """Record that a rank runs on; a report of its place follows."""
        console = self._consoles[resumed.rank]
        console.is_prompting, console.is_stepping = False, resumed.is_stepping
        console.expected_since = part.resumed_at = now
        console.text += resumed.text
        part.is_stopped = False

    def _expect_stops(self, cell: Cell, now: float) -> Sequence[Command]:
        """Expect reports of ranks that may stop together with this one.

        The user should see these stops together. At the first stop, every rank is expected and asked to report. Later,
        ranks that were stepped are expected, unless a rank still waits at a prompt.
        """
        running = {rank: cell.parts[rank].is_stopped for rank in cell.running_ranks}
        if any(self._consoles[rank].is_prompting for rank in running):
            return ()
        is_first = not any(running.values())
        for rank, is_stopped in running.items():
            if not is_stopped and (self._consoles[rank].is_stepping or is_first):
                self._consoles[rank].expected_since = now
        return (SendToHosts(ReportSoon()),) if is_first and len(running) > 1 else ()

    def _send_line(self, cell: Cell, rank: int, line: str | None) -> Sequence[Command]:
        """Send a line to a rank, unless its prompt has ended."""
        console = self._consoles.get(rank)
        if console is None or console.prompt is None or not console.is_prompting or not cell.parts[rank].is_stopped:
            return ()
        console.is_prompting, console.text = False, ""
        return (SendToRank(rank, DebugInput(cell.seq, console.prompt.number, line)),)

    def _update_caller(self, cell: Cell, now: float) -> Sequence[Command]:
        """Report debugger changes to the caller of the cell."""
        cell.count_stopped_time(now)
        states = {rank: _find_state(part) for rank, part in cell.parts.items()}
        prompts = {rank: one.prompt for rank, one in self._consoles.items() if one.prompt and one.is_prompting}
        update = DebugUpdate(
            states,
            {rank: prompt for rank, prompt in prompts.items() if states[rank] == "stopped"},
            {rank: _format_wait(cell.parts[rank].samples[-1]) for rank, state in states.items() if state == "waiting"},
            {rank: one.text for rank, one in self._consoles.items()},
            frozenset(rank for rank, one in self._consoles.items() if one.is_expected(cell.parts[rank], now)),
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
    return "waiting" if part.samples and part.samples[-1].activity == "agreement" else "running"


def _format_wait(sample: RankStatus) -> str:
    what = sample.what.partition(" ")[0]
    return what if sample.line is None else f"line {sample.line}, {what}"
