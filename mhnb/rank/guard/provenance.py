"""What an array of several ranks carries: a tag, `(value, producer, signature)`, made where the array is made.

Two ranks may launch the same program on arrays that do not belong together: one that a rank made alone before it, or one
that was chosen by the rank. So where the ranks agree on a launch they compare the tags of its arrays, too.

The same steps give the same value on every rank, in whatever order threads take them:

- what a launch made on which the ranks agreed is known by the launch, and as which of its outputs;
- what a program without a collective made, by the program and the values of all that went into it;
- host data of which every rank has all, by what it holds;
- other host data by where it was made, and as which of its kind there.

What was made under `--guard off` or `parity` carries none: it is `UNKNOWN`. Nothing here reads an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from mhnb.core.exchange.variables import format_array
from mhnb.core.guard.provenance import (
    ANY,
    MASK,
    PLACED,
    UNKNOWN,
    InputRow,
    combine_values,
    format_producer,
    format_uncompared,
)

__all__ = [
    "ATTRIBUTE",
    "NOT_GUARDED",
    "OutputProvenance",
    "Producer",
    "Tag",
    "UNTAGGED",
    "Uncompared",
    "combine",
    "copy_provenance",
    "describe_inputs",
    "for_collective",
    "for_local",
    "is_tagged",
    "provenance_of",
    "read_tags",
    "tag_array",
    "tag_outputs",
]

ATTRIBUTE = "_mhnb_tag"
"""Of an array: it goes where the array goes, and ends with it."""
PENDING = "_mhnb_pending"
"""Of an array whose content is not known yet: the `HostArray` that it was made of."""
BOXES = "_mhnb_boxes"
"""Of an array of which some ranks hold the same box, and none all: the `HostArray`s that it was made of."""
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Producer(NamedTuple):
    """What made an array, as it is told: a launch, or nothing but host data."""

    name: str
    seq: int
    line: int | None
    own: int = 0
    """Of what pmap was given of each rank's own: where that was. Only what a program without a collective makes of it is known by it."""
    is_unknown: bool = False
    """It was made of what no rank knows: that is not compared."""


Tag: TypeAlias = tuple[int, Producer | None, object]
"""Its value; what made it, None for what was laid out for one launch; a token of who keeps JAX's dispatch."""
UNTAGGED: Tag = (UNKNOWN, None, None)
"""What stands for the tag of an array without one."""


class OutputProvenance(NamedTuple):
    """What the outputs of a launch are to be known by."""

    value: int = UNKNOWN
    producer: Producer | None = None
    agreed: bool = False
    """Every participant launches it too: whatever it is given, the outputs are alike."""
    free: int = 0
    """Which blocks of its arrays the ranks did not compare."""


NOT_GUARDED = OutputProvenance()
"""Of a launch under `--guard off` or `parity`: there the ranks may make what differs, on purpose."""


def read_tags(inputs: Iterable[object]) -> list[Tag]:
    """Give what each array carries, and nothing of the arrays themselves."""
    return [getattr(array, ATTRIBUTE, UNTAGGED) for array in inputs]


def combine(tags: Iterable[Tag], free: int = 0) -> int:
    """Hash the values of the arrays of a launch; less than 2**63.

    Args:
        free: which are not compared on another rank.
    """
    # Numbers and tuples of them hash alike in every process of one version of Python, and all ranks have one.
    return combine_values([tag[0] for tag in tags], free)


def for_collective(participants: tuple[int, ...], number: int, producer: Producer) -> OutputProvenance:
    """Of a launch that communicates, the n-th on which these participants agreed in the cell."""
    return OutputProvenance(hash((participants, producer.seq, number)) & MASK, producer, agreed=True)


def for_local(fingerprint: int, tags: Sequence[Tag], producer: Producer) -> OutputProvenance:
    """Of a launch that nobody agreed on, for it has no collective: by the program, and the values of its arrays."""
    values = [tag[0] for tag in tags]
    if ANY in values:
        values = [producer.own or value if producer is not None else value for value, producer, _ in tags]
        if ANY in values:
            return OutputProvenance(ANY, producer)
    if UNKNOWN in values or (_has_unknown and any(made is not None and made.is_unknown for _, made, _ in tags)):
        _note_unknown()
        producer = producer._replace(is_unknown=True)
    return OutputProvenance(hash((fingerprint, *values)) & MASK, producer)


_has_unknown = False
"""Whether an array was ever made of what no rank knows: mostly none was, and then no launch looks for it."""


def _note_unknown() -> None:
    global _has_unknown  # noqa: PLW0603 - arrays live as long as the process
    _has_unknown = True


@lru_cache(64)
def _mixes(count: int) -> list[int]:
    return [hash((place, 0x9E3779B97F4A7C15)) & MASK for place in range(count)]


