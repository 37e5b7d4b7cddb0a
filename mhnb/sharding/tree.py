"""Layouts of the arrays of a pytree: the cost of each, and which of them are replicated although others are sharded."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from mhnb.sharding.layout import Layout

__all__ = ["LayoutRow", "LayoutTree"]

_COLUMNS = ("path", "shape", "dtype", "spec", "nbytes", "nbytes_per_device", "replication", "nbytes_waste", "remark")


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One leaf of a pytree."""

    path: str
    """As `['layers'][0].w`; empty if the value itself is a leaf."""
    layout: Layout | None
    """None if the leaf is not an array on devices."""
    kind: str = ""
    """Description of a leaf that is not an array: `int 3`, `ndarray float32[4]`."""
    is_deleted: bool = False
    """Whether its data was deleted, as that of a donated array."""


@dataclass(frozen=True)
class LayoutTree:
    """All leaves of a pytree, in the tree's order."""

    rows: tuple[LayoutRow, ...]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Return the layouts of the arrays whose data exists."""
        return tuple(row.layout for row in self.rows if row.layout is not None and not row.is_deleted)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        return sum(layout.nbytes for layout in self.layouts)

    @property
    def nbytes_per_device(self) -> int:
        """Bytes on a device that stores a shard of each array."""
        return sum(layout.nbytes_per_device for layout in self.layouts)

    @property
    def nbytes_waste(self) -> int:
        """Bytes stored beyond the arrays themselves."""
        return sum(layout.nbytes_waste for layout in self.layouts)

    @cached_property
    def fallen_back(self) -> frozenset[str]:
        """Return the paths of fully replicated arrays that take at least as much memory per device as the sharded ones do.

        A bias or a scale is replicated on purpose, and is small. A matrix whose spec got lost takes more memory per device than its
        sharded neighbours. The threshold is the median of the sharded arrays.
        """
        sharded = [layout.nbytes_per_device for layout in self.layouts if _is_sharded(layout)]
        if not sharded:
            return frozenset()
        limit = max(1.0, median(sharded))
        return frozenset(
            row.path
            for row in self.rows
            if row.layout is not None
            and not row.is_deleted
            and row.layout.is_replicated
            and row.layout.nbytes_per_device >= limit
        )

    def remark(self, row: LayoutRow) -> str:
        """Return a remark about an unusual row; empty for most rows."""
        if row.is_deleted:
            return "deleted"
        return "replicated: was it meant to be?" if row.path in self.fallen_back else ""

    def to_csv(self) -> str:
        r"""Format all rows as CSV, sizes in bytes.

        >>> LayoutTree((LayoutRow("w", Layout.of((4,), {"x": 2}, "P('x')")),)).to_csv().splitlines()[1]
        "w,4,float32,P('x'),16,8,1.0,0,"
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(self._cells(row) for row in self.rows)
        return text.getvalue()

    def _cells(self, row: LayoutRow) -> Sequence[object]:
        layout = row.layout
        if layout is None:
            return row.path, "", row.kind, "", "", "", "", "", ""
        shape, spec = "x".join(map(str, layout.shape)), str(layout.spec or "")
        costs = (layout.nbytes, layout.nbytes_per_device, layout.replication, layout.nbytes_waste)
        return row.path, shape, layout.dtype.name, spec, *costs, self.remark(row)


def _is_sharded(layout: Layout) -> bool:
    return layout.device_count > 1 and layout.nbytes_per_device < layout.nbytes
