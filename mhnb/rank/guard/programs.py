"""What is kept of the programs that this rank compiles and launches, to be asked about later, and when none may be launched."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mhnb.core.guard.outlines import CALLBACK
from mhnb.errors import InvalidRequest
from mhnb.rank.guard.launches import LaunchRecorder

__all__ = [
    "CompiledProgram",
    "check_may_launch",
    "describe_callable",
    "find_meshes",
    "full_name",
    "identify_module",
    "launched_programs",
    "no_launches",
    "optimised_texts",
    "ranks_of_devices",
]

_SHOWN_TYPES = 4
_MESH_LINE = re.compile(r"^ *sdy\.mesh .*$", re.MULTILINE)
_POINTERS = re.compile(
    r'(stablehlo\.custom_call @InspectSharding\([^)]*\) \{[^\n]*?backend_config = )"(?:[^"\\]|\\.)*"'
)
"""Two addresses of this process as raw bytes: of a function of XLA's, and of the Python function that it calls."""
_DEEPEST, _LONGEST_VALUE = 8, 200
_PLUMBING = ("jax._src.buffer_callback", "jax._src.callback", "jax._src.custom_partitioning", "jax._src.debugging")
"""Modules of JAX whose functions and objects only hold the user's."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)


class _Thread(threading.local):
    refusing = ""
    """Why no launch may be made."""


_thread = _Thread()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CompiledProgram:
    """A compiled program of several ranks."""

    name: str
    """As `jit(step)`."""
    ranks: tuple[int, ...]
    """The rank of each position of the device assignment."""
    platform: str
    meshes: str
    """The lines of the lowered module that name its meshes."""
    executable: Any

    def text(self) -> str:
        """XLA's optimised text."""
        return str(self.executable.hlo_modules()[0].to_string())


def find_meshes(module: str) -> str:
    """Cut the lines that name meshes out of a lowered module's text; the rest of it is long."""
    return "\n".join(_MESH_LINE.findall(module))


def identify_module(text: str, host_callbacks: Sequence[Any], kept_alive: Sequence[Any]) -> str:
    """Return a lowered module's text in which Python objects are named by what they are, and not by their addresses.

    Args:
        text: StableHLO without locations.
        host_callbacks: the functions that the program calls back, which the text names by their place here.
        kept_alive: objects that XLA calls while it compiles. The text names each by its address.
    """
    # since jax 0.10: `custom_partitioning` writes `str(id(info))` into the module, `inspect_array_sharding` two pointers.
    for each in kept_alive:
        # The whole text of an attribute. Elsewhere such a number is the user's.
        text = text.replace(f'backend_config = "{id(each)}"', f'backend_config = "{_describe_object(each)}"')
    text = _POINTERS.sub(r'\1""', text)
    # What returns nothing into the program does not change its numbers: such callbacks may differ, as a print's words do.
    returning = ((place, each) for place, each in enumerate(host_callbacks) if _returns_values(each))
    return "\n".join([text, *(f"{CALLBACK} {place}: {describe_callable(each)}" for place, each in returning)])


def _returns_values(callback: Any, depth: int = 0) -> bool:
    """Whether a host callback gives values to its program. True where JAX does not say."""
    cells = _cells(callback)
    if "result_avals" in cells:
        return bool(cells["result_avals"])
    inner = cells.get("callback_without_token")
    return inner is None or depth > _DEEPEST or _returns_values(inner, depth + 1)


