"""Shared memory for the launch proposals and stop requests of one host.

The supervisor creates the board before the ranks, and each of them maps it. It stores words and decides nothing, see
`local_agreement`.

The following holds on any processor. Entries, marks and cell ends are written under one lock (`flock`, which the kernel releases when
its holder is killed), and under the lock a process sees all that was written under it before. Without the lock it sees each word late,
and each by any amount of time: ARM reorders both the writes and the reads, x86 delays the writes.

A read without the lock decides a launch, so an entry proves itself: its last word is a hash of its slot (cell, number) and of all its
other words. A mixture with words of an older entry there, or of none, does not match, and `read_entry` returns None until it does. A
slot is never used twice, so an entry that matches is this launch's. Whether an entry was withdrawn is in a word of another rank, and could
be seen late. But it is written before the last participant posts, or never. Each participant that posts sees it under the lock, and
records it in its own entry (`Entry.has_withdrawal`). If all entries were read and none records it, none was withdrawn.

Every other read without the lock only shows when a closer look is worthwhile, and is right though late: an entry or an end that was
seen exists, and stays.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from typing import NamedTuple, TypeVar

from mhnb.core.typed_json import decode_json, encode_json
from mhnb.system.private_files import open_private, touch_private, write_private

_MAGIC = 0x6D686E6204
_INTERRUPT, _SET_COUNT, _CLOSE_COUNT, _PROCESS_COUNT, _REPORT_COUNT = 1, 2, 3, 4, 5
_RANK_WORDS = 8
"""Words of the head for each rank; as many are for all of them. This many words are one cache line of the processor."""
_ENDED, _WAITING = 0, 1
_ENDING_BITS = 4
"""A cell's number and how it ended are one word: no reader sees one without the other."""
_HIGHEST_SEQ = (1 << 59) - 1
"""No cell has a number this high."""

_SEGMENT_SETS = 256
"""The board grows by this many sets of participants at a time. Only the used part of them takes memory."""
_SLOT_COUNT = 4
"""Entries per rank and set. A participant is at most one launch ahead of another on the same set; the rest is spare."""
_SET_WORDS, _SLOT_WORDS = 8, 8
_REASON = 7
"""Index of the mark among an entry's words; the words before it are below."""
_ENTRY_STRUCT, _AFTER_SLOT_STRUCT = struct.Struct("7Q"), struct.Struct("6Q")
"""The slot, the proposal, and the hash of both."""
_PARTICIPANT_WORDS = _SLOT_COUNT * _SLOT_WORDS
"""Words of one rank in one set: its latest entries."""
_WORD_MASK = (1 << 64) - 1
_LOCK_TRIES = 100
"""Attempts to take the lock before the kernel is asked to wait for it: it is held for a few microseconds."""

yield_core: Callable[[], None] = getattr(os, "sched_yield", partial(sleep, 0))
"""Yield the core to another process."""


class BoardSlot(NamedTuple):
    """Slot of a participant set's n-th launch in a cell, from 1."""

    seq: int
    set_index: int
    """The number of the set, on this board."""
    number: int


class Entry(NamedTuple):
    """One rank's proposal for a launch."""

    fingerprint: int
    """Bit 0 is set, unless the rank had been asked to stop the cell when it posted. Bit 63 is set if the rank handles its stop."""
    provenance: int
    """Hash of the provenance of the arrays that it would launch on; 0 if unknown."""
    thread: int
    """The number of the thread or task that launches, see `core/guard/threads.py`; 0 if unknown."""
    packed_lines: int
    """1-based line of the cell, with those of its callers; 0 for none. The agreement defines how they are packed."""
    has_withdrawal: int = 0
    """1 if a participant had withdrawn its own proposal for this launch before this one was posted. Set by `write_entry`."""


class BoardUnreadable(OSError):
    """The board does not have what a decision needs of it."""


class _Layout(NamedTuple):
    """Sizes of a board's parts, in bytes and in words."""

    head_nbytes: int
    segment_nbytes: int
    set_words: int


def _compute_layout(process_count: int) -> _Layout:
    set_words = _SET_WORDS + process_count * _PARTICIPANT_WORDS
    return _Layout(
        _page_nbytes(8 + process_count * _RANK_WORDS), _page_nbytes(_SEGMENT_SETS * (1 + set_words)), set_words
    )


