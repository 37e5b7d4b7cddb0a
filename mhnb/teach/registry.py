"""Every exercise and prediction by name. A module of `mhnb.teach.exercises` is entered here once."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from functools import cache

from mhnb.errors import InvalidRequest
from mhnb.teach.exercise import Exercise, Prediction

__all__ = ["MODULES", "find", "names", "tasks"]

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
"""In the order of the lessons. Each has a tuple `TASKS`."""


@cache
def tasks() -> dict[str, Exercise | Prediction]:
    """Give every exercise and prediction by name, in the order of the lessons.

    Raises:
        ValueError: two have the same name.
    """
    found: dict[str, Exercise | Prediction] = {}
    for task in _all():
        if task.name in found:
            raise ValueError(f"two exercises are named {task.name!r}; a name says one thing")
        found[task.name] = task
    return found


def _all() -> Iterator[Exercise | Prediction]:
    for module in MODULES:
        yield from importlib.import_module(f"mhnb.teach.exercises.{module}").TASKS


def names(kind: type[Exercise] | type[Prediction]) -> list[str]:
    """List the names of one kind."""
    return [name for name, task in tasks().items() if isinstance(task, kind)]


def find(name: str, kind: type[Exercise] | type[Prediction]) -> Exercise | Prediction:
    """Find a task of a kind.

    Raises:
        InvalidRequest: there is none of that name; the message names what is near.
    """
    task = tasks().get(name)
    if isinstance(task, kind):
        return task
    what = "exercise" if kind is Exercise else "prediction"
    if task is not None:
        verb = "predict" if kind is Exercise else "check"
        raise InvalidRequest(f"{name!r} is no {what}; ask for it with mhnb.teach.{verb}({name!r}, ...)")
    near = difflib.get_close_matches(str(name), names(kind), n=3) or names(kind)
    raise InvalidRequest(f"there is no {what} {name!r}; did you mean {', '.join(near)}?")
