"""The parts of a preflight's report: cells, columns, findings, and the words they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Cell", "Column", "Finding", "Level", "PreflightReport", "join_hosts", "usual"]

_NAMED = 6

Level: TypeAlias = Literal["failure", "warning", "note"]
"""A failure would end, hang or silently spoil a start. A warning would not. A note says what mhnb does about something."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One host's part in one check."""

    text: str
    level: Level | None = None
    """The gravest finding here; None where all is well."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, on one host or the same on several."""

    level: Level
    check: str
    hosts: tuple[str, ...]
    text: str
    """The thing, its value, what follows. A sentence that names the hosts."""
    cure: str = ""
    """What to do, or what mhnb does."""


@dataclass(frozen=True, slots=True)
class Column:
    """One check over all hosts."""

    header: str
    cells: Mapping[int, Cell] = field(default_factory=dict)
    """Host's position -> its cell; a host that could not be asked has none."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What was found on all hosts."""

    hosts: tuple[str, ...]
    columns: tuple[Column, ...]
    findings: tuple[Finding, ...]
    addresses: tuple[str | None, ...] = ()
    """Each host's real address, where others reach it: for gloo, and to be kept off proxies. None where it could not be asked."""
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Endpoint -> address and port that every host can reach."""
    cost_s: float | None = None
    """What the look has taken, beyond the time in a scheduler's queue."""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What stands against a start."""
        return tuple(finding for finding in self.findings if finding.level == "failure")

    @property
    def ok(self) -> bool:
        """Whether nothing stands against a start."""
        return not self.failures


def join_hosts(names: Iterable[str]) -> str:
    """Write hosts as people do; of many the first few.

    >>> join_hosts("abc"), join_hosts("abcdefghijk")
    ('a, b and c', 'a, b, c, d, e, f and 5 more')
    """
    *first, last = list(names)
    if len(first) >= _NAMED + 2:
        first, last = first[:_NAMED], f"{len(first) + 1 - _NAMED} more"
    return f"{', '.join(first)} and {last}" if first else last


def usual(values: Sequence[str]) -> str:
    """Give the value that most have; of two as frequent the earlier.

    >>> usual(["1", "2", "2"])
    '2'
    """
    return Counter(values).most_common(1)[0][0]