def _page_nbytes(words: int) -> int:
    """Return the bytes of these words, rounded up to a mappable size."""
    return -(-8 * words // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _board_paths(run_dir: Path) -> tuple[Path, Path]:
    return run_dir / "board", run_dir / "programs"


def _outline_dir(run_dir: Path) -> Path:
    return run_dir / "outlines"


def create_board(run_dir: Path, process_count: int) -> int | None:
    """Create the board, before any rank opens it.

    Where the system can, it is memory without a name, and the folder has a link to this process's descriptor of it: a home over a
    network is slow, its locks more so, and no memory is left behind however the processes end.

    Returns:
        The descriptor, to be kept open while a process may still open the board; None if the board is a file.
    """
    board, programs = _board_paths(run_dir)
    touch_private(programs)
    _outline_dir(run_dir).mkdir(exist_ok=True, mode=0o700)
    memory = _link_memory(board, process_count)
    if memory is None:
        with open(board, "wb", opener=open_private) as file:
            _write_blank(file.fileno(), process_count)
    return memory


def _write_blank(fd: int, process_count: int) -> None:
    layout = _compute_layout(process_count)
    os.ftruncate(fd, layout.head_nbytes + layout.segment_nbytes)
    os.write(fd, struct.pack("5Q", _MAGIC, 0, 0, 0, process_count))


def _link_memory(link: Path, process_count: int) -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("mhnb-board")
    try:
        _write_blank(fd, process_count)
        link.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        # A separate opening, as each rank's will be: if /proc does not allow that, a file must do.
        os.close(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        link.unlink(missing_ok=True)
        os.close(fd)
        return None
    return fd


class _ProgramRow(NamedTuple):
    """A line of the names file: a program and its ranks."""

    fingerprint: int
    name: str
    set_index: int
    participants: tuple[int, ...]


class _ThreadRow(NamedTuple):
    """Another line of that file: the label of a kind of threads."""

    kind: int
    label: str


_Row = TypeVar("_Row", _ProgramRow, _ThreadRow)


class SharedBoard:
    """One process's view of the board.

    Raises:
        OSError: there is no board in `run_dir`.
        ValueError: it is of another version, or has other ranks.
    """

    def __init__(self, run_dir: Path, process_count: int) -> None:
        path, self._programs_path = _board_paths(run_dir)
        self._outline_dir = _outline_dir(run_dir)
        # Opened by each process itself: an flock belongs to the open file, and children share their parent's.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._layout = _compute_layout(process_count)
        found = os.pread(self._fd, 8 * (_PROCESS_COUNT + 1), 0)
        if found[:8] != _MAGIC.to_bytes(8, "little"):
            raise ValueError(f"{path} was written by another version of mhnb")
        if int.from_bytes(found[8 * _PROCESS_COUNT :], "little") != process_count:
            raise ValueError(f"{path} is not for {process_count} ranks")
        self._maps = [mmap.mmap(self._fd, self._layout.head_nbytes)]
        self._words = memoryview(self._maps[0]).cast("Q")
        self._segments: dict[int, memoryview] = {}
        self._words_by_set: dict[int, memoryview] = {}
        """The words of each set that was used: those of the set, and each rank's entries."""
        self._index_by_participants: dict[tuple[int, ...], int] = {}
        self._index_by_digest: dict[int, int] = {}
        """The number of each set that was found on the board, by its hash."""
        self._participants_by_index: dict[int, tuple[int, ...]] = {}
        # An flock belongs to the open file: it does not exclude other threads of the process.
        self._thread_lock = threading.Lock()
        self._named_programs: set[tuple[int, int]] = set()
        self._named_threads: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the board. Not reentrant."""
        with self._thread_lock:
            try:
                # Inside: a signal handler may raise as soon as the lock is taken. Releasing one not held does nothing.
                self._acquire()
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _acquire(self) -> None:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield_core()
            else:
                return
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    # -- interrupts and cells

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop.

        It is 0 if only a request before the first cell was asked to stop, and -1 if nothing was.
        """
        return self._words[_INTERRUPT] - 1

    def request_interrupt(self, seq: int) -> None:
        """Ask the ranks to stop a cell before their next launch."""
        self._words[_INTERRUPT] = seq + 1

    @property
    def close_count(self) -> int:
        """How often the ranks were asked to close their mutual connections."""
        return self._words[_CLOSE_COUNT]

    def request_close(self) -> None:
        """Ask the ranks to close their connections to each other."""
        self._words[_CLOSE_COUNT] += 1

    @property
    def report_count(self) -> int:
        """How often the ranks were asked to report soon where they are."""
        return self._words[_REPORT_COUNT]

    def request_report(self) -> None:
        """Ask the ranks to report soon where they are."""
        self._words[_REPORT_COUNT] += 1

    def end_cell(self, rank: int, seq: int, ending: int) -> None:
        """Record how a rank's cell ended, after which it posts no more.

        To be called under the lock, so that no thread of this rank is in the middle of a post in that cell.
        """
        self._words[self._rank_offset(rank) + _ENDED] = seq << _ENDING_BITS | ending

    def mark_lost(self, rank: int, ending: int) -> None:
        """Mark a rank as lost in all cells; call under the lock."""
        self.end_cell(rank, _HIGHEST_SEQ, ending)

    def ended_seq(self, rank: int) -> int:
        """Return the latest cell that a rank has ended."""
        return self._words[self._rank_offset(rank) + _ENDED] >> _ENDING_BITS

    def cell_ending(self, rank: int) -> int:
        """Return how a rank's latest ended cell ended."""
        return self._words[self._rank_offset(rank) + _ENDED] & (1 << _ENDING_BITS) - 1

    @staticmethod
    def _rank_offset(rank: int) -> int:
        return 8 + rank * _RANK_WORDS

    # -- sets of participants

    @property
    def set_count(self) -> int:
        """The number of sets of participants; they are numbered from 0."""
        return self._words[_SET_COUNT]

    def find_set_index(self, participants: Sequence[int]) -> int:
        """Return a participant set's number, equal on every rank; add new sets.

        Raises:
            OSError: there is no room for it.
        """
        key = tuple(participants)
        if (known := self._index_by_participants.get(key)) is not None:
            return known
        digest = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") | 1
        with self.locked():
            for index in range(len(self._index_by_digest), self._words[_SET_COUNT]):
                # Two sets with one hash would be one; with 64 bits that does not happen.
                self._index_by_digest[self._segment(index)[index % _SEGMENT_SETS]] = index
            if digest not in self._index_by_digest:
                self._add_set(digest)
        index = self._index_by_participants[key] = self._index_by_digest[digest]
        self._participants_by_index[index] = key
        return index

    def _add_set(self, digest: int) -> None:
        index = len(self._index_by_digest)
        layout, segment = self._layout, index // _SEGMENT_SETS
        end = layout.head_nbytes + (segment + 1) * layout.segment_nbytes
        if os.fstat(self._fd).st_size < end:
            os.ftruncate(self._fd, end)
        self._segment(index)[index % _SEGMENT_SETS] = digest
        self._words[_SET_COUNT] = index + 1
        self._index_by_digest[digest] = index

    def _segment(self, index: int) -> memoryview:
        """Return the words of a set's segment, mapping it if needed."""
        number, layout = index // _SEGMENT_SETS, self._layout
        if (words := self._segments.get(number)) is None:
            offset = layout.head_nbytes + number * layout.segment_nbytes
            mapped = mmap.mmap(self._fd, layout.segment_nbytes, offset=offset)
            self._maps.append(mapped)
            words = self._segments[number] = memoryview(mapped).cast("Q")
        return words

    def _set_words(self, index: int) -> memoryview:
        """Return the words of a set."""
        if (words := self._words_by_set.get(index)) is None:
            begin = _SEGMENT_SETS + index % _SEGMENT_SETS * self._layout.set_words
            words = self._segment(index)[begin : begin + self._layout.set_words]
            self._words_by_set[index] = words
        return words

    # -- entries

    def last_entry(self, rank: int, set_index: int) -> tuple[int, int]:
        """Return the cell and number of a rank's latest entry, or zeros."""
        last = self._last_slot_word(rank, set_index)
        return last >> 32, last & 0xFFFFFFFF

    def _last_slot_word(self, rank: int, set_index: int) -> int:
        # Slots only rise, so the latest is the largest. A word of its own for it would be a second write for each post.
        words, at = self._set_words(set_index), _entries_offset(rank)
        return max(words[at], words[at + _SLOT_WORDS], words[at + 2 * _SLOT_WORDS], words[at + 3 * _SLOT_WORDS])

    def next_slot(self, rank: int, seq: int, set_index: int) -> BoardSlot:
        """Return the slot of a rank's next entry in a set."""
        last_seq, number = self.last_entry(rank, set_index)
        return BoardSlot(seq, set_index, number + 1 if last_seq == seq else 1)

    def write_entry(self, rank: int, slot: BoardSlot, entry: Entry) -> None:
        """Write a rank's proposal to its next slot; call under the lock."""
        words, at = self._set_words(slot.set_index), _entry_offset(rank, slot)
        slot_word = slot.seq << 32 | slot.number
        has_withdrawal = int(words[slot.number % _SLOT_COUNT] == slot_word)
        entry_words = (slot_word, *entry[:4], has_withdrawal)
        words[at + _REASON] = 0
        _AFTER_SLOT_STRUCT.pack_into(words, 8 * at + 8, *entry_words[1:], hash(entry_words) & _WORD_MASK)
        # Only this completes the post: a signal handler may raise, or the process be killed, between any two steps.
        words[at] = slot_word

    def has_reached(self, rank: int, slot: BoardSlot) -> bool:
        """Return whether a rank has reached a slot."""
        slot_word = slot.seq << 32 | slot.number
        if self._set_words(slot.set_index)[_entry_offset(rank, slot)] == slot_word:
            return True
        last = self._last_slot_word(rank, slot.set_index)
        return last >> 32 == slot.seq and last >= slot_word

    def read_entry(self, rank: int, slot: BoardSlot) -> Entry | None:
        """Return a rank's entry in a slot; None if missing or incomplete."""
        found = _ENTRY_STRUCT.unpack_from(self._set_words(slot.set_index), 8 * _entry_offset(rank, slot))
        if found[0] != slot.seq << 32 | slot.number or found[6] != hash(found[:6]) & _WORD_MASK:
            return None
        return Entry(*found[1:6])

    def withdrawal_reason(self, rank: int, slot: BoardSlot) -> int:
        """Return why an entry was withdrawn, or 0 if it was not.

        For another rank's entry this is certain only under the lock.
        """
        return self._set_words(slot.set_index)[_entry_offset(rank, slot) + _REASON]

    def withdraw(self, rank: int, slot: BoardSlot, reason: int) -> None:
        """Withdraw an entry, under the lock and before all have posted."""
        words = self._set_words(slot.set_index)
        words[_entry_offset(rank, slot) + _REASON] = reason
        words[slot.number % _SLOT_COUNT] = slot.seq << 32 | slot.number

    # -- ranks that wait

    def set_waiting(self, rank: int, slot: BoardSlot | None) -> None:
        """Record the slot at which a rank waits, or None."""
        word = 0 if slot is None else (slot.set_index + 1) << 32 | slot.number
        self._words[self._rank_offset(rank) + _WAITING] = word

    def waiting_slot(self, rank: int, seq: int) -> BoardSlot | None:
        """Return the slot a rank waits at in a cell, or None."""
        word = self._words[self._rank_offset(rank) + _WAITING]
        return BoardSlot(seq, (word >> 32) - 1, word & 0xFFFFFFFF) if word else None

    # -- names, for the text of an error

    def record_program_name(self, fingerprint: int, name: str, set_index: int, participants: Sequence[int]) -> None:
        """Record a program's name before it is posted; repeated calls cost nothing."""
        if (fingerprint, set_index) not in self._named_programs:
            self._append(_ProgramRow(fingerprint, name, set_index, tuple(participants)))
            self._named_programs.add((fingerprint, set_index))

    def record_outline(self, fingerprint: int, outline: str) -> None:
        """Record the outline of a program, for the text of a mismatch.

        It replaces an earlier one: a program that is compiled again may have other variables on the lines of its call.
        """
        write_private(self._outline_dir / f"{fingerprint:016x}", outline)

    def read_outline(self, fingerprint: int) -> str:
        """Return the recorded outline of a program, or an empty string."""
        try:
            return (self._outline_dir / f"{fingerprint:016x}").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def record_thread_label(self, kind: int, label: str) -> None:
        """Record the label of a thread kind; repeated calls cost nothing."""
        if kind not in self._named_threads:
            self._append(_ThreadRow(kind, label))
            self._named_threads.add(kind)

    def _append(self, row: _ProgramRow | _ThreadRow) -> None:
        file = os.open(self._programs_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, (encode_json(row) + "\n").encode())
        finally:
            os.close(file)

    def program_names(self) -> dict[int, str]:
        """Return every program's name, by fingerprint."""
        return {row.fingerprint: row.name for row in self._read_rows(_ProgramRow)}

    def thread_labels(self) -> dict[int, str]:
        """Return the first label of each thread kind, equal on every rank."""
        labels: dict[int, str] = {}
        for row in self._read_rows(_ThreadRow):
            labels.setdefault(row.kind, row.label)
        return labels

    def participants_of(self, set_index: int) -> tuple[int, ...]:
        """Return the ranks of a used set; empty if unreadable."""
        if set_index not in self._participants_by_index:
            self._participants_by_index |= {row.set_index: row.participants for row in self._read_rows(_ProgramRow)}
        return self._participants_by_index.get(set_index, ())

    def _read_rows(self, kind: type[_Row]) -> Iterator[_Row]:
        for line in self._programs_path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = decode_json(line, kind)
            except ValueError:
                # A row of the other kind; or partly written, because the disk is full: only a name in the text of an error
                # is missing.
                continue
            yield row

    # -- deadlocks

    def write_deadlock(self, rank: int, text: str) -> None:
        """Write a deadlock's text for one of its ranks, under the lock."""
        path = self._programs_path.parent / f"ring.{rank}"
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)

    def read_deadlock(self, rank: int) -> str:
        """Return the text of a deadlock that was written for a rank."""
        return (self._programs_path.parent / f"ring.{rank}").read_text(encoding="utf-8")

    def close(self) -> None:
        """Release the memory."""
        for words in (*self._words_by_set.values(), *self._segments.values(), self._words):
            words.release()
        for mapped in self._maps:
            mapped.close()
        os.close(self._fd)


def _entries_offset(rank: int) -> int:
    return _SET_WORDS + rank * _PARTICIPANT_WORDS


def _entry_offset(rank: int, slot: BoardSlot) -> int:
    return _entries_offset(rank) + slot.number % _SLOT_COUNT * _SLOT_WORDS


_INTERRUPT_NBYTES = 24


def _interrupt_path(run_dir: Path, supervisor: int) -> Path:
    return run_dir / f"interrupt{supervisor}"


def create_interrupt_flag(run_dir: Path, supervisor: int) -> None:
    """Create the supervisor's request words on a host without the board.

    The file is separate, and named after the supervisor: several hosts may share one run directory, but only one has the board.
    """
    with open(_interrupt_path(run_dir, supervisor), "wb", opener=open_private) as file:
        file.write(bytes(_INTERRUPT_NBYTES))


class InterruptFlag:
    """One process's view of these aligned 8-byte words, each written atomically."""

    def __init__(self, run_dir: Path, supervisor: int) -> None:
        with _interrupt_path(run_dir, supervisor).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _INTERRUPT_NBYTES)
        self._words = memoryview(self._map).cast("Q")

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop.

        It is 0 if only a request before the first cell was asked to stop, and -1 if nothing was.
        """
        return self._words[0] - 1

    def request_interrupt(self, seq: int) -> None:
        """Ask the ranks of this host to stop a cell."""
        self._words[0] = seq + 1

    @property
    def close_count(self) -> int:
        """How often the ranks were asked to close their mutual connections."""
        return self._words[1]

    def request_close(self) -> None:
        """Ask the ranks of this host to close their mutual connections."""
        self._words[1] += 1

    @property
    def report_count(self) -> int:
        """How often the ranks were asked to report soon where they are."""
        return self._words[2]

    def request_report(self) -> None:
        """Ask the ranks of this host to report soon where they are."""
        self._words[2] += 1

    def close(self) -> None:
        """Release the memory."""
        self._words.release()
        self._map.close()
