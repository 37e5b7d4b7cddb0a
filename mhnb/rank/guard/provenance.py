"""Tags of multi-rank arrays: `(value, producer, signature)`, set at creation.

Two ranks may launch the same program on arrays that do not belong together: an array that one rank made alone before it, or one that
was chosen by rank. So where the ranks agree on a launch they compare the tags of its arrays, too.

The same steps give the same value on every rank, in whatever order threads take them:

- an output of a launch on which the ranks agreed is identified by the launch, and by which of its outputs it is;
- an output of a program without a collective, by the program and the values of all its inputs;
- host data of which every rank holds all, by its content;
- other host data by where it was made, and which one of its kind it is there.

An array made under `--guard off` or `parity` carries no value: it is `UNKNOWN`. Nothing here reads an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from mhnb.core.guard.provenance import (
    ANY,
    HASH_MASK,
    SHARDED_HOST_DATA,
    UNKNOWN,
    InputRow,
    combine_values,
    format_per_rank,
    format_producer,
    format_uncompared,
    hash_values,
)
from mhnb.core.variables import format_array
from mhnb.rank.execution.cell_names import CELL_NAMES

ATTRIBUTE = "_mhnb_tag"
"""Attribute of an array: it goes where the array goes, and ends with it."""
PENDING = "_mhnb_pending"
"""Attribute of an array whose content is not known yet: the `HostArray` that it was made of."""
BOXES = "_mhnb_boxes"
"""Attribute of an array of which some ranks hold the same box, and none all: the `HostArray`s that it was made of."""
_COUNTED = "_mhnb_counted"
"""Attribute of an array that was not compared: the `UncomparedArrays` that counts it."""
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Producer(NamedTuple):
    """What made an array, for messages: a launch or host data."""

    name: str
    seq: int
    line: int | None
    pmap_value: int = 0
    """Where a pmap argument of each rank's own was made: it identifies only what a program without a collective computes from it."""
    has_unknown_inputs: bool = False
    """The array was computed from unknown arrays: it is not compared."""


_EMPTY, _EMPTY_VALUE = Producer("an empty array", 0, None), 1
"""Producer and tag value of an array without an element, whatever made it."""


Tag: TypeAlias = tuple[int, Producer | None, object]
"""Value; producer, None for an argument laid out for one launch; a token of the code that replaces JAX's dispatch."""
UNTAGGED: Tag = (UNKNOWN, None, None)
"""Used as the tag of an array without one."""


class OutputProvenance(NamedTuple):
    """Provenance that the outputs of a launch get."""

    value: int = UNKNOWN
    producer: Producer | None = None
    is_agreed: bool = False
    """Every participant makes the launch too: whatever its inputs are, the outputs are the same."""
    uncompared_mask: int = 0
    """Mask of the blocks of its arrays that the ranks did not compare."""


NOT_GUARDED = OutputProvenance()
"""Provenance of a launch under `--guard off` or `parity`, where the ranks may make different arrays on purpose."""


def read_tags(inputs: Iterable[object]) -> list[Tag]:
    """Return the tag of each array, without reading the array itself."""
    return [getattr(array, ATTRIBUTE, UNTAGGED) for array in inputs]


def read_content(array: object) -> Any:
    """Return the `HostArray` of a pending array, or else its tag value."""
    # In this order: a thread that finds it computed sets the tag before it removes the other attribute.
    pending = getattr(array, PENDING, None)
    return read_tags([array])[0][0] if pending is None else pending


def combine_tags(tags: Iterable[Tag], uncompared_mask: int = 0) -> int:
    """Return a hash of a launch's tag values, less than 2**63.

    Args:
        uncompared_mask: mask of the arrays that are not compared on another rank.
    """
    return combine_values([tag[0] for tag in tags], uncompared_mask)


def for_collective(participants: tuple[int, ...], number: int, producer: Producer) -> OutputProvenance:
    """Return the provenance of a cell's n-th collective launch of these participants."""
    return OutputProvenance(hash((participants, producer.seq, number)) & HASH_MASK, producer, is_agreed=True)


def for_local(fingerprint: int, tags: Sequence[Tag], producer: Producer) -> OutputProvenance:
    """Return the provenance of a launch without a collective or an agreement."""
    values = [tag[0] for tag in tags]
    if ANY in values:
        values = [producer.pmap_value or value if producer is not None else value for value, producer, _ in tags]
        if ANY in values:
            return OutputProvenance(ANY, producer)
    if UNKNOWN in values or (
        _has_unknown_arrays and any(made is not None and made.has_unknown_inputs for _, made, _ in tags)
    ):
        _mark_unknown()
        producer = producer._replace(has_unknown_inputs=True)
    return OutputProvenance(hash_values([fingerprint & HASH_MASK, *values]), producer)


_has_unknown_arrays = False
"""Whether an array was ever computed from unknown arrays: usually none was, and then no launch searches for one."""


def _mark_unknown() -> None:
    global _has_unknown_arrays  # noqa: PLW0603 - arrays live as long as the process
    _has_unknown_arrays = True


@lru_cache(64)
def _position_hashes(count: int) -> list[int]:
    return [hash((place, 0x9E3779B97F4A7C15)) & HASH_MASK for place in range(count)]


