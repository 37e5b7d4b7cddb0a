"""Plan a pull: which ranks hold, agree on and send each part.

It decides on rows that the ranks reported. It uses no sockets, no array library and no values.
For a value that differs between the ranks it suggests how to pull it; only options that would work are suggested. A value
whose arrays are each on one rank gets the default advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mhnb.core.guard.provenance import describe_provenance
from mhnb.core.ranks import describe_ranks, format_ranks, group_ranks
from mhnb.core.variables import format_array
from mhnb.errors import InvalidRequest, NameMissing, ValueDiffers
from mhnb.sharding.boxes import Box, box_size, find_uncovered, format_box

KEY_REFUSAL_CODE = "prng_key"
"""The code of a refusal: NumPy has no type for PRNG keys."""
KEY_DATA_EXPRESSION = "jax.random.key_data(key)"
"""The expression to type instead, for its text. The rank that refuses an array does not know the array's name."""
CHUNK_NBYTES = 16 * 2**20
"""Size of one message of a large transfer."""
MAX_IN_FLIGHT = 2
"""The number of such messages requested at once, so that the next one travels while one is copied into place."""
INLINE_NBYTES = 64 * 1024
"""Values up to this size are sent with the first reply."""
COMPARE_NBYTES = 16 * 2**20
"""Values up to this size are compared by content when their bytes differ."""

Owners: TypeAlias = tuple[tuple[Box, tuple[int, ...]], ...]
"""The placement of a global array: each box with the rank of every device that holds it."""


class LocalBox(NamedTuple):
    """A box on one device, and the part with its row-major bytes."""

    box: Box
    ordinal: int
    """Position among the rank's local devices; -1 for host memory."""
    part: int
    digest: str
    """Hash of the bytes; empty if there is nothing to compare them with."""


@dataclass(frozen=True, slots=True)
class ArrayDescription:
    """One array within a value, as one rank describes it."""

    shape: tuple[int, ...]
    dtype: str
    order: str
    """`C`; or `F` for a column-major NumPy array, whose boxes and bytes are those of its transpose."""
    local_boxes: tuple[LocalBox, ...]
    owners: Owners | None = None
    """None for a NumPy array."""
    is_global: bool = False
    """Whether several ranks share this one array."""
    provenance: tuple[int, str] = (0, "")
    """Which launch produced it: a hash that is equal on ranks with the same steps, and a description; 0 for none."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that boxes refer to."""
        return self.shape[::-1] if self.order == "F" else self.shape

    @classmethod
    def from_row(cls, row: ArrayRow, tables: Sequence[Owners]) -> ArrayDescription:
        """Return the array of a row."""
        owners = None if row.table is None else tables[row.table]
        return cls(row.shape, row.dtype, row.order, row.local_boxes, owners, row.is_global, row.provenance)

    def to_row(self, table: int | None) -> ArrayRow:
        """Return the row that describes it; `table` is its owners' number."""
        return ArrayRow(self.shape, self.dtype, self.order, self.local_boxes, table, self.is_global, self.provenance)


class ArrayRow(NamedTuple):
    """An `ArrayDescription` as a rank sends it, with shared owners by number."""

    shape: tuple[int, ...]
    dtype: str
    order: str
    local_boxes: tuple[LocalBox, ...]
    table: int | None
    is_global: bool
    provenance: tuple[int, str]


class HeldValue(msgspec.Struct, frozen=True, tag="value"):
    """A `ValueDescription` as a rank sends it."""

    name: str
    summary: str
    skeleton: int
    buffers: tuple[int, ...]
    digest: str
    arrays: tuple[ArrayRow, ...]


class RefusedValue(msgspec.Struct, frozen=True, tag="refused"):
    """A value that a rank has but cannot send, with its `TransferRefusal`."""

    name: str
    code: str
    text: str


