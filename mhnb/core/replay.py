"""Plan a replay from journal records, compare its cells, and format progress.

A plan contains the records of a journal that run again, those that are left out, and why.

This module neither reads the journal nor runs a cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TypeVar

from mhnb.core.cell_name import CellArgument, find_cell, format_cell_argument, format_cell_names
from mhnb.core.journal import (
    MAX_TRACE_ROWS,
    AcceptRecord,
    CellRecord,
    LaunchTrace,
    PushRecord,
    Record,
    ReplayRecord,
    StartRecord,
    TraceRow,
)
from mhnb.core.ranks import describe_ranks, format_ranks, pluralize, ranks_by_key
from mhnb.errors import InvalidRequest, OrderMismatch

_Key = TypeVar("_Key", bound=Hashable)


def describe_difference(before: CellRecord, now: CellRecord) -> str:
    """Describe how a replayed cell differed from its record; empty if equal.

    The comparison covers each rank's outcome, the name of the exception that it raised, and its launches.
    A rank that raised before may finish now; then its earlier launches must be the first of those now.

    >>> before, now = ({0: "ok", 1: "ok"}, {0: "ok", 1: "error"})
    >>> describe_difference(CellRecord(1, 4, "f()", outcomes=before), CellRecord(2, 4, "f()", outcomes=now))
    'rank 1: before it finished, now it raised an error'
    """
    all_ranks, cured = sorted({*before.outcomes, *now.outcomes}), _find_cured_ranks(before, now)
    endings = ranks_by_key(
        {rank: (_format_ending(before, rank), _format_ending(now, rank)) for rank in all_ranks if rank not in cured}
    )
    lines = [f"{describe_ranks(ranks)}: before {was}, now {is_}" for (was, is_), ranks in endings.items() if was != is_]
    if before.launches is not None and now.launches is not None:
        was_by, is_by = _trace_by_rank(before.launches), _trace_by_rank(now.launches)
        launched = ranks_by_key(
            {
                rank: (was_by.get(rank), is_by.get(rank))
                for rank in all_ranks
                if rank not in cured or not _is_continued(was_by.get(rank), is_by.get(rank))
            }
        )
        lines += [
            f"{describe_ranks(ranks)}: {said}"
            for pair, ranks in launched.items()
            if (said := _describe_launch_difference(*pair))
        ]
    if not lines and (before.how, before.state) != (now.how, now.state):
        lines.append(
            f"the cluster was {_format_end_state(before)} after it before, and is {_format_end_state(now)} now"
        )
    return "\n".join(lines)


def describe_cure(before: CellRecord, now: CellRecord) -> str:
    """Describe which ranks finished a cell that had raised; empty if none.

    >>> before, now = CellRecord(1, 4, "f()", outcomes={0: "error"}, errors={0: "OSError"}), CellRecord(2, 4, "f()", outcomes={0: "ok"})
    >>> describe_cure(before, now)
    'cell 4 raised OSError on rank 0 before, and finished there this time'
    """
    errors = {rank: before.errors.get(rank, "an error") for rank in _find_cured_ranks(before, now)}
    return f"{before.name} {format_errors(errors)} before, and finished there this time" if errors else ""


def format_errors(errors: Mapping[int, str]) -> str:
    """Format which errors ranks have raised.

    >>> format_errors({0: "KeyError", 1: "KeyError"})
    'raised KeyError on ranks 0-1'
    """
    return f"raised {' and '.join(sorted(set(errors.values())))} on {describe_ranks(errors)}"


def _find_cured_ranks(before: CellRecord, now: CellRecord) -> tuple[int, ...]:
    """Return the ranks that raised before and finish now.

    `OrderMismatch` alone does not count, because then the ranks' programs differed; beside another error it only followed from that.
    """
    raised = (rank for rank, outcome in before.outcomes.items() if outcome == "error")
    cured = tuple(rank for rank in raised if now.outcomes.get(rank) == "ok")
    return cured if any(before.errors.get(rank) != OrderMismatch.__name__ for rank in cured) else ()


def _is_continued(before: LaunchTrace | None, now: LaunchTrace | None) -> bool:
    """Return whether the launches now begin with those before, as recorded."""
    if before is None or now is None:
        return before is None
    return now.count >= before.count and _first_difference(before.rows, now.rows)[1] is None


def _format_end_state(record: CellRecord) -> str:
    words = {"timeout": " after its --timeout", "interrupted": " after an interrupt"}
    return record.state + words.get(record.how, "")


def _format_ending(record: CellRecord, rank: int) -> str:
    outcome = record.outcomes.get(rank)
    if outcome == "error":
        return f"it raised {record.errors.get(rank, 'an error')}"
    words = {
        None: "it did not run the cell",
        "ok": "it finished",
        "interrupted": "it was interrupted",
        "killed": "it was killed",
    }
    return words.get(outcome, f"it {outcome}")


def _trace_by_rank(traces: Iterable[LaunchTrace]) -> dict[int, LaunchTrace]:
    return {rank: trace for trace in traces for rank in trace.ranks}


def _describe_launch_difference(before: LaunchTrace | None, now: LaunchTrace | None) -> str:
    """Describe where two launch sequences diverge; empty if they are equal."""
    if (before and before.hash) == (now and now.hash):
        return ""
    index, was, is_ = _first_difference(before.rows if before else (), now.rows if now else ())
    totals = f"launches: {before.count if before else 0} before, {now.count if now else 0} now"
    if was is None and is_ is None:
        return f"its launches differ after the first {index} ({totals})"
    ambiguous = was is not None and is_ is not None and was[1] == is_[1]
    words = ["none" if row is None else _format_program(row, ambiguous=ambiguous) for row in (was, is_)]
    return f"launch {index + 1} was {words[0]}, now {words[1]} ({totals})"


def _first_difference(
    before: Sequence[TraceRow], now: Sequence[TraceRow]
) -> tuple[int, TraceRow | None, TraceRow | None]:
    """Return the 0-based index of the first different launch, and both rows.

    Runs are maximal, so equal runs have equal lengths.
    """
    index = 0
    for at, (was, is_) in enumerate(zip_longest(before, now)):
        if was is None or is_ is None or (was[0], was[2]) != (is_[0], is_[2]):
            return index, was, is_
        if was[4] != is_[4] and at + 1 == MAX_TRACE_ROWS:
            return index + min(was[4], is_[4]), None, None
        if was[4] < is_[4]:
            return index + was[4], before[at + 1] if at + 1 < len(before) else None, is_
        if was[4] > is_[4]:
            return index + is_[4], was, now[at + 1] if at + 1 < len(now) else None
        index += was[4]
    return index, None, None


def _format_program(row: TraceRow, *, ambiguous: bool) -> str:
    fingerprint, name, _, line, _ = row
    program = f" (program {fingerprint[:6]})" if ambiguous else ""
    return f"{name}{program}{'' if line is None else f' of line {line}'}"


# -- plan a replay


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A cell or push that a replay leaves out."""

    what: str
    """Such as `cell 4` or `push x`."""
    why: str
    seq: int = 0
    """The cell's number; for a push, the number of the cell before it."""
    source: str = ""
    """The cell's text."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay runs and what it leaves out."""

    generations: tuple[int, ...]
    """The generations that the records are from, oldest first."""
    steps: tuple[CellRecord | PushRecord, ...] = ()
    """In their original order."""
    left_out: tuple[SkippedStep, ...] = ()
    note: str = ""
    """Why the cells of an earlier generation are not among them, if they cannot run here."""

    @property
    def cells(self) -> tuple[int, ...]:
        """The numbers of the cells that run again."""
        return tuple(step.seq for step in self.steps if isinstance(step, CellRecord))


