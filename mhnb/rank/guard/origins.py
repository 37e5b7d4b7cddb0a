"""Where the arrays that several ranks share come from: which launch made each, and of what.

Two ranks may launch the same program on arrays that do not belong together: one that a rank made alone before it, or one
that was chosen by the rank. So an array carries its origin, and where the ranks agree on a launch they compare those too.

It goes by what was launched, and reads no array. The same steps give the same origin on every rank, in whatever order
threads take them. A value that was copied to every device has its content for one. What else was made of host data has
none, nor has what a collective made under another guard than lockstep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from mhnb.core.guard.origins import ANY, HOST_DATA, say_maker

__all__ = [
    "Birth",
    "HOST_DATA",
    "Maker",
    "bear_agreed",
    "bear_alone",
    "bear_unguarded",
    "combine",
    "find_makers",
    "hand_on",
    "has_origin",
    "mark",
    "mark_copies",
    "origin_of",
]

_ATTRIBUTE = "_mhnb_origin"
"""Of an array: it goes where the array goes, and ends with it."""
_NONE: tuple[int, Maker | None] = (0, None)
_WORD = (1 << 62) - 1
"""As much of a hash as goes on the board: less than ANY."""
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Maker(NamedTuple):
    """What made an array, as it is told: a launch, or nothing but host data."""

    name: str
    seq: int
    line: int | None


class Birth(NamedTuple):
    """What the outputs of a launch are to be known by."""

    agreed: bool
    """Every participant launches it too."""
    origin: int = 0
    """0: by nothing."""
    maker: Maker | None = None


def combine(inputs: Iterable[object]) -> int:
    """Hash which launches made the arrays of this one; less than 2**63, 0 where none did, and ANY where one is taken as it is.

    What was made of a number for this launch alone does not count: that is compared at the cell's end, and told by its line.
    """
    tags = tuple([tag if maker is not None else 0 for tag, maker in _read(inputs)])
    if ANY in tags:
        return ANY
    return hash(tags) & _WORD if any(tags) else 0


def bear_agreed(participants: tuple[int, ...], number: int, maker: Maker) -> Birth:
    """Of a launch that all participants agreed on, as the n-th of theirs in the cell."""
    return Birth(True, hash((participants, maker.seq, number)), maker)


def bear_alone(fingerprint: int, inputs: Iterable[object], maker: Maker) -> Birth:
    """Of a launch that nobody agreed on, for it has no collective: by the program, and where its arrays come from."""
    tags = [tag for tag, _ in _read(inputs)]
    return Birth(False, ANY if ANY in tags else hash((fingerprint, *tags)), maker)


def bear_unguarded(maker: Maker) -> Birth:
    """Of a launch in a cell without a guard: there the ranks may make what differs, on purpose."""
    return Birth(False, ANY, maker)


def mark(
    outputs: Sequence[Any],
    birth: Birth,
    written: Mapping[int, Any] = _NOTHING,
    passed: Mapping[int, Any] = _NOTHING,
) -> None:
    """Have the outputs of a launch carry their origin.

    Args:
        written: mutable arrays that take what was put out at a place.
        passed: arguments that are put out at a place as they came: those stay what they were.
    """
    if not birth.origin:
        return
    for place, output in [*enumerate(outputs), *written.items()]:
        if place not in passed:
            tag = ANY if birth.origin == ANY else hash((birth.origin, place))
            setattr(output, _ATTRIBUTE, (tag, birth.maker))
        elif has_origin(passed[place]):
            setattr(output, _ATTRIBUTE, getattr(passed[place], _ATTRIBUTE))
        elif has_origin(output):
            # A mutable array that takes what has none.
            delattr(output, _ATTRIBUTE)


def mark_copies(array: Any, content: int, maker: Maker | None) -> None:
    """Have an array whose every device holds the same host data carry that: two ranks that made it alike may use it alike.

    Args:
        maker: where it was made; None for an argument that is made of a number for one launch.
    """
    setattr(array, _ATTRIBUTE, (content, maker))


def has_origin(array: object) -> bool:
    """Whether an array carries one."""
    return hasattr(array, _ATTRIBUTE)


def hand_on(source: object, kept: Any, maker: Maker) -> None:
    """Have an array carry the origin of what it was made of; `maker` where that was made for one launch."""
    ((tag, known),) = _read([source])
    setattr(kept, _ATTRIBUTE, (tag, known or maker))


def find_makers(inputs: Iterable[object]) -> list[Maker]:
    """Say which launches made these arrays, each once, the latest cell's first."""
    makers = dict.fromkeys(maker for _, maker in _read(inputs) if maker is not None)
    return sorted(makers, key=lambda maker: -maker.seq)


def origin_of(array: object) -> tuple[int, str]:
    """Give the hash of the launch that made an array, and its words; 0 and none where no launch did."""
    ((tag, maker),) = _read([array])
    return (0, "") if maker is None else (tag, say_maker(*maker))


def _read(inputs: Iterable[object]) -> list[tuple[int, Maker | None]]:
    # Numbers and tuples of them hash alike in every process of one version of Python, and all ranks have one.
    return [getattr(array, _ATTRIBUTE, _NONE) for array in inputs]
