"""What is noted of an array that was made of host data, until it is known who else has made it, and of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mhnb.rank.guard.origins import Maker
from mhnb.rank.guard.places import Place
from mhnb.rank.guard.sums import hash_bytes

__all__ = ["Argument", "Content", "Noted", "join_noted"]


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """An array that was made, as it is compared with the other ranks'. Each is itself alone, however alike."""

    line: int | None
    group: int
    place: Place
    kind: str
    nbytes: int
    """Of its largest box that other ranks hold too."""
    values: dict[str, Any]
    """By the text of each such box."""
    words: dict[str, int | None]
    """Their hashes; None of what is not known yet."""

    def let_go_of_hashed(self) -> Noted:
        """Keep no value alive whose hash is known."""
        return replace(self, values={text: value for text, value in self.values.items() if self.words[text] is None})

    def learn(self, word_of: Callable[[Any, Any], int | None]) -> None:
        """Hash what is not known yet, and keep it alive no longer.

        Args:
            word_of: hashes a value as a type of element; None where it was deleted.
        """
        # Other threads may do so, too.
        for text, value in list(self.values.items()):
            if (word := word_of(value, value.dtype)) is not None:
                self.words[text] = word
                self.values.pop(text, None)


def join_noted(several: Iterable[Noted]) -> tuple[Noted, ...]:
    """Make one of all that were made over the same devices in the same way: what is made of them is compared by that.

    Box by box, and equal ones once: ranks that hold a box have the same hash for it, whatever other boxes each of them holds.
    """
    by_place: dict[tuple[Any, ...], list[Noted]] = {}
    for noted in several:
        by_place.setdefault((noted.place.ranks, noted.place.name), []).append(noted)
    return tuple(same[0] if len(same) == 1 else _join(same) for same in by_place.values())


def _join(same: Sequence[Noted]) -> Noted:
    words: dict[str, dict[int | None, None]] = {}
    for noted in same:
        for text, word in noted.words.items():
            words.setdefault(text, {})[word] = None
    # One that was deleted before it was hashed is compared with none.
    known = {text: [*found] for text, found in words.items() if None not in found}
    joined: dict[str, int | None] = {
        text: found[0] if len(found) == 1 else hash_bytes(repr(found).encode()) for text, found in known.items()
    }
    return replace(same[0], values={}, words=joined)


class Argument(NamedTuple):
    """What a program is given: nobody knows yet whether that communicates."""

    noted: Noted
    value: Any
    """What it was laid out of."""
    word: int | None
    """Its hash, where it is known."""


class Content(NamedTuple):
    """What an array holds, to be hashed when it is asked about."""

    kind: str
    values: Mapping[str, Any]
    maker: Maker | None
    """None: it was made for one launch."""
