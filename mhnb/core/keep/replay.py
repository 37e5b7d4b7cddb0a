"""Plan a replay: which records of a journal run again, which are left out, and why.

This module neither reads the journal nor runs a cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.keep.journal import AcceptRecord, CellRecord, PushRecord, Record, ReplayRecord, StartRecord
from mhnb.core.keep.lost_names import find_setter
from mhnb.core.ranks import describe_ranks, format_ranks, pluralize
from mhnb.errors import InvalidRequest

__all__ = [
    "ReplayEstimate",
    "ReplayPlan",
    "SkippedStep",
    "describe_setter",
    "list_skipped_steps",
    "plan_replay",
    "skip_reason",
]


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

    generation: int
    """The generation that the records are from."""
    steps: tuple[CellRecord | PushRecord, ...] = ()
    """In their original order."""
    left_out: tuple[SkippedStep, ...] = ()

    @property
    def cells(self) -> tuple[int, ...]:
        """The numbers of the cells that run again."""
        return tuple(step.seq for step in self.steps if isinstance(step, CellRecord))


def plan_replay(records: Sequence[Record], generation: int, to: int | None = None) -> ReplayPlan:
    """Choose the steps that produced the state which the user had before the last restarts.

    They are those of the newest generation in which the user did something, or which was fully replayed.
    A generation that was only partly replayed, or never used, does not count; its source generation still does.

    Args:
        records: the whole journal.
        generation: where to look first, then at the one before it, and so on.
        to: the number of the last cell to run; None for all.

    Raises:
        InvalidRequest: the journal has no cell `to`.

    >>> plan_replay([StartRecord(1, "2 x 1"), CellRecord(1, 1, "x = 1"), StartRecord(2, "2 x 1", after=1)], 2).cells
    (1,)
    """
    generation = _find_source_generation(records, generation)
    mine = [record for record in records if record.generation == generation]
    seqs = [record.seq for record in mine if isinstance(record, CellRecord)]
    if to is not None:
        if to not in seqs:
            known = f"cells {format_ranks(seqs)} of generation {generation}" if seqs else "no cell"
            raise InvalidRequest(f"restart --replay --to {to}: the journal has {known}; give the number of one of them")
        mine = mine[: 1 + next(at for at, r in enumerate(mine) if isinstance(r, CellRecord) and r.seq == to)]
    return ReplayPlan(generation, *_split_steps(mine))


def list_skipped_steps(records: Sequence[Record], generation: int) -> tuple[SkippedStep, ...]:
    """List what a generation lacks: what its replay would leave out, and what the replays that led to it left out.

    >>> old, new = CellRecord(1, 2, "f()", state="tainted"), ReplayRecord(2, 1, None, complete=True)
    >>> [str(each) for each in list_skipped_steps([StartRecord(1, "1 x 1"), old, StartRecord(2, "1 x 1", after=1), new], 2)]
    ['cell 2: tainted']
    """
    plan = plan_replay(records, generation)
    replays = [r for r in records if isinstance(r, ReplayRecord) and r.generation == plan.generation and r.complete]
    inherited = [
        each for r in replays if r.source_generation < plan.generation for each in _list_skipped_by(records, r)
    ]
    return tuple(sorted(dict.fromkeys((*inherited, *plan.left_out)), key=lambda each: each.seq))


_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def describe_setter(evalue: str, left_out: Sequence[SkippedStep], seq: int) -> str:
    """Describe which left-out cell or push had set a name that a cell lacks; empty if none is known.

    Args:
        evalue: the text of the cell's NameError.
        seq: the cell's number: later cells and pushes had not set anything yet.

    >>> describe_setter("name 'tqdm' is not defined", [SkippedStep("cell 12", "interrupted", 12, "import tqdm")], 14)
    '`tqdm` was set by cell 12, which was left out (interrupted)'
    """
    found = _UNDEFINED.match(evalue)
    if found is None:
        return ""
    before = [each for each in left_out if each.seq < seq]
    setter = find_setter(
        found[1], [(str(at), each.source or _format_assignments(each)) for at, each in enumerate(before)]
    )
    if setter is None:
        return ""
    by = before[int(setter)]
    return f"`{found[1]}` was set by {by.what}, which was left out ({by.why})"


def _format_assignments(push: SkippedStep) -> str:
    return "".join(f"{name} = ...\n" for name in push.what.split()[1:])


def _list_skipped_by(records: Sequence[Record], replay: ReplayRecord) -> tuple[SkippedStep, ...]:
    left_out = list_skipped_steps(records, replay.source_generation)
    return tuple(each for each in left_out if replay.to is None or each.seq <= replay.to)


def _find_source_generation(records: Sequence[Record], newest: int) -> int:
    """Follow the `after` links, because a journal may also have starts of a notebook that took over another cluster meanwhile."""
    starts = {record.generation: record for record in records if isinstance(record, StartRecord)}
    used = {record.generation for record in records if _is_used(record)}
    generation = newest
    # Cells that ran on a cluster of another shape cannot be compared with cells of this one.
    while generation in starts and starts[generation].shape == starts[newest].shape:
        if generation in used:
            return generation
        generation = starts[generation].after
        if generation not in starts:
            # Its start record is missing, for example because the disk was full; earlier records exist.
            generation = max((number for number in starts if number < generation), default=0)
    return newest


def _is_used(record: Record) -> bool:
    if isinstance(record, ReplayRecord):
        return record.complete
    return isinstance(record, CellRecord | PushRecord) and not record.replayed


def _split_steps(records: Sequence[Record]) -> tuple[tuple[CellRecord | PushRecord, ...], tuple[SkippedStep, ...]]:
    steps: list[CellRecord | PushRecord] = []
    left_out: list[SkippedStep] = []
    seq = 0
    for at, record in enumerate(records):
        seq = record.seq if isinstance(record, CellRecord) else seq
        if isinstance(record, PushRecord):
            if record.why_not:
                left_out.append(SkippedStep(f"push {' '.join(record.names)}", record.why_not, seq))
            else:
                steps.append(record)
        elif isinstance(record, CellRecord):
            if why := skip_reason(record):
                accepted = at + 1 < len(records) and isinstance(records[at + 1], AcceptRecord)
                why = f"{why}, accepted then" if accepted else why
                left_out.append(SkippedStep(f"cell {record.seq}", why, record.seq, record.source))
            else:
                steps.append(record)
    return tuple(steps), tuple(left_out)


def skip_reason(record: CellRecord) -> str:
    """Return why a cell is left out of a replay; empty if it runs again: it left the cluster clean, even if it raised.

    >>> skip_reason(CellRecord(1, 2, "f()", state="tainted")), skip_reason(CellRecord(1, 2, "f()"))
    ('tainted', '')
    """
    lost = [rank for rank, outcome in record.outcomes.items() if outcome in ("died", "killed")]
    refused = [rank for rank, outcome in record.outcomes.items() if outcome == "refused"]
    if record.how == "timeout":
        return "its --timeout ended it"
    if record.how or "interrupted" in record.outcomes.values():
        return "interrupted"
    if record.state == "stopped":
        return "the cluster was stopped during it"
    if record.state == "dead" or lost:
        return f"{describe_ranks(lost)} did not live to its end" if lost else "the cluster died during it"
    if refused:
        return f"{describe_ranks(refused)} refused it"
    return "" if record.state == "clean" else record.state


class ReplayEstimate:
    """Estimate of how long a replay of a generation takes, updated as its cells end."""

    def __init__(self) -> None:
        self._cells, self._seconds = 0, 0.0
        self._seqs: list[int] = []

    def record_start(self, took_s: float) -> None:
        """Record how long the ranks took to become ready."""
        self._seconds = took_s

    def add(self, record: CellRecord) -> None:
        """Record a cell that has ended; one that a replay leaves out costs nothing."""
        self._seqs.append(record.seq)
        if not skip_reason(record):
            self._cells += 1
            self._seconds += record.wall_s

    def recovery_command_before(self, seq: int) -> str:
        """Return the command that restores the state before a cell; empty if there was no earlier cell.

        >>> ReplayEstimate().recovery_command_before(22), ReplayEstimate().recovery_command_before(1)
        ('%mhjax restart --replay --to 21', '')
        """
        # A replay cannot stop at a number that an earlier replay left out; of a cluster that was taken over, earlier
        # numbers are unknown.
        to = max((known for known in self._seqs if known < seq), default=seq - 1)
        return f"%mhjax restart --replay --to {to}" if to > 0 else ""

    def recovery_command(self) -> str:
        """Return the command that restores the state, and how long it takes if that is known.

        >>> ReplayEstimate().recovery_command()
        '%mhjax restart --replay'
        """
        if not self._cells:
            return "%mhjax restart --replay"
        seconds = max(1, round(self._seconds))
        took = f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"
        return f"%mhjax restart --replay ({pluralize(self._cells, 'cell')}, about {took})"
