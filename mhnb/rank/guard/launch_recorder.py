"""Record of one rank's multi-process launches, and which still run.

It decides when a cell is over: once everything that the cell launched has finished. It tracks each launch between its dispatch and its
end. The cell runner uses the record through an interface that knows neither JAX nor the agreement between the ranks.
This module does not import JAX: an output is any object with `is_ready`, `is_deleted` and `block_until_ready`.
"""

from __future__ import annotations

import dis
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any, Protocol

from mhnb.core.flight import format_cell_begin
from mhnb.core.guard.agreement import MAX_LINES
from mhnb.core.guard.launch_report import LaunchPlace, LaunchReport, LaunchRow, merge_equal_rows
from mhnb.core.guard.launches import has_collectives
from mhnb.core.guard.programs import pack_outline
from mhnb.core.hang_report import PendingLaunch, count_launches
from mhnb.core.messages import RunCell
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.stack_sampler import own_wait
from mhnb.rank.execution.tracebacks import RunningCell
from mhnb.rank.flight import LaunchId
from mhnb.rank.guard.hashing import ArrayBytes
from mhnb.rank.guard.host_data import HostDataRecorder
from mhnb.rank.guard.launch_gate import LaunchGate, Mismatches, parse_fingerprint
from mhnb.rank.guard.local_agreement import NO_AGREEMENT, AgreementBackend
from mhnb.rank.guard.pending_work import AbandonedLaunches, LocalArrays, UnknownLaunch, poll_pauses_s
from mhnb.types import Outcome

_MOST_TRACKED = 8
"""Only this many outputs are tracked, the last ones: tracking each of a thousand would take as long as the launch."""


class Launch:
    """One launch between its dispatch and its end.

    It keeps the smallest output array until that is ready, because nothing else could show when the launch has ended. The other
    outputs belong to the cell alone: JAX frees one as usual when the cell drops it.
    """

    __slots__ = (
        "_other_outputs",
        "_smallest_output",
        "failure",
        "is_agreed",
        "is_dispatched",
        "is_outcome_unknown",
        "number",
        "row",
    )

    def __init__(self, row: LaunchRow, number: int, outputs: Sequence[object] | None) -> None:
        self.row = row
        self.number = number
        """How many collective launches the cell had made when this one was recorded, this one included."""
        self._smallest_output: object | None = None
        self._other_outputs: tuple[weakref.ref[object], ...] = ()
        self.is_dispatched = False
        """False while the dispatch is in progress."""
        if outputs is not None:
            self._track(outputs)
        self.is_outcome_unknown = False
        """True if an interrupt came between dispatch and record, so that it is unknown whether the launch runs."""
        self.failure: Exception | None = None
        self.is_agreed = False
        """Every participant has agreed on the launch, and so makes it too: it ends by itself, though no rank waits for it."""

    def end_dispatch(self, outputs: Sequence[object]) -> None:
        """Record the outputs of the dispatch: the arrays to wait for."""
        self._track(outputs)

    def fail_dispatch(self, error: BaseException) -> None:
        """Record a dispatch that raised, possibly after the program ran (`jax_debug_nans`)."""
        if not self.is_dispatched:
            self.is_outcome_unknown = not isinstance(error, Exception)
            self.is_dispatched = True

    def _track(self, outputs: Sequence[object]) -> None:
        if len(outputs) == 1:
            self._smallest_output, self.is_dispatched = outputs[0], True
            return
        last = outputs[-_MOST_TRACKED:]
        self._smallest_output = min(reversed(last), key=_output_nbytes, default=None)
        self._other_outputs = tuple(weakref.ref(output) for output in last if output is not self._smallest_output)
        self.is_dispatched = True

    def has_outputs(self) -> bool:
        """Return whether an output can show when the launch has ended."""
        return self._smallest_output is not None

    def is_finished(self) -> bool:
        """Return whether the launch has ended, and record its failure, if any."""
        if not self.is_dispatched:
            return False
        output = self._find_live_output()
        if output is None:
            return True
        try:
            if not output.is_ready():
                return False
            output.block_until_ready()
        except Exception as error:  # noqa: BLE001 - any failure of the program; `wait` raises it
            if output.is_deleted():
                # A user's thread has donated it meanwhile, which is not a failure. Another output may show the end.
                return self.is_finished()
            self.failure = error
        return True

    def is_running(self) -> bool:
        """Return whether the launch still runs or is being dispatched; thread-safe."""
        if not self.is_dispatched:
            return True
        try:
            output = self._find_live_output()
            return output is not None and not output.is_ready()
        except RuntimeError:
            # The cell's thread has donated the array in between; waiting for a donated array is of no use.
            return False

    def _find_live_output(self) -> Any:
        # The smallest output is polled first: a training step returns its loss there, while the parameters are donated
        # to the next step, and a donated array cannot be polled. Then the last output that the cell still holds.
        array: Any
        for array in (self._smallest_output, *(ref() for ref in reversed(self._other_outputs))):
            if array is not None and not array.is_deleted():
                return array
        return None


