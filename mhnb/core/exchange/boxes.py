"""Index boxes of an array: find an uncovered box, and split an array into boxes that are contiguous in memory.

A box is a tuple of half-open ranges, one per dim. This module does not know which rank holds a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

__all__ = ["Box", "ByteRun", "box_shape", "box_size", "find_uncovered", "format_box", "full_box", "split_shape"]

Box: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ByteRun:
    """A box within an array, and the bytes `start:stop` that hold it in row-major memory."""

    start: int
    stop: int
    box: Box


def full_box(shape: Sequence[int]) -> Box:
    """Return the box that covers the whole array.

    >>> full_box((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, size) for size in shape)


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the shape of the contents of a box.

    >>> box_shape(((2, 4), (0, 3)))
    (2, 3)
    """
    return tuple(stop - start for start, stop in box)


def box_size(box: Box) -> int:
    """Count the elements in a box; a box without dims holds one.

    >>> box_size(((2, 4), (0, 3)))
    6
    """
    return prod(box_shape(box))


def format_box(box: Box) -> str:
    """Format a box as an index.

    >>> format_box(((2, 4), (0, 3)))
    '[2:4, 0:3]'
    """
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"


def find_uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Box | None:
    """Return a box of the array that none of `boxes` covers; None if all of it is covered.

    >>> find_uncovered((4, 2), [((0, 2), (0, 2))])
    ((2, 4), (0, 2))
    """
    if prod(shape) == 0:
        return None
    return _find_uncovered_in(full_box(shape), boxes, 0)


def _find_uncovered_in(target: Box, boxes: Sequence[Box], dim: int) -> Box | None:
    """Search one slab after another along `dim`; `boxes` cover the target in all dims before it."""
    if not boxes:
        return target
    if dim == len(target):
        return None
    low, high = target[dim]
    edges = {low, high} | {edge for box in boxes for edge in box[dim] if low < edge < high}
    for start, stop in pairwise(sorted(edges)):
        slab = (*target[:dim], (start, stop), *target[dim + 1 :])
        covering = [box for box in boxes if box[dim][0] <= start and box[dim][1] >= stop]
        if (uncovered := _find_uncovered_in(slab, covering, dim + 1)) is not None:
            return uncovered
    return None


def split_shape(shape: Sequence[int], itemsize: int, limit: int) -> Iterator[ByteRun]:
    """Split an array into pieces of at most `limit` bytes (or one element), in memory order.

    Each piece is both a box and one contiguous range of row-major memory, so that one copy reads it and writes it anywhere.

    >>> [(p.start, p.stop, p.box) for p in split_shape((3, 2), 4, 16)]
    [(0, 16, ((0, 2), (0, 2))), (16, 24, ((2, 3), (0, 2)))]
    """
    if prod(shape) == 0:
        return
    yield from _split(tuple(shape), itemsize, limit, (), 0)


def _split(shape: tuple[int, ...], itemsize: int, limit: int, outer: Box, offset: int) -> Iterator[ByteRun]:
    if not shape:
        yield ByteRun(offset, offset + itemsize, outer)
        return
    row = prod(shape[1:]) * itemsize
    if row > limit:
        for index in range(shape[0]):
            yield from _split(shape[1:], itemsize, limit, (*outer, (index, index + 1)), offset + index * row)
        return
    step = max(1, limit // row)
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        yield ByteRun(offset + start * row, offset + stop * row, (*outer, (start, stop), *full_box(shape[1:])))
