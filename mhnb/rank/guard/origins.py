"""Where the arrays that several ranks share come from: which launch made each, and of what.

Two ranks may launch the same program on arrays that do not belong together: one that a rank made alone before it, or one
that was chosen by the rank. So an array carries its origin, and where the ranks agree on a launch they compare those too.

It goes by what was launched, and reads no array. The same steps give the same origin on every rank, in whatever order
threads take them. A value that was copied to every device has its content for one, and what else the main thread made of
host data has its place: the cell, the line, which one of its kind there. What another thread made of host data has none, if it
is no copy, nor has what a collective made in a thread under parity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from mhnb.core.guard.origins import ANY, HOST_DATA, combine_origins, say_maker

__all__ = [
    "Birth",
    "HOST_DATA",
    "Maker",
    "PlacedMaker",
    "Tag",
    "bear_alone",
    "bear_together",
    "bear_unguarded",
    "combine",
    "combine_tags",
    "find_makers",
    "hand_on",
    "hand_on_turned",
    "has_origin",
    "is_open",
    "list_makers",
    "list_taken",
    "mark",
    "mark_copies",
    "mark_unknown",
    "origin_of",
    "read_tags",
    "sign",
    "signature_of",
]

_ATTRIBUTE = "_mhnb_origin"
"""Of an array: it goes where the array goes, and ends with it."""
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Maker(NamedTuple):
    """What made an array, as it is told: a launch, or nothing but host data."""

    name: str
    seq: int
    line: int | None


class PlacedMaker(Maker):
    """What made a sharded array of host data, which is known by that alone: what it holds is not the same on any two ranks."""


Tag: TypeAlias = tuple[int, Maker | None, int | None]
"""What an array carries: a hash of where it comes from, what made it, and a token of what it looks like to a program."""
_NONE: Tag = (0, None, None)


class Birth(NamedTuple):
    """What the outputs of a launch are to be known by."""

    agreed: bool
    """The ranks agreed on it: every participant launches it too."""
    origin: int = 0
    """0: by nothing."""
    maker: Maker | None = None
    shared: bool = False
    """It is by its number among the launches of all who take part in it: whatever it is given, the outputs are alike."""


def combine(inputs: Iterable[object], free: int = 0) -> int:
    """Hash which launches made the arrays of this one; less than 2**63, and 0 where none did.

    What was made of a number for this launch alone does not count: that is compared at the cell's end, and told by its line.

    Args:
        free: which are like every other on another rank.
    """
    return combine_tags(read_tags(inputs), free)


def combine_tags(read: Iterable[Tag], free: int = 0) -> int:
    """Do so with what `read_tags` gave of the arrays."""
    tags = list(read)
    placed = [place for place, (_, maker, _) in enumerate(tags) if type(maker) is PlacedMaker]
    return combine_origins([tag if maker is not None else 0 for tag, maker, _ in tags], free, placed)


def bear_together(participants: tuple[int, ...], number: int, maker: Maker, *, agreed: bool) -> Birth:
    """Of a launch that communicates, the n-th of these participants in the cell, whether or not they agreed on it before."""
    return Birth(agreed, hash((participants, maker.seq, number)), maker, shared=True)


def bear_alone(fingerprint: int, inputs: Iterable[object], maker: Maker) -> Birth:
    """Of a launch that nobody agreed on, for it has no collective: by the program, and where its arrays come from."""
    tags = [tag for tag, _, _ in read_tags(inputs)]
    return Birth(False, ANY if ANY in tags else hash((fingerprint, *tags)), maker)


def bear_unguarded(maker: Maker) -> Birth:
    """Of a launch in a cell without a guard: there the ranks may make what differs, on purpose."""
    return Birth(False, ANY, maker)


def mark(
    outputs: Sequence[Any],
    birth: Birth,
    written: Mapping[int, Any] = _NOTHING,
    passed: Mapping[int, Any] = _NOTHING,
    signatures: Sequence[int | None] = (),
) -> None:
    """Have the outputs of a launch carry their origin.

    Args:
        signatures: of the outputs, where they are known.
        written: mutable arrays that take what was put out at a place.
        passed: arguments that are put out at a place as they came: those stay what they were.
    """
    if not birth.origin:
        return
    if not (written or passed) and signatures and birth.origin != ANY:
        origin, maker = birth.origin, birth.maker
        for place, output in enumerate(outputs):
            setattr(output, _ATTRIBUTE, (hash((origin, place)), maker, signatures[place]))
        return
    for place, output in [*enumerate(outputs), *written.items()]:
        # What is known of an argument that was made for this launch is not known to all: it may still be computed.
        if place not in passed or (birth.shared and read_tags([passed[place]])[0][1] is None):
            tag = ANY if birth.origin == ANY else hash((birth.origin, place))
            setattr(output, _ATTRIBUTE, (tag, birth.maker, None))
        elif has_origin(passed[place]):
            # What was made of a number for this launch is an array from here on.
            hand_on(passed[place], output, birth.maker)
        elif has_origin(output):
            # A mutable array that takes what has none.
            delattr(output, _ATTRIBUTE)


def mark_copies(array: Any, content: int, maker: Maker | None) -> None:
    """Have an array whose every device holds the same host data carry that: two ranks that made it alike may use it alike.

    Args:
        maker: where it was made; None for an argument that is made of a number for one launch.
    """
    setattr(array, _ATTRIBUTE, (content, maker, None))


def mark_unknown(array: Any, maker: Maker) -> None:
    """Have an array be like every other: it was made without a guard, or only some of its ranks made it."""
    setattr(array, _ATTRIBUTE, (ANY, maker, None))


def signature_of(array: object) -> int | None:
    """Give the token of what an array looks like to a program; None where it has none."""
    tag: Tag | None = getattr(array, _ATTRIBUTE, None)
    return None if tag is None else tag[2]


def sign(array: Any, signature: int) -> None:
    """Have an array carry such a token, where it carries a tag."""
    tag: Tag | None = getattr(array, _ATTRIBUTE, None)
    if tag is not None:
        setattr(array, _ATTRIBUTE, (tag[0], tag[1], signature))


def is_open(array: object) -> bool:
    """Whether what an array holds may still have to be found out."""
    return any(hasattr(array, name) for name in _OPEN)


_OPEN = ("_mhnb_made_for_launch", "_mhnb_held", "_mhnb_content")


def has_origin(array: object) -> bool:
    """Whether an array carries one."""
    return hasattr(array, _ATTRIBUTE)


def hand_on(source: object, kept: Any, maker: Maker | None) -> None:
    """Have an array carry the origin of what it was made of; `maker` where that was made for one launch."""
    ((tag, known, _),) = read_tags([source])
    setattr(kept, _ATTRIBUTE, (tag, known or maker, None))


def hand_on_turned(source: object, turned: Any) -> None:
    """Have an array that was laid out in another order carry the origin of what it was, and how that was done."""
    ((tag, maker, _),) = read_tags([source])
    ((how, _, _),) = read_tags([turned])
    if maker is not None:
        setattr(turned, _ATTRIBUTE, (ANY if tag == ANY else hash((tag, how)), maker, None))


def find_makers(inputs: Iterable[object]) -> list[Maker]:
    """Say which launches made these arrays, each once, the latest cell's first."""
    return list_makers(read_tags(inputs))


def list_makers(read: Iterable[Tag]) -> list[Maker]:
    """Do so with what `read_tags` gave of the arrays."""
    makers = dict.fromkeys(maker for _, maker, _ in read if maker is not None)
    return sorted(makers, key=lambda maker: -maker.seq)


def list_taken(inputs: Iterable[object]) -> list[list[int]]:
    """Give of each array what `combine` goes by, and the cell that made it; 0 for none.

    And for host data that is known by its place: made in another order it is wrong before that cell, too.
    """
    return [
        [0, 0] if maker is None else [tag, 0 if type(maker) is PlacedMaker else maker.seq]
        for tag, maker, _ in read_tags(inputs)
    ]


def origin_of(array: object) -> tuple[int, str]:
    """Give the hash of the launch that made an array, and its words; 0 and none where no launch did."""
    ((tag, maker, _),) = read_tags([array])
    return (0, "") if maker is None else (tag, say_maker(*maker))


def read_tags(inputs: Iterable[object]) -> list[Tag]:
    """Give what each array carries, and nothing of the arrays themselves."""
    # Numbers and tuples of them hash alike in every process of one version of Python, and all ranks have one.
    return [getattr(array, _ATTRIBUTE, _NONE) for array in inputs]
