"""`check`: judge an answer in the process it was given in.

On the ranks each judges what it holds itself and communicates with nobody: a check that waited for the others would hang where
one of them does not call it. What the ranks said is put together by the notebook, which shows equal answers once.
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
    """Grade an answer; in a `%%mhjax` cell on every rank that runs it.

    Args:
        name: the exercise.
        *answer: what it asks for: a function, an array, a value.

    Raises:
        NotYet: the answer is not right here; the text says what differs, and the notebook on which rank.
        InvalidRequest: there is no such exercise, or it belongs on the other side.
    """
    exercise = cast(Exercise, find(name, Exercise))
    here = find_here()
    _check_side(exercise, here)
    try:
        said = _judge(exercise, here, answer)
    except Differs as differs:
        _keep(name, here, answer, said=str(differs), right=False)
        # Without the rank's number: the notebook names the ranks, and shows once what is the same on all.
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
        # Out of the learner's own code, or the guard's word on it: shown as it is, and kept as not right.
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        _keep(exercise.name, here, answer, said=said, right=False)
        raise


def find_here() -> Here:
    """Read what this process is, from JAX where it is a rank."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return _NOTEBOOK
    return Here(jax.process_index(), jax.process_count(), jax.device_count(), jax.local_device_count())


def _keep(name: str, here: Here, answer: tuple[Any, ...], *, said: str, right: bool) -> None:
    text = "\n".join(text_of(each) for each in answer)
    if failed := try_keep(name, Record(here.rank, here.process_count, right, said, text)):
        print(failed, file=sys.stderr)


def text_of(answer: Any) -> str:
    """Give the source of a function or class, else how a value prints; cut at a few thousand characters."""
    try:
        text = inspect.getsource(answer) if callable(answer) else repr(answer)
    except (OSError, TypeError):
        text = repr(answer)
    return text[:_ANSWER_CHARS]
