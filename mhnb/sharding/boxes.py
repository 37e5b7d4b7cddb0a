"""Boxes of an array: half-open ranges, one per dim. Partition a dim, intersect boxes, and format ranges."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

__all__ = ["Box", "Range", "box_size", "format_box", "intersect", "partition_dim"]

Range: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Range, ...]


def partition_dim(size: int, parts: int) -> list[Range]:
    """Partition a dim into equal ranges; if not divisible, the last ones are shorter or empty, as the compiler pads them.

    >>> partition_dim(8, 2), partition_dim(5, 4)
    ([(0, 4), (4, 8)], [(0, 2), (2, 4), (4, 5), (5, 5)])
    """
    step = -(-size // parts)
    return [(min(size, part * step), min(size, (part + 1) * step)) for part in range(parts)]


def box_size(box: Box) -> int:
    """Count the elements of a box; a box without dims has one element.

    >>> box_size(((2, 4), (0, 3))), box_size(())
    (6, 1)
    """
    return prod(stop - start for start, stop in box)


def intersect(left: Box, right: Box) -> Box | None:
    """Return the intersection of two boxes; None if they share no element.

    >>> intersect(((0, 4), (0, 2)), ((2, 6), (0, 2)))
    ((2, 4), (0, 2))
    """
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return common if all(start < stop for start, stop in common) else None


def format_box(box: Sequence[Range]) -> str:
    """Format a box as an index.

    >>> format_box(((2, 4), (0, 3)))
    '[2:4, 0:3]'
    """
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
