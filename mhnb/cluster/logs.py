"""Read the ranks' last log lines, for `%mhjax logs` and `mhnb logs`.

A log is read where it is a file of this machine. The log of a rank on another machine is named, not fetched.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mhnb.core.ranks import resolve_ranks
from mhnb.system.run_dir import RunRecord
from mhnb.types import RankInfo

DEFAULT_LINES = 50
"""Lines per rank that are shown if no number is given."""
_BLOCK_NBYTES = 64 * 1024
_MAX_NBYTES = 16 * 1024 * 1024
"""A longer tail is cut, because one line may be huge."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """The end of one rank's log."""

    rank: int
    host: str
    """The machine that has the log; empty if it is this one."""
    path: Path
    lines: tuple[str, ...] | None
    """Its last lines, without line ends; None if the log is on another machine, or does not exist."""


def find_rank_logs(source: Sequence[RankInfo] | RunRecord, ranks: str | Sequence[int] | None = None) -> list[RankLog]:
    """Return where the logs of some ranks are, without reading them.

    Args:
        source: the ranks of a cluster of this notebook, or the record of one on this machine.
        ranks: such as `0,2-3`; None for all.

    Raises:
        InvalidRequest: a rank does not exist.
    """
    if isinstance(source, RunRecord):
        folder = Path(source.run_dir) / "log"
        # A rank on another machine has no process here, and its log has the same name there.
        all_logs = [
            RankLog(rank, "" if (path := folder / f"rank{rank}.log").exists() else _name_location(source), path, None)
            for rank in range(len(source.rank_pids))
        ]
    else:
        all_logs = [_locate_log(rank) for rank in source]
    chosen = resolve_ranks(ranks, len(all_logs))
    return [log for log in all_logs if chosen is None or log.rank in chosen]


def _name_location(record: RunRecord) -> str:
    return record.location or "another machine"


def _locate_log(rank: RankInfo) -> RankLog:
    """Return where the log of a rank is: a path, or `machine:path`."""
    machine, colon, path = str(rank.log_path).partition(":")
    if not colon or "/" in machine:
        return RankLog(rank.rank, "", rank.log_path, None)
    return RankLog(rank.rank, "" if machine == platform.node() else machine, Path(path), None)


def read_rank_logs(
    source: Sequence[RankInfo] | RunRecord, ranks: str | Sequence[int] | None = None, lines: int = DEFAULT_LINES
) -> list[RankLog]:
    """Return the last lines of the logs of some ranks.

    Args:
        source: the ranks of a cluster of this notebook, or the record of one on this machine.
        ranks: such as `0,2-3`; None for all.
        lines: how many lines of each.

    Raises:
        InvalidRequest: a rank does not exist.
    """
    return [
        log if log.host else RankLog(log.rank, "", log.path, _read_if_exists(log.path, lines))
        for log in find_rank_logs(source, ranks)
    ]


def _read_if_exists(path: Path, count: int) -> tuple[str, ...] | None:
    try:
        return read_last_lines(path, count)
    except FileNotFoundError:
        return None


def read_last_lines(path: Path, count: int) -> tuple[str, ...]:
    """Return a file's last lines, without reading all of a long one."""
    with path.open("rb") as file:
        file.seek(find_tail(file, count))
        return tuple(file.read().decode(errors="replace").splitlines())


def find_tail(file: BinaryIO, count: int) -> int:
    """Return the offset of a file's last lines, reading only its end."""
    end = start = file.seek(0, os.SEEK_END)
    if count < 1:
        return end
    data = b""
    # One more line end than lines: the text before the first one is the end of another line.
    while start > 0 and data.count(b"\n") <= count and len(data) < _MAX_NBYTES:
        step = min(_BLOCK_NBYTES, start)
        start -= step
        file.seek(start)
        data = file.read(step) + data
    return end - sum(map(len, data.splitlines(keepends=True)[-count:]))


def format_rank_logs(logs: Sequence[RankLog]) -> list[str]:
    """Format log ends, each line after its rank's name."""
    width = max((len(str(log.rank)) for log in logs), default=1)
    return [f"rank {log.rank:>{width}} │ {line}" for log in logs for line in _list_lines(log)]


def _list_lines(log: RankLog) -> Sequence[str]:
    if log.lines is None:
        return [f"log on {log.host}: {log.path}" if log.host else f"no log yet: {log.path}"]
    return log.lines or [f"empty log: {log.path}"]
