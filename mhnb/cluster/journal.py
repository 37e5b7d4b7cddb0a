"""Journal of a cluster: records on disk that a replay reads back.

A file of lines outlives restarts and the notebook's own process; pushed bytes are in files beside it.
A disk error never fails a cell: the user is notified once, and the replay knows where the journal ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from mhnb.cluster.transfer import PushPayload
from mhnb.core.journal import (
    CellRecord,
    PushRecord,
    Record,
    forget_other_kernels,
    format_record,
    is_start_record,
    parse_records,
)
from mhnb.errors import ClusterError
from mhnb.sharding.layout import format_nbytes
from mhnb.system.private_files import is_own_folder, make_private_folder, open_private, read_private
from mhnb.system.run_dir import is_in_use, make_home, prune_folders, report_home_errors, state_home

KERNEL = token_hex(6)
"""Identifies this process, as the kernel of a notebook, in journals and on ranks that other kernels may continue."""

_RETAINED_JOURNALS = 20
_RETAINED_NBYTES = 2**30
_NAME = re.compile(r"[\w-]+\.(\d+)(\.\d+)?\.journal")
"""Name and process id; and a number if a later process with the same id has its own journal."""
_FILE = "journal.jsonl"
_PUSH = re.compile(r"push\d+-\d+\.bin")
_used_folders: set[Path] = set()
"""Folders that this process has written to, whichever process created them. Their content does not belong to an older process."""


class JournalStore:
    """Journal of one cluster name in one process, through all generations.

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
        """Append a line in one write, which survives this process's end.

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

    def find_last_push(self, generation: int) -> int:
        """Return the highest number of a generation's pushes; 0 for none."""
        numbers = [int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"push{generation}-*.bin")]
        return max(numbers, default=0)

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
            raise OSError(f"{name!r} is not a valid name for the file of a push")
        data = memoryview(read_private(self.folder / name, limit_nbytes=None))
        if data.nbytes != sum(sizes):
            raise OSError(f"{name} has {data.nbytes} bytes; expected {sum(sizes)}")
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
    """Return the journal that a next generation would continue, or empty bytes.

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
    """Remove ended notebooks' oldest journals beyond twenty or one gibibyte."""
    home = state_home(environment)
    if not home.is_dir():
        return
    ended = [path for path in home.iterdir() if _is_journal(path) and not _owner_lives(path)]
    prune_folders(ended, retained_count=_RETAINED_JOURNALS, retained_nbytes=_RETAINED_NBYTES, dated_by=_FILE)


def _is_journal(path: Path) -> bool:
    """Return whether mhnb made the directory; MHNB_HOME may hold other things."""
    return _NAME.fullmatch(path.name) is not None and is_own_folder(path) and (path / _FILE).is_file()


def _owner_lives(path: Path) -> bool:
    _, pid, *aside = path.name.removesuffix(".journal").split(".")
    return is_in_use(path / _FILE, None if aside else int(pid))


# -- read and write the journal's records


PUSH_NBYTES = 256 * 2**20
"""A push of more bytes is not stored."""
ALL_PUSHES_NBYTES = 2**30
"""A push that would raise the total of a journal's pushes above this is not stored either."""

_latest_generation: defaultdict[str, int] = defaultdict(int)
"""By name, the highest generation that this process knows of, because a detached cluster still uses the folder with its number."""
_faults: dict[tuple[Path, int], str] = {}
"""By file and generation. In memory, because the disk may be unable to store it."""


