"""The journal on disk: a file of lines that outlives restarts and the notebook's own process, and pushed bytes beside it.

It knows lines and bytes, not what they mean.
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
from mhnb.system.rundir import is_held, make_home, state_home, usable_home

__all__ = ["JournalDir", "prune_journals", "read_journal"]

_KEPT_JOURNALS = 20
_KEPT_NBYTES = 2**30
_NAME = re.compile(r"[\w-]+\.(\d+)(\.\d+)?\.journal")
"""Name and process; and a number where another process of that number has its own since."""
_FILE = "journal.jsonl"
_PUSH = re.compile(r"push\d+-\d+\.bin")
_opened: set[Path] = set()
"""Folders that this process has written to, whoever began them: what is there is no older process's."""


class JournalDir:
    """The journal of one cluster name in one process, through all its generations.

    Args:
        name: the cluster's, a plain word.
        origin: the process that began it.
        environment: MHNB_HOME in it chooses another place.
        fresh: whether this process begins it, unless it has before: what an older one of its number left is put aside.
    """

    def __init__(self, name: str, origin: int, *, environment: Mapping[str, str], fresh: bool) -> None:
        make_home(environment)
        with usable_home(environment):
            self._open(_find_folder(name, origin, environment), fresh=fresh)

    def _open(self, folder: Path, *, fresh: bool) -> None:
        self.folder = folder
        if fresh and self.folder not in _opened and self.folder.exists():
            # In a container every notebook may have the same number, and the older one's journal is as good as any.
            self.folder.rename(_free_name(self.folder))
        make_private_folder(self.folder)
        _opened.add(self.folder)
        self.path = self.folder / _FILE
        self._fd = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Its owner's number says nothing to a notebook in another container, or on another machine with the same home.
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        if self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n"):
            # A full disk cut the last line short: what follows stands on lines of its own.
            os.write(self._fd, b"\n")

    def append(self, line: bytes) -> None:
        """Add a line, in one write: what the system has taken survives this process, whatever ends it.

        Raises:
            OSError: the disk is full, or the line was written in part.
        """
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def read(self) -> bytes:
        """Read all lines.

        Raises:
            OSError: somebody removed it, or another user could have written it.
        """
        return read_private(self.path, limit_nbytes=None)

    def pushed_nbytes(self) -> int:
        """Bytes of all pushes that are kept."""
        return sum(path.stat().st_size for path in self.folder.glob("push*"))

    def write_parts(self, name: str, parts: Sequence[memoryview]) -> None:
        """Keep the bytes of a push, or nothing.

        Raises:
            OSError: they do not fit; nothing is kept.
        """
        path = self.folder / name
        try:
            with open(path, "wb", opener=open_private) as file:
                file.writelines(parts)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def read_parts(self, name: str, sizes: Sequence[int]) -> list[memoryview]:
        """Give back the parts of a push.

        Raises:
            OSError: the file is gone, or not as long as its parts.
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
        """Let go of the file; it stays. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_journal(name: str, origin: int | None, *, environment: Mapping[str, str]) -> bytes:
    """Read what a cluster's next generation would write to; nothing where it would begin anew.

    Args:
        name: the cluster's.
        origin: the process that began it; None for this one.
        environment: MHNB_HOME in it chooses another place.
    """
    folder = _find_folder(name, os.getpid() if origin is None else origin, environment)
    if origin is None and folder not in _opened:
        return b""
    try:
        return read_private(folder / _FILE, limit_nbytes=None)
    except OSError:
        # Somebody removed it; who asks for its cells is told so.
        return b""


def _find_folder(name: str, origin: int, environment: Mapping[str, str]) -> Path:
    # Beside the directories of the generations, which a restart and a prune remove; readable by its owner alone.
    return state_home(environment) / f"{name}.{origin}.journal"


def _free_name(folder: Path) -> Path:
    stem = folder.name.removesuffix(".journal")
    return next(path for number in count(1) if not (path := folder.with_name(f"{stem}.{number}.journal")).exists())


def prune_journals(environment: Mapping[str, str]) -> None:
    """Remove the oldest journals of notebooks that are gone: twenty stay, and no more of them than a gibibyte holds."""
    home = state_home(environment)
    if not home.is_dir():
        return
    ended = [path for path in home.iterdir() if _is_journal(path) and not _owner_lives(path)]
    kept_nbytes = 0
    for at, path in enumerate(sorted(ended, key=_changed_at, reverse=True)):
        kept_nbytes += _nbytes(path)
        # The newest stays whatever its size: it is the one that somebody may look for.
        if at and (at >= _KEPT_JOURNALS or kept_nbytes > _KEPT_NBYTES):
            # Another notebook that starts at this moment may be removing the same.
            shutil.rmtree(path, ignore_errors=True)


def _is_journal(path: Path) -> bool:
    """Whether a directory is one of ours: MHNB_HOME may be a place where the user keeps other things."""
    return _NAME.fullmatch(path.name) is not None and is_own_folder(path) and (path / _FILE).is_file()


def _owner_lives(path: Path) -> bool:
    if is_held(path / _FILE):
        return True
    _, pid, *aside = path.name.removesuffix(".journal").split(".")
    return not aside and psutil.pid_exists(int(pid))


def _nbytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        # Another notebook that starts at this moment is removing it.
        return 0


def _changed_at(path: Path) -> float:
    try:
        return (path / _FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