def plan_replay(
    records: Sequence[Record], generation: int, to: int | None = None, *, this_generation: bool = False
) -> ReplayPlan:
    """Choose the user's steps since the last start, in order, each once.

    What an earlier replay has run stands for the step that it repeated, whether or not that replay reached its end.

    Args:
        records: the whole journal.
        generation: where to look first, then at the one before it, and so on.
        to: the number of the last cell to run; None for all.
        this_generation: only the steps that ran in the newest generation, as the user's own or in a replay.

    Raises:
        InvalidRequest: there is no cell `to` among them.

    >>> restart = StartRecord(2, "2 x 1", after=1, is_restart=True)
    >>> plan_replay([StartRecord(1, "2 x 1"), CellRecord(1, 1, "x = 1"), restart, CellRecord(2, 2, "y = 2")], 2).cells
    (1, 2)
    """
    generations, note = _find_generations(records, generation)
    mine = _list_own(_select_records(records, generations), only_last=this_generation)
    if to is not None:
        at = next((at for at, r in enumerate(mine) if isinstance(r, CellRecord) and r.seq == to), None)
        if at is None:
            raise _no_such_cell(str(to), mine, generations)
        del mine[at + 1 :]
    return ReplayPlan(generations, *_split_steps(mine), note)


def _list_own(records: Sequence[Record], *, only_last: bool = False) -> list[Record]:
    """List the user's own kept steps, failed ones as they last finished.

    Steps after the end of a `--to` are discarded by the first own step that follows.

    Args:
        records: in order.
        only_last: only the steps that ran in the last generation that has any.
    """
    own: list[Record] = []
    finished: dict[int, CellRecord] = {}
    end: int | None = None
    for before, record in pairwise((None, *records)):
        if isinstance(record, ReplayRecord):
            end = record.to if record.complete else None
        elif isinstance(record, AcceptRecord):
            own += [record] if own and before is own[-1] else []
        elif isinstance(record, CellRecord | PushRecord) and not record.replayed:
            own = [*(own if end is None else _cut_after(own, end)), record]
            end = None
        elif isinstance(record, CellRecord) and not record.errors and not skip_reason(record):
            finished[record.seq] = record
    if only_last:
        last = max((record.generation for record in records if step_key(record) is not None), default=0)
        keys = {step_key(record) for record in records if record.generation == last}
        own = [record for record in own if step_key(record) in keys]
    return [
        finished.get(record.seq, record) if isinstance(record, CellRecord) and record.errors else record
        for record in own
    ]