class ClusterJournal:
    """Journal of one generation; all generations share its file.

    Args:
        name: the cluster's.
        generation: the one that writes.
        environment: selects the directory on disk.
        clock: Unix time in seconds.
        notify: notifies the user of what the journal cannot store; called from any thread.
        origin_pid: id of the process that began it; None for this one.
    """

    def __init__(
        self,
        name: str,
        generation: int,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float],
        notify: Callable[[str], None],
        origin_pid: int | None = None,
    ) -> None:
        self.origin_pid = os.getpid() if origin_pid is None else origin_pid
        """Id of the process that began it."""
        self._dir = JournalStore(name, self.origin_pid, environment=environment, is_new=origin_pid is None)
        self._generation, self._clock, self._notify = generation, clock, notify
        # A notebook that attaches continues the generation of another one.
        self._push_numbers = count(self._dir.find_last_push(generation) + 1)
        self.records: list[Record] = []
        """What was written, after what the generations wrote that this one continues."""
        _faults.pop((self.path, generation), None)
        self._has_ended = False
        """A record could not be written. None is written since, because later records would be replayed without what they build on."""

    @property
    def path(self) -> Path:
        """The file: one JSON line per cell, push, start and accept."""
        return self._dir.path

    def now(self) -> float:
        """Return Unix time in seconds, from the clock of the records."""
        return self._clock()

    def write(self, record: Record) -> None:
        """Append a record with the time; it survives this process's end."""
        self.records.append(record)
        if self._has_ended:
            return
        try:
            self._dir.append(format_record(record, when=round(self._clock(), 3)))
        except OSError as error:
            self._has_ended = True
            fault = f"the journal of generation {self._generation} ends before {_describe_record(record)}: {error} ({self.path})"
            _faults[self.path, self._generation] = fault
            self._notify(f"mhjax · {fault}\n  %mhjax restart --replay cannot repeat cells from here on")

    def prepare_push(self, packed: PushPayload, ranks: tuple[int, ...] | None) -> Callable[[], None]:
        """Store a push's values; return what records it once they are bound.

        The user is notified if they cannot be stored.
        """
        names = tuple(str(value["name"]) for value in packed.values)
        record = PushRecord(self._generation, names, ranks)
        skip_reason, file = self._push_skip_reason(packed.nbytes), ""
        if not skip_reason:
            file = f"push{self._generation}-{next(self._push_numbers)}.bin"
            try:
                self._dir.write_parts(file, packed.parts)
            except OSError as error:
                skip_reason, file = f"its values could not be written: {error}", ""
        if skip_reason:
            self._notify(f"mhjax · push {' '.join(names)}: {skip_reason}; %mhjax restart --replay will skip it")
            return partial(self.write, replace(record, why_not=skip_reason))
        sizes = tuple(part.nbytes for part in packed.parts)
        return partial(self.write, replace(record, values=tuple(packed.values), sizes=sizes, file=file))

    def _push_skip_reason(self, nbytes: int) -> str:
        if nbytes > PUSH_NBYTES:
            return (
                f"it has {format_nbytes(nbytes)}, and the journal stores at most {format_nbytes(PUSH_NBYTES)} per push"
            )
        if self._dir.pushed_nbytes() + nbytes > ALL_PUSHES_NBYTES:
            return f"the journal stores at most {format_nbytes(ALL_PUSHES_NBYTES)} of pushed values, and that space is full"
        return ""

    def read(self) -> tuple[list[Record], list[str]]:
        """Return all generations' records, and notes on lines that are not records.

        A cell of another kernel has no number of the notebook: that number means nothing to this one's user.

        Raises:
            ClusterError: the file is gone or cannot be read.
        """
        try:
            records, faults = parse_records(self._dir.read())
        except OSError as error:
            raise ClusterError(
                f"the journal {self.path} cannot be read: {error}\n  Fix: %mhjax restart (fresh processes, without a replay)"
            ) from error
        return [forget_other_kernels(record, KERNEL) for record in records], faults

    def read_push(self, record: PushRecord) -> PushPayload:
        """Return the bytes of a push.

        Raises:
            OSError: they are gone.
        """
        return PushPayload(list(record.values), self._dir.read_parts(record.file, record.sizes))

    def find_cell(self, seq: int) -> CellRecord:
        """Return the record of a finished cell of this generation."""
        for record in reversed(self.records):
            if isinstance(record, CellRecord) and (record.generation, record.seq) == (self._generation, seq):
                return record
        raise ClusterError(f"the journal {self.path} has no cell {seq} of generation {self._generation}")

    def write_fault(self, generation: int) -> str:
        """Return why a generation's journal ends early; empty if it is complete."""
        return _faults.get((self.path, generation), "")

    def close(self) -> None:
        """Close the file; it stays on disk."""
        self._dir.close()


def next_generation(name: str, *, environment: Mapping[str, str], origin_pid: int | None = None) -> int:
    """Return a generation number that no notebook has used in the journal.

    The number is never reused, even if the start then fails, because its error names a log in the folder with that number.

    Args:
        name: the cluster's.
        environment: selects the directory on disk.
        origin_pid: id of the process that began the journal; None for this one.
    """
    lines = read_journal(name, origin_pid, environment=environment).splitlines()
    starts, _ = parse_records(b"\n".join(line for line in lines if is_start_record(line)))
    _latest_generation[name] = 1 + max([_latest_generation[name], *(record.generation for record in starts)])
    return _latest_generation[name]


def record_generation(name: str, number: int) -> None:
    """Record another process's generation, so that its folder is not reused."""
    _latest_generation[name] = max(_latest_generation[name], number)


def _describe_record(record: Record) -> str:
    return record.name if isinstance(record, CellRecord) else f"the {record.kind}"


def make_replayed_record(record: PushRecord, generation: int) -> PushRecord:
    """Return the record of a repeated push, with the earlier bytes."""
    return replace(record, generation=generation, replayed=True)
