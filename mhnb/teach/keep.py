"""Answers on disk: one small file for each task and process, so that no two writers share one.

They are below the state home and not in the notebook, because neither a rank nor a button can write into the notebook's
file. What the learner typed into a cell is in the notebook as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mhnb.system.private import make_private_folder, read_private, write_private
from mhnb.system.rundir import make_home, state_home

__all__ = ["Record", "keep_record", "read_records", "try_keep"]


@dataclass(frozen=True, slots=True)
class Record:
    """What came of the last answer in one process."""

    rank: int | None
    """None for the notebook."""
    process_count: int
    right: bool | None
    """None for a prediction that is not revealed yet."""
    said: str
    """The feedback."""
    answer: str
    """The answer's source, or how it prints."""


def _folder(name: str, environment: Mapping[str, str]) -> Path:
    return state_home(environment) / "lessons" / name


def keep_record(name: str, record: Record, environment: Mapping[str, str] = os.environ) -> None:
    """Keep the last answer of this process; it replaces the one before.

    Raises:
        OSError: the disk is full, or the state home cannot be written.
    """
    folder = _folder(name, environment)
    for each in (make_home(environment) / "lessons", folder):
        make_private_folder(each)
    path = folder / ("notebook.json" if record.rank is None else f"rank{record.rank}.json")
    # In one step: the notebook may read while a rank writes.
    write_private(path, json.dumps(asdict(record)))


def try_keep(name: str, record: Record) -> str:
    """Keep an answer if the disk lets us; return what to tell the learner if it does not, else nothing."""
    try:
        keep_record(name, record)
    except OSError as error:
        return f"{name}: this answer could not be kept: {error}; MHNB_HOME chooses another place"
    return ""


def _parse(text: bytes) -> Record:
    """Read a record.

    Raises:
        TypeError, ValueError: it is none.
    """
    match json.loads(text):
        case {"rank": int() | None, "process_count": int(), "right": _, "said": str(), "answer": str()} as fields:
            return Record(**fields)
    raise TypeError("it is no record of an answer")


def read_records(name: str, environment: Mapping[str, str] = os.environ) -> list[Record]:
    """Read what the processes of the last try kept, by rank, the notebook first.

    Of an earlier try on more ranks nothing is given: those ranks have not answered since.
    """
    found = []
    for path in _folder(name, environment).glob("*.json"):
        try:
            found.append((path.stat().st_mtime_ns, _parse(read_private(path))))
        except (OSError, ValueError, TypeError, RecursionError):
            # Replaced at this moment, cut short by a full disk, or another user's: as if it had not been answered.
            continue
    if not found:
        return []
    ranked = [each for each in found if each[1].rank is not None]
    count = max(ranked, key=lambda each: each[0])[1].process_count if ranked else 0
    kept = [record for _, record in found if record.rank is None or record.process_count == count]
    return sorted(kept, key=lambda record: -1 if record.rank is None else record.rank)
