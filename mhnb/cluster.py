"""The cluster as its user holds it: start, cells, values, state, stop.

It owns the launched hosts, the link's reader thread and the machine, and it alone reads the clock.
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

_STOP_S = 6.0  # longer than the reader sees supervisors off (drive/watching.py)


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
    """Ranks that run every cell in the same order. Made by `mhnb.start`."""

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
        self._is_taken_over, self.left = berth is not None, False  # left: a cluster that goes on without this object
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
            # Also by Ctrl-C: nobody holds this object yet, so nobody else could end it.
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
            LaunchError: the start failed; no process is left. Where ranks of another notebook could not be taken over, they are left.
            KeyboardInterrupt: the user gave up; likewise.
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
        """Let go of a kept cluster without ending it, for another notebook or this one again. InvalidRequest where it is not kept."""
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

    # -- what it is

    @property
    def state(self) -> ClusterState:
        """The state, as judged when the last cell ended; README has what each means."""
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
        """Every device, by rank and ordinal."""
        return tuple(device for rank in self.ranks for device in rank.devices)

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Every rank, in order."""
        return describe_ranks(self._machine)

    @property
    def guard(self) -> str:
        """Which guard is in force, or why none is."""
        return describe_guard(self._machine, self.options.guard)

    @property
    def refused_messages(self) -> int:
        """Messages that came without this cluster's signature, and were dropped."""
        return self._ground.link.refused

    @property
    def jax_version(self) -> str:
        """The ranks' JAX."""
        return str(self._machine.roster.entries[0].facts.get("versions", {}).get("jax", "?"))

    @property
    def log_dir(self) -> Path:
        """Where each rank's full output is."""
        return self._ground.run_dir / "log"

    @property
    def supervisor_pid(self) -> int:
        """The process that holds hub and ranks."""
        return self.launched[0].pid

    @property
    def hub_pid(self) -> int | None:
        """ipyparallel's controller."""
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
        """Hand in a cell and return at once; `follow` waits for it.

        Raises:
            InvalidRequest: a rank that is not there, an unknown guard, a time limit that is none.
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
        """Wait for a cell's end; Ctrl-C interrupts the ranks, and the truth about what that led to is the result.

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
        """Run a cell on every rank, or some, and return what each said, also when ranks failed.

        Ctrl-C interrupts the cell on the ranks; what that led to is the result.

        Args:
            source: the cell, as typed.
            ranks: `0,2-3` or numbers; None for all.
            guard: lockstep, parity or off; None for the cluster's own.
            timeout_s: seconds after which the cell is interrupted; None for no limit.
            on_snapshot: called with the result so far while the cell runs, at most ten times a second.

        Raises:
            ClusterError: the cluster takes no cell; nothing was sent.
            InvalidRequest: a bad argument; nothing was sent.
            CellInterrupted: Ctrl-C came before the cell's turn; nothing was sent.
        """
        event_of = self._request(source, ranks=ranks, guard=guard, timeout_s=timeout_s, on_snapshot=on_snapshot)
        return self._run(event_of, on_snapshot)

    def run_again(self, record: CellRecord) -> CellResult:
        """Run a journaled cell again as it was, under the number it had."""
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
        """Interrupt the cell that runs: KeyboardInterrupt on its ranks; a second time, also what they do about that."""
        self._reader.post(InterruptRequested())

    def where(self) -> WhereCard | None:
        """Say where every rank is in the cell that runs; None when none runs. From any thread, at once."""
        return self._reader.where()

    def accept(self) -> None:
        """Go on with a split or tainted cluster as it is."""
        was = self.state
        self._reader.post(Accepted())
        # The answer to a question asked afterwards comes afterwards: the change is in force when this returns.
        self.ask(0, "names", {}).result()
        if was in ("split", "tainted") and self.state != was:
            self.journal.write(AcceptRecord(self.generation, was))

    def on_late(self, show: Callable[[CellResult], None]) -> None:
        """Have output that comes after a cell's end shown; called in the reader thread."""
        self._listener.late = show

    def on_notice(self, tell: Callable[[str], None]) -> None:
        """Have what happens between cells told; called in the reader thread."""
        self._listener.notice = tell

    # -- values

    def ask(self, rank: int, verb: str, arguments: dict[str, Any], payload: Sequence[bytes] = ()) -> Future[Answer]:
        """Ask one rank something between cells."""
        return self._reader.ask(rank, verb, arguments, payload)

    def pull(self, *names: str, ranks: str | Sequence[int] | None = None, each: bool = False) -> Any:
        """Bring values from the ranks: NumPy arrays, pytrees kept. A global array is put together from its shards, without a collective.

        Args:
            *names: variables on the ranks.
            ranks: whose; None for all.
            each: for each name a list with every rank's own value.

        Returns:
            The value of one name; a tuple for several.

        Raises:
            ValueDiffers: a value is not the same on all ranks, or its name is missing on one (NameMissing).
        """
        return exchange.pull(self, names, ranks=choose_ranks(ranks, self.process_count), each=each)

    def push(self, *, ranks: str | Sequence[int] | None = None, **values: Any) -> None:
        """Bind the same host values on every rank, never a global array; on none when one rank cannot take them."""
        chosen = choose_ranks(ranks, self.process_count)
        self.journal.write_push(exchange.push(self, values, ranks=chosen), chosen)

    def vars(self) -> tuple[VarRow, ...]:
        """Say what the ranks hold, and where they differ. Fetches nothing."""
        return exchange.list_variables(self)

    def check(self, *names: str) -> tuple[CheckRow, ...]:
        """Compare by hash what the ranks hold under names: copies of a box of an array, and values of their own.

        Nothing is fetched but hashes. An array that should be replicated and was built from different values shows here.

        Raises:
            InvalidRequest: no name, or one that is no variable's.
            NameMissing: a name is missing on some rank.
        """
        return exchange.check_values(self, names)

    # -- end

    def stop(self) -> None:
        """End every process of the cluster and wait until they are gone. A second call does nothing.

        Ctrl-C ends the waiting; what is ending ends all the same.
        """
        if self._ended or os.getpid() != self._pid:
            # A forked child of the user's has a copy of this object, and no business with its processes.
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
            # Last: a stop that failed is gone on with by the next one.
            self._ended = True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        lives_on = os.getpid() == self._pid and self.options.keep and self._reader.alive
        (self.leave if lives_on else self.stop)()

    def restart(self, *, replay: bool = False, to: int | None = None) -> Cluster:
        """Stop, and return a cluster of the same shape and name, of a later generation, ready. The variables are gone.

        Args:
            replay: run again what ended clean, so that they are back; `replayed` of the new cluster says what was done.
            to: the number of the last cell to run again; None for all.

        Raises:
            ReplayStopped: a cell did other than before; `mhnb.current()` is the new cluster, as far as it came.
        """
        if self.restarter is None:
            raise InvalidRequest(
                f"cluster {self.name!r} was made without mhnb.start, and cannot be restarted; stop it, and mhnb.start"
            )
        return self.restarter(self, replay=replay, to=to)

    def __repr__(self) -> str:
        return f"<mhnb.Cluster {self.name!r}: {self.shape.describe()}, {self.state}, generation {self.generation}>"
