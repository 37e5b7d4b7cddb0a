"""Answers to exercises of the lessons, as a rank displays them."""

from __future__ import annotations

from typing import Any

import msgspec

from mhnb.types import Output

ANSWER_MIME = "application/vnd.mhnb.lesson+json"


class Answer(msgspec.Struct, frozen=True):
    """An answer to an exercise.

    >>> Answer("03.1 columns_apart", is_right=True).exercise
    'columns_apart'
    """

    title: str
    """The exercise's number and name, which the text has, too."""
    is_right: bool

    @property
    def exercise(self) -> str:
        """The name of the exercise."""
        return self.title.partition(" ")[2]

    def bundle(self, text: str) -> dict[str, Any]:
        """Return the answer's MIME bundle, with `text` for viewers without lessons."""
        return {"text/plain": text, ANSWER_MIME: msgspec.to_builtins(self)}


def read_answer(output: Output) -> Answer | None:
    """Return the answer in an output; None for any other output.

    A rank can show any value under this MIME type.
    """
    data = output.get("data", {})
    if "text/plain" not in data or ANSWER_MIME not in data:
        return None
    try:
        return msgspec.convert(data[ANSWER_MIME], Answer)
    except msgspec.ValidationError:
        return None
