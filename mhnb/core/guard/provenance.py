"""Compare the provenance of a launch's arrays across ranks before the launch.

An array's value is a hash of the launch that made it, of its contents, or of where it was made of host data. Equal values mean equal
arrays. Two values are special. `ANY` matches every other: for example, the array is not computed yet. `UNKNOWN` belongs to an array
without provenance: the guard did not see where it was made, and it matches only other such arrays.

Sharded host data that was made in a call of a pool, or in a task, has two hashes in one value: of the call's function and arguments,
and of the call's number among those of its function. The ranks may submit equal calls in any order, or calls with arguments of their
own (each its own files) in the same order. So the arrays are equal if one of the two hashes is equal on all ranks.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from mhnb.core.guard.host_data import EQUAL_VALUES_HINT, PROCESS_LOCAL_HINT, Sample, format_gap, read_sample
from mhnb.core.guard.programs import CALLS
from mhnb.core.ranks import describe_ranks, format_ranks, group_ranks, ranks_by_key

HOST_DATA = "host data"
"""Producer of an array that was not made by a launch."""
SHARDED_HOST_DATA = f"sharded {HOST_DATA}"
"""Producer of an array of which no rank holds all: its value depends on where it was made."""
UNKNOWN = 0
"""Value of an array without provenance."""
ANY = (1 << 63) - 1
"""Value of an array that cannot be compared before the launch: it matches every other."""
HASH_MASK = (1 << 61) - 1
"""Largest of the values of one hash."""
_TWO_HASHES, _HALF_BITS = 1 << 61, 30
"""Value of two hashes: this bit, and this many bits of each."""
_HALF_MASK = (1 << _HALF_BITS) - 1
_PARTIAL, _BLOCKS = 1 << 62, 31
"""Value of several arrays, some of which are `ANY`: this bit, one bit for each block of arrays that holds such an array, and a hash of
the rest. Up to this many arrays, each is a block of its own.
"""
_SHOWN_LINES, _SHOWN_ARRAYS = 4, 3
_TYPES = re.compile(r"^(\S+) (?:\(\)|[^()]*) → (?:\(\)|[^()]*?)(?= \(|" + CALLS + ")")
"""Name and types of the program in the text of what made an array."""
_MAX_SEQ = (1 << 32) - 1
_UNKNOWN_TEXT = "of unknown history (made with --guard off or parity)"
_UNKNOWN_HINT = "Make it in the same cell and with the same guard on every rank."
_CALLBACK_HINT = "If the values of a callback belong to its rank, pass mhnb.per_rank(callback) to JAX."
_ORDER_HINT = (
    "Sort file lists, sets and dicts; make each array on the same line, the same number of times on every rank."
)


class InputRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of a launch that was refused, as on one rank."""

    value: Annotated[int, Meta(ge=0, le=ANY)]
    seq: Annotated[int, Meta(ge=0, le=_MAX_SEQ)]
    """The cell that made it; 0 if no cell did, or if the state before that cell is no better."""
    kind: str
    """Such as `f32[8]`."""
    producer: str
    """What made it; empty for an array that was laid out for this launch only."""
    sample: Sample
    name: str = ""
    """The user's expression for it, such as `params['w']`; empty if the rank has seen none."""


def join_hashes(one: int, other: int) -> int:
    """Join two hashes, either of which may match; less than 2**62.

    >>> find_conflict([join_hashes(3, 5), join_hashes(3, 6)]), len(find_conflict([join_hashes(3, 5), join_hashes(4, 6)]))
    ([], 2)
    """
    return _TWO_HASHES | (one & _HALF_MASK) << _HALF_BITS | other & _HALF_MASK


def hash_values(values: Sequence[int]) -> int:
    """Hash several values, except `ANY`; two-hash values give a two-hash result.

    >>> hash_values([5, 7]) == hash_values([7, 5]), hash_values([5, 7]) < _TWO_HASHES <= hash_values([5, join_hashes(3, 5)])
    (False, True)
    >>> find_conflict([hash_values([5, join_hashes(3, 5)]), hash_values([5, join_hashes(3, 6)])])
    []
    """
    # Numbers and tuples of them have the same hash in every process of one version of Python, and all ranks have one.
    if max(values, default=0) < _TWO_HASHES:
        return hash(tuple(values)) & HASH_MASK
    halves = zip(*((value, value) if value < _TWO_HASHES else _split_hashes(value) for value in values), strict=True)
    return join_hashes(*map(hash, halves))


