"""Pickle a Python value with its arrays taken out, and rebuild it.

The caller decides which objects are arrays and transfers their bytes. This module imports no array library.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MissingDefinition", "PickledValue", "dump_value", "load_value"]


class MissingDefinition(LookupError):
    """A value needs a class or function that this process does not have. `module` and `qualname` name it."""

    def __init__(self, module: str, qualname: str, cause: str) -> None:
        super().__init__(f"{module}.{qualname}: {cause}")
        self.module, self.qualname = module, qualname


@dataclass(frozen=True, slots=True)
class PickledValue:
    """A value without its arrays: the pickle, and the raw buffers that pickle passed out, in order."""

    skeleton: memoryview
    buffers: tuple[memoryview, ...]


class _LeafPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, claim: Callable[[object], int | None], keep: Callable[[Any], None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._find_leaf_number = claim

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
    """Pickle a value without the objects to which `claim` gives a number.

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
        leaves: the objects for which `claim` returned 0, 1, ...
        buffers: the bytes of `PickledValue.buffers`, writable if the value is to be writable.
        main_namespace: where names of `__main__` are looked up; None for the process's own `__main__`.

    Raises:
        NotHere: this process does not have a class or function of the value.

    >>> load_value(dump_value([b"in", "out"], lambda obj: 0 if obj == "out" else None).skeleton, ["leaf"])
    [b'in', 'leaf']
    """
    return _LeafUnpickler(io.BytesIO(skeleton), leaves, buffers, main_namespace).load()
