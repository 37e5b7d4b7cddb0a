"""Pickle values without their arrays, rebuild them, and compare two values.

The caller decides which objects are arrays and transfers their bytes. This module imports no array library.
Two values can be equal although their pickles differ: a set in another order, a shared string. Numbers, strings and containers
are compared by content, arrays by their bytes, everything else by `==`.
"""

from __future__ import annotations

import io
import pickle
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

_BY_IDENTITY: Any = object.__eq__
_REPR_TYPES = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class GlobalArrayPlaceholder:
    """Replaces a global array in comparisons by its number on the rank."""

    index: int


def find_difference(left: object, right: object, pairs: dict[int, int] | None = None) -> str | None:
    """Describe where two values first differ; None if they are equal.

    Args:
        left: a value, arrays included, with `GlobalArrayPlaceholder` for global arrays.
        right: the other one.
        pairs: filled with right's number for each of left's global leaves, matched by position.

    >>> find_difference({"a": {1, 2}, "b": [0.5, 3]}, {"b": [0.5, 4], "a": {2, 1}})
    "['b'][1]: 3 and 4"
    >>> find_difference([float("nan"), {1, 2}], [float("nan"), {2, 1}])
    >>> find_difference(0.0, -0.0)
    '0.0 and -0.0'
    """
    return _Comparison({} if pairs is None else pairs).find_difference("", left, right)


class _Comparison:
    def __init__(self, pairs: dict[int, int]) -> None:
        self._pairs = pairs
        self._in_progress: set[tuple[int, int]] = set()

    def find_difference(self, path: str, left: Any, right: Any) -> str | None:
        if isinstance(left, GlobalArrayPlaceholder) and isinstance(right, GlobalArrayPlaceholder):
            equal = self._pairs.setdefault(left.index, right.index) == right.index
            return None if equal else f"{path}: two arrays and one".lstrip(": ")
        if type(left) is not type(right):
            return _describe_pair(path, left, right)
        key = (id(left), id(right))
        if key in self._in_progress:
            # A value that contains itself is equal unless another part of it differs.
            return None
        self._in_progress.add(key)
        try:
            return self._compare_content(path, left, right)
        finally:
            self._in_progress.discard(key)

    def _compare_content(self, path: str, left: Any, right: Any) -> str | None:
        if isinstance(left, Mapping):
            if unmatched := left.keys() ^ right.keys():
                return f"{path}: only one has the key {min(map(repr, unmatched))}".lstrip(": ")
            return self._find_first((f"{path}[{key!r}]", left[key], right[key]) for key in left)
        if isinstance(left, Sequence) and not isinstance(left, str | bytes | bytearray | memoryview | range):
            if len(left) != len(right):
                return f"{path}: {len(left)} and {len(right)} items".lstrip(": ")
            return self._find_first((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(left, right, strict=True)))
        if hasattr(left, "tobytes") and hasattr(left, "dtype"):
            return None if self._are_arrays_equal(left, right) else _describe_pair(path, left, right)
        if is_dataclass(left):
            names = [field.name for field in fields(left)]
            return self._find_first((f"{path}.{n}", getattr(left, n, None), getattr(right, n, None)) for n in names)
        if type(left).__eq__ is _BY_IDENTITY and hasattr(left, "__dict__"):
            return self.find_difference(f"{path}.__dict__", vars(left), vars(right))
        return None if _are_equal(left, right) else _describe_pair(path, left, right)

    def _are_arrays_equal(self, left: Any, right: Any) -> bool:
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if getattr(left.dtype, "hasobject", False):
            # The bytes of an object array are addresses.
            return self.find_difference("", left.tolist(), right.tolist()) is None
        return bool(left.tobytes() == right.tobytes())

    def _find_first(self, parts: Iterable[tuple[str, Any, Any]]) -> str | None:
        for path, left, right in parts:
            if (found := self.find_difference(path, left, right)) is not None:
                return found
        return None


