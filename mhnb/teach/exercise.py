"""Types for exercises and predictions: plain values, and functions of plain values.

They use no more of a rank than its number, and do not depend on where answers are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Exercise", "Grader", "Prediction", "ProcessInfo", "WrongAnswer", "is_correct_guess"]


class WrongAnswer(Exception):  # feedback on an answer: `check` catches it, so it is never shown as an error
    """An answer differs from the expected one. The text says what differs, from which value, and where to look."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The process in which an answer is graded."""

    rank: int | None
    """None in the notebook process."""
    process_count: int
    device_count: int
    local_device_count: int


Grader = Callable[..., str]
"""Called with `ProcessInfo` and the answer; returns a short text on what is correct, or raises `WrongAnswer`."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task whose answer is code or a value on the ranks."""

    name: str
    lesson: str
    """The lesson number at the start of its file name, such as `02`."""
    prompt: str
    """One sentence."""
    grade: Grader
    side: Literal["ranks", "notebook", "both"] = "ranks"
    """The processes in which `check` may be called."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question that the learner answers before the ranks run the code."""

    name: str
    lesson: str
    prompt: str
    choices: tuple[Any, ...]
    """The choices, including the correct one, which equals the value that the ranks return."""
    explanation: str
    """The explanation that `reveal` shows."""


def is_correct_guess(guess: Any, truth: Any) -> bool:
    """Return whether a guess equals a value. A tuple, a list and an array with equal elements are equal.

    >>> is_correct_guess((2, 4), [2, 4]), is_correct_guess("2", 2), is_correct_guess(8, 8.0)
    (True, False, True)
    """
    return bool(_to_lists(guess) == _to_lists(truth))


def _to_lists(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_to_lists(each) for each in value] if isinstance(value, tuple | list) else value