def _cut_after(records: Sequence[Record], end: int) -> list[Record]:
    last = max((at for at, r in enumerate(records) if isinstance(r, CellRecord) and r.seq <= end), default=-1)
    return list(records[: last + 1])


def step_key(record: Record) -> object:
    """Return what a step has in common with its repetitions."""
    if isinstance(record, CellRecord):
        return record.seq
    return (record.names, record.file) if isinstance(record, PushRecord) else None


def _select_records(records: Iterable[Record], generations: Sequence[int]) -> list[Record]:
    return [record for record in records if record.generation in generations]


def _no_such_cell(argument: str, mine: Sequence[Record], generations: Sequence[int]) -> InvalidRequest:
    names = format_cells(record for record in mine if isinstance(record, CellRecord))
    word = "generation" if len(generations) == 1 else "generations"
    known = f"{names} of {word} {format_ranks(generations)}" if names else "no cell"
    return InvalidRequest(f"restart --replay --to {argument}: unknown cell; the journal has {known}")


def find_replay_end(
    records: Sequence[Record], generation: int, argument: CellArgument, *, this_generation: bool = False
) -> tuple[int, str]:
    """Return mhnb's number of a replay's last cell; note an ambiguous argument.

    Args:
        records: the whole journal, without the numbers of other kernels' cells.
        generation: as of `plan_replay`.
        argument: the cell as the user named it.
        this_generation: as of `plan_replay`.

    Raises:
        InvalidRequest: the journal has no such cell.

    >>> records = [CellRecord(1, seq, "f()", execution_count=seq + 2) for seq in (1, 2, 3, 4)]
    >>> find_replay_end(records, 1, CellArgument(4, is_shown=False, is_own=False))
    (2, '--to 4 is In [4], which is cell 2 of the cluster; its cell 4 is In [6]')
    """
    generations, _ = _find_generations(records, generation)
    mine = _list_own(_select_records(records, generations), only_last=this_generation)
    cells = {record.seq: record for record in mine if isinstance(record, CellRecord)}
    seq = find_cell(argument, {seq: cell.execution_count for seq, cell in cells.items()})
    if seq is None:
        raise _no_such_cell(argument.name, mine, generations)
    other = cells.get(argument.number)
    if argument.is_shown or argument.is_own or other is None or other.seq == seq:
        return seq, ""
    of_other = (
        f"its cell {other.seq} is {other.name}" if other.execution_count is not None else f"{other.name} is another"
    )
    return seq, f"--to {argument.number} is {cells[seq].name}, which is cell {seq} of the cluster; {of_other}"


