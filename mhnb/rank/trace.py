"""Record the profile of one cell, and reduce it to timeline events.

XLA has one profile at a time. One that the user's own code starts takes the place of this one, so that a traced cell ends as it would
without a trace.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns, time_ns
from types import CodeType, FrameType
from typing import Any

from mhnb.core.ranks import format_ranks
from mhnb.core.trace import EventKind, RankTrace, TracedCollective, TraceEvent
from mhnb.errors import HloError
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.guard.programs import CompiledProgram, find_launched_programs
from mhnb.rank.jax_private import backend_is_initialized, current_recorder, start_profiler
from mhnb.sharding.hlo_collectives import OPS, HloCollective, find_axes, parse_collectives, parse_meshes

MAX_EVENTS = 100_000
"""Events of one rank in the timeline."""
MAX_LINES = 20_000
"""Begins of lines that are recorded; a loop at the top level of a cell has many."""
MAX_TRACES = 4
"""Traces that a rank keeps until they are collected; other threads of the notebook may trace the next cells meanwhile."""
_MIN_HOST_NS = 1000
"""Shorter events of the host are left out: there are thousands, and none takes time."""
_NOT_INITIALISED = "JAX was not initialised when the cell began, so there is no profile"
_REPLACED = "the cell started a profile of its own, and this one ends there"


class LineRecorder:
    """Records when each top-level line of a cell begins, on one thread.

    Args:
        is_cell_file: returns whether code of that file name belongs to the cell.
    """

    def __init__(self, is_cell_file: Callable[[str], bool]) -> None:
        self._is_cell_file = is_cell_file
        self._thread = threading.get_ident()
        self.lines: list[tuple[int, int]] = []
        self.problem = ""
        """Why lines are missing."""
        self.cut_ns: int | None = None
        """When the first line began for which there was no room."""
        self._stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Record from now on, unless other code observes the lines already."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is not None:
            self._start_monitoring(monitoring)
        elif sys.gettrace() is None:
            sys.settrace(self._trace_call)
            self._stop = self._stop_tracing
        else:
            self.problem = "lines are not in the timeline: a debugger or a coverage tool observes them"

    def stop(self) -> None:
        """Record nothing any more."""
        self._stop()
        if self.cut_ns is not None:
            self.problem = f"lines after the first {MAX_LINES:,} are not in the timeline"

    def _note(self, code: CodeType, line: int) -> bool:
        """Record that a line begins; return False for code outside the cell."""
        if code.co_name != "<module>" or not self._is_cell_file(code.co_filename):
            return False
        if threading.get_ident() == self._thread:
            if len(self.lines) < MAX_LINES:
                self.lines.append((line, monotonic_ns()))
            elif self.cut_ns is None:
                self.cut_ns = monotonic_ns()
        return True

    # -- Python 3.12 and later

    def _start_monitoring(self, monitoring: Any) -> None:
        # Not one of those with a meaning: the cell may use a debugger, a coverage tool or a profiler.
        tool = next((number for number in _FREE_TOOLS if monitoring.get_tool(number) is None), None)
        if tool is None:
            self.problem = "lines are not in the timeline: other tools observe them"
            return

        def on_line(code: CodeType, line: int) -> Any:
            # Other code is not observed a second time.
            return None if self._note(code, line) else monitoring.DISABLE

        def stop() -> None:
            if monitoring.get_tool(tool) != _TOOL:
                self.problem = "lines are not in the timeline from where the cell freed mhnb's tool of sys.monitoring"
                return
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.LINE, None)
            monitoring.free_tool_id(tool)

        monitoring.use_tool_id(tool, _TOOL)
        monitoring.register_callback(tool, monitoring.events.LINE, on_line)
        # An earlier trace has disabled code that may be the cell's now.
        monitoring.restart_events()
        monitoring.set_events(tool, monitoring.events.LINE)
        self._stop = stop

    # -- Python 3.11

    def _trace_call(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event == "call" and code.co_name == "<module>" and self._is_cell_file(code.co_filename):
            return self._trace_line
        return None

    def _trace_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._note(frame.f_code, frame.f_lineno)
        return self._trace_line

    def _stop_tracing(self) -> None:
        current = sys.gettrace()
        if current == self._trace_call:
            sys.settrace(None)
        elif current is None:
            # Python removes a trace function in which an interrupt is raised.
            self.problem = "lines are not in the timeline from where an interrupt, or the cell, ended their recording"
        else:
            self.problem = "lines are not in the timeline from where the cell set a trace function of its own"


_FREE_TOOLS = (3, 4)
"""Numbers of tools of `sys.monitoring` that have no meaning."""
_TOOL = "mhnb"


class CellTrace:
    """The profile of one cell; errors become problems of the trace.

    Args:
        seq: the cell's number.
        is_cell_file: returns whether code of that file name belongs to the cell.
    """

    def __init__(self, seq: int, is_cell_file: Callable[[str], bool]) -> None:
        self.seq, self.data = seq, b""
        self._problems: list[str] = []
        self._lines = LineRecorder(is_cell_file)
        self._lock = threading.Lock()
        self._stop_profile: Callable[[], bytes] | None = None
        self._stop_watching: Callable[[], None] = lambda: None
        self._programs = LaunchedCollectives()
        self._recorded_until_ns: int | None = None
        """When the profile ended, if that was before the end of the cell."""
        if backend_is_initialized():
            self._try("no profile", self._begin_profile)
        else:
            # The profiler would initialise it, which waits for all ranks.
            self._problems.append(_NOT_INITIALISED)
        self._wall_ahead_ns = time_ns() - monotonic_ns()
        self._try("no lines", self._lines.start)
        self._began_ns = self._ended_ns = monotonic_ns()
        self._has_profile = self._stop_profile is not None

    def _try(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the cell goes on all the same, and the card has the reason
            self._problems.append(f"{what}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}")

    def _begin_profile(self) -> None:
        self._stop_profile, self._stop_watching = start_profiler(self._give_way)

    def _give_way(self) -> None:
        """End the profile, because other code starts one."""
        if self._stop_profile is not None:
            self._recorded_until_ns = monotonic_ns()
            self._problems.append(_REPLACED)
            self._try("no profile", self._end_profile)

    def _end_profile(self) -> None:
        with self._lock:
            stop, self._stop_profile = self._stop_profile, None
        if stop is not None:
            self.data = stop()

    def end(self) -> None:
        """End the trace with the cell's code."""
        self._ended_ns = monotonic_ns()
        self._try("no lines", self._lines.stop)
        self._try("JAX's profiler is still watched", self._stop_watching)

    def finish(self) -> None:
        """Stop the profiler, which may take seconds, and describe the programs."""
        self._try("no profile", self._end_profile)
        self._try("collectives have only the compiler's names", self._find_programs)

    def _find_programs(self) -> None:
        self._programs = find_launched_collectives(self.seq)

    def read(self) -> RankTrace:
        """Reduce the profile to the events of the timeline."""
        events: list[TraceEvent] = []
        dropped_count = 0

        def read_events() -> None:
            nonlocal events, dropped_count
            found = read_profile(self.data, self._wall_ahead_ns, self._programs, number_devices())
            found.sort(key=lambda event: event.start_ns)
            events, dropped_count = found[:MAX_EVENTS], max(0, len(found) - MAX_EVENTS)
            if dropped_count:
                self._recorded_until_ns = found[MAX_EVENTS].start_ns

        if self.data:
            self._try("the profile cannot be read", read_events)
        until_ns = self._ended_ns if self._recorded_until_ns is None else min(self._recorded_until_ns, self._ended_ns)
        return RankTrace(
            self._began_ns,
            self._ended_ns,
            tuple(events),
            self._programs.collectives,
            tuple(self._lines.lines),
            dropped_count,
            "; ".join(filter(None, [*self._problems, self._lines.problem, *self._programs.problems])),
            len(self.data),
            until_ns if self._has_profile and self.data else self._began_ns,
            self._ended_ns if self._lines.cut_ns is None else self._lines.cut_ns,
        )