class HeldValues(msgspec.Struct, frozen=True):
    """A rank's reply to the first request of a pull."""

    values: tuple[HeldValue | RefusedValue, ...]
    tables: tuple[Owners, ...]
    """The owners of arrays, by number."""
    part_sizes: tuple[int, ...]
    """Bytes of each part that values and arrays refer to by number."""
    is_inline: bool
    """Whether the parts come with the reply."""
    missing: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Names that the rank does not have, with similar ones that it has."""


@dataclass(frozen=True, slots=True)
class TransferRefusal:
    """Why a rank cannot send a value."""

    code: str
    """`missing`, or a word for the problem with the value."""
    text: str
    """The problem and the next step, worded to follow the name in a sentence."""
    similar: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueDescription:
    """A named value on one rank: its pickle without arrays, and arrays.

    Parts are named by their numbers in the transfer.
    """

    name: str
    summary: str
    """A few words that distinguish it from another rank's value."""
    skeleton: int
    buffers: tuple[int, ...]
    digest: str
    """Hash of the pickle and its buffers."""
    arrays: tuple[ArrayDescription, ...]

    @property
    def local_parts(self) -> tuple[int, ...]:
        """Return the parts that hold this value's content, except for global arrays."""
        arrays = [held.part for row in self.arrays if not row.is_global for held in row.local_boxes]
        return tuple(dict.fromkeys((self.skeleton, *self.buffers, *arrays)))

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return a key of the local content; global arrays count by position."""
        return (self.digest, *(_local_signature(row) for row in self.arrays))


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request for the bytes of `box` from a rank's part."""

    rank: int
    part: int
    box: Box


def _local_signature(row: ArrayDescription) -> tuple[Any, ...]:
    if row.is_global:
        return ("global",)
    return (row.shape, row.dtype, row.order, tuple(sorted({(held.box, held.digest) for held in row.local_boxes})))


def check_present(name: str, answers: Mapping[int, ValueDescription | TransferRefusal]) -> dict[int, ValueDescription]:
    """Return every rank's row.

    Raises:
        NameMissing: the name does not exist on some or all ranks; `missing` are those ranks.
        InvalidRequest: a rank has the name but cannot send its value; `ranks` are those ranks.

    >>> sorted(check_present("n", {0: ValueDescription("n", "1", 0, (), "9a", ()), 1: ValueDescription("n", "1", 0, (), "9a", ())}))
    [0, 1]
    """
    refusals = {rank: answer for rank, answer in answers.items() if isinstance(answer, TransferRefusal)}
    missing = [rank for rank, refusal in refusals.items() if refusal.code == "missing"]
    if missing:
        raise _build_name_missing(name, missing, answers)
    if refusals:
        ranks, text = group_ranks({rank: refusal.text for rank, refusal in refusals.items()})[0]
        where = "" if len(ranks) == len(answers) else f" on {describe_ranks(ranks)}"
        raise InvalidRequest(f"{name}{where} {text}", name=name, ranks=ranks)
    return {rank: answer for rank, answer in answers.items() if isinstance(answer, ValueDescription)}


def _build_name_missing(
    name: str, missing: Sequence[int], answers: Mapping[int, ValueDescription | TransferRefusal]
) -> NameMissing:
    similar = sorted(
        {word for answer in answers.values() if isinstance(answer, TransferRefusal) for word in answer.similar}
    )
    hint = f" Similar names: {', '.join(similar[:5])}." if similar else ""
    holders = [rank for rank in answers if rank not in missing]
    if holders:
        text = (
            f"{name} is missing on {describe_ranks(missing)}, but exists on {describe_ranks(holders)}.{hint}"
            f"\n  Fix: %mhjax pull {name} --ranks {format_ranks(holders)}"
        )
    else:
        text = f"{name} does not exist on {describe_ranks(missing)}.{hint} To list the ranks' variables: %mhjax vars"
    return NameMissing(text, name=name, missing=tuple(sorted(missing)), similar=tuple(similar))


