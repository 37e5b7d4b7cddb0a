"""What an exercise and a prediction are: plain values, and functions of plain values.

Knows nothing of ranks but their numbers, and nothing of where answers are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Differs", "Exercise", "Here", "Judge", "Prediction", "compare_guess"]


class Differs(Exception):  # said of an answer, caught by `check`, never shown as an error of its own
    """An answer is not what the exercise asks for; the text says what differs, from what, and where to look."""


@dataclass(frozen=True, slots=True)
class Here:
    """The process in which an answer is judged."""

    rank: int | None
    """None in the notebook's own process."""
    process_count: int
    device_count: int
    local_device_count: int


Judge = Callable[..., str]
"""Called with `Here` and the answer; returns what is right in a few words, or raises `Differs`."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task whose answer is code or a value on the ranks."""

    name: str
    lesson: str
    """The number that the lesson's file begins with, such as `02`."""
    prompt: str
    """One sentence."""
    judge: Judge
    where: Literal["ranks", "notebook", "both"] = "ranks"
    """In which processes `check` may be called."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question that the learner answers before the ranks do."""

    name: str
    lesson: str
    prompt: str
    choices: tuple[Any, ...]
    """What can be chosen, the right one among them; compared with what the ranks give."""
    because: str
    """Why it is so, shown with the reveal."""


def compare_guess(guess: Any, truth: Any) -> bool:
    """Whether a guess says the same as the value; tuple, list and array are one.

    >>> compare_guess((2, 4), [2, 4]), compare_guess("2", 2), compare_guess(8, 8.0)
    (True, False, True)
    """
    return bool(_plain(guess) == _plain(truth))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
