"""The cluster's state machine: events in, commands out, without clock, socket or thread.

It decides which rank gets which cell, when a cell has ended, the cluster state, and the consequences of an interrupt, a death or a
timeout. How commands are carried out is handled elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from mhnb.core.explain.where import WhereCard
from mhnb.core.guard.rules import IN_STEP, WAY_OUT
from mhnb.core.keep.journal import Record
from mhnb.core.keep.replay import ReplayCost
from mhnb.core.life.attaching import judge_taken, tell_busy
from mhnb.core.life.blame import blame
from mhnb.core.life.cell import Cell, record_cell
from mhnb.core.life.events import (
    Accepted,
    CellSubmitted,
    Command,
    Event,
    FailStart,
    FinishCell,
    HostExited,
    HostsQueued,
    InterruptRequested,
    KillRanks,
    RefuseCell,
    ReportReady,
    SendToHosts,
    SendToRank,
    ShowLate,
    StopRequested,
    TellUser,
    Ticked,
)
from mhnb.core.life.gate import make_refusal
from mhnb.core.life.kept import KeptCells
from mhnb.core.life.roster import Roster, ended_alike
from mhnb.core.life.verdict import judge_cell
from mhnb.core.output.results import STOPPED
from mhnb.core.wire.protocol import (
    CellEnded,
    CellRefused,
    HostUp,
    HubExited,
    InterruptTaken,
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
from mhnb.errors import CellInterrupted, LaunchError, MhnbError
from mhnb.values import ClusterState, RankError

__all__ = ["Machine"]


class Machine:
    """One generation of a cluster, from its start to its stop.

    Args:
        roster: the registry of its ranks.
        generation: number of this start; ranks refuse cells of another.
        now: seconds on the owner's clock; every event comes with a later one.
        start_timeout_s: how long the ranks may take until all are ready.
    """

    def __init__(self, roster: Roster, *, generation: int, now: float, start_timeout_s: float) -> None:
        self.roster = roster
        self.process_count = len(self.roster.entries)
        self.generation = generation
        self.state: ClusterState = "starting"
        self.reason = ""
        self.started_at, self.start_timeout_s = now, start_timeout_s
        self._given_at = now  # when the hosts were allocated: the start timeout begins only then
        self.current: Cell | None = None
        self._judging: Cell | None = None
        self.guard_available = True
        self._waiting: deque[CellSubmitted] = deque()
        self._next_seq = 1
        self._kept = KeptCells()
        self._carried_note: str | None = None
        self._lost_service, self._freed_in = "", 0
        self._lost_host = False  # the host was lost, not only one of its ranks: no rank is the cause
        self._cost = ReplayCost()
        self.left_records: Sequence[Record] = ()
        """The journal's records, if another notebook has detached from the ranks."""

    # -- entry point

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one event and return the resulting commands."""
        match event:
            case CellSubmitted():
                return self._submit(event, now)
            case CellEnded():
                return self._end_rank(event, now)
            case OutputProduced():
                return self._output(event, now)
            case RankStatus() | InterruptTaken():
                return self._hear(event, now)
            case Ticked():
                return self._tick(now)
            case HostUp():
                begin = self.roster.note_host(event)
                return [] if begin is None else [SendToHosts(begin)]
            case RankSpawned() | PhaseReached() | RankReady():
                self.roster.note(event)
                if self.state == "dead":
                    # A rank from a previous notebook that reports only now was not stopped when others were lost.
                    return [KillRanks((event.rank,))] if self.roster.deaths or self._lost_host else []
                if (shared := self.roster.find_shared_gpu(event)) is not None:
                    return self._fail_start(shared)
                return self._begin(now) if self.state == "starting" and self.roster.all_ready else []
            case RankExited():
                return self._rank_exited(event, now)
            case _:
                return self._handle_rare(event, now)

    def _handle_rare(self, event: Event, now: float) -> list[Command]:
        match event:
            case StartFailed():
                return self._fail_start(self.roster.start_error(event))
            case HubExited() | HostExited():
                return self._lose_service(event, now)
            case InterruptRequested(ticket):
                return self._withdraw(ticket) or self._interrupt(now, "interrupted", ticket)
            case HostsQueued(standing):
                self.roster.standing, self._given_at = standing, now
                return []
            case Accepted():
                return self._accept()
            case StopRequested(gone):
                return self._stop(now, gone)
            case CellRefused():
                return self._rank_refused(event, now)
            case _:
                return []

    # -- start

    def _begin(self, now: float) -> list[Command]:
        self.guard_available = all(e.facts.get("guard", {}).get("available", False) for e in self.roster.entries)
        if (error := self.roster.version_error()) is not None:
            return self._fail_start(error)
        self.state = "clean"
        self._cost.start(now - self.started_at)
        return [*(self._take_over() if self.roster.is_left else []), ReportReady(), *self._next_cell(now)]

    def _take_over(self) -> list[Command]:
        """Continue from where the previous notebook has left the ranks."""
        standing = [entry.facts["standing"] for entry in self.roster.entries]
        taken = judge_taken(standing, self.left_records, self.generation, guard_available=self.guard_available)
        self.state, self.reason, self._next_seq = taken.state, taken.reason, taken.next_seq
        self.roster.note_standing(standing)
        return taken.commands(self.generation)

    def _wait_on(self) -> list[Command]:
        """Notify the user from time to time while ranks that were taken over may still run a cell, which can take hours."""
        told = tell_busy(self.roster.find_busy(), self.start_timeout_s)
        self.start_timeout_s *= 3 if told else 1
        return told

    def _fail_start(self, error: MhnbError) -> list[Command]:
        if self.state != "starting":
            return []
        self.state, self.reason = "stopped", str(error)
        return [FailStart(error), *self._refuse_waiting()]

    # -- cells

    def _submit(self, event: CellSubmitted, now: float) -> list[Command]:
        self._waiting.append(event)
        if self.state in ("starting", "running"):
            return []
        return self._next_cell(now)

    def _next_cell(self, now: float) -> list[Command]:
        if self.state != "clean":
            return self._refuse_waiting()
        if not self._waiting:
            return []
        submitted = self._waiting.popleft()
        ranks = submitted.request.ranks or tuple(range(self.process_count))
        skipped, seq = self._count_up_to(submitted.request.again)
        self._next_seq = seq + 1
        self.current = Cell(submitted.ticket, submitted.request, seq=seq, ranks=ranks, now=now)
        if submitted.request.guard != "lockstep" and self.guard_available:
            # Without agreement the other ranks would launch, and wait for the rank that refuses.
            self.current.left_by = self.roster.find_left()
        self.state = "running"
        chosen = None if submitted.request.ranks is None else list(ranks)
        # All ranks share one object, so the link encodes it once.
        run = RunCell(self.generation, seq, submitted.request.source, self.current.guard, chosen)
        skip = SkipCell(self.generation, seq)
        sent = [SendToRank(rank, run if rank in self.current.parts else skip) for rank in range(self.process_count)]
        return [*skipped, *sent]

    def _count_up_to(self, again: int | None) -> tuple[list[Command], int]:
        """Return the next cell's number: a replayed cell keeps its own, and all ranks skip the numbers before it."""
        seq = self._next_seq if again is None else max(again, self._next_seq)
        numbers = range(self._next_seq, seq)
        return [SendToRank(r, SkipCell(self.generation, n)) for n in numbers for r in range(self.process_count)], seq

    def _refuse_waiting(self) -> list[Command]:
        refused = [
            RefuseCell(waiting.ticket, make_refusal(self.state, self.reason, self._cost.way_out()))
            for waiting in self._waiting
        ]
        self._waiting.clear()
        return list(refused)

    def _end_rank(self, ended: CellEnded, now: float) -> list[Command]:
        cell = self.current
        if cell is None or ended.seq != cell.seq or ended.rank not in cell.parts:
            return []
        cell.end_rank(ended)
        self.roster.note_end(ended)
        late = self._foreign_updates(cell, ended.rank, now)
        return [*late, *self._finish_if_done(now)]

    def _rank_refused(self, refused: CellRefused, now: float) -> list[Command]:
        cell = self.current
        if cell is None or refused.seq != cell.seq or refused.rank not in cell.parts:
            return []
        cell.lose_rank(refused.rank, "refused", RankError("OutOfOrder", refused.reason))
        return self._finish_if_done(now)

    def _finish_if_done(self, now: float) -> list[Command]:
        cell = self.current
        if cell is None or cell.is_running:
            return []
        self.current, self._judging = None, cell
        cell.wall_s = now - cell.started_at
        self._judge(cell)
        self._kept.keep(cell)
        record = record_cell(cell, self.generation, recorded=cell.has_record(guard_available=self.guard_available))
        self._cost.add(record)
        self.roster.note_outcomes(record.seq, record.outcomes)
        self._judging = None
        return [FinishCell(cell.ticket, cell.result(now, self.process_count), record), *self._next_cell(now)]

    def _judge(self, cell: Cell) -> None:
        deaths = self.roster.deaths
        lost = [death.rank for death in deaths]
        recorded = cell.has_record(guard_available=self.guard_available)
        state, notes = judge_cell(cell, lost, recorded=recorded, freed_in=self._freed_in)
        self._freed_in = self._freed_in or (cell.seq if cell.freed_notes() else 0)
        notes = tuple(note.replace(WAY_OUT, self._cost.way_out()) for note in notes)
        if self._lost_host:
            notes = (self._cost.way_out(),)
        elif deaths:
            notes = (self._tell_death(deaths[0], cell.slow_ranks),)
        if self._lost_service:
            way = () if self._lost_host or deaths else (self._cost.way_out(),)
            state, notes = "dead", (self._lost_service, *notes, *way)
        carried = (self._carried_note,) if self._carried_note else ()
        self._carried_note = None
        if state == "clean" and notes:
            self._carried_note = _carry(cell.seq, notes[0])
        elif state != "clean":
            self.reason = notes[0] if notes else state
        self.state = cell.state = "stopped" if self.state == "stopped" else state
        cell.notes = (*notes, *cell.told_by_ranks(self._cost.way_before), *carried)
        if state != "clean":
            for part in cell.parts.values():
                part.leave_state_out()

    # -- output

    def _output(self, produced: OutputProduced, now: float) -> list[Command]:
        cell = self.current
        if cell is not None and produced.seq == cell.seq and produced.rank in cell.parts:
            cell.parts[produced.rank].add(produced.events)
            return self._foreign_updates(cell, produced.rank, now)
        old = self._kept.find(produced.seq, produced.rank)
        if old is None:
            return []
        old.parts[produced.rank].folder.add(produced.events)
        return [*self._foreign_updates(old, produced.rank, now), ShowLate(old.result(now, self.process_count))]

    def _foreign_updates(self, cell: Cell, rank: int, now: float) -> list[Command]:
        return [ShowLate(old.result(now, self.process_count)) for old in self._kept.pass_updates(cell, rank)]

    # -- reports of the ranks

    def _hear(self, told: RankStatus | InterruptTaken, now: float) -> list[Command]:
        if self.current is not None:
            self.current.hear(told, now)
        return []

    def where(self, now: float) -> WhereCard | None:
        """Build the report of where the ranks are in the running cell; None if no cell runs."""
        return None if self.current is None else self.current.where(now, self.process_count)

    # -- time, interrupts

    def _tick(self, now: float) -> list[Command]:
        if self.state == "starting" and now - self._given_at > self.start_timeout_s:
            return self._wait_on() or self._fail_start(self.roster.timeout_error(self.start_timeout_s))
        cell = self.current
        if cell is None:
            return []
        return self._interrupt(now, "timeout") if cell.is_overdue(now) else cell.climb(now)

    def _withdraw(self, ticket: int | None) -> list[Command]:
        """Cancel a cell that is still queued; its submitter must not stop another caller's running cell."""
        for waiting in self._waiting:
            if waiting.ticket == ticket:
                self._waiting.remove(waiting)
                error = CellInterrupted("interrupted before the cell's turn came; nothing was sent", result=None)
                return [RefuseCell(waiting.ticket, error)]
        return []

    def _interrupt(self, now: float, how: str, ticket: int | None = None) -> list[Command]:
        cell = self.current
        if cell is None or ticket not in (None, cell.ticket):
            return []
        cell.interrupt(now, how, guard_available=self.guard_available, frees=self.roster.can_free())
        return cell.climb(now)

    def _accept(self) -> list[Command]:
        if self.state in ("split", "tainted"):
            self.state, self.reason = "clean", ""
        return []

    # -- ends

    def _rank_exited(self, exited: RankExited, now: float) -> list[Command]:
        if self.roster.entries[exited.rank].exit is not None:
            # The notebook saw this exit while the supervisor was halted, which reports it only now.
            return []
        self.roster.note(exited)
        if self.state == "stopped":
            return []
        if self.state == "starting" and not self.roster.is_left:
            return self._fail_start(self.roster.start_error(exited))
        first, is_taken = self.roster.deaths[0], self.state == "starting"
        told = [] if self.current or self.state == "dead" else [TellUser(self._tell_death(first))]
        if self.current is not None:
            self._lose_rank_of_cell(self.current, exited, first)
        elif self.state != "dead":
            # Set the reason before the state, because others check the state. For ranks that are stopped later the
            # reason is already known.
            self.reason = self.roster.explain_death(first)
            self.state = "dead"
        # A rank of a cluster that was taken over has died meanwhile: the journal's cells can be replayed all the same.
        taken = [ReportReady(), *self._refuse_waiting()] if is_taken else []
        # A rank that outlives another cannot compute with it again, and JAX would abort it later anyway.
        return [*told, *taken, KillRanks(self.roster.alive), *self._finish_if_done(now)]

    def _lose_rank_of_cell(self, cell: Cell, exited: RankExited, first: RankExited) -> None:
        part = cell.parts.get(exited.rank)
        if part is None or part.outcome != "running":
            return
        # Every rank that still ran the cell when the interrupt escalated to the kill was too slow, not only the first
        # to die.
        if (cell.is_killed or exited is first or ended_alike(exited, first)) and not self._lost_host:
            outcome, error = blame(exited, killed=cell.is_killed)
            cell.lose_rank(exited.rank, outcome, error)
        else:
            lost = "a host" if self._lost_host else f"rank {first.rank}"
            cell.lose_rank(exited.rank, "killed", RankError(STOPPED, f"stopped because {lost} was lost"))

    def _tell_death(self, first: RankExited, slow: Collection[int] = ()) -> str:
        return self.roster.tell_death(first, slow) + self._cost.way_out()

    def _lose_service(self, event: HubExited | HostExited, now: float) -> list[Command]:
        if isinstance(event, HostExited):
            if event.supervisor in self.roster.lost_supervisors:
                return []
            self.roster.lost_supervisors.add(event.supervisor)
            self._lost_host = self._lost_host or not (self._lost_service or self.roster.deaths)
        if self.state == "stopped":
            return []
        self._lost_service = self._lost_service or self.roster.explain_service(event)
        if self.state == "starting" and not self.roster.is_left:
            return self._fail_start(
                LaunchError(f"{self._lost_service}\n  every process was ended; mend the cause and start again")
            )
        # The remaining ranks on other hosts cannot compute without those that are lost.
        kill: list[Command] = [KillRanks(self.roster.alive)] if isinstance(event, HostExited) else []
        if self.current is None:
            was, self.state, self.reason = self.state, "dead", self._lost_service
            told = [TellUser(f"{self.reason}\n  {self._cost.way_out()}")] if was != "dead" else []
            taken = [ReportReady(), *self._refuse_waiting()] if was == "starting" else []
            return [*told, *taken, *kill]
        if isinstance(event, HostExited):
            self._lose_host_of_cell(self.current, event.supervisor)
            return [*kill, *self._finish_if_done(now)]
        # The ranks need no hub to end the cell; its end may be hours away.
        goes_on = f"cell {self.current.seq} goes on to its end, and the cluster takes no other one after it"
        return [TellUser(f"{self._lost_service}\n  {goes_on}")]

    def _lose_host_of_cell(self, cell: Cell, supervisor: int) -> None:
        for rank in set(cell.running_ranks) & set(self.roster.ranks_of(supervisor)):
            cell.lose_rank(rank, "died", RankError("RankDied", self._lost_service))

    @property
    def judged_alone(self) -> dict[int, Callable[[], object]]:
        """Functions, by rank, that judge one rank's data of a cell whose judgement failed, to find the rank that caused it."""
        cell = self._judging
        if cell is None:
            return {}

        def judge(rank: int) -> object:
            alone = Cell(cell.ticket, cell.request, seq=cell.seq, ranks=(rank,), now=cell.started_at)
            alone.parts[rank] = cell.parts[rank]
            state, notes = judge_cell(alone, (), recorded=True, freed_in=0)
            record_cell(alone, self.generation, recorded=True)
            return state, notes, alone.told_by_ranks(lambda _seq: "")

        return {rank: partial(judge, rank) for rank in cell.parts}

    def fail(self, reason: str) -> list[Command]:
        """Give up the cluster: a message could not be processed, so no cell can be judged."""
        self.current = self._judging = None
        if self.state == "starting":
            return self._fail_start(LaunchError(f"{reason}; every process was ended, start again"))
        if self.state != "stopped":
            self.state, self.reason = "dead", reason
        told = TellUser(f"the cluster is {self.state}: {reason}\n  {self._cost.way_out()}")
        return [told, KillRanks(self.roster.alive), *self._refuse_waiting()]

    def _stop(self, now: float, gone: str) -> list[Command]:
        self.reason = gone or ("" if self.state != "starting" else "it was stopped while it started")
        self.state, self.roster.is_let_go = "stopped", bool(gone)
        cell = self.current
        if cell is not None:
            for rank in cell.running_ranks:
                cell.lose_rank(rank, "killed", RankError(STOPPED, "the cluster was stopped during the cell"))
        return [*self._finish_if_done(now), *self._refuse_waiting()]


def _carry(seq: int, note: str) -> str:
    """Shorten a cell's note for the next cell, and name the cell in it."""
    if note == IN_STEP:
        return f"cell {seq} did not finish on every rank: variables that it sets may differ"
    first, _, rest = note.replace("this cell", "it").partition("\n")
    return f"cell {seq}: {first}{' …' if rest else ''}"
