"""Journal of a running cluster: write records to disk as things happen, and read them back.

A disk error never fails a cell: the user is notified once, and the replay knows where the journal ends.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mhnb.core.keep.journal import CellRecord, PushRecord, Record, format_record, is_start_record, parse_records
from mhnb.errors import ClusterError
from mhnb.exchange.push import PushPayload
from mhnb.launch.journaldir import JournalStore, read_journal
from mhnb.sharding.layout import format_nbytes

__all__ = ["ClusterJournal", "make_replayed_record", "next_generation", "record_generation"]

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
        self._push_count = 0
        self._latest: CellRecord | None = None
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
        """Append a record with the time. The operating system has it when this returns."""
        if isinstance(record, CellRecord):
            self._latest = record
        if self._has_ended:
            return
        try:
            self._dir.append(format_record(record, when=round(self._clock(), 3)))
        except OSError as error:
            self._has_ended = True
            fault = f"the journal of generation {self._generation} ends before {_describe_record(record)}: {error} ({self.path})"
            _faults[self.path, self._generation] = fault
            self._notify(f"mhjax · {fault}\n  %mhjax restart --replay will not know of anything from here on")

    def write_push(self, packed: PushPayload, ranks: tuple[int, ...] | None) -> None:
        """Record a push with its values; notify the user if they cannot be stored, for instance because they are too large."""
        names = tuple(str(value["name"]) for value in packed.values)
        record = PushRecord(self._generation, names, ranks)
        skip_reason, file = self._push_skip_reason(packed.nbytes), ""
        if not skip_reason:
            self._push_count += 1
            file = f"push{self._generation}-{self._push_count}.bin"
            try:
                self._dir.write_parts(file, packed.parts)
            except OSError as error:
                skip_reason, file = f"its bytes could not be written: {error}", ""
        if skip_reason:
            self._notify(f"mhjax · push {' '.join(names)}: {skip_reason}; %mhjax restart --replay will leave it out")
            self.write(replace(record, why_not=skip_reason))
        else:
            sizes = tuple(part.nbytes for part in packed.parts)
            self.write(replace(record, values=tuple(packed.values), sizes=sizes, file=file))

    def _push_skip_reason(self, nbytes: int) -> str:
        if nbytes > PUSH_NBYTES:
            return f"its {format_nbytes(nbytes)} are more than the journal keeps of one push ({format_nbytes(PUSH_NBYTES)})"
        if self._dir.pushed_nbytes() + nbytes > ALL_PUSHES_NBYTES:
            return f"the journal keeps {format_nbytes(ALL_PUSHES_NBYTES)} of pushed values, and they are full"
        return ""

    def read(self) -> tuple[list[Record], list[str]]:
        """Return all records of all generations, and notes on lines that are not records.

        Raises:
            ClusterError: the file is gone or cannot be read.
        """
        try:
            return parse_records(self._dir.read())
        except OSError as error:
            raise ClusterError(
                f"the journal {self.path} cannot be read: {error}; %mhjax restart gives fresh processes without a replay"
            ) from error

    def read_push(self, record: PushRecord) -> PushPayload:
        """Return the bytes of a push.

        Raises:
            OSError: they are gone.
        """
        return PushPayload(list(record.values), self._dir.read_parts(record.file, record.sizes))

    def find_cell(self, seq: int) -> CellRecord:
        """Return the record of a finished cell of this generation."""
        if self._latest is not None and self._latest.seq == seq:
            return self._latest
        for record in reversed(self.read()[0]):
            if isinstance(record, CellRecord) and (record.generation, record.seq) == (self._generation, seq):
                return record
        raise ClusterError(f"the journal {self.path} has no cell {seq} of generation {self._generation}")

    def write_fault(self, generation: int) -> str:
        """Return why nothing was written from some point of a generation on; empty if all was written."""
        return _faults.get((self.path, generation), "")

    def close(self) -> None:
        """Close the file; it stays on disk."""
        self._dir.close()


def next_generation(name: str, *, environment: Mapping[str, str], origin_pid: int | None = None) -> int:
    """Return the number of a new start: unused in its journal, also by another notebook that continued it.

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
    """Record a generation that another process started and this one continues, so that its folder is not reused."""
    _latest_generation[name] = max(_latest_generation[name], number)


def _describe_record(record: Record) -> str:
    return f"cell {record.seq}" if isinstance(record, CellRecord) else f"the {record.kind}"


def make_replayed_record(record: PushRecord, generation: int) -> PushRecord:
    """Return the record of a push that was repeated; its bytes are the earlier ones."""
    return replace(record, generation=generation, replayed=True)