def _find_generations(records: Sequence[Record], newest: int) -> tuple[tuple[int, ...], str]:
    """Return the generations to replay, oldest first, and why one is omitted.

    The first of them is that of the last start, or of one before it if nothing has run since but a replay.
    """
    found: list[int] = []
    shape, has_own = "", False
    for start in _list_starts(records, newest):
        mine = _select_records(records, (start.generation,))
        steps = [record for record in mine if isinstance(record, CellRecord | PushRecord)]
        shape = shape or start.shape
        if start.shape != shape:
            # Cells that ran on a cluster of another shape cannot be compared with cells of this one.
            note = f"generation {start.generation} was left out: it had {start.shape}, and this cluster has {shape}"
            return tuple(found) or (newest,), note if steps else ""
        if steps:
            found.insert(0, start.generation)
        has_own = has_own or not all(step.replayed for step in steps)
        replays = [r for r in _select_records(records, found) if isinstance(r, ReplayRecord)]
        if has_own and not start.is_restart and not any(r.source_generation < start.generation for r in replays):
            break
    return tuple(found) or (newest,), ""


def _list_starts(records: Iterable[Record], generation: int) -> Iterator[StartRecord]:
    """Yield a generation's start, then that of each one it replaced.

    By the `after` links, because a journal may also have starts of a notebook that took over another cluster meanwhile.
    """
    starts = {record.generation: record for record in records if isinstance(record, StartRecord)}
    while generation in starts:
        yield starts[generation]
        generation = starts[generation].after
        if generation not in starts:
            # Its start record is missing, for example because the disk was full; earlier records exist.
            generation = max((number for number in starts if number < generation), default=0)


def find_last_number(records: Sequence[Record], generation: int) -> int:
    """Return the highest cell number since the last start, or 0.

    >>> records = [StartRecord(1, "2 x 1"), CellRecord(1, 7, "x = 1"), StartRecord(2, "2 x 1", after=1, is_restart=True)]
    >>> find_last_number(records, 2)
    7
    """
    since_start = select_since_start(records, generation)
    return max((record.seq for record in since_start if isinstance(record, CellRecord)), default=0)


def select_since_start(records: Sequence[Record], generation: int) -> list[Record]:
    """Select all records since the last start, also those no replay runs."""
    since_start = [generation]
    for start in _list_starts(records, generation):
        since_start.append(start.generation)
        if not start.is_restart:
            break
    return _select_records(records, since_start)


def _split_steps(records: Sequence[Record]) -> tuple[tuple[CellRecord | PushRecord, ...], tuple[SkippedStep, ...]]:
    steps = list(list_steps(records))
    left_out = (
        SkippedStep(step_name(step), why, seq, step.source if isinstance(step, CellRecord) else "")
        for step, seq, why in steps
        if why
    )
    return tuple(step for step, _, why in steps if not why), tuple(left_out)


def list_steps(records: Sequence[Record]) -> Iterator[tuple[CellRecord | PushRecord, int, str]]:
    """Yield each cell and push, its number, and why replays skip it.

    The number of a push is that of the cell before it. The reason is empty if the step runs again.
    """
    seq = 0
    for at, record in enumerate(records):
        if isinstance(record, PushRecord):
            yield record, seq, record.why_not
        elif isinstance(record, CellRecord):
            seq = record.seq
            why = skip_reason(record)
            if why and at + 1 < len(records) and isinstance(records[at + 1], AcceptRecord):
                why += ", then accepted"
            if not record.is_post_mortem:
                yield record, seq, why


