"""`progress` and `recall`: summarise the stored answers over all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mhnb.core.ranks import format_ranks
from mhnb.errors import InvalidRequest
from mhnb.teach.keep import AnswerRecord, read_records
from mhnb.teach.registry import tasks

__all__ = ["progress", "recall", "summarise_records"]


def summarise_records(records: Sequence[AnswerRecord]) -> str:
    """Describe in one line where an answer is correct, where it is not, and why not.

    >>> summarise_records([AnswerRecord(0, 2, True, "8.0", ""), AnswerRecord(1, 2, False, "gives 2.0", "")])
    'not yet on rank 1: gives 2.0 · right on rank 0'
    """
    if not records:
        return "not tried"
    wrong = [record for record in records if record.right is False]
    right = _describe_processes([record for record in records if record.right])
    if wrong:
        same = [record for record in wrong if record.said == wrong[0].said]
        others = (
            f" · nor {_describe_processes([record for record in wrong if record not in same])}"
            if len(same) < len(wrong)
            else ""
        )
        return f"not yet {_describe_processes(same)}: {wrong[0].said}{others}" + (f" · right {right}" if right else "")
    missing = _describe_missing(records)
    if missing:
        return f"right {right} · not tried {missing}"
    return f"right {right}" if right else "predicted, not revealed"


def _describe_processes(records: Sequence[AnswerRecord]) -> str:
    ranks = [record.rank for record in records if record.rank is not None]
    notebook = ["in this notebook"] if len(ranks) < len(records) else []
    return " and ".join([*notebook, *([_format_ranks(ranks)] if ranks else [])])


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"on rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}"


def _describe_missing(records: Sequence[AnswerRecord]) -> str:
    ranks = {record.rank for record in records if record.rank is not None}
    count = max((record.process_count for record in records if record.rank is not None), default=0)
    missing = [rank for rank in range(count) if rank not in ranks]
    return _format_ranks(missing) if missing else ""


def progress(lesson: str | None = None, *, environment: Mapping[str, str] = os.environ) -> None:
    """Print your progress, one line for each exercise and prediction.

    Args:
        lesson: lesson number, such as `02`; None for all lessons.
        environment: its MHNB_HOME chooses where answers are stored.

    Raises:
        InvalidRequest: no lesson with this number has exercises.
    """
    chosen = [task for task in tasks().values() if lesson in (None, task.lesson)]
    if not chosen:
        known = sorted({task.lesson for task in tasks().values()})
        raise InvalidRequest(f"lesson {lesson!r} has no exercises; there is {', '.join(known)}")
    width = max(len(task.name) for task in chosen)
    for task in chosen:
        print(f"{task.lesson}  {task.name:{width}}  {summarise_records(read_records(task.name, environment))}")


def recall(name: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Print your last answer, also after a restart of the notebook.

    Raises:
        InvalidRequest: the task does not exist, or has not been answered yet.
    """
    if name not in tasks():
        raise InvalidRequest(f"there is no exercise {name!r}; mhnb.teach.progress() lists them")
    records = read_records(name, environment)
    if not records:
        raise InvalidRequest(f"{name} was not answered yet; mhnb.teach.progress() lists what was")
    answers = list(dict.fromkeys(record.answer for record in records))
    for answer in answers:
        of = _describe_processes([record for record in records if record.answer == answer])
        print(f"# {of}\n{answer}" if len(answers) > 1 else answer)
