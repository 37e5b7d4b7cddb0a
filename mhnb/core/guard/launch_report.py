"""A rank's report on a cell's launches, sent at the cell's end.

A loop that alternates between programs makes a row per launch. Equal rows are sent once, and the order of the launches as their
positions: a few bytes per launch, and one object for all equal rows where they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from mhnb.core.guard.host_data import HostDataRow
from mhnb.core.guard.provenance import InputRow
from mhnb.core.stragglers import ArrivalLog

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class LaunchRow(Struct, array_like=True, forbid_unknown_fields=True):
    """A run of equal multi-process launches; the recording rank increases `count`."""

    fingerprint: str
    name: str
    participants: tuple[int, ...]
    """Sorted ranks."""
    line: int | None
    """1-based line of the cell, or None."""
    count: _Count
    """At least 1, or 0 for a program that ran without a collective and of which no output is still referenced."""


class LaunchPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A launch that was not made, or not waited for."""

    name: str
    line: int | None
    """Of the cell."""
    seq: int | None = None
    """The number of its cell if that was an earlier one."""


class PendingPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A launch that an interrupted rank waited for others to reach."""

    number: int
    """Among the launches of the cell, from 1."""
    line: int | None
    """Of the cell."""


class LaunchReport(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rank's report on a cell's launches."""

    rows: list[LaunchRow] = field(default_factory=list)
    """The launches; equal rows once if `order` is not empty."""
    order: list[int] = field(default_factory=list)
    """The positions in `rows` of the launches, in their order; empty if `rows` is in order."""
    abandoned_count: _Count = 0
    """Launches that had not finished when the rank stopped waiting for them."""
    abandoned_launch: LaunchPlace | None = None
    """The first collective launch that the rank did not wait for."""
    may_have_abandoned: bool = False
    """Whether a signal ended code whose launches are not recorded, so that a collective may still be waiting."""
    running_count: _Count = 0
    """Launches that all ranks agreed on and the rank did not wait for. They end by themselves, unless one failed."""
    failed_count: _Count = 0
    """Launches that failed on this rank in a callback. Another rank may wait for the rest of them."""
    interrupted_before: int | None = None
    """The number of the launch before which the rank was interrupted, together with all participants."""
    pending_launch: PendingPlace | None = None
    ignored_refusals: list[LaunchPlace] = field(default_factory=list)
    """Refused launches whose error the cell's code caught."""
    refused_inputs: list[InputRow] = field(default_factory=list)
    """The arrays for which a launch was refused."""
    host_arrays: list[HostDataRow] = field(default_factory=list)
    """The arrays that the cell made from host data."""
    arrivals: ArrivalLog = ArrivalLog()
    """When the rank came to each launch on which the ranks agreed."""

    def __post_init__(self) -> None:
        if self.order and not 0 <= min(self.order) <= max(self.order) < len(self.rows):
            raise ValueError(f"Expected positions in {len(self.rows)} rows of launches")

    def list_launches(self) -> list[LaunchRow]:
        """Return the launches in order; equal rows are the same object."""
        return [self.rows[position] for position in self.order] if self.order else self.rows


def merge_equal_rows(rows: Sequence[LaunchRow]) -> tuple[list[LaunchRow], list[int]]:
    """Return the distinct rows and their order; empty order if all differ.

    >>> two = [LaunchRow("a", "f", (0, 1), 1, 1), LaunchRow("b", "g", (0, 1), 2, 1)]
    >>> merge_equal_rows(two * 2)[1], merge_equal_rows(two)[1]
    ([0, 1, 0, 1], [])
    >>> LaunchReport(*merge_equal_rows(two * 2)).list_launches() == two * 2
    True
    """
    distinct: list[LaunchRow] = []
    positions: dict[tuple[object, ...], int] = {}
    order: list[int] = []
    for row in rows:
        key = (row.fingerprint, row.name, row.participants, row.line, row.count)
        position = positions.setdefault(key, len(distinct))
        if position == len(distinct):
            distinct.append(row)
        order.append(position)
    return distinct, [] if len(distinct) == len(rows) else order
