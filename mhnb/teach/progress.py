"""Answers on disk, and `progress` and `recall`, which summarise them over all ranks.

There is one small file per task and process, so that no two processes write the same file. The files are in mhnb's state folder
and not in the notebook, because neither a rank nor a button can write to the notebook's file. Answers that the learner typed into
a cell are in the notebook as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mhnb.core.ranks import format_ranks
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import InvalidRequest
from mhnb.system.private_files import make_private_folder, read_private, write_private
from mhnb.system.run_dir import make_home, state_home
from mhnb.teach.exercise import tasks


class AnswerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last answer in one process, and its feedback."""

    rank: int | None
    """None for the notebook."""
    process_count: int
    right: bool | None
    """None for a prediction that has not been revealed."""
    said: str
    """The feedback."""
    answer: str
    """Source or repr of the answer."""


def _folder(name: str, environment: Mapping[str, str]) -> Path:
    return state_home(environment) / "lessons" / name


def write_record(name: str, record: AnswerRecord, environment: Mapping[str, str] = os.environ) -> None:
    """Store the last answer of this process, replacing the previous one.

    Raises:
        OSError: the disk is full, or the state folder is not writable.
    """
    folder = _folder(name, environment)
    for each in (make_home(environment) / "lessons", folder):
        make_private_folder(each)
    path = folder / ("notebook.json" if record.rank is None else f"rank{record.rank}.json")
    # Written atomically, because the notebook may read while a rank writes.
    write_private(path, encode_json(record))


def try_write_record(name: str, record: AnswerRecord) -> str:
    """Store an answer. Return an error message for the learner if the disk refuses, otherwise an empty string."""
    try:
        write_record(name, record)
    except OSError as error:
        return f"{name}: this answer could not be kept: {error}; MHNB_HOME chooses another place"
    return ""


def read_records(name: str, environment: Mapping[str, str] = os.environ) -> list[AnswerRecord]:
    """Return the records of the last attempt: the notebook first, then by rank.

    Records of an earlier attempt with another number of ranks are skipped, because those ranks have not answered since.
    """
    found = []
    for path in _folder(name, environment).glob("*.json"):
        try:
            found.append((path.stat().st_mtime_ns, decode_json(read_private(path), AnswerRecord)))
        except (OSError, ValueError):
            # The file was just replaced, was truncated by a full disk, or belongs to another user: treat it as
            # unanswered.
            continue
    if not found:
        return []
    ranked = [each for each in found if each[1].rank is not None]
    count = max(ranked, key=lambda each: each[0])[1].process_count if ranked else 0
    latest = [record for _, record in found if record.rank is None or record.process_count == count]
    return sorted(latest, key=lambda record: -1 if record.rank is None else record.rank)


# -- `progress` and `recall`


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