def _cells(function: Any) -> dict[str, Any]:
    """What a function has taken from around it, by name; cells that are still empty are left out."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - to read it is the only way to find out
    except ValueError:
        return False
    return True


def describe_callable(value: Any, depth: int = 0) -> str:
    """Return what a callable is, in words that are the same in every process: its name, its code, what it was made with.

    Of what it was made with only numbers, texts, other plain constants and further callables count.
    Of any other object its type does, since two processes have objects of their own.

    >>> import operator
    >>> describe_callable(functools.partial(operator.add, 2))
    'partial(_operator.add, 2)'
    """
    if depth > _DEEPEST:
        return type(value).__qualname__
    deeper = depth + 1
    match value:
        case functools.partial():
            given = [_describe_value(each, deeper) for each in value.args]
            given += [f"{name}={_describe_value(each, deeper)}" for name, each in sorted(value.keywords.items())]
            return f"partial({', '.join([describe_callable(value.func, deeper), *given])})"
        case types.MethodType():
            return f"{describe_callable(value.__func__, deeper)} of {_describe_owner(value.__self__, deeper)}"
        case types.FunctionType():
            return _describe_function(value, deeper)
        case type():
            return f"{value.__module__}.{value.__qualname__}"
        case _ if (wrapped := _own_fields(value).get("__wrapped__")) is not None:
            return f"{type(value).__qualname__}({describe_callable(wrapped, deeper)})"
        case types.BuiltinFunctionType():
            return f"{value.__module__ or _name_type(value.__self__)}.{value.__qualname__}"
    return _describe_object(value, deeper)


def _describe_function(function: types.FunctionType, depth: int) -> str:
    if function.__module__ in _PLUMBING:
        return _describe_held(f"{function.__module__}.{function.__qualname__}", _cells(function), depth)
    given = [_describe_value(each, depth) for each in function.__defaults__ or ()]
    named = {**(function.__kwdefaults__ or {}), **_cells(function)}
    given += [f"{name}={_describe_value(each, depth)}" for name, each in sorted(named.items())]
    made_with = f"[{', '.join(given)}]" if given else ""
    digest = hashlib.blake2b(repr(_list_code(function.__code__)).encode(), digest_size=4).hexdigest()
    return f"{function.__module__}.{function.__qualname__}#{digest}{made_with}"


def _list_code(code: types.CodeType) -> list[Any]:
    """What a code object does, without the file and the lines that it stands in."""
    constants = [
        _list_code(each) if isinstance(each, types.CodeType) else _describe_value(each) for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return [code.co_code.hex(), constants, names, code.co_argcount, code.co_kwonlyargcount, code.co_flags]


def _describe_value(value: Any, depth: int = 0) -> str:
    # Types are compared exactly: an int of the user's own may have a repr of its own.
    if type(value) in _PLAIN:
        text = repr(value)
        if len(text) > _LONGEST_VALUE:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            return f"{text[: _LONGEST_VALUE // 2]}…#{digest}"
        return text
    if isinstance(value, enum.Enum):
        return f"{_name_type(value)}.{value.name}"
    if isinstance(value, np.generic) and type(value).__module__ == "numpy":
        return f"{_name_type(value)} {value.tobytes().hex()}"
    if type(value) is tuple and depth <= _DEEPEST:
        return f"({', '.join(_describe_value(each, depth + 1) for each in value)})"
    if type(value) is frozenset and depth <= _DEEPEST:
        # In the order of their words: a set's own order changes with the hash seed.
        return f"{{{', '.join(sorted(_describe_value(each, depth + 1) for each in value))}}}"
    return describe_callable(value, depth) if callable(value) else _name_type(value)


def _describe_object(value: Any, depth: int = 0) -> str:
    """Its type; of what JAX makes around the user's functions also those, and of another callable what it does."""
    kind = type(value)
    if depth > _DEEPEST:
        return _name_type(value)
    if kind.__module__.partition(".")[0] == "jax":
        names = [name for name in sorted({*_own_fields(value), *getattr(kind, "__slots__", ())}) if name[:2] != "__"]
        return _describe_held(_name_type(value), {name: getattr(value, name, None) for name in names}, depth + 1)
    call = inspect.getattr_static(kind, "__call__", None)
    if isinstance(call, types.FunctionType):
        return f"{_describe_owner(value, depth)} {describe_callable(call, depth + 1)}"
    if kind.__module__ == "operator":
        # As `itemgetter(0)`; code of the standard library alone.
        return f"{_name_type(value)}{_describe_value(value.__reduce__()[1], depth + 1)}"
    # As a ufunc of NumPy's. Of a class of the user's own nothing is read: that may run code of theirs.
    return (
        f"{_name_type(value)} {value.__name__}" if kind.__module__ == "numpy" and callable(value) else _name_type(value)
    )


