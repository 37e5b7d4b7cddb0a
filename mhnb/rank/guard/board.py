"""What the ranks of one machine tell each other about their launches: a few words of shared memory, and one lock.

It knows words and where they stand, and refuses to judge: that is the agreement's business.

It is made by the supervisor before the ranks and mapped by each of them. A word is 8 bytes, aligned, written at once.
Whoever posts or takes back holds the lock; whoever looks does not, so what is looked at is written last.
The lock is the kernel's (`flock`): a rank that is killed while it holds it lets it go.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mhnb.system.private import open_private, touch_private

__all__ = ["Board", "Place", "Post", "make_board"]

_MAGIC = 0x6D686E6203
_MOST_SETS = 4096
"""Of a cluster of 12 ranks each set of ranks has its place; of larger ones so many have."""
_RING = 4
"""A participant is at most one launch ahead of another on the same set; the rest is room."""
_POST_WORDS = 5
_SET_WORDS = 1 + _RING * _POST_WORDS

_INTERRUPT, _SETS, _CLOSE = 1, 2, 3
_ENDED, _WANT = 0, 1
_ENDING_BITS = 4
"""A cell's number and how it ended are one word: no reader sees the one without the other."""
_FOREVER = (1 << 59) - 1
"""No cell has a number that high."""


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
    line: int
    """1-based, of the cell, with those of its callers; 0 for none. How they are packed is the agreement's business."""
    mark: int
    """0: it stands. Otherwise it was taken back; what the number means is the agreement's business."""
    origin: int
    """Where the arrays come from that it would launch on, as a hash; 0 where that is not known."""
    thread: int = 0
    """The number of the thread or task that launches, see `core/guard/threads.py`; 0 where it is not known."""


class _Layout(NamedTuple):
    """How many words each part of the board has."""

    sets: int
    head: int
    slot: int
    total: int


def _lay_out(process_count: int) -> _Layout:
    sets = min(1 << process_count, _MOST_SETS)
    head, slot = 8 + sets, 8 + sets * _SET_WORDS
    return _Layout(sets, head, slot, head + process_count * slot)


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
    nbytes = 8 * _lay_out(process_count).total
    touch_private(programs)
    _outlines(run_dir).mkdir(exist_ok=True, mode=0o700)
    memory = _link_memory(board, nbytes)
    if memory is None:
        with open(board, "wb", opener=open_private) as file:
            _write_blank(file.fileno(), nbytes)
    return memory


def _write_blank(fd: int, nbytes: int) -> None:
    # Only what is used takes memory: most ranks take part in few of the sets that there may be.
    os.ftruncate(fd, nbytes)
    os.write(fd, _MAGIC.to_bytes(8, "little"))


