"""Flight recorder of one rank: a memory-mapped file that survives its death.

An event costs 1 to 2 µs, so that recording can always be on. Events of several threads may be written at once: each takes
the next number, and so its own place in the ring.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from collections import deque
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import NamedTuple

from mhnb.core.flight import (
    CAPACITY,
    FILE_NBYTES,
    KINDS,
    NEWEST_CELL_START,
    NO_ROOM_FOR_SET,
    RECORD,
    RING_START,
    SETS_NBYTES,
    SETS_START,
    TEXT_NBYTES,
    EventKind,
    FlightHeader,
    pack_header,
)
from mhnb.core.ranks import format_ranks
from mhnb.core.stragglers import ARRIVAL, MAX_ARRIVALS, ArrivalLog
from mhnb.system.private_files import make_private_folder, open_private

_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_pack_record = RECORD.pack_into


def identify_clock() -> str:
    """Identify this process's monotonic clock by boot and time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not Linux: processes of one machine share it.
        return os.uname().nodename
    try:
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        # Linux before 5.6 has no time namespaces.
        return boot


class _CellArrivals:
    """The last agreements of a cell."""

    def __init__(self) -> None:
        self.participants: dict[tuple[int, ...], int] = {}
        self.packed: deque[bytes] = deque(maxlen=MAX_ARRIVALS)
        self.count = 0


class ArrivalRecorder:
    """Records when agreements of a cell were reached and decided; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: dict[int, _CellArrivals] = {}
        """By the cell's number: a thread that outlives its cell may already agree for the next one."""

    def add(self, cell: int, participants: tuple[int, ...], number: int, times_ns: tuple[int, int]) -> None:
        """Record when the rank reached an agreement and when it was decided."""
        with self._lock:
            own = self._cells.setdefault(cell, _CellArrivals())
            position = own.participants.setdefault(participants, len(own.participants))
            if position >= MAX_ARRIVALS:
                # So many sets of ranks: their first launches are enough.
                del own.participants[participants]
                return
            own.packed.append(ARRIVAL.pack(position, number, *times_ns))
            own.count += 1

    def take(self, cell: int) -> ArrivalLog:
        """Return a cell's agreements; forget them and those of earlier cells."""
        with self._lock:
            own = self._cells.pop(cell, _CellArrivals())
            self._cells = {seq: later for seq, later in self._cells.items() if seq > cell}
            return ArrivalLog(
                [format_ranks(participants) for participants in own.participants],
                b"".join(own.packed),
                own.count - len(own.packed),
            )


class LaunchId(NamedTuple):
    """Identifies a launch among those of a cell."""

    participants: tuple[int, ...]
    number: int
    """Among those of its participants in the cell, from 1."""
    fingerprint: int


NO_LAUNCH = LaunchId((), 0, 0)


class FlightRecorder:
    """Records events of one rank; inactive until opened and in forked children."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._next_number = itertools.count().__next__
        self._sets: dict[tuple[int, ...], int] = {}
        """The number of each set of participants in the table of the file."""
        self._sets_lock = threading.RLock()
        self._sets_end = 0

    def open(self, path: Path, header: FlightHeader) -> None:
        """Record from now on.

        Args:
            path: its file, which is replaced.
            header: describes the rank.

        Raises:
            OSError: the file cannot be created, or there is no room for it.
        """
        make_private_folder(path.parent)
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            # All of it now: on a full disk a later write to mapped memory would kill the process (SIGBUS). File systems that
            # copy on write or compress may run full all the same; those that can, reserve the room.
            _write_all(descriptor, pack_header(header).ljust(FILE_NBYTES, b"\0"))
            _reserve(descriptor, FILE_NBYTES)
            self._memory = mmap.mmap(descriptor, FILE_NBYTES)
        except OSError:
            # A part of it would be read as a recording without events.
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Record nothing in a forked child, which shares the memory."""
        self._memory = None

    def record(
        self, kind: EventKind, cell: int, line: int | None = None, program: str = "", launch: LaunchId = NO_LAUNCH
    ) -> int:
        """Record an event, from any thread; return its monotonic time in ns."""
        now = monotonic_ns()
        if self._memory is None:
            return now
        participants = launch[0]
        set_number = (self._sets.get(participants) or self._add_set(participants)) if participants else 0
        number = self._next_number()
        text = program.encode(errors="replace")[:TEXT_NBYTES]
        record = (
            number + 1,
            now,
            _KIND_NUMBERS[kind],
            len(text),
            set_number,
            cell,
            line or 0,
            launch[1],
            launch[2],
            text,
            number + 1,
        )
        _pack_record(self._memory, RING_START + number % CAPACITY * RECORD.size, *record)
        if kind == "cell":
            # Once more, where a long cell does not overwrite it.
            _pack_record(self._memory, NEWEST_CELL_START, *record)
        return now

    def _add_set(self, participants: tuple[int, ...]) -> int:
        """Add a set of participants to the table; return its number."""
        with self._sets_lock:
            line = f"{format_ranks(participants)}\n".encode()
            end = self._sets_end + len(line)
            if self._memory is None or end > SETS_NBYTES:
                return NO_ROOM_FOR_SET
            number = self._sets.setdefault(participants, len(self._sets) + 1)
            if number == len(self._sets):
                self._memory[SETS_START + self._sets_end : SETS_START + end] = line
                self._sets_end = end
            return number


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _reserve(descriptor: int, nbytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise


def make_header(rank: int, generation: int, process_count: int) -> FlightHeader:
    """Return the header of this process's file."""
    times_ns = time_ns(), monotonic_ns()
    return FlightHeader(rank, generation, process_count, os.getpid(), os.uname().nodename, identify_clock(), *times_ns)
