"""Run a rank's cells in order, and answer each with one message.

This module decides which cell may run, and when output is sent. The shell interprets the cell.

If mhnb itself fails in a rank, the rank ends visibly. An event loop would log the exception and continue, and the notebook
would wait for a reply that never comes.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from os import getpid
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from IPython.core.interactiveshell import ExecutionResult
from msgspec.structs import replace

from mhnb.core.cell_name import CellPlace
from mhnb.core.messages import (
    CallbackFailed,
    CellEnded,
    CellRefused,
    Message,
    OutputProduced,
    RankStatus,
    RunCell,
    SkipCell,
)
from mhnb.core.output.events import ErrorRaised
from mhnb.rank.execution.callbacks import CallingProgram, is_interrupt
from mhnb.rank.execution.capture import Capture
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.debugging import NoInput, PromptInput, RankDebugger
from mhnb.rank.execution.exceptions import Reading, is_a
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.shell import PreparedCell, RankShell
from mhnb.rank.execution.stack_sampler import StackSampler
from mhnb.rank.guard.launch_recorder import LaunchLog
from mhnb.types import Outcome

if TYPE_CHECKING:
    from mhnb.rank.trace import CellTrace

INTERNAL_ERROR_EXIT_CODE = 70
"""The value of `EX_SOFTWARE` in sysexits.h: an internal error."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def exit_on_internal_error(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap an event-loop callback so that an exception ends the process.

    The callback must not run user code unguarded: any exception counts as mhnb's own.
    """

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001  # reported below, and the process ends
            # The real descriptor: the supervisor reads the last output there.
            traceback.print_exc(file=sys.__stderr__)
            print("internal error of mhnb in this rank; please report this", file=sys.__stderr__, flush=True)
            os._exit(INTERNAL_ERROR_EXIT_CODE)

    return guarded


# -- the cell runner


_LIVE_AFTER_S = 0.15
"""A cell that runs longer sends its output while it runs."""
_LIVE_INTERVAL_S = 0.05
_IDLE_INTERVAL_S = 0.3
_STOPPED_WAIT_S = 1.5
"""Wait after an interrupt, in which launches that are about to end do. Those that still run then are reported."""
_DISCONNECT_WAIT_S = 3.0
"""The same if connections can be closed: more than the time after which ranks are disconnected from a collective that hangs,
and less than the time after which they are killed.
"""


@dataclass(eq=False)
class CellRunner:
    """Runs the cells of one rank on the main thread."""

    shell: RankShell
    capture: Capture
    launches: LaunchLog
    interrupts: InterruptDelivery
    _: KW_ONLY
    rank: int
    generation: int
    send: Callable[[Message], None]
    """Called from the main thread and from the service thread, never from both at once."""
    clock: Callable[[], float]
    """Returns seconds, from any origin."""
    changed_facts: Callable[[], dict[str, Any]] = dict
    """Returns facts that have become known of this rank during a cell; called at its end."""
    can_disconnect: Callable[[], bool] = bool
    """Returns whether the connections that carry this rank's collectives are known, and can be closed."""
    background_check: Callable[[], None] = lambda: None
    """Background checks. The service thread calls them all the time, as the main thread may be stuck; so does a cell's start."""

    prompt_input: PromptInput = field(default_factory=NoInput)
    """Where the lines come from that the user types in the debugger."""

    def __post_init__(self) -> None:
        self._next_seq = 1
        self._last_reply: CellEnded | None = None
        self._sent_error: ErrorRaised | None = None
        """The last error of the cell that was sent before its end."""
        self._callback_error: tuple[ErrorRaised, str] | None = None
        """The last error of a program's callback that was not sent yet, and the program's name if other ranks have a part in it."""
        self._last_request: RunCell | None = None
        self._pid = getpid()
        self._lock = self.interrupts.lock
        """Held while output is taken from the capture and sent, so that a cell's end is its last message."""
        self._running: RunCell | None = None
        self._began_s = 0.0
        self._trace: CellTrace | None = None
        """Of the running cell, if it is traced."""
        self.shell.attach_capture(
            self.capture, self.clock, self.interrupts, note_shown=self.launches.mismatches.note_shown
        )
        self._debugger = RankDebugger(
            self.interrupts,
            rank=self.rank,
            send=self._send,
            source=self.prompt_input,
            flush_output=self._flush_output,
            clock=self.clock,
        )
        self._debugger.install(self.shell)
        self._sampler = StackSampler(
            self.rank,
            _USER_CODE,
            is_cell_file=self.shell.is_cell_file,
            read_launches=self.launches.sample_launches,
            list_awaited=self.launches.list_awaited,
            find_awaited=self._find_coroutine,
        )
        self._sampler.find_callback = self.interrupts.callbacks.find_oldest
        self.interrupts.callbacks.report = self._note_callback_error
        self._stop = threading.Event()
        self._logged_tracebacks: set[str] = set()
        """Tracebacks that are in the log already."""
        self._service = threading.Thread(target=self._serve, name="mhnb-output", daemon=True)
        # For debugpy, which otherwise halts this thread with the main thread: the rank would report nothing.
        self._service.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self.interrupts.install(_USER_CODE)
        self._service.start()

    @property
    def is_running(self) -> bool:
        """Whether a cell has begun and not ended."""
        return self._running is not None

    def close(self) -> None:
        """Stop the service thread and send the remaining output."""
        self._stop.set()
        self.interrupts.close()
        self._service.join()
        self._send_late_output()

    # -- messages

    def handle(self, message: RunCell | SkipCell) -> None:
        """Run or skip a cell; start one that awaits as a task."""
        if reason := self._find_refusal(message):
            self._send(CellRefused(self.rank, message.seq, reason))
            return
        self._sent_error = None
        if isinstance(message, RunCell):
            self._next_seq += 1
            self._run(message)
        else:
            self._next_seq += message.count
            self.capture.record_offsets()
            self.launches.notify_cell_ended(self._next_seq - 1, "skipped")
            self._last_reply = CellEnded(self.rank, self._next_seq - 1, "skipped", [], wall_s=0.0)
            self._send(self._last_reply)

    def describe_state(self) -> dict[str, Any]:
        """Return the next cell's number, the last cell, and how it ended.

        It is for a notebook that attaches: none may have received that end. Of the output only errors are repeated.
        """
        last, run = self._last_reply, self._last_request
        if last is None:
            return {"seq": self._next_seq, "last": None, "cell": None}
        errors = [event for event in (self._sent_error, *last.events) if isinstance(event, ErrorRaised)]
        cell = (
            None
            if run is None or run.seq != last.seq
            else [run.source, run.guard, run.ranks, run.execution_count, run.first_line, run.kernel]
        )
        return {"seq": self._next_seq, "last": replace(last, events=errors, facts={}), "cell": cell}

    def _send(self, message: Message) -> None:
        with self._lock:
            self.send(message)

    def _find_refusal(self, message: RunCell | SkipCell) -> str:
        if message.generation != self.generation:
            return f"cell {message.seq} is of generation {message.generation}; this rank is of {self.generation}"
        if self._running is not None:
            return f"cell {message.seq} arrived while cell {self._running.seq} is still running; a rank runs one cell at a time"
        if message.seq != self._next_seq:
            return f"cell {message.seq} is out of order; this rank expects cell {self._next_seq}"
        return ""

    def _run(self, message: RunCell) -> None:
        self.interrupts.restore_handler()
        self.background_check()
        self._began_s = self.clock()
        CELL_NAMES.record(message)
        self.capture.begin(message.seq)
        self.launches.begin_cell(message)
        self._running = self._last_request = message
        self._callback_error = None
        self.interrupts.reset(message.seq)
        place = CellPlace(message.execution_count, message.first_line)
        cell = self.shell.prepare(message.seq, message.source, place)
        assert self.shell.cell is not None
        self._debugger.request, self._debugger.cell = message, self.shell.cell
        if message.is_traced:
            self._begin_trace(message.seq)
        if cell.awaits:
            task = self.interrupts.task = asyncio.get_running_loop().create_task(self._user_code_async(cell))
            task.add_done_callback(self._end_task)
            return
        try:
            result: ExecutionResult | BaseException = self._user_code(cell)
        except BaseException as error:  # noqa: BLE001 - whatever ends the user's code is the cell's error, not the rank's
            result = error
        self._end(result)

    def _begin_trace(self, seq: int) -> None:
        # Imported only here: most ranks never trace.
        from mhnb.rank.trace import begin_trace

        self._trace = begin_trace(seq, self.shell.is_cell_file)

    # -- the user's code: only here may interrupts escape

    def _user_code(self, cell: PreparedCell) -> ExecutionResult:
        if self.interrupts.arrived_early:
            raise KeyboardInterrupt
        try:
            try:
                self._begin_stops()
                result = self.shell.run_prepared(cell)
            finally:
                self._end_stops()
            self._show_error(result)
            self._wait_for_launches(result)
        finally:
            self.capture.restore_streams()
        return result

    async def _user_code_async(self, cell: PreparedCell) -> ExecutionResult | BaseException:
        try:
            if self.interrupts.arrived_early:
                raise KeyboardInterrupt
            try:
                self._begin_stops()
                result = await self.shell.run_prepared_async(cell)
            finally:
                self._end_stops()
            self._show_error(result)
            self._wait_for_launches(result)
            self.capture.restore_streams()
        except (KeyboardInterrupt, SystemExit) as error:
            # The event loop would propagate these two.
            return error
        return result

    def _begin_stops(self) -> None:
        """Trace the cell's code if it is to stop at given lines."""
        mode = None if self._debugger.request is None else self._debugger.request.debug
        if mode is not None and (mode.breakpoints or mode.stop_ranks is not None):
            self._debugger.make_pdb().begin(mode)

    def _end_stops(self) -> None:
        self._debugger.request = None
        if self._debugger.pdb is not None:
            self._debugger.pdb.end()

    def _show_error(self, result: ExecutionResult) -> None:
        """Show an error that was not shown yet.

        This runs code of the user's class, which an interrupt can still end here.
        """
        if (error := _error_of(result)) is not None:
            self.shell.ensure_error_shown(error)

    def _wait_for_launches(self, result: ExecutionResult) -> None:
        """Wait for the cell's launches: a hang belongs to its cell."""
        error = _error_of(result)
        stopped = is_a(error, KeyboardInterrupt) and self._is_stopped()
        if stopped or (self.interrupts.was_requested and not self.interrupts.stopped_ranks):
            # Other ranks may be missing in launches made before the interrupt. If all ranks stopped together, none is
            # missing.
            self._finish_launches(error)
            return
        try:
            self._await_launches(error)
        except KeyboardInterrupt as interrupt:
            self._finish_launches(interrupt)
            raise

    def _finish_launches(self, error: BaseException | None) -> None:
        """Wait briefly for an interrupted cell's launches, despite further signals."""
        self.interrupts.is_finishing = True
        self._await_launches(error, _DISCONNECT_WAIT_S if self.can_disconnect() else _STOPPED_WAIT_S)

    def _await_launches(self, error: BaseException | None, limit_s: float | None = None) -> None:
        try:
            self.launches.wait_all(limit_s)
        except Exception as failure:
            # A failed cell has reported why already; a launch that failed with it is a consequence, or the same error.
            if error is None:
                # Here, for the same reason as in `_show_error`.
                self.shell.ensure_error_shown(failure)
                raise

    # -- the end of a cell

    @exit_on_internal_error
    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self.interrupts.task = None
        try:
            result = task.result()
        except BaseException as error:  # noqa: BLE001 - as in `_run`
            result = error
        self._end(result)

    def _end(self, result: ExecutionResult | BaseException) -> None:
        """Send the cell's reply; interrupts change nothing from here on."""
        if getpid() != self._pid:
            # The cell forked, and its child returned from the cell: it must not answer for the rank.
            os._exit(0)
        error = _error_of(result)
        # IPython shows what a `__repr__`, a `display` or a `%run` raises, and continues; ranks that are out of step
        # cannot.
        error = self.launches.mismatches.take_shown() if error is None else error
        outcome: Outcome = "ok" if error is None else self._classify_outcome(error)
        if error is not None:
            self.shell.ensure_error_shown(error)
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end()
        assert self._running is not None
        seq = self._running.seq
        # Before the guard looks at what the cell still refers to.
        self.capture.release_metrics()
        launches, notes = self.launches.close_cell(seq, outcome)
        facts = self.changed_facts()
        # Other ranks may hang because of it, also if this rank's code has handled it.
        self._send_callback_error()
        with self._lock:
            if self._debugger.pdb is not None:
                self._debugger.end_cell(seq)
            events = self.capture.end()
            self._running = None
            self.interrupts.end_cell()
            wall_s = self.clock() - self._began_s
            self._last_reply = CellEnded(self.rank, seq, outcome, events, wall_s, launches, notes, facts)
            self.send(self._last_reply)
        if trace is not None:
            # Only now, because it takes seconds after many launches: neither an interrupt nor a time limit is to meet it.
            trace.finish()

    def _classify_outcome(self, error: BaseException) -> Outcome:
        stopped = is_interrupt(error) and self._is_stopped()
        cancelled = is_a(error, asyncio.CancelledError) and self.interrupts.was_requested
        return "interrupted" if stopped or cancelled else "error"

    def _is_stopped(self) -> bool:
        """Return whether the running cell was asked to stop.

        If not, a KeyboardInterrupt is the code's own error. If a library has replaced the signal handler,
        at most the other ranks' state is known, so the answer is yes.
        """
        interrupts = self.interrupts
        is_delivered = interrupts.was_requested or interrupts.arrived_early
        return is_delivered or interrupts.is_requested() or not interrupts.is_installed()

    # -- output while a cell runs, and after

    def _serve(self) -> None:
        """Run the duties at intervals; cells never wake this thread, for speed."""
        pause_s = _LIVE_INTERVAL_S
        duties = (
            self._send_live_output,
            self._send_late_output,
            self.interrupts.report,
            self.interrupts.give_up_callbacks,
            self._send_callback_error,
            self._send_status,
            self.launches.release_finished,
            self.background_check,
        )
        while not self._stop.wait(pause_s):
            for duty in duties:
                self._run_duty(duty)
            pause_s = _LIVE_INTERVAL_S if self._running is not None else _IDLE_INTERVAL_S

    def _run_duty(self, duty: Callable[[], None]) -> None:
        """Run one duty; log a failure, so that other duties continue."""
        try:
            duty()
        except Exception:  # noqa: BLE001 - without this thread no output is sent, and no interrupt releases the rank
            text = traceback.format_exc()
            if text not in self._logged_tracebacks:
                self._logged_tracebacks.add(text)
                self.capture.write_to_log(
                    f"mhnb: internal error in a thread of rank {self.rank}; please report this\n{text}"
                )

    def _send_live_output(self) -> None:
        with self._lock:
            running = self._running
            if running is None or self.clock() - self._began_s < _LIVE_AFTER_S:
                return
            self._send_taken(running.seq)

    def _flush_output(self) -> None:
        """Send the cell's output before the user sees the debugger's."""
        with self._lock:
            if self._running is not None:
                self._send_taken(self._running.seq)

    def _send_taken(self, seq: int) -> None:
        """Send output and keep its last error; the caller holds the lock."""
        self.capture.poll()
        if events := self.capture.take():
            self._sent_error = next((e for e in reversed(events) if isinstance(e, ErrorRaised)), self._sent_error)
            self.send(OutputProduced(self.rank, seq, events))

    def _send_late_output(self) -> None:
        with self._lock:
            if self._running is None:
                self.capture.poll()
            for seq, events in self.capture.take_late().items():
                self.send(OutputProduced(self.rank, seq, events))

    def _note_callback_error(self, failed: Reading, program: CallingProgram) -> None:
        """Note a callback's error early, because its program may hang."""

        def describe() -> None:
            described = self.shell.describe_callback_error(failed, program.name)
            self._callback_error = described, program.name if program.is_shared else ""

        self._run_duty(describe)

    def _send_callback_error(self) -> None:
        failed, self._callback_error = self._callback_error, None
        with self._lock:
            if failed is not None and self._running is not None:
                self.send(CallbackFailed(self.rank, self._running.seq, *failed))

    def _send_status(self) -> None:
        """Send where a long cell is, even if its thread is stuck."""
        running = self._running
        if running is None:
            return
        try:
            age_s = self.clock() - self._began_s
            status = self._sampler.sample(running.seq, age_s, self.interrupts.report_count)
        except Exception:
            # Report that nothing is known: silence would look like a call that lets no other thread run.
            self._send_sample(running, self._sampler.make_failed_status(running.seq, self.clock() - self._began_s))
            raise
        if status is not None and self.interrupts.is_finishing and status.activity != "launch":
            # The rank computes what it has launched, and no collective blocks it.
            status = replace(status, is_launched=False)
        self._send_sample(running, status)

    def _send_sample(self, running: RunCell, status: RankStatus | None) -> None:
        with self._lock:
            if status is not None and self._running is running:
                if self._debugger.pdb is not None:
                    self._debugger.report_running(running.seq, waits=status.activity == "agreement")
                self.send(status)

    def _find_coroutine(self) -> Any:
        """Return the coroutine of a cell that awaits now; else None."""
        coroutine: Any = None if (task := self.interrupts.task) is None else task.get_coro()
        return None if coroutine is None or coroutine.cr_running else coroutine


def _error_of(result: ExecutionResult | BaseException) -> BaseException | None:
    """Return the error that ended a cell, or None."""
    if not is_a(result, ExecutionResult):
        return result  # type: ignore[return-value]
    before: BaseException | None = result.error_before_exec
    return before if before is not None else result.error_in_exec


_USER_CODE = (CellRunner._user_code.__code__, CellRunner._user_code_async.__code__)
