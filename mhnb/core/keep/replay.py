"""What a replay does: which records of a journal are run again, and what is left out and why.

Pure: it neither reads the journal nor runs a cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.keep.journal import AcceptRecord, CellRecord, PushRecord, Record, ReplayRecord, StartRecord
from mhnb.core.keep.lost_names import find_setter
from mhnb.core.ranks import format_ranks, say_count, say_ranks
from mhnb.errors import InvalidRequest

__all__ = ["LeftOut", "Plan", "ReplayCost", "plan_replay", "say_who_set", "trace_left_out", "why_left_out"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that a replay does not do again."""

    what: str
    """As `cell 4` or `push x`."""
    why: str
    seq: int = 0
    """The cell's number; of a push, that of the cell before it."""
    source: str = ""
    """The cell's text."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay does."""

    generation: int
    """Whose records these are."""
    steps: tuple[CellRecord | PushRecord, ...] = ()
    """In the order in which they were done."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def cells(self) -> tuple[int, ...]:
        """The numbers of the cells that run again."""
        return tuple(step.seq for step in self.steps if isinstance(step, CellRecord))


def plan_replay(records: Sequence[Record], generation: int, to: int | None = None) -> Plan:
    """Choose what to do again: what made the state that the user had before the last restarts.

    That is the newest generation in which the user did something, or which was replayed to its end.
    One that only came back in part, or was never used, does not count: its source still does.

    Args:
        records: the whole journal.
        generation: where to look first, then at the one before it, and so on.
        to: the number of the last cell to run; None for all.

    Raises:
        InvalidRequest: there is no such cell.

    >>> plan_replay([StartRecord(1, "2 x 1"), CellRecord(1, 1, "x = 1"), StartRecord(2, "2 x 1", after=1)], 2).cells
    (1,)
    """
    generation = _source(records, generation)
    mine = [record for record in records if record.generation == generation]
    seqs = [record.seq for record in mine if isinstance(record, CellRecord)]
    if to is not None:
        if to not in seqs:
            known = f"cells {format_ranks(seqs)} of generation {generation}" if seqs else "no cell"
            raise InvalidRequest(f"restart --replay --to {to}: the journal has {known}; give the number of one of them")
        mine = mine[: 1 + next(at for at, r in enumerate(mine) if isinstance(r, CellRecord) and r.seq == to)]
    return Plan(generation, *_sort_out(mine))


def trace_left_out(records: Sequence[Record], generation: int) -> tuple[LeftOut, ...]:
    """List what a generation lacks: what would be left out of a replay of it, and what was left out of those that led to it.

    >>> old, new = CellRecord(1, 2, "f()", state="tainted"), ReplayRecord(2, 1, None, complete=True)
    >>> [str(each) for each in trace_left_out([StartRecord(1, "1 x 1"), old, StartRecord(2, "1 x 1", after=1), new], 2)]
    ['cell 2: tainted']
    """
    plan = plan_replay(records, generation)
    came = [r for r in records if isinstance(r, ReplayRecord) and r.generation == plan.generation and r.complete]
    before = [each for r in came if r.source_generation < plan.generation for each in _lacked(records, r)]
    return tuple(sorted(dict.fromkeys((*before, *plan.left_out)), key=lambda each: each.seq))


_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def say_who_set(evalue: str, left_out: Sequence[LeftOut], seq: int) -> str:
    """Say of a name that a cell misses which cell or push that was left out had set it; empty where none is known.

    Args:
        evalue: the text of the cell's NameError.
        seq: the cell's number: what came after it had set nothing yet.

    >>> say_who_set("name 'tqdm' is not defined", [LeftOut("cell 12", "interrupted", 12, "import tqdm")], 14)
    '`tqdm` was set by cell 12, which was left out (interrupted)'
    """
    found = _UNDEFINED.match(evalue)
    if found is None:
        return ""
    before = [each for each in left_out if each.seq < seq]
    setter = find_setter(found[1], [(str(at), each.source or _pushed(each)) for at, each in enumerate(before)])
    if setter is None:
        return ""
    by = before[int(setter)]
    return f"`{found[1]}` was set by {by.what}, which was left out ({by.why})"


def _pushed(push: LeftOut) -> str:
    return "".join(f"{name} = ...\n" for name in push.what.split()[1:])


def _lacked(records: Sequence[Record], replay: ReplayRecord) -> tuple[LeftOut, ...]:
    left_out = trace_left_out(records, replay.source_generation)
    return tuple(each for each in left_out if replay.to is None or each.seq <= replay.to)


def _source(records: Sequence[Record], newest: int) -> int:
    """Follow what came after what: a journal may also have the starts of a notebook that took another cluster over meanwhile."""
    starts = {record.generation: record for record in records if isinstance(record, StartRecord)}
    used = {record.generation for record in records if _is_used(record)}
    generation = newest
    # Cells of other ranks cannot be compared with those of these.
    while generation in starts and starts[generation].shape == starts[newest].shape:
        if generation in used:
            return generation
        generation = starts[generation].after
        if generation not in starts:
            # Its start could not be written, on a full disk, say; what came before it is there.
            generation = max((number for number in starts if number < generation), default=0)
    return newest


def _is_used(record: Record) -> bool:
    if isinstance(record, ReplayRecord):
        return record.complete
    return isinstance(record, CellRecord | PushRecord) and not record.replayed


def _sort_out(records: Sequence[Record]) -> tuple[tuple[CellRecord | PushRecord, ...], tuple[LeftOut, ...]]:
    steps: list[CellRecord | PushRecord] = []
    left_out: list[LeftOut] = []
    seq = 0
    for at, record in enumerate(records):
        seq = record.seq if isinstance(record, CellRecord) else seq
        if isinstance(record, PushRecord):
            if record.why_not:
                left_out.append(LeftOut(f"push {' '.join(record.names)}", record.why_not, seq))
            else:
                steps.append(record)
        elif isinstance(record, CellRecord):
            if why := why_left_out(record):
                accepted = at + 1 < len(records) and isinstance(records[at + 1], AcceptRecord)
                why = f"{why}, accepted then" if accepted else why
                left_out.append(LeftOut(f"cell {record.seq}", why, record.seq, record.source))
            else:
                steps.append(record)
    return tuple(steps), tuple(left_out)


def why_left_out(record: CellRecord) -> str:
    """Say why a cell is not run again; empty when it is: it ended clean, also when it raised.

    >>> why_left_out(CellRecord(1, 2, "f()", state="tainted")), why_left_out(CellRecord(1, 2, "f()"))
    ('tainted', '')
    """
    gone = [rank for rank, outcome in record.outcomes.items() if outcome in ("died", "killed")]
    refused = [rank for rank, outcome in record.outcomes.items() if outcome == "refused"]
    if record.how == "timeout":
        return "its --timeout ended it"
    if record.how or "interrupted" in record.outcomes.values():
        return "interrupted"
    if record.state == "stopped":
        return "the cluster was stopped during it"
    if record.state == "dead" or gone:
        return f"{say_ranks(gone)} did not live to its end" if gone else "the cluster died during it"
    if refused:
        return f"{say_ranks(refused)} refused it"
    return "" if record.state == "clean" else record.state


class ReplayCost:
    """What bringing the state of a generation back takes, counted as its cells end."""

    def __init__(self) -> None:
        self._cells, self._about_s = 0, 0.0
        self._seqs: list[int] = []

    def start(self, took_s: float) -> None:
        """The ranks were ready after so long."""
        self._about_s = took_s

    def add(self, record: CellRecord) -> None:
        """A cell has ended; one that a replay leaves out costs nothing."""
        self._seqs.append(record.seq)
        if not why_left_out(record):
            self._cells += 1
            self._about_s += record.wall_s

    def way_before(self, seq: int) -> str:
        """Name the command that brings back the state before a cell; empty where nothing is.

        >>> ReplayCost().way_before(22), ReplayCost().way_before(1)
        ('%mhjax restart --replay --to 21', '')
        """
        # Numbers that a replay has left out are none to stop at; of a cluster that was taken over earlier ones are not known.
        to = max((known for known in self._seqs if known < seq), default=seq - 1)
        return f"%mhjax restart --replay --to {to}" if to > 0 else ""

    def way_out(self) -> str:
        """Name the command that brings the state back, and what it costs where that is known.

        >>> ReplayCost().way_out()
        '%mhjax restart --replay'
        """
        if not self._cells:
            return "%mhjax restart --replay"
        seconds = max(1, round(self._about_s))
        took = f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"
        return f"%mhjax restart --replay ({say_count(self._cells, 'cell')}, about {took})"