def _describe_owner(value: Any, depth: int) -> str:
    """Return an object's type, the functions that it holds, and the fields of a frozen dataclass: they stay what they are.

    Its other fields may be the rank's own.
    """
    kind = type(value)
    frozen = getattr(inspect.getattr_static(kind, "__dataclass_params__", None), "frozen", False)
    declared = inspect.getattr_static(kind, "__dataclass_fields__", {}) if frozen else {}
    held = {
        name: each
        for name, each in sorted(_own_fields(value).items())
        if name in declared or isinstance(each, types.FunctionType | functools.partial)
    }
    told = ", ".join(f"{name}={_describe_value(each, depth + 1)}" for name, each in held.items())
    return f"{_name_type(value)}({told})" if told else _name_type(value)


def _own_fields(value: Any) -> dict[str, Any]:
    """An object's own fields, read without running code of its class."""
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _describe_held(name: str, fields: Mapping[str, Any], depth: int) -> str:
    """Return what the user's part of JAX's plumbing is; of another object of JAX's, its name and what it was made with."""
    held = [each for _, each in sorted(fields.items()) if callable(each) or _holds_told(each)]
    told = ", ".join(_describe_value(each, depth) for each in held)
    return told if told and name.rpartition(".")[0].startswith(_PLUMBING) else f"{name}({told})"


def _holds_told(value: Any) -> bool:
    return type(value) is tuple and any(type(each) in _PLAIN or callable(each) for each in value)


def _name_type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def launched_programs(recorder: LaunchRecorder, seq: int) -> list[tuple[str, int, CompiledProgram]] | None:
    """Fingerprint, launches and program of what a cell launched on several ranks; None where another cell has run since."""
    if recorder.ended_seq != seq:
        return None
    counts: dict[str, int] = {}
    for fingerprint, _, _, _, count in recorder.ended_rows:
        counts[fingerprint] = counts.get(fingerprint, 0) + count
    programs = recorder.ended_programs
    # JAX may have let go of one that C++ launched.
    return [(each, count, programs[each]) for each, count in counts.items() if programs[each] is not None]


@contextmanager
def no_launches(why: str) -> Iterator[None]:
    """Refuse, in this thread, every launch of a program of several ranks: between cells no other rank would meet it."""
    _thread.refusing = why
    try:
        yield
    finally:
        _thread.refusing = ""


def check_may_launch(name: str) -> None:
    """Hold that launches are not refused here.

    Raises:
        InvalidRequest: they are.
    """
    if _thread.refusing:
        raise InvalidRequest(f"{name} would be launched: {_thread.refusing}")


def ranks_of_devices(devices: Sequence[Any]) -> tuple[int, ...]:
    """The rank of each device."""
    return tuple(device.process_index for device in devices)


def full_name(unloaded: Any) -> str:
    """Name and types, as `jit(add) f32[8] → f32[]`."""
    return f"{unloaded.name} {_types(unloaded.input_avals)} → {_types(unloaded.output_avals)}"


def _types(avals: Sequence[Any]) -> str:
    shown = [aval.str_short(short_dtypes=True) for aval in avals[:_SHOWN_TYPES]]
    return ", ".join([*shown, "…"] if len(avals) > _SHOWN_TYPES else shown) or "()"


def optimised_texts(xla_executable: Any, *, whole: bool = False) -> list[str] | None:
    """Give what XLA made of a program, with large constants if `whole`; None from a plugin that does not give it away."""
    try:
        return [_print_whole(module) if whole else module.to_string() for module in xla_executable.hlo_modules()]
    except (AttributeError, RuntimeError):
        return None


def _print_whole(module: Any) -> str:
    """Write an optimised module with its large constants, which XLA leaves out otherwise."""
    make_options = getattr(sys.modules[type(module).__module__], "HloPrintOptions", None)
    if make_options is None:
        # A private name: without it the text says less, and more than none.
        return str(module.to_string())
    options = make_options()
    options.print_large_constants = True
    return str(module.to_string(options))