def _split_hashes(value: int) -> tuple[int, int]:
    return value >> _HALF_BITS & _HALF_MASK, value & _HALF_MASK


def are_equal(values: Iterable[int]) -> bool:
    """Check whether the ranks' values may belong to equal arrays.

    >>> are_equal([5, ANY, 5]), are_equal([5, 7]), are_equal([join_hashes(3, 5), join_hashes(3, 6)])
    (True, False, True)
    """
    known = {*values} - {ANY}
    if len(known) < 2:
        return True
    if not all(value & ~HASH_MASK == _TWO_HASHES for value in known):
        return False
    return any(len({*half}) == 1 for half in zip(*map(_split_hashes, known), strict=True))


def combine_values(values: Sequence[int], uncompared: int = 0) -> int:
    """Hash the values of a launch's arrays; the result is below 2**63.

    Args:
        uncompared: blocks of arrays that are `ANY` on another rank, as returned by `uncompared_blocks`.

    >>> combine_values([5, 7]) == combine_values([7, 5]), combine_values([5, UNKNOWN]) == combine_values([5, UNKNOWN])
    (False, True)
    >>> combine_values([5, 7], uncompared_blocks(combine_values([ANY, 7]))) == combine_values([ANY, 7])
    True
    """
    if not uncompared and ANY not in values:
        return hash_values(values)
    count = len(values)
    for position, value in enumerate(values):
        uncompared |= (value == ANY) << _block(position, count)
    compared = [value for place, value in enumerate(values) if not uncompared >> _block(place, count) & 1]
    # There is room for one hash only: the call's number, which does not depend on what each rank passes to it.
    one_hash = tuple(value if value < _TWO_HASHES else _split_hashes(value)[1] for value in compared)
    return _PARTIAL | uncompared << _BLOCKS | hash(one_hash) % (1 << _BLOCKS)


def _block(position: int, count: int) -> int:
    return position if count <= _BLOCKS else position * _BLOCKS // count


def find_conflict(values: Iterable[int]) -> list[int]:
    """Return the values that contradict each other; empty if all may match.

    Two values are compared only if the same arrays are `ANY` in both: see `join_uncompared_blocks`.

    >>> find_conflict([5, 7, 5, ANY]), find_conflict([5, combine_values([ANY, 7])])
    ([5, 7], [])
    >>> len(find_conflict([combine_values([ANY, 7]), combine_values([ANY, 8])]))
    2
    """
    kinds: dict[int, dict[int, None]] = {}
    for value in values:
        kinds.setdefault(uncompared_blocks(value), {})[value] = None
    return next((list(found) for found in kinds.values() if not are_equal(found)), [])


def join_uncompared_blocks(values: Iterable[int]) -> int:
    """Join the ranks' uncompared blocks as bits; 0 if all are equal.

    >>> unknown = combine_values([ANY, 7])
    >>> join_uncompared_blocks([5, 5]), join_uncompared_blocks([unknown]), join_uncompared_blocks([5, unknown])
    (0, 0, 1)
    """
    found = {uncompared_blocks(value) for value in values}
    return functools.reduce(operator.or_, found) if len(found) > 1 else 0


def uncompared_blocks(value: int) -> int:
    """Return a launch's uncompared blocks of arrays, one bit each.

    >>> uncompared_blocks(combine_values([5, 7])), uncompared_blocks(combine_values([5, ANY]))
    (0, 2)
    """
    return (value & ~_PARTIAL) >> _BLOCKS if value & _PARTIAL else 0


def uncompared_positions(blocks: int, count: int) -> list[int]:
    """Return the positions of the arrays that are not compared.

    Args:
        count: of the launch's arrays.

    >>> uncompared_positions(uncompared_blocks(combine_values([ANY, 7, ANY])), 3), uncompared_positions(0, 3)
    ([0, 2], [])
    """
    return [place for place in range(count) if blocks >> _block(place, count) & 1] if blocks else []


