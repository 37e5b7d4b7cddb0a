"""Index boxes of an array, and element types.

A box is a tuple of half-open ranges, one per dim. Functions here split a dim, intersect boxes, find an uncovered box, split an array
into boxes that are contiguous in memory, and format boxes. No function here knows which rank holds a box.
An element type is parsed, with its name and size, from whatever a user calls it; NumPy and JAX are not used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from mhnb.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ByteRun:
    """A box of an array, and its bytes `start:stop` in row-major memory."""

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


def find_uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Box | None:
    """Return an uncovered box of the array; None if `boxes` cover it.

    >>> find_uncovered((4, 2), [((0, 2), (0, 2))])
    ((2, 4), (0, 2))
    """
    if prod(shape) == 0:
        return None
    return _find_uncovered_in(full_box(shape), boxes, 0)


def _find_uncovered_in(target: Box, boxes: Sequence[Box], dim: int) -> Box | None:
    """Search slabs along `dim`; `boxes` cover the target in earlier dims."""
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
    """Yield an array's pieces of at most `limit` bytes, in memory order.

    A piece has at least one element. It is both a box and one contiguous range of row-major memory, so that one copy
    reads it and writes it anywhere.

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


# -- element types


_STEMS = {"f": "float", "i": "int", "s": "int", "u": "uint", "ui": "uint", "c": "complex", "bf": "bfloat"}
_SHORT = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
_NAME = re.compile(r"([a-z]+)(\d+)(_\w+)?")


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type."""

    name: str
    """NumPy's name: `float32`, `bfloat16`, `key<fry>`."""
    itemsize: int
    """Bytes per element."""

    @property
    def short(self) -> str:
        """Return the name as JAX prints it: `f32`, `bf16`, `bool`."""
        return short_dtype(self.name)


def short_dtype(name: str) -> str:
    """Format NumPy's name of a dtype as JAX prints it.

    >>> short_dtype("float32"), short_dtype("bfloat16"), short_dtype("float8_e4m3fn"), short_dtype("bool")
    ('f32', 'bf16', 'f8_e4m3fn', 'bool')
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in _SHORT:
        return name
    return f"{_SHORT[found[1]]}{found[2]}{found[3] or ''}"


def parse_dtype(value: Any) -> Dtype:
    """Parse a dtype: NumPy's or JAX's name, or a named object.

    Raises:
        InvalidRequest: it is not a type of known size.

    >>> parse_dtype("bf16"), parse_dtype("float8_e4m3fn").itemsize, parse_dtype("bool").short
    (Dtype(name='bfloat16', itemsize=2), 1, 'bool')
    """
    if isinstance(value, Dtype):
        return value
    itemsize = getattr(value, "itemsize", None)
    if isinstance(itemsize, int):
        return Dtype(str(getattr(value, "name", value)), itemsize)
    name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    if name in ("bool", "bool_"):
        return Dtype("bool", 1)
    if name in _PYTHON:
        return Dtype(_PYTHON[name], 4)
    found = _NAME.fullmatch(name)
    stem = found and _STEMS.get(found[1], found[1])
    if found is None or stem not in _SHORT:
        raise InvalidRequest(
            f"unknown dtype {value!r}; expected a name such as 'float32', 'bf16' or 'int8'",
            dtype=str(value),
        )
    # Types smaller than a byte take one byte per element, as in NumPy and on CPU.
    return Dtype(f"{stem}{found[2]}{found[3] or ''}", max(1, int(found[2]) // 8))


_PYTHON = {"float": "float32", "int": "int32"}
"""JAX's dtypes for Python's own types."""


# -- boxes


Range: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Range, ...]
WHOLE_ARRAY = "whole"
"""The description of a box without dims."""


def box_of_index(index: Iterable[slice], shape: Sequence[int]) -> Box:
    """Convert a JAX shard's index, one slice per dim, to a box.

    >>> box_of_index((slice(2, 4), slice(None)), (8, 3))
    ((2, 4), (0, 3))
    """
    return tuple((part.indices(size)[0], part.indices(size)[1]) for part, size in zip(index, shape, strict=True))


def partition_dim(size: int, parts: int) -> list[Range]:
    """Partition a dim like XLA: equal ranges, the last shorter or empty.

    >>> partition_dim(8, 2), partition_dim(5, 4)
    ([(0, 4), (4, 8)], [(0, 2), (2, 4), (4, 5), (5, 5)])
    """
    step = -(-size // parts)
    return [(min(size, part * step), min(size, (part + 1) * step)) for part in range(parts)]


def box_size(box: Box) -> int:
    """Count the elements of a box; one without dims has one.

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
    return f"[{_format_ranges(box)}]"


def describe_box(box: Sequence[Range]) -> str:
    """Format a box without brackets; `whole` if it has no dims.

    >>> describe_box(((2, 4), (0, 3))), describe_box(())
    ('2:4, 0:3', 'whole')
    """
    return _format_ranges(box) or WHOLE_ARRAY


def _format_ranges(box: Sequence[Range]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)
