"""Shared memory through which the ranks of one host exchange what they are about to launch, and ask each other to stop.

The supervisor makes the board before the ranks, and each of them maps it. It stores words and does not judge: see `local_agreement`.

What may be relied on, on any processor. Posts, marks and ends are written under one lock (`flock`, which the kernel releases
when its holder is killed), and under the lock a process sees all that was written under it before. Without the lock it
sees each word late, and each as late as it likes: ARM reorders both the writes and the reads, x86 delays the writes.

A look without the lock decides a launch, so a post proves itself: its last word is a hash of its place (cell, number) and of all its
other words. A mixture with words of an older post there, or of none, does not fit, and `read` returns None until it does.
A place is never used twice, so a post that fits is this launch's. Whether a post was taken back is another rank's word and could
be seen late. But that is written before the last participant posts, or never, and whoever posts sees it under the lock and writes it
into its own post (`Post.taken_back`). Where all posts were read and none has it, none was taken back.

Every other look without the lock only says when a closer look is worth it, and is right though late: a post or an
end that is seen is there, and stays.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from mhnb.system.private import open_private, touch_private

__all__ = ["Board", "InterruptWord", "Place", "Post", "make_board", "make_interrupt_word", "yield_core"]

_MAGIC = 0x6D686E6204
_INTERRUPT, _SETS, _CLOSE, _RANKS = 1, 2, 3, 4
_RANK_WORDS = 8
"""Of the head, for each rank; as many are for all of them. So many words are one line of the processor's cache."""
_ENDED, _WANT = 0, 1
_ENDING_BITS = 4
"""A cell's number and how it ended are one word: no reader sees the one without the other."""
_FOREVER = (1 << 59) - 1
"""No cell has a number that high."""

_SEGMENT_SETS = 256
"""The board grows by so many sets of participants at a time. Only what is used of them takes memory."""
_RING = 4
"""A participant is at most one launch ahead of another on the same set; the rest is room."""
_SET_WORDS, _POST_WORDS = 8, 8
_MARK = 7
"""Of a post's words; those before are below."""
_POST, _AFTER_PLACE = struct.Struct("7Q"), struct.Struct("6Q")
"""The place, what is posted, the hash of both."""
_ENTRY_WORDS = _RING * _POST_WORDS
"""Of one rank in one set: its latest posts."""
_WORD = (1 << 64) - 1
_TRIES = 100
"""So often the lock is tried before the kernel is asked to wait for it: it is held for a few microseconds."""

yield_core: Callable[[], None] = getattr(os, "sched_yield", partial(sleep, 0))
"""Let another process have the core."""


class Place(NamedTuple):
    """Where a launch stands: the n-th of a cell among the launches of one set of participants; n counts from 1."""

    seq: int
    group: int
    """The number of the set, on this board."""
    number: int


class Post(NamedTuple):
    """What one rank said of a launch."""

    fingerprint: int
    """Bit 0 is set, unless the rank had been asked to stop the cell when it posted. Bit 63 is, where it handles that it has stopped."""
    origin: int
    """Where the arrays come from that it would launch on, as a hash; 0 where that is not known."""
    thread: int
    """The number of the thread or task that launches, see `core/guard/threads.py`; 0 where it is not known."""
    line: int
    """1-based, of the cell, with those of its callers; 0 for none. How they are packed is the agreement's business."""
    taken_back: int = 0
    """1 if a participant had taken back its own post of this launch before this one was made. `post` sees to it."""


class _Layout(NamedTuple):
    """The sizes of a board's parts, in bytes and in words."""

    head_nbytes: int
    segment_nbytes: int
    set_words: int


def _lay_out(process_count: int) -> _Layout:
    set_words = _SET_WORDS + process_count * _ENTRY_WORDS
    return _Layout(_pages(8 + process_count * _RANK_WORDS), _pages(_SEGMENT_SETS * (1 + set_words)), set_words)


