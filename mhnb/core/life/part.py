"""One rank's part of a cell: its output, its latest samples, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mhnb.core.explain.culprit import ErrorSite
from mhnb.core.explain.hints import find_hint, find_printed_hint
from mhnb.core.explain.unequal import shorten_values
from mhnb.core.guard.agreement import remove_cluster_state
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.wire.protocol import CellEnded, LaunchRow, OutputEvent, RankStatus
from mhnb.core.wire.rowpack import decompress_launches
from mhnb.values import Outcome, RankError

__all__ = ["RankCell", "launch_key"]


_SEARCHED_CHARS = 8192
"""Number of characters of the printed output that are searched."""


def launch_key(sample: RankStatus) -> object:
    """Return a key that distinguishes one launch from another in a rank's samples: its number, or else all that is known.

    >>> launch_key(RankStatus(0, 1, "blocked", "step", 3, "", 1.0, [[[0, 1], 5]], [0, 1]))
    ([0, 1], 'step', 3, [[[0, 1], 5]])
    """
    if sample.launch_number is not None:
        return sample.participants, sample.launch_number
    return sample.participants, sample.what, sample.line, sample.counts


@dataclass(slots=True)
class RankCell:
    """One rank's part of a cell while it runs and afterwards."""

    accumulator: OutputAccumulator
    outcome: Outcome = "running"
    error: RankError | None = None
    launches: list[LaunchRow] = field(default_factory=list)
    abandoned_count: int = 0
    running_count: int = 0
    failed_count: int = 0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    host_data: list[list[Any]] = field(default_factory=list)
    launch_inputs: list[list[Any]] = field(default_factory=list)
    abandoned_launch: list[Any] = field(default_factory=list)
    pending_launch: list[Any] = field(default_factory=list)
    stopped_before: int | None = None
    caught_mismatches: list[list[Any]] = field(default_factory=list)
    samples: tuple[RankStatus, ...] = ()
    """Its latest two samples of itself, the newer last."""
    sampled_at: float = 0.0
    _output_flags: tuple[bool, bool] = (False, False)
    """Whether output arrived before the latest sample, and after it."""
    _printed: str = ""
    """The end of its printed output: a process that it started may print there what went wrong."""
    handling_since: float | None = None
    """Since when its code has received the interrupt, and still runs; None if it has not."""
    finishing_since: float | None = None
    """Since when that code has ended, and the rank waits for its launches; None while it runs."""

    def record_sample(self, status: RankStatus, now: float) -> None:
        """Record a sample of where the rank is."""
        self.samples, self.sampled_at = (*self.samples[-1:], status), now
        self._output_flags = (self._output_flags[1], False)

    def record_interrupt_delivery(self, now: float, *, is_delivered: bool) -> None:
        """Record that the rank's code has received the interrupt, or that the interrupt did not reach it after all."""
        self.handling_since = (now if self.handling_since is None else self.handling_since) if is_delivered else None
        if not is_delivered and self.finishing_since is None:
            self.finishing_since = now

    @property
    def has_new_output(self) -> bool:
        """Whether output arrived since the sample before the latest."""
        return any(self._output_flags)

    def is_in_collective(self, since: float) -> bool:
        """Check whether the rank was in a launch in its latest sample, taken after `since`, and in the same one before."""
        if not self.samples or self.sampled_at < since:
            return False
        latest = self.samples[-1]
        # It is in another launch than before: it makes progress, and ends by itself.
        makes_progress = any(launch_key(look) != launch_key(latest) for look in self.samples)
        return bool(latest.participants) and latest.is_launched and not makes_progress

    def is_computing(self, since: float) -> bool:
        """Check whether the rank has ended the code of a stopped cell, and still computed its launches in its latest sample."""
        latest = self.samples[-1] if self.samples and self.sampled_at >= since else None
        return latest is not None and not latest.is_launched and latest.activity == "computing"

    def name_abandoned(self, *, was_disconnected: bool) -> str:
        """Name the first launch that the rank abandoned, with its line, as far as its final reply or its samples show.

        Args:
            was_disconnected: the rank was in a collective, the same one in two samples: an exception from the dispatch leaves no
                launch behind.
        """
        samples = [look for look in self.samples if was_disconnected and look.participants and look.is_launched]
        seen = [("a collective" if look.launch_number is None else look.what, look.line) for look in samples]
        name, line = ("a collective", None) if not seen else seen[-1]
        if self.abandoned_launch:
            # The rank's own record has the name with its types.
            name, line = self.abandoned_launch[0].partition(" ")[0], self.abandoned_launch[1]
            if self.abandoned_launch[2:]:
                return f"{name} of cell {self.abandoned_launch[2]}"
        return name if line is None else f"{name} (line {line})"

    def add_output(self, events: list[OutputEvent]) -> None:
        """Record output."""
        for event in events:
            if event[0] == "error":
                self.error = _parse_error(event)
            elif event[0] in ("stdout", "stderr"):
                self._printed = (self._printed + event[1])[-_SEARCHED_CHARS:]
        self._output_flags = (self._output_flags[0], self._output_flags[1] or bool(events))
        self.accumulator.add(events)

    def remove_cluster_state(self) -> None:
        """Remove from the rank's error that the cluster is clean, because it is not, for another reason."""
        if self.error is not None:
            evalue, traceback = remove_cluster_state(self.error.evalue), map(remove_cluster_state, self.error.traceback)
            self.error = replace(self.error, evalue=evalue, traceback=tuple(traceback))

    def record_end(self, ended: CellEnded) -> None:
        """Record the rank's final reply."""
        self.add_output(ended.events)
        self.accumulator.finish()
        if self.error is not None and self.error.hint is None:
            self.error = replace(self.error, hint=find_printed_hint(self.error.ename, self._printed))
        self.outcome, self.launches = ended.outcome, decompress_launches(ended.launches)
        self.abandoned_count, self.wall_s, self.notes, self.host_data = (
            ended.abandoned,
            ended.wall_s,
            ended.notes,
            ended.host_arrays,
        )
        self.running_count, self.failed_count = ended.running_launches, ended.failed_callbacks
        self.stopped_before, self.caught_mismatches, self.launch_inputs = (
            ended.interrupted_before,
            ended.ignored_refusals,
            ended.refused_inputs,
        )
        self.abandoned_launch, self.pending_launch = ended.abandoned_launch, ended.pending_launch


def _parse_error(event: OutputEvent) -> RankError:
    _, ename, evalue, traceback, line, code, at_s, *site = event
    error_site = ErrorSite(*site[0]) if site else ErrorSite()
    hint = find_hint(ename, evalue, site=error_site, code=code)
    if error_site.module.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        # Text by the user stays as it is.
        evalue, traceback = shorten_values(evalue), [shorten_values(text) for text in traceback]
    return RankError(ename, evalue, tuple(traceback), hint=hint, line=line, code=code, at_s=at_s)
