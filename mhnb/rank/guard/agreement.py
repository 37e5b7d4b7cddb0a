"""Lockstep: before a launch, its participants agree on it at a table; if they do not, none of them launches.

A participant says what it is about to launch and waits until it knows of every other one: that it has come as far, or that its
cell has ended. Then all decide the same from the same facts. Time decides nothing.

This is the part that a rank plays: whose turn it is among its threads, and what an interrupt or an exception in the
middle of it may still undo. How a verdict comes about is the table's business, here or on another host.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from mhnb.core.guard.agreement import (
    ENDINGS,
    LINE_LIMIT,
    MOST_LINES,
    Ending,
    MismatchDetails,
    format_mismatch,
    format_outside,
    letter_origins,
)
from mhnb.core.guard.provenance import InputRow, join_free, what_is_free
from mhnb.core.guard.threads import MAIN_THREAD
from mhnb.core.guard.wishes import Verdict, Wish
from mhnb.errors import MhnbError, OrderMismatch, RanksLost
from mhnb.rank.cell.forks import weakly
from mhnb.rank.cell.origin import current_seq, current_thread
from mhnb.rank.guard.hashing import sample_of
from mhnb.rank.guard.local_agreement import Table
from mhnb.rank.guard.provenance import (
    NOT_GUARDED,
    OutputProvenance,
    Producer,
    Uncompared,
    combine,
    describe_inputs,
    for_collective,
    read_tags,
)
from mhnb.rank.guard.signals import HeldSignals

__all__ = ["Agreement"]


_NOT_HANDLED = (
    "nothing was launched to handle the interrupt: it came at different places of the cell on different ranks\n"
    "  what they hold there would be mixed; launch it in a cell of its own, when you know that they hold the same step"
)


_CELL_FAILED = (
    "nothing was launched\n  {name} is of a thread or task of cell {seq}, which did not end well\n"
    "  The ranks may have left it at different places. Start it again in a new cell."
)
_INSIDE = (
    "{name} was not launched: a signal handler or a finalizer (__del__, weakref.finalize) called it in the middle of another launch\n"
    "  The ranks have that one to agree on first.\n"
    "  Let the handler set a flag, and launch where the cell's own code reads it."
)


class Agreement:
    """One rank's part of it. `enter` may be called from any thread; a rank makes one launch at a time.

    Args:
        table: where this rank meets the others.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._main = threading.main_thread()
        self._turn = threading.Lock()
        self._seq = 1
        self._source = ""
        self._guard = "off"
        self._chosen: tuple[int, ...] | None = None
        os.register_at_fork(after_in_child=weakly(self._become_child))
        self.inside = False
        """The main thread is between its post and the end of its launch: an interrupt must wait."""
        self._is_ending = False
        """The main thread tells the others that the cell has ended."""
        self.interrupt_pending = False
        """One waits."""
        self._failure: tuple[int, MhnbError] | None = None
        self._parted: tuple[int, int, str] | None = None
        """The cell's first mismatch: the cell, the thread that met it, and its words."""
        self._failed: set[int] = set()
        """Cells that did not end well here: on other ranks their threads may be elsewhere, so they launch nothing any more."""
        self._uncompared = Uncompared()
        self._again = Counter[tuple[int, ...]]()
        """How often the ranks asked a second time in this cell, by participants."""
        self._taken: list[InputRow] = []
        self._late: BaseException | None = None
        self._holder = 0
        self._forked = False
        self._agreed_seq, self._agreed = 0, Counter[tuple[int, ...]]()
        """How many launches of a cell each set of participants has agreed on: on each of them the same number."""
        self.signals = HeldSignals()
        self.make_interrupt: Callable[[], BaseException] = KeyboardInterrupt
        """Makes what stops the code that runs, wherever it runs; set by whoever runs it."""
        self.handles_interrupt: Callable[[], bool] = lambda: False
        """Whether the cell's code has got its interrupt and handles it; set likewise."""
        self._busy: set[int] = set()
        """Threads other than the main one that are about to launch."""
        self.pending: tuple[str, tuple[int, ...], int | None] | None = None
        """What is posted and not yet decided: name, participants, line of the cell."""
        self.came_to: Wish | None = None
        """What the main thread wanted to launch when it was interrupted, and others had not come to."""
        self.stopped_with: frozenset[int] | None = None
        """Who stopped with this cell's main thread, each time before the same launch: nobody once it stopped alone; None: no stop yet."""

    def _become_child(self) -> None:
        """Be a forked child of the cell: it is no rank, whatever it inherited."""
        self._forked = True
        self._busy.clear()
        self._table.let_go()

    # -- cells

    def begin_cell(self, seq: int, source: str, guard: str, chosen: Sequence[int] | None) -> None:
        """A cell begins; `chosen` are the ranks that run it, None for all."""
        self._seq, self._source, self._guard = seq, source, guard
        self._chosen = None if chosen is None else tuple(chosen)
        self.interrupt_pending, self.stopped_with, self.came_to = False, None, None
        self._failure, self._taken = None, []
        self._parted = None
        self._uncompared = Uncompared()
        self._again.clear()

    def end_cell(self, seq: int, outcome: Ending) -> None:
        """The cell has ended here: whoever waits for us in it need not. What threads launch from now on belongs to the next."""
        ending = outcome if outcome in ENDINGS else "error"
        if ending in ("error", "interrupted"):
            self._failed.add(seq)
        self._is_ending = True
        try:
            self._table.end_cell(seq, ENDINGS.index(ending))
        finally:
            self._is_ending = False
        self._seq = seq + 1
        self._chosen = None

    def take_notes(self) -> list[str]:
        """Say how many arrays of the cell's launches were not compared."""
        return self._uncompared.tell()

    def take_taken(self) -> list[InputRow]:
        """Describe the arrays of the last mismatch, if it was for those: what differs is told by all ranks' together."""
        taken, self._taken = self._taken, []
        return taken

    def note_lone_interrupt(self) -> None:
        """The code gets an interrupt that the ranks have not agreed on: they may be at different places from here on."""
        self.interrupt_pending, self.stopped_with = False, frozenset()

    def is_asked_to_stop(self) -> bool:
        """Whether the cell that runs here was asked to stop."""
        return self._table.interrupted_seq == self._seq

    def describe(self, fingerprint: str, outline: str) -> None:
        """Note what a program is that this rank has compiled, for the words of a mismatch."""
        if not self._forked:
            self._table.describe(_number(fingerprint), outline)

    def stopped_the_last_cell(self) -> bool:
        """Whether the cell before the one that runs here was asked to stop."""
        return self._table.interrupted_seq == self._seq - 1

    # -- a launch

    def is_inside(self) -> bool:
        """Whether the calling thread is in the middle of a launch: a signal handler or a finalizer of the user's runs there."""
        if threading.current_thread() is self._main:
            return self.inside or self._is_ending
        return threading.get_ident() in self._busy

    def enter(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
    ) -> OutputProvenance:
        """Agree on a launch. When that is done the launch must be made at once; `leave` is called in any case.

        Args:
            lines: of the cell, the innermost first; empty where none of the cell's own text leads there.
            inputs: the arrays that it launches on.

        Returns:
            What its outputs are to be known by; not agreed where there is no lockstep, or the program never communicates.

        Raises:
            OrderMismatch: the participants do not want the same launch; none of them makes it.
            KeyboardInterrupt: the cell was asked to stop; if the others came as far, all stop here.
            RanksLost: the others cannot be reached any more; this rank does not launch.
            RuntimeError: this thread is in the middle of another launch.
        """
        self._check_may_enter(name, participants)
        if self._guard != "lockstep":
            return NOT_GUARDED
        if threading.current_thread() is not self._main:
            return self._enter_from_thread(fingerprint, name, participants, lines, inputs)
        self.inside = True
        try:
            with _Held(self._turn) as held:
                birth = self.agree(fingerprint, name, participants, lines, inputs)
                held.keep()
                self._holder = threading.get_ident()
        except BaseException as error:
            if self._turn.locked() and not self._busy:
                # It came between taking the turn and knowing that it was taken.
                self._turn.release()
            pending, self.inside, self.interrupt_pending = self.interrupt_pending, False, False
            if pending and isinstance(error, OrderMismatch):
                self.note_lone_interrupt()
                raise self.make_interrupt() from error
            raise
        return birth

    def _check_may_enter(self, name: str, participants: tuple[int, ...]) -> None:
        """Hold that the calling code may launch what other ranks take part in."""
        if self._forked:
            raise RuntimeError("a forked process cannot launch a program of several ranks: it is none of them")
        if self._chosen is not None and not set(participants) <= set(self._chosen):
            raise OrderMismatch(format_outside(name, participants, self._chosen), result=None)
        if self.is_inside():
            raise RuntimeError(_INSIDE.format(name=name))
        if self._guard == "lockstep" and (begun := current_seq()) != self._seq and begun in self._failed:
            raise _CellEndedError(_CELL_FAILED.format(name=name, seq=begun), result=None)

    def _enter_from_thread(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
    ) -> OutputProvenance:
        self._busy.add(threading.get_ident())
        try:
            with _Held(self._turn) as held:
                birth = self.agree(fingerprint, name, participants, lines, inputs)
                held.keep()
                self._holder = threading.get_ident()
        except BaseException as error:
            if isinstance(error, OrderMismatch | RanksLost):
                self.note_failure(error)
            self._busy.discard(threading.get_ident())
            raise
        return birth

    def leave(self) -> None:
        """The launch is made and noted, or there was none to make.

        Raises:
            BaseException: what came in a thread of the user's when it was too late not to launch.
        """
        me = threading.get_ident()
        if self._holder != me:
            return
        self._holder = 0
        late, self._late = (self._late, None) if threading.current_thread() is not self._main else (None, self._late)
        self._turn.release()
        self._busy.discard(me)
        if late is not None:
            raise late

    def is_busy(self) -> bool:
        """Whether a thread of the user's is about to launch."""
        return bool(self._busy)

    def note_failure(self, error: MhnbError) -> None:
        """A thread of the user's may not launch: that fails the cell too, or it would be lost with the thread."""
        if not isinstance(error, _CellEndedError):
            self._failure = self._failure or (self._seq, error)

    def take_failure(self) -> MhnbError | None:
        """What was raised in a thread of the user's: it fails the cell too."""
        failure, self._failure = self._failure, None
        return failure[1] if failure is not None and failure[0] == self._seq else None

    def settle(self) -> None:
        """After a launch: on the main thread what had to wait for it comes now.

        An interrupt waits on where the ranks are being stopped together: it comes before the next launch, or by the next
        signal, so that the result of this one is not lost on the way to its name.

        Raises:
            BaseException: what came when it was too late not to launch.
        """
        if threading.current_thread() is not self._main:
            return
        try:
            self._settle()
        finally:
            self.signals.let_go()

    def _settle(self) -> None:
        if not self.inside:
            return
        self.inside = False
        late, self._late = self._late, None
        if late is not None:
            raise late
        if self.interrupt_pending and not self.is_asked_to_stop():
            self.note_lone_interrupt()
            raise self.make_interrupt()

    def agree(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
        *,
        free: int = 0,
    ) -> OutputProvenance:
        """Ask, wait and obey, as `enter` says. A look at this rank's stack knows the wait by this function's name.

        Args:
            free: which arrays cannot be compared on some rank: all ranks ask again, about the others.
        """
        if self.interrupt_pending and not free:
            self.note_lone_interrupt()
            raise self.make_interrupt()
        table = self._table
        # What saves the work of a stopped cell may have to launch for that: it is interrupted only once, its threads every time.
        # Ranks that did not stop before the same launch may be at different places in the cell, whatever they agree on from there.
        with_all = self.stopped_with is not None and self.stopped_with.issuperset(participants)
        handles = with_all and threading.current_thread() is self._main and self.handles_interrupt()
        number = _number(fingerprint)
        lines = tuple(line for line in lines[:MOST_LINES] if line < LINE_LIMIT)
        thread = current_thread()
        label = "" if thread.number == MAIN_THREAD else thread.label
        tags = read_tags(inputs)
        wish = Wish(self._seq, number, name, participants, lines, handles, combine(tags, free), thread.number, label)
        late: BaseException | None = None
        try:
            table.ask(wish)
            self.pending = name, participants, wish.line
            table.wait(self._is_interrupted)
            self._hold_signals()
        except BaseException as error:
            self._hold_signals()
            # A signal handler of the user's, say. Nobody may launch on the strength of a rank that has gone away.
            if table.take_back():
                raise
            late = error
        finally:
            self.pending = None
            table.rest()
        try:
            verdict = table.answer()
            if verdict.kind == "again":
                self._again[participants] += 1
                free = join_free(stand.origin for stand in verdict.stands)
                birth = self.agree(fingerprint, name, participants, lines, inputs, free=free)
                self._late = late or self._late
                return birth
            self._obey(verdict, wish, inputs)
        except BaseException as refusal:
            if late is not None:
                raise late from refusal
            raise
        self._late = late
        self._uncompared.note(inputs, tags, wish.line)
        return self._follow_agreed(wish)

    def _hold_signals(self) -> None:
        # Until `settle`: from here on this rank does what all do.
        if threading.current_thread() is self._main:
            self.signals.holding = True

    def _follow_agreed(self, wish: Wish) -> OutputProvenance:
        if self._agreed_seq != wish.seq:
            self._agreed_seq = wish.seq
            self._agreed.clear()
        self._agreed[wish.participants] += 1
        number, producer = self._agreed[wish.participants], Producer(wish.name, wish.seq, wish.line)
        return for_collective(wish.participants, number, producer)._replace(free=what_is_free(wish.origin))

    def _is_interrupted(self) -> bool:
        return self.interrupt_pending

    def _obey(self, verdict: Verdict, wish: Wish, inputs: Sequence[object]) -> None:
        """Return where the launch is to be made."""
        match verdict.kind:
            case "launch":
                return
            case "interrupt":
                if not verdict.agreed and threading.current_thread() is self._main:
                    self.came_to = self.came_to or wish
                raise self._stop_together(frozenset(wish.participants if verdict.agreed else ()))
            case "mismatch":
                stands, number = verdict.stands, verdict.number - self._again[wish.participants]
                text = format_mismatch(
                    stands,
                    verdict.names,
                    number=number,
                    seq=wish.seq,
                    source=self._source,
                    details=MismatchDetails(verdict.differences, verdict.threads),
                )
                if first := self._parted_with(wish.seq):
                    raise OrderMismatch(first, result=None)
                self._parted = self._parted or (wish.seq, threading.get_ident(), text)
                if wish.origin in letter_origins(stands):
                    self._taken = describe_inputs(inputs, sample_of)
                raise OrderMismatch(text, result=None)
            case "cell ended":
                text = "nothing was launched\n  the cell ended while a thread of it waited to launch"
                raise _CellEndedError(text, result=None)
            case "refused":
                raise RuntimeError(verdict.text)
            case _:
                raise OrderMismatch(verdict.text, result=None)

    def _parted_with(self, seq: int) -> str:
        """Return the words of the mismatch that another thread of the cell met first; empty where none did.

        That the ranks differ in a later launch follows from it, and so each of them says the same.
        """
        parted = self._parted
        return parted[2] if parted is not None and parted[0] == seq and parted[1] != threading.get_ident() else ""

    def _stop_together(self, others: frozenset[int]) -> BaseException:
        """Note with whom this rank is stopped, and make what stops it; where it was before, that says why it is again."""
        if threading.current_thread() is not self._main:
            return self.make_interrupt()
        again = self.handles_interrupt()
        self.stopped_with = others if self.stopped_with is None else self.stopped_with & others
        interrupt = self.make_interrupt()
        if again:
            interrupt.args = (_NOT_HANDLED,)
        return interrupt


def _number(fingerprint: str) -> int:
    """The fingerprint as the ranks exchange it."""
    return int(fingerprint, 16) & ~(1 << 63) | 1


class _CellEndedError(OrderMismatch):
    """A thread of a cell that has ended: nobody's mismatch, and of no consequence for the next cell."""


class _Held:
    """A lock for the time of a block, or longer where the block says so."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._kept = lock, False

    def keep(self) -> None:
        self._kept = True

    def __enter__(self) -> _Held:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._lock.release()
