"""The cluster's state machine, without clock, socket or thread.

It turns events into commands. It decides which rank gets which cell, when a cell has ended, the cluster state, and the
consequences of an interrupt, a death or a timeout. How commands are carried out is handled elsewhere.

It also derives the state of ranks that another notebook has detached from (their last cell, and whether they are in step), and formats
the error of a cell that the cluster refuses because of its state, with the ways out of each state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from mhnb.core.cell_name import CellNames, CellPlace
from mhnb.core.cell_request import find_stop_refusal, make_debug_mode
from mhnb.core.flight import FlightEvent
from mhnb.core.guard.launches import ACCEPT_OPTION, IN_SYNC_NOTE, MAY_DIFFER, REPLAY_COMMAND
from mhnb.core.hang_report import HangReport
from mhnb.core.journal import AcceptRecord, CellRecord, Record, ReplayRecord
from mhnb.core.launch.environment import NotebookEnvironment
from mhnb.core.messages import (
    CallbackFailed,
    CellEnded,
    CellRefused,
    HostUp,
    HubExited,
    InterruptDelivered,
    OutputProduced,
    PhaseReached,
    RankExited,
    RankReady,
    RankSpawned,
    RankStatus,
    RunCell,
    SkipCell,
    StartFailed,
)
from mhnb.core.missing_names import describe_missing_name
from mhnb.core.output.results import RANK_STOPPED, CarriedNote, CellResult, RankResult
from mhnb.core.ranks import describe_ranks, describe_ranks_short, format_ranks, ranks_by_key
from mhnb.core.replay import find_last_number, format_recovery, format_recovery_before
from mhnb.core.state.cell import Cell, FinishedCells, RankReport, record_cell
from mhnb.core.state.cell_parts import ClusterParts
from mhnb.core.state.events import (
    Accepted,
    CellRequest,
    CellSubmitted,
    Command,
    Event,
    FailStart,
    FinishCell,
    HostExited,
    HostsQueued,
    InterruptRequested,
    KillRanks,
    NotifyUser,
    PreflightEnded,
    RefuseCell,
    ReportReady,
    RequestsInterrupted,
    SendToHosts,
    SendToRank,
    ShowLateOutput,
    StopRequested,
    TimePassed,
    WriteRecord,
)
from mhnb.core.state.interrupt import SILENCE_NOTE_AFTER_S, PendingRequests
from mhnb.core.state.rank_registry import RankRegistry, ended_the_same
from mhnb.core.state.verdict import STILL_WAITING_NOTE, classify_death, judge_cell
from mhnb.core.waiting import format_cell_wait, format_silence
from mhnb.errors import BreakpointRefused, CellInterrupted, LaunchError, MhnbError, NotClean, NotStarted
from mhnb.types import ClusterState, RankError


@dataclass(frozen=True, slots=True)
class TakeoverState:
    """State of a cluster that was taken over."""

    next_seq: int
    """The number of the next cell."""
    ranks_behind: Mapping[int, int]
    """Ranks that have not yet counted the latest cells, and the number that each of them expects next."""
    state: ClusterState
    reason: str
    unseen_cell: CellRecord | None = None
    """The last cell if it ended after its notebook: the journal has no record of it yet."""

    def commands(self, generation: int) -> list[Command]:
        """Return commands that report the unseen cell and skip missed numbers."""
        missed = {rank: SkipCell(generation, seq, self.next_seq - seq) for rank, seq in self.ranks_behind.items()}
        unseen: list[Command] = (
            []
            if self.unseen_cell is None
            else [WriteRecord(self.unseen_cell), NotifyUser(_format_unseen_cell(self.unseen_cell))]
        )
        return [*unseen, *(SendToRank(rank, skip) for rank, skip in missed.items())]


def _format_unseen_cell(unseen: CellRecord) -> str:
    by_outcome = ranks_by_key({rank: unseen.errors.get(rank) or outcome for rank, outcome in unseen.outcomes.items()})
    how = ", ".join(f"{describe_ranks(ranks)} {outcome}" for outcome, ranks in by_outcome.items())
    return f"{unseen.name} finished while no notebook was attached: {how}. Its output is only in the ranks' logs"


def assess_takeover(
    reports: Sequence[Mapping[str, Any]],
    records: Sequence[Record],
    generation: int,
    *,
    guard_available: bool = True,
    kernel: str = "",
) -> TakeoverState:
    """Derive a takeover's state from the ranks' reports and the journal.

    Args:
        reports: by rank: `seq`, the number that it expects next; `last`, the fields of its last `CellEnded`; and `cell`, the source,
            guard and ranks of that cell if the rank ran it, and where the notebook showed it.
        records: the journal's, without the numbers of other kernels' cells.
        generation: of the ranks.
        guard_available: whether the ranks record what they launch.
        kernel: identifies this notebook's kernel.

    >>> assess_takeover([{"seq": 3, "last": None, "cell": None}] * 2, [CellRecord(1, 2, "x = 1")], 1).state
    'clean'
    """
    expected = [int(rank["seq"]) for rank in reports]
    next_seq = max(expected)
    behind = {rank: seq for rank, seq in enumerate(expected) if seq < next_seq}
    known = _known_state(records, generation, next_seq - 1)
    last_name = _name_cells(records, generation).format_name(next_seq - 1)
    if known is None:
        state, reason, unseen = _judge_unseen(
            reports, generation, next_seq - 1, guard_available=guard_available, kernel=kernel
        )
        if unseen is not None:
            unseen = replace(unseen, replayed=_is_unfinished_replay(unseen, records))
    else:
        state, unseen = known, None
        reason = "" if state == "clean" else f"{last_name} left the cluster {state} before this notebook attached"
    if behind:
        state = "tainted"
        reason = f"{last_name} had not reached ranks {format_ranks(behind)} when the notebook closed"
    return TakeoverState(next_seq, behind, state, reason, unseen if unseen is None else replace(unseen, state=state))


def _name_cells(records: Sequence[Record], generation: int) -> CellNames:
    names = CellNames()
    for record in records:
        if isinstance(record, CellRecord) and record.generation == generation:
            names.add(record.seq, record.execution_count)
    return names


def note_busy_ranks(ranks: Sequence[int], waited_s: float) -> list[Command]:
    """Notify the user why a takeover waits; no command without busy ranks.

    >>> note_busy_ranks([], 20.0)
    []
    """
    have = "has" if len(ranks) == 1 else "have"
    text = (
        f"{describe_ranks(ranks)} {have} not answered for {waited_s:g} s. They may still be running a cell, "
        "and answer only between cells\n"
        "  waiting for it to end; Ctrl-C stops waiting and changes nothing, so you can try again later"
    )
    return [NotifyUser(text)] if ranks else []


def _known_state(records: Sequence[Record], generation: int, seq: int) -> ClusterState | None:
    """Return the last cell's state by the journal; None if unrecorded."""
    states: list[tuple[int, ClusterState]] = []
    for record in records:
        if isinstance(record, CellRecord) and record.generation == generation:
            states.append((record.seq, record.state))
        elif isinstance(record, AcceptRecord) and record.generation == generation and states:
            states[-1] = (states[-1][0], "clean")
    if states and states[-1][0] == seq:
        return states[-1][1]
    return "clean" if seq == 0 else None


