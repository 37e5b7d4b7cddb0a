"""Agreement on a launch through the shared board of this host.

A rank on the board's host has a `Participant` as its backend. A rank on another host has a `RemoteAgreement`, and the agreement server
has a `Participant` for it. So there is one way to agree. The server serves many ranks, so it uses the methods that never wait:
`try_propose`, `poll`, `decide` and `try_withdraw`.

A proposal can be withdrawn only while another participant has not posted, under the board's lock. Posting needs that lock, too. So no
rank launches because of a proposal that was withdrawn. The common launch is decided without the lock, from entries that prove
themselves, see `shared_board`. Everything else is decided under the lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from mhnb.core.guard.agreement import (
    ENDINGS,
    LAUNCH_DECISION,
    LINE_LIMIT,
    MAX_LINES,
    WITHDRAW_REASONS,
    Decision,
    LaunchProposal,
    Vote,
    decide,
    format_deadlock,
    format_too_far_ahead,
    format_unreadable_board,
    votes_match,
)
from mhnb.core.guard.programs import find_differences, unpack_outline
from mhnb.core.guard.threads import kind_of
from mhnb.rank.guard.shared_board import BoardSlot, BoardUnreadable, Entry, SharedBoard, yield_core

_Result = TypeVar("_Result")

FAST_POLLS = 70
"""Polls that follow so fast on each other that they check only the proposals of the others."""
_DEADLOCK_CHECK_POLLS = 64
"""Polls between two searches for a deadlock."""
INTERRUPTED, _DEADLOCK, CELL_ENDED, _LOST = (
    WITHDRAW_REASONS.index(mark) for mark in ("interrupted", "ring", "cell ended", "lost")
)
_HANDLES_BIT = 1 << 63
"""Flag beside the fingerprint, which is smaller: the entry is of a rank that handles the cell's interrupt."""
_DIED = ENDINGS.index("died")
_CELL_ENDED_DECISION = Decision("cell ended")
_SPIN_POLLS, SHORT_SLEEP_POLLS = 20, 400
"""Polls before each next slower kind of pause: the others mostly arrive at once, and otherwise must get the core."""
_SHORT_SLEEP_S, LONG_SLEEP_S = 50e-6, 2e-3


