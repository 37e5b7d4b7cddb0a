"""Answers on disk; `progress`, `recall` and `reset` show or delete them.

There is one small file per task and process, so that no two processes write the same file. The files are in mhnb's state folder
and not in the notebook, because neither a rank nor a button can write to the notebook's file. Answers that the learner typed into
a cell are in the notebook as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mhnb.core.arguments import format_unknown
from mhnb.core.ranks import format_ranks
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import InvalidRequest
from mhnb.system.private_files import make_private_folder, read_private, write_private
from mhnb.system.run_dir import make_home, state_home
from mhnb.teach.exercise import (
    MODULES,
    RENAMED,
    Exercise,
    Lesson,
    Prediction,
    current_name,
    find_lesson,
    lesson_of,
    lessons,
    tasks,
)
from mhnb.view.live.screen import show_document
from mhnb.view.reports.lesson import LessonState, TaskLine, TaskState, build_bar, build_progress


class AnswerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
    tries: int = 1
    """How often this process has answered."""


def _folder(name: str, environment: Mapping[str, str]) -> Path:
    return state_home(environment) / "lessons" / name


def _stored_paths(name: str, environment: Mapping[str, str]) -> list[Path]:
    """Return a task's answer files; if none, those of former names."""
    former = [each for each in RENAMED if RENAMED[each] == name]
    found = (list(_folder(each, environment).glob("*.json")) for each in (name, *former))
    return next(filter(None, found), [])


def write_record(name: str, record: AnswerRecord, environment: Mapping[str, str] = os.environ) -> None:
    """Store and count the last answer of this process, replacing the previous.

    Raises:
        OSError: the disk is full, or the state folder is not writable.
    """
    folder = _folder(name, environment)
    for each in (make_home(environment) / "lessons", folder):
        make_private_folder(each)
    path = folder / ("notebook.json" if record.rank is None else f"rank{record.rank}.json")
    earlier = _read_record(path)
    tries = earlier.tries + 1 if earlier else 1
    # Written atomically, because the notebook may read while a rank writes.
    write_private(path, encode_json(msgspec.structs.replace(record, tries=tries)))


def _read_record(path: Path) -> AnswerRecord | None:
    """Return a stored answer, or None if it cannot be read."""
    try:
        return decode_json(read_private(path), AnswerRecord)
    except (OSError, ValueError):
        # The file was just replaced, was truncated by a full disk, or belongs to another user: treat it as unanswered.
        return None


def try_write_record(name: str, record: AnswerRecord) -> str:
    """Store an answer; return an error message, or empty on success."""
    try:
        write_record(name, record)
    except OSError as error:
        return f"{name}: this answer was not saved: {error}; set MHNB_HOME to a folder that you can write to"
    return ""


def read_records(name: str, environment: Mapping[str, str] = os.environ) -> list[AnswerRecord]:
    """Return the last attempt's records: notebook first, then by rank.

    Records of an earlier attempt with another number of ranks are skipped, because those ranks have not answered since.
    """
    # By time, before the files are read: one that is written meanwhile counts next time.
    paths = sorted(_stored_paths(name, environment), key=_read_mtime)
    found = [record for record in map(_read_record, paths) if record is not None]
    counts = [record.process_count for record in found if record.rank is not None]
    latest = [record for record in found if record.rank is None or record.process_count == counts[-1]]
    return sorted(latest, key=lambda record: -1 if record.rank is None else record.rank)


def _read_mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it was just deleted
        return 0


def _refuse_foreign(environment: Mapping[str, str]) -> None:
    """Refuse answers of another user: unread, they would look like none.

    Raises:
        InvalidRequest: the answers belong to another user.
    """
    folder = state_home(environment) / "lessons"
    try:
        is_own = folder.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return
    except PermissionError:
        is_own = False
    if not is_own:
        raise InvalidRequest(
            f"the answers in {folder} belong to another user, and mhnb reads only those of the user who runs it"
            "\n  Fix: run this as that user, for example: runuser -l NAME -c 'mhnb progress --json'"
        )