def _describe_pair(path: str, left: object, right: object) -> str:
    descriptions = [
        reprlib.repr(value) if type(value) in _REPR_TYPES else type(value).__name__ for value in (left, right)
    ]
    text = (
        f"{descriptions[0]} and {descriptions[1]}"
        if descriptions[0] != descriptions[1]
        else f"two {descriptions[0]} of other content"
    )
    return f"{path}: {text}".lstrip(": ")


def _are_equal(left: Any, right: Any) -> bool:
    try:
        # A value that does not equal itself is NaN, of any type.
        is_equal = bool(left == right) or (not bool(left == left) and not bool(right == right))  # noqa: PLR0124
        # 0.0 == -0.0, but 1 / x differs between them. All other equal numbers have the same repr.
        return is_equal and (type(left) not in (float, complex) or repr(left) == repr(right))
    except (TypeError, ValueError):
        # They cannot be compared, or the result is not a truth value, so nothing shows that they are equal.
        return False


# -- pickle a value without its arrays


class MissingDefinition(LookupError):
    """A value needs a class or function that this process lacks."""

    def __init__(self, module: str, qualname: str, cause: str) -> None:
        super().__init__(f"{module}.{qualname}: {cause}")
        self.module, self.qualname = module, qualname


@dataclass(frozen=True, slots=True)
class PickledValue:
    """A value without arrays: its pickle and ordered out-of-band buffers."""

    skeleton: memoryview
    buffers: tuple[memoryview, ...]


class _LeafPickler(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, find_leaf_number: Callable[[object], int | None], keep: Callable[[Any], None]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._find_leaf_number = find_leaf_number

    def persistent_id(self, obj: object) -> int | None:
        return self._find_leaf_number(obj)


class _LeafUnpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, leaves: Sequence[Any], buffers: Sequence[Any], main: Mapping[str, Any] | None
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._leaves, self._main_namespace = leaves, main

    def persistent_load(self, pid: Any) -> Any:
        return self._leaves[pid]

    def find_class(self, module: str, qualname: str) -> Any:
        try:
            if module != "__main__" or self._main_namespace is None:
                return super().find_class(module, qualname)
            first, *rest = qualname.split(".")
            found = self._main_namespace[first]
            for part in rest:
                found = getattr(found, part)
        except (ImportError, AttributeError, KeyError) as error:
            raise MissingDefinition(module, qualname, f"{type(error).__name__}: {error}") from error
        return found


def dump_value(value: object, find_leaf_number: Callable[[object], int | None]) -> PickledValue:
    """Pickle a value without the objects to which `find_leaf_number` gives a number.

    Args:
        value: what to pickle. Errors that it raises while pickling are passed on.
        find_leaf_number: called with every object in the value; returns the number of a leaf that is sent separately, else None.

    >>> dump_value([b"in", "out"], lambda obj: 0 if obj == "out" else None).buffers
    ()
    """
    file = io.BytesIO()
    buffers: list[memoryview] = []
    _LeafPickler(file, find_leaf_number, lambda buffer: buffers.append(buffer.raw())).dump(value)
    return PickledValue(file.getbuffer(), tuple(buffers))


def load_value(
    skeleton: Any, leaves: Sequence[Any], buffers: Sequence[Any] = (), main_namespace: Mapping[str, Any] | None = None
) -> Any:
    """Rebuild the value.

    Args:
        skeleton: the bytes of `PickledValue.skeleton`.
        leaves: the objects for which `find_leaf_number` returned 0, 1, ...
        buffers: the bytes of `PickledValue.buffers`, writable if the value is to be writable.
        main_namespace: where names of `__main__` are looked up; None for the process's own `__main__`.

    Raises:
        MissingDefinition: this process does not have a class or function of the value.

    >>> load_value(dump_value([b"in", "out"], lambda obj: 0 if obj == "out" else None).skeleton, ["leaf"])
    [b'in', 'leaf']
    """
    return _LeafUnpickler(io.BytesIO(skeleton), leaves, buffers, main_namespace).load()
