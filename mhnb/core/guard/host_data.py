"""Check after a cell whether ranks built arrays from equal host data.

JAX does not compare host data across ranks: replicas built from different values are read as different values, without an error.
Arrays are compared if they were made on the same line, equally often, over the same devices. A rank that made none, or more, raises
no alarm. Inputs of a launch that could not be compared before it are compared here per launch, whatever the line.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from mhnb.core.ranks import describe_ranks, split_list
from mhnb.sharding.boxes import WHOLE_ARRAY

LAUNCH_INPUT = "given "
"""Prefix of `place` in rows of launch inputs, whatever the line. Their hashes include which launch it was, and which argument."""
DIFFERENT_COPIES = "copies "
"""Prefix of `place` in rows of a box of which devices of one rank got different values; `boxes` has two of these values by their hash."""
INCOMPLETE = -1
"""Count of an incomplete `RunningHash`, which is not compared."""
_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "c64": 2.0**-23, "c128": 2.0**-52}
_LAST_DIGITS = 64
"""Values at most this many times their type's smallest step apart count as rounding differences."""
_ROUNDING_GAPS = ("the sign of zero", "the last digits")
_ROUNDING_HINT = (
    "Different processors round differently. Compute the value on one rank and broadcast it, or in one program on all ranks."
    " If the difference is harmless: %mhjax accept."
)
EQUAL_VALUES_HINT = "Make the values equal first: use the same seed, or read them on one rank and broadcast them."
PROCESS_LOCAL_HINT = "If each rank has its own data, use jax.make_array_from_process_local_data."
_LINE_SEPARATOR = " on line "
"""Separates the hash of the last launch input from the text of its line."""


Sample: TypeAlias = Annotated[str, Meta(pattern=r"\A([0-9a-f]{16})*\Z")]
"""A few values of an array as doubles in hex; may be empty."""