def forget_records(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """Remove the answers of all processes to one task.

    Raises:
        OSError: the state folder is not writable.
    """
    while paths := _stored_paths(name, environment):
        for path in paths:
            path.unlink(missing_ok=True)


# -- how far a lesson is


def title_of(exercise: Exercise) -> str:
    """Return the number and the name of an exercise, as `03.1 columns_apart`."""
    return f"{lesson_of(exercise).number_of(exercise)} {exercise.name}"


def read_lesson_state(
    lesson: Lesson, *, after: Exercise | None = None, environment: Mapping[str, str] = os.environ
) -> LessonState:
    """Return how far a lesson is.

    Args:
        lesson: one of the course.
        after: the exercise that was just answered; the search for the next one begins behind it.
        environment: its MHNB_HOME chooses where answers are stored, its JPY_SESSION_NAME is the notebook's file.
    """
    records = {task.name: read_records(task.name, environment) for task in lesson.tasks}
    exercises = tuple(
        TaskLine(
            task.name,
            _state_of(records[task.name]),
            summarise_records(records[task.name]),
            task.difficulty,
            count_tries(records[task.name]),
        )
        for task in lesson.exercises
    )
    predictions = tuple(
        _describe_prediction(task.name, records[task.name]) for task in lesson.tasks if isinstance(task, Prediction)
    )
    following = _find_next(lesson, exercises, after)
    return LessonState(
        lesson.number,
        lesson.title,
        exercises,
        predictions,
        next_title=f"{lesson.number_of(following)} {following.heading}" if following else "",
        next_link=_link_to(following, environment) if following else "",
    )


def _state_of(records: Sequence[AnswerRecord]) -> TaskState:
    if not records:
        return "untried"
    # An exercise may be tried in the notebook first. If it was answered on the ranks, their answers count.
    counted = [record for record in records if record.rank is not None] or records
    is_done = all(record.right for record in counted) and not _describe_missing(counted)
    return "done" if is_done else "tried"


def count_tries(records: Sequence[AnswerRecord]) -> int:
    """Count checks of an answer; one on all ranks counts once.

    >>> count_tries([AnswerRecord(None, 1, False, "", "", 2), AnswerRecord(0, 2, True, "", "", 3)])
    5
    """
    apart = ([each.tries for each in records if (each.rank is None) is alone] for alone in (True, False))
    return sum(max(tries, default=0) for tries in apart)


def _describe_prediction(name: str, records: Sequence[AnswerRecord]) -> TaskLine:
    if not records or records[0].right is None:
        return TaskLine(name, "tried" if records else "untried", summarise_records(records))
    return TaskLine(name, "done" if records[0].right else "missed", records[0].said)


def _find_next(lesson: Lesson, lines: Sequence[TaskLine], after: Exercise | None) -> Exercise | None:
    """Return the next unfinished exercise behind `after`; None without one."""
    begin = lesson.exercises.index(after) + 1 if after else 0
    left = [exercise for exercise, line in zip(lesson.exercises, lines, strict=True) if line.state != "done"]
    return next((each for each in left if lesson.exercises.index(each) >= begin), left[0] if left else None)


def _link_to(exercise: Exercise, environment: Mapping[str, str]) -> str:
    """Return the heading's link; empty if the saved notebook lacks it."""
    path = Path(environment.get("JPY_SESSION_NAME", ""))
    try:
        notebook = path.read_text(encoding="utf-8") if path.is_absolute() else ""
    except (OSError, UnicodeDecodeError):
        return ""
    heading = f"Exercise: {exercise.heading}"
    # JupyterLab and nbconvert make the same anchor.
    return f"#{heading.replace(' ', '-')}" if f"## {heading}" in notebook else ""


def show_bar_for(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """Show the lesson's bar below a cell, if ranks answered the exercise.

    Args:
        name: what the ranks name; it need not exist.
        environment: its MHNB_HOME chooses where answers are stored.
    """
    exercise = tasks().get(name)
    # Without records the ranks are on hosts that share no folder with the notebook, and the bar would be wrong.
    if isinstance(exercise, Exercise) and read_records(name, environment):
        show_document(build_bar(read_lesson_state(lesson_of(exercise), after=exercise, environment=environment)))


# -- `progress`, `recall` and `reset`


def summarise_records(records: Sequence[AnswerRecord]) -> str:
    """Summarise where an answer is correct, where not, and why not.

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
            f" · also not yet {_describe_processes([record for record in wrong if record not in same])}"
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


def progress(
    lesson: str | None = None, *, as_json: bool = False, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Show your progress by lesson, exercise and prediction.

    Args:
        lesson: number or name of a lesson, such as `02` or `devices`; None for all lessons.
        as_json: return what `mhnb progress --json` prints, and show nothing.
        environment: its MHNB_HOME chooses where answers are stored.

    Raises:
        InvalidRequest: the lesson does not exist, or the answers belong to another user.
    """
    _refuse_foreign(environment)
    chosen = lessons().values() if lesson is None else [find_lesson(lesson)]
    states = [read_lesson_state(each, environment=environment) for each in chosen]
    if as_json:
        return json.dumps([_describe_lesson(state) for state in states], indent=2, ensure_ascii=False)
    show_document(build_progress(states))
    return None


def _describe_lesson(state: LessonState) -> dict[str, Any]:
    """Return a lesson with the keys of `mhnb progress --json`."""
    exercises = [
        {
            "name": task.name,
            "difficulty": task.difficulty,
            "done": task.state == "done",
            "tries": task.tries,
            "status": task.status,
        }
        for task in state.exercises
    ]
    rights = {"done": True, "missed": False}
    predictions = [
        {"name": task.name, "made": task.state != "untried", "right": rights.get(task.state)}
        for task in state.predictions
    ]
    return {"lesson": state.lesson, "title": state.title, "exercises": exercises, "predictions": predictions}


def recall(name: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Print your last answer, also after a restart of the notebook.

    Raises:
        InvalidRequest: the task does not exist or has not been answered yet, or the answers belong to another user.
    """
    name = current_name(name)
    if name not in tasks():
        raise InvalidRequest(format_unknown("exercise or prediction", str(name), tasks()))
    _refuse_foreign(environment)
    records = read_records(name, environment)
    if not records:
        raise InvalidRequest(f"{name} has not been answered yet; mhnb.teach.progress() shows which tasks have")
    answers = list(dict.fromkeys(record.answer for record in records))
    for answer in answers:
        of = _describe_processes([record for record in records if record.answer == answer])
        print(f"# {of}\n{answer}" if len(answers) > 1 else answer)


def reset(name: str = "", *, all: bool = False, environment: Mapping[str, str] = os.environ) -> None:  # noqa: A002  # reads well in a call
    """Delete your answers to a task, a lesson or all lessons.

    Args:
        name: as `count_all`, or a lesson's number or name, as `02` or `devices`.
        all: delete all answers; then without a name.
        environment: its MHNB_HOME chooses where answers are stored.

    Raises:
        InvalidRequest: the task or lesson does not exist, or it is not clear what to delete.
        OSError: the state folder is not writable.
    """
    if all is bool(name):
        raise InvalidRequest(
            "reset expects the name of an exercise, a prediction or a lesson, or all=True"
            "\n  Fix: mhnb.teach.reset(all=True) deletes all your answers"
        )
    name = current_name(name)
    named = [lesson for lesson in lessons().values() if all or name in (lesson.number, lesson.name)]
    chosen = [task.name for lesson in named for task in lesson.tasks] or [each for each in tasks() if each == name]
    if not chosen:
        raise InvalidRequest(
            format_unknown("exercise, prediction or lesson", str(name), [*tasks(), *lessons(), *MODULES])
        )
    for each in chosen:
        forget_records(each, environment)
    print(f"answers deleted · {'all lessons' if all else ', '.join(chosen)}")
