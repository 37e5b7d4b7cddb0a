"""Exercises and predictions as types, with a registry by name.

They are plain values, and functions of plain values. They use no more of a rank than its number, and do not depend on where
answers are stored. Each module of exercises is listed in the registry once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from mhnb.core.arguments import format_unknown
from mhnb.errors import InvalidRequest


class WrongAnswer(Exception):  # feedback on an answer: `check` catches it, so it is never shown as an error
    """Raised for an answer that differs from the expected one."""

    def __init__(self, yours: str, *, expected: str = "", note: str = "", hint: str = "") -> None:
        """Describe the difference.

        Args:
            yours: what the answer is, or does.
            expected: the value beside it; empty if `yours` says it all.
            note: a sentence with more about the answer.
            hint: a sentence on where to look, shown on request.
        """
        wanted = f", expected {expected}" if expected else ""
        super().__init__(". ".join(filter(None, (f"{yours}{wanted}", note, hint))))
        self.yours, self.expected, self.note, self.hint = yours, expected, note, hint


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
    hint: str = ""
    """Where to look, if the feedback on an answer has no hint of its own."""


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
    """Return whether a guess equals a value, whatever the sequence type.

    >>> is_correct_guess((2, 4), [2, 4]), is_correct_guess("2", 2), is_correct_guess(8, 8.0)
    (True, False, True)
    """
    return bool(_to_lists(guess) == _to_lists(truth))


def _to_lists(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_to_lists(each) for each in value] if isinstance(value, tuple | list) else value


# -- registry of exercises and predictions


MODULES = ("exercises_spmd", "exercises_arrays", "exercises_collectives", "exercises_training")
"""The modules with the exercises. Each has a tuple `TASKS`."""


@cache
def tasks() -> dict[str, Exercise | Prediction]:
    """Return all exercises and predictions by name, in lesson order.

    Raises:
        ValueError: two tasks have the same name.
    """
    found: dict[str, Exercise | Prediction] = {}
    for task in sorted(_load_tasks(), key=lambda task: task.lesson):
        if task.name in found:
            raise ValueError(f"two tasks are named {task.name!r}; each task needs its own name")
        found[task.name] = task
    return found


def _load_tasks() -> Iterator[Exercise | Prediction]:
    for module in MODULES:
        yield from importlib.import_module(f"mhnb.teach.{module}").TASKS


RENAMED = {"mended_step": "fixed_step"}
"""Former name of a task -> its name. Calls with the former name work, and answers that are stored under it still count."""


def current_name(name: str) -> str:
    """Return a task's current name; `name` may be a former one.

    >>> current_name("mended_step"), current_name("fits")
    ('fixed_step', 'fits')
    """
    return RENAMED.get(name, name)


def task_names(kind: type[Exercise] | type[Prediction]) -> list[str]:
    """Return the names of one kind of task."""
    return [name for name, task in tasks().items() if isinstance(task, kind)]


def find_task(name: str, kind: type[Exercise] | type[Prediction]) -> Exercise | Prediction:
    """Return the task of a given name and kind.

    Raises:
        InvalidRequest: the task does not exist; the message suggests a similar name.
    """
    task = tasks().get(current_name(name))
    if isinstance(task, kind):
        return task
    kind_name, other, function = (
        ("exercise", "a prediction", "predict") if kind is Exercise else ("prediction", "an exercise", "check")
    )
    if task is not None:
        article = "an" if kind is Exercise else "a"
        raise InvalidRequest(
            f"{name!r} is {other}, not {article} {kind_name}\n  Fix: call mhnb.teach.{function}({name!r}, ...)"
        )
    raise InvalidRequest(format_unknown(kind_name, str(name), task_names(kind)))
