"""Gate before each launch: agreement, deferred signals, and mismatch errors.

In lockstep the participants agree on a launch before they make it; if they do not agree, none of them launches. A rank proposes what
it is about to launch, and waits until it knows of every other participant that it has come as far, or that its cell has ended. Then
all make the same decision from the same facts. There is no timeout.

This module is the rank's own side: which of its threads has the turn, and what an interrupt or an exception in the middle of an
agreement may still undo. The agreement backend makes the decision, here or on another host.

The user's signal handlers are deferred between the agreement and the launch. Python runs handlers between any two steps of the main
thread, and one that raises there would leave the other ranks alone in a launch that this rank has agreed on. Ctrl-C is handled
elsewhere.

Each `OrderMismatch` that the cell's own code met is shown, or a note reports that the code caught it. The record of them knows
exceptions, not launches: the cell runner decides which error ends a cell, and the shell decides what is shown. A mismatch in a user's
thread is not part of that record: it fails the cell however it is caught.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from mhnb.core.cell_name import number_lines
from mhnb.core.flight import EventKind
from mhnb.core.guard.agreement import (
    ENDINGS,
    LINE_LIMIT,
    MAX_LINES,
    Decision,
    Ending,
    LaunchProposal,
    MismatchDetails,
    format_mismatch,
    format_missing_ranks,
    label_provenance,
    name_deadlocked_cell,
)
from mhnb.core.guard.launch_report import LaunchPlace, PendingPlace
from mhnb.core.guard.provenance import InputRow, join_uncompared_blocks, uncompared_blocks
from mhnb.core.guard.threads import MAIN_THREAD, add_cell
from mhnb.core.messages import RunCell
from mhnb.core.ranks import describe_ranks
from mhnb.errors import BreakpointRefused, MhnbError, OrderMismatch, RanksLost
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.exceptions import cause_of, is_a, members_of
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.stack_sampler import own_wait
from mhnb.rank.execution.streams import current_cell, current_thread, weak_callback
from mhnb.rank.execution.tracebacks import find_array_names
from mhnb.rank.flight import ArrivalRecorder, LaunchId
from mhnb.rank.guard.hashing import sample_of
from mhnb.rank.guard.local_agreement import AgreementBackend
from mhnb.rank.guard.provenance import (
    NOT_GUARDED,
    OutputProvenance,
    Producer,
    UncomparedArrays,
    combine_tags,
    describe_inputs,
    for_collective,
    read_tags,
)


class Mismatches:
    """Record of the mismatches of the running cell.

    It keeps no mismatch alive that the cell has dropped, because its frames hold the user's arrays.
    """

    def __init__(self) -> None:
        self._unshown: Counter[tuple[str, int | None]] = Counter()
        self._alive_errors: WeakKeyDictionary[OrderMismatch, tuple[str, int | None]] = WeakKeyDictionary()
        self._first_shown: BaseException | None = None

    def begin_cell(self, cell: RunCell) -> None:
        """Forget the last cell's mismatches, even if one is shown again later."""
        del cell
        self._forget()

    def _forget(self) -> None:
        self._unshown.clear()
        self._alive_errors.clear()
        self._first_shown = None

    def note_raised(self, error: OrderMismatch, name: str, line: int | None) -> None:
        """Record a mismatch that is raised in the cell's code.

        Args:
            name: name of the program that was not launched.
            line: line of the cell, 1-based; None if it is not in the cell's own text.
        """
        self._unshown[name, line] += 1
        self._alive_errors[error] = name, line

    def note_shown(self, error: BaseException) -> None:
        """Record an error that the user sees, together with its causes."""
        for each in _list_shown(error):
            # Most other exceptions cannot be weakly referenced, so they cannot even be looked up.
            if is_a(each, OrderMismatch) and (launch := self._alive_errors.pop(each, None)) is not None:
                self._unshown[launch] -= 1
                self._first_shown = error if self._first_shown is None else self._first_shown

    def take_shown(self) -> BaseException | None:
        """Return the first shown error that includes a mismatch, and forget it.

        A cell with such an error has not ended well, even if a handler caught the error later.
        """
        shown, self._first_shown = self._first_shown, None
        return shown

    def take_ignored_refusals(self) -> list[LaunchPlace]:
        """Return each refused launch whose reason the user did not see, once."""
        if not self._unshown:
            return []
        ignored_refusals = [LaunchPlace(*place) for place, count in self._unshown.items() if count]
        self._forget()
        return ignored_refusals