def _pages(words: int) -> int:
    """Return the bytes of so many words, rounded up to what can be mapped."""
    return -(-8 * words // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _paths(run_dir: Path) -> tuple[Path, Path]:
    return run_dir / "board", run_dir / "programs"


def _outlines(run_dir: Path) -> Path:
    return run_dir / "outlines"


def make_board(run_dir: Path, process_count: int) -> int | None:
    """Make it, before any rank looks for it.

    Where the system can, it is memory without a name, and in the folder a link to this process's descriptor of it: a home
    over a network is slow, its locks more so, and of memory nothing is left whatever ends the processes.

    Returns:
        The descriptor, to be kept open while somebody may come to open the board; None where it is a file.
    """
    board, programs = _paths(run_dir)
    touch_private(programs)
    _outlines(run_dir).mkdir(exist_ok=True, mode=0o700)
    memory = _link_memory(board, process_count)
    if memory is None:
        with open(board, "wb", opener=open_private) as file:
            _write_blank(file.fileno(), process_count)
    return memory


def _write_blank(fd: int, process_count: int) -> None:
    layout = _lay_out(process_count)
    os.ftruncate(fd, layout.head_nbytes + layout.segment_nbytes)
    os.write(fd, struct.pack("5Q", _MAGIC, 0, 0, 0, process_count))


def _link_memory(link: Path, process_count: int) -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("mhnb-board")
    try:
        _write_blank(fd, process_count)
        link.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        # An opening of its own, as each rank's will be: where /proc does not allow that, a file must do.
        os.close(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        link.unlink(missing_ok=True)
        os.close(fd)
        return None
    return fd


class Board:
    """One process's view of the board.

    Raises:
        OSError: there is none in `run_dir`.
        ValueError: it is of another version, or has other ranks.
    """

    def __init__(self, run_dir: Path, process_count: int) -> None:
        path, self._programs = _paths(run_dir)
        self._outlines = _outlines(run_dir)
        # Opened by each process itself: an flock belongs to the opening, and children share their parent's.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._layout = _lay_out(process_count)
        found = os.pread(self._fd, 8 * (_RANKS + 1), 0)
        if found[:8] != _MAGIC.to_bytes(8, "little"):
            raise ValueError(f"{path} is the board of another version of mhnb")
        if int.from_bytes(found[8 * _RANKS :], "little") != process_count:
            raise ValueError(f"{path} is not the board of {process_count} ranks")
        self._maps = [mmap.mmap(self._fd, self._layout.head_nbytes)]
        self._words = memoryview(self._maps[0]).cast("Q")
        self._segments: dict[int, memoryview] = {}
        self._sets: dict[int, memoryview] = {}
        """The words of each set that was looked at: those of the set, and each rank's entry."""
        self._indexes: dict[tuple[int, ...], int] = {}
        self._digests: dict[int, int] = {}
        """The number of each set that was found on the board, by its hash."""
        self._members: dict[int, tuple[int, ...]] = {}
        # An flock belongs to the open file: between threads of one process it holds nobody back.
        self._threads = threading.Lock()
        self._named: set[tuple[int, int]] = set()
        self._threads_named: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the board. Not reentrant."""
        with self._threads:
            try:
                # Inside: a signal handler may raise as soon as the lock is ours. To release one that is not ours does nothing.
                self._acquire()
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _acquire(self) -> None:
        for _ in range(_TRIES):
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
        """The latest cell that was asked to stop; 0 for none."""
        return self._words[_INTERRUPT]

    def ask_interrupt(self, seq: int) -> None:
        """Ask the ranks to stop a cell before their next launch."""
        self._words[_INTERRUPT] = seq

    @property
    def close_count(self) -> int:
        """How often the ranks were asked to close their connections to each other."""
        return self._words[_CLOSE]

    def ask_close(self) -> None:
        """Ask the ranks to close their connections to each other."""
        self._words[_CLOSE] += 1

    def end_cell(self, rank: int, seq: int, ending: int) -> None:
        """Say that a rank's cell has ended, and how: from now on nothing is posted in it.

        To be called under the lock: a thread of this rank is not in the middle of a post in that cell.
        """
        self._words[self._rank_at(rank) + _ENDED] = seq << _ENDING_BITS | ending

    def lose(self, rank: int, ending: int) -> None:
        """Say that a rank is gone for good: to all who ask it has ended every cell, also those to come. To be called under the lock."""
        self.end_cell(rank, _FOREVER, ending)

    def ended_seq(self, rank: int) -> int:
        """The latest cell that a rank has ended."""
        return self._words[self._rank_at(rank) + _ENDED] >> _ENDING_BITS

    def ending(self, rank: int) -> int:
        """How that one ended."""
        return self._words[self._rank_at(rank) + _ENDED] & (1 << _ENDING_BITS) - 1

    @staticmethod
    def _rank_at(rank: int) -> int:
        return 8 + rank * _RANK_WORDS

    # -- sets of participants

    @property
    def set_count(self) -> int:
        """How many sets of participants there are; they are numbered from 0."""
        return self._words[_SETS]

    def index_of(self, participants: Sequence[int]) -> int:
        """Return the number of a set of participants, the same on every rank; a new one is entered, and the board grows for it.

        Raises:
            OSError: there is no room for it.
        """
        key = tuple(participants)
        if (known := self._indexes.get(key)) is not None:
            return known
        digest = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") | 1
        with self.locked():
            for index in range(len(self._digests), self._words[_SETS]):
                # Two sets of one hash would be one; of 64 bits that does not happen.
                self._digests[self._segment(index)[index % _SEGMENT_SETS]] = index
            if digest not in self._digests:
                self._enter_set(digest)
        index = self._indexes[key] = self._digests[digest]
        self._members[index] = key
        return index

    def _enter_set(self, digest: int) -> None:
        index = len(self._digests)
        layout, segment = self._layout, index // _SEGMENT_SETS
        end = layout.head_nbytes + (segment + 1) * layout.segment_nbytes
        if os.fstat(self._fd).st_size < end:
            os.ftruncate(self._fd, end)
        self._segment(index)[index % _SEGMENT_SETS] = digest
        self._words[_SETS] = index + 1
        self._digests[digest] = index

    def _segment(self, index: int) -> memoryview:
        """Return the words of the segment that has a set, which is mapped if this process has not done that."""
        number, layout = index // _SEGMENT_SETS, self._layout
        if (words := self._segments.get(number)) is None:
            offset = layout.head_nbytes + number * layout.segment_nbytes
            mapped = mmap.mmap(self._fd, layout.segment_nbytes, offset=offset)
            self._maps.append(mapped)
            words = self._segments[number] = memoryview(mapped).cast("Q")
        return words

    def _set(self, index: int) -> memoryview:
        """Return the words of a set."""
        if (words := self._sets.get(index)) is None:
            begin = _SEGMENT_SETS + index % _SEGMENT_SETS * self._layout.set_words
            words = self._segment(index)[begin : begin + self._layout.set_words]
            self._sets[index] = words
        return words

    # -- posts

    def last_post(self, rank: int, group: int) -> tuple[int, int]:
        """Return the cell of a rank's latest post in a set, and its number there; zeros if there is none."""
        last = self._last(rank, group)
        return last >> 32, last & 0xFFFFFFFF

    def _last(self, rank: int, group: int) -> int:
        # Places only rise, so the latest is the largest. To keep it in a word of its own would be a second thing to write for a post.
        words, at = self._set(group), _entry(rank)
        return max(words[at], words[at + _POST_WORDS], words[at + 2 * _POST_WORDS], words[at + 3 * _POST_WORDS])

    def next_place(self, rank: int, seq: int, index: int) -> Place:
        """Return the place of a rank's next post in a set."""
        last_seq, number = self.last_post(rank, index)
        return Place(seq, index, number + 1 if last_seq == seq else 1)

    def post(self, rank: int, place: Place, post: Post) -> None:
        """Write what a rank is about to launch, at its next place. To be called under the lock."""
        words, at = self._set(place.group), _post_at(rank, place)
        where = place.seq << 32 | place.number
        taken_back = int(words[place.number % _RING] == where)
        said = (where, *post[:4], taken_back)
        words[at + _MARK] = 0
        _AFTER_PLACE.pack_into(words, 8 * at + 8, *said[1:], hash(said) & _WORD)
        # With this it is posted, and not before: a signal handler may raise, or the process be killed, between any two steps.
        words[at] = where

    def has_posted(self, rank: int, place: Place) -> bool:
        """Return whether a rank has come as far."""
        where = place.seq << 32 | place.number
        if self._set(place.group)[_post_at(rank, place)] == where:
            return True
        last = self._last(rank, place.group)
        return last >> 32 == place.seq and last >= where

    def read(self, rank: int, place: Place) -> Post | None:
        """Return what a rank posted at a place; None if it has not, or not all of it is to be seen yet without the lock."""
        found = _POST.unpack_from(self._set(place.group), 8 * _post_at(rank, place))
        if found[0] != place.seq << 32 | place.number or found[6] != hash(found[:6]) & _WORD:
            return None
        return Post(*found[1:6])

    def mark_of(self, rank: int, place: Place) -> int:
        """Return why a post was taken back; 0 if it stands. Of another rank's post this is sure under the lock only."""
        return self._set(place.group)[_post_at(rank, place) + _MARK]

    def mark(self, rank: int, place: Place, mark: int) -> None:
        """Take a post back. To be called under the lock, while another participant has not posted there yet."""
        words = self._set(place.group)
        words[_post_at(rank, place) + _MARK] = mark
        words[place.number % _RING] = place.seq << 32 | place.number

    # -- who waits where

    def want(self, rank: int, place: Place | None) -> None:
        """Say that a rank waits at a place, or no longer."""
        word = 0 if place is None else (place.group + 1) << 32 | place.number
        self._words[self._rank_at(rank) + _WANT] = word

    def wanted(self, rank: int, seq: int) -> Place | None:
        """Where a rank waits in a cell."""
        word = self._words[self._rank_at(rank) + _WANT]
        return Place(seq, (word >> 32) - 1, word & 0xFFFFFFFF) if word else None

    # -- names, for the words of an error

    def name_program(self, fingerprint: int, name: str, index: int, participants: Sequence[int]) -> None:
        """Note what a program is called, before it is posted; asked again, it costs nothing."""
        if (fingerprint, index) not in self._named:
            self._append([fingerprint, name, index, list(participants)])
            self._named.add((fingerprint, index))

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Note what a program is, for the words of a mismatch; a program that is noted already stays as it is."""
        try:
            file = os.open(
                self._outlines / f"{fingerprint:016x}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except FileExistsError:
            return
        try:
            os.write(file, outline.encode())
        finally:
            os.close(file)

    def program_outline(self, fingerprint: int) -> str:
        """What was noted of a program; empty if nothing was."""
        try:
            return (self._outlines / f"{fingerprint:016x}").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def name_thread(self, kind: int, label: str) -> None:
        """Note the label of a kind of threads, likewise."""
        if kind not in self._threads_named:
            self._append([kind, label])
            self._threads_named.add(kind)

    def _append(self, row: list[Any]) -> None:
        file = os.open(self._programs, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
        finally:
            os.close(file)

    def program_names(self) -> dict[int, str]:
        """Every program's name, by fingerprint."""
        return {row[0]: row[1] for row in self._noted(4)}

    def thread_labels(self) -> dict[int, str]:
        """Every label of threads, by kind; of two that ranks have given one kind the first, so that all say the same."""
        labels: dict[int, str] = {}
        for kind, label in self._noted(2):
            labels.setdefault(kind, label)
        return labels

    def participants_of(self, index: int) -> tuple[int, ...]:
        """The ranks of a set in which somebody has posted; empty where that cannot be read."""
        if index not in self._members:
            self._members |= {row[2]: tuple(row[3]) for row in self._noted(4)}
        return self._members.get(index, ())

    def _noted(self, length: int) -> Iterator[list[Any]]:
        for line in self._programs.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                # Written half: a full disk. What is missing is a name in the words of an error.
                continue
            if isinstance(row, list) and len(row) == length:
                yield row

    # -- a ring of waits, told to all of its ranks by the one that found it

    def tell_ring(self, rank: int, text: str) -> None:
        """Leave a rank the words of a ring that it is part of. To be called under the lock."""
        path = self._programs.parent / f"ring.{rank}"
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)

    def read_ring(self, rank: int) -> str:
        """The words that were left for a rank."""
        return (self._programs.parent / f"ring.{rank}").read_text(encoding="utf-8")

    def close(self) -> None:
        """Let go of the memory."""
        for words in (*self._sets.values(), *self._segments.values(), self._words):
            words.release()
        for mapped in self._maps:
            mapped.close()
        os.close(self._fd)


def _entry(rank: int) -> int:
    return _SET_WORDS + rank * _ENTRY_WORDS


def _post_at(rank: int, place: Place) -> int:
    return _entry(rank) + place.number % _RING * _POST_WORDS


_INTERRUPT_NBYTES = 16


def _interrupt_path(run_dir: Path, supervisor: int) -> Path:
    return run_dir / f"interrupt{supervisor}"


def make_interrupt_word(run_dir: Path, supervisor: int) -> None:
    """Make the words by which the supervisor of a host without the board asks its ranks to stop a cell, or to close their connections.

    A file of its own, named after the supervisor: several hosts may share one run directory, and only one of them the board.
    """
    with open(_interrupt_path(run_dir, supervisor), "wb", opener=open_private) as file:
        file.write(bytes(_INTERRUPT_NBYTES))


class InterruptWord:
    """One process's view of them: words of 8 bytes, aligned, each written at once."""

    def __init__(self, run_dir: Path, supervisor: int) -> None:
        with _interrupt_path(run_dir, supervisor).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _INTERRUPT_NBYTES)
        self._words = memoryview(self._map).cast("Q")

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop; 0 for none."""
        return self._words[0]

    def ask_interrupt(self, seq: int) -> None:
        """Ask the ranks of this host to stop a cell."""
        self._words[0] = seq

    @property
    def close_count(self) -> int:
        """How often the ranks were asked to close their connections to each other."""
        return self._words[1]

    def ask_close(self) -> None:
        """Ask the ranks of this host to close their connections to each other."""
        self._words[1] += 1

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