def _is_unfinished_replay(unseen: CellRecord, records: Sequence[Record]) -> bool:
    """Check whether a replay was cut short in this cell.

    Otherwise the cells not yet replayed would count as discarded.
    """
    own = [each for each in records if each.generation == unseen.generation]
    if any(isinstance(each, ReplayRecord) or not getattr(each, "replayed", True) for each in own):
        return False
    return any(
        isinstance(each, CellRecord) and (each.seq, each.source) == (unseen.seq, unseen.source) for each in records
    )


def _judge_unseen(
    reports: Sequence[Mapping[str, Any]], generation: int, seq: int, *, guard_available: bool, kernel: str
) -> tuple[ClusterState, str, CellRecord | None]:
    """Judge the last cell as if the ranks' replies had just arrived."""
    ran = {
        rank: report
        for rank, report in enumerate(reports)
        if report["cell"] is not None and report["last"]["seq"] == seq
    }
    if not ran:
        # Every rank counted this number and none ran it: a replay leaves such numbers.
        return "clean", "", None
    source, guard, ranks, shown, first_line, of_kernel = next(iter(ran.values()))["cell"]
    place = CellPlace(shown if of_kernel == kernel else None, first_line)
    request = CellRequest(source, None if ranks is None else tuple(ranks), guard, place=place)
    cell = Cell(0, request, seq=seq, ranks=tuple(ran), now=0.0)
    for said in ran.values():
        cell.end_rank(msgspec.convert(said["last"], CellEnded))
    recorded = cell.has_record(guard_available=guard_available)
    cell.state, notes = judge_cell(cell, (), recorded=recorded, disconnected_in=0)
    cell.wall_s = max(part.wall_s for part in cell.parts.values())
    return cell.state, notes[0] if notes else "", record_cell(cell, generation, recorded=recorded, kernel=kernel)


# -- the error of a refused cell


_STATE_TEXTS = {"split": "split (ranks differ)", "tainted": "tainted (results may be wrong)"}
_RECOVERY_TEXTS = {
    "split": "Fix: {replay}\n  Or: %mhjax accept (if you know that the ranks are in sync)",
    "tainted": "Fix: {replay}\n  Or: %mhjax accept (at your own risk: later results may be wrong)",
    "dead": "Fix: {replay}",
}


