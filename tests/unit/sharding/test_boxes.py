"""Boxes: holes are found exactly, and pieces cover an array once, in memory order."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mhnb.sharding.boxes import Box, box_shape, box_size, find_uncovered, full_box, split_shape

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def cells(box: Box) -> set[tuple[int, ...]]:
    """Return the elements of a box."""
    return set(product(*(range(start, stop) for start, stop in box)))


@st.composite
def shapes_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and any boxes within it."""
    shape = draw(shapes)
    ranges = [
        st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda pair: (min(pair), max(pair))) for size in shape
    ]
    return shape, draw(st.lists(st.tuples(*ranges), max_size=6))


@given(shapes_and_boxes())
def test_hole_is_outside_every_box(case: tuple[tuple[int, ...], list[Box]]) -> None:
    """A reported hole contains elements, and no box contains any of them."""
    shape, boxes = case
    hole = find_uncovered(shape, boxes)
    if hole is not None:
        assert cells(hole)
        assert not any(cells(hole) & cells(box) for box in boxes)


@given(shapes_and_boxes())
def test_without_hole_everything_is_covered(case: tuple[tuple[int, ...], list[Box]]) -> None:
    """If no hole is found, every element is in some box."""
    shape, boxes = case
    if find_uncovered(shape, boxes) is None:
        assert cells(full_box(shape)) == set().union(*map(cells, boxes)) | (
            cells(full_box(shape)) if not all(shape) else set()
        )


@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 200))
def test_pieces_cover_the_array_in_memory_order(shape: tuple[int, ...], itemsize: int, limit: int) -> None:
    """Pieces follow one another without a gap from the first byte to the last, and each has the bytes of its box."""
    pieces = list(split_shape(shape, itemsize, limit))
    edges = [0, *(piece.stop for piece in pieces)]
    assert [piece.start for piece in pieces] == edges[:-1]
    assert edges[-1] == box_size(full_box(shape)) * itemsize
    assert all(piece.stop - piece.start == box_size(piece.box) * itemsize for piece in pieces)


@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 200))
def test_piece_is_contiguous_in_memory(shape: tuple[int, ...], itemsize: int, limit: int) -> None:
    """The elements of a piece, in row-major order, are the elements at its bytes."""
    order = sorted(cells(full_box(shape)))
    for piece in split_shape(shape, itemsize, limit):
        assert order[piece.start // itemsize : piece.stop // itemsize] == sorted(cells(piece.box))


@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 200))
def test_pieces_respect_the_limit(shape: tuple[int, ...], itemsize: int, limit: int) -> None:
    """No piece is larger than the limit, unless it is one element."""
    pieces = split_shape(shape, itemsize, limit)
    assert all(piece.stop - piece.start <= limit or box_size(piece.box) == 1 for piece in pieces)


def test_long_row_is_split_within_itself() -> None:
    """A row larger than the limit is split along the next dim."""
    assert [box_shape(piece.box) for piece in split_shape((2, 5), 4, 12)] == [(1, 3), (1, 2), (1, 3), (1, 2)]
