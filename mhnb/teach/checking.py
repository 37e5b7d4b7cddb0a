"""`check`: grade an answer in the process that calls it.

Each rank grades its own data without communication. A check that waited for other ranks would hang if one rank did not call it.
The notebook combines the feedback of the ranks and shows equal feedback once.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, cast

from mhnb.errors import InvalidRequest, NotYet
from mhnb.teach.exercise import Differs, Exercise, Here
from mhnb.teach.keep import Record, try_keep
from mhnb.teach.registry import find

__all__ = ["check", "find_here", "text_of"]

_ANSWER_CHARS = 4000
_NOTEBOOK = Here(None, 1, 1, 1)


def check(name: str, *answer: Any) -> None:
    """Grade an answer; in a `%%mhjax` cell, on every rank that runs the cell.

    Args:
        name: name of the exercise.
        *answer: the answer: a function, an array or a value.

    Raises:
        NotYet: the answer is not correct in this process. The text says what differs; the notebook shows on which rank.
        InvalidRequest: the exercise does not exist, or must be checked on the other side (notebook or ranks).
    """
    exercise = cast(Exercise, find(name, Exercise))
    here = find_here()
    _check_side(exercise, here)
    try:
        said = _judge(exercise, here, answer)
    except Differs as differs:
        _keep(name, here, answer, said=str(differs), right=False)
        # Without the rank number, because the notebook names the ranks and shows text that is equal on all ranks once.
        raise NotYet(f"{name}: {differs}", exercise=name, rank=here.rank) from None
    _keep(name, here, answer, said=said, right=True)
    print(f"right · {name}: {said}")


def _check_side(exercise: Exercise, here: Here) -> None:
    if exercise.where == "ranks" and here.rank is None:
        raise InvalidRequest(f"{exercise.name} is checked on the ranks: begin the cell with %%mhjax")
    if exercise.where == "notebook" and here.rank is not None:
        raise InvalidRequest(f"{exercise.name} is checked in the notebook: take %%mhjax off this cell")


def _judge(exercise: Exercise, here: Here, answer: tuple[Any, ...]) -> str:
    if any(each is ... for each in answer):
        raise Differs(f"there is still a ... in the cell. {exercise.prompt}")
    try:
        inspect.signature(exercise.judge).bind(here, *answer)
    except TypeError:
        wanted = list(inspect.signature(exercise.judge).parameters)[1:]
        raise InvalidRequest(
            f"{exercise.name} takes {len(wanted)} answers ({', '.join(wanted)}) and got {len(answer)}"
        ) from None
    try:
        return exercise.judge(here, *answer)
    except Differs:
        raise
    except Exception as error:
        # Raised by the learner's code, or by the guard about it: show it unchanged, and record the answer as incorrect.
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        _keep(exercise.name, here, answer, said=said, right=False)
        raise


def find_here() -> Here:
    """Describe this process; on a rank, the values come from JAX."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return _NOTEBOOK
    return Here(jax.process_index(), jax.process_count(), jax.device_count(), jax.local_device_count())


def _keep(name: str, here: Here, answer: tuple[Any, ...], *, said: str, right: bool) -> None:
    text = "\n".join(text_of(each) for each in answer)
    if failed := try_keep(name, Record(here.rank, here.process_count, right, said, text)):
        print(failed, file=sys.stderr)


def text_of(answer: Any) -> str:
    """Return the source of a function or class, or the repr of any other value; truncated to a few thousand characters."""
    try:
        text = inspect.getsource(answer) if callable(answer) else repr(answer)
    except (OSError, TypeError):
        text = repr(answer)
    return text[:_ANSWER_CHARS]
