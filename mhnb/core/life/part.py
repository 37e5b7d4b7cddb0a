"""One rank's part of a cell: its output, its latest samples, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mhnb.core.explain.culprit import ErrorSite
from mhnb.core.explain.hints import find_hint, find_printed_hint
from mhnb.core.explain.unequal import shorten_values
from mhnb.core.guard.agreement import leave_state_out
from mhnb.core.output.outputs import OutputFolder
from mhnb.core.wire.protocol import CellEnded, LaunchRow, OutputEvent, RankStatus
from mhnb.core.wire.rowpack import unpack_rows
from mhnb.values import Outcome, RankError

__all__ = ["RankPart", "look_key"]


_PRINTED_LENGTH = 8192
"""Number of characters of the printed output that are searched."""


def look_key(look: RankStatus) -> object:
    """Return a key that distinguishes one launch from another in a rank's samples: its number, or else all that is known.

    >>> look_key(RankStatus(0, 1, "blocked", "step", 3, "", 1.0, [[[0, 1], 5]], [0, 1]))
    ([0, 1], 'step', 3, [[[0, 1], 5]])
    """
    if look.number is not None:
        return look.participants, look.number
    return look.participants, look.what, look.line, look.counts


@dataclass(slots=True)
class RankPart:
    """One rank's part of a cell while it runs and afterwards."""

    folder: OutputFolder
    outcome: Outcome = "running"
    error: RankError | None = None
    launches: list[LaunchRow] = field(default_factory=list)
    abandoned: int = 0
    running: int = 0
    failed: int = 0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    made: list[list[Any]] = field(default_factory=list)
    taken: list[list[Any]] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    came_to: list[Any] = field(default_factory=list)
    stopped_before: int | None = None
    caught: list[list[Any]] = field(default_factory=list)
    looks: tuple[RankStatus, ...] = ()
    """Its latest two samples of itself, the newer last."""
    looked_at: float = 0.0
    _spoke: tuple[bool, bool] = (False, False)
    """Whether output arrived before the latest sample, and after it."""
    _printed: str = ""
    """The end of its printed output: a process that it started may print there what went wrong."""
    handles_since: float | None = None
    """Since when its code has received the interrupt, and still runs; None if it has not."""
    finishes_since: float | None = None
    """Since when that code has ended, and the rank waits for its launches; None while it runs."""

    def note_look(self, status: RankStatus, now: float) -> None:
        """Record a sample of where the rank is."""
        self.looks, self.looked_at = (*self.looks[-1:], status), now
        self._spoke = (self._spoke[1], False)

    def note_taken(self, now: float, *, taken: bool) -> None:
        """Record that the rank's code has received the interrupt, or that the interrupt did not reach it after all."""
        self.handles_since = (now if self.handles_since is None else self.handles_since) if taken else None
        if not taken and self.finishes_since is None:
            self.finishes_since = now

    @property
    def spoke(self) -> bool:
        """Whether output arrived since the sample before the latest."""
        return any(self._spoke)

    def is_in_collective(self, since: float) -> bool:
        """Check whether the rank was in a launch in its latest sample, taken after `since`, and in the same one before."""
        if not self.looks or self.looked_at < since:
            return False
        latest = self.looks[-1]
        # It is in another launch than before: it makes progress, and ends by itself.
        moves = any(look_key(look) != look_key(latest) for look in self.looks)
        return bool(latest.participants) and latest.launched and not moves

    def is_at_work(self, since: float) -> bool:
        """Check whether the rank has ended the code of a stopped cell, and still computed its launches in its latest sample."""
        latest = self.looks[-1] if self.looks and self.looked_at >= since else None
        return latest is not None and not latest.launched and latest.activity == "computing"

    def name_left(self, *, freed: bool) -> str:
        """Name the first launch that the rank abandoned, with its line, as far as its final reply or its samples show.

        Args:
            freed: the rank was in a collective, the same one in two samples: an exception from the dispatch leaves no launch behind.
        """
        looks = [look for look in self.looks if freed and look.participants and look.launched]
        seen = [("a collective" if look.number is None else look.what, look.line) for look in looks]
        name, line = ("a collective", None) if not seen else seen[-1]
        if self.left:
            # The rank's own record has the name with its types.
            name, line = self.left[0].partition(" ")[0], self.left[1]
            if self.left[2:]:
                return f"{name} of cell {self.left[2]}"
        return name if line is None else f"{name} (line {line})"

    def add(self, events: list[OutputEvent]) -> None:
        """Record output."""
        for event in events:
            if event[0] == "error":
                self.error = _parse_error(event)
            elif event[0] in ("stdout", "stderr"):
                self._printed = (self._printed + event[1])[-_PRINTED_LENGTH:]
        self._spoke = (self._spoke[0], self._spoke[1] or bool(events))
        self.folder.add(events)

    def leave_state_out(self) -> None:
        """Remove from the rank's error that the cluster is clean, because it is not, for another reason."""
        if self.error is not None:
            evalue, traceback = leave_state_out(self.error.evalue), map(leave_state_out, self.error.traceback)
            self.error = replace(self.error, evalue=evalue, traceback=tuple(traceback))

    def end(self, ended: CellEnded) -> None:
        """Record the rank's final reply."""
        self.add(ended.events)
        self.folder.settle()
        if self.error is not None and self.error.hint is None:
            self.error = replace(self.error, hint=find_printed_hint(self.error.ename, self._printed))
        self.outcome, self.launches = ended.outcome, unpack_rows(ended.launches)
        self.abandoned, self.wall_s, self.notes, self.made = ended.abandoned, ended.wall_s, ended.notes, ended.made
        self.running, self.failed = ended.running, ended.failed
        self.stopped_before, self.caught, self.taken = ended.stopped_before, ended.caught, ended.taken
        self.left, self.came_to = ended.left, ended.came_to


def _parse_error(event: OutputEvent) -> RankError:
    _, ename, evalue, traceback, line, code, at_s, *site = event
    place = ErrorSite(*site[0]) if site else ErrorSite()
    hint = find_hint(ename, evalue, site=place, code=code)
    if place.module.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        # Text by the user stays as it is.
        evalue, traceback = shorten_values(evalue), [shorten_values(text) for text in traceback]
    return RankError(ename, evalue, tuple(traceback), hint=hint, line=line, code=code, at_s=at_s)
