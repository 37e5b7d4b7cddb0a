"""Find and write flight recordings of clusters, even of ended ones.

How a running cluster's recordings are read is in `host_monitor.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from msgspec import structs

from mhnb.core.flight import FlightReport, RankFlight, build_report, report_values
from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest
from mhnb.system.flight import read_flight
from mhnb.system.private_files import NotPrivate, open_private
from mhnb.system.run_dir import list_run_dirs

_FILE_NAME = re.compile(r"rank(\d+)\.(?:copy|events)")


def write_report(report: FlightReport, path: Path) -> str:
    """Write a user-private JSON report; return a sentence about the file.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(report_values(report), file)
    except NotPrivate as error:
        raise InvalidRequest(
            f"--json {path}: it {error.reason}; expected a new file, or one of yours\n  Fix: --json flight.json"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"--json {path}: {error.strerror or error}; expected a file that can be written"
        ) from error
    count = sum(len(flight.events) for flight in report.flights)
    return f"wrote {path}: {pluralize(len(report.flights), 'rank')}, {pluralize(count, 'event')}"


def find_recorded_runs(environment: Mapping[str, str], name: str) -> list[Path]:
    """Return run directories with recordings, by name or full name, newest first."""
    runs = []
    for path in list_run_dirs(environment):
        names = path.name.partition(".")[0], path.name.rpartition(".")[0], path.name
        if name in names and _list_ranks(path) and (changed := _find_change_time(path)) is not None:
            runs.append((changed, path))
    return [path for _, path in sorted(runs, reverse=True)]


def _find_change_time(run_dir: Path) -> float | None:
    try:
        return max((run_dir / "flight").stat().st_mtime, run_dir.stat().st_mtime)
    except FileNotFoundError:
        # It was the oldest one, and was removed meanwhile.
        return None


def read_run(run_dir: Path) -> FlightReport:
    """Read the recordings that are in a run directory on this machine."""
    flights = {rank: _read_file(path, rank) for rank, path in _list_ranks(run_dir).items()}
    count = max((flight.header.process_count for flight in flights.values() if flight.header is not None), default=0)
    absent = "there is no recording of it on this machine"
    ranks = sorted({*range(count), *flights})
    return build_report(
        run_dir.name.rpartition(".")[0], [flights.get(rank, RankFlight(rank, problem=absent)) for rank in ranks]
    )


def _read_file(path: Path, rank: int) -> RankFlight:
    flight = read_flight(path, rank)
    if path.suffix == ".events" or flight.problem:
        return flight
    copied = f"copied from its machine at {datetime.fromtimestamp(path.stat().st_mtime).astimezone():%H:%M:%S}"
    return structs.replace(flight, problem=copied)


def _list_ranks(run_dir: Path) -> dict[int, Path]:
    """Return each rank's recording, or the notebook's copy of a remote one."""
    files = sorted((run_dir / "flight").glob("rank*"), key=lambda path: path.suffix)
    return {int(found[1]): path for path in files if (found := _FILE_NAME.fullmatch(path.name))}
