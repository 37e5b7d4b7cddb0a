"""`mhnb logs -f`: follow the logs of the ranks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from mhnb.cluster.logs import RankLog, find_rank_logs, find_tail, format_rank_logs
from mhnb.errors import InvalidRequest
from mhnb.system.run_dir import RunRecord, read_running_clusters

_POLL_S = 0.2


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `mhnb logs` has and `%mhjax logs` has not."""
    parser.add_argument("--rank", "--ranks", metavar="R", help=argparse.SUPPRESS)
    parser.add_argument(
        "-f",
        action="store_true",
        dest="follow",
        help="print new lines as they are written, until the cluster ends or Ctrl-C",
    )


def has_all_logs(record: RunRecord) -> bool:
    """Return whether the logs of all ranks are on this machine."""
    return not any(log.host for log in find_rank_logs(record))


def follow_logs(record: RunRecord, ranks: str | None, count: int) -> int:
    """Print the logs' last lines, then new ones until the cluster ends.

    Raises:
        InvalidRequest: a number of lines below 0.
    """
    if count < 0:
        raise InvalidRequest(f"-n {count}: expected a number of lines from 0")
    try:
        for line in _follow(record, find_rank_logs(record, ranks), count):
            print(line, flush=True)
    except KeyboardInterrupt:
        return 0
    print(f"mhnb logs {record.name}: the processes of the cluster have ended", file=sys.stderr)
    return 0


def _follow(record: RunRecord, logs: Sequence[RankLog], count: int) -> Iterator[str]:
    """Yield the logs' last lines, then new ones until the cluster ends."""
    with ExitStack() as files:
        tails = []
        for log in logs:
            if log.host or not log.path.exists():
                yield from format_rank_logs([log])
            else:
                tails.append(_Tail(log, files.enter_context(log.path.open("rb")), count))
        has_ended = False
        while tails:
            for tail in tails:
                yield from format_rank_logs([tail.read(is_last=has_ended)] if tail.has_lines(is_last=has_ended) else [])
            if has_ended:
                return
            # After this look each log is read once more, because its rank may have written to it meanwhile.
            has_ended = not _is_running(record)
            if not has_ended:
                time.sleep(_POLL_S)


def _is_running(record: RunRecord) -> bool:
    return record.run_dir in {running.run_dir for running in read_running_clusters(os.environ)}


class _Tail:
    """The end of one log, from the last `count` lines on."""

    def __init__(self, log: RankLog, file: BinaryIO, count: int) -> None:
        self._log, self._file, self._text = log, file, b""
        file.seek(find_tail(file, count))

    def has_lines(self, *, is_last: bool) -> bool:
        """Read on, and return whether `read` has lines to return."""
        self._text += self._file.read()
        return bool(self._text) if is_last else b"\n" in self._text

    def read(self, *, is_last: bool) -> RankLog:
        """Return the complete lines; all text if it is the last."""
        whole, newline, rest = (self._text, b"", b"") if is_last else self._text.rpartition(b"\n")
        self._text = rest
        lines = (whole + newline).decode(errors="replace").splitlines()
        return RankLog(self._log.rank, "", Path(self._log.path), tuple(lines))