_traces: OrderedDict[int, CellTrace] = OrderedDict()
"""By the cell's number, the oldest first. A process is one rank, except in tests."""


def begin_trace(seq: int, is_cell_file: Callable[[str], bool]) -> CellTrace:
    """Trace a cell that begins now."""
    _traces[seq] = trace = CellTrace(seq, is_cell_file)
    while len(_traces) > MAX_TRACES:
        _traces.popitem(last=False)
    return trace


def find_trace(seq: int) -> CellTrace:
    """Return the trace of a cell.

    Raises:
        LookupError: it was collected, other cells were traced since, or the rank was replaced.
    """
    if (trace := _traces.get(seq)) is None:
        raise LookupError(f"this rank has no trace of cell {seq} any more")
    return trace


def release_trace(seq: int) -> None:
    """Free the memory of a trace that was collected."""
    _traces.pop(seq, None)


# -- read a profile


_DEVICE_PLANE = re.compile(r"/device:[A-Za-z]+:(\d+)")
_OPERATION_LINES = ("XLA Ops", "Async XLA Ops")
"""Lines of a TPU's plane with one event per operation; the others sum them up by program, step or scope."""
_XLA_THREADS = ("tf_", "tsl_", "ThreadPool")
"""Beginnings of the names of XLA's own threads, whose events other than operations are about its queues."""
_NOISE = (
    "ThreadpoolListener",
    "end: ",
    "Wait for ",
    "Handle ",
    "CommonPjRt",
    "AllocateOutputBuffers",
    "PythonRefManager",
    "ParseArguments",
)
"""Beginnings of the names of events about XLA's own queues, and of the steps of each launch, which has an event of its own."""


