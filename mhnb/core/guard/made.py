"""Whether the ranks put the same host data into the arrays that they hold together.

JAX takes each rank's word for it: replicas built from different values are read as different values, without an error.
Compared is what was made on the same line, as often, over the same devices; a rank that made none, or more, is nobody's alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mhnb.core.ranks import say_ranks

__all__ = ["MadeDifference", "MadeRow", "compare_made", "format_made"]

MadeRow: TypeAlias = list[Any]
"""Arrays that a rank made of host data, of one line: [line, ranks, place, kinds, boxes].

`ranks` share the array; `place` stands for devices and spec. `kinds` is a `Sums` of shapes and types. `boxes` maps the
text of each box that another rank holds too to a `Sums` of its bytes.

Sums: [count, groups, in order, in any order, last]. The middle three are hashes: of how many were made between which two
launches, of what was made there, and of all of it whatever its order. `last` is what was made last: a kind as `f32[8]`, or a hash.
"""

_COUNT, _GROUPS, _ORDERED, _TOTAL, _LAST = range(5)


@dataclass(frozen=True, slots=True)
class MadeDifference:
    """Arrays that should be the same on their ranks, and are not."""

    line: int | None
    box: str
    """The box whose bytes differ; empty where shapes or types do."""
    kind: str
    """As the lowest rank made the last one."""
    count: int
    by_what: dict[str, tuple[int, ...]]
    """What the ranks made last, and which ranks."""


def compare_made(rows_by_rank: Mapping[int, Sequence[MadeRow]]) -> tuple[MadeDifference, ...]:
    """Find what differs, in the order of the lines.

    Args:
        rows_by_rank: of the ranks that ran the cell.

    >>> one, two = ([2, [0, 1], "d", [1, "g", "k", "k", "f32[2]"], {"0:2": [1, "g", h, h, h]}] for h in ("a", "b"))
    >>> compare_made({0: [one], 1: [one]})
    ()
    >>> compare_made({0: [one], 1: [two]})[0].by_what
    {'a': (0,), 'b': (1,)}
    """
    places: dict[tuple[Any, ...], dict[int, MadeRow]] = {}
    for rank, rows in sorted(rows_by_rank.items()):
        for row in rows:
            places.setdefault((row[0], tuple(row[1]), row[2]), {})[rank] = row
    found = [_compare_place(line, ranks, by_rank) for (line, ranks, _), by_rank in places.items()]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: (each.line or 0, each.kind)))


def _compare_place(line: int | None, ranks: Sequence[int], by_rank: Mapping[int, MadeRow]) -> MadeDifference | None:
    kinds = {rank: row[3] for rank, row in by_rank.items()}
    if set(kinds) != set(ranks) or len({kind[_COUNT] for kind in kinds.values()}) > 1:
        return None
    first = kinds[min(kinds)]
    if _differ(kinds):
        return MadeDifference(line, "", first[_LAST], first[_COUNT], _members(kinds))
    for box in sorted({box for row in by_rank.values() for box in row[4]}):
        sums = {rank: row[4][box] for rank, row in by_rank.items() if box in row[4]}
        if _differ(sums):
            return MadeDifference(line, box, first[_LAST], first[_COUNT], _members(sums))
    return None


def _differ(sums: Mapping[int, Sequence[Any]]) -> bool:
    """Whether the ranks made different things, as often.

    Where each made as many between the same two launches, the order counts too; elsewhere only what there is in all.
    """
    if len({each[_COUNT] for each in sums.values()}) > 1:
        return False
    compared = _ORDERED if len({each[_GROUPS] for each in sums.values()}) == 1 else _TOTAL
    return len({each[compared] for each in sums.values()}) > 1


def _members(sums: Mapping[int, Sequence[Any]]) -> dict[str, tuple[int, ...]]:
    members: dict[str, tuple[int, ...]] = {}
    for rank, each in sorted(sums.items()):
        members[each[_LAST]] = (*members.get(each[_LAST], ()), rank)
    return members


def format_made(difference: MadeDifference, source: str = "") -> str:
    """Say which line made what on which ranks.

    Args:
        source: the cell's text.

    >>> print(format_made(MadeDifference(1, "0:2", "f32[2]", 1, {"a1": (0, 2), "b2": (1,)}), "w = make(v)"))
    the ranks put different values into replicas of one array, f32[2]
      line 1:  w = make(v)
      box [0:2]: ranks 0,2 put in a1, rank 1 put in b2
      Make the values equal first: the same seed, or read them on one rank and broadcast. %mhjax check NAME compares a variable.
    >>> print(format_made(MadeDifference(None, "", "f32[2]", 3, {"f32[2]": (0,), "f32[4]": (1,)})))
    the ranks made one array in different shapes
      rank 0 made f32[2], rank 1 made f32[4] (3 arrays made there)
      Give every rank as many rows: pad, or drop the rest.
    """
    lines = source.splitlines()
    at = difference.line
    code = f":  {lines[at - 1].strip()}" if at is not None and 0 < at <= len(lines) else ""
    where = [] if at is None else [f"  line {at}{code}"]
    verb = "put in" if difference.box else "made"
    told = ", ".join(f"{say_ranks(ranks)} {verb} {what[:12]}" for what, ranks in difference.by_what.items())
    if len(difference.by_what) == 1:
        told = "earlier ones differ, or their order; the last is equal"
    many = f" ({difference.count} arrays made there)" if difference.count > 1 else ""
    if difference.box:
        head = f"the ranks put different values into replicas of one array, {difference.kind}"
        cure = (
            "Make the values equal first: the same seed, or read them on one rank and broadcast."
            " %mhjax check NAME compares a variable."
        )
        # A scalar has no ranges to tell.
        told = told if difference.box == "whole" else f"box [{difference.box}]: {told}"
    elif len({what.partition("[")[2] for what in difference.by_what}) < len(difference.by_what) == 2:
        head, cure = "the ranks made one array of different types", "Give it one dtype, whatever the rank."
    else:
        head = "the ranks made one array in different shapes"
        cure = "Give every rank as many rows: pad, or drop the rest."
    return "\n".join([head, *where, f"  {told}{many}", f"  {cure}"])