def find_divergence(rows: Iterable[Sequence[InputRow]]) -> int:
    """Return the first cell in which ranks made different arrays, or 0.

    Of the cells that made an array which differs, the latest counts, because the other ranks still hold an earlier version.
    An array whose name differs does not count: the ranks chose two variables, each of which may be the same everywhere.

    Args:
        rows: by rank.

    >>> same, one, two = (InputRow(value, seq, "f32[]", "", "") for value, seq in ((5, 2), (7, 3), (8, 22)))
    >>> find_divergence([[same, one], [same, two]]), find_divergence([[same], [same]])
    (22, 0)
    """
    columns = [same for same in zip(*rows, strict=False) if not are_equal(row.value for row in same)]
    latest_cells = [max(row.seq for row in same) for same in columns if not _is_chosen(same)]
    return min(filter(None, latest_cells), default=0)


def _is_chosen(same: Sequence[InputRow]) -> bool:
    names = {row.name for row in same}
    return len(names) > 1 and "" not in names


def describe_divergence(rows: Mapping[int, Sequence[InputRow]]) -> list[str]:
    """Describe the differing arrays of a refused launch, and the fix.

    Arrays that differ in the same way share a line.

    >>> one, two = ([InputRow(value, 0, "f32[]", "", f"000000000000{n}40", "lr")] for value, n in ((5, "00"), (6, "40")))
    >>> print(describe_divergence({0: one, 1: two, 2: two})[0])
    lr, f32[], is 32.0 on ranks 1-2, 2.0 on rank 0
    """
    members: dict[tuple[str, str], list[_DifferentArray]] = {}
    hints: list[str] = []
    columns = zip(*rows.values(), strict=False)
    for number, same in enumerate(columns, 1):
        by_rank = {rank: row for rank, row in zip(rows, same, strict=True) if row.value != ANY}
        if not are_equal(row.value for row in by_rank.values()):
            array = _describe_array(number, by_rank)
            members.setdefault((array.verb, array.difference), []).append(array)
            hints += [array.hint] if array.hint and array.hint not in hints else []
    shown = [_format_alike(arrays) for arrays in members.values()][:_SHOWN_ARRAYS]
    more = sum(map(len, list(members.values())[_SHOWN_ARRAYS:]))
    left_out = f"{more} more array{'s' if more > 1 else ''} of the launch differ{'' if more > 1 else 's'}"
    return [*shown, *([left_out] if more else []), *hints]


class _DifferentArray(NamedTuple):
    """An array of a refused launch that differs between ranks."""

    number: int
    """Among the arrays of the launch, from 1."""
    name: str
    kind: str
    verb: str
    """`is` or `has`."""
    difference: str
    hint: str


_PLURALS = {"is": "are", "has": "have"}


def _format_alike(arrays: Sequence[_DifferentArray]) -> str:
    """Format arrays that differ in the same way."""
    first, *others = arrays
    verb = _PLURALS[first.verb] if others else first.verb
    if others and not any(array.name for array in arrays):
        subject = f"arrays {format_ranks([array.number for array in arrays])} of the launch"
    else:
        named = [array.name or f"array {array.number} of the launch" for array in arrays]
        more = len(named) - _SHOWN_ARRAYS
        subject = ", ".join(named[:_SHOWN_ARRAYS]) + (f" and {more} more" if more > 0 else "")
    kinds = {array.kind for array in arrays}
    kind = f", {first.kind}," if first.kind and len(kinds) == 1 else ""
    return f"{subject}{kind} {verb} {first.difference}"


def _format_name(number: int, by_rank: Mapping[int, InputRow]) -> str:
    """Return the user's name of an array; empty if unknown."""
    names = ranks_by_key({rank: row.name for rank, row in by_rank.items()})
    if len(names) == 1:
        return next(iter(names))
    each = [f"{name} on {describe_ranks(ranks)}" for name, ranks in names.items() if name]
    return f"array {number} of the launch ({', '.join(each)})"


