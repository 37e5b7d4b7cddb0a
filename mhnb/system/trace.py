"""The files of traces: timelines, the profiles that XProf reads, and summaries.

A folder has the traces of any number of cells: `cell7.timeline.json.gz`, `cell7.summary.json`, and the profile of each rank in
`plugins/profile/cell7/rank0.xplane.pb`, which is where XProf and TensorBoard look for profiles.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mhnb.core.trace import TraceReport
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import InvalidRequest
from mhnb.system.private_files import make_not_private_error, make_private_folder, open_private

_TIMELINE, _SUMMARY = ".timeline.json.gz", ".summary.json"
_NUMBERS = re.compile(r"\d+")


def default_trace_folder(run_dir: Path) -> Path:
    """Return the folder for the traces of a cluster."""
    return run_dir / "trace"


def make_trace_folder(folder: Path, *, is_private: bool) -> None:
    """Create a folder for traces, with its parents.

    Args:
        folder: the folder.
        is_private: whether it is mhnb's own, and closed to other users. One that the user names keeps its mode.

    Raises:
        OSError: it cannot be created.
    """
    if is_private:
        make_private_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)


def find_free_name(folder: Path, seq: int) -> str:
    """Return an unused name for a cell's trace: `cell7`, else `cell7-2`."""
    names = itertools.chain([f"cell{seq}"], (f"cell{seq}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not timeline_path(folder, name).exists())


def timeline_path(folder: Path, name: str) -> Path:
    """Return the file for a timeline."""
    return folder / f"{name}{_TIMELINE}"


def profile_path(folder: Path, name: str, rank: int) -> Path:
    """Return the file for a rank's profile."""
    return folder / "plugins" / "profile" / name / f"rank{rank}.xplane.pb"


_PROFILE_DEPTH = 3
"""How many folders of `profile_path` are below that of the trace."""


def write_timeline(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Write a timeline for this user only; remove it on errors.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "wb", opener=open_private) as file:
        try:
            _write_events(file, events)
        except BaseException:
            path.unlink()
            raise


def _write_events(raw: BinaryIO, events: Iterable[Mapping[str, Any]]) -> None:
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", compresslevel=5) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def write_page(timeline: str, make_page: Callable[[bytes], str]) -> Path:
    """Write a private page beside its timeline, and return its path.

    Args:
        timeline: the timeline's file.
        make_page: returns the page, given the timeline.

    Raises:
        InvalidRequest: the timeline cannot be read, for example because it was removed, or the page cannot be written.
    """
    path = Path(timeline.removesuffix(".json.gz") + ".html")
    try:
        page = make_page(Path(timeline).read_bytes())
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.write(page)
    except OSError as error:
        raise InvalidRequest(
            f"{error.filename or path}: {error.strerror or error}; expected the timeline of a trace, and room beside it"
        ) from error
    return path


def write_summary(folder: Path, name: str, report: TraceReport) -> None:
    """Write the summary of a trace.

    Raises:
        OSError: it cannot be written.
    """
    with open(folder / f"{name}{_SUMMARY}", "w", encoding="utf-8", opener=open_private) as file:
        file.write(encode_json(report))


def append_to_profile(path: Path, data: bytes, *, is_first: bool) -> None:
    """Write the next part of a rank's profile.

    Raises:
        NotPrivate: one of the folders below that of the trace is a symbolic link.
        OSError: it cannot be written.
    """
    for folder in reversed(path.parents[:_PROFILE_DEPTH]):
        # In a folder that others can write, such as /tmp, another user could have created it.
        if folder.is_symlink():
            raise make_not_private_error(folder, "is a symbolic link", "give another folder after --trace")
        folder.mkdir(exist_ok=True)
    with open(path, "wb" if is_first else "ab", opener=open_private) as file:
        file.write(data)


def read_summaries(run_dir: Path) -> list[TraceReport]:
    """Read the readable trace summaries of a run, in cell order."""
    found = default_trace_folder(run_dir).glob(f"cell*{_SUMMARY}")
    ordered = sorted(found, key=lambda path: [int(number) for number in _NUMBERS.findall(path.name)])
    return [report for path in ordered if (report := _read_summary(path)) is not None]


def _read_summary(path: Path) -> TraceReport | None:
    try:
        return decode_json(path.read_bytes(), TraceReport)
    except (OSError, ValueError):
        # It is being written, or is of another version.
        return None
