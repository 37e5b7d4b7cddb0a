"""Convert NumPy arrays to bytes and back, without importing JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def is_plain_array(obj: object) -> bool:
    """Return whether an object is a NumPy array defined by its bytes."""
    import numpy as np

    # Left to pickle: subclasses have more than bytes, records need their field names, and objects are addresses.
    return (
        type(obj) is np.ndarray and not obj.dtype.hasobject and obj.dtype.names is None and obj.dtype.metadata is None
    )


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype: `float32`, `bfloat16`, `>f4`, `<U5`."""
    # 2 marks a type that a library added, here ml_dtypes; its `str` is only a size.
    named = dtype.isbuiltin == 2 or (dtype.kind in "biufc" and dtype.isnative)
    return dtype.name if named else dtype.str


def dtype_from_name(name: str) -> np.dtype[Any]:
    """Return the dtype for a name from `dtype_name`, including types of ml_dtypes."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


def memory_order(array: np.ndarray[Any, Any]) -> str:
    """Return the memory order of an array: `F` for column-major, else `C`."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def memory_layout(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or its transpose if it is column-major."""
    return array.T if memory_order(array) == "F" else array


def raw_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes in row-major order, copied only if necessary."""
    import numpy as np

    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def new_bytes(nbytes: int) -> memoryview:
    """Allocate writable memory; its initial content is undefined."""
    import numpy as np

    return raw_bytes(np.empty(nbytes, np.uint8))


def view_as(data: Any, shape: Sequence[int], dtype: np.dtype[Any], order: str = "C") -> np.ndarray[Any, Any]:
    """View bytes as an array, writable if the bytes are."""
    import numpy as np

    if order == "F":
        return np.ndarray(tuple(shape), dtype, buffer=data, order="F")
    return np.ndarray(tuple(shape), dtype, buffer=data)