class HashSummary(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Count and hashes of several items, to compare across ranks."""

    count: int
    """`INCOMPLETE` if an item is missing."""
    groups: str
    """Hash of how many arrays were made between which two launches."""
    ordered: str
    """Hash of what was made there."""
    unordered: str
    """Hash of everything regardless of order."""
    last: str
    """Describes the array made last: a kind such as `f32[8]`, or a hash."""
    sample: Sample = ""
    """For a box, of the last array."""


class HostDataRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Arrays that a rank made of host data on one line."""

    line: int | None
    ranks: tuple[int, ...]
    """They share the array."""
    place: str
    """Identifies devices and spec, after `LAUNCH_INPUT` also the program; see `DIFFERENT_COPIES`."""
    kinds: HashSummary
    """Of shapes and types."""
    boxes: dict[str, HashSummary]
    """Of the bytes, by the text of each box that another rank holds too."""


@dataclass(frozen=True, slots=True)
class HostDataMismatch:
    """Arrays that should be equal on their ranks, and differ."""

    line: int | None
    box: str
    """The box whose bytes differ; empty if shapes or types differ."""
    kind: str
    """Of the last array on the lowest rank."""
    count: int
    ranks_by_value: dict[str, tuple[int, ...]]
    """What was made last, and on which ranks."""
    is_launch_input: bool = False
    """Whether the arrays were inputs of launches."""
    was_launched: bool = False
    """Whether a launch used an array that differs: its results differ, too."""
    gap: str = ""
    """How far the values differ, if a few of each are known."""
    is_within_ranks: bool = False
    """Whether devices of one rank differ."""


def compare_host_data(rows_by_rank: Mapping[int, Sequence[HostDataRow]]) -> tuple[HostDataMismatch, ...]:
    """Return the mismatches, in the order of the lines.

    Args:
        rows_by_rank: of the ranks that ran the cell.

    >>> kinds, (one, two) = HashSummary(1, "g", "k", "k", "f32[2]"), (HashSummary(1, "g", h, h, h) for h in ("a", "b"))
    >>> one, two = (HostDataRow(2, (0, 1), "d", kinds, {"0:2": bytes_hash}) for bytes_hash in (one, two))
    >>> compare_host_data({0: [one], 1: [one]})
    ()
    >>> compare_host_data({0: [one], 1: [two]})[0].ranks_by_value
    {'a': (0,), 'b': (1,)}
    """
    rows_by_key: dict[tuple[Any, ...], dict[int, HostDataRow]] = {}
    for rank, rows in sorted(rows_by_rank.items()):
        for row in rows:
            rows_by_key.setdefault((row.line, row.ranks, row.place), {})[rank] = row
    line_mismatches, input_mismatches, within_ranks = [], [], []
    for (line, ranks, place), by_rank in rows_by_key.items():
        if place.startswith(LAUNCH_INPUT):
            input_mismatches.append(_compare_launch_input(line, ranks, by_rank))
        elif place.startswith(DIFFERENT_COPIES):
            within_ranks.append(_describe_copies(line, ranks, by_rank))
        else:
            line_mismatches.append(_compare_line(line, ranks, by_rank))
    launched = [each for each in input_mismatches if each is not None]
    found = [replace(each, was_launched=bool(launched)) for each in line_mismatches if each is not None]
    if not any(each.box for each in found):
        # If a line already reports different values, the launch inputs would repeat it.
        found += launched
    return tuple(sorted(found + within_ranks, key=lambda each: (each.line or 0, each.kind)))


def _compare_launch_input(
    line: int | None, ranks: Sequence[int], by_rank: Mapping[int, HostDataRow]
) -> HostDataMismatch | None:
    kinds = {(row.kinds.count, row.kinds.unordered) for row in by_rank.values()}
    if set(by_rank) != set(ranks) or len(kinds) > 1:
        # A launch input of another kind on one rank is not a difference.
        return None
    first = by_rank[min(by_rank)].kinds
    for box in sorted({box for row in by_rank.values() for box in row.boxes}):
        hashes = {rank: row.boxes[box] for rank, row in by_rank.items() if box in row.boxes}
        if _can_be_compared(hashes) and len({each.unordered for each in hashes.values()}) > 1:
            gap = _find_gap(first.last, hashes)
            return HostDataMismatch(
                line,
                box,
                first.last,
                first.count,
                _group_by_last(hashes),
                is_launch_input=True,
                was_launched=True,
                gap=gap,
            )
    return None


def _compare_line(
    line: int | None, ranks: Sequence[int], by_rank: Mapping[int, HostDataRow]
) -> HostDataMismatch | None:
    kinds = {rank: row.kinds for rank, row in by_rank.items()}
    if set(kinds) != set(ranks) or len({kind.count for kind in kinds.values()}) > 1:
        return None
    first = kinds[min(kinds)]
    if _hashes_differ(kinds):
        return HostDataMismatch(line, "", first.last, first.count, _group_by_last(kinds))
    for box in sorted({box for row in by_rank.values() for box in row.boxes}):
        hashes = {rank: row.boxes[box] for rank, row in by_rank.items() if box in row.boxes}
        if _hashes_differ(hashes):
            kind, ranks_by_value = first.last, _group_by_last(hashes)
            return HostDataMismatch(line, box, kind, first.count, ranks_by_value, gap=_find_gap(kind, hashes))
    return None


def _describe_copies(line: int | None, ranks: Sequence[int], by_rank: Mapping[int, HostDataRow]) -> HostDataMismatch:
    members: dict[str, tuple[int, ...]] = {}
    for rank, row in by_rank.items():
        text = " and ".join(row.boxes)
        members[text] = (*members.get(text, ()), rank)
    first = by_rank[min(by_rank)]
    gap = format_gap(first.kinds.last, [read_sample(each.sample) for each in first.boxes.values()])
    # Ranks that hold all of one array are compared before a launch. If they all differ in the same way, it is launched.
    is_whole = first.place == DIFFERENT_COPIES + WHOLE_ARRAY and {row.kinds.count for row in by_rank.values()} == {1}
    is_same = len(members) == 1 and set(by_rank) == set(ranks)
    return HostDataMismatch(
        line,
        WHOLE_ARRAY,
        first.kinds.last,
        first.kinds.count,
        members,
        was_launched=is_same or not is_whole,
        gap=gap,
        is_within_ranks=True,
    )


def _hashes_differ(hashes: Mapping[int, HashSummary]) -> bool:
    """Check whether the ranks made different arrays, equally often.

    The order counts if each rank made as many between the same two launches; otherwise only the total counts.
    """
    if not _can_be_compared(hashes):
        return False
    in_order = len({each.groups for each in hashes.values()}) == 1
    return len({each.ordered if in_order else each.unordered for each in hashes.values()}) > 1


def _can_be_compared(hashes: Mapping[int, HashSummary]) -> bool:
    counts = {each.count for each in hashes.values()}
    return len(counts) == 1 and INCOMPLETE not in counts


def _group_by_last(hashes: Mapping[int, HashSummary]) -> dict[str, tuple[int, ...]]:
    members: dict[str, tuple[int, ...]] = {}
    for rank, each in sorted(hashes.items()):
        members[each.last] = (*members.get(each.last, ()), rank)
    return members


def _find_gap(kind: str, hashes: Mapping[int, HashSummary]) -> str:
    samples = {each.last: each.sample for _, each in sorted(hashes.items())}
    return format_gap(kind, [read_sample(sample) for sample in samples.values()])


def read_sample(sample: str) -> tuple[float, ...]:
    """Parse a few values of an array as written by a rank.

    >>> read_sample("0000000000000040"), read_sample("")
    ((2.0,), ())
    """
    data = bytes.fromhex(sample)
    return struct.unpack(f"<{len(data) // 8}d", data)


def format_gap(kind: str, samples: Sequence[Sequence[float]]) -> str:
    """Describe how far samples of arrays differ; empty if equal or unknown.

    Args:
        kind: such as `f32[8]`.
        samples: a few values of each array, at the same positions.

    >>> format_gap("f32[2]", [(0.0, 1.0), (-0.0, 1.0)]), format_gap("f32[2]", [(0.0, 1.0), (0.0, 1.0)])
    ('they differ in the sign of zero', '')
    >>> format_gap("f32[2]", [(1.0, 2.0), (1.0, 2.0000002)]), format_gap("i32[]", [(1.0,), (2.0,)])
    ('they differ in the last digits, by up to 2e-07 (2.0 and 2.0000002)', 'for example, the values 1 and 2')
    """
    first = samples[0] if samples else ()
    pairs = [pair for other in samples[1:] if len(other) == len(first) for pair in zip(first, other, strict=True)]
    differing = [(a, b) for a, b in pairs if _differ_in_bits(a, b)]
    if not differing or len({len(sample) for sample in samples}) > 1:
        return ""
    if all(a == b for a, b in differing):
        return "they differ in the sign of zero"
    a, b = max(differing, key=_gap)
    if _gap((a, b)) <= _LAST_DIGITS * _EPSILON.get(kind.partition("[")[0], 0.0) * max(map(_largest, pairs)):
        return f"they differ in the last digits, by up to {_gap((a, b)):.0e} ({a!r} and {b!r})"
    look_equal = f"{a:.7g}" == f"{b:.7g}"
    return f"for example, the values {a!r} and {b!r}" if look_equal else f"for example, the values {a:.7g} and {b:.7g}"


def _differ_in_bits(a: float, b: float) -> bool:
    if math.isnan(a) and math.isnan(b):
        return False
    return a != b or math.copysign(1.0, a) != math.copysign(1.0, b)


def _gap(pair: tuple[float, float]) -> float:
    a, b = pair
    if a == b:
        return 0.0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _largest(pair: tuple[float, float]) -> float:
    return max((abs(value) for value in pair if math.isfinite(value)), default=0.0)


_MAX_VALUES = 4
"""Hashes or shapes that an error lists; if there are more, their number follows."""


def format_host_data(difference: HostDataMismatch, source: str = "") -> str:
    """Format which line made which arrays on which ranks.

    Args:
        source: the cell's text.

    >>> print(format_host_data(HostDataMismatch(1, "0:2", "f32[2]", 1, {"a1": (0, 2), "b2": (1,)}), "w = make(v)"))
    the ranks have different values in replicas of one array, f32[2]
      line 1:  w = make(v)
      shard [0:2]: ranks 0,2 have hash a1, rank 1 has hash b2
      Make the values equal first: use the same seed, or read them on one rank and broadcast them. %mhjax check NAME compares a variable.
    >>> print(format_host_data(HostDataMismatch(None, "", "f32[2]", 3, {"f32[2]": (0,), "f32[4]": (1,)})))
    the ranks made one array with different shapes
      rank 0 made f32[2], rank 1 made f32[4] (3 arrays)
      Give every rank the same number of rows: pad, or drop the rest.
    """
    lines = source.splitlines()
    at = difference.line
    code = f":  {lines[at - 1].strip()}" if at is not None and 0 < at <= len(lines) else ""
    where = [] if at is None else [f"  line {at}{code}"]
    found = list(difference.ranks_by_value.items())
    shown, rest = split_list(found, _MAX_VALUES)
    described = ", ".join(f"{describe_ranks(ranks)} {_verb(difference, ranks)} {what}" for what, ranks in shown)
    if rest:
        others = [rank for _, ranks in rest for rank in ranks]
        have, nouns = ("have", "values") if difference.box else ("made", "shapes")
        described += f", {describe_ranks(others)} {have} {len(rest)} other {nouns}"
    values = {what.partition(_LINE_SEPARATOR)[0] for what in difference.ranks_by_value}
    if len(values) == 1 and not difference.is_within_ranks:
        described = "earlier values or their order differ; the last value is equal"
    count_text = f" ({difference.count} arrays)" if difference.count > 1 else ""
    # A scalar has no ranges to show.
    box = f"shard [{difference.box}]: " if difference.box not in ("", WHOLE_ARRAY) else ""
    head, hint = _describe_kind(difference)
    gap = [f"  {difference.gap}"] if difference.gap else []
    return "\n".join([head, *where, f"  {box}{described}{count_text}", *gap, f"  {hint}"])


def _verb(difference: HostDataMismatch, ranks: Sequence[int]) -> str:
    if not difference.box:
        return "made"
    if difference.is_within_ranks:
        return "has copies with hashes" if len(ranks) == 1 else "each have copies with hashes"
    return "has hash" if len(ranks) == 1 else "have hash"


def _describe_kind(difference: HostDataMismatch) -> tuple[str, str]:
    """Return the kind of the difference, and a hint."""
    if difference.is_within_ranks:
        return (
            f"the copies of one array on the devices of one rank differ, {difference.kind}",
            "JAX uses them as one value. Give all devices of a rank the same value. %mhjax check NAME compares a variable.",
        )
    if difference.box:
        for nearly in _ROUNDING_GAPS:
            if nearly in difference.gap:
                what = (
                    "passed values to one launch"
                    if difference.is_launch_input
                    else "have values in replicas of one array"
                )
                return f"the ranks {what} that differ in {nearly}, {difference.kind}", _ROUNDING_HINT
        what = (
            "passed different values to one launch"
            if difference.is_launch_input
            else "have different values in replicas of one array"
        )
        hint = (
            f"{EQUAL_VALUES_HINT} {PROCESS_LOCAL_HINT}"
            if difference.is_launch_input and difference.box == WHOLE_ARRAY
            else EQUAL_VALUES_HINT
        )
        return f"the ranks {what}, {difference.kind}", f"{hint} %mhjax check NAME compares a variable."
    if len({what.partition("[")[2] for what in difference.ranks_by_value}) < len(difference.ranks_by_value) == 2:
        return "the ranks made one array with different dtypes", "Use the same dtype on every rank."
    return (
        "the ranks made one array with different shapes",
        "Give every rank the same number of rows: pad, or drop the rest.",
    )
