"""What is noted of an array that was made of host data, until it is known who else has made it, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mhnb.rank.guard.origins import Maker
from mhnb.rank.guard.places import Place

__all__ = ["Argument", "Content", "Noted"]


@dataclass(frozen=True, slots=True)
class Noted:
    """An array that was made, as it is compared with the other ranks'."""

    line: int | None
    group: int
    place: Place
    kind: str
    nbytes: int
    """Of its largest box that other ranks hold too."""
    values: Mapping[str, Any]
    """By the text of each such box."""
    words: dict[str, int | None]
    """Their hashes; None of what is not known yet."""

    def let_go_of_hashed(self) -> Noted:
        """Keep no value alive whose hash is known."""
        return replace(self, values={text: value for text, value in self.values.items() if self.words[text] is None})


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
