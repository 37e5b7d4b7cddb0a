"""The `Cluster` object that users hold: start, cells, values, state, stop.

It owns the launched hosts, the event-loop thread and the state machine, and it alone reads the clock.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack

from mhnb.cluster import memory, requests, transfer
from mhnb.cluster.attach import ClusterRecord, write_cluster_record
from mhnb.cluster.debugging import DebugConsole, SuspendableView, check_stop_ranks
from mhnb.cluster.event_loop import CellFuture, EventLoop, check_end
from mhnb.cluster.generation import adopt_generation, create_generation, end_hosts
from mhnb.cluster.host_monitor import HostMonitor, HostRequests
from mhnb.cluster.interrupts import SigintHandler, run_uninterrupted
from mhnb.cluster.journal import ClusterJournal
from mhnb.cluster.metrics import MetricTable
from mhnb.cluster.options import StartRequest, check_detachable
from mhnb.cluster.preflight import check_hosts, preflight_error
from mhnb.cluster.shell_control import LongAction, ShellRequests
from mhnb.cluster.status import ClusterListener, describe_guard, describe_ranks, describe_restart
from mhnb.cluster.trace import TracedCell, collect_trace, make_user_folder
from mhnb.core.cell_name import NO_PLACE, CellPlace
from mhnb.core.cell_request import build_cell_request
from mhnb.core.cluster_spec import check_initialize
from mhnb.core.debugging import DebugRequest
from mhnb.core.flight import FlightReport, build_report
from mhnb.core.guard.value_check import CheckRow
from mhnb.core.hang_report import HangReport
from mhnb.core.journal import AcceptRecord, CellRecord
from mhnb.core.memory import MemoryReport
from mhnb.core.messages import RankReply
from mhnb.core.missing_names import describe_missing_name
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import resolve_ranks
from mhnb.core.replay import ReplayReport, ReplayStep, format_step
from mhnb.core.state.events import (
    Accepted,
    CellRequest,
    CellSubmitted,
    InterruptRequested,
    RequestsInterrupted,
    RunPreflight,
    StopRequested,
)
from mhnb.core.stragglers import Stragglers
from mhnb.core.variables import VariableRow
from mhnb.errors import InvalidRequest, MhnbError, NameMissing, ReplayStopped
from mhnb.launchers.profiles import Profile
from mhnb.system.keyboard import can_type
from mhnb.system.run_dir import find_cwd
from mhnb.types import ClusterState, DeviceRef, RankInfo, StartProgress

_STOP_S = 6.0  # longer than `HostMonitor.wait_closed` waits for supervisors to disconnect


class StandbyCluster(Protocol):
    """A standby cluster, which a restart may promote."""

    @property
    def cluster(self) -> Cluster:
        """The cluster, of the next generation."""

    @property
    def start_thread(self) -> threading.Thread:
        """Thread that awaits the start, and stops a cluster that fails."""

    def matches(self, cluster: Cluster) -> bool:
        """Whether a restart of that cluster would start the same one now."""

    def stop(self) -> None:
        """End its processes."""


class FrontEnd(TypedDict, total=False):
    """Arguments of `Cluster.run` from a front end that shows the cell."""

    place: CellPlace
    """Where the notebook shows it, for its name and its line numbers in messages."""
    debug: DebugRequest | None
    """Where its ranks stop for the user. The lines that the user types are read with `input()`."""
    console: SuspendableView | None
    """What draws in the terminal in which the user types; it pauses while a rank waits for a line."""
    on_trace: Callable[[CellResult], None]
    """Called when a traced cell has ended, with its result, before its trace is collected; that may take a while."""


AnswerShell: TypeAlias = Callable[["Cluster", str, Mapping[str, Any]], tuple[str, Mapping[str, Any]]]


def _check_debug(debug: object) -> None:
    """Check what a cell asks of the debugger.

    Raises:
        InvalidRequest: it is of another type, or this is not the main thread.
    """
    if not isinstance(debug, DebugRequest):
        raise InvalidRequest(f"debug={debug!r:.80}: expected a DebugRequest of mhnb.core.debugging, or None")
    if threading.current_thread() is not threading.main_thread():
        raise InvalidRequest(
            f"debug={debug!r:.80}: expected None, because lines are typed in the main thread, and this is thread "
            f"{threading.current_thread().name!r}"
        )


class Cluster:
    """Ranks that run every cell in the same order. Created by `mhnb.start`.

    Args:
        source: the start, or the record of a running cluster to attach to.
        generation: number of the start.
        origin_pid: id of the process that started generation 1; None: this one.
        restarter: replaces the cluster by the next generation; called with it and the arguments of `restart`.
        answer_shell: returns a report for a shell, as text or as values.
    """

    def __init__(
        self,
        source: StartRequest | ClusterRecord,
        *,
        generation: int = 1,
        origin_pid: int | None = None,
        restarter: Callable[..., Cluster] | None = None,
        answer_shell: AnswerShell | None = None,
    ) -> None:
        self.shape, self.options, self.generation = source.shape, source.options, generation
        # None: this process has not loaded it, because another one started the cluster.
        self.profile = source.profile if isinstance(source, StartRequest) else None
        self.name, self.cwd = self.options.name, find_cwd()
        self.started_in_s = 0.0
        self.preflight_s: float | None = None
        self.notes = check_initialize(self.shape.initialize, self.shape.process_count)
        self._began = time.monotonic()
        self._listener = ClusterListener()
        self.journal = ClusterJournal(
            self.name,
            generation,
            environment=os.environ,
            clock=time.time,
            notify=self._listener.on_notice,
            origin_pid=origin_pid,
        )
        self.replayed: ReplayReport | None = None
        self.restarter, self.answer_shell = restarter, answer_shell
        self.standby: StandbyCluster | None = None
        self._ended, self._pid, self._end_lock = True, os.getpid(), threading.Lock()
        self._is_taken_over, self.left = self.profile is None, False  # left: the cluster continues without this object
        try:
            self._resources = (
                create_generation(source, generation=generation, now=self._began)
                if isinstance(source, StartRequest)
                else adopt_generation(source, now=self._began)
            )
        except BaseException:
            self.journal.close()
            raise
        self._state_machine, self.launched = self._resources.state_machine, self._resources.hosts
        self._state_machine.history = self.journal.records
        try:
            self._listener.enable_shell_requests(self._make_shell_requests())
            if self.profile is None:
                self.journal.records += self.journal.read()[0]
            else:
                self._launch(self.profile)
            with SigintHandler():
                self._serve()
        except BaseException:
            # Also on Ctrl-C: the caller does not have this object yet, so nothing else could end it.
            run_uninterrupted(
                self._resources.abort_start if self._ended else self._detach if self._is_taken_over else self._end
            )
            self.journal.close()
            raise

    def _make_shell_requests(self) -> ShellRequests:
        """Return what a shell may request while this process has the cluster."""
        long_actions: dict[str, LongAction] = {"restart": self._restart_for_shell}
        if self.answer_shell is not None:
            long_actions["report"] = partial(self._report_to_shell, self.answer_shell)
        return ShellRequests(self._resources.run_dir, {"interrupt": self._interrupt_for_shell}, long_actions, time.time)

    def _report_to_shell(
        self, answer_shell: AnswerShell, tell: Callable[[str], None], *, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, Any]]:
        # A rank may not answer, and the shell's user should read why.
        with self._listener.show_to_shell(tell):
            return answer_shell(self, name, arguments)

    def _interrupt_for_shell(self) -> tuple[str, Mapping[str, Any]]:
        cell, has_requests = self._state_machine.current, self._state_machine.has_requests
        self.interrupt()
        if cell is None:
            return "interrupted what the ranks did between cells" if has_requests else "no cell is running", {}
        return f"interrupted {self._state_machine.cell_names.format_name(cell.seq)}", {}

    def _restart_for_shell(
        self, tell: Callable[[str], None], *, replay: bool = False, to: str | None = None, this_generation: bool = False
    ) -> tuple[str, Mapping[str, Any]]:
        notice = f"mhnb restart {self.name} in a shell"
        try:
            fresh = self.restart(
                replay=replay, to=to, this_generation=this_generation, on_step=lambda step: tell(format_step(step))
            )
        except ReplayStopped as error:
            self._listener.on_notice(f"{notice} has replaced all processes\n{error}")
            raise
        text = describe_restart(fresh.process_count, fresh.replayed)
        lost = "" if replay else "; all variables on them are lost\n  Fix: %mhjax restart --replay"
        self._listener.on_notice(f"{notice}: {text}{lost}")
        return text, {"generation": fresh.generation}

    def _launch(self, profile: Profile) -> None:
        self._resources.launch(profile)

    def _serve(self) -> None:
        transport, listener, write_record = self._resources.transport, self._listener, self.journal.write
        self._host_monitor = HostMonitor(
            transport,
            self.launched,
            timeout_s=self.options.host_timeout_s,
            run_dir=self._resources.run_dir,
            run_preflight=self._run_preflight,
        )
        self._event_loop = EventLoop(
            transport,
            self._state_machine,
            self._host_monitor,
            clock=time.monotonic,
            listener=listener,
            write_record=write_record,
        )
        self._event_loop.start()
        self._ended = False
        atexit.register(self._at_exit)

    def _run_preflight(self, command: RunPreflight, requests: HostRequests) -> MhnbError | None:
        shares_machines = self.profile is not None and self.profile.settings.shares_machines
        url = self._resources.transport.url
        report = check_hosts(self.shape, url, command, requests, shares_machines=shares_machines)
        self.preflight_s = report.duration_s
        return None if report.ok else preflight_error(report)

    # -- start

    def wait_ready(self, on_progress: Callable[[StartProgress], None] | None = None) -> None:
        """Wait until every rank can take cells.

        Raises:
            LaunchError: the start failed, and no process is left. If this was an attach that failed, the ranks keep running.
            KeyboardInterrupt: the user interrupted the wait; likewise.
        """
        try:
            self.started_in_s = self._listener.wait_ready(on_progress)
            self._resources.record_owner(self.ranks)
            if self.options.keep:
                write_cluster_record(self._resources.make_record(self.journal.origin_pid, self.started_in_s))
                self._host_monitor.make_detachable(lambda: self._event_loop.is_alive)
        except BaseException:
            # Also Ctrl-C.
            if self._is_taken_over:
                self.leave()
            else:
                self.stop()
            raise

    def leave(self) -> None:
        """Detach from the cluster without ending it; a notebook can attach again.

        Raises:
            InvalidRequest: the cluster was started without `keep`.
        """
        if not self._ended:
            check_detachable(self.options)
            run_uninterrupted(self._detach)

    def detach(self) -> None:
        """Detach from the cluster without ending it: the same as `leave`.

        Raises:
            InvalidRequest: the cluster was started without `keep`.
        """
        self.leave()

    def __enter__(self) -> Cluster:
        """Return the cluster; the end of `with` stops it, or detaches (`keep`)."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the cluster, or detach from a live one started with `keep`."""
        self._end_or_leave()

    def _detach(self) -> None:
        with self._end_lock:
            if self._ended:
                return
            for host in self.launched:
                host.release()
            closed_text = f"this notebook has detached from the cluster\n  Fix: %mhjax attach {self.name}"
            self._event_loop.detach(_STOP_S, closed_text)
            self._resources.close()
            self.journal.close()
            self._ended = self.left = True
        atexit.unregister(self._at_exit)

    # -- properties

    @property
    def state(self) -> ClusterState:
        """State as judged when the last cell ended; the README explains each."""
        return self._state_machine.state

    @property
    def reason(self) -> str:
        """Why the cluster is not clean."""
        return self._state_machine.reason

    @property
    def process_count(self) -> int:
        """Number of ranks."""
        return self._state_machine.process_count

    @property
    def devices(self) -> tuple[DeviceRef, ...]:
        """Every device, by rank and local device index."""
        return tuple(device for rank in self.ranks for device in rank.devices)

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Every rank, in rank order."""
        return describe_ranks(self._state_machine)

    @property
    def guard(self) -> str:
        """Which guard is active, or why none is."""
        return describe_guard(self._state_machine, self.options.guard)

    @property
    def refused_messages(self) -> int:
        """Number of dropped messages and connections: unsigned or invalid."""
        return self._resources.transport.rejected_count

    @property
    def jax_version(self) -> str:
        """JAX version of the ranks."""
        return str(self._state_machine.registry.entries[0].facts.get("versions", {}).get("jax", "?"))

    @property
    def log_dir(self) -> Path:
        """Directory with the full output of each rank."""
        return self._resources.run_dir / "log"

    @property
    def supervisor_pid(self) -> int:
        """Id of the process that starts the hub and the ranks."""
        return self.launched[0].pid

    @property
    def hub_pid(self) -> int | None:
        """Process id of ipyparallel's controller."""
        return self._state_machine.registry.hub_pid

    @property
    def running_cell(self) -> str:
        """The name of the cell that runs; empty if none does."""
        cell = self._state_machine.current
        return "" if cell is None else self._state_machine.cell_names.format_name(cell.seq)

    # -- cells

    def submit(
        self,
        source: str,
        *,
        ranks: str | Sequence[int] | None = None,
        guard: str | None = None,
        timeout_s: float | None = None,
        live: bool = False,
    ) -> CellFuture:
        """Submit a cell and return at once; `follow` waits for it.

        Raises:
            InvalidRequest: a rank that does not exist, an unknown guard, or an invalid time limit.
        """
        event_of = self._make_event_factory(source, ranks=ranks, guard=guard, timeout_s=timeout_s)
        with SigintHandler() as ctrl_c:
            submission = self._event_loop.submit(event_of, live=live)
            ctrl_c.set_callback(partial(self._event_loop.post, InterruptRequested(submission.ticket)))
        return submission

    def _make_event_factory(
        self,
        source: str,
        *,
        place: CellPlace = NO_PLACE,
        debug: DebugRequest | None = None,
        is_traced: bool = False,
        **arguments: Any,
    ) -> Callable[[int], CellSubmitted]:
        arguments["guard"] = self.options.guard if arguments["guard"] is None else arguments["guard"]
        request = build_cell_request(source, self.process_count, **arguments)
        if debug is not None and debug.stop_ranks:
            check_stop_ranks(debug.stop_ranks, request.ranks or range(self.process_count))
        return partial(CellSubmitted, request=replace(request, place=place, debug=debug, is_traced=is_traced))

    def follow(self, submission: CellFuture, on_snapshot: Callable[[CellResult], None] | None = None) -> CellResult:
        """Wait for the end of a cell, and return its result.

        Ctrl-C interrupts the ranks, and the result shows what that led to.

        Raises:
            ClusterError: the cell was refused; nothing was sent.
            CellInterrupted: Ctrl-C came before the cell's turn; nothing was sent.
        """
        with SigintHandler() as ctrl_c:
            ctrl_c.set_callback(partial(self._event_loop.post, InterruptRequested(submission.ticket)))
            return submission.wait(on_snapshot)

    def run(
        self,
        source: str,
        *,
        ranks: str | Sequence[int] | None = None,
        guard: str | None = None,
        timeout_s: float | None = None,
        on_snapshot: Callable[[CellResult], None] | None = None,
        trace: bool | str | Path = False,
        **front_end: Unpack[FrontEnd],
    ) -> CellResult:
        """Run a cell on all or some ranks, and return the results.

        The result includes ranks that failed. Ctrl-C interrupts the ranks, and the result shows what that led to.

        Args:
            source: the cell, as typed.
            ranks: `0,2-3` or numbers; None for all.
            guard: before (lockstep), after (parity) or off; None for the cluster's own.
            timeout_s: seconds after which the cell is interrupted; None for no limit.
            on_snapshot: called with the result so far while the cell runs, at most ten times per second. While it waits for
                another cell to end, the result so far has no ranks, and `waiting` says for what.
            trace: True to profile the cell on its ranks, and to write one timeline of all of them; or the folder for its files.
                The result's `trace` has the path, and where the time of each rank went.
            **front_end: as in `FrontEnd`. Without `debug`, the code can stop at a breakpoint if
                this is the main thread of a program in a terminal, and the user types there.

        Raises:
            ClusterError: the cluster takes no cell; nothing was sent.
            InvalidRequest: a bad argument; nothing was sent.
            BreakpointRefused: the ranks were to stop, and cannot; nothing was sent.
            CellInterrupted: Ctrl-C came before the cell's turn; nothing was sent.
        """
        arguments = {"ranks": ranks, "guard": guard, "timeout_s": timeout_s, "on_snapshot": on_snapshot}
        if trace is False:
            return self._run_cell(source, arguments, **front_end)
        folder = None if trace is True else make_user_folder(trace)
        result = self._run_cell(source, arguments | {"is_traced": True}, **front_end)
        cell = TracedCell(
            result,
            front_end.get("place", NO_PLACE).first_line,
            lambda: self.ranks,
            partial(self._host_monitor.read_flights, self._state_machine.registry),
            self._state_machine.added_parts.arrivals.align_clocks,
        )
        return replace(result, added=(*result.added, collect_trace(self, cell, self._resources.run_dir, folder)))

    def _run_cell(
        self,
        source: str,
        arguments: dict[str, Any],
        *,
        place: CellPlace = NO_PLACE,
        debug: DebugRequest | None = None,
        console: SuspendableView | None = None,
        on_trace: Callable[[CellResult], None] | None = None,
    ) -> CellResult:
        if debug is not None:
            _check_debug(debug)
        debug = DebugRequest() if debug is None and can_type() else debug
        event_of = self._make_event_factory(source, place=place, debug=debug, **arguments)
        result = self._run(event_of, arguments["on_snapshot"], debug=debug, console=console)
        if on_trace is not None and arguments.get("is_traced"):
            on_trace(result)
        return result

    def run_again(self, record: CellRecord, on_snapshot: Callable[[CellResult], None] | None = None) -> CellResult:
        """Run a journaled cell again, unchanged, under its original number."""
        request = CellRequest(
            record.source,
            record.ranks,
            record.guard,
            record.timeout_s,
            replayed_seq=record.seq,
            place=record.place,
            debug=DebugRequest(replayed_errors=frozenset(record.errors.values())),
        )
        return self._run(partial(CellSubmitted, request=request), on_snapshot)

    def _run(
        self,
        event_of: Callable[[int], CellSubmitted],
        on_snapshot: Callable[[CellResult], None] | None,
        *,
        debug: DebugRequest | None = None,
        console: SuspendableView | None = None,
    ) -> CellResult:
        with SigintHandler() as ctrl_c:
            submission = self._event_loop.submit(event_of, live=on_snapshot is not None)
            ctrl_c.set_callback(partial(self._event_loop.post, InterruptRequested(submission.ticket)))
            if debug is None:
                return submission.wait(on_snapshot)
            make_console = partial(
                DebugConsole,
                submission,
                self._event_loop.post,
                on_snapshot,
                is_post_mortem=debug.is_post_mortem,
                view=console,
            )
            try:
                end = submission.follow(on_snapshot)
            except BaseException:
                # The cell runs on, and no line would be typed for a rank that stops in it.
                make_console().leave_later_stops()
                raise
            return check_end(make_console().follow() if end is None else end)

    def interrupt(self) -> None:
        """Interrupt the running cell with KeyboardInterrupt on its ranks.

        A second call also interrupts their handling of the first. Without a running cell, interrupt what the ranks do
        between cells, such as the work for `vars`.
        """
        self._event_loop.post(InterruptRequested())

    def where(self) -> HangReport | None:
        """Return each rank's position in the running cell; None without a cell.

        Works from any thread, at once.
        """
        return self._event_loop.hang_report()

    def flight(self) -> FlightReport:
        """Return what the ranks' flight recorders hold, and how the ranks compare.

        Each recorder has the last 4,096 events. Ranks on other machines are asked through their hosts. A rank whose
        recording cannot be read has the reason in its place.
        """
        return build_report(self.name, self._host_monitor.read_flights(self._state_machine.registry))

    def stragglers(self) -> Stragglers | None:
        """Return how late each rank came to the last cell's launches.

        That is the last cell with launches under lockstep; None if no cell had any.
        """
        return self._state_machine.added_parts.arrivals.measure()

    def memory(self, *, ranks: str | Sequence[int] | None = None) -> MemoryReport:
        """Return the devices' bytes in use, and their live arrays by name.

        Reads no array, and launches nothing.

        Args:
            ranks: the ranks to ask; None for all.
        """
        return memory.read_memory(self, self.name, resolve_ranks(ranks, self.process_count))

    @property
    def metrics(self) -> MetricTable:
        """What the cells have logged with `mhnb.log`, also before a restart.

        A replayed cell replaces its earlier points. The points are in this process: a detach loses them, so write them
        with `to_csv` before.
        """
        return MetricTable(self._state_machine.added_parts.metrics.snapshot())

    def adopt_metrics(self, earlier: Cluster) -> None:
        """Take over what the cells of an earlier generation have logged."""
        self._state_machine.added_parts.metrics.adopt(earlier._state_machine.added_parts.metrics)

    def adopt_history(self, earlier: Cluster) -> None:
        """Continue an earlier generation's journal and, after a restart, its cell numbers."""
        self.journal.records[:0] = earlier.journal.records
        self._state_machine.number_after_history()

    def accept(self) -> None:
        """Continue with a split or tainted cluster as it is."""
        previous_state = self.state
        self._event_loop.post(Accepted())
        # The event loop takes this request after the event, so the change is in force when this returns.
        requests.list_names(self)
        if previous_state in ("split", "tainted") and self.state != previous_state:
            self.journal.write(AcceptRecord(self.generation, previous_state))

    def on_late(self, show: Callable[[CellResult], None]) -> None:
        """Set the event-loop thread's callback for output of ended cells."""
        self._listener.show_late = show

    def on_notice(self, tell: Callable[[str], None]) -> None:
        """Set the event-loop thread's callback for notifications between cells."""
        self._listener.show_notice = tell

    # -- values

    def ask(
        self, rank: int, handler: str, arguments: dict[str, Any], payload: Sequence[bytes] = ()
    ) -> Future[RankReply]:
        """Send a request to one rank between cells."""
        return self._event_loop.request(rank, handler, arguments, payload)

    def ask_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, Any],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the same request to several ranks, with no cell between them.

        `on_success` is called once all have succeeded, before the end of any cell that is submitted later.
        """
        return self._event_loop.request_all(ranks, handler, arguments, on_success)

    def interrupt_requests(self) -> None:
        """Interrupt what the ranks do between cells. They answer all the same."""
        self._event_loop.post(RequestsInterrupted())

    def pull(self, *names: str, ranks: str | Sequence[int] | None = None, each: bool = False) -> Any:
        """Fetch values from the ranks as NumPy arrays, in their pytrees.

        A global array is assembled from its shards, without a collective.

        Args:
            *names: variables on the ranks.
            ranks: the ranks to fetch from; None for all.
            each: return for each name a list with every rank's own value.

        Returns:
            The value of one name; a tuple for several.

        Raises:
            ValueDiffers: a value is not the same on all ranks, or its name is missing on one (NameMissing).
        """
        return self.pull_values(names, ranks=ranks, each=each)

    def pull_values(
        self,
        names: Sequence[str],
        *,
        ranks: str | Sequence[int] | None = None,
        each: bool = False,
        on_progress: transfer.ProgressCallback | None = None,
    ) -> Any:
        """Fetch values as `pull` does, and report the bytes that have arrived."""
        chosen = resolve_ranks(ranks, self.process_count)
        with self._explain_missing_name():
            return transfer.pull(self, names, ranks=chosen, each=each, on_progress=on_progress)

    @contextmanager
    def _explain_missing_name(self) -> Iterator[None]:
        """Add to NameMissing the cell that set the name before a restart."""
        try:
            yield
        except NameMissing as error:
            setter = describe_missing_name(error.name, self.journal.records, self.generation)
            if setter is None:
                raise
            raise NameMissing(f"{error}\n  {setter}", **error.parts) from None

    def push(self, *, ranks: str | Sequence[int] | None = None, **values: Any) -> None:
        """Bind the same host values on every rank, or on no rank.

        No value becomes a global array. If one rank cannot accept a value, no rank binds any.
        """
        self.push_values(values, ranks=ranks)

    def push_values(
        self,
        values: Mapping[str, Any],
        *,
        ranks: str | Sequence[int] | None = None,
        on_progress: transfer.ProgressCallback | None = None,
    ) -> None:
        """Bind values as `push` does, and report the bytes that were sent."""
        chosen = resolve_ranks(ranks, self.process_count)
        prepare_record = partial(self.journal.prepare_push, ranks=chosen)
        transfer.push(self, values, ranks=chosen, on_progress=on_progress, prepare_record=prepare_record)

    def vars(self) -> tuple[VariableRow, ...]:
        """Return the ranks' variables and where they differ, without fetching values."""
        return requests.list_variables(self)

    def check(self, *names: str) -> tuple[CheckRow, ...]:
        """Compare variables by hash across shard replicas and across ranks.

        Only hashes are fetched. An array that should be replicated but was built from different values shows here.

        Raises:
            InvalidRequest: no name, or a name that is not a variable's.
            NameMissing: a name is missing on some rank.
        """
        with self._explain_missing_name():
            return requests.check_values(self, names)

    # -- end

    def stop(self, *, on_wait: Callable[[], None] | None = None) -> None:
        """End every process of the cluster and wait until all are gone.

        A second call does nothing. Ctrl-C ends the wait, but not the shutdown.

        Args:
            on_wait: called in this thread several times a second during the wait.
        """
        if self._ended or os.getpid() != self._pid:
            # A forked child of the user's process has a copy of this object, but does not own its processes.
            return
        run_uninterrupted(self._end, on_wait)

    def _end(self) -> None:
        with self._end_lock:
            if self._ended:
                return
            self._event_loop.post(StopRequested())
            self._event_loop.close(_STOP_S)
            end_hosts(self.launched, self._state_machine.registry)
            if self.standby is not None:
                self.standby.stop()
            self._resources.close_and_remove_keys()
            self.journal.close()
            # Last, so that the next stop continues one that failed.
            self._ended = True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._end_or_leave()

    def _end_or_leave(self) -> None:
        lives_on = os.getpid() == self._pid and self.options.keep and self._event_loop.is_alive
        (self.leave if lives_on else self.stop)()

    def restart(
        self,
        *,
        replay: bool = False,
        to: int | str | None = None,
        this_generation: bool = False,
        on_step: Callable[[ReplayStep], None] | None = None,
    ) -> Cluster:
        """Stop the cluster, and return a fresh one of the same spec.

        It is ready, and has the same name and a later generation. Without a replay, the variables are lost.

        Args:
            replay: repeat what ended clean since the last start, to restore the variables; `replayed` of the new cluster reports
                what was done.
            to: the last cell to run again: its number, or `In[7]`; None for all.
            this_generation: repeat only what was done since the last restart.
            on_step: called in this thread before each cell and push that is repeated.

        Raises:
            ReplayStopped: a cell behaved differently from before; `mhnb.current()` is the new cluster, as far as the replay came.
        """
        if self.restarter is None:
            raise InvalidRequest(
                f"cluster {self.name!r} cannot be restarted, because mhnb.start did not create it\n"
                "  Fix: stop it, then mhnb.start()"
            )
        return self.restarter(self, replay=replay, to=to, this_generation=this_generation, on_step=on_step)

    def __repr__(self) -> str:
        return f"<mhnb.Cluster {self.name!r}: {self.shape.describe()}, {self.state}, generation {self.generation}>"