def _link_memory(link: Path, nbytes: int) -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("mhnb-board")
    try:
        _write_blank(fd, nbytes)
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
        self._sets, self._head, self._slot, total = _lay_out(process_count)
        wanted = 8 * total
        if os.fstat(self._fd).st_size != wanted:
            raise ValueError(f"{path} is not the board of {process_count} ranks")
        self._map = mmap.mmap(self._fd, wanted)
        self._words = memoryview(self._map).cast("Q")
        if self._words[0] != _MAGIC:
            raise ValueError(f"{path} is the board of another version of mhnb")
        self._indexes: dict[tuple[int, ...], int] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        # An flock belongs to the open file: between threads of one process it holds nobody back.
        self._threads, self._fence = threading.Lock(), threading.Lock()
        self._named: set[tuple[int, int]] = set()
        self._threads_named: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the board. Not reentrant."""
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def fence(self) -> None:
        """Keep the processor from moving reads and writes across: some, such as ARM's, do that where x86 does not."""
        for _ in range(2):
            # What came before is done when the lock is given back, and what follows waits until it is taken once more.
            self._fence.acquire()
            self._fence.release()

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
        self._words[self._head + rank * self._slot + _ENDED] = seq << _ENDING_BITS | ending

    def lose(self, rank: int, ending: int) -> None:
        """Say that a rank is gone for good: to all who ask it has ended every cell, also those to come. To be called under the lock."""
        self.end_cell(rank, _FOREVER, ending)

    def ended_seq(self, rank: int) -> int:
        """The latest cell that a rank has ended."""
        return self._words[self._head + rank * self._slot + _ENDED] >> _ENDING_BITS

    def ending(self, rank: int) -> int:
        """How that one ended."""
        return self._words[self._head + rank * self._slot + _ENDED] & (1 << _ENDING_BITS) - 1

    # -- posts

    @property
    def set_count(self) -> int:
        """How many sets of participants there are; they are numbered from 0."""
        return self._words[_SETS]

    def index_of(self, participants: Sequence[int]) -> int:
        """The number of a set of participants, the same on every rank; a new one is entered.

        Raises:
            OverflowError: there are too many different ones.
        """
        key = tuple(participants)
        if (known := self._indexes.get(key)) is not None:
            return known
        digest = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") | 1
        with self.locked():
            count = self._words[_SETS]
            entries = self._words[8 : 8 + count].tolist()
            if digest in entries:
                index = entries.index(digest)
            elif count < self._sets:
                index = count
                self._words[8 + index] = digest
                self._words[_SETS] = count + 1
            else:
                raise OverflowError(
                    f"launches of more than {self._sets} different sets of ranks: lockstep has no place for another one\n"
                    "  Run such a cell with --guard parity"
                )
        self._indexes[key], self._members[index] = index, key
        return index

    def last_post(self, rank: int, group: int) -> tuple[int, int]:
        """The cell of a rank's latest post in a set, and its number there; zeros for none."""
        state = self._words[self._entry(rank, group)]
        return state >> 32, state & 0xFFFFFFFF

    def post(self, rank: int, place: Place, post: Post) -> None:
        """Say what a rank is about to launch, at its next place. To be called under the lock."""
        ring = self._ring(rank, place)
        for offset, word in enumerate(post):
            self._words[ring + offset] = word
        self.fence()
        self._words[self._entry(rank, place.group)] = place.seq << 32 | place.number

    def next_place(self, rank: int, seq: int, index: int) -> Place:
        """Where a rank's next post in a set will stand."""
        last_seq, number = self.last_post(rank, index)
        return Place(seq, index, number + 1 if last_seq == seq else 1)

    def has_posted(self, rank: int, place: Place) -> bool:
        """Whether a rank has come as far."""
        state = self._words[self._entry(rank, place.group)]
        return state >> 32 == place.seq and (state & 0xFFFFFFFF) >= place.number

    def read(self, rank: int, place: Place) -> Post:
        """What a rank posted there."""
        ring = self._ring(rank, place)
        return Post(*self._words[ring : ring + _POST_WORDS])

    def mark(self, rank: int, place: Place, mark: int) -> None:
        """Take a post back. To be called under the lock, while somebody has not posted there yet."""
        self._words[self._ring(rank, place) + 2] = mark

    def _entry(self, rank: int, index: int) -> int:
        return self._head + rank * self._slot + 8 + index * _SET_WORDS

    def _ring(self, rank: int, place: Place) -> int:
        return self._entry(rank, place.group) + 1 + (place.number % _RING) * _POST_WORDS

    # -- who waits where

    def want(self, rank: int, place: Place | None) -> None:
        """Say that a rank waits at a place, or no longer."""
        word = 0 if place is None else (place.group + 1) << 32 | place.number
        self._words[self._head + rank * self._slot + _WANT] = word

    def wanted(self, rank: int, seq: int) -> Place | None:
        """Where a rank waits in a cell."""
        word = self._words[self._head + rank * self._slot + _WANT]
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
        self._words.release()
        self._map.close()
        os.close(self._fd)
