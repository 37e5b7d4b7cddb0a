"""Name and size of an element type, parsed from any spelling that users write; imports neither NumPy nor JAX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mhnb.errors import InvalidRequest

__all__ = ["Dtype", "parse_dtype"]

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
        found = _NAME.fullmatch(self.name)
        if found is None or found[1] not in _SHORT:
            return self.name
        return f"{_SHORT[found[1]]}{found[2]}{found[3] or ''}"


def parse_dtype(value: Any) -> Dtype:
    """Parse a dtype: a name in NumPy's or JAX's spelling, or an object that has a name.

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
            f"dtype {value!r} is none that is known here; give a name like 'float32', 'bf16' or 'int8'",
            dtype=str(value),
        )
    # Types smaller than a byte take one byte per element, as in NumPy and on CPU.
    return Dtype(f"{stem}{found[2]}{found[3] or ''}", max(1, int(found[2]) // 8))


_PYTHON = {"float": "float32", "int": "int32"}
"""JAX's dtypes for Python's own types."""