def _list_shown(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and every exception that IPython shows with it."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if each is error and is_a(each, (MhnbError, SystemExit)):
            # These are shown as one text, without their causes.
            return
        pending += [cause_of(each), *members_of(each)]


# -- defer the user's signal handlers


_Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class DeferredSignals:
    """Defers signals while `is_deferring` is set; one instance per process.

    Args:
        record_raised: called if a handler raises, before its exception reaches the code that the signal hit.
    """

    def __init__(self, record_raised: Callable[[], None]) -> None:
        self._record_raised = record_raised
        self.is_deferring = False
        """Set only by the main thread, because only the main thread runs handlers."""
        self._deferred: list[tuple[_Handler, int, FrameType | None]] = []

    def install(self) -> None:
        """Patch `signal.signal` so that later handlers, except Ctrl-C's, can be deferred.

        It and `signal.getsignal`, also patched, return handlers as the user set them.
        """
        set_handler, get_handler = signal.signal, signal.getsignal

        @functools.wraps(set_handler)
        def set_deferrable(signalnum: Any, handler: Any) -> Any:
            can_defer = callable(handler) and signalnum != signal.SIGINT
            return _unwrap_handler(set_handler(signalnum, self._wrap(handler) if can_defer else handler))

        @functools.wraps(get_handler)
        def get_unwrapped(signalnum: Any) -> Any:
            return _unwrap_handler(get_handler(signalnum))

        signal.signal, signal.getsignal = set_deferrable, get_unwrapped

    def _wrap(self, handler: _Handler) -> _Handler:
        def handle(signum: int, frame: FrameType | None) -> Any:
            if self.is_deferring:
                self._deferred.append((handler, signum, frame))
                return None
            try:
                return handler(signum, frame)
            except BaseException:
                self._record_raised()
                raise

        handle.__wrapped__ = handler  # type: ignore[attr-defined]  # as functools.wraps does, which requires a function's attributes
        handle.is_mhnbs = True  # type: ignore[attr-defined]  # a handler that others wrapped is not unwrapped
        return handle

    def deliver(self) -> None:
        """Run the deferred handlers, in the order in which their signals came.

        Raises:
            BaseException: the exception of a handler; the other handlers have run, too.
        """
        self.is_deferring = False
        if self._deferred:
            handler, signum, frame = self._deferred.pop(0)
            try:
                handler(signum, frame)
            finally:
                self.deliver()


def _unwrap_handler(handler: Any) -> Any:
    return handler.__wrapped__ if getattr(handler, "is_mhnbs", False) else handler


# -- the launch gate


_NOT_HANDLED = (
    "nothing was launched to handle the interrupt, because it stopped the ranks at different places of the cell\n"
    "  The launch would mix values of different steps. Run it in its own cell, once you know that all ranks are at the same step."
)


_CELL_FAILED = (
    "nothing was launched\n  {name} belongs to a thread or task of {cell}, which did not finish normally\n"
    "  The ranks may have stopped it at different places. Start it again in a new cell."
)
_NESTED_LAUNCH = (
    "{name} was not launched: a signal handler, a finalizer (__del__, weakref.finalize) or a callback"
    " called it in the middle of another launch\n"
    "  The ranks must agree on that launch first.\n"
    "  Set a flag there, and launch where the cell's own code reads the flag."
)
_AT_PROMPT = (
    "{name} was not launched: it is a program of {ranks}, and the debugger has stopped this rank alone\n"
    "  Fix: use this rank's part, such as x.addressable_shards[0].data\n"
    "  Or: run the program in the cell's code, after c (continue)"
)


class LaunchGate:
    """Gate before a rank's launches, from any thread, one at a time.

    Args:
        backend: the backend through which this rank agrees with the others.
        interrupts: delivers the interrupts of this rank's cells.
        count_launches: returns how many launches of the cell are in the record.
    """

    def __init__(
        self, backend: AgreementBackend, interrupts: InterruptDelivery, count_launches: Callable[[], int]
    ) -> None:
        self._backend, self._interrupts, self._count_launches = backend, interrupts, count_launches
        self.arrivals = ArrivalRecorder()
        """When this rank came to each launch of the cell."""
        self._main = threading.main_thread()
        self._turn_lock = threading.Lock()
        self._seq = 1
        self._source = ""
        self._guard = "off"
        self._cell_ranks: tuple[int, ...] | None = None
        os.register_at_fork(after_in_child=weak_callback(self._become_child))
        self._is_ending = False
        """The main thread is notifying the others that the cell has ended."""
        self._thread_failure: tuple[int, MhnbError] | None = None
        self._first_mismatch: tuple[int, int, str] | None = None
        """The cell's first mismatch: the cell, the thread that met it, and its text."""
        self._failed_cells: set[int] = set()
        """Cells that did not finish normally here: their threads may be elsewhere on other ranks, so they launch nothing any more."""
        self._uncompared = UncomparedArrays()
        self._retry_counts = Counter[tuple[int, ...]]()
        """How many second rounds of agreement this cell had, by participants."""
        self._refused_inputs: list[InputRow] = []
        self._late_errors: dict[int, BaseException] = {}
        """By thread, the exception that came when it was too late not to launch; raised once the launch is made."""
        self._turn_holder = 0
        self._forked = False
        self._agreed_seq, self._agreed_counts = 0, Counter[tuple[int, ...]]()
        """How many launches of a cell each set of participants has agreed on: the number is the same on each of these ranks."""
        self.signals = DeferredSignals(interrupts.record_raised)
        self._launching_threads: set[int] = set()
        """Threads other than the main one that are about to launch."""
        self.undecided_launch: LaunchProposal | None = None
        """The proposal that is posted and not yet decided. Set by the thread that has the turn; any thread may read it."""
        self.pending_launch: PendingPlace | None = None
        """The launch that the main thread proposed when it was interrupted, and that other participants had not reached."""
        self._stopped_before = 0
        """Number of the launch before which the ranks first stopped together; 0 if they did not."""

    def _become_child(self) -> None:
        """Stop acting as a rank in a forked child."""
        self._forked = True
        self._launching_threads.clear()
        self._backend.release_in_child()

    # -- cells

    def begin_cell(self, cell: RunCell) -> None:
        """Start a cell."""
        self._seq, self._guard = cell.seq, cell.guard
        self._source = number_lines(cell.source, cell.first_line)
        self._cell_ranks = None if cell.ranks is None else tuple(cell.ranks)
        self.pending_launch, self._stopped_before = None, 0
        self._thread_failure, self._refused_inputs = None, []

    def end_cell(self, seq: int, outcome: Ending) -> None:
        """Notify the other ranks that the cell has ended here.

        What threads launch from now on belongs to the next cell.
        """
        ending = outcome if outcome in ENDINGS else "error"
        if ending in ("error", "interrupted"):
            self._failed_cells.add(seq)
        self._is_ending = True
        try:
            self._backend.end_cell(seq, ENDINGS.index(ending))
        finally:
            self._is_ending = False
        self._seq = seq + 1
        self._cell_ranks = None
        self._first_mismatch = None
        self._retry_counts.clear()

    def record_per_rank(self, line: int | None) -> None:
        """Record a launch whose host callbacks the user declared with `mhnb.per_rank`."""
        self._uncompared.record_per_rank(line)

    def take_notes(self) -> list[str]:
        """Return the notes on what was not compared, and start over."""
        uncompared, self._uncompared = self._uncompared, UncomparedArrays()
        return uncompared.format_notes()

    def take_refused_inputs(self) -> list[InputRow]:
        """Return the rows of the last mismatch about arrays, and forget them."""
        inputs, self._refused_inputs = self._refused_inputs, []
        return inputs

    def describe_program(self, fingerprint: str, outline: str) -> None:
        """Record the outline of a compiled program, for mismatch messages."""
        if not self._forked:
            self._backend.describe_program(parse_fingerprint(fingerprint), outline)

    # -- a launch

    def is_in_launch(self) -> bool:
        """Return whether the calling thread is in the middle of a launch."""
        if threading.current_thread() is self._main:
            return self._interrupts.is_launching or self._is_ending
        return threading.get_ident() in self._launching_threads

    def acquire(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
    ) -> OutputProvenance:
        """Agree on a launch; make it at once, and always call `release`.

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
        self._check_may_launch(name, participants)
        if self._guard != "lockstep":
            return NOT_GUARDED
        if threading.current_thread() is not self._main:
            return self._acquire_from_thread(fingerprint, name, participants, lines, inputs)
        interrupts = self._interrupts
        interrupts.is_launching = True
        try:
            with _TurnHold(self._turn_lock) as turn:
                provenance = self._agree(fingerprint, name, participants, lines, inputs)
                turn.keep_locked()
                self._turn_holder = threading.get_ident()
        except BaseException as error:
            if self._turn_lock.locked() and not self._launching_threads:
                # The exception came between taking the turn and recording that it was taken.
                self._turn_lock.release()
            is_pending, interrupts.is_launching, interrupts.is_pending = interrupts.is_pending, False, False
            if is_pending and isinstance(error, OrderMismatch):
                raise self._make_unsynchronized_interrupt() from error
            raise
        return provenance

    def _check_may_launch(self, name: str, participants: tuple[int, ...]) -> None:
        """Check that the calling code may launch a program of several ranks."""
        if self._forked:
            raise RuntimeError("a forked process is not a rank, so it cannot launch a program of several ranks")
        if self._interrupts.at_prompt is not None and threading.current_thread() is self._main:
            text = _AT_PROMPT.format(name=name.partition(" ")[0], ranks=describe_ranks(participants))
            raise BreakpointRefused(text)
        if self._cell_ranks is not None and not set(participants) <= set(self._cell_ranks):
            raise OrderMismatch(format_missing_ranks(name, participants, self._cell_ranks), result=None)
        if self.is_in_launch():
            raise RuntimeError(_NESTED_LAUNCH.format(name=name))
        if (
            self._guard == "lockstep"
            and (thread_seq := current_cell()) != self._seq
            and thread_seq in self._failed_cells
        ):
            raise _CellEndedError(_CELL_FAILED.format(name=name, cell=CELL_NAMES.format_name(thread_seq)), result=None)

    def _acquire_from_thread(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
    ) -> OutputProvenance:
        self._launching_threads.add(threading.get_ident())
        try:
            with _TurnHold(self._turn_lock) as turn:
                provenance = self._agree(fingerprint, name, participants, lines, inputs)
                turn.keep_locked()
                self._turn_holder = threading.get_ident()
        except BaseException as error:
            if isinstance(error, OrderMismatch | RanksLost):
                self.record_thread_failure(error)
            self._launching_threads.discard(threading.get_ident())
            raise
        return provenance

    def release(self) -> None:
        """Release the turn once the launch is recorded, or was not made.

        Raises:
            BaseException: an exception that came in a user's thread when it was too late not to launch.
        """
        me = threading.get_ident()
        if self._turn_holder != me:
            return
        self._turn_holder = 0
        self._turn_lock.release()
        self._launching_threads.discard(me)
        if threading.current_thread() is not self._main:
            self._raise_late_error()

    def _raise_late_error(self) -> None:
        if (error := self._late_errors.pop(threading.get_ident(), None)) is not None:
            raise error

    def has_launching_threads(self) -> bool:
        """Return whether a user's thread is about to launch."""
        return bool(self._launching_threads)

    def record_thread_failure(self, error: MhnbError) -> None:
        """Record the error of a thread's launch, which fails its cell.

        Otherwise the error would be lost with the thread. A later cell did not cause it, and does not fail.
        """
        if not isinstance(error, _CellEndedError) and self._is_in_own_cell():
            self._thread_failure = self._thread_failure or (self._seq, error)

    def _is_in_own_cell(self) -> bool:
        """Return whether the calling thread may belong to the running cell."""
        return threading.current_thread() is self._main or current_cell() in (0, self._seq)

    def take_thread_failure(self) -> MhnbError | None:
        """Return and forget the cell's error from a user's thread, if any."""
        failure, self._thread_failure = self._thread_failure, None
        return failure[1] if failure is not None and failure[0] == self._seq else None

    def deliver_deferred(self, *, has_failed: bool = False) -> None:
        """Deliver what was deferred on the main thread during a launch.

        An interrupt stays deferred while the ranks are being stopped together: it comes before the next launch, or by the next signal,
        so that the result of this launch is not lost before it is assigned to its name. A launch that has failed has no result.

        Raises:
            BaseException: an exception that came when it was too late not to launch.
        """
        if threading.current_thread() is not self._main:
            return
        try:
            self._deliver_deferred(has_failed=has_failed)
        finally:
            self.signals.deliver()

    def deliver_after_record(self) -> None:
        """Deliver an interrupt that came while a launch from C++ was recorded.

        Raises:
            BaseException: the interrupt.
        """
        if self._interrupts.is_pending and threading.current_thread() is self._main:
            raise self._make_unsynchronized_interrupt()

    def _deliver_deferred(self, *, has_failed: bool) -> None:
        interrupts = self._interrupts
        if not interrupts.is_launching:
            return
        interrupts.is_launching = False
        self._raise_late_error()
        if interrupts.is_pending and (has_failed or not interrupts.is_requested()):
            raise self._make_unsynchronized_interrupt()

    @own_wait("agreement")
    def _agree(
        self,
        fingerprint: str,
        name: str,
        participants: tuple[int, ...],
        lines: tuple[int, ...],
        inputs: Sequence[object],
    ) -> OutputProvenance:
        """Propose a launch, wait, and follow the decision, as `acquire` describes."""
        if self._interrupts.is_pending:
            raise self._make_unsynchronized_interrupt()
        tags = read_tags(inputs)
        proposal = self._make_proposal(fingerprint, name, participants, lines, combine_tags(tags))
        arrived_ns = self._record_step("proposal", proposal)
        late_error: BaseException | None = None
        try:
            while True:
                error = self._propose(proposal)
                late_error = error if late_error is None else late_error
                decision = self._backend.take_decision()
                if decision.kind != "again":
                    break
                # Some arrays cannot be compared on some rank: all ranks propose again, and compare the others.
                self._retry_counts[participants] += 1
                uncompared_mask = join_uncompared_blocks(vote.provenance for vote in decision.votes)
                proposal = proposal._replace(provenance=combine_tags(tags, uncompared_mask))
            self._record_decision(decision, proposal, arrived_ns)
            self._follow_decision(decision, proposal, inputs)
        except BaseException as refusal:
            if late_error is not None:
                raise late_error from refusal
            raise
        if late_error is not None:
            self._late_errors[threading.get_ident()] = late_error
        self._uncompared.record(inputs, tags, proposal.line)
        return self._record_agreed(proposal)

    def _propose(self, proposal: LaunchProposal) -> BaseException | None:
        """Propose a launch, and wait until it is decided.

        Returns:
            The exception that ended the wait when it was too late to withdraw the proposal, so that the decision must be followed.

        Raises:
            BaseException: the exception that ended the wait; the proposal is withdrawn.
        """
        backend = self._backend
        try:
            backend.propose(proposal)
            self.undecided_launch = proposal
            backend.wait(self._is_interrupted)
            self._defer_signals()
        except BaseException as error:
            self._defer_signals()
            # A user's signal handler, for example. No rank may launch because of a proposal whose rank has gone away.
            if backend.withdraw():
                raise
            return error
        finally:
            self.undecided_launch = None
            backend.stop_waiting()
        return None

    def _make_proposal(
        self, fingerprint: str, name: str, participants: tuple[int, ...], lines: tuple[int, ...], provenance: int
    ) -> LaunchProposal:
        # Code that saves the work of a stopped cell may have to launch programs, so it is interrupted only once, user
        # threads every time. Ranks that did not stop before the same launch may be at different places in the cell,
        # whatever they agree on from there.
        stopped_ranks = self._interrupts.stopped_ranks
        in_interrupt_handler = (
            stopped_ranks is not None
            and stopped_ranks.issuperset(participants)
            and threading.current_thread() is self._main
            and self._interrupts.is_handled()
        )
        thread = current_thread()
        return LaunchProposal(
            self._seq,
            parse_fingerprint(fingerprint),
            name,
            participants,
            tuple(line for line in lines[:MAX_LINES] if line < LINE_LIMIT),
            in_interrupt_handler,
            provenance,
            thread.number,
            "" if thread.number == MAIN_THREAD else add_cell(thread.label, CELL_NAMES.format_name(current_cell())),
        )

    def _defer_signals(self) -> None:
        # Until `deliver_deferred`: from here on this rank does what all ranks do.
        if threading.current_thread() is self._main:
            self.signals.is_deferring = True

    def _record_step(self, kind: EventKind, proposal: LaunchProposal) -> int:
        launch = LaunchId(proposal.participants, self._count_agreed(proposal) + 1, proposal.fingerprint)
        return self._interrupts.flight.record(kind, proposal.seq, proposal.line, proposal.name, launch)

    def _record_decision(self, decision: Decision, proposal: LaunchProposal, arrived_ns: int) -> None:
        if decision.kind == "launch":
            times_ns = arrived_ns, self._record_step("agreement", proposal)
            self.arrivals.add(proposal.seq, proposal.participants, self._count_agreed(proposal) + 1, times_ns)
        elif decision.kind != "interrupt":
            self._record_step("refusal", proposal)

    def _count_agreed(self, proposal: LaunchProposal) -> int:
        """Return how many launches these participants have agreed on in the cell."""
        return self._agreed_counts[proposal.participants] if self._agreed_seq == proposal.seq else 0

    def find_agreed(self, participants: tuple[int, ...]) -> tuple[int, int] | None:
        """Return cell and number of this thread's agreed launch, or None."""
        if self._turn_holder != threading.get_ident():
            return None
        return self._agreed_seq, self._agreed_counts[participants]

    def _record_agreed(self, proposal: LaunchProposal) -> OutputProvenance:
        if self._agreed_seq != proposal.seq:
            self._agreed_seq = proposal.seq
            self._agreed_counts.clear()
        self._agreed_counts[proposal.participants] += 1
        number, producer = (
            self._agreed_counts[proposal.participants],
            Producer(proposal.name, proposal.seq, proposal.line),
        )
        return for_collective(proposal.participants, number, producer)._replace(
            uncompared_mask=uncompared_blocks(proposal.provenance)
        )

    def _is_interrupted(self) -> bool:
        return self._interrupts.is_pending

    def _follow_decision(self, decision: Decision, proposal: LaunchProposal, inputs: Sequence[object]) -> None:
        """Return if the launch is to be made, and raise otherwise."""
        match decision.kind:
            case "launch":
                return
            case "interrupt":
                raise self._stop_together(proposal, is_agreed=decision.is_agreed)
            case "mismatch":
                votes, number = decision.votes, decision.launch_number - self._retry_counts[proposal.participants]
                text = format_mismatch(
                    votes,
                    decision.names,
                    number=number,
                    cell_name=CELL_NAMES.format_name(proposal.seq),
                    source=self._source,
                    details=MismatchDetails(decision.differences, decision.threads),
                )
                if first := self._earlier_mismatch_text(proposal.seq):
                    raise OrderMismatch(first, result=None)
                if self._is_in_own_cell():
                    self._first_mismatch = self._first_mismatch or (proposal.seq, threading.get_ident(), text)
                if proposal.provenance in label_provenance(votes):
                    names = find_array_names(inputs, sys._getframe())
                    self._refused_inputs = describe_inputs(inputs, sample_of, names)
                raise OrderMismatch(text, result=None)
            case "cell ended":
                text = "nothing was launched\n  the cell ended while a thread was waiting to launch"
                raise _CellEndedError(text, result=None)
            case "refused":
                raise RuntimeError(decision.text)
            case "ring":
                text = name_deadlocked_cell(decision.text, CELL_NAMES.format_name(proposal.seq))
                raise OrderMismatch(text, result=None)
            case _:
                raise OrderMismatch(decision.text, result=None)

    def _earlier_mismatch_text(self, seq: int) -> str:
        """Return the first mismatch text of another thread, or an empty string.

        A difference in a later launch follows from the first one, so each later launch reports the first.
        """
        first = self._first_mismatch
        return first[2] if first is not None and first[0] == seq and first[1] != threading.get_ident() else ""

    def _stop_together(self, proposal: LaunchProposal, *, is_agreed: bool) -> BaseException:
        """Record the stop before a launch, and make its exception.

        Args:
            is_agreed: whether all participants stop with this rank; otherwise some had not reached the launch.
        """
        interrupts = self._interrupts
        if threading.current_thread() is not self._main:
            return interrupts.make_exception()
        number, is_repeated = self._count_launches() + 1, interrupts.is_handled()
        before, stopped_ranks = interrupts.stopped_ranks, frozenset(proposal.participants if is_agreed else ())
        interrupts.stopped_ranks = stopped_ranks if before is None else before & stopped_ranks
        if self.agreed_stop_number() == 0:
            self._stopped_before = number
        if not is_agreed and self.pending_launch is None:
            self.pending_launch = PendingPlace(number, proposal.line)
        interrupt = interrupts.make_exception()
        if is_repeated:
            interrupt.args = (_NOT_HANDLED,)
        return interrupt

    def _make_unsynchronized_interrupt(self) -> BaseException:
        self._interrupts.mark_unsynchronized()
        return self._interrupts.make_exception()

    def agreed_stop_number(self) -> int | None:
        """Return the number of the launch before which all stopped, or None."""
        return self._stopped_before if self._interrupts.stopped_ranks else None


def parse_fingerprint(fingerprint: str) -> int:
    """Return the fingerprint as the ranks exchange it."""
    return int(fingerprint, 16) & ~(1 << 63) | 1


class _CellEndedError(OrderMismatch):
    """A thread launched after its cell ended; the next cell is unaffected."""


class _TurnHold:
    """Holds a lock during a block, or longer after `keep_locked`."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_kept = lock, False

    def keep_locked(self) -> None:
        self._is_kept = True

    def __enter__(self) -> _TurnHold:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self._lock.release()