def merge_placements(rows: Mapping[int, ValueDescription]) -> dict[int, ValueDescription]:
    """Mark arrays global that another rank reports as global at that position.

    An array on the devices of one rank alone is local there, and global on another rank that holds a handle to it.

    >>> merge_placements({0: ValueDescription("n", "1", 0, (), "9a", ())})[0].name
    'n'
    """
    seen = {
        (row.digest, index, array.owners)
        for row in rows.values()
        for index, array in enumerate(row.arrays)
        if array.is_global
    }
    return {rank: replace(row, arrays=_merge_arrays(row, seen)) for rank, row in rows.items()}


def _merge_arrays(row: ValueDescription, seen: Set[tuple[str, int, Owners | None]]) -> tuple[ArrayDescription, ...]:
    return tuple(
        replace(array, is_global=array.is_global or (row.digest, index, array.owners) in seen)
        for index, array in enumerate(row.arrays)
    )


def build_value_differs(
    name: str, summaries: Mapping[int, str], groups: Sequence[Sequence[int]], *, where: str = "", advice: str = ""
) -> ValueDiffers:
    """Build the error for a value that differs between the ranks.

    Args:
        name: of the value.
        summaries: what each rank holds, in a few words.
        groups: the ranks with equal values, each group in rank order.
        where: the first difference in a container, in words.
        advice: how to pull it anyway; empty for the usual advice, one rank's value or a list of all.

    >>> str(build_value_differs("n", {0: "1", 1: "2"}, [(0,), (1,)])).splitlines()[0]
    'n differs between the ranks: 1 on rank 0, 2 on rank 1'
    """
    ordered = sorted(groups, key=lambda ranks: (-len(ranks), ranks[0]))
    words = [summaries[ranks[0]] for ranks in ordered]
    if len(set(words)) < len(words):
        words = [word if index == 0 else f"another {word}" for index, word in enumerate(words)]
    held = ", ".join(f"{word} on {describe_ranks(ranks)}" for word, ranks in zip(words, ordered, strict=True))
    differing_rank = ordered[-1][0]
    return ValueDiffers(
        f"{name} differs between the ranks: {held}{f' ({where})' if where else ''}{advice or _format_choice(name, differing_rank)}",
        name=name,
        groups=tuple(tuple(ranks) for ranks in ordered),
    )


def _format_choice(name: str, rank: int) -> str:
    return f"\n  Fix: %mhjax pull {name} --ranks {rank} (one rank's value)\n  Or: %mhjax pull {name} --each (a list by rank)"


def check_placements(name: str, rows: Mapping[int, ArrayDescription]) -> None:
    """Check that ranks describe one global array: equal shape, dtype and placement.

    Raises:
        ValueDiffers: they do not; `groups` are the ranks that agree.

    >>> check_placements("x", {rank: ArrayDescription((2,), "float32", "C", (), ((((0, 2),), (0, 1)),)) for rank in (0, 1)})
    """
    seen = group_ranks({rank: (row.shape, row.dtype, row.owners) for rank, row in rows.items()})
    if len(seen) == 1:
        return
    words = [format_array(shape, dtype) for _, (shape, dtype, _) in seen]
    disagreement = "shape or dtype" if len(set(words)) > 1 else "sharding"
    held = ", ".join(f"{word} on {describe_ranks(ranks)}" for word, (ranks, _) in zip(words, seen, strict=True))
    raise ValueDiffers(
        f"{name} is a global array and its {disagreement} differs between the ranks: {held}."
        " Build it with the same global shape and sharding on every rank, and run that cell again",
        name=name,
        groups=tuple(ranks for ranks, _ in seen),
    )


