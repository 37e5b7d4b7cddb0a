"""Value classes of a preflight report: cells, columns and findings, and shared formatting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Cell", "Column", "Finding", "Level", "PreflightReport", "join_hosts", "most_common"]

_MAX_NAMED = 6

Level: TypeAlias = Literal["failure", "warning", "note"]
"""A failure would end, hang or silently corrupt a start. A warning would not. A note says what mhnb does about something."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one check on one host."""

    text: str
    level: Level | None = None
    """The most severe finding here; None if there is none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, on one host or the same on several."""

    level: Level
    check: str
    hosts: tuple[str, ...]
    text: str
    """The subject, its value and the consequence, in a sentence that names the hosts."""
    fix: str = ""
    """What to do, or what mhnb does."""


@dataclass(frozen=True, slots=True)
class Column:
    """One check across all hosts."""

    header: str
    cells: Mapping[int, Cell] = field(default_factory=dict)
    """Host's position -> its cell; a host that did not reply has none."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The findings on all hosts."""

    hosts: tuple[str, ...]
    columns: tuple[Column, ...]
    findings: tuple[Finding, ...]
    addresses: tuple[str | None, ...] = ()
    """Each host's real address, at which others reach it: for gloo and for no_proxy. None if the host did not reply."""
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Endpoint -> address and port that every host can reach."""
    duration_s: float | None = None
    """Duration of the preflight, without the time in a scheduler's queue."""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that prevent a start."""
        return tuple(finding for finding in self.findings if finding.level == "failure")

    @property
    def ok(self) -> bool:
        """Whether no finding prevents a start."""
        return not self.failures


def join_hosts(names: Iterable[str]) -> str:
    """Format host names as a list in prose; of many, only the first few.

    >>> join_hosts("abc"), join_hosts("abcdefghijk")
    ('a, b and c', 'a, b, c, d, e, f and 5 more')
    """
    *first, last = list(names)
    if len(first) >= _MAX_NAMED + 2:
        first, last = first[:_MAX_NAMED], f"{len(first) + 1 - _MAX_NAMED} more"
    return f"{', '.join(first)} and {last}" if first else last


def most_common(values: Sequence[str]) -> str:
    """Return the most common value; of two that are equally frequent, the earlier.

    >>> most_common(["1", "2", "2"])
    '2'
    """
    return Counter(values).most_common(1)[0][0]
