"""Answers on disk: one small file per task and process, so that no two processes write the same file.

They are in mhnb's state folder and not in the notebook, because neither a rank nor a button can write to the notebook's file.
Answers that the learner typed into a cell are in the notebook as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mhnb.system.private import make_private_folder, read_private, write_private
from mhnb.system.rundir import make_home, state_home

__all__ = ["AnswerRecord", "read_records", "try_write_record", "write_record"]


@dataclass(frozen=True, slots=True)
class AnswerRecord:
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
    write_private(path, json.dumps(asdict(record)))


def try_write_record(name: str, record: AnswerRecord) -> str:
    """Store an answer. Return an error message for the learner if the disk refuses, otherwise an empty string."""
    try:
        write_record(name, record)
    except OSError as error:
        return f"{name}: this answer could not be kept: {error}; MHNB_HOME chooses another place"
    return ""


def _parse_record(text: bytes) -> AnswerRecord:
    """Parse a record.

    Raises:
        TypeError, ValueError: the text is not a record.
    """
    match json.loads(text):
        case {"rank": int() | None, "process_count": int(), "right": _, "said": str(), "answer": str()} as fields:
            return AnswerRecord(**fields)
    raise TypeError("it is no record of an answer")


def read_records(name: str, environment: Mapping[str, str] = os.environ) -> list[AnswerRecord]:
    """Return the records of the last attempt: the notebook first, then by rank.

    Records of an earlier attempt with another number of ranks are skipped, because those ranks have not answered since.
    """
    found = []
    for path in _folder(name, environment).glob("*.json"):
        try:
            found.append((path.stat().st_mtime_ns, _parse_record(read_private(path))))
        except (OSError, ValueError, TypeError, RecursionError):
            # The file was just replaced, was truncated by a full disk, or belongs to another user: treat it as
            # unanswered.
            continue
    if not found:
        return []
    ranked = [each for each in found if each[1].rank is not None]
    count = max(ranked, key=lambda each: each[0])[1].process_count if ranked else 0
    latest = [record for _, record in found if record.rank is None or record.process_count == count]
    return sorted(latest, key=lambda record: -1 if record.rank is None else record.rank)
