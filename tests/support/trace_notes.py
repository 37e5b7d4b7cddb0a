"""The notes of a trace that do not depend on how busy the machine is."""

from __future__ import annotations

from mhnb.core.trace import TraceReport


def notes_on_losses(report: TraceReport) -> list[str]:
    """Return all notes but the one on a rank that entered the profiler late, with which nothing is lost."""
    return [note for note in report.notes if "entered the profiler" not in note]
