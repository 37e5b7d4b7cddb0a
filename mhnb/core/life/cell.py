"""One cell in flight: the ranks' reports so far, the ranks that have ended it, and its result."""

from __future__ import annotations

from collections.abc import Callable, Set

from mhnb.core.explain.where import RankSeen, WhereCard, make_card
from mhnb.core.guard.caught import note_caught
from mhnb.core.guard.provenance import describe_divergence, find_divergence
from mhnb.core.guard.rules import STILL_LEFT
from mhnb.core.keep.journal import CellRecord, trace_launches
from mhnb.core.life.events import CellRequest, Command
from mhnb.core.life.ladder import INTERRUPT_KILL_S, Ladder
from mhnb.core.life.part import RankPart, look_key
from mhnb.core.output.outputs import OutputFolder
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import say_ranks
from mhnb.core.wire.protocol import CellEnded, InterruptTaken, RankStatus
from mhnb.values import ClusterState, Outcome, RankError

__all__ = ["Cell", "HANDLES_AFTER_S", "record_cell"]

HANDLES_AFTER_S = 2.0
"""Code that runs on for this long after it received its interrupt handles it. Code that has ended waits 1.5 s for its launches."""


class Cell:
    """A cell from its send until long after its end, because output may still arrive."""

    def __init__(self, ticket: int, request: CellRequest, *, seq: int, ranks: tuple[int, ...], now: float) -> None:
        self.ticket, self.request, self.seq, self.ranks = ticket, request, seq, ranks
        self.started_at = now
        self.wall_s: float | None = None
        self.ladder: Ladder | None = None
        """The escalation that stops the cell; None if no stop was requested."""
        self.how = ""
        self.state: ClusterState = "running"
        self.notes: tuple[str, ...] = ()
        self.left_by: tuple[int, ...] = ()
        """Ranks with an abandoned collective of an earlier cell: because of them the cell runs in lockstep, whatever guard was
        requested.
        """
        self.parts = {rank: RankPart(OutputFolder(execution_count=seq)) for rank in ranks}

    def _is_looked_at(self) -> bool:
        return self.wall_s is None and any(part.looks for part in self.parts.values())

    @property
    def running_ranks(self) -> tuple[int, ...]:
        """Ranks that have not ended the cell."""
        return tuple(rank for rank, part in self.parts.items() if part.outcome == "running")

    @property
    def is_running(self) -> bool:
        """Whether some rank has not ended it; called at the end of each rank, so it builds no list of all."""
        return any(part.outcome == "running" for part in self.parts.values())

    def hear(self, told: RankStatus | InterruptTaken, now: float) -> None:
        """Record a rank's report in the middle of a cell; a report on another cell is ignored."""
        part = self.parts.get(told.rank)
        if part is None or told.seq != self.seq:
            return
        if isinstance(told, RankStatus):
            part.note_look(told, now)
        else:
            part.note_taken(now, taken=told.taken)

    def is_overdue(self, now: float) -> bool:
        """Check whether its time limit has passed."""
        return self.request.timeout_s is not None and now - self.started_at > self.request.timeout_s

    def interrupt(self, now: float, how: str, *, guard_available: bool, frees: bool) -> None:
        """Stop the cell; a second request, or the time limit, gives its interrupt handlers no more time."""
        if self.ladder is None:
            agrees = guard_available and self.guard == "lockstep"
            self.ladder, self.how = Ladder.begin(self.seq, now, agrees=agrees, frees=frees), how
        elif how != "timeout":
            self.ladder.hurry(now)
        if how == "timeout":
            self.ladder.insist(now)

    def climb(self, now: float) -> list[Command]:
        """Return the commands that are now due to stop the cell."""
        if self.ladder is None:
            return []
        running, handling, since = self.running_ranks, self._handling_ranks(), self.ladder.asked_at
        inside = {rank for rank in running if self.parts[rank].is_in_collective(since)}
        if not self.ladder.insists:
            # There is no evidence that it is in a collective, and its code has received the interrupt: a signal reaches
            # it.
            inside -= {rank for rank in handling if rank in inside and self.parts[rank].looks[-1].number is None}
        # A rank that waits for another rank's computation of the same launch does not hang.
        at_work = {rank for rank in running if self.parts[rank].is_at_work(since)}
        inside = {rank for rank in inside if at_work.isdisjoint(self.parts[rank].looks[-1].participants or ())}
        spared = {
            rank for rank in handling if rank in inside and not self.ladder.insists and self._is_joined(rank, inside)
        }
        stuck = tuple(rank for rank in running if rank in inside - spared)
        if self.ladder.is_due_to_kill(now) and all(self._is_finishing(rank, now) for rank in running):
            return []
        return self.ladder.climb(now, running, stuck, handling)

    def _is_finishing(self, rank: int, now: float) -> bool:
        """Check whether a rank's code ended a moment ago: it waits for its launches, and then ends the cell by itself."""
        since = self.parts[rank].finishes_since
        return since is not None and now - since <= INTERRUPT_KILL_S

    def _is_joined(self, rank: int, inside: Set[int]) -> bool:
        """Check whether all participants of the collective that a rank is in have reached it, so that it is under way."""
        look = self.parts[rank].looks[-1]
        others = [self.parts[other].looks[-1] for other in look.participants or () if other in inside]
        same = [other for other in others if (other.what, look_key(other)) == (look.what, look_key(look))]
        return len(same) == len(look.participants or ())

    def _handling_ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.running_ranks if self.parts[rank].handles_since is not None)

    def _cleaning_ranks(self, now: float) -> tuple[int, ...]:
        """Return the ranks that have handled the interrupt for longer than code needs to end if it does not handle it."""
        if self.ladder is None or self.ladder.insists:
            return ()
        since = {rank: self.parts[rank].handles_since for rank in self.running_ranks}
        return tuple(rank for rank, at in since.items() if at is not None and now - at >= HANDLES_AFTER_S)

    @property
    def is_killed(self) -> bool:
        """Whether its interrupt has escalated to the kill."""
        return self.ladder is not None and self.ladder.killed

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """Ranks that were killed because they did not end; their error may be an earlier one, such as the interrupt."""
        return tuple(rank for rank, part in self.parts.items() if self.is_killed and part.outcome == "killed")

    def is_uneventful(self) -> bool:
        """Check whether all ranks ended it without error, and nothing was launched, made or abandoned that could be compared."""
        return self.ladder is None and not any(
            part.outcome != "ok" or part.launches or part.made or part.abandoned or part.error
            for part in self.parts.values()
        )

    def freed_notes(self) -> tuple[str, ...]:
        """Return the note on what disconnecting ranks from a collective has cost."""
        return () if self.ladder is None else self.ladder.notes()

    def broke_off(self) -> bool:
        """Check whether a collective failed on some rank the way it does when connections are closed."""
        return any(part.error is not None and "Gloo" in part.error.evalue for part in self.parts.values())

    def met_left(self) -> bool:
        """Check whether a launch was refused because a collective of an earlier cell still waits."""
        return any(part.error is not None and STILL_LEFT in part.error.evalue for part in self.parts.values())

    def left(self) -> dict[int, str]:
        """Name the first launch that each rank abandoned, including those that failed because connections were closed.

        A launch that still runs while another rank failed in a callback may wait for that rank forever.
        """
        freed = () if self.ladder is None else self.ladder.freed
        failed = {rank for rank, part in self.parts.items() if part.failed}
        return {
            rank: part.name_left(freed=rank in freed)
            for rank, part in self.parts.items()
            if part.abandoned or rank in freed or (part.running and failed - {rank})
        }

    def told_by_ranks(self, way_before: Callable[[int], str]) -> tuple[str, ...]:
        """Return the ranks' own notes on the cell's end, each once, with the resulting state.

        Args:
            way_before: names the command that restores the state before a cell.
        """
        said = dict.fromkeys(note for part in self.parts.values() for note in part.notes)
        told = (
            *self._stop_notes(),
            *note_caught({rank: part.caught for rank, part in self.parts.items() if part.caught}),
            *said,
            *self._parting_notes(way_before),
        )
        return (*self._lockstep_note(), *(f"{note} · {self.state}" for note in told))

    def _stop_notes(self) -> list[str]:
        stopped: dict[int, list[int]] = {}
        for rank, part in self.parts.items():
            if part.stopped_before is not None:
                stopped.setdefault(part.stopped_before, []).append(rank)
        parts = self.parts.values()
        apart = any(part.outcome == "interrupted" for part in parts) and not any(part.running for part in parts)
        if not stopped and self.state == "clean" and apart:
            return [f"Interrupted while {self._say_waited()}, so variables that this cell sets may differ"]
        return [
            f"Interrupted before launch {number} on {'every rank' if len(ranks) == len(self.parts) else say_ranks(ranks)}"
            for number, ranks in stopped.items()
        ]

    def _say_waited(self) -> str:
        """Describe which ranks waited before a launch that not all participants had reached."""
        places: dict[tuple[int, int | None], list[int]] = {}
        for rank, part in self.parts.items():
            if part.came_to:
                number, line = part.came_to
                places.setdefault((number, line), []).append(rank)
        waited = [
            f"{say_ranks(ranks)} waited before launch {number}{f' (line {line})' if line else ''}"
            for (number, line), ranks in places.items()
        ]
        return f"{' and '.join(waited)} for others" if waited else "no rank was in a launch"

    def _parting_notes(self, way_before: Callable[[int], str]) -> list[str]:
        """Describe the arrays that caused a refusal, and which replay helps.

        A full replay would make them differ again.
        """
        taken = {rank: part.taken for rank, part in self.parts.items() if part.taken}
        parted = find_divergence(taken.values())
        way = way_before(parted) if parted else ""
        until = f"What a rank changed alone differs until {way}, which stops before cell {parted}"
        return [*describe_divergence(taken), *([until] if way else [])]

    def _lockstep_note(self) -> tuple[str, ...]:
        if not self.left_by:
            return ()
        who = say_ranks(self.left_by)
        left = f"{who} left a collective in an earlier cell, which may still wait"
        return (f"guard lockstep instead of {self.request.guard}: {left}, and no rank is to launch alone",)

    @property
    def guard(self) -> str:
        """The guard in force."""
        return "lockstep" if self.left_by else self.request.guard

    def end_rank(self, ended: CellEnded) -> None:
        """Record a rank's final reply."""
        self.parts[ended.rank].end(ended)

    def lose_rank(self, rank: int, outcome: Outcome, error: RankError) -> None:
        """Record that a rank's process ended before the cell did."""
        part = self.parts[rank]
        part.outcome, part.error = outcome, part.error or error

    def has_record(self, *, guard_available: bool) -> bool:
        """Check whether the ranks' launches are known, so that the cell can be judged by them."""
        return guard_available and self.guard != "off"

    def where(self, now: float, process_count: int) -> WhereCard:
        """Build the report of where every rank of the cluster is."""
        seen = [self._seen(rank, now) for rank in range(process_count)]
        return make_card(self.seq, self.request.source, seen, age_s=now - self.started_at)

    def _seen(self, rank: int, now: float) -> RankSeen:
        part = self.parts.get(rank)
        if part is None:
            return RankSeen(rank, "skipped")
        latest, before = (*reversed(part.looks), None, None)[:2]
        return RankSeen(rank, part.outcome, latest, before, now - part.looked_at, part.launches, spoke=part.spoke)

    def result(self, now: float, process_count: int) -> CellResult:
        """Build the result for the user and the view; also while the cell runs."""
        ranks = tuple(
            RankResult(
                rank,
                p.outcome,
                p.folder.outputs(),
                error=p.error,
                wall_s=p.wall_s,
                omitted_nbytes=p.folder.omitted_nbytes,
                noise=p.folder.noise,
            )
            for rank, p in self.parts.items()
        )
        wall_s = now - self.started_at if self.wall_s is None else self.wall_s
        return CellResult(
            self.seq,
            self.request.source,
            ranks,
            wall_s,
            done=self.wall_s is not None,
            state=self.state,
            notes=self.notes,
            process_count=process_count,
            how=self.how,
            handling=self._cleaning_ranks(now),
            where=self.where(now, process_count) if self._is_looked_at() else None,
        )


def record_cell(cell: Cell, generation: int, *, recorded: bool) -> CellRecord:
    """Build the record of a cell that has ended and was judged.

    Args:
        recorded: whether its launches were recorded.

    >>> from mhnb.core.life.events import CellRequest
    >>> record_cell(Cell(1, CellRequest("x = 1"), seq=4, ranks=(0,), now=0.0), 2, recorded=False).seq
    4
    """
    parts, request = cell.parts, cell.request
    return CellRecord(
        generation,
        cell.seq,
        request.source,
        request.ranks,
        request.guard,
        request.timeout_s,
        {rank: part.outcome for rank, part in parts.items()},
        {rank: part.error.ename for rank, part in parts.items() if part.error is not None},
        trace_launches({rank: part.launches for rank, part in parts.items()}) if recorded else None,
        cell.how,
        cell.state,
        round(cell.wall_s or 0.0, 6),
        replayed=request.again is not None,
    )