def tag_outputs(
    outputs: Sequence[Any],
    provenance: OutputProvenance,
    *,
    signatures: Sequence[object] | None = None,
    written_arrays: Mapping[int, Any] = _NOTHING,
    passed_through: Mapping[int, Any] = _NOTHING,
) -> None:
    """Set the tags of a launch's outputs.

    Args:
        signatures: the token of each output.
        written_arrays: mutable arrays that receive the output of a position.
        passed_through: arguments that are the output of a position unchanged: those keep their tags.
    """
    value, producer, agreed, _ = provenance
    if value == UNKNOWN:
        # A mutable array may be written where the guard does not see it.
        for output in written_arrays.values():
            vars(output).pop(ATTRIBUTE, None)
        for output, token in zip(outputs, signatures or (), strict=False):
            output._mhnb_tag = (UNKNOWN, None, token)
        return
    position_hashes = [0] * len(outputs) if value == ANY else _position_hashes(len(outputs))
    tokens = [None] * len(outputs) if signatures is None else signatures
    if not passed_through:
        for output, mix, token in zip(outputs, position_hashes, tokens, strict=True):
            output._mhnb_tag = (value ^ mix, producer, token)
        for place, output in written_arrays.items():
            output._mhnb_tag = (value ^ position_hashes[place], producer, None)
        return
    for place, output in [*enumerate(outputs), *written_arrays.items()]:
        # The tag of an argument that was made for this launch is not known to all ranks: it may not be computed yet.
        if place not in passed_through or (agreed and read_tags([passed_through[place]])[0][1] is None):
            setattr(output, ATTRIBUTE, (value ^ position_hashes[place], producer, tokens[place]))
        else:
            # A number that was laid out for this launch is an array from here on.
            copy_provenance(passed_through[place], output, producer, tokens[place])


def tag_array(array: Any, value: int, producer: Producer | None) -> None:
    """Tag an array that was made from host data.

    Args:
        producer: where it was made; None for an argument that was laid out for one launch.
    """
    setattr(array, ATTRIBUTE, (value, producer, None))


def tag_empty(inputs: Sequence[Any], places: Sequence[int]) -> None:
    """Tag inputs without elements, which are equal on every rank.

    Args:
        places: their positions.
    """
    for place in places:
        setattr(inputs[place], ATTRIBUTE, (_EMPTY_VALUE, _EMPTY, read_tags([inputs[place]])[0][2]))


def is_tagged(array: object) -> bool:
    """Return whether an array has a tag value, not only a token."""
    return getattr(array, ATTRIBUTE, UNTAGGED)[0] != UNKNOWN


def copy_provenance(source: object, target: Any, producer: Producer | None = None, token: object = None) -> None:
    """Copy provenance to an unchanged copy; `producer` replaces a missing one."""
    for name in (PENDING, BOXES):
        # Read once, because another thread may remove it.
        if (hosts := getattr(source, name, None)) is not None:
            setattr(target, name, hosts)
        else:
            vars(target).pop(name, None)
    # The token describes what the source looks like, and the target may look different.
    value, known, _ = getattr(source, ATTRIBUTE, UNTAGGED)
    setattr(target, ATTRIBUTE, (value, None if value == UNKNOWN else known or producer, token))


def read_provenance(array: object) -> tuple[int, str]:
    """Return an array's tag value and producer; 0 and empty if unknown."""
    if getattr(array, "size", None) == 0:
        return _EMPTY_VALUE, ""
    ((value, producer, _),) = read_tags([array])
    if producer is None:
        return value, ""
    return value, format_producer(producer.name, CELL_NAMES.format_name(producer.seq), producer.line)


def describe_inputs(inputs: Sequence[Any], sample_of: Callable[[int], str], names: Mapping[int, str]) -> list[InputRow]:
    """Return rows of a refused launch's arrays, to compare with other ranks.

    Args:
        names: the user's expressions for arrays, by `id`.
        sample_of: returns a few elements of the content with a value, as doubles in hex.
    """
    rows: list[InputRow] = []
    for array, (value, producer, _) in zip(inputs, read_tags(inputs), strict=True):
        # An array identified by its place of making is wrong before its cell, too, if that made it in another order.
        seq = 0 if producer is None or producer.name == SHARDED_HOST_DATA else producer.seq
        kind = format_array(array.shape, str(array.dtype)) if hasattr(array, "dtype") else ""
        name = names.get(id(array), "")
        rows.append(InputRow(value, seq, kind, read_provenance(array)[1], sample_of(value), name))
    return rows


class UncomparedArrays:
    """Uncompared arrays of a cell's launches: unguarded, or remade by one rank."""

    def __init__(self) -> None:
        self._count = 0
        self._lines: set[int] = set()
        self._per_rank_lines: set[int | None] = set()

    def record(self, inputs: Sequence[Any], tags: Sequence[Tag], line: int | None) -> None:
        """Record a launch of these arrays. Each array is counted once."""
        values = [tag[0] for tag in tags]
        if not (UNKNOWN in values or ANY in values or _has_unknown_arrays):
            return
        for array, (value, producer, _) in zip(inputs, tags, strict=True):
            # A value not computed yet is compared at the end of the cell; each rank's own data must not be compared.
            if (
                value == UNKNOWN
                or (producer is not None and producer.has_unknown_inputs)
                or (value == ANY and not (producer and producer.pmap_value) and read_content(array) == ANY)
            ):
                self._lines |= set() if line is None else {line}
                self._count += getattr(array, _COUNTED, None) is not self
                setattr(array, _COUNTED, self)

    def record_per_rank(self, line: int | None) -> None:
        """Record a launch whose host callbacks the user declared with `mhnb.per_rank`."""
        self._per_rank_lines.add(line)

    def format_notes(self) -> list[str]:
        """Return the notes of the cell; empty list if everything was compared."""
        notes = [format_uncompared(self._count, self._lines)] if self._count else []
        return [*notes, *([format_per_rank(self._per_rank_lines)] if self._per_rank_lines else [])]