def check_provenance(name: str, rows: Mapping[int, ArrayDescription]) -> None:
    """Check that an array's shards have equal provenance; `check_replicas` compares replicas.

    Raises:
        ValueDiffers: they do not.

    >>> check_provenance("x", {rank: ArrayDescription((2,), "float32", "C", (), provenance=(7, "jit(f)")) for rank in (0, 1)})
    """
    # A rank without any shard of the array may still have a handle to it.
    holders = {rank: row for rank, row in rows.items() if row.local_boxes}
    description = describe_provenance({rank: row.provenance for rank, row in holders.items()})
    if description and any(find_missing_box({rank: row}) is not None for rank, row in holders.items()):
        groups = group_ranks({rank: row.provenance[0] for rank, row in holders.items()})
        raise ValueDiffers(
            f"{name} was computed differently on different ranks ({description}), so its shards do not form one array."
            f" Compute it the same way on every rank. A rank's own shards are in {name}.addressable_shards",
            name=name,
            groups=tuple(ranks for ranks, _ in groups),
        )


def check_replicas(name: str, rows: Mapping[int, ArrayDescription]) -> None:
    """Check that devices with the same box hold the same bytes.

    Raises:
        ValueDiffers: two of them do not; `box` is the first such box, `groups` its (rank, ordinal)s by equal content.

    >>> check_replicas("x", {3: ArrayDescription((2,), "float32", "C", (LocalBox(((0, 2),), 0, 7, ""),))})
    """
    copies: dict[Box, dict[tuple[int, int], str]] = {}
    for rank, row in rows.items():
        for held in row.local_boxes:
            copies.setdefault(held.box, {})[rank, held.ordinal] = held.digest
    for box in sorted(copies):
        if len(set(copies[box].values())) > 1:
            raise _build_replicas_differ(name, next(iter(rows.values())), box, copies[box])


def _build_replicas_differ(
    name: str, row: ArrayDescription, box: Box, copies: Mapping[tuple[int, int], str]
) -> ValueDiffers:
    by_digest: dict[str, list[tuple[int, int]]] = {}
    for device in sorted(copies):
        by_digest.setdefault(copies[device], []).append(device)
    devices = " ≠ ".join(
        " ".join(f"{rank}:{ordinal}" for rank, ordinal in devices_of_digest) for devices_of_digest in by_digest.values()
    )
    ranks = {rank for rank, _ in copies}
    advice = _format_choice(name, min(ranks)) if len(ranks) > 1 else ""
    return ValueDiffers(
        f"{name} {format_array(row.shape, row.dtype)}: devices that should hold replicas of {format_box(box)}"
        f" hold different values: {devices}. It was built from different values on the ranks."
        f" Use the same seed on every rank, or broadcast from one rank{advice}",
        name=name,
        box=box,
        groups=tuple(tuple(places) for places in by_digest.values()),
    )


def check_coverage(name: str, rows: Mapping[int, ArrayDescription]) -> None:
    """Check that these ranks together hold all of the array.

    Raises:
        InvalidRequest: a part is only on other ranks; `box` is the first such part, `ranks` are its holders.

    >>> check_coverage("x", {3: ArrayDescription((2,), "float32", "C", (LocalBox(((0, 2),), 0, 7, ""),))})
    """
    row = next(iter(rows.values()))
    missing = find_missing_box(rows)
    if missing is None:
        return
    ranks = sorted({rank for box, ranks in row.owners or () for rank in ranks if _overlap(box, missing)})
    holders = f"that is on {describe_ranks(ranks)}" if ranks else "that no device holds"
    raise InvalidRequest(
        f"{name} {format_array(row.shape, row.dtype)} is sharded over several ranks: {describe_ranks(rows)} do"
        f"{'es' if len(rows) == 1 else ''} not hold {format_box(missing)}, {holders}. Leave out --ranks",
        name=name,
        box=missing,
        ranks=tuple(ranks),
    )


def find_missing_box(rows: Mapping[int, ArrayDescription]) -> Box | None:
    """Return a box that these ranks do not hold, or None.

    >>> find_missing_box({3: ArrayDescription((2,), "float32", "C", (LocalBox(((0, 1),), 0, 7, ""),))})
    ((1, 2),)
    """
    row = next(iter(rows.values()))
    return find_uncovered(row.stored_shape, sorted({held.box for r in rows.values() for held in r.local_boxes}))


def _overlap(left: Box, right: Box) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(left, right, strict=True))


