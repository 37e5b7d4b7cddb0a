"""State of running and finished cells: output, samples, reports, results, records.

Finished cells are retained because late output, or an update of a display that they made, may still arrive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import structs

from mhnb.core.cell_name import format_cell_name
from mhnb.core.flight import FlightEvent
from mhnb.core.guard.agreement import remove_cluster_state
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow
from mhnb.core.guard.launches import MAY_DIFFER, STILL_ABANDONED, note_swallowed_mismatches
from mhnb.core.guard.provenance import describe_divergence, find_divergence
from mhnb.core.hang_report import HangReport, RankSnapshot, build_hang_report
from mhnb.core.hints import find_hint, find_printed_hint, shorten_values
from mhnb.core.journal import CellRecord, trace_launches
from mhnb.core.messages import CallbackFailed, CellEnded, InterruptDelivered, RankStatus
from mhnb.core.missing_names import find_missing_name, find_missing_variable
from mhnb.core.output.events import ErrorRaised, OutputEvent, Stream
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.output.results import LEFT_WAITING, CarriedNote, CellResult, RankResult
from mhnb.core.ranks import describe_ranks, ranks_by_key
from mhnb.core.state.events import CellRequest, Command, Event
from mhnb.core.state.interrupt import INTERRUPT_KILL_S, InterruptEscalation
from mhnb.core.stored_names import stores_names, stores_values
from mhnb.types import ClusterState, Outcome, RankError

_SEARCHED_CHARS = 8192
"""Number of characters of the printed output that are searched."""


def launch_key(sample: RankStatus) -> object:
    """Return a key that identifies a sample's launch among a rank's launches.

    The key is the launch's number, or else all that is known of it.

    >>> from mhnb.core.messages import LaunchCount
    >>> launch_key(RankStatus(0, 1, "blocked", "step", 3, "", 1.0, [LaunchCount((0, 1), 5)], [0, 1]))
    ([0, 1], 'step', 3, [LaunchCount(participants=(0, 1), count=5)])
    """
    if sample.launch_number is not None:
        return sample.participants, sample.launch_number
    return sample.participants, sample.what, sample.line, sample.counts


_HANGING_SAMPLES = 2


def _waits_for_launch(sample: RankStatus) -> bool:
    return bool(sample.participants) or _waits_at_end(sample)


def _waits_at_end(sample: RankStatus) -> bool:
    """Check whether the rank waits for unrecorded launches after its code ended."""
    return sample.activity == "blocked" and sample.line is None


@dataclass(slots=True)
class RankCell:
    """One rank's part of a cell while it runs and afterwards."""

    accumulator: OutputAccumulator
    outcome: Outcome = "running"
    error: RankError | None = None
    missing_variable: str | None = None
    """The environment variable that the error's code looked up and did not find."""
    report: LaunchReport = field(default_factory=LaunchReport)
    launches: list[LaunchRow] = field(default_factory=list)
    """The launches of its report, in order."""
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    samples: tuple[RankStatus, ...] = ()
    """Its latest two samples of itself, the newer last."""
    sampled_at: float = 0.0
    _output_flags: tuple[bool, bool] = (False, False)
    """Whether output arrived before the latest sample, and after it."""
    _printed: str = ""
    """The end of its printed output: a process that it started may print there what went wrong."""
    handling_since: float | None = None
    """Since when its code has received the interrupt, and still runs; None if it has not."""
    finishing_since: float | None = None
    """Since when that code has ended, and the rank waits for its launches; None while it runs."""
    callback_error: RankError | None = None
    """What a function has raised that one of its programs called. The program may hang because of it."""
    failed_program: str = ""
    """The name of that program, if other ranks have a part in it: they may hang, too."""
    callback_failed_at: float = 0.0
    is_stopped: bool = False
    """Whether its code has stopped for the user, and comes to no launch until the user lets it run on."""
    stop_line: int | None = None
    """The line before which it last stopped."""
    resumed_at: float | None = None
    """When it last ran on; None if it never has."""

    def record_sample(self, status: RankStatus, now: float) -> None:
        """Record a sample of where the rank is."""
        self.samples, self.sampled_at = (*self.samples[-1:], status), now
        self._output_flags = (self._output_flags[1], False)

    def record_interrupt_delivery(self, now: float, *, is_delivered: bool) -> None:
        """Record whether the interrupt has reached the rank's code."""
        self.handling_since = (now if self.handling_since is None else self.handling_since) if is_delivered else None
        if not is_delivered and self.finishing_since is None:
            self.finishing_since = now

    @property
    def has_new_output(self) -> bool:
        """Whether output arrived since the sample before the latest."""
        return any(self._output_flags)

    def is_in_collective(self, since: float) -> bool:
        """Check whether all samples show the same collective, the latest after `since`."""
        if not self.samples or self.sampled_at < since:
            return False
        latest = self.samples[-1]
        # It is in another launch than before: it makes progress, and ends by itself.
        makes_progress = any(launch_key(look) != launch_key(latest) for look in self.samples)
        in_launch = bool(latest.participants) and latest.is_launched and latest.activity != "callback"
        return in_launch and not makes_progress

    def waits_after_failed_callback(self) -> bool:
        """Check whether a callback failed and the rank's code waits or ended."""
        if self.callback_error is None or self.outcome != "running":
            return self.callback_error is not None
        return self.sampled_at >= self.callback_failed_at and _waits_for_launch(self.samples[-1])

    def may_hold_up(self, other: RankCell) -> bool:
        """Check whether another rank may wait for the failed callback's program."""
        return bool(self.failed_program) and not other.is_in_launch_besides(self.failed_program)

    def is_in_launch_besides(self, program: str) -> bool:
        """Check whether the latest sample shows a recorded launch of another program."""
        latest = self.samples[-1] if self.samples else None
        return latest is not None and latest.launch_number is not None and latest.program != program

    def hangs(self, since: float) -> bool:
        """Check whether two samples, the latest after `since`, show the same wait."""
        if len(self.samples) < _HANGING_SAMPLES or any(look.activity == "computing" for look in self.samples):
            return False
        waits_at_end = self.sampled_at >= since and all(map(_waits_at_end, self.samples))
        return self.is_in_collective(since) or waits_at_end

    def has_failed_collective(self) -> bool:
        """Check whether a collective failed as it does after a disconnect."""
        return self.error is not None and "Gloo" in self.error.evalue

    def describe_samples(self) -> tuple[RankStatus, ...]:
        """Return samples for the hang report; a failed callback replaces the wait."""
        error = self.callback_error
        if error is None or not self.waits_after_failed_callback() or self.is_in_launch_besides(self.failed_program):
            return self.samples
        what = f"its program, which raised {error.ename}: {error.evalue.partition(chr(10))[0]}"
        return tuple(structs.replace(sample, activity="callback", what=what) for sample in self.samples)

    def is_computing(self, since: float) -> bool:
        """Check whether the latest sample shows launches computing after the interrupt."""
        latest = self.samples[-1] if self.samples and self.sampled_at >= since else None
        return latest is not None and not latest.is_launched and latest.activity == "computing"

    def name_abandoned(self, name_cell: Callable[[int], str], *, was_disconnected: bool) -> str:
        """Name the first launch that the rank abandoned, with its line.

        Args:
            name_cell: names a cell by its number.
            was_disconnected: the rank was in a collective, the same one in two samples: an exception from the dispatch leaves no
                launch behind.
        """
        samples = [look for look in self.samples if was_disconnected and look.participants and look.is_launched]
        seen = [("a collective" if look.launch_number is None else look.what, look.line) for look in samples]
        name, line = ("a collective", None) if not seen else seen[-1]
        if (launch := self.report.abandoned_launch) is not None:
            # The rank's own record has the name with its types.
            name, line = launch.name.partition(" ")[0], launch.line
            if launch.seq is not None:
                return f"{name} of {name_cell(launch.seq)}"
        return name if line is None else f"{name} (line {line})"

    def add_output(self, events: list[OutputEvent]) -> None:
        """Record output."""
        for event in events:
            if isinstance(event, ErrorRaised):
                self.error = _explain_error(event)
                self.missing_variable = find_missing_variable(event.ename, event.evalue, event.site)
            elif isinstance(event, Stream):
                self._printed = (self._printed + event.text)[-_SEARCHED_CHARS:]
        self._output_flags = (self._output_flags[0], self._output_flags[1] or bool(events))
        self.accumulator.add(events)

    def remove_cluster_state(self) -> None:
        """Remove the claim that the cluster is clean from the error."""
        if self.error is not None:
            evalue, traceback = remove_cluster_state(self.error.evalue), map(remove_cluster_state, self.error.traceback)
            self.error = replace(self.error, evalue=evalue, traceback=tuple(traceback))

    def record_end(self, ended: CellEnded) -> None:
        """Record the rank's final reply."""
        self.add_output(ended.events)
        self.accumulator.finish()
        if self.error is not None and self.error.hint is None:
            self.error = replace(self.error, hint=find_printed_hint(self.error.ename, self._printed))
        self.outcome, self.wall_s, self.notes = ended.outcome, ended.wall_s, ended.notes
        self.is_stopped = False
        self.report, self.launches = ended.launches, ended.launches.list_launches()