def refusal_error(state: ClusterState, reason: str, replay_command: str) -> MhnbError:
    """Build the error of a cell refused because of the cluster's state.

    Args:
        replay_command: the command that starts fresh processes, and its cost.

    >>> print(refusal_error("tainted", "rank 2 differs", "%mhjax restart --replay"))
    this cell was not run, because the cluster is tainted (results may be wrong): rank 2 differs
      Fix: %mhjax restart --replay
      Or: %mhjax accept (at your own risk: later results may be wrong)
    """
    if state == "stopped":
        return NotStarted(f"the cluster is stopped{': ' + reason if reason else ''}\n  Fix: %mhjax start", state=state)
    recovery = _RECOVERY_TEXTS.get(state, "").format(replay=replay_command)
    if state == "dead":
        # The reason ends with the same way out.
        reason = reason.removesuffix(replay_command).rstrip()
    text = f"this cell was not run, because the cluster is {_STATE_TEXTS.get(state, state)}: {reason}"
    return NotClean(f"{text}\n  {recovery}", state=state)


# -- the state machine


_EMPTY_ENVIRONMENT = NotebookEnvironment()


class ClusterStateMachine:
    """One generation of a cluster, from its start to its stop.

    Args:
        registry: the registry of its ranks.
        generation: number of this start; ranks refuse cells of another.
        now: seconds on the owner's clock; every event comes with a later one.
        start_timeout_s: how long the ranks may take until all are ready.
        kernel: identifies the notebook's kernel, which numbers its cells.
        environment: of the notebook's process.
    """

    def __init__(
        self,
        registry: RankRegistry,
        *,
        generation: int,
        now: float,
        start_timeout_s: float,
        kernel: str = "",
        environment: NotebookEnvironment = _EMPTY_ENVIRONMENT,
    ) -> None:
        self.registry = registry
        self.process_count = len(self.registry.entries)
        self.generation, self.kernel = generation, kernel
        self.cell_names = CellNames()
        self.state: ClusterState = "starting"
        self.reason = ""
        self.started_at, self.start_timeout_s = now, start_timeout_s
        self._hosts_allocated_at = now  # when the hosts were allocated: the start timeout begins only then
        self.current: Cell | None = None
        self._judging: Cell | None = None
        self.guard_available = True
        self._queued: deque[CellSubmitted] = deque()
        self._requests = PendingRequests()
        self._next_seq = self._first_new_seq = 1
        self._finished_cells = FinishedCells()
        self._environment = environment
        self.added_parts = ClusterParts(registry, generation, environment)
        """What features keep of all cells."""
        self._next_cell_note: CarriedNote | None = None
        self._state_before: tuple[ClusterState, str] = ("clean", "")
        """State and reason before the running cell."""
        self._service_loss, self._disconnected_in = "", 0
        self._has_lost_host = False  # the host was lost, not only one of its ranks: no rank is the cause
        self._start_s = 0.0
        self.history: Sequence[Record] = ()
        """The journal's records of this generation and of those before it, without the numbers of other kernels' cells."""
        self._was_accepted = False
        """Whether the user has accepted a split or tainted cluster in this generation."""

    # -- entry point

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one event and return the resulting commands."""
        match event:
            case CellSubmitted():
                return self._on_cell_submitted(event, now)
            case CellEnded():
                return self._on_cell_ended(event, now)
            case OutputProduced():
                return self._on_output(event, now)
            case RankStatus() | InterruptDelivered() | CallbackFailed():
                return self._on_rank_report(event, now)
            case TimePassed():
                return self._on_time_passed(now)
            case HostUp():
                preflight = self.registry.record_host(event)
                return [] if preflight is None else [preflight]
            case RankSpawned() | PhaseReached() | RankReady():
                self.registry.update(event)
                if self.state == "dead":
                    # A rank from a previous notebook that reports only now was not stopped when others were lost.
                    return [KillRanks((event.rank,))] if self.registry.deaths or self._has_lost_host else []
                if (shared := self.registry.find_shared_gpu(event)) is not None:
                    return self._fail_start(shared)
                return self._on_all_ready(now) if self.state == "starting" and self.registry.all_ready else []
            case RankExited():
                return self._on_rank_exited(event, now)
            case _:
                return self._handle_rare(event, now)

    def _handle_rare(self, event: Event, now: float) -> list[Command]:
        match event:
            case StartFailed():
                return self._fail_start(self.registry.start_error(event))
            case HubExited() | HostExited():
                return self._on_service_lost(event, now)
            case PreflightEnded(error):
                if self.state != "starting":
                    return []
                # The limit is for the ranks; the checks have limits of their own.
                self._hosts_allocated_at = now
                return [SendToHosts(self.registry.start_ranks())] if error is None else self._fail_start(error)
            case InterruptRequested(ticket):
                return self._on_interrupt(ticket, now)
            case RequestsInterrupted():
                return self._interrupt_requests(now)
            case HostsQueued(position):
                self.registry.queue_position, self._hosts_allocated_at = position, now
                return []
            case Accepted():
                return self._accept()
            case StopRequested(gone):
                return self._stop(now, gone)
            case CellRefused():
                return self._on_cell_refused(event, now)
            case _:
                return [] if self.current is None else self.current.handle(event, now)

    # -- start

    def _on_all_ready(self, now: float) -> list[Command]:
        self.guard_available = all(e.facts.get("guard", {}).get("available", False) for e in self.registry.entries)
        if (error := self.registry.version_error()) is not None:
            return self._fail_start(error)
        self.state = "clean"
        self._start_s = now - self.started_at
        return [*(self._take_over() if self.registry.is_takeover else []), ReportReady(), *self._next_cell(now)]

    def _take_over(self) -> list[Command]:
        """Continue from where the previous notebook has left the ranks."""
        reports = [entry.facts["runner"] for entry in self.registry.entries]
        takeover = assess_takeover(
            reports,
            self.history,
            self.generation,
            guard_available=self.guard_available,
            kernel=self.kernel,
        )
        self.cell_names = _name_cells(self.history, self.generation)
        if takeover.unseen_cell is not None:
            self.cell_names.add(takeover.unseen_cell.seq, takeover.unseen_cell.execution_count)
        self.state, self.reason, self._next_seq = takeover.state, takeover.reason, takeover.next_seq
        self._was_accepted = any(
            isinstance(record, AcceptRecord) and record.generation == self.generation for record in self.history
        )
        self.number_after_history()
        self.registry.record_takeover_reports(reports)
        return takeover.commands(self.generation)

    def number_after_history(self) -> None:
        """Number new cells after all cells that a replay may run."""
        self._first_new_seq = 1 + find_last_number(self.history, self.generation)

    def _note_busy_takeover(self) -> list[Command]:
        """Notify the user repeatedly while taken-over ranks may still run a cell."""
        commands = note_busy_ranks(self.registry.find_busy(), self.start_timeout_s)
        self.start_timeout_s *= 3 if commands else 1
        return commands

    def _fail_start(self, error: MhnbError) -> list[Command]:
        if self.state != "starting":
            return []
        self.state, self.reason = "stopped", str(error)
        return [FailStart(error), *self._refuse_queued()]

    # -- cells

    def _on_cell_submitted(self, event: CellSubmitted, now: float) -> list[Command]:
        self._queued.append(event)
        self._requests.await_all(now)
        if self.state in ("starting", "running"):
            return []
        return self._next_cell(now)

    def _next_cell(self, now: float) -> list[Command]:
        if not (self.state == "clean" or (self._queued and self._can_inspect(self._queued[0].request))):
            return self._refuse_queued()
        if not self._queued or self._requests.has_awaited:
            return []
        submitted = self._queued.popleft()
        refusal = find_stop_refusal(
            submitted.request.guard, guard_available=self.guard_available, was_accepted=self._was_accepted
        )
        if refusal and submitted.request.debug is not None and submitted.request.debug.stops_for_sure:
            error = BreakpointRefused(f"this cell was not run, because its ranks cannot stop: {refusal}")
            return [RefuseCell(submitted.ticket, error), *self._next_cell(now)]
        return self._send_cell(submitted, refusal, now)

    def _can_inspect(self, request: CellRequest) -> bool:
        """Check whether a split or tainted cluster runs this post-mortem cell."""
        return request.is_post_mortem and self.state in ("split", "tainted")

    def _send_cell(self, submitted: CellSubmitted, stop_refusal: str, now: float) -> list[Command]:
        """Send a cell to its ranks; the others skip its number."""
        ranks = submitted.request.ranks or tuple(range(self.process_count))
        skipped, seq = self._assign_number(submitted.request.replayed_seq)
        self._next_seq = seq + 1
        place = submitted.request.place
        self.cell_names.add(seq, place.execution_count)
        self.current = Cell(
            submitted.ticket, submitted.request, seq=seq, ranks=ranks, now=now, name_cell=self.cell_names.format_name
        )
        self.current.added_parts = self.added_parts.build(self.current)
        if submitted.request.guard != "lockstep" and self.guard_available:
            # Without agreement the other ranks would launch, and wait for the rank that refuses.
            self.current.abandoned_by = self.registry.ranks_with_abandoned()
        is_replay = submitted.request.replayed_seq is not None
        self._state_before = (self.state, self.reason)
        self.state = "running"
        chosen = None if submitted.request.ranks is None else list(ranks)
        # All ranks share one object, so the transport encodes it once.
        run = RunCell(
            self.generation,
            seq,
            submitted.request.source,
            self.current.guard,
            chosen,
            place.execution_count,
            place.first_line,
            self.kernel,
            make_debug_mode(submitted.request.debug, stop_refusal, is_replay=is_replay),
            submitted.request.is_traced,
        )
        skip = SkipCell(self.generation, seq)
        sent = [SendToRank(rank, run if rank in self.current.parts else skip) for rank in range(self.process_count)]
        return [*skipped, *sent]

    def _assign_number(self, replayed_seq: int | None) -> tuple[list[Command], int]:
        """Return skip commands and the cell's number, which a replay keeps."""
        seq = max(self._next_seq, self._first_new_seq if replayed_seq is None else replayed_seq)
        if seq == self._next_seq:
            return [], seq
        skip = SkipCell(self.generation, self._next_seq, seq - self._next_seq)
        return [SendToRank(rank, skip) for rank in range(self.process_count)], seq

    def describe_wait(self, ticket: int, now: float) -> str:
        """Describe what a queued cell waits for; empty once it runs."""
        tickets = [queued.ticket for queued in self._queued]
        cell = self.current
        if ticket not in tickets:
            return ""
        if cell is None:
            why = self._explain_silence(self._requests.awaited_ranks)
            return "; ".join(filter(None, (self._requests.describe_wait(now), why)))
        is_replay = cell.request.replayed_seq is not None
        # Without outputs, which may be large and are not needed.
        ranks = tuple(RankResult(rank, part.outcome) for rank, part in cell.parts.items())
        count = cell.request.place.execution_count
        running = CellResult(cell.seq, "", ranks, now - cell.started_at, done=False, execution_count=count)
        stopped = [rank for rank, part in cell.parts.items() if part.is_stopped]
        return format_cell_wait(running, tickets.index(ticket), is_replay=is_replay, stopped=stopped)

    def _recovery(self) -> str:
        """Return the command that restores the state, with its cost."""
        return format_recovery(self.history, self.generation, self._start_s)

    def _recovery_before(self, seq: int) -> str:
        """Return the command that restores the state before a cell."""
        return format_recovery_before(self.history, self.generation, seq)

    def _refuse_queued(self) -> list[Command]:
        refused = [
            RefuseCell(waiting.ticket, refusal_error(self.state, self.reason, self._recovery()))
            for waiting in self._queued
        ]
        self._queued.clear()
        return list(refused)

    def _on_cell_ended(self, ended: CellEnded, now: float) -> list[Command]:
        cell = self.current
        if cell is None or ended.seq != cell.seq or ended.rank not in cell.parts:
            return []
        cell.end_rank(ended)
        added = cell.handle(ended, now)
        self.registry.record_cell_end(ended)
        late = self._apply_display_updates(cell, ended.rank, now)
        return [*late, *added, *self._finish_if_done(now)]

    def _on_cell_refused(self, refused: CellRefused, now: float) -> list[Command]:
        cell = self.current
        if cell is None or refused.seq != cell.seq or refused.rank not in cell.parts:
            return []
        cell.mark_rank_lost(refused.rank, "refused", RankError("OutOfOrder", refused.reason))
        return self._finish_if_done(now)

    def _finish_if_done(self, now: float) -> list[Command]:
        cell = self.current
        if cell is None or cell.is_running:
            return []
        self.current, self._judging = None, cell
        cell.wall_s = now - cell.started_at
        self._judge(cell)
        self._finished_cells.add(cell)
        recorded = cell.has_record(guard_available=self.guard_available)
        record = record_cell(cell, self.generation, recorded=recorded, kernel=self.kernel)
        cell.explain_missing_names(
            cache(lambda name: describe_missing_name(name, [*self.history, record], self.generation, cell.seq)),
            self._environment.describe_missing_variable,
        )
        self.registry.record_outcomes(record.seq, record.outcomes)
        self._judging = None
        return [FinishCell(cell.ticket, cell.result(now, self.process_count), record), *self._next_cell(now)]

    def _judge(self, cell: Cell) -> None:
        cell.attribute_failed_callback()
        deaths = self.registry.deaths
        lost_ranks = [death.rank for death in deaths]
        recorded = cell.has_record(guard_available=self.guard_available)
        state, notes = judge_cell(cell, lost_ranks, recorded=recorded, disconnected_in=self._disconnected_in)
        self._disconnected_in = self._disconnected_in or (cell.seq if cell.disconnect_notes() else 0)
        notes = tuple(note.replace(REPLAY_COMMAND, self._recovery()) for note in notes)
        if self._disconnected_in or cell.has_hit_abandoned_collective():
            # After `accept`, collectives would still fail or be refused.
            notes = tuple(note.removesuffix(ACCEPT_OPTION) for note in notes)
        if self._has_lost_host:
            notes = (self._recovery(),)
        elif deaths:
            notes = (self._format_death(deaths[0], cell.slow_ranks),)
        if self._service_loss:
            recovery = () if self._has_lost_host or deaths else (self._recovery(),)
            state, notes = "dead", (self._service_loss, *notes, *recovery)
        if cell.request.is_post_mortem and state == "clean":
            # It changed nothing: what the earlier cell left, and what is to be said of it, stays.
            state, self.reason = self._state_before
            notes = ()
        else:
            cell.carried, self._next_cell_note = self._next_cell_note, None
            if state == "clean" and notes:
                self._next_cell_note = _build_carried_note(cell, notes[0])
            elif state != "clean":
                self.reason = notes[0] if notes else state
        self.state = cell.state = "stopped" if self.state == "stopped" else state
        rank_notes = cell.rank_notes(self._recovery_before)
        if any(MAY_DIFFER in note for note in rank_notes):
            # The note on the interrupt says the same, with the reason.
            notes = tuple(note for note in notes if note != IN_SYNC_NOTE)
        added_notes = (note for part in cell.added_parts for note in part.end(cell))
        # The error of the rank that refused names the collective.
        notes = tuple(note for note in notes if note != STILL_WAITING_NOTE)
        cell.notes = (*notes, *rank_notes, *added_notes)
        if state != "clean":
            for part in cell.parts.values():
                part.remove_cluster_state()

    # -- output

    def _on_output(self, produced: OutputProduced, now: float) -> list[Command]:
        cell = self.current
        if cell is not None and produced.seq == cell.seq and produced.rank in cell.parts:
            cell.add_output(produced.rank, produced.events)
            return [*cell.handle(produced, now), *self._apply_display_updates(cell, produced.rank, now)]
        old = self._finished_cells.find(produced.seq, produced.rank)
        if old is None:
            return []
        old.add_late_output(produced.rank, produced.events)
        return [
            *old.handle(produced, now),
            *self._apply_display_updates(old, produced.rank, now),
            ShowLateOutput(old.result(now, self.process_count)),
        ]

    def _apply_display_updates(self, cell: Cell, rank: int, now: float) -> list[Command]:
        return [
            ShowLateOutput(old.result(now, self.process_count))
            for old in self._finished_cells.apply_display_updates(cell, rank)
        ]

    # -- reports of the ranks

    def _on_rank_report(self, report: RankReport, now: float) -> list[Command]:
        if self.current is None:
            return []
        self.current.record_report(report, now)
        return self.current.handle(report, now)

    def record_last_events(self, events: Mapping[int, FlightEvent]) -> None:
        """Record the ranks' latest flight events, also for the hang report."""
        self.registry.record_last_events(events)
        if self.current is not None:
            self.current.last_events = {
                entry.rank: entry.last_event for entry in self.registry.entries if entry.last_event is not None
            }

    def build_hang_report(self, now: float) -> HangReport | None:
        """Build the running cell's hang report; None if no cell runs."""
        return None if self.current is None else self.current.build_hang_report(now, self.process_count)

    # -- time, interrupts

    def _on_time_passed(self, now: float) -> list[Command]:
        if self.state == "starting" and now - self._hosts_allocated_at > self.start_timeout_s:
            return self._on_start_timeout()
        cell, notes = self.current, self._note_silent_ranks(now)
        if cell is None:
            return [*notes, *self._requests.next_commands(now, self._next_seq - 1)]
        if cell.is_overdue(now):
            return [*notes, *self._interrupt(now, "timeout")]
        cell.free_from_failed_callback(now, can_disconnect=self.registry.can_disconnect())
        return [*notes, *cell.handle(TimePassed(), now), *cell.escalate(now)]

    def _note_silent_ranks(self, now: float) -> list[Command]:
        """Notify the user which ranks do not answer a request, and why."""
        ranks = self._requests.take_silent(now)
        if not ranks:
            return []
        halted: dict[str, list[str]] = {}
        for entry in self.registry.entries:
            if entry.rank in ranks and entry.is_halted:
                place = "" if self._environment.is_local else f"on {entry.facts.get('hostname', entry.host)}: "
                halted.setdefault(place, []).append(str(entry.pid))
        ways = ["; ".join(f"{place}kill -CONT {' '.join(pids)}" for place, pids in halted.items())] if halted else []
        if self.current is None:
            ways.append("press Ctrl-C to end the wait; variables do not change")
        elif any(part.is_stopped for part in self.current.parts.values()):
            ways.append("c at the debugger's prompt continues the cell, and q ends it")
        else:
            ways.append("wait for the cell (%mhjax where shows what it is doing)")
        they = "it" if len(ranks) == 1 else "they"
        unknown = f"{they} may still be working, or be in a long call that blocks other code"
        reason = self._explain_silence(ranks) or unknown
        return [NotifyUser(format_silence(ranks, SILENCE_NOTE_AFTER_S, reason, ways))]

    def _explain_silence(self, ranks: Collection[int]) -> str:
        """Describe why ranks do not answer; empty if that is not known."""
        halted = [entry for entry in self.registry.entries if entry.rank in ranks and entry.is_halted]
        reasons = [entry.describe_halted() for entry in halted]
        if self.current is not None:
            others = [
                each
                for each in self.current.running_ranks
                if each in ranks and not self.registry.entries[each].is_halted
            ]
            stopped = [rank for rank in others if self.current.parts[rank].is_stopped]
            running = [rank for rank in others if rank not in stopped]
            name = self.current.name
            reasons += (
                [f"{describe_ranks(stopped)} {_be(stopped)} at the debugger's prompt in {name}"] if stopped else []
            )
            reasons += [f"{describe_ranks(running)} {_be(running)} running {name}"] if running else []
        return "; ".join(reasons)

    def _on_start_timeout(self) -> list[Command]:
        if self.registry.missing_hosts:
            # The hosts that have reported are checked all the same.
            preflight = self.registry.record_missing_hosts(self.start_timeout_s)
            return (
                self._fail_start(self.registry.timeout_error(self.start_timeout_s))
                if preflight is None
                else [preflight]
            )
        if self.registry.is_waiting_for_hosts:
            return []
        return self._note_busy_takeover() or self._fail_start(self.registry.timeout_error(self.start_timeout_s))

    @property
    def has_requests(self) -> bool:
        """Whether a rank has not answered a request."""
        return not self._requests.is_empty

    def has_slow_requests(self, now: float) -> bool:
        """Check whether a rank takes long enough to answer to be halted."""
        return self._requests.has_slow(now)

    def begin_request(self, number: int, rank: int, handler: str, now: float) -> None:
        """Record a request that was sent to a rank."""
        self._requests.add(number, rank, handler, now)

    def end_request(self, number: int, now: float) -> list[Command]:
        """Record the end of a request; return commands for a waiting cell."""
        self._requests.remove(number)
        return [] if self.state in ("starting", "running") else self._next_cell(now)

    def _on_interrupt(self, ticket: int | None, now: float) -> list[Command]:
        cancelled = self._cancel_queued(ticket)
        if self.current is None and (cancelled or ticket is None):
            # Without a cell the ranks are busy with requests, for which the queued cell waits.
            return [*cancelled, *self._interrupt_requests(now)]
        return cancelled or self._interrupt(now, "interrupted", ticket)

    def _interrupt_requests(self, now: float) -> list[Command]:
        self._requests.interrupt_all(now)
        # A running cell comes first, and has an escalation of its own.
        return [] if self.current is not None else self._requests.next_commands(now, self._next_seq - 1)

    def _cancel_queued(self, ticket: int | None) -> list[Command]:
        """Cancel the ticket's queued cell, so no other caller's cell is stopped."""
        for waiting in self._queued:
            if waiting.ticket == ticket:
                self._queued.remove(waiting)
                error = CellInterrupted("interrupted while the cell was queued; nothing was sent", result=None)
                return [RefuseCell(waiting.ticket, error)]
        return []

    def _interrupt(self, now: float, reason: str, ticket: int | None = None) -> list[Command]:
        cell = self.current
        if cell is None or ticket not in (None, cell.ticket):
            return []
        cell.record_hang(now, self.process_count)
        cell.interrupt(now, reason, guard_available=self.guard_available, can_disconnect=self.registry.can_disconnect())
        return cell.escalate(now)

    def _accept(self) -> list[Command]:
        if self.state not in ("split", "tainted"):
            return []
        warnings = [NotifyUser(self._format_accept_warning())] if self.state == "tainted" else []
        self.state, self.reason, self._was_accepted = "clean", "", True
        return list(warnings)

    def _format_accept_warning(self) -> str:
        waiting = self.registry.ranks_with_abandoned()
        if not waiting:
            return "results may be wrong until the next restart"
        limit = (
            f"launches of {describe_ranks(waiting)} with other ranks are refused while a collective may still be waiting there"
            if self.guard_available
            else f"nothing keeps launches from a collective that may still be waiting on {describe_ranks(waiting)}"
        )
        return f"results may be wrong until the next restart, and {limit}"

    # -- ends

    def _on_rank_exited(self, exited: RankExited, now: float) -> list[Command]:
        if self.registry.entries[exited.rank].exit is not None:
            # The notebook saw this exit while the supervisor was halted, which reports it only now.
            return []
        self.registry.update(exited)
        if self.state == "stopped":
            return []
        if self.state == "starting" and not self.registry.is_takeover:
            return self._fail_start(self.registry.start_error(exited))
        first, was_starting = self.registry.deaths[0], self.state == "starting"
        notifications = [] if self.current or self.state == "dead" else [NotifyUser(self._format_death(first))]
        if self.current is not None:
            self._mark_rank_lost(self.current, exited, first)
        elif self.state != "dead":
            # Set the reason before the state, because others check the state. For ranks that are stopped later the
            # reason is already known.
            self.reason = self.registry.describe_death(first, self.cell_names.format_name)
            self.state = "dead"
        # A rank of a cluster that was taken over has died meanwhile: the journal's cells can be replayed all the same.
        ready_commands = [ReportReady(), *self._refuse_queued()] if was_starting else []
        # A rank that outlives another cannot compute with it again, and JAX would abort it later anyway.
        return [*notifications, *ready_commands, KillRanks(self.registry.alive), *self._finish_if_done(now)]

    def _mark_rank_lost(self, cell: Cell, exited: RankExited, first: RankExited) -> None:
        part = cell.parts.get(exited.rank)
        if part is None or part.outcome != "running":
            return
        # Every rank that still ran the cell when the interrupt escalated to the kill was too slow, not only the first
        # to die.
        if (cell.is_killed or exited is first or ended_the_same(exited, first)) and not self._has_lost_host:
            outcome, error = classify_death(exited, is_killed=cell.is_killed)
            cell.mark_rank_lost(exited.rank, outcome, error)
        else:
            lost = "a host" if self._has_lost_host else f"rank {first.rank}"
            cell.mark_rank_lost(exited.rank, "killed", RankError(RANK_STOPPED, f"stopped because {lost} was lost"))

    def _format_death(self, first: RankExited, slow: Collection[int] = ()) -> str:
        return self.registry.format_death(first, self.cell_names.format_name, slow) + self._recovery()

    def _on_service_lost(self, event: HubExited | HostExited, now: float) -> list[Command]:
        if isinstance(event, HostExited):
            if event.supervisor in self.registry.lost_supervisors:
                return []
            self.registry.lost_supervisors.add(event.supervisor)
            self._has_lost_host = self._has_lost_host or not (self._service_loss or self.registry.deaths)
        if self.state == "stopped":
            return []
        self._service_loss = self._service_loss or self.registry.describe_service_loss(event)
        if self.state == "starting" and not self.registry.is_takeover:
            if isinstance(event, HostExited) and event.error is not None and self.registry.missing_hosts:
                # The others are still checked, so that one start names every host that has a fault.
                preflight = self.registry.record_host_failure(event.supervisor, event.error)
                return [] if preflight is None else [preflight]
            return self._fail_start(
                LaunchError(f"{self._service_loss}\n  all processes were stopped; fix the cause and start again")
            )
        # The remaining ranks on other hosts cannot compute without those that are lost.
        kill_commands: list[Command] = [KillRanks(self.registry.alive)] if isinstance(event, HostExited) else []
        if self.current is None:
            previous_state, self.state, self.reason = self.state, "dead", self._service_loss
            notifications = [NotifyUser(f"{self.reason}\n  {self._recovery()}")] if previous_state != "dead" else []
            ready_commands = [ReportReady(), *self._refuse_queued()] if previous_state == "starting" else []
            return [*notifications, *ready_commands, *kill_commands]
        if isinstance(event, HostExited):
            self._mark_host_lost(self.current, event.supervisor)
            return [*kill_commands, *self._finish_if_done(now)]
        # The ranks need no hub to end the cell; its end may be hours away.
        goes_on = f"{self.current.name} runs to its end; after it the cluster accepts no more cells"
        return [NotifyUser(f"{self._service_loss}\n  {goes_on}")]

    def _mark_host_lost(self, cell: Cell, supervisor: int) -> None:
        for rank in set(cell.running_ranks) & set(self.registry.ranks_of(supervisor)):
            cell.mark_rank_lost(rank, "died", RankError("RankDied", self._service_loss))

    @property
    def single_rank_judges(self) -> dict[int, Callable[[], object]]:
        """Functions that judge one rank alone, to find which broke the judgement."""
        cell = self._judging
        if cell is None:
            return {}

        def judge(rank: int) -> object:
            alone = Cell(cell.ticket, cell.request, seq=cell.seq, ranks=(rank,), now=cell.started_at)
            alone.parts[rank] = cell.parts[rank]
            state, notes = judge_cell(alone, (), recorded=True, disconnected_in=0)
            record_cell(alone, self.generation, recorded=True)
            return state, notes, alone.rank_notes(lambda _seq: "")

        return {rank: partial(judge, rank) for rank in cell.parts}

    def fail(self, reason: str) -> list[Command]:
        """Give up the cluster, because a message could not be processed."""
        self.current = self._judging = None
        if self.state == "starting":
            return self._fail_start(LaunchError(f"{reason}; all processes were stopped, start again"))
        if self.state != "stopped":
            self.state, self.reason = "dead", reason
        notification = NotifyUser(f"the cluster is {self.state}: {reason}\n  {self._recovery()}")
        return [notification, KillRanks(self.registry.alive), *self._refuse_queued()]

    def _stop(self, now: float, lost_reason: str) -> list[Command]:
        self.reason = lost_reason or ("" if self.state != "starting" else "it was stopped during its start")
        self.state, self.registry.is_detached = "stopped", bool(lost_reason)
        cell = self.current
        if cell is not None:
            for rank in cell.running_ranks:
                cell.mark_rank_lost(rank, "killed", RankError(RANK_STOPPED, "the cluster was stopped during the cell"))
        return [*self._finish_if_done(now), *self._refuse_queued()]


def _be(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


_DISCONNECTED = "closed the connections between ranks: collectives fail"


def _build_carried_note(cell: Cell, note: str) -> CarriedNote:
    """Build the note on a clean cell that the next cell shows."""
    details = note.replace("this cell", "it")
    if note != IN_SYNC_NOTE:
        words = _DISCONNECTED if cell.disconnect_notes() else f"left a note: {details.splitlines()[0]}"
    else:
        ranks = tuple(RankResult(rank, part.outcome, error=part.error) for rank, part in cell.parts.items())
        finished = [rank.rank for rank in ranks if rank.outcome == "ok"]
        ended = f"finished on {describe_ranks_short(finished)} only" if finished else "ended differently on the ranks"
        words = f"{ended}: variables may differ"
        details = f"{CellResult(cell.seq, '', ranks, 0.0).summary()}; {details}"
    return CarriedNote(cell.seq, words, details, execution_count=cell.request.place.execution_count)
