"""`hint` and `solution`: help with an exercise, on request."""

from __future__ import annotations

from typing import cast

from mhnb.core.ranks import pluralize
from mhnb.teach.exercise import Exercise, find_task, read_solution
from mhnb.teach.progress import title_of

_shown: dict[str, int] = {}
"""By exercise: the hints that this process has shown."""


def hint(name: str) -> None:
    """Show one more hint with each call, below the earlier ones.

    Args:
        name: name of the exercise.

    Raises:
        InvalidRequest: the exercise does not exist.
    """
    exercise = _find(name)
    count = _shown[exercise.name] = min(_shown.get(exercise.name, 0) + 1, len(exercise.hints))
    print(f"{title_of(exercise)} · {exercise.difficulty} · hint {count} of {len(exercise.hints)}")
    for number, text in enumerate(exercise.hints[:count], 1):
        print(f"  {number}. {text}" if len(exercise.hints) > 1 else f"  {text}")
    left = len(exercise.hints) - count
    if left:
        print(f"Run it again for {pluralize(left, 'more hint')}.")
    else:
        print(f'These are all the hints; mhnb.teach.solution("{exercise.name}") shows a right answer.')


def solution(name: str) -> None:
    """Print a right answer, as the source of the exercise's cell.

    Args:
        name: name of the exercise.

    Raises:
        InvalidRequest: the exercise does not exist.
    """
    # Nothing else, because a cell magic must be the first line of a cell.
    print(read_solution(_find(name)))


def _find(name: str) -> Exercise:
    return cast(Exercise, find_task(name, Exercise))