def skip_reason(record: CellRecord) -> str:
    """Return why replays skip a cell; empty if it runs again.

    A cell that raised runs again if it left the cluster clean.

    >>> skip_reason(CellRecord(1, 2, "f()", state="tainted")), skip_reason(CellRecord(1, 2, "f()"))
    ('tainted', '')
    """
    lost = [rank for rank, outcome in record.outcomes.items() if outcome in ("died", "killed")]
    refused = [rank for rank, outcome in record.outcomes.items() if outcome == "refused"]
    if record.how == "timeout":
        return "stopped by its --timeout"
    # A signal from a shell is an error of the cell on the rank, as in `mhnb interrupt` without a notebook.
    if record.how or "interrupted" in record.outcomes.values() or "KeyboardInterrupt" in record.errors.values():
        return "interrupted"
    if record.state == "stopped":
        return "the cluster was stopped during it"
    if record.state == "dead" or lost:
        return f"{describe_ranks(lost)} died during it" if lost else "the cluster died during it"
    if refused:
        return f"{describe_ranks(refused)} refused it"
    return "" if record.state == "clean" else record.state


def format_recovery(records: Sequence[Record], generation: int, start_s: float) -> str:
    """Return the command that restores the state, with its duration if known.

    Args:
        records: the journal.
        generation: the current one.
        start_s: how long its ranks took to become ready.

    >>> format_recovery([], 1, 3.0), format_recovery([CellRecord(1, 1, "f()", wall_s=2.0)], 1, 3.0)
    ('%mhjax restart --replay', '%mhjax restart --replay (1 cell, about 5 s)')
    """
    cells = [step for step in plan_replay(records, generation).steps if isinstance(step, CellRecord)]
    if not cells:
        return "%mhjax restart --replay"
    seconds = max(1, round(start_s + sum(cell.wall_s for cell in cells)))
    took = f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"
    return f"%mhjax restart --replay ({pluralize(len(cells), 'cell')}, about {took})"


def format_recovery_before(records: Sequence[Record], generation: int, seq: int) -> str:
    """Return the command that restores the state before a cell, or empty.

    >>> format_recovery_before([CellRecord(1, 21, "f()", execution_count=7)], 1, 22), format_recovery_before([], 1, 1)
    ('%mhjax restart --replay --to In[7]', '')
    """
    mine = _list_own(_select_records(records, _find_generations(records, generation)[0]))
    counts = {record.seq: record.execution_count for record in mine if isinstance(record, CellRecord)}
    # Not simply the number before it: a replay cannot stop at a number that an earlier replay left out.
    to = max((known for known in counts if known < seq), default=None)
    if to is None:
        return ""
    return f"%mhjax restart --replay --to {format_cell_argument(to, counts[to], counts.values())}"


# -- format a replay's progress and its summary


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The step that a replay is about to run."""

    what: str
    """Such as `cell 7`."""
    done: int
    """Number of steps before it."""
    plan: ReplayPlan


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay that has ended."""

    plan: ReplayPlan
    done: int
    """Number of the plan's steps that did the same as before, or finished instead of raising."""
    wall_s: float
    notes: tuple[str, ...] = ()
    """Notes on the journal itself, and the cells that finished instead of raising."""
    stop: str = ""
    """Why it stopped before its end, in several lines; empty if it did not."""

    @property
    def done_steps(self) -> tuple[CellRecord | PushRecord, ...]:
        """The steps that did the same as before."""
        return self.plan.steps[: self.done]

    @property
    def steps_not_run(self) -> tuple[CellRecord | PushRecord, ...]:
        """The steps after the one at which it stopped."""
        return self.plan.steps[self.done + 1 :]

    @property
    def cells(self) -> tuple[int, ...]:
        """The numbers of the cells that did the same as before."""
        return tuple(step.seq for step in self.done_steps if isinstance(step, CellRecord))

    @property
    def pushes(self) -> int:
        """The number of pushes that were made again."""
        return self.done - len(self.cells)

    @property
    def left_out(self) -> tuple[SkippedStep, ...]:
        """What the replay did not try, and why."""
        return self.plan.left_out

    @property
    def not_run(self) -> tuple[int, ...]:
        """The cells after the one at which it stopped."""
        return tuple(step.seq for step in self.steps_not_run if isinstance(step, CellRecord))


