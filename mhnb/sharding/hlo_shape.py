"""Parse shapes in HLO text, `f32[8,4]{1,0:T(8,128)}` and tuples of those, to compute their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mhnb.errors import UnknownForm

__all__ = ["HloShape", "Tree", "flatten", "parse_shape", "split_shape"]

_NBITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_NUMBERED = re.compile(r"(?:bf|f|s|u)(\d+)(?:e\d+m\d+\w*)?$")
_SMALL = re.compile(r"f(\d+)e\d+m\d+\w*$")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\]|(token|opaque)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, slots=True)
class HloShape:
    """An array on one device, as `f32[8,4]`."""

    dtype: str
    """HLO's name, as bf16 or pred."""
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes without padding; types under 8 bits are counted packed, as XLA sends them."""
        return (prod(self.dims) * _nbits(self.dtype) + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Tree = HloShape | tuple["Tree", ...]
"""A shape, or a tuple of them, nested."""


def flatten(tree: Tree) -> Iterator[HloShape]:
    """Yield the arrays of a shape in order.

    >>> [str(shape) for shape in flatten(parse_shape("((f32[8]{0}), u32[])"))]
    ['f32[8]', 'u32[]']
    """
    if isinstance(tree, HloShape):
        yield tree
    else:
        for part in tree:
            yield from flatten(part)


def split_shape(text: str) -> tuple[str, str]:
    """Split the shape off the beginning of an instruction's text; return it and the rest.

    >>> split_shape("(f32[8]{0}, u32[]{:T(128)}) send(%x)")
    ('(f32[8]{0}, u32[]{:T(128)})', 'send(%x)')
    """
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: index + 1], text[index + 2 :]
    raise _unknown(text, "its parentheses do not close")


@lru_cache(maxsize=4096)
def parse_shape(text: str) -> Tree:
    """Parse a shape, ignoring layouts, tilings and memory spaces.

    Raises:
        UnknownForm: the text is not a shape, or has an element type of unknown size or a dimension unknown at compile time.

    >>> str(parse_shape("bf16[8,4]{1,0:T(8,128)(2,1)}"))
    'bf16[8,4]'
    """
    text = _COMMENT.sub("", text).strip()
    if text.startswith("("):
        return tuple(parse_shape(part) for part in _split_tuple(text))
    found = _ARRAY.match(text)
    if found is None:
        raise _unknown(text, "it is no shape")
    dtype = found[1] or found[3]
    # `<=8` is a dimension of at most 8: XLA allocates and sends all 8.
    words = [word.strip().removeprefix("<=") for word in (found[2] or "").split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise _unknown(text, "a dimension is no number")
    _nbits(dtype)
    return HloShape(dtype, tuple(int(word) for word in words))


def _split_tuple(text: str) -> Iterator[str]:
    depth, start = 0, 1
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            if part := text[start:index].strip():
                yield part
            start = index + 1
        if depth == 0:
            return


@lru_cache(maxsize=128)
def _nbits(dtype: str) -> int:
    if dtype in _NBITS:
        return _NBITS[dtype]
    found = _SMALL.match(dtype) or _NUMBERED.match(dtype)
    if found is None:
        raise _unknown(dtype, "the size of its elements is not known")
    return int(found[1])


def _unknown(text: str, why: str) -> UnknownForm:
    form = text[:120]
    return UnknownForm(
        f"cannot read the shape {form!r}: {why}. Nothing is guessed; report the text with the version of JAX", form=form
    )