def _explain_error(event: ErrorRaised) -> RankError:
    evalue, traceback = event.evalue, event.traceback
    hint = find_hint(event.ename, evalue, site=event.site, code=event.inner_code or event.code)
    if event.site.module.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        # Text by the user stays as it is.
        evalue, traceback = shorten_values(evalue), [shorten_values(text) for text in traceback]
    return RankError(
        event.ename,
        evalue,
        tuple(traceback),
        hint=hint,
        line=event.line,
        code=event.code,
        at_s=event.at_s,
        inner_place=event.inner_place,
        inner_code=event.inner_code,
    )


RankReport: TypeAlias = RankStatus | InterruptDelivered | CallbackFailed
"""What a rank reports in the middle of a cell."""


# -- what features add to a cell


class CellPart:
    """Part of a cell that a feature adds; every override is optional.

    A part also gets events after the cell's end. A part gets its cell as an argument and keeps no reference, so that a
    cell with much output is freed at once.
    """

    def handle(self, _cell: Cell, _event: Event, _now: float, /) -> Sequence[Command]:
        """Handle an event that the cell has already recorded; return commands."""
        return ()

    def end(self, _cell: Cell, /) -> Sequence[str]:
        """Return notes for the user at the cell's end; output may follow."""
        return ()

    def result(self) -> object | None:
        """Return a value for the cell's result, stored by class, or None."""
        return None