def _describe_array(number: int, by_rank: Mapping[int, InputRow]) -> _DifferentArray:
    groups = [
        (ranks, by_rank[ranks[0]]) for ranks, _ in group_ranks({rank: row.value for rank, row in by_rank.items()})
    ]
    rows, samples = [row for _, row in groups], [read_sample(row.sample) for _, row in groups]
    kind = rows[0].kind
    array = _DifferentArray(number, _format_name(number, by_rank), kind, "is", "", "")
    producers = describe_provenance(
        {rank: (row.value, row.producer or "a value passed to it") for rank, row in by_rank.items()}
    )
    if any(row.value == UNKNOWN for row in rows):
        return array._replace(difference=producers, hint=_UNKNOWN_HINT)
    gap = format_gap(kind, samples)
    origins = f"{producers}{f'; {gap}' if gap else ''}"
    if any(CALLS in row.producer for row in rows):
        return array._replace(difference=origins, hint=_CALLBACK_HINT)
    if any(row.producer for row in rows):
        hint = EQUAL_VALUES_HINT if all(samples) else ""
        hint = _ORDER_HINT if all(row.producer.startswith(SHARDED_HOST_DATA) for row in rows) else hint
        return array._replace(difference=origins, hint=hint)
    if all(len(sample) == 1 for sample in samples):
        values = ", ".join(
            f"{sample[0]!r} on {describe_ranks(ranks)}" for (ranks, _), sample in zip(groups, samples, strict=True)
        )
        return array._replace(difference=values, hint=EQUAL_VALUES_HINT)
    who = " than on ".join(describe_ranks(ranks) for ranks, _ in reversed(groups))
    return array._replace(
        verb="has",
        difference=f"different values on {who}{f'; {gap}' if gap else ''}",
        hint=f"{EQUAL_VALUES_HINT} {PROCESS_LOCAL_HINT}",
    )


def describe_provenance(by_rank: Mapping[int, tuple[int, str]]) -> str:
    """Describe one array's origin on each rank; empty if all are equal.

    The types of a program are left out unless they are all that differs.

    Args:
        by_rank: by rank, the array's value, and what made it as text.

    >>> describe_provenance({0: (7, "jit(f) (cell 2)"), 1: (5, "host data"), 2: (5, "host data")})
    'from host data on ranks 1-2, from jit(f) (cell 2) on rank 0'
    >>> describe_provenance({0: (7, "jit(f)"), 1: (7, "jit(f)")})
    ''
    """
    groups = group_ranks({rank: value for rank, (value, _) in by_rank.items() if value != ANY})
    if are_equal(value for value, _ in by_rank.values()):
        return ""
    producers = [by_rank[ranks[0]][1] or HOST_DATA for ranks, _ in groups]
    short = [_TYPES.sub(r"\1", producer) for producer in producers]
    if len({*short}) == len({*producers}):
        producers = short
    texts = [
        _UNKNOWN_TEXT if value == UNKNOWN else f"from {producer}"
        for producer, (_, value) in zip(producers, groups, strict=True)
    ]
    texts = [f"{word} (another one)" if word in texts[:at] else word for at, word in enumerate(texts)]
    return ", ".join(f"{word} on {describe_ranks(ranks)}" for word, (ranks, _) in zip(texts, groups, strict=True))


def format_uncompared(count: int, lines: Iterable[int]) -> str:
    """Format the note on arrays of launches that were not compared.

    >>> format_uncompared(1, [2])
    '1 array was not compared: made in a thread, with --guard off, parity or --ranks, or not seen by the guard (line 2)'
    """
    what = "1 array was" if count == 1 else f"{count} arrays were"
    where = _format_lines(lines)
    return (
        f"{what} not compared: made in a thread, with --guard off, parity or --ranks, or not seen by the guard{where}"
    )


def format_per_rank(lines: Iterable[int | None]) -> str:
    """Format the note on host callbacks declared with `mhnb.per_rank`.

    >>> format_per_rank([3, None, 2])
    'values of host callbacks were not compared: declared with mhnb.per_rank (lines 2, 3)'
    """
    known = [line for line in lines if line is not None]
    return f"values of host callbacks were not compared: declared with mhnb.per_rank{_format_lines(known)}"


def _format_lines(lines: Iterable[int]) -> str:
    shown = sorted(lines)
    listed = ", ".join(map(str, shown[:_SHOWN_LINES])) + (", …" if len(shown) > _SHOWN_LINES else "")
    return f" (line{'s' if len(shown) > 1 else ''} {listed})" if shown else ""


def format_producer(name: str, cell_name: str, line: int | None) -> str:
    """Format the launch that made an array.

    >>> format_producer("jit(multiply)", "cell 4", 2)
    'jit(multiply) (cell 4, line 2)'
    """
    return f"{name} ({cell_name}{f', line {line}' if line else ''})"
