"""Format a replay's progress and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.keep.journal import CellRecord, PushRecord
from mhnb.core.keep.replay import ReplayPlan, SkippedStep
from mhnb.core.ranks import format_ranks

__all__ = ["ReplayReport", "ReplayStep", "format_cells", "format_report", "format_step", "format_stop", "step_name"]


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The step that a replay is about to run."""

    what: str
    """Such as `cell 7`."""
    done: int
    """Number of steps before it."""
    plan: ReplayPlan


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay that has ended."""

    plan: ReplayPlan
    done: int
    """Number of the plan's steps that did the same as before."""
    wall_s: float
    notes: tuple[str, ...] = ()
    """Notes on the journal itself."""
    stop: str = ""
    """Why it stopped before its end, in several lines; empty if it did not."""

    @property
    def cells(self) -> tuple[int, ...]:
        """The numbers of the cells that did the same as before."""
        return tuple(step.seq for step in self.plan.steps[: self.done] if isinstance(step, CellRecord))

    @property
    def pushes(self) -> int:
        """The number of pushes that were made again."""
        return self.done - len(self.cells)

    @property
    def left_out(self) -> tuple[SkippedStep, ...]:
        """What the replay did not try, and why."""
        return self.plan.left_out

    @property
    def not_run(self) -> tuple[int, ...]:
        """The cells after the one at which it stopped."""
        return tuple(step.seq for step in self.plan.steps[self.done + 1 :] if isinstance(step, CellRecord))


def step_name(step: CellRecord | PushRecord) -> str:
    """Return the name of a plan's step.

    >>> step_name(CellRecord(1, 7, "f()")), step_name(PushRecord(1, ("x", "y"), None))
    ('cell 7', 'push x y')
    """
    return f"cell {step.seq}" if isinstance(step, CellRecord) else f"push {' '.join(step.names)}"


def format_step(step: ReplayStep) -> str:
    """Format the one progress line of a running replay.

    >>> format_step(ReplayStep("push x", 2, ReplayPlan(1)))
    'mhjax · replaying push x'
    """
    last = f" of {step.plan.cells[-1]}" if step.what.startswith("cell") else ""
    return f"mhjax · replaying {step.what}{last}"


def format_report(report: ReplayReport, duration: str) -> str:
    """Format the summary of a replay that reached its end: one line, and one for each item that was left out.

    Args:
        duration: its duration as text.

    >>> print(format_report(ReplayReport(ReplayPlan(1, left_out=(SkippedStep("cell 4", "interrupted"),)), 0, 0.1), "0.10 s"))
    mhjax · nothing to replay: no cell ended clean
      left out · cell 4: interrupted
    """
    done = [format_cells(report.cells)] if report.cells else []
    done += [f"{report.pushes} {'push' if report.pushes == 1 else 'pushes'}"] if report.pushes else []
    head = (
        f"mhjax · replayed {' and '.join(done)} · {duration}"
        if done
        else "mhjax · nothing to replay: no cell ended clean"
    )
    return "\n".join([head, *_format_notes(report)])


def format_stop(report: ReplayReport, state: str) -> str:
    """Format why a replay stopped, the state that it left, and how to go on.

    Args:
        state: the cluster's.

    >>> print(format_stop(ReplayReport(ReplayPlan(1), 0, 0.1, stop="the replay was interrupted in cell 1"), "clean"))
    replay stopped: the replay was interrupted in cell 1
      no cell before it · the cluster is clean: go on from here by hand, or %mhjax restart
    """
    first, *more = report.stop.splitlines()
    done = f"{format_cells(report.cells)} did the same as before" if report.cells else "no cell before it"
    rest = (
        f"; {format_cells(report.not_run)} {'was' if len(report.not_run) == 1 else 'were'} not run"
        if report.not_run
        else ""
    )
    command = f"%mhjax restart --replay --to {report.cells[-1]}" if report.cells else "%mhjax restart"
    ways = f"go on from here by hand, or {command}" if state == "clean" else command
    lines = [f"replay stopped: {first}", *(f"  {line}" for line in more)]
    return "\n".join([*lines, f"  {done}{rest} · the cluster is {state}: {ways}", *_format_notes(report)])


def _format_notes(report: ReplayReport) -> list[str]:
    return [*(f"  left out · {item}" for item in report.left_out), *(f"  note · {note}" for note in report.notes)]


def format_cells(seqs: Sequence[int]) -> str:
    """Format cell numbers.

    >>> format_cells([7]), format_cells([1, 2, 3, 5])
    ('cell 7', 'cells 1-3,5')
    """
    return f"{'cell' if len(seqs) == 1 else 'cells'} {format_ranks(seqs)}"