# -- one cell in flight


HANDLING_AFTER_S = 2.0
"""Code that runs on for this long after it received its interrupt handles it. Code that has ended waits 1.5 s for its launches."""


def _reports(failed: RankError, called: RankError | None) -> bool:
    """Check whether a program's failure names the error of its callback."""
    if called is None:
        return False
    # Python writes the module of a class before its name.
    last_line = f"{called.ename}: {called.evalue.partition(chr(10))[0]}"
    return any(line.endswith(last_line) for line in failed.evalue.splitlines())


def _format_number(seq: int) -> str:
    return format_cell_name(seq, None)


class Cell:
    """A cell, from its send until long after its end."""

    def __init__(
        self,
        ticket: int,
        request: CellRequest,
        *,
        seq: int,
        ranks: tuple[int, ...],
        now: float,
        name_cell: Callable[[int], str] = _format_number,
    ) -> None:
        self.ticket, self.request, self.seq, self.ranks = ticket, request, seq, ranks
        self._name_cell = name_cell
        """Names an earlier cell by its number."""
        self.started_at = now
        self.wall_s: float | None = None
        self.escalation: InterruptEscalation | None = None
        """The escalation that stops the cell; None if no stop was requested."""
        self.end_reason = ""
        self._hang: HangReport | None = None
        """Where the ranks were when the first stop was requested; None if they were not stuck."""
        self._callbacks_at_stop: dict[tuple[str, str], list[int]] = {}
        """The ranks that were in a callback when the stop was requested, by program and by where the callback was."""
        self.state: ClusterState = "running"
        self.notes: tuple[str, ...] = ()
        self.carried: CarriedNote | None = None
        self.last_events: Mapping[int, FlightEvent] = {}
        """What the flight recorders of ranks had last, when they were read."""
        self.abandoned_by: tuple[int, ...] = ()
        """Ranks with an abandoned collective of an earlier cell: because of them the cell runs in lockstep, whatever guard was
        requested.
        """
        self._stopped_since: float | None = None
        self._stopped_s = 0.0
        shown = seq if request.place.execution_count is None else request.place.execution_count
        self.parts = {rank: RankCell(OutputAccumulator(execution_count=shown)) for rank in ranks}
        self.added_parts: Sequence[CellPart] = ()
        """What features add to it."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return format_cell_name(self.seq, self.request.place.execution_count)

    def name_earlier(self, seq: int) -> str:
        """Return the name of an earlier cell in messages."""
        return self._name_cell(seq)

    def _is_sampled(self) -> bool:
        # A rank that stops in its first second has no sample yet.
        return self.wall_s is None and any(part.samples or part.is_stopped for part in self.parts.values())

    @property
    def running_ranks(self) -> tuple[int, ...]:
        """Ranks that have not ended the cell."""
        return tuple(rank for rank, part in self.parts.items() if part.outcome == "running")

    @property
    def is_running(self) -> bool:
        """Whether some rank still runs it, without building a list of ranks."""
        return any(part.outcome == "running" for part in self.parts.values())

    def record_report(self, report: RankReport, now: float) -> None:
        """Record a rank's report; reports on other cells are ignored."""
        part = self.parts.get(report.rank)
        if part is None or report.seq != self.seq:
            return
        match report:
            case RankStatus():
                part.record_sample(report, now)
            case InterruptDelivered():
                part.record_interrupt_delivery(now, is_delivered=report.is_delivered)
            case CallbackFailed():
                part.callback_error, part.callback_failed_at = _explain_error(report.error), now
                part.failed_program = report.shared_program

    def is_overdue(self, now: float) -> bool:
        """Check whether the time limit has passed, not counting stopped time."""
        if self.request.timeout_s is None:
            return False
        stopped_s = self._stopped_s + (0.0 if self._stopped_since is None else now - self._stopped_since)
        return now - self.started_at - stopped_s > self.request.timeout_s

    def count_stopped_time(self, now: float) -> None:
        """Start or stop counting the time in which ranks are stopped."""
        is_stopped = any(part.is_stopped for part in self.parts.values())
        if is_stopped and self._stopped_since is None:
            self._stopped_since = now
        elif not is_stopped and self._stopped_since is not None:
            self._stopped_s += now - self._stopped_since
            self._stopped_since = None

    def interrupt(self, now: float, reason: str, *, guard_available: bool, can_disconnect: bool) -> None:
        """Stop the cell; a second request or a timeout forces the stop."""
        if self.escalation is not None and self.escalation.is_automatic:
            self.escalation.started_at, self.escalation.is_automatic, self.end_reason = now, False, reason
        elif self.escalation is None:
            # A rank that has stopped comes to no launch at which it could agree to end the cell.
            is_stopped = any(part.is_stopped for part in self.parts.values())
            can_agree = guard_available and self.guard == "lockstep" and not is_stopped
            self.escalation, self.end_reason = (
                InterruptEscalation.begin(self.seq, now, can_agree=can_agree, can_disconnect=can_disconnect),
                reason,
            )
            self._callbacks_at_stop = self._find_callbacks()
        elif reason != "timeout":
            self.escalation.record_second_interrupt(now)
        if reason == "timeout":
            self.escalation.force(now)

    def record_hang(self, now: float, process_count: int) -> None:
        """Record where stuck ranks are, before the first stop changes it."""
        if self.escalation is None and self._is_sampled():
            report = self.build_hang_report(now, process_count)
            self._hang = report if report.stuck else None

    def _find_callbacks(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for rank in self.running_ranks:
            latest = self.parts[rank].samples[-1] if self.parts[rank].samples else None
            if latest is not None and latest.activity == "callback":
                place = latest.user_frame or f"line {latest.line}"
                found.setdefault((latest.what, place), []).append(rank)
        return found

    def free_from_failed_callback(self, now: float, *, can_disconnect: bool) -> None:
        """Free ranks from a collective that a failed callback keeps incomplete."""
        failed = [part for part in self.parts.values() if part.waits_after_failed_callback()]
        if not failed or self.escalation is not None or not can_disconnect:
            return
        since = min(part.callback_failed_at for part in failed)
        hanging = [part for rank in self.running_ranks if (part := self.parts[rank]).hangs(since)]
        if any(part.may_hold_up(other) for part in failed for other in hanging):
            self.escalation = InterruptEscalation.begin(self.seq, now, can_agree=False, can_disconnect=True)
            self.escalation.is_automatic = True

    def attribute_failed_callback(self) -> None:
        """Attribute the cell's end to a program's failed callback, if any.

        Its rank gets the callback's error, and the ranks that it held up get `LEFT_WAITING`.
        """
        escalation = self.escalation
        if escalation is None:
            return
        freed = self.parts if escalation.is_automatic else escalation.disconnected
        stuck = [
            part
            for rank in freed
            if (part := self.parts[rank]).outcome == "interrupted"
            or (part.outcome == "error" and (rank in escalation.disconnected or part.has_failed_collective()))
        ]
        failed = [part for part in self.parts.values() if any(map(part.may_hold_up, stuck))]
        for part in stuck if failed else ():
            place = part.error or RankError(LEFT_WAITING, "")
            part.outcome, part.error = "error", RankError(LEFT_WAITING, "", line=place.line, code=place.code)
        for part in failed:
            if part in stuck or part.error is None or _reports(part.error, part.callback_error):
                part.outcome, part.error = "error", part.callback_error

    def escalate(self, now: float) -> list[Command]:
        """Return the commands that are now due to stop the cell."""
        if self.escalation is None:
            return []
        running, handling, since = self.running_ranks, self._handling_ranks(), self.escalation.requested_at
        in_collective = {rank for rank in running if self.parts[rank].is_in_collective(since)}
        if not self.escalation.is_forced:
            # There is no evidence that it is in a collective, and its code has received the interrupt: a signal reaches
            # it.
            in_collective -= {
                rank
                for rank in handling
                if rank in in_collective and self.parts[rank].samples[-1].launch_number is None
            }
        # A rank that waits for another rank's computation of the same launch does not hang.
        computing = {rank for rank in running if self.parts[rank].is_computing(since)}
        in_collective = {
            rank for rank in in_collective if computing.isdisjoint(self.parts[rank].samples[-1].participants or ())
        }
        spared = {
            rank
            for rank in handling
            if rank in in_collective
            and not self.escalation.is_forced
            and self._is_collective_complete(rank, in_collective)
        }
        stuck = tuple(rank for rank in running if rank in in_collective - spared)
        if self.escalation.is_due_to_kill(now) and all(self._is_finishing(rank, now) for rank in running):
            return []
        return self.escalation.next_commands(now, running, stuck, handling)

    def _is_finishing(self, rank: int, now: float) -> bool:
        """Check whether a rank's code ended at most `INTERRUPT_KILL_S` ago.

        Such a rank waits for its launches, and then ends the cell by itself.
        """
        since = self.parts[rank].finishing_since
        return since is not None and now - since <= INTERRUPT_KILL_S

    def _is_collective_complete(self, rank: int, inside: Set[int]) -> bool:
        """Check whether all participants have reached the collective of a rank."""
        sample = self.parts[rank].samples[-1]
        others = [self.parts[other].samples[-1] for other in sample.participants or () if other in inside]
        same = [other for other in others if (other.what, launch_key(other)) == (sample.what, launch_key(sample))]
        return len(same) == len(sample.participants or ())

    def _handling_ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.running_ranks if self.parts[rank].handling_since is not None)

    def _long_handling_ranks(self, now: float) -> tuple[int, ...]:
        """Return ranks that have handled the interrupt for `HANDLING_AFTER_S` or more."""
        if self.escalation is None or self.escalation.is_forced:
            return ()
        since = {rank: self.parts[rank].handling_since for rank in self.running_ranks}
        return tuple(rank for rank, at in since.items() if at is not None and now - at >= HANDLING_AFTER_S)

    @property
    def is_killed(self) -> bool:
        """Whether its interrupt has escalated to the kill."""
        return self.escalation is not None and self.escalation.is_killed

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """Ranks that were killed for not ending; their error may be older."""
        return tuple(rank for rank, part in self.parts.items() if self.is_killed and part.outcome == "killed")

    def is_uneventful(self) -> bool:
        """Check whether all ranks ended it without anything to compare or report."""
        return self.escalation is None and not any(
            part.outcome != "ok"
            or part.launches
            or part.report.host_arrays
            or part.report.abandoned_count
            or part.report.may_have_abandoned
            or part.error
            for part in self.parts.values()
        )

    def disconnect_notes(self) -> tuple[str, ...]:
        """Return the note on what disconnecting ranks from a collective has cost."""
        return () if self.escalation is None else self.escalation.notes()

    def has_failed_collective(self) -> bool:
        """Check whether a collective failed on some rank, as after a disconnect."""
        return any(part.has_failed_collective() for part in self.parts.values())

    def has_hit_abandoned_collective(self) -> bool:
        """Check whether a launch was refused for an earlier cell's abandoned collective."""
        return any(part.error is not None and STILL_ABANDONED in part.error.evalue for part in self.parts.values())

    def abandoned_launches(self) -> dict[int, str | None]:
        """Name the first launch that each rank abandoned or was disconnected from.

        It is None for a rank that may have abandoned one of which there is no record.
        A launch that still runs while another rank failed in a callback may wait for that rank forever.
        """
        disconnected = () if self.escalation is None else self.escalation.disconnected
        failed = {rank for rank, part in self.parts.items() if part.report.failed_count}
        unrecorded = {rank: None for rank, part in self.parts.items() if part.report.may_have_abandoned}
        return unrecorded | {
            rank: part.name_abandoned(self.name_earlier, was_disconnected=rank in disconnected)
            for rank, part in self.parts.items()
            if part.report.abandoned_count or rank in disconnected or (part.report.running_count and failed - {rank})
        }

    def rank_notes(self, command_before: Callable[[int], str]) -> tuple[str, ...]:
        """Return the notes on how the ranks ended, with the resulting state.

        Args:
            command_before: names the command that restores the state before a cell.
        """
        from_ranks = dict.fromkeys(note for part in self.parts.values() for note in part.notes)
        notes = (
            *self._stop_notes(),
            *note_swallowed_mismatches({rank: part.report.ignored_refusals for rank, part in self.parts.items()}),
            *from_ranks,
        )
        called = (
            f"{describe_ranks(tuple(ranks))} {'was' if len(ranks) == 1 else 'were'} in a callback of {program}, at {place}"
            for (program, place), ranks in self._callbacks_at_stop.items()
        )
        # The refusal itself names the state.
        divergence = self._divergence_notes(command_before)
        return (*self._lockstep_note(), *called, *(f"{note} · {self.state}" for note in notes), *divergence)

    def _stop_notes(self) -> list[str]:
        stopped = ranks_by_key(
            {
                rank: part.report.interrupted_before
                for rank, part in self.parts.items()
                if part.report.interrupted_before is not None
            }
        )
        parts = self.parts.values()
        stopped_unevenly = any(part.outcome == "interrupted" for part in parts) and not any(
            part.report.running_count for part in parts
        )
        if not stopped and self.state == "clean" and stopped_unevenly:
            consequence = f", so {MAY_DIFFER}" if self.can_leave_differences() else ""
            return [f"Interrupted while {self._format_waits()}{consequence}"]
        return [
            f"Interrupted before launch {number} on {'every rank' if len(ranks) == len(self.parts) else describe_ranks(ranks)}"
            for number, ranks in stopped.items()
        ]

    def _format_waits(self) -> str:
        """Describe which ranks waited before a launch that others had not reached."""
        places = ranks_by_key(
            {rank: launch for rank, part in self.parts.items() if (launch := part.report.pending_launch) is not None}
        )
        waited = [
            f"{describe_ranks(ranks)} waited before launch {launch.number}{f' (line {launch.line})' if launch.line else ''}"
            for launch, ranks in places.items()
        ]
        return f"{' and '.join(waited)} for other ranks" if waited else "no rank was in a launch"

    def _divergence_notes(self, command_before: Callable[[int], str]) -> list[str]:
        """Describe the arrays that caused a refusal, and which replay helps.

        A full replay would make them differ again.
        """
        inputs = {rank: part.report.refused_inputs for rank, part in self.parts.items() if part.report.refused_inputs}
        diverged_in = find_divergence(inputs.values())
        command = command_before(diverged_in) if diverged_in else ""
        limit_note = f"To make the values equal again: {command} (stops before {self.name_earlier(diverged_in)})"
        is_left = diverged_in != self.seq or self._has_stored_values()
        return [*describe_divergence(inputs), *([limit_note] if command and is_left else [])]

    def _has_stored_values(self) -> bool:
        """Check whether this cell has assigned a value before it ended."""
        lines = self._list_error_lines()
        failed_at = max(lines) if len(lines) == len(self.parts) else None
        return stores_values(self.request.numbered_source, failed_at=failed_at)

    def can_leave_differences(self) -> bool:
        """Check whether only the ranks that went on assigned some name.

        All ranks have run the statements above the first line that raised.
        """
        lines = self._list_error_lines()
        stopped_count = sum(part.outcome != "ok" for part in self.parts.values())
        first = min(lines) if lines and len(lines) == stopped_count else 1
        return stores_names(self.request.numbered_source, first=first)

    def _list_error_lines(self) -> list[int]:
        """Return the line that raised on each rank, where it is known."""
        errors = (part.error for part in self.parts.values() if part.outcome != "ok")
        return [error.line for error in errors if error is not None and error.line is not None]

    def _lockstep_note(self) -> tuple[str, ...]:
        if not self.abandoned_by:
            return ()
        reason = f"a collective of an earlier cell may still be waiting on {describe_ranks(self.abandoned_by)}"
        return (f"guard lockstep instead of {self.request.guard}: {reason}, so all ranks must agree on each launch",)

    @property
    def guard(self) -> str:
        """The guard in force."""
        return "lockstep" if self.abandoned_by else self.request.guard

    def end_rank(self, ended: CellEnded) -> None:
        """Record a rank's final reply."""
        self.parts[ended.rank].record_end(ended)

    def add_output(self, rank: int, events: list[OutputEvent]) -> None:
        """Record a rank's output while the cell runs."""
        self.parts[rank].add_output(events)

    def add_late_output(self, rank: int, events: list[OutputEvent]) -> None:
        """Record output after the cell's end, without changing its error."""
        self.parts[rank].accumulator.add(events)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Pass an event to the added parts, and return their commands."""
        return [command for part in self.added_parts for command in part.handle(self, event, now)]

    def mark_rank_lost(self, rank: int, outcome: Outcome, error: RankError) -> None:
        """Record that a rank's process ended before the cell did."""
        part = self.parts[rank]
        part.outcome, part.error = outcome, part.error or error
        part.is_stopped = False

    def explain_missing_names(
        self, describe: Callable[[str], str | None], describe_variable: Callable[[str], str | None]
    ) -> None:
        """Add a hint to each unexplained error about a missing name.

        Args:
            describe: returns the hint of a variable of Python.
            describe_variable: returns the hint of a variable of the environment.
        """
        for part in self.parts.values():
            if part.error is None or part.error.hint is not None:
                continue
            hint = None
            if part.error.ename == "NameError" and (name := find_missing_name(part.error.evalue)) is not None:
                hint = describe(name)
            elif part.missing_variable is not None:
                hint = describe_variable(part.missing_variable)
            part.error = replace(part.error, hint=hint)

    def has_record(self, *, guard_available: bool) -> bool:
        """Check whether the cell can be judged by recorded launches."""
        return guard_available and self.guard != "off"

    def build_hang_report(self, now: float, process_count: int) -> HangReport:
        """Build the report of where every rank of the cluster is."""
        snapshots = [self._snapshot_rank(rank, now) for rank in range(process_count)]
        return build_hang_report(
            self.seq,
            self.request.numbered_source,
            snapshots,
            age_s=now - self.started_at,
            last_events=self.last_events,
        )

    def _snapshot_rank(self, rank: int, now: float) -> RankSnapshot:
        part = self.parts.get(rank)
        if part is None:
            return RankSnapshot(rank, "skipped")
        latest, before = (*reversed(part.describe_samples()), None, None)[:2]
        return RankSnapshot(
            rank,
            part.outcome,
            latest,
            before,
            now - part.sampled_at,
            part.launches,
            has_output=part.has_new_output,
            is_stopped=part.is_stopped,
            stop_line=part.stop_line if part.is_stopped else None,
            resumed_s=None if part.resumed_at is None else now - part.resumed_at,
        )

    def result(self, now: float, process_count: int) -> CellResult:
        """Build the cell's result so far, for the user and the view."""
        ranks = tuple(
            RankResult(
                rank,
                p.outcome,
                p.accumulator.outputs(),
                error=p.callback_error if p.outcome == "running" else p.error,
                wall_s=p.wall_s,
                omitted_nbytes=p.accumulator.omitted_nbytes,
                noise=p.accumulator.noise,
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
            carried=self.carried,
            process_count=process_count,
            how=self.end_reason,
            handling=self._long_handling_ranks(now),
            where=self.build_hang_report(now, process_count) if self._is_sampled() else self._hang,
            execution_count=self.request.place.execution_count,
            added=tuple(value for part in self.added_parts if (value := part.result()) is not None),
        )


def record_cell(cell: Cell, generation: int, *, recorded: bool, kernel: str = "") -> CellRecord:
    """Build the record of a cell that has ended and was judged.

    Args:
        recorded: whether its launches were recorded.
        kernel: identifies the notebook's kernel.

    >>> from mhnb.core.state.events import CellRequest
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
        cell.end_reason,
        cell.state,
        round(cell.wall_s or 0.0, 6),
        replayed=request.replayed_seq is not None,
        execution_count=request.place.execution_count,
        first_line=request.place.first_line,
        kernel="" if request.place.execution_count is None else kernel,
        is_post_mortem=request.is_post_mortem,
    )


# -- finished cells


_MAX_CELLS = 32


class FinishedCells:
    """The latest finished cells, by number."""

    def __init__(self) -> None:
        self._cells: OrderedDict[int, Cell] = OrderedDict()

    def add(self, cell: Cell) -> None:
        """Retain a cell, and drop the oldest beyond the limit."""
        self._cells[cell.seq] = cell
        while len(self._cells) > _MAX_CELLS:
            self._cells.popitem(last=False)

    def find(self, seq: int, rank: int) -> Cell | None:
        """Return the retained cell of that number if the rank ran it."""
        cell = self._cells.get(seq)
        return cell if cell is not None and rank in cell.parts else None

    def apply_display_updates(self, cell: Cell, rank: int) -> list[Cell]:
        """Apply a rank's display updates to older cells; return the changed cells."""
        updated: dict[int, Cell] = {}
        for update in cell.parts[rank].accumulator.take_foreign_updates():
            for old in reversed(self._cells.values()):
                if rank in old.parts and old.parts[rank].accumulator.update_display(*update):
                    updated[old.seq] = old
                    break
        return list(updated.values())