def step_name(step: CellRecord | PushRecord) -> str:
    """Return the name of a plan's step.

    >>> step_name(CellRecord(1, 7, "f()")), step_name(PushRecord(1, ("x", "y"), None))
    ('cell 7', 'push x y')
    """
    return step.name if isinstance(step, CellRecord) else f"push {' '.join(step.names)}"


def format_step(step: ReplayStep) -> str:
    """Format the one progress line of a running replay.

    >>> format_step(ReplayStep("push x", 2, ReplayPlan((1,))))
    'mhjax · replaying push x'
    """
    is_push = isinstance(step.plan.steps[step.done], PushRecord) if step.done < len(step.plan.steps) else True
    last = "" if is_push else f" of {_format_last_number(step.plan)}"
    return f"mhjax · replaying {step.what}{last}"


def _format_last_number(plan: ReplayPlan) -> str:
    last = [step for step in plan.steps if isinstance(step, CellRecord)][-1]
    return str(last.seq) if last.execution_count is None else last.name


def format_report(report: ReplayReport, duration: str) -> str:
    """Format the summary of a completed replay and its left-out items.

    Args:
        duration: its duration as text.

    >>> print(format_report(ReplayReport(ReplayPlan((1,), left_out=(SkippedStep("cell 4", "interrupted"),)), 0, 0.1), "0.10 s"))
    mhjax · nothing to replay: no cell left the cluster clean
      left out · cell 4: interrupted
    """
    done = [format_cells(report.done_steps)] if report.cells else []
    done += [f"{report.pushes} {'push' if report.pushes == 1 else 'pushes'}"] if report.pushes else []
    head = (
        f"mhjax · replayed {' and '.join(done)} · {duration}"
        if done
        else "mhjax · nothing to replay: no cell left the cluster clean"
    )
    return "\n".join([head, *_format_notes(report)])


def format_stop(report: ReplayReport, state: str) -> str:
    """Format why a replay stopped, the cluster's state, and how to continue.

    Args:
        state: the cluster's.

    >>> print(format_stop(ReplayReport(ReplayPlan((1,)), 0, 0.1, stop="the replay was interrupted in cell 1"), "clean"))
    replay stopped: the replay was interrupted in cell 1
      no cell before it · the cluster is clean: continue from here by hand, or %mhjax restart
    """
    first, *more = report.stop.splitlines()
    done = f"{format_cells(report.done_steps)} gave the same result as before" if report.cells else "no cell before it"
    rest = (
        f"; {format_cells(report.steps_not_run)} {'was' if len(report.not_run) == 1 else 'were'} not run"
        if report.not_run
        else ""
    )
    last = [step for step in report.done_steps if isinstance(step, CellRecord)][-1:]
    shown = [step.execution_count for step in report.plan.steps if isinstance(step, CellRecord)]
    to = [format_cell_argument(step.seq, step.execution_count, shown) for step in last]
    command = f"%mhjax restart --replay --to {to[0]}" if to else "%mhjax restart"
    ways = f"continue from here by hand, or {command}" if state == "clean" else command
    lines = [f"replay stopped: {first}", *(f"  {line}" for line in more)]
    return "\n".join([*lines, f"  {done}{rest} · the cluster is {state}: {ways}", *_format_notes(report)])


def _format_notes(report: ReplayReport) -> list[str]:
    return [*(f"  left out · {item}" for item in report.left_out), *(f"  note · {note}" for note in report.notes)]


def format_cells(steps: Iterable[CellRecord | PushRecord]) -> str:
    """Format the names of the cells among the steps of a plan.

    >>> format_cells([CellRecord(1, 7, "f()"), PushRecord(1, ("x",), None)])
    'cell 7'
    """
    return format_cell_names((step.seq, step.execution_count) for step in steps if isinstance(step, CellRecord))