def read_profile(
    data: bytes, wall_ahead_ns: int, programs: LaunchedCollectives, ordinals: Mapping[int, int]
) -> list[TraceEvent]:
    """Read operations of devices and host events, by the monotonic clock.

    Args:
        data: an XSpace, as JAX's profiler makes it.
        wall_ahead_ns: the system time minus the monotonic time.
        programs: tell collectives from other operations.
        ordinals: the local device of each CPU device's number; one that is missing is the local device itself.
    """
    import jax.profiler

    planes = list(jax.profiler.ProfileData.from_serialized_xspace(data).planes)
    start_ns = next((int(value) for plane in planes for key, value in plane.stats if key == "profile_start_time"), 0)
    reader = _PlaneReader(start_ns - wall_ahead_ns, programs, ordinals)
    return [event for plane in planes for event in reader.read(plane)]


@dataclass(frozen=True, slots=True)
class _PlaneReader:
    origin_ns: int
    programs: LaunchedCollectives
    ordinals: Mapping[int, int]

    def read(self, plane: Any) -> Iterator[TraceEvent]:
        """Yield a plane's events: of a device, or of the host."""
        device = _DEVICE_PLANE.match(plane.name)
        if device is not None:
            lines = list(plane.lines)
            chosen = [line for line in lines if line.name in _OPERATION_LINES] or lines
            for line in chosen:
                yield from self._read_device(line, int(device[1]))
        elif plane.name.startswith("/host:"):
            for line in plane.lines:
                yield from self._read_thread(line)

    def _read_device(self, line: Any, device: int) -> Iterator[TraceEvent]:
        for event in line.events:
            yield self._make_operation(event, dict(event.stats), device, line.name)

    def _read_thread(self, line: Any) -> Iterator[TraceEvent]:
        """Yield a host thread's operations, and other events unless XLA's own."""
        is_xla = line.name.startswith(_XLA_THREADS)
        for event in line.events:
            name = event.name
            if name.startswith(_NOISE):
                continue
            # Names of instructions have none of these; reading what belongs to an event takes most of the time.
            stats = {} if " " in name or "(" in name or "::" in name else dict(event.stats)
            if "hlo_op" in stats:
                number = int(stats.get("device_ordinal", 0))
                yield self._make_operation(event, stats, self.ordinals.get(number, number), line.name)
            elif not is_xla and event.duration_ns >= _MIN_HOST_NS:
                yield TraceEvent("host", name, *self._times_of(event), thread=line.name)

    def _make_operation(self, event: Any, stats: Mapping[str, Any], device: int, thread: str) -> TraceEvent:
        name = str(stats.get("hlo_op", event.name)).lstrip("%").partition(" = ")[0]
        program = str(stats.get("hlo_module", ""))
        kind: EventKind = "collective" if self.programs.is_collective(program, name) else "compute"
        return TraceEvent(kind, name, *self._times_of(event), device, thread, program)

    def _times_of(self, event: Any) -> tuple[int, int]:
        return self.origin_ns + round(event.start_ns), round(event.duration_ns)


# -- tell and name collectives


_COLLECTIVE_NAME = re.compile(
    # XLA's instructions; then JAX's operations, by which XLA names the instructions of shard_map.
    rf"(?:{'|'.join(OPS)}|recv)\b|(?:psum|pmean|pmax|pmin|ppermute|pbroadcast|all_gather|all_to_all|psum_scatter|reduce_scatter"
    r"|ragged_all_to_all)(?:_invariant|_reduced)?(?:\.\d+)?$"
)
_XLA_NAME = re.compile(rf"(?:{'|'.join(OPS)}|recv)(?![\w])")


