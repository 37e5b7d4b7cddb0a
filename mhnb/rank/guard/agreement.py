"""Lockstep: the participants agree on a launch before they make it; if they do not agree, none of them launches.

A rank proposes what it is about to launch, and waits until it knows of every other participant that it has come as far, or that its
cell has ended. Then all make the same decision from the same facts. There is no timeout.

This module is the rank's own side: which of its threads has the turn, and what an interrupt or an exception in the middle of an
agreement may still undo. The agreement backend makes the decision, here or on another host.
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
    """Gate in front of the launches of one rank. `enter` may be called from any thread; a rank makes one launch at a time.

    Args:
        table: the backend through which this rank agrees with the others.
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
        """The main thread is between its proposal and the end of its launch: an interrupt must wait."""
        self._is_ending = False
        """The main thread is notifying the others that the cell has ended."""
        self.interrupt_pending = False
        """An interrupt is pending."""
        self._failure: tuple[int, MhnbError] | None = None
        self._parted: tuple[int, int, str] | None = None
        """The cell's first mismatch: the cell, the thread that met it, and its text."""
        self._failed: set[int] = set()
        """Cells that did not end well here: their threads may be elsewhere on other ranks, so they launch nothing any more."""
        self._uncompared = Uncompared()
        self._again = Counter[tuple[int, ...]]()
        """How many second rounds of agreement this cell had, by participants."""
        self._taken: list[InputRow] = []
        self._late: BaseException | None = None
        self._holder = 0
        self._forked = False
        self._agreed_seq, self._agreed = 0, Counter[tuple[int, ...]]()
        """How many launches of a cell each set of participants has agreed on: the number is the same on each of these ranks."""
        self.signals = HeldSignals()
        self.make_interrupt: Callable[[], BaseException] = KeyboardInterrupt
        """Makes the exception that stops the running code, wherever it runs; set by the cell runner."""
        self.handles_interrupt: Callable[[], bool] = lambda: False
        """Returns whether the cell's code has received its interrupt and handles it; set by the cell runner, too."""
        self._busy: set[int] = set()
        """Threads other than the main one that are about to launch."""
        self.pending: tuple[str, tuple[int, ...], int | None] | None = None
        """The proposal that is posted and not yet decided: name, participants, line of the cell."""
        self.came_to: Wish | None = None
        """The proposal that was pending when the main thread was interrupted, and that other participants had not reached."""
        self.stopped_with: frozenset[int] | None = None
        """Ranks that stopped with this cell's main thread, each time before the same launch; None: no stop yet.

        Empty once it stopped alone.
        """

    def _become_child(self) -> None:
        """Stop acting as a rank in a forked child of the cell, whatever it inherited."""
        self._forked = True
        self._busy.clear()
        self._table.let_go()

    # -- cells

    def begin_cell(self, seq: int, source: str, guard: str, chosen: Sequence[int] | None) -> None:
        """Start a cell; `chosen` are the ranks that run it, None for all."""
        self._seq, self._source, self._guard = seq, source, guard
        self._chosen = None if chosen is None else tuple(chosen)
        self.interrupt_pending, self.stopped_with, self.came_to = False, None, None
        self._failure, self._taken = None, []
        self._parted = None
        self._uncompared = Uncompared()
        self._again.clear()

    def end_cell(self, seq: int, outcome: Ending) -> None:
        """Notify the other ranks that the cell has ended here, so that they do not wait for this rank in it.

        What threads launch from now on belongs to the next cell.
        """
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
        """Return the note on how many arrays of the cell's launches were not compared."""
        return self._uncompared.tell()

    def take_taken(self) -> list[InputRow]:
        """Return the arrays of the last mismatch, if it was about arrays. The rows of all ranks together show what differs."""
        taken, self._taken = self._taken, []
        return taken

    def note_lone_interrupt(self) -> None:
        """Record that the code gets an interrupt on which the ranks have not agreed: they may be at different places from here on."""
        self.interrupt_pending, self.stopped_with = False, frozenset()

    def is_asked_to_stop(self) -> bool:
        """Return whether the running cell was asked to stop."""
        return self._table.interrupted_seq == self._seq

    def describe(self, fingerprint: str, outline: str) -> None:
        """Record the outline of a program that this rank has compiled, for the text of a mismatch."""
        if not self._forked:
            self._table.describe(_number(fingerprint), outline)

    def stopped_the_last_cell(self) -> bool:
        """Return whether the cell before the running one was asked to stop."""
        return self._table.interrupted_seq == self._seq - 1

    # -- a launch

    def is_inside(self) -> bool:
        """Return whether the calling thread is in the middle of a launch: a user's signal handler or finalizer runs there."""
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
        """Agree on a launch. The launch must be made at once after that; `leave` is called in any case.

        Args:
            lines: lines of the cell, the innermost first; empty if none of the cell's own text leads to the launch.
            inputs: the arrays that it launches on.

        Returns:
            The provenance of the outputs; not agreed without lockstep, or if the program never communicates.

        Raises:
            OrderMismatch: the participants do not propose the same launch; none of them makes it.
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
                # The exception came between taking the turn and recording that it was taken.
                self._turn.release()
            pending, self.inside, self.interrupt_pending = self.interrupt_pending, False, False
            if pending and isinstance(error, OrderMismatch):
                self.note_lone_interrupt()
                raise self.make_interrupt() from error
            raise
        return birth

    def _check_may_enter(self, name: str, participants: tuple[int, ...]) -> None:
        """Check that the calling code may launch a program in which other ranks take part."""
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
        """Release the turn when the launch is made and recorded, or was not made.

        Raises:
            BaseException: an exception that came in a user's thread when it was too late not to launch.
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
        """Return whether a user's thread is about to launch."""
        return bool(self._busy)

    def note_failure(self, error: MhnbError) -> None:
        """Record that a user's thread may not launch. That fails the cell too, or the error would be lost with the thread."""
        if not isinstance(error, _CellEndedError):
            self._failure = self._failure or (self._seq, error)

    def take_failure(self) -> MhnbError | None:
        """Return the error that was raised in a user's thread, and forget it: it fails the cell too."""
        failure, self._failure = self._failure, None
        return failure[1] if failure is not None and failure[0] == self._seq else None

    def settle(self) -> None:
        """Deliver what was deferred on the main thread during a launch.

        An interrupt stays deferred while the ranks are being stopped together: it comes before the next launch, or by the next signal,
        so that the result of this launch is not lost before it is assigned to its name.

        Raises:
            BaseException: an exception that came when it was too late not to launch.
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
        """Propose a launch, wait for the decision, and follow it, as `enter` describes.

        Stack samples recognise the wait by this function's name.

        Args:
            free: mask of the arrays that cannot be compared on some rank: all ranks propose again, and compare the others.
        """
        if self.interrupt_pending and not free:
            self.note_lone_interrupt()
            raise self.make_interrupt()
        table = self._table
        # Code that saves the work of a stopped cell may have to launch for that: it is interrupted only once, user
        # threads every time. Ranks that did not stop before the same launch may be at different places in the cell,
        # whatever they agree on from there.
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
            # A user's signal handler, for example. No rank may launch because of a proposal whose rank has gone away.
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
        # Until `settle`: from here on this rank does what all ranks do.
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
        """Return if the launch is to be made, and raise otherwise."""
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
        """Return the text of the mismatch that another thread of the cell met first; empty string if there is none.

        A difference in a later launch follows from the first one, so each later launch reports the first.
        """
        parted = self._parted
        return parted[2] if parted is not None and parted[0] == seq and parted[1] != threading.get_ident() else ""

    def _stop_together(self, others: frozenset[int]) -> BaseException:
        """Record which ranks stop with this one, and make the exception that stops it; a repeated stop explains why it is repeated."""
        if threading.current_thread() is not self._main:
            return self.make_interrupt()
        again = self.handles_interrupt()
        self.stopped_with = others if self.stopped_with is None else self.stopped_with & others
        interrupt = self.make_interrupt()
        if again:
            interrupt.args = (_NOT_HANDLED,)
        return interrupt


def _number(fingerprint: str) -> int:
    """Return the fingerprint as the ranks exchange it."""
    return int(fingerprint, 16) & ~(1 << 63) | 1


class _CellEndedError(OrderMismatch):
    """A launch by a thread of a cell that has ended: it is not a mismatch of any rank, and does not affect the next cell."""


class _Held:
    """Holds a lock during a block, or longer if the block calls `keep`."""

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