def tag_outputs(
    outputs: Sequence[Any],
    provenance: OutputProvenance,
    *,
    signatures: Sequence[object] | None = None,
    written: Mapping[int, Any] = _NOTHING,
    passed: Mapping[int, Any] = _NOTHING,
) -> None:
    """Have the outputs of a launch carry what they are known by.

    Args:
        signatures: the token of each output.
        written: mutable arrays that take what was put out at a place.
        passed: arguments that are put out at a place as they came: those stay what they were.
    """
    value, producer, agreed, _ = provenance
    if value == UNKNOWN:
        # A mutable array may be written where the guard does not look.
        for output in written.values():
            vars(output).pop(ATTRIBUTE, None)
        for output, token in zip(outputs, signatures or (), strict=False):
            output._mhnb_tag = (UNKNOWN, None, token)
        return
    mixes = [0] * len(outputs) if value == ANY else _mixes(len(outputs))
    tokens = [None] * len(outputs) if signatures is None else signatures
    if not passed:
        for output, mix, token in zip(outputs, mixes, tokens, strict=True):
            output._mhnb_tag = (value ^ mix, producer, token)
        for place, output in written.items():
            output._mhnb_tag = (value ^ mixes[place], producer, None)
        return
    for place, output in [*enumerate(outputs), *written.items()]:
        # What is known of an argument that was made for this launch is not known to all: it may still be computed.
        if place not in passed or (agreed and read_tags([passed[place]])[0][1] is None):
            setattr(output, ATTRIBUTE, (value ^ mixes[place], producer, tokens[place]))
        else:
            # What was made of a number for this launch is an array from here on.
            copy_provenance(passed[place], output, producer, tokens[place])


def tag_array(array: Any, value: int, producer: Producer | None) -> None:
    """Have an array that was made of host data carry its value.

    Args:
        producer: where it was made; None for an argument that was laid out for one launch.
    """
    setattr(array, ATTRIBUTE, (value, producer, None))


def is_tagged(array: object) -> bool:
    """Whether an array carries a tag; what is unknown may carry a token alone."""
    return getattr(array, ATTRIBUTE, UNTAGGED)[0] != UNKNOWN


def copy_provenance(source: object, target: Any, producer: Producer | None = None, token: object = None) -> None:
    """Have an array carry what another one does, which it was made of as it is; `producer` where that was made for one launch."""
    for name in (PENDING, BOXES):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
        else:
            vars(target).pop(name, None)
    # The token says what the source looks like, and the target may look otherwise.
    value, known, _ = getattr(source, ATTRIBUTE, UNTAGGED)
    setattr(target, ATTRIBUTE, (value, None if value == UNKNOWN else known or producer, token))


def provenance_of(array: object) -> tuple[int, str]:
    """Give the value of an array, and what made it in words; those are empty where nothing is known."""
    ((value, producer, _),) = read_tags([array])
    return (value, "") if producer is None else (value, format_producer(*producer[:3]))


def describe_inputs(inputs: Iterable[Any], sample_of: Callable[[int], str]) -> list[InputRow]:
    """Say what the arrays of a launch are that the ranks refused: what differs is told by all ranks' together.

    Args:
        sample_of: gives a few elements of what has a value, as doubles in hex.
    """
    rows: list[InputRow] = []
    for array, (value, producer, _) in zip(inputs, read_tags(inputs), strict=True):
        # What is known by its place is wrong before the cell that made it, too, if that made it in another order.
        seq = 0 if producer is None or producer.name == PLACED else producer.seq
        kind = format_array(array.shape, str(array.dtype)) if hasattr(array, "dtype") else ""
        rows.append([value, seq, kind, provenance_of(array)[1], sample_of(value)])
    return rows


class Uncompared:
    """The arrays of a cell's launches that were not compared: some rank made them without the guard, or again alone."""

    def __init__(self) -> None:
        self._count = 0
        self._lines: set[int] = set()

    def note(self, inputs: Sequence[object], tags: Sequence[Tag], line: int | None) -> None:
        """Record a launch of these arrays."""
        values = [tag[0] for tag in tags]
        if UNKNOWN in values or ANY in values or _has_unknown:
            # What is still computed is compared at the cell's end; what each rank has of its own is not to be.
            count = sum(
                value == UNKNOWN
                or (producer is not None and producer.is_unknown)
                or (value == ANY and not (producer and producer.own) and not hasattr(array, PENDING))
                for array, (value, producer, _) in zip(inputs, tags, strict=True)
            )
            if count:
                self._count = max(self._count, count)
                self._lines |= set() if line is None else {line}

    def tell(self) -> list[str]:
        """Return the note of the cell; empty where all were compared."""
        return [format_uncompared(self._count, self._lines)] if self._count else []
