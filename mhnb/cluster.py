"""The `Cluster` object that users hold: start, cells, values, state, stop.

It owns the launched hosts, the event-loop thread and the state machine, and it alone reads the clock.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mhnb import exchange
from mhnb.core.asked.request import check_guard, make_request
from mhnb.core.asked.shape import Shape, check_initialize
from mhnb.core.exchange.variables import VarRow
from mhnb.core.explain.where import WhereCard
from mhnb.core.guard.check import CheckRow
from mhnb.core.keep.journal import AcceptRecord, CellRecord
from mhnb.core.keep.replay_report import ReplayReport
from mhnb.core.life.events import Accepted, CellRequest, CellSubmitted, InterruptRequested, StopRequested
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import choose_ranks
from mhnb.core.wire.protocol import Answer
from mhnb.drive.ctrlc import CtrlC
from mhnb.drive.finishing import see_through
from mhnb.drive.fleet import describe_ground, end_hosts, find_cause, find_look_s, open_ground
from mhnb.drive.listening import ClusterListener
from mhnb.drive.reader import Reader
from mhnb.drive.roll import RankInfo, StartReport, describe_guard, describe_ranks, report_start
from mhnb.drive.submission import Submission
from mhnb.drive.watching import HostWatch, find_board
from mhnb.errors import InvalidRequest
from mhnb.keep.berth import Berth, write_berth
from mhnb.keep.journaling import ClusterJournal
from mhnb.startup.options import StartOptions, check_kept
from mhnb.system.rundir import check_name, find_cwd
from mhnb.values import ClusterState, DeviceRef

__all__ = ["Cluster", "Reserve", "Restarter", "StartOptions"]

_STOP_S = 6.0  # longer than `HostWatch.see_off` waits for supervisors to disconnect


class Reserve(Protocol):
    """A cluster in reserve, which a restart may take over."""

    @property
    def cluster(self) -> Cluster:
        """The cluster, of the next generation."""

    @property
    def start(self) -> threading.Thread:
        """Waits until the cluster is ready, and stops it if it does not come up."""

    def fits(self, cluster: Cluster) -> bool:
        """Whether a restart of that cluster would start the same one now."""

    def stop(self) -> None:
        """End its processes."""


class Restarter(Protocol):
    """Replaces the processes of a cluster by those of a later generation."""

    def __call__(self, cluster: Cluster, *, replay: bool, to: int | None) -> Cluster:
        """Return the new cluster, ready; `restart` has the arguments."""


class Cluster:
    """Ranks that run every cell in the same order. Created by `mhnb.start`."""

    def __init__(
        self,
        shape: Shape,
        options: StartOptions,
        *,
        generation: int = 1,
        origin: int | None = None,
        berth: Berth | None = None,
        restarter: Restarter | None = None,
    ) -> None:
        check_guard(options.guard)
        self.shape, self.options, self.generation = shape, options, generation
        self.name, self.cwd = check_name(options.name), find_cwd()
        self.started_in_s = 0.0
        self.looked_in_s: float | None = None
        self.notes = check_initialize(shape.initialize, shape.process_count)
        self._began = time.monotonic()
        self._listener = ClusterListener(report_start)
        self.journal = ClusterJournal(
            self.name, generation, environment=os.environ, clock=time.time, tell=self._listener.on_notice, origin=origin
        )
        self.replayed: ReplayReport | None = None
        self.restarter = restarter
        self.spare: Reserve | None = None
        self._ended, self._pid, self._ending = True, os.getpid(), threading.Lock()
        self._is_taken_over, self.left = berth is not None, False  # left: the cluster goes on without this object
        try:
            self._ground = open_ground(shape, options, self.journal, berth, generation=generation, now=self._began)
        except BaseException:
            self.journal.close()
            raise
        self._machine, self.launched = self._ground.machine, self._ground.hosts
        try:
            self._listener.keep_where(self._ground.run_dir)
            if berth is None:
                self._launch()
            with CtrlC():
                self._serve()
        except BaseException:
            # Also on Ctrl-C: the caller does not have this object yet, so nothing else could end it.
            see_through(self._ground.take_back if self._ended else self._let_go if self._is_taken_over else self._end)
            raise

    def _launch(self) -> None:
        self._ground.launch(self.shape, self.options, self.cwd)

    def _serve(self) -> None:
        link, listener, keep = self._ground.link, self._listener, self.journal.write
        board = partial(find_board, self._ground.run_dir, self.process_count)
        self._watch = HostWatch(link, self.launched, timeout_s=self.options.host_timeout_s, board=board)
        self._reader = Reader(link, self._machine, self._watch, clock=time.monotonic, listener=listener, keep=keep)
        self._reader.start()
        self._ended = False
        atexit.register(self._at_exit)

    # -- start

    def wait_ready(self, on_progress: Callable[[StartReport], None] | None = None) -> None:
        """Wait until every rank can take cells.

        Raises:
            LaunchError: the start failed, and no process is left. Ranks of another notebook that could not be taken over are left.
            KeyboardInterrupt: the user interrupted the wait; likewise.
        """
        try:
            self.started_in_s = self._listener.wait_ready(on_progress)
            self.looked_in_s = find_look_s(self.launched, self.looked_in_s)
            self._ground.note_owner(self.shape, self.options, self.ranks)
            if self.options.keep:
                write_berth(describe_ground(self._ground, self.shape, self.options, self.started_in_s))
                self._watch.keep(lambda: self._reader.alive)
        except BaseException as error:  # noqa: BLE001  # also Ctrl-C; it is raised again
            if self._is_taken_over:
                self.leave()
            else:
                self.stop()
            raise find_cause(self.launched, error) from None

    def leave(self) -> None:
        """Detach from the cluster without ending it, so that this or another notebook can attach to it.

        Raises:
            InvalidRequest: the cluster was started without `keep`.
        """
        if not self._ended:
            check_kept(self.options)
            see_through(self._let_go)

    def _let_go(self) -> None:
        with self._ending:
            if self._ended:
                return
            for host in self.launched:
                host.release()
            gone = f"this notebook has let go of the cluster; %mhjax attach {self.name} takes it back"
            self._reader.leave(_STOP_S, gone)
            self._ground.close()
            self._ended = self.left = True
        atexit.unregister(self._at_exit)

    # -- properties

    @property
    def state(self) -> ClusterState:
        """State, as judged when the last cell ended; the README explains each one."""
        return self._machine.state

    @property
    def reason(self) -> str:
        """Why the cluster is not clean."""
        return self._machine.reason

    @property
    def process_count(self) -> int:
        """Number of ranks."""
        return self._machine.process_count

    @property
    def devices(self) -> tuple[DeviceRef, ...]:
        """Every device, by rank and local device index."""
        return tuple(device for rank in self.ranks for device in rank.devices)

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Every rank, in rank order."""
        return describe_ranks(self._machine)

    @property
    def guard(self) -> str:
        """Which guard is active, or why none is."""
        return describe_guard(self._machine, self.options.guard)

    @property
    def refused_messages(self) -> int:
        """Number of messages that arrived without this cluster's signature, and were dropped."""
        return self._ground.link.refused

    @property
    def jax_version(self) -> str:
        """JAX version of the ranks."""
        return str(self._machine.roster.entries[0].facts.get("versions", {}).get("jax", "?"))

    @property
    def log_dir(self) -> Path:
        """Directory with the full output of each rank."""
        return self._ground.run_dir / "log"

    @property
    def supervisor_pid(self) -> int:
        """Id of the process that holds the hub and the ranks."""
        return self.launched[0].pid

    @property
    def hub_pid(self) -> int | None:
        """Process id of ipyparallel's controller."""
        return self._machine.roster.hub_pid

    # -- cells

    def submit(
        self,
        source: str,
        *,
        ranks: str | Sequence[int] | None = None,
        guard: str | None = None,
        timeout_s: float | None = None,
        live: bool = False,
    ) -> Submission:
        """Submit a cell and return at once; `follow` waits for it.

        Raises:
            InvalidRequest: a rank that does not exist, an unknown guard, or an invalid time limit.
        """
        event_of = self._request(source, ranks=ranks, guard=guard, timeout_s=timeout_s)
        with CtrlC() as ctrl_c:
            submission = self._reader.submit(event_of, live=live)
            ctrl_c.call(partial(self._reader.post, InterruptRequested(submission.ticket)))
        return submission

    def _request(self, source: str, **asked: Any) -> Callable[[int], CellSubmitted]:
        asked["guard"] = self.options.guard if asked["guard"] is None else asked["guard"]
        return partial(CellSubmitted, request=make_request(source, self.process_count, **asked))

    def follow(self, submission: Submission, on_snapshot: Callable[[CellResult], None] | None = None) -> CellResult:
        """Wait for the end of a cell. Ctrl-C interrupts the ranks, and the result shows what that led to.

        Raises:
            ClusterError: the cell was refused; nothing was sent.
            CellInterrupted: Ctrl-C came before the cell's turn; nothing was sent.
        """
        with CtrlC() as ctrl_c:
            ctrl_c.call(partial(self._reader.post, InterruptRequested(submission.ticket)))
            return submission.wait(on_snapshot)

    def run(
        self,
        source: str,
        *,
        ranks: str | Sequence[int] | None = None,
        guard: str | None = None,
        timeout_s: float | None = None,
        on_snapshot: Callable[[CellResult], None] | None = None,
    ) -> CellResult:
        """Run a cell on every rank, or on some, and return the result of each, also if ranks failed.

        Ctrl-C interrupts the cell on the ranks, and the result shows what that led to.

        Args:
            source: the cell, as typed.
            ranks: `0,2-3` or numbers; None for all.
            guard: lockstep, parity or off; None for the cluster's own.
            timeout_s: seconds after which the cell is interrupted; None for no limit.
            on_snapshot: called with the result so far while the cell runs, at most ten times per second.

        Raises:
            ClusterError: the cluster takes no cell; nothing was sent.
            InvalidRequest: a bad argument; nothing was sent.
            CellInterrupted: Ctrl-C came before the cell's turn; nothing was sent.
        """
        event_of = self._request(source, ranks=ranks, guard=guard, timeout_s=timeout_s, on_snapshot=on_snapshot)
        return self._run(event_of, on_snapshot)

    def run_again(self, record: CellRecord) -> CellResult:
        """Run a journaled cell again, unchanged, under its original number."""
        request = CellRequest(record.source, record.ranks, record.guard, record.timeout_s, again=record.seq)
        return self._run(partial(CellSubmitted, request=request), None)

    def _run(
        self, event_of: Callable[[int], CellSubmitted], on_snapshot: Callable[[CellResult], None] | None
    ) -> CellResult:
        with CtrlC() as ctrl_c:
            submission = self._reader.submit(event_of, live=on_snapshot is not None)
            ctrl_c.call(partial(self._reader.post, InterruptRequested(submission.ticket)))
            return submission.wait(on_snapshot)

    def interrupt(self) -> None:
        """Interrupt the running cell with KeyboardInterrupt on its ranks. A second call also interrupts their handling of the first."""
        self._reader.post(InterruptRequested())

    def where(self) -> WhereCard | None:
        """Return where every rank is in the running cell; None if no cell runs. Works from any thread, at once."""
        return self._reader.where()

    def accept(self) -> None:
        """Continue with a split or tainted cluster as it is."""
        was = self.state
        self._reader.post(Accepted())
        # The event loop takes this request after the event, so the change is in force when this returns.
        self.ask(0, "names", {}).result()
        if was in ("split", "tainted") and self.state != was:
            self.journal.write(AcceptRecord(self.generation, was))

    def on_late(self, show: Callable[[CellResult], None]) -> None:
        """Set the callback for output that arrives after the end of its cell; it is called in the event-loop thread."""
        self._listener.late = show

    def on_notice(self, tell: Callable[[str], None]) -> None:
        """Set the callback for notifications of what happens between cells; it is called in the event-loop thread."""
        self._listener.notice = tell

    # -- values

    def ask(self, rank: int, verb: str, arguments: dict[str, Any], payload: Sequence[bytes] = ()) -> Future[Answer]:
        """Send a request to one rank between cells."""
        return self._reader.ask(rank, verb, arguments, payload)

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
        return exchange.pull(self, names, ranks=choose_ranks(ranks, self.process_count), each=each)

    def push(self, *, ranks: str | Sequence[int] | None = None, **values: Any) -> None:
        """Bind the same host values on every rank, never as a global array; on no rank if one cannot accept them."""
        chosen = choose_ranks(ranks, self.process_count)
        self.journal.write_push(exchange.push(self, values, ranks=chosen), chosen)

    def vars(self) -> tuple[VarRow, ...]:
        """Return the variables of the ranks, and where they differ. Fetches no value."""
        return exchange.list_variables(self)

    def check(self, *names: str) -> tuple[CheckRow, ...]:
        """Compare the values of variables by hash: the replicas of each shard of an array, and the values of each rank.

        Only hashes are fetched. An array that should be replicated but was built from different values shows here.

        Raises:
            InvalidRequest: no name, or a name that is not a variable's.
            NameMissing: a name is missing on some rank.
        """
        return exchange.check_values(self, names)

    # -- end

    def stop(self) -> None:
        """End every process of the cluster, and wait until they are gone. A second call does nothing.

        Ctrl-C ends the wait, but not the shutdown.
        """
        if self._ended or os.getpid() != self._pid:
            # A forked child of the user's process has a copy of this object, but does not own its processes.
            return
        see_through(self._end)

    def _end(self) -> None:
        with self._ending:
            if self._ended:
                return
            self._reader.post(StopRequested())
            self._reader.close(_STOP_S)
            end_hosts(self.launched, self._machine.roster)
            if self.spare is not None:
                self.spare.stop()
            self._ground.end()
            # Last, so that the next stop continues one that failed.
            self._ended = True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        lives_on = os.getpid() == self._pid and self.options.keep and self._reader.alive
        (self.leave if lives_on else self.stop)()

    def restart(self, *, replay: bool = False, to: int | None = None) -> Cluster:
        """Stop, and return a ready cluster with the same spec and name, of a later generation. The variables are lost.

        Args:
            replay: repeat what ended clean, to restore the variables; `replayed` of the new cluster reports what was done.
            to: the number of the last cell to run again; None for all.

        Raises:
            ReplayStopped: a cell behaved differently from before; `mhnb.current()` is the new cluster, as far as the replay came.
        """
        if self.restarter is None:
            raise InvalidRequest(
                f"cluster {self.name!r} was made without mhnb.start, and cannot be restarted; stop it, and mhnb.start"
            )
        return self.restarter(self, replay=replay, to=to)

    def __repr__(self) -> str:
        return f"<mhnb.Cluster {self.name!r}: {self.shape.describe()}, {self.state}, generation {self.generation}>"