class AgreementBackend(Protocol):
    """Backend by which one rank proposes launches, one at a time."""

    def end_cell(self, seq: int, ending: int) -> None:
        """Notify the others that a cell has ended here; ignore lost connections."""

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Record a program's outline for mismatch messages; from any thread."""

    def propose(self, proposal: LaunchProposal) -> None:
        """Make a proposal."""

    def wait(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait for the decision.

        Args:
            is_interrupted: called repeatedly; returns whether to withdraw the proposal, if it is not too late.

        Raises:
            BaseException: an exception that a user's signal handler raised meanwhile; then `withdraw` is called.
        """

    def withdraw(self) -> bool:
        """Withdraw the proposal; return False if a decision must be followed.

        `propose` may have been interrupted anywhere, even before it began: then there is nothing to withdraw.
        """

    def stop_waiting(self) -> None:
        """Stop waiting. Called however the wait ended."""

    def take_decision(self) -> Decision:
        """Return the decision."""

    def release_in_child(self) -> None:
        """Release what a forked child of the rank must not hold."""


class NoAgreement:
    """Backend without other ranks to agree with: every proposal is launched."""

    def end_cell(self, seq: int, ending: int) -> None:
        """Do nothing: no rank waits for this one."""

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Do nothing: no program can differ."""

    def propose(self, proposal: LaunchProposal) -> None:
        """Do nothing: the decision is known."""

    def wait(self, is_interrupted: Callable[[], bool]) -> None:
        """Do nothing: the decision is known."""

    def withdraw(self) -> bool:
        """Return True: no other rank launches because of the proposal."""
        return True

    def stop_waiting(self) -> None:
        """Do nothing: it does not wait."""

    def take_decision(self) -> Decision:
        """Return the decision to launch."""
        return LAUNCH_DECISION

    def release_in_child(self) -> None:
        """Do nothing: nothing is held."""


NO_AGREEMENT = NoAgreement()


def retry_through_signals(action: Callable[[], _Result]) -> _Result:
    """Repeat an action until no signal handler raises; report the last exception."""
    last_error: BaseException | None = None
    while True:
        try:
            result = action()
            break
        except BaseException as error:  # noqa: BLE001 - reported below; the caller raises the first exception
            last_error = error
    if last_error is not None:
        print(
            f"mhnb: {last_error!r} was raised while a launch was being withdrawn because of an earlier exception",
            file=sys.stderr,
        )
    return result


def back_off(poll_count: int) -> None:
    """Pause between two polls, the longer the more polls there were."""
    if poll_count <= _SPIN_POLLS:
        return
    if poll_count <= FAST_POLLS:
        yield_core()
    else:
        time.sleep(_SHORT_SLEEP_S if poll_count <= FAST_POLLS + SHORT_SLEEP_POLLS else LONG_SLEEP_S)


def mark_rank_lost(board: SharedBoard, rank: int) -> None:
    """Mark a rank as lost, so that no rank waits for it.

    Whatever acted for the rank at this board is gone with it.
    """
    board.set_waiting(rank, None)
    with board.locked():
        for set_index in range(board.set_count):
            seq, number = board.last_entry(rank, set_index)
            slot, members = BoardSlot(seq, set_index, number), board.participants_of(set_index)
            if (
                number
                and not board.withdrawal_reason(rank, slot)
                and not all(board.has_reached(r, slot) for r in members)
            ):
                board.withdraw(rank, slot, _LOST)
        board.mark_lost(rank, _DIED)


class Participant:
    """One rank's participation at the board, one proposal at a time.

    Without waiting: `try_propose` until true, `poll` until true, `decide`.

    Args:
        board: shared with every other rank of this machine.
        rank: this rank.
    """

    def __init__(self, board: SharedBoard, rank: int) -> None:
        self.board, self._rank = board, rank
        self.poll_count = 0
        """How many polls there were since the post."""
        self._participants: tuple[int, ...] = ()
        self._slot: BoardSlot | None = None
        self._undetermined: list[int] = []
        self._lagging: list[int] = []
        self._decision: Decision | None = None
        """The decision, if made; also one made without a poll, before the post or when the cell ended."""
        self._withdrawn_seq = 0
        """The cell in which this rank last withdrew a proposal."""

    def propose(self, proposal: LaunchProposal) -> None:
        """Post the proposal once no rank needs the entry that it overwrites."""
        poll_count = 0
        while not self.try_propose(proposal):
            poll_count += 1
            back_off(poll_count)

    def try_propose(self, proposal: LaunchProposal) -> bool:
        """Post what the rank will launch; return False while too early.

        It is too early while another participant has not ended the cell of this rank's last entry in the set, because it may still
        have to read that entry. Between cells of the main thread all have ended it; a user's thread may be too early. A proposal whose
        own cell has ended is too late: the others have been notified that this rank makes no more in it.

        Raises:
            OSError: the program's name could not be recorded, or there is no room for another set of participants.
        """
        board, rank, participants = self.board, self._rank, proposal.participants
        self._slot, self._decision, self._lagging = None, None, []
        index = board.find_set_index(participants)
        board.record_program_name(proposal.fingerprint, proposal.name, index, participants)
        if proposal.thread_label:
            board.record_thread_label(kind_of(proposal.thread), proposal.thread_label)
        last_seq, _ = board.last_entry(rank, index)
        if last_seq < proposal.seq and any(board.ended_seq(other) < last_seq for other in participants):
            # Unless the cell of the proposal has ended meanwhile: then it must not be posted at all.
            return self._has_cell_ended(proposal)
        with board.locked():
            if self._has_cell_ended(proposal):
                return True
            self._lagging = self._find_lagging(index, proposal)
            if not self._lagging:
                stop = board.interrupted_seq == proposal.seq and not proposal.in_interrupt_handler
                fingerprint = (proposal.fingerprint & ~1 if stop else proposal.fingerprint) | (
                    _HANDLES_BIT if proposal.in_interrupt_handler else 0
                )
                # Set before the entry is written: an exception out of a signal handler may come in between.
                slot = board.next_slot(rank, proposal.seq, index)
                self._slot, self._participants = slot, participants
                board.write_entry(
                    rank, slot, Entry(fingerprint, proposal.provenance, proposal.thread, _pack_lines(proposal.lines))
                )
        self._undetermined = [other for other in participants if other != rank]
        self.poll_count = 0
        return True

    def _has_cell_ended(self, proposal: LaunchProposal) -> bool:
        if self.board.ended_seq(self._rank) < proposal.seq:
            return False
        self._decision = _CELL_ENDED_DECISION
        return True

    def end_cell(self, seq: int, ending: int) -> None:
        """Record the cell's end, after deciding what its thread has posted.

        Once the others know of the end, their next entries may overwrite those that the thread would still have to read.
        """
        board = self.board
        with board.locked():
            # Not before: until the lock is held, the thread may finish one proposal and post the next.
            slot = self._slot
            if slot is not None and self._decision is None and board.has_reached(self._rank, slot):
                if all(board.has_reached(rank, slot) for rank in self._participants):
                    self._decision = self._decide_locked(slot)
                elif not board.withdrawal_reason(self._rank, slot):
                    board.withdraw(self._rank, slot, CELL_ENDED)
            board.end_cell(self._rank, seq, ending)

    def _find_lagging(self, set_index: int, proposal: LaunchProposal) -> list[int]:
        """Return the ranks that still need the overwritten entry; under the lock."""
        seq, number = self.board.last_entry(self._rank, set_index)
        if self._withdrawn_seq != proposal.seq or seq != proposal.seq or number < 3:
            return []
        overwritten = BoardSlot(seq, set_index, number - 2)
        return [rank for rank in proposal.participants if not self._is_determined(rank, overwritten)]

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Write the outline beside the board."""
        self.board.record_outline(fingerprint, outline)

    def release_in_child(self) -> None:
        """Do nothing: the child may keep the memory, because it never launches."""

    # -- polling

    def wait(self, is_interrupted: Callable[[], bool]) -> None:
        """Poll until the launch is decided."""
        while not self.poll(is_interrupted=is_interrupted()):
            back_off(self.poll_count)

    def poll(self, *, is_interrupted: bool) -> bool:
        """Return whether the launch can be decided, or the proposal was withdrawn.

        Args:
            is_interrupted: this rank has been interrupted, and withdraws its proposal if it can.
        """
        slot = self._slot
        if slot is None or self._decision is not None:
            return True
        self._undetermined = [rank for rank in self._undetermined if not self._is_determined(rank, slot)]
        if not self._undetermined:
            return True
        self.poll_count += 1
        if self.poll_count <= FAST_POLLS:
            return False
        if self.poll_count == FAST_POLLS + 1:
            self.board.set_waiting(self._rank, slot)
        return self._is_withdrawn(slot, is_interrupted=is_interrupted)

    def _is_determined(self, rank: int, slot: BoardSlot) -> bool:
        # It may post and end between the two reads: then it is known by its end.
        board = self.board
        if board.has_reached(rank, slot):
            return True
        return board.ended_seq(rank) >= slot.seq

    def _is_withdrawn(self, slot: BoardSlot, *, is_interrupted: bool) -> bool:
        """Withdraw the proposal if necessary; return whether it is withdrawn."""
        board = self.board
        if board.withdrawal_reason(self._rank, slot):
            return True
        if is_interrupted:
            return self.try_withdraw(INTERRUPTED)
        if board.ended_seq(self._rank) >= slot.seq:
            return self.try_withdraw(CELL_ENDED)
        return self.poll_count % _DEADLOCK_CHECK_POLLS == 0 and self._break_deadlock(slot)

    def withdraw(self) -> bool:
        """Withdraw the proposal while another participant has not posted."""
        is_withdrawn = retry_through_signals(self.try_withdraw)
        if is_withdrawn:
            self.reset()
        return is_withdrawn

    def try_withdraw(self, reason: int = CELL_ENDED) -> bool:
        """Withdraw the proposal; return False if a rank may have launched already."""
        board, slot = self.board, self._slot
        if slot is None:
            return True
        with board.locked():
            if not board.has_reached(self._rank, slot):
                return True
            if self._decision is not None:
                return self._decision.kind != "launch"
            if not board.withdrawal_reason(self._rank, slot):
                if all(board.has_reached(rank, slot) for rank in self._participants):
                    return False
                board.withdraw(self._rank, slot, reason)
        self._withdrawn_seq = slot.seq
        return True

    def _break_deadlock(self, slot: BoardSlot) -> bool:
        """Break a deadlock that includes this rank; return whether there was one."""
        board = self.board
        if _find_deadlock(board, self._rank, slot) is None:
            return False
        with board.locked():
            # No rank posts or withdraws now: what is still a deadlock will always be one.
            deadlock = _find_deadlock(board, self._rank, slot)
            if deadlock is None or board.withdrawal_reason(self._rank, slot):
                return deadlock is not None
            names = board.program_names()
            posts = {rank: (at, board.read_entry(rank, at)) for rank, at in deadlock.items()}
            waits = {
                rank: (
                    names.get(0 if post is None else _program_fingerprint(post), "a program"),
                    next(iter(() if post is None else _unpack_lines(post.packed_lines)), None),
                    [other for other in _find_missing(board, at) if other in deadlock],
                )
                for rank, (at, post) in posts.items()
            }
            text = format_deadlock(waits)
            for rank, at in deadlock.items():
                board.write_deadlock(rank, text)
                board.withdraw(rank, at, _DEADLOCK)
        return True

    def stop_waiting(self) -> None:
        """Mark this rank as no longer waiting."""
        self.board.set_waiting(self._rank, None)

    def reset(self) -> None:
        """Forget the proposal: calls before the next post do not concern it."""
        self._slot, self._decision, self._lagging = None, None, []

    # -- the decision

    def take_decision(self) -> Decision:
        """Decide from the proposals of all participants."""
        decision = self.decide()
        self.reset()
        return decision

    def decide(self) -> Decision:
        """Return the decision of all participants, once `poll` has returned true."""
        slot = self._slot
        if (decided := self._decision) is not None:
            return decided
        if slot is None:
            return self._store_decision(Decision("behind", text=format_too_far_ahead(self._lagging)))
        if self._all_agree(slot):
            return self._store_decision(LAUNCH_DECISION)
        with self.board.locked():
            # What the end of the cell has decided meanwhile stands: the others' next entries may overwrite these.
            return self._decision or self._store_decision(self._decide_locked(slot))

    def _all_agree(self, slot: BoardSlot) -> bool:
        """Return whether all entries are readable, not withdrawn, and equal except lines."""
        board = self.board
        own = board.read_entry(self._rank, slot)
        if own is None or own.has_withdrawal or not own.fingerprint & 1:
            return False
        for rank in self._participants:
            entry = board.read_entry(rank, slot)
            # Any participant that posted before the last one could have withdrawn; the last one's entry records that.
            if entry is None or entry.has_withdrawal or entry[:3] != own[:3]:
                return False
        return True

    def _store_decision(self, decision: Decision) -> Decision:
        """Store a decision, unless the cell's end has already made one."""
        if self._decision is None:
            self._decision = decision
        return self._decision

    def _decide_locked(self, slot: BoardSlot) -> Decision:
        """Decide from all entries, under the lock; refuse an unreadable board."""
        try:
            return self._decide_from_entries(slot)
        except OSError as error:
            return Decision("refused", text=format_unreadable_board(str(error)))

    def _decide_from_entries(self, slot: BoardSlot) -> Decision:
        board = self.board
        reason = board.withdrawal_reason(self._rank, slot)
        if reason == _DEADLOCK:
            self._withdrawn_seq = slot.seq
            return Decision("ring", text=board.read_deadlock(self._rank))
        if reason == INTERRUPTED:
            return Decision("interrupt")
        if reason:
            return _CELL_ENDED_DECISION
        votes = [self._read_vote(rank, slot) for rank in self._participants]
        outcome = decide(votes, interrupted=board.interrupted_seq == slot.seq)
        if outcome == "interrupt":
            # Agreed means before the same launch: otherwise the ranks may be at different places in the cell.
            agreed = votes_match(votes) and len({stand.in_interrupt_handler for stand in votes}) == 1
            return Decision("interrupt", is_agreed=agreed)
        if outcome == "again":
            return Decision("again", votes=tuple(votes))
        return LAUNCH_DECISION if outcome == "launch" else self._make_mismatch(votes, slot)

    def _make_mismatch(self, votes: Sequence[Vote], slot: BoardSlot) -> Decision:
        wanted = {stand.fingerprint for stand in votes}
        names = {key: name for key, name in self.board.program_names().items() if key in wanted}
        kinds = {kind_of(stand.thread) for stand in votes}
        return Decision(
            "mismatch",
            launch_number=slot.number,
            votes=tuple(votes),
            names=names,
            differences=self._find_differences(names),
            threads={kind: label for kind, label in self.board.thread_labels().items() if kind in kinds},
        )

    def _find_differences(self, names: Mapping[int, str]) -> dict[int, str]:
        """Return what differs between programs of one name and shape, by fingerprint."""
        known = list(names.values())
        same_named = [key for key, name in names.items() if known.count(name) > 1]
        outlines = {key: unpack_outline(self.board.read_outline(key)) for key in sorted(same_named)}
        found = {key: outline for key, outline in outlines.items() if outline is not None}
        return find_differences(found) if len(found) > 1 else {}

    def _read_vote(self, rank: int, slot: BoardSlot) -> Vote:
        board = self.board
        if not board.has_reached(rank, slot):
            return Vote(rank, ending=ENDINGS[board.cell_ending(rank)])
        entry, mark = _read_entry(board, rank, slot), board.withdrawal_reason(rank, slot)
        if mark in (_DEADLOCK, CELL_ENDED):
            return Vote(rank, ending="error")
        if mark == _LOST:
            return Vote(rank, ending="died")
        stopped = mark == INTERRUPTED or not entry.fingerprint & 1
        handles = bool(entry.fingerprint & _HANDLES_BIT)
        return Vote(
            rank,
            _program_fingerprint(entry),
            _unpack_lines(entry.packed_lines),
            is_stopped=stopped,
            in_interrupt_handler=handles,
            provenance=entry.provenance,
            thread=entry.thread,
        )


def _read_entry(board: SharedBoard, rank: int, slot: BoardSlot) -> Entry:
    """Read an entry that exists, under the lock.

    Raises:
        BoardUnreadable: it was overwritten, or damaged.
    """
    entry = board.read_entry(rank, slot)
    if entry is None:
        raise BoardUnreadable(f"the proposal of rank {rank} for launch {slot.number} is not there any more")
    return entry


def _program_fingerprint(entry: Entry) -> int:
    return entry.fingerprint & ~_HANDLES_BIT | 1


def _pack_lines(lines: Sequence[int]) -> int:
    """Pack a launch's lines into a word, the innermost lowest."""
    return sum(line * LINE_LIMIT**at for at, line in enumerate(lines))


def _unpack_lines(word: int) -> tuple[int, ...]:
    """Unpack the lines of a launch.

    >>> _unpack_lines(_pack_lines((7, 2, 40)))
    (7, 2, 40)
    """
    lines = (word // LINE_LIMIT**at % LINE_LIMIT for at in range(MAX_LINES))
    return tuple(line for line in lines if line)


def _find_deadlock(board: SharedBoard, rank: int, slot: BoardSlot) -> dict[int, BoardSlot] | None:
    """Return the slots of all ranks in a rank's deadlock, or None."""
    waits = _list_waits(board, rank, slot)
    reached = {other: _find_reachable(other, waits) for other in waits}
    deadlock = {other: at for other, (at, _) in waits.items() if rank in reached[other] and other in reached[rank]}
    return deadlock if rank in deadlock else None


def _find_missing(board: SharedBoard, slot: BoardSlot) -> list[int]:
    """Return the ranks that neither reached a slot nor ended the cell."""
    ranks = board.participants_of(slot.set_index)
    return [rank for rank in ranks if not board.has_reached(rank, slot) and board.ended_seq(rank) < slot.seq]


def _list_waits(board: SharedBoard, rank: int, slot: BoardSlot) -> dict[int, tuple[BoardSlot, list[int]]]:
    """Return each reachable waiting rank's slot, and the ranks it awaits."""
    found: dict[int, tuple[BoardSlot, list[int]]] = {}
    pending = [(rank, slot)]
    while pending:
        waiter, at = pending.pop()
        absent = _find_missing(board, at)
        found[waiter] = (at, absent)
        for other in absent:
            waiting_slot = board.waiting_slot(other, slot.seq)
            if other not in found and waiting_slot is not None and _is_waiting(board, other, waiting_slot):
                pending.append((other, waiting_slot))
    return found


def _is_waiting(board: SharedBoard, rank: int, slot: BoardSlot) -> bool:
    return board.has_reached(rank, slot) and not board.withdrawal_reason(rank, slot)


def _find_reachable(rank: int, waits: Mapping[int, tuple[BoardSlot, list[int]]]) -> set[int]:
    seen: set[int] = set()
    pending = list(waits[rank][1])
    while pending:
        other = pending.pop()
        if other not in seen:
            seen.add(other)
            pending += waits[other][1] if other in waits else []
    return seen
