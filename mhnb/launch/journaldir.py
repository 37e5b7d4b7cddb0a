"""Journal files on disk: a file of lines that outlives restarts and the notebook's process, and files with pushed bytes.

It stores lines and bytes without interpreting them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import psutil

from mhnb.system.private import is_own_folder, make_private_folder, open_private, read_private
from mhnb.system.rundir import is_locked, make_home, report_home_errors, state_home

__all__ = ["JournalStore", "prune_journals", "read_journal"]

_RETAINED_JOURNALS = 20
_RETAINED_NBYTES = 2**30
_NAME = re.compile(r"[\w-]+\.(\d+)(\.\d+)?\.journal")
"""Name and process id; and a number if a later process with the same id has its own journal."""
_FILE = "journal.jsonl"
_PUSH = re.compile(r"push\d+-\d+\.bin")
_used_folders: set[Path] = set()
"""Folders that this process has written to, whichever process created them. Their content does not belong to an older process."""


class JournalStore:
    """The journal of one cluster name in one process, through all its generations.

    Args:
        name: the cluster's name, a plain word.
        creator_pid: id of the process that created it.
        environment: its MHNB_HOME selects another parent folder.
        is_new: whether this process starts a new journal, unless it already has. An older process's journal of the same id is renamed.
    """

    def __init__(self, name: str, creator_pid: int, *, environment: Mapping[str, str], is_new: bool) -> None:
        make_home(environment)
        with report_home_errors(environment):
            self._open(_find_folder(name, creator_pid, environment), is_new=is_new)

    def _open(self, folder: Path, *, is_new: bool) -> None:
        self.folder = folder
        if is_new and self.folder not in _used_folders and self.folder.exists():
            # In a container, every notebook may have the same process id. The older one's journal is kept.
            self.folder.rename(_find_unused_folder(self.folder))
        make_private_folder(self.folder)
        _used_folders.add(self.folder)
        self.path = self.folder / _FILE
        self._fd = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # The owner's process id is meaningless in another container, or on another machine with the same home.
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        if self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n"):
            # A full disk truncated the last line, so terminate it before new lines.
            os.write(self._fd, b"\n")

    def append(self, line: bytes) -> None:
        """Append a line with a single write: data accepted by the system survives any end of this process.

        Raises:
            OSError: the disk is full, or the line was written in part.
        """
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def read(self) -> bytes:
        """Return all lines.

        Raises:
            OSError: the file was removed, or another user could have written it.
        """
        return read_private(self.path, limit_nbytes=None)

    def pushed_nbytes(self) -> int:
        """Return the bytes of all stored pushes."""
        return sum(path.stat().st_size for path in self.folder.glob("push*"))

    def write_parts(self, name: str, parts: Sequence[memoryview]) -> None:
        """Store the bytes of a push completely, or not at all.

        Raises:
            OSError: they do not fit; nothing is stored.
        """
        path = self.folder / name
        try:
            with open(path, "wb", opener=open_private) as file:
                file.writelines(parts)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def read_parts(self, name: str, sizes: Sequence[int]) -> list[memoryview]:
        """Return the parts of a push.

        Raises:
            OSError: the file is missing, or its length is not that of the parts.
        """
        if not _PUSH.fullmatch(name):
            raise OSError(f"{name!r} is not the name of a push")
        data = memoryview(read_private(self.folder / name, limit_nbytes=None))
        if data.nbytes != sum(sizes):
            raise OSError(f"{name} has {data.nbytes} bytes, and {sum(sizes)} were written")
        parts, at = [], 0
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        return parts

    def close(self) -> None:
        """Close the file without removing it. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_journal(name: str, creator_pid: int | None, *, environment: Mapping[str, str]) -> bytes:
    """Return the journal that a cluster's next generation would append to; empty if it would start a new one.

    Args:
        name: the cluster's name.
        creator_pid: id of the process that created it; None for this one.
        environment: its MHNB_HOME selects another parent folder.
    """
    folder = _find_folder(name, os.getpid() if creator_pid is None else creator_pid, environment)
    if creator_pid is None and folder not in _used_folders:
        return b""
    try:
        return read_private(folder / _FILE, limit_nbytes=None)
    except OSError:
        # It was removed. A caller that needs its cells reports that.
        return b""


def _find_folder(name: str, creator_pid: int, environment: Mapping[str, str]) -> Path:
    # Beside the generations' directories, which a restart and a prune remove; readable only by its owner.
    return state_home(environment) / f"{name}.{creator_pid}.journal"


def _find_unused_folder(folder: Path) -> Path:
    stem = folder.name.removesuffix(".journal")
    return next(path for number in count(1) if not (path := folder.with_name(f"{stem}.{number}.journal")).exists())


def prune_journals(environment: Mapping[str, str]) -> None:
    """Remove the oldest journals of notebooks that have ended: twenty stay, with a total of at most one gibibyte."""
    home = state_home(environment)
    if not home.is_dir():
        return
    ended = [path for path in home.iterdir() if _is_journal(path) and not _owner_lives(path)]
    retained_nbytes = 0
    for at, path in enumerate(sorted(ended, key=_changed_at, reverse=True)):
        retained_nbytes += _nbytes(path)
        # The newest stays whatever its size, because a user may look for it.
        if at and (at >= _RETAINED_JOURNALS or retained_nbytes > _RETAINED_NBYTES):
            # Another notebook that starts at the same moment may be removing it too.
            shutil.rmtree(path, ignore_errors=True)


def _is_journal(path: Path) -> bool:
    """Return whether a directory was made by mhnb: the user may keep other things in MHNB_HOME."""
    return _NAME.fullmatch(path.name) is not None and is_own_folder(path) and (path / _FILE).is_file()


def _owner_lives(path: Path) -> bool:
    if is_locked(path / _FILE):
        return True
    _, pid, *aside = path.name.removesuffix(".journal").split(".")
    return not aside and psutil.pid_exists(int(pid))


def _nbytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        # Another notebook that starts at the same moment is removing it.
        return 0


def _changed_at(path: Path) -> float:
    try:
        return (path / _FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
