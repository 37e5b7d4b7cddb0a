"""Compare two Python values whose pickles may differ although they are equal: a set in another order, a shared string.

Numbers, strings and containers are compared by content, arrays by their bytes, everything else by `==`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

__all__ = ["GlobalLeaf", "find_difference"]

_BY_IDENTITY: Any = object.__eq__
_SHOWN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class GlobalLeaf:
    """Stands for a global array while the value around it is compared: the array's number on its rank."""

    index: int


def find_difference(left: object, right: object, pairs: dict[int, int] | None = None) -> str | None:
    """Describe where two values first differ in type or content; None if they are equal. NaN equals NaN.

    Args:
        left: a value, arrays included, with `GlobalLeaf` for global arrays.
        right: the other one.
        pairs: filled with right's number for each of left's global leaves, matched by position.

    >>> find_difference({"a": {1, 2}, "b": [0.5, 3]}, {"b": [0.5, 4], "a": {2, 1}})
    "['b'][1]: 3 and 4"
    >>> find_difference([float("nan"), {1, 2}], [float("nan"), {2, 1}])
    >>> find_difference(0.0, -0.0)
    '0.0 and -0.0'
    """
    return _Comparison({} if pairs is None else pairs).difference("", left, right)


class _Comparison:
    def __init__(self, pairs: dict[int, int]) -> None:
        self._pairs = pairs
        self._under_way: set[tuple[int, int]] = set()

    def difference(self, path: str, left: Any, right: Any) -> str | None:
        if isinstance(left, GlobalLeaf) and isinstance(right, GlobalLeaf):
            equal = self._pairs.setdefault(left.index, right.index) == right.index
            return None if equal else f"{path}: two arrays and one".lstrip(": ")
        if type(left) is not type(right):
            return _tell(path, left, right)
        key = (id(left), id(right))
        if key in self._under_way:
            # A value that contains itself is equal unless another part of it differs.
            return None
        self._under_way.add(key)
        try:
            return self._content(path, left, right)
        finally:
            self._under_way.discard(key)

    def _content(self, path: str, left: Any, right: Any) -> str | None:
        if isinstance(left, Mapping):
            if odd := left.keys() ^ right.keys():
                return f"{path}: only one has the key {min(map(repr, odd))}".lstrip(": ")
            return self._first((f"{path}[{key!r}]", left[key], right[key]) for key in left)
        if isinstance(left, Sequence) and not isinstance(left, str | bytes | bytearray | memoryview | range):
            if len(left) != len(right):
                return f"{path}: {len(left)} and {len(right)} items".lstrip(": ")
            return self._first((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(left, right, strict=True)))
        if hasattr(left, "tobytes") and hasattr(left, "dtype"):
            return None if self._arrays(left, right) else _tell(path, left, right)
        if is_dataclass(left):
            names = [field.name for field in fields(left)]
            return self._first((f"{path}.{n}", getattr(left, n, None), getattr(right, n, None)) for n in names)
        if type(left).__eq__ is _BY_IDENTITY and hasattr(left, "__dict__"):
            return self.difference(f"{path}.__dict__", vars(left), vars(right))
        return None if _equal(left, right) else _tell(path, left, right)

    def _arrays(self, left: Any, right: Any) -> bool:
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if getattr(left.dtype, "hasobject", False):
            # The bytes of an object array are addresses.
            return self.difference("", left.tolist(), right.tolist()) is None
        return bool(left.tobytes() == right.tobytes())

    def _first(self, parts: Iterable[tuple[str, Any, Any]]) -> str | None:
        for path, left, right in parts:
            if (found := self.difference(path, left, right)) is not None:
                return found
        return None


def _tell(path: str, left: object, right: object) -> str:
    words = [reprlib.repr(value) if type(value) in _SHOWN else type(value).__name__ for value in (left, right)]
    told = f"{words[0]} and {words[1]}" if words[0] != words[1] else f"two {words[0]} of other content"
    return f"{path}: {told}".lstrip(": ")


def _equal(left: Any, right: Any) -> bool:
    try:
        # A value that does not equal itself is NaN, of any type.
        alike = bool(left == right) or (not bool(left == left) and not bool(right == right))  # noqa: PLR0124
        # 0.0 == -0.0, but 1 / x differs between them. All other equal numbers have the same repr.
        return alike and (type(left) not in (float, complex) or repr(left) == repr(right))
    except (TypeError, ValueError):
        # They cannot be compared, or the result is not a truth value, so nothing shows that they are equal.
        return False