def plan_fetches(rows: Mapping[int, ArrayDescription], *, prefer: int | None = None) -> tuple[Fetch, ...]:
    """Choose each box's sender: `prefer` if possible, else the least loaded rank.

    Args:
        rows: the same array as described by each of its ranks.
        prefer: a rank whose own copies go first; None for no preference.

    >>> plan_fetches({3: ArrayDescription((2,), "float32", "C", (LocalBox(((0, 2),), 0, 7, ""),))})
    (Fetch(rank=3, part=7, box=((0, 2),)),)
    """
    holders: dict[Box, dict[int, int]] = {}
    for rank in sorted(rows):
        for held in rows[rank].local_boxes:
            holders.setdefault(held.box, {}).setdefault(rank, held.part)
    load = dict.fromkeys(rows, 0)
    fetches = []
    # Boxes with few holders are planned first, because the other boxes can avoid a busy rank.
    for box in sorted(holders, key=lambda b: (len(holders[b]), b)):
        holders_of_box = holders[box]
        rank = prefer if prefer in holders_of_box else min(holders_of_box, key=lambda r: (load[r], r))
        load[rank] += box_size(box)
        fetches.append(Fetch(rank, holders_of_box[rank], box))
    return tuple(fetches)


# -- advice for a value that differs


_MAX_GROUPS = 2
"""At most this many of the differing groups are offered."""


def suggest_pull_options(
    name: str,
    rows: Mapping[int, ValueDescription],
    groups: Sequence[Sequence[int]],
    array_numbers: Mapping[int, Sequence[int]],
) -> str:
    """Suggest pulls of a differing value whose arrays span ranks; otherwise empty.

    Args:
        groups: the ranks with equal values.
        array_numbers: for a rank, its number of each array of the first rank; a rank that is not listed uses the same numbers.

    >>> values = {0: ValueDescription("n", "1", 0, (), "9a", ()), 1: ValueDescription("n", "2", 0, (), "9b", ())}
    >>> suggest_pull_options("n", values, [(0,), (1,)], {})
    ''
    """
    if all(_is_complete(rows, [rank], {}) for rank in rows):
        return ""
    # The group with more of an array is most likely the intended one; a long list of groups would not help.
    ordered = sorted(groups, key=lambda ranks: (-_count_global(rows[ranks[0]]), -len(ranks), ranks[0]))
    options = [
        f"%mhjax pull {name} --ranks {format_ranks(ranks)} (from {describe_ranks(ranks)})"
        for ranks in ordered
        if _is_complete(rows, ranks, array_numbers)
    ][:_MAX_GROUPS]
    if _can_list(rows):
        options.append(f"%mhjax pull {name} --each (a list by rank)")
    if options:
        return "\n  Fix: " + "\n  Or: ".join(options)
    return (
        ". No rank holds all of its arrays: on the ranks, assign each array to its own name, and pull these one by one"
    )


def _count_global(row: ValueDescription) -> int:
    return sum(array.is_global for array in row.arrays)


def _is_complete(
    rows: Mapping[int, ValueDescription], ranks: Sequence[int], array_numbers: Mapping[int, Sequence[int]]
) -> bool:
    """Return whether ranks with equal values together hold their global arrays completely."""
    first = rows[ranks[0]]
    return all(
        find_missing_box({r: rows[r].arrays[array_numbers[r][index] if r in array_numbers else index] for r in ranks})
        is None
        for index, array in enumerate(first.arrays)
        if array.is_global
    )


def _can_list(rows: Mapping[int, ValueDescription]) -> bool:
    """Return whether `--each` works: ranks together hold the same global arrays completely."""
    if len({row.digest for row in rows.values()}) > 1:
        return False
    # Rows with equal digests have equally many arrays.
    for same in zip(*(row.arrays for row in rows.values()), strict=True):
        if any(array.is_global for array in same):
            views = {(array.shape, array.dtype, array.owners) for array in same}
            if len(views) > 1 or find_missing_box(dict(enumerate(same))) is not None:
                return False
    return True
