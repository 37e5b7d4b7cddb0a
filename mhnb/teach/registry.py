"""Registry of all exercises and predictions by name. Each module of `mhnb.teach.exercises` is listed here once."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from functools import cache

from mhnb.errors import InvalidRequest
from mhnb.teach.exercise import Exercise, Prediction

__all__ = ["MODULES", "find_task", "task_names", "tasks"]

MODULES = (
    "many_pythons",
    "devices",
    "meshes",
    "arrays",
    "loading",
    "order",
    "deadlock",
    "collectives",
    "explicit",
    "by_hand",
    "training",
    "death",
    "srun",
)
"""In the order of the lessons. Each module has a tuple `TASKS`."""


@cache
def tasks() -> dict[str, Exercise | Prediction]:
    """Return all exercises and predictions by name, in the order of the lessons.

    Raises:
        ValueError: two tasks have the same name.
    """
    found: dict[str, Exercise | Prediction] = {}
    for task in _load_tasks():
        if task.name in found:
            raise ValueError(f"two exercises are named {task.name!r}; a name says one thing")
        found[task.name] = task
    return found


def _load_tasks() -> Iterator[Exercise | Prediction]:
    for module in MODULES:
        yield from importlib.import_module(f"mhnb.teach.exercises.{module}").TASKS


def task_names(kind: type[Exercise] | type[Prediction]) -> list[str]:
    """Return the names of one kind of task."""
    return [name for name, task in tasks().items() if isinstance(task, kind)]


def find_task(name: str, kind: type[Exercise] | type[Prediction]) -> Exercise | Prediction:
    """Return the task of a given name and kind.

    Raises:
        InvalidRequest: there is no such task; the message suggests similar names.
    """
    task = tasks().get(name)
    if isinstance(task, kind):
        return task
    what = "exercise" if kind is Exercise else "prediction"
    if task is not None:
        verb = "predict" if kind is Exercise else "check"
        raise InvalidRequest(f"{name!r} is no {what}; ask for it with mhnb.teach.{verb}({name!r}, ...)")
    suggestions = difflib.get_close_matches(str(name), task_names(kind), n=3) or task_names(kind)
    raise InvalidRequest(f"there is no {what} {name!r}; did you mean {', '.join(suggestions)}?")
