"""`check`: grade an answer in the process that calls it.

Each rank grades its own data without communication. A check that waited for other ranks would hang if one rank did not call it.
The notebook combines the feedback of the ranks and shows equal feedback once.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, cast

from mhnb.errors import InvalidRequest, NotYet
from mhnb.teach.exercise import Exercise, ProcessInfo, WrongAnswer
from mhnb.teach.keep import AnswerRecord, try_write_record
from mhnb.teach.registry import find_task

__all__ = ["check", "current_process", "format_answer"]

_MAX_ANSWER_CHARS = 4000
_NOTEBOOK = ProcessInfo(None, 1, 1, 1)


def check(name: str, *answer: Any) -> None:
    """Grade an answer; in a `%%mhjax` cell, on every rank that runs the cell.

    Args:
        name: name of the exercise.
        *answer: the answer: a function, an array or a value.

    Raises:
        NotYet: the answer is not correct in this process. The text says what differs; the notebook shows on which rank.
        InvalidRequest: the exercise does not exist, or must be checked on the other side (notebook or ranks).
    """
    exercise = cast(Exercise, find_task(name, Exercise))
    process = current_process()
    _check_side(exercise, process)
    try:
        feedback = _grade(exercise, process, answer)
    except WrongAnswer as differs:
        _store(name, process, answer, feedback=str(differs), is_correct=False)
        # Without the rank number, because the notebook names the ranks and shows text that is equal on all ranks once.
        raise NotYet(f"{name}: {differs}", exercise=name, rank=process.rank) from None
    _store(name, process, answer, feedback=feedback, is_correct=True)
    print(f"right · {name}: {feedback}")


def _check_side(exercise: Exercise, process: ProcessInfo) -> None:
    if exercise.side == "ranks" and process.rank is None:
        raise InvalidRequest(f"{exercise.name} is checked on the ranks: begin the cell with %%mhjax")
    if exercise.side == "notebook" and process.rank is not None:
        raise InvalidRequest(f"{exercise.name} is checked in the notebook: take %%mhjax off this cell")


def _grade(exercise: Exercise, process: ProcessInfo, answer: tuple[Any, ...]) -> str:
    if any(each is ... for each in answer):
        raise WrongAnswer(f"there is still a ... in the cell. {exercise.prompt}")
    try:
        inspect.signature(exercise.grade).bind(process, *answer)
    except TypeError:
        parameters = list(inspect.signature(exercise.grade).parameters)[1:]
        raise InvalidRequest(
            f"{exercise.name} takes {len(parameters)} answers ({', '.join(parameters)}) and got {len(answer)}"
        ) from None
    try:
        return exercise.grade(process, *answer)
    except WrongAnswer:
        raise
    except Exception as error:
        # Raised by the learner's code, or by the guard about it: show it unchanged, and record the answer as incorrect.
        feedback = f"{type(error).__name__}: {error}".splitlines()[0]
        _store(exercise.name, process, answer, feedback=feedback, is_correct=False)
        raise


def current_process() -> ProcessInfo:
    """Describe this process; on a rank, the values come from JAX."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return _NOTEBOOK
    return ProcessInfo(jax.process_index(), jax.process_count(), jax.device_count(), jax.local_device_count())


def _store(name: str, process: ProcessInfo, answer: tuple[Any, ...], *, feedback: str, is_correct: bool) -> None:
    text = "\n".join(format_answer(each) for each in answer)
    if failed := try_write_record(name, AnswerRecord(process.rank, process.process_count, is_correct, feedback, text)):
        print(failed, file=sys.stderr)


def format_answer(answer: Any) -> str:
    """Return the source of a function or class, or the repr of any other value; truncated to a few thousand characters."""
    try:
        text = inspect.getsource(answer) if callable(answer) else repr(answer)
    except (OSError, TypeError):
        text = repr(answer)
    return text[:_MAX_ANSWER_CHARS]
