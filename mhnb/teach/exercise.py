"""Lessons, exercises and predictions as types, with a registry of the course.

They are plain values, and functions of plain values. They use no more of a rank than its number, and do not depend on where
answers are stored. Each lesson is a module of `mhnb.teach.exercises`, and its module is listed in the registry once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mhnb.core.arguments import format_unknown
from mhnb.errors import InvalidRequest


class WrongAnswer(Exception):  # feedback on an answer: `check` catches it, so it is never shown as an error
    """Raised for an answer that differs from the expected one."""

    def __init__(self, yours: str, *, expected: str = "", note: str = "") -> None:
        """Describe the difference.

        Args:
            yours: what the answer is, or does.
            expected: the value beside it; empty if `yours` says it all.
            note: a sentence with more about the answer.
        """
        wanted = f", expected {expected}" if expected else ""
        super().__init__(". ".join(filter(None, (f"{yours}{wanted}", note))))
        self.yours, self.expected, self.note = yours, expected, note


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
    heading: str
    """The heading above its cell in the notebook, after `Exercise: `."""
    prompt: str
    """One sentence."""
    grade: Grader
    difficulty: Literal["easy", "medium", "hard"]
    hints: tuple[str, ...]
    """Where to look, each more helpful than the one before. Feedback shows the first on request."""
    side: Literal["ranks", "notebook", "both"] = "ranks"
    """The processes in which `check` may be called."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question that the learner answers before the ranks run the code."""

    name: str
    prompt: str
    choices: tuple[Any, ...]
    """The choices, including the correct one, which equals the value that the ranks return."""
    explanation: str
    """The explanation that `reveal` shows."""


Task: TypeAlias = Exercise | Prediction


@dataclass(frozen=True, slots=True)
class Lesson:
    """A notebook of the course, and what it asks."""

    file: str
    """As `03_meshes.ipynb`."""
    title: str
    tasks: tuple[Task, ...]
    """In the order of the notebook."""

    @property
    def number(self) -> str:
        """The number at the start of the file's name, such as `03`."""
        return self.file[:2]

    @property
    def name(self) -> str:
        """The file's name without its number, such as `meshes`."""
        return self.file[3:].removesuffix(".ipynb")

    @property
    def exercises(self) -> tuple[Exercise, ...]:
        """The exercises, in the order of the notebook."""
        return tuple(task for task in self.tasks if isinstance(task, Exercise))

    def number_of(self, exercise: Exercise) -> str:
        """Return an exercise's number, as `03.1`."""
        return f"{self.number}.{self.exercises.index(exercise) + 1}"


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


# -- registry of the course


MODULES = (
    "many_pythons",
    "devices",
    "meshes",
    "slices",
    "pictures",
    "explicit",
    "arrays",
    "order",
    "deadlock",
    "loading",
    "collectives",
    "by_hand",
    "training",
    "death",
    "srun",
    "cost",
    "four_ways",
    "pipeline",
    "capstone",
)
"""The modules of `mhnb.teach.exercises`, in the order of the course. Each has a `LESSON`."""


@cache
def lessons() -> Mapping[str, Lesson]:
    """Return the lessons by number."""
    modules = (importlib.import_module(f"mhnb.teach.exercises.{name}") for name in MODULES)
    return {module.LESSON.number: module.LESSON for module in modules}


def find_lesson(name: str) -> Lesson:
    """Return a lesson by number or name, as `09` or `deadlock`.

    Raises:
        InvalidRequest: the lesson does not exist; the message lists those that do.
    """
    for lesson in lessons().values():
        if name in (lesson.number, lesson.name):
            return lesson
    raise InvalidRequest(format_unknown("lesson", str(name), [*lessons(), *MODULES]))


@cache
def tasks() -> Mapping[str, Task]:
    """Return all exercises and predictions by name, in lesson order.

    Raises:
        ValueError: two tasks have the same name.
    """
    found: dict[str, Task] = {}
    for task in (task for lesson in lessons().values() for task in lesson.tasks):
        if task.name in found:
            raise ValueError(f"two tasks are named {task.name!r}; each task needs its own name")
        found[task.name] = task
    return found


def lesson_of(task: Task) -> Lesson:
    """Return the lesson that a task belongs to."""
    return next(lesson for lesson in lessons().values() if task in lesson.tasks)


def read_solution(exercise: Exercise) -> str:
    """Return the right answer, as the source of its cell."""
    path = Path(__file__).with_name("solutions") / f"{exercise.name}.ipy"
    return path.read_text(encoding="utf-8").rstrip("\n")


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


def find_task(name: str, kind: type[Exercise] | type[Prediction]) -> Task:
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