@dataclass(frozen=True, slots=True)
class LaunchedCollectives:
    """The collectives of a cell's programs, and what is unknown of them."""

    collectives: tuple[TracedCollective, ...] = ()
    known: frozenset[str] = frozenset()
    """The names of the programs whose collectives are known."""
    problems: Sequence[str] = ()
    _instructions: set[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_instructions", {(each.program, each.instruction) for each in self.collectives})

    def is_collective(self, program: str, instruction: str) -> bool:
        """Return whether an instruction is a collective, by program or by name."""
        if program in self.known:
            # Of an asynchronous one the text names the start alone.
            return (program, instruction) in self._instructions or _XLA_NAME.match(instruction) is not None
        return _COLLECTIVE_NAME.match(instruction) is not None


_UNKNOWN = "collectives have only the compiler's names, and are recognised by them"


def find_launched_collectives(seq: int) -> LaunchedCollectives:
    """Return the collectives that a cell launched, before another cell runs."""
    recorder = current_recorder()
    programs = None if recorder is None else find_launched_programs(recorder, seq)
    if programs is None or recorder is None or recorder.guard == "off":
        return LaunchedCollectives(problems=[f"{_UNKNOWN}: the launches of the cell are not recorded"])
    found: dict[str, list[tuple[TracedCollective, ...]]] = {}
    problems = []
    for _, _, compiled in programs:
        text = compiled.text()
        name = text.partition(",")[0].removeprefix("HloModule ").strip()
        try:
            found.setdefault(name, []).append(tuple(_read_collectives(compiled, name, text)))
        except HloError as error:
            problems.append(f"{_UNKNOWN} in {compiled.name}: {error}")
    known: list[TracedCollective] = []
    for name, all_variants in found.items():
        variants = [each for number, each in enumerate(all_variants) if each not in all_variants[:number]]
        known += variants[0] if len(variants) == 1 else _merge_variants(variants)
        if len(variants) > 1:
            problems.append(
                f"{len(variants)} programs are named {name}: waiting in their collectives is not known, because the profile does"
                " not tell them apart. Give the functions different names"
            )
    return LaunchedCollectives(tuple(known), frozenset(found), problems)


def _merge_variants(variants: Sequence[tuple[TracedCollective, ...]]) -> list[TracedCollective]:
    """Return what collectives of same-named programs share: at most their operations."""
    merged: dict[str, TracedCollective] = {}
    for each in (collective for variant in variants for collective in variant):
        operation = each.label.partition(" ")[0]
        before = merged.setdefault(each.instruction, each)
        same = before.label.partition(" ")[0] == operation
        merged[each.instruction] = TracedCollective(
            each.program, each.instruction, operation if same else "collective", "", {}, is_ambiguous=True
        )
    return list(merged.values())


def _read_collectives(compiled: CompiledProgram, module: str, text: str) -> Iterator[TracedCollective]:
    meshes = parse_meshes(compiled.meshes)
    devices = _find_positions(compiled)
    for collective in parse_collectives(text):
        along = find_axes(collective.groups, meshes)
        where = f" over {', '.join(along.axes)}" if along.axes else ""
        shape = ", ".join(map(str, collective.operands))
        yield TracedCollective(
            module,
            collective.name.lstrip("%"),
            f"{collective.op} {shape}{where}",
            _format_place(collective),
            _find_groups(collective, compiled.ranks, devices),
        )


def _format_place(collective: HloCollective) -> str:
    source = collective.source
    return "" if source is None else str(source._replace(file=CELL_NAMES.format_file(source.file)))


def _find_positions(compiled: CompiledProgram) -> Mapping[int, int]:
    """Return this rank's local devices by their position in the program."""
    import jax

    own = [position for position, rank in enumerate(compiled.ranks) if rank == jax.process_index()]
    order = number_devices()
    # XLA lists them in the order of the assignment.
    return {
        position: order[device.id]
        for position, device in zip(own, compiled.executable.local_devices(), strict=True)
        if device.id in order
    }


def number_devices() -> dict[int, int]:
    """Return local device numbers by global ones, which CPU profiles have."""
    import jax

    return {device.id: ordinal for ordinal, device in enumerate(jax.local_devices())}


def _find_groups(
    collective: HloCollective, ranks: tuple[int, ...], devices: Mapping[int, int]
) -> dict[str, tuple[int, str]]:
    groups: dict[str, tuple[int, str]] = {}
    for number, group in enumerate(collective.groups):
        members = format_ranks(ranks[position] for position in group)
        groups |= {str(devices[position]): (number, members) for position in group if position in devices}
    return groups