def _output_nbytes(output: object) -> int:
    size: int = getattr(output, "nbytes", 0)
    return size


# -- the recorder's interface to the cell runner


_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_LONGEST_VALUE, _MOST_NAMES = 40, 20


def find_plain_values(frame: FrameType) -> dict[str, str]:
    """Return the `repr` of each plain value that a frame's call uses."""
    code = frame.f_code
    positions = list(code.co_positions())
    begin, end = (positions[frame.f_lasti // 2][:2]) if frame.f_lasti >= 0 else (None, None)
    if begin is None or end is None:
        return {}
    names = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname.startswith("LOAD_")
        and type(step.argval) is str
        and step.positions is not None
        and begin <= (step.positions.lineno or 0) <= end
    }
    found: dict[str, str] = {}
    for name in sorted(names):
        value = frame.f_locals.get(name, frame.f_globals.get(name, ...))
        # Types are compared exactly, so that no user code runs.
        if type(value) in _PLAIN_TYPES and len(text := repr(value)) <= _LONGEST_VALUE and len(found) < _MOST_NAMES:
            found[name] = text
    return found


class LaunchLog(Protocol):
    """Record of the launches of a cell."""

    mismatches: Mismatches

    def begin_cell(self, cell: RunCell) -> None:
        """Start a new cell, to which launches belong from now on."""

    def notify_cell_ended(self, seq: int, outcome: Outcome) -> None:
        """Notify the other ranks that this rank skipped a cell."""

    def wait_all(self, limit_s: float | None = None) -> None:
        """Wait for all launches, at most `limit_s`; raise a failed launch's error."""

    def close_cell(self, seq: int, outcome: Outcome) -> tuple[LaunchReport, list[str]]:
        """Return a cell's report and notes; notify other ranks of its end."""

    def release_finished(self) -> None:
        """Release launches that have ended; call it repeatedly, from any thread."""

    def sample_launches(self) -> tuple[dict[tuple[int, ...], int], PendingLaunch | None]:
        """Return launch counts and the oldest unfinished launch; from any thread."""

    def list_awaited(self) -> list[int] | None:
        """Return ranks awaited while blocked in C; None unless JAX launches directly."""


# -- the record of one rank's launches


class JaxAccess(Protocol):
    """Functions of JAX for the record; launches only call `read_value`."""

    def select_dispatch(self, guard: str, *, is_direct: bool) -> bool:
        """Select guard and dispatch of launches; return whether JAX launches directly."""

    def finish_effects(self) -> None:
        """Wait for prints and callbacks from inside compiled programs."""

    def list_arrays(self) -> Sequence[Sequence[Any]]:
        """Return every live array, by platform, the newest first."""

    def read_value(self, value: Any, dtype: Any) -> ArrayBytes:
        """Read a value, as a type of element."""


class NoJax:
    """Stands in for JAX in a mere engine, where nothing is recorded."""

    def select_dispatch(self, guard: str, *, is_direct: bool) -> bool:
        """Return False: nothing is launched without a record, because nothing is launched."""
        del guard, is_direct
        return False

    def finish_effects(self) -> None:
        """Do nothing: no program runs."""

    def list_arrays(self) -> Sequence[Sequence[Any]]:
        """Return no array."""
        return ()

    def read_value(self, value: Any, dtype: Any) -> ArrayBytes:
        """Refuse: no array is recorded."""
        raise NotImplementedError(f"without JAX no value is read, and {value!r} was given as {dtype}")


_NO_JAX = NoJax()
_BEFORE_CELLS = RunCell(0, 0, "", "lockstep")
"""Stands for a cell while the rank starts."""
_FULL_SWEEP_AT = 64
_MOST_SKIPPED_SWEEPS = 20
"""At most this many calls of `release_finished` do nothing between two that poll."""
_LOCAL_STOPPED_WAIT_S = 0.2
_LOCAL_RUNNING_NOTE = (
    "programs of single ranks are still running on their own devices, and later launches there wait for them; "
    "if they never end: %mhjax restart --replay"
)
_RUNNING_NOTE = "some of its launches are still running; all ranks made them, and the next collective waits for them"


class LaunchRecorder:
    """Launches of this rank in the current cell.

    Any thread may record and sample launches; only the cell's thread begins, waits for and closes a cell.

    Launches made between two cells belong to the next one.

    Args:
        jax: the process's JAX, once its launches are recorded here.
        backend: the backend through which this rank agrees with the others before each launch.
        interrupts: delivers the interrupts of this rank's cells; None in a mere engine.
        process_count: number of ranks.
    """

    is_available = True
    """Whether the hooks fit the installed JAX; if not, no launch is recorded."""

    def __init__(
        self,
        jax: JaxAccess = _NO_JAX,
        backend: AgreementBackend = NO_AGREEMENT,
        interrupts: InterruptDelivery | None = None,
        *,
        process_count: int = 1,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jax, self._process_count = jax, process_count
        self._cell = RunningCell(0, "", 0.0)
        self.guard = "lockstep"
        """Guard of the cell that runs, or ran last."""
        self.is_direct = False
        """Whether JAX's C++ dispatch launches alone: a launch that has not returned from it has no record."""
        self._sleep, self._clock = sleep, clock
        # A user's finalizer may launch wherever Python runs it, even while its own thread holds the lock.
        self._lock = threading.RLock()
        self._rows: list[LaunchRow] = []
        self._running: deque[Launch] = deque()
        self._full_sweep_at = _FULL_SWEEP_AT
        self._skipped_sweeps, self._sweeps_to_skip = 0, 1
        self._collective_count = 0
        self._launch_numbers = Counter[tuple[int, ...]]()
        """How many launches the cell has made without an agreement, by participants."""
        self._failure: Exception | None = None
        self._failed_numbers: list[int] = []
        self._failed_in_callback: list[int] = []
        self._first_failed: list[tuple[int, LaunchRow]] = []
        """The first launch of both lists, with its row."""
        self._is_cell_by_file: dict[str, bool] = {}
        self.local_arrays = LocalArrays(jax.list_arrays, sleep, clock)
        """Results that programs of this process alone have yet to compute."""
        self.host_data = HostDataRecorder(self.find_line, self.count_collectives, jax.read_value)
        """Arrays that the cell built from host data."""
        self._interrupts = interrupts = interrupts or InterruptDelivery()
        interrupts.find_line = self.find_line
        self.flight, self.callbacks = interrupts.flight, interrupts.callbacks
        self.gate = LaunchGate(backend, interrupts, self.count_launches)
        """Gate at which the ranks agree before each launch."""
        self._counted_rows = 0
        """How many of the rows `_counts` includes already."""
        self._counts: dict[tuple[int, ...], int] = {}
        self.seq = 0
        self._programs: dict[str, Any] = {}
        self.abandoned = AbandonedLaunches()
        self.mismatches = Mismatches()
        self.ended_seq = 0
        """The cell that ended last; its launches are kept until the next one has ended."""
        self.ended_rows: list[LaunchRow] = []
        self.ended_programs: dict[str, Any] = {}
        """The programs by fingerprint."""
        parts = (self.mismatches, self.local_arrays, self.host_data, self.abandoned, self.gate)
        self._begin_parts: list[Callable[[RunCell], None]] = [part.begin_cell for part in parts]
        """Start the parts of the record over in each cell."""

    def begin_cell(self, cell: RunCell = _BEFORE_CELLS) -> None:
        """Start a cell, to which launches from now on belong."""
        self.seq, self.guard = cell.seq, cell.guard
        # A launch that may have to be refused must come here before it is made.
        is_direct = cell.guard != "lockstep" and cell.ranks is None and not self.abandoned.has_running()
        self.select_dispatch(cell.guard, is_direct=is_direct)
        self._cell = RunningCell(cell.seq, cell.source, self._clock(), cell.first_line)
        self.flight.record("cell", cell.seq, program=format_cell_begin(cell.execution_count, cell.guard))
        self._is_cell_by_file.clear()
        for begin in self._begin_parts:
            begin(cell)

    def select_dispatch(self, guard: str, *, is_direct: bool) -> None:
        """Select whether JAX launches directly, or every launch comes here first."""
        self.is_direct = self._jax.select_dispatch(guard, is_direct=is_direct)

    def defer_interrupts_in(self, recording_code: Sequence[CodeType]) -> None:
        """Defer interrupts in these functions, which record a launch already made."""
        self._interrupts.recording_code = recording_code

    def notify_cell_ended(self, seq: int, outcome: Outcome) -> None:
        """Notify other ranks that this one launches no more in a cell."""
        self.select_dispatch(self.guard, is_direct=False)
        self.flight.record("end", seq, program=outcome)
        self.gate.end_cell(seq, "left" if self.abandoned.has_refused_launch and outcome == "error" else outcome)

    def find_line(self) -> int | None:
        """Return the innermost line of the running cell on the caller's stack."""
        frame: FrameType | None = sys._getframe(1)
        is_cell = self._is_cell_by_file
        while frame is not None:
            name = frame.f_code.co_filename
            if name not in is_cell:
                is_cell[name] = self._cell.owns_file(name)
            if is_cell[name]:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def find_lines(self) -> tuple[int, ...]:
        """Return the running cell's lines on the stack: innermost, then outermost callers."""
        lines = list(self._walk_lines(sys._getframe(1)))
        own = [line for at, line in enumerate(lines) if at == 0 or line != lines[at - 1]]
        return tuple(own if len(own) <= MAX_LINES else [own[0], *own[1 - MAX_LINES :]])

    def _walk_lines(self, frame: FrameType | None) -> Iterator[int]:
        while frame is not None:
            name = frame.f_code.co_filename
            is_cell = self._is_cell_by_file.get(name)
            if is_cell is None:
                is_cell = self._is_cell_by_file[name] = self._cell.owns_file(name)
            if is_cell:
                yield frame.f_lineno
            frame = frame.f_back

    def describe_program(self, fingerprint: str, module: str) -> None:
        """Record a compiled program's outline, with plain values of its call."""
        if has_collectives(fingerprint):
            self.gate.describe_program(fingerprint, pack_outline(module, self._find_plain_values()))

    def _find_plain_values(self) -> dict[str, str]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._cell.owns_file(frame.f_code.co_filename):
            frame = frame.f_back
        return {} if frame is None else find_plain_values(frame)

    def record_launch(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        line: int | None,
        outputs: Sequence[object] | None,
        *,
        program: Any = None,
    ) -> Launch:
        """Record a launch.

        Args:
            outputs: None if the dispatch is about to be made: then call `end_dispatch` of the returned object.
            program: kept for requests after the cell has ended.
        """
        with self._lock:
            self._programs[fingerprint] = program
            self._release_finished()
            self._collective_count += 1
            row = self._count_row(fingerprint, name, participants, line)
            self._record_flight(fingerprint, name, participants, line)
            launch = Launch(row, self._collective_count, outputs)
            self._running.append(launch)
            self._sweeps_to_skip = 1
        return launch

    def _record_flight(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> None:
        agreed = self.gate.find_agreed(participants)
        if agreed is None:
            self._launch_numbers[participants] += 1
        seq, number = agreed or (self.seq, self._launch_numbers[participants])
        launch = LaunchId(participants, number, parse_fingerprint(fingerprint))
        self.flight.record("launch", seq, line, name, launch)

    def withdraw(self, launch: Launch) -> None:
        """Remove a launch that was recorded and then refused before anything ran."""
        with self._lock:
            if launch not in self._running:
                # A thread of an interrupted cell, which has meanwhile ended and reported its launches.
                return
            self._running.remove(launch)
            self._forget_counts()
            if not launch.is_agreed:
                self._launch_numbers[launch.row.participants] -= 1
            launch.row.count -= 1
            self.host_data.undo_count(launch.row.participants, is_agreed=launch.is_agreed)
            if launch.row.count == 0:
                self._rows = [row for row in self._rows if row is not launch.row]

    def wait_all(self, limit_s: float | None = None) -> None:
        """Wait until all launches have finished, or an interrupt comes.

        To be called however the cell's code ended, because launches made before it raised are still under way.

        Args:
            limit_s: give up after about this many seconds, and leave what still runs to `end_cell`; None waits forever.
                Meant for a cell that was interrupted: most launches are about to end anyway.

        Raises:
            Exception: the error of the first launch that failed.
        """
        has_given_up = self._has_running() and not self._outwait(limit_s)
        # After an interrupt local results are not needed: the wait for them is shorter.
        local_limit_s = 0.0 if has_given_up else limit_s and min(limit_s, _LOCAL_STOPPED_WAIT_S)
        local_failure = self.local_arrays.wait(local_limit_s)
        if has_given_up:
            return
        # Effects of launches that still run, or were abandoned earlier, may never come, and no signal ends the wait.
        may_hang = self.abandoned.has_running() or self.local_arrays.has_given_up
        if not may_hang:
            self._jax.finish_effects()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if (mismatch := self.gate.take_thread_failure()) is not None:
            raise mismatch
        if local_failure is not None:
            raise local_failure

    def count_launches(self) -> int:
        """Return how many launches of the cell are in the record."""
        with self._lock:
            return sum(self._count_rows().values())

    def count_collectives(self) -> int:
        """Return how many collective launches the cell has made so far."""
        return self._collective_count

    def count_running(self) -> int:
        """Return how many collective launches still run, and end by themselves."""
        with self._lock:
            self._release_finished(check_all=True)
            return sum(launched.is_agreed for launched in self._running)

    def count_failed(self) -> int:
        """Return how many collective launches failed here in a user's callback."""
        with self._lock:
            self._release_finished(check_all=True)
            return len(self._failed_in_callback)

    def close_cell(self, seq: int, outcome: Outcome) -> tuple[LaunchReport, list[str]]:
        """Return a cell's report and notes; notify other ranks of its end."""
        host_arrays = self.host_data.end_cell()
        running, failed = self.count_running(), self.count_failed()
        abandoned_launch = self._find_abandoned()
        rows, abandoned = self.end_cell()
        if given_up := self.abandoned.take_given_up():
            # The cell was interrupted while it waited for them: they may hang, and so would every later collective.
            (of_seq, row), abandoned = given_up[0], abandoned + len(given_up)
            abandoned_launch = LaunchPlace(row.name, row.line, of_seq)
        if may_have_abandoned := self._may_have_abandoned():
            self.abandoned.add(seq, [UnknownLaunch(self._process_count)])
        interrupted_before = self.gate.agreed_stop_number() if outcome == "interrupted" else None
        notes = [_RUNNING_NOTE] if running else []
        if self.local_arrays.has_given_up and not (running or abandoned or may_have_abandoned):
            notes.append(_LOCAL_RUNNING_NOTE)
        notes += [*self.gate.take_notes(), *self.host_data.take_notes()]
        ignored_refusals = self.mismatches.take_ignored_refusals()
        refused_inputs = self.gate.take_refused_inputs()
        self.notify_cell_ended(seq, outcome)
        report = LaunchReport(
            *merge_equal_rows(rows),
            abandoned_count=abandoned,
            abandoned_launch=abandoned_launch,
            may_have_abandoned=may_have_abandoned,
            running_count=running,
            failed_count=failed,
            interrupted_before=interrupted_before,
            pending_launch=self.gate.pending_launch,
            ignored_refusals=ignored_refusals,
            refused_inputs=refused_inputs,
            host_arrays=host_arrays,
            arrivals=self.gate.arrivals.take(seq),
        )
        return report, notes

    def _may_have_abandoned(self) -> bool:
        """Return whether a signal may have left an unrecorded collective waiting."""
        is_recorded = self.is_available and not (self.guard == "off" and self.is_direct)
        return self._interrupts.has_raised and not is_recorded and self._process_count > 1

    def _find_abandoned(self) -> LaunchPlace | None:
        """Return the first abandoned collective; those that end by themselves come last."""
        with self._lock:
            unfinished = list(self._running)
            not_agreed = [(launched.number, launched.row) for launched in unfinished if not launched.is_agreed]
            agreed = [(launched.number, launched.row) for launched in unfinished if launched.is_agreed]
            first = min([*not_agreed, *self._first_failed] or agreed, key=itemgetter(0), default=None)
        return None if first is None else LaunchPlace(first[1].name, first[1].line)

    def _has_running(self) -> bool:
        return bool(self._running) or self.gate.has_launching_threads()

    def end_cell(self) -> tuple[list[LaunchRow], int]:
        """Return the rows and the count of abandoned launches; reset the record.

        A launch is abandoned if it has a collective and has not finished, or has failed, so that a peer may still wait for it. A
        launch on which all ranks agreed is not counted: it ends by itself, though this rank does not wait for it. Nor is a launch that
        failed in a user's callback and was this rank's last: if a peer waits for the rest of it, that peer reports it.
        """
        with self._lock:
            self._release_finished(check_all=True)
            unfinished = [launch for launch in self._running if not launch.is_agreed]
            excused = [number for number in self._failed_in_callback if number == self._collective_count]
            abandoned = len(unfinished) + len(self._failed_numbers) + len(self._failed_in_callback) - len(excused)
            rows, self._rows = self._rows, []
            self.abandoned.add(self.seq, [launched for launched in unfinished if launched.has_outputs()])
            agreed = [launched for launched in self._running if launched.is_agreed]
            self.abandoned.add_expected(self.seq, agreed)
            self.ended_seq, self.ended_rows = self.seq, rows
            self.ended_programs, self._programs = self._programs, {}
            self._forget_counts()
            self._running.clear()
            self._launch_numbers.clear()
            self._collective_count, self._failure, self._failed_numbers, self._failed_in_callback = 0, None, [], []
            self._first_failed = []
        return rows, abandoned

    def release_finished(self) -> None:
        """Release ended launches, so that arrays dropped by the cell are freed.

        The longer no launch has ended, the fewer calls poll, because asking an array whether it is ready has a cost.
        """
        self._skipped_sweeps += 1
        if not self._running or self._skipped_sweeps < self._sweeps_to_skip:
            return
        with self._lock:
            before = len(self._running)
            self._release_finished(check_all=True)
            ended = len(self._running) < before
        self._sweeps_to_skip = 1 if ended else min(2 * self._sweeps_to_skip, _MOST_SKIPPED_SWEEPS)
        self._skipped_sweeps = 0

    def sample_launches(self) -> tuple[dict[tuple[int, ...], int], PendingLaunch | None]:
        """Return launch counts by participants, and the oldest unfinished launch."""
        with self._lock:
            counts = self._count_rows()
            running = list(self._running)
            for index, launched in enumerate(running):
                if launched.is_running():
                    row = launched.row
                    later = sum(other.row.participants == row.participants for other in running[index + 1 :])
                    number = counts[row.participants] - later
                    return counts, PendingLaunch(row.name, row.participants, row.line, number)
            if (pending := self.gate.undecided_launch) is not None:
                # This rank has come as far, though the launch is not made before all participants have.
                key = pending.participants
                counts[key] = counts.get(key, 0) + 1
                return counts, PendingLaunch(pending.name, key, pending.line, counts[key], is_launched=False)
        return counts, None

    def list_awaited(self) -> list[int] | None:
        """Return ranks awaited while blocked in C; None unless JAX launches directly."""
        return list(range(self._process_count)) if self.is_direct else None

    def _count_rows(self) -> dict[tuple[int, ...], int]:
        # Rows before the last do not change any more, and there may be many, so each is counted once.
        fixed = max(len(self._rows) - 1, 0)
        _add_counts(self._counts, count_launches(self._rows[self._counted_rows : fixed]))
        self._counted_rows = fixed
        return _add_counts(dict(self._counts), count_launches(self._rows[fixed:]))

    def _forget_counts(self) -> None:
        self._counted_rows, self._counts = 0, {}

    def _count_row(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> LaunchRow:
        rows = self._rows
        if rows:
            last = rows[-1]
            if (
                last.fingerprint == fingerprint
                and last.line == line
                and last.name == name
                and last.participants == participants
            ):
                last.count += 1
                return last
        row = LaunchRow(fingerprint, name, participants, line, 1)
        rows.append(row)
        return row

    @own_wait("end of cell")
    def _outwait(self, limit_s: float | None) -> bool:
        """Poll until nothing runs; return False if the limit is reached."""
        pauses, began_s = poll_pauses_s(), self._clock()
        while True:
            with self._lock:
                self._release_finished(check_all=True)
            if not self._has_running():
                return True
            # Use the clock: on a loaded machine a pause is longer than intended.
            if limit_s is not None and self._clock() - began_s >= limit_s:
                return False
            self._sleep(next(pauses))

    def _release_finished(self, *, check_all: bool = False) -> None:
        # Outputs are released as soon as they are ready, or a long loop would keep all of its arrays. Launches end
        # about in order, so polling the oldest is enough until many have accumulated.
        running = self._running
        while running and self._is_finished(running[0]):
            running.popleft()
        if running and (check_all or len(running) > self._full_sweep_at):
            self._running = deque(launched for launched in running if not self._is_finished(launched))
            self._full_sweep_at = max(_FULL_SWEEP_AT, 2 * len(self._running))

    def _is_finished(self, launch: Launch) -> bool:
        if not launch.is_finished():
            return False
        failure = launch.failure
        if failure is not None and self._failure is None:
            self._failure = failure
        if failure is not None or launch.is_outcome_unknown:
            (self._failed_in_callback if "allback" in str(failure) else self._failed_numbers).append(launch.number)
            self._first_failed = sorted([*self._first_failed, (launch.number, launch.row)], key=itemgetter(0))[:1]
        return True


def _add_counts(counts: dict[tuple[int, ...], int], more: dict[tuple[int, ...], int]) -> dict[tuple[int, ...], int]:
    for participants, count in more.items():
        counts[participants] = counts.get(participants, 0) + count
    return counts
