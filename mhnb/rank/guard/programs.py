"""Programs that this rank compiles and launches, kept for later requests; and a way to forbid launches."""

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

from mhnb.core.guard.programs import CALLBACK_PREFIX
from mhnb.errors import InvalidRequest
from mhnb.rank.guard.launch_recorder import LaunchRecorder

_SHOWN_TYPES = 4
_MESH_LINE = re.compile(r"^ *sdy\.mesh .*$", re.MULTILINE)
_POINTERS = re.compile(
    r'(stablehlo\.custom_call @InspectSharding\([^)]*\) \{[^\n]*?backend_config = )"(?:[^"\\]|\\.)*"'
)
"""Two addresses of this process as raw bytes: of a function of XLA, and of the Python function that it calls."""
_DEEPEST, _LONGEST_VALUE = 8, 200
_JAX_WRAPPER_MODULES = (
    "jax._src.buffer_callback",
    "jax._src.callback",
    "jax._src.custom_partitioning",
    "jax._src.debugging",
)
"""Modules of JAX whose functions and objects only wrap the user's."""
_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)


class _ThreadState(threading.local):
    refusal_reason = ""
    """Why no launch may be made."""


_thread = _ThreadState()


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
        """Return XLA's optimised text."""
        return str(self.executable.hlo_modules()[0].to_string())


def find_meshes(module: str) -> str:
    """Return the lines of a lowered module's text that name meshes; the rest of the text is long."""
    return "\n".join(_MESH_LINE.findall(module))


def canonicalize_module(text: str, host_callbacks: Sequence[Any], kept_alive: Sequence[Any]) -> str:
    """Return a lowered module's text that describes Python objects by what they are, and not by their addresses.

    Args:
        text: StableHLO without locations.
        host_callbacks: the functions that the program calls back; the text names them by their index here.
        kept_alive: objects that XLA calls while it compiles. The text names each by its address.
    """
    # since jax 0.10: `custom_partitioning` writes `str(id(info))` into the module, `inspect_array_sharding` two pointers.
    for each in kept_alive:
        # Only the whole text of an attribute is replaced. Elsewhere such a number is the user's.
        text = text.replace(f'backend_config = "{id(each)}"', f'backend_config = "{_describe_object(each)}"')
    text = _POINTERS.sub(r'\1""', text)
    # A callback that returns nothing into the program does not change its numbers: it may differ, like a print's text.
    returning = ((place, each) for place, each in enumerate(host_callbacks) if _returns_values(each))
    return "\n".join([text, *(f"{CALLBACK_PREFIX} {place}: {describe_callable(each)}" for place, each in returning)])


def _returns_values(callback: Any, depth: int = 0) -> bool:
    """Return whether a host callback returns values to its program. True if JAX does not expose that."""
    cells = _closure_variables(callback)
    if "result_avals" in cells:
        return bool(cells["result_avals"])
    inner = cells.get("callback_without_token")
    return inner is None or depth > _DEEPEST or _returns_values(inner, depth + 1)


def _closure_variables(function: Any) -> dict[str, Any]:
    """Return the variables that a function's closure holds, by name, without cells that are still empty."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the only way to find out
    except ValueError:
        return False
    return True


def describe_callable(value: Any, depth: int = 0) -> str:
    """Describe a callable, in the same words in every process: its name, its code, and the values bound to it.

    Of these values only numbers, texts, other plain constants and further callables count. Any other object counts by its type,
    because two processes have different objects.

    >>> import operator
    >>> describe_callable(functools.partial(operator.add, 2))
    'partial(_operator.add, 2)'
    """
    if depth > _DEEPEST:
        return type(value).__qualname__
    deeper = depth + 1
    match value:
        case functools.partial():
            bound = [_describe_value(each, deeper) for each in value.args]
            bound += [f"{name}={_describe_value(each, deeper)}" for name, each in sorted(value.keywords.items())]
            return f"partial({', '.join([describe_callable(value.func, deeper), *bound])})"
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
    if function.__module__ in _JAX_WRAPPER_MODULES:
        return _describe_wrapper(f"{function.__module__}.{function.__qualname__}", _closure_variables(function), depth)
    bound = [_describe_value(each, depth) for each in function.__defaults__ or ()]
    named = {**(function.__kwdefaults__ or {}), **_closure_variables(function)}
    bound += [f"{name}={_describe_value(each, depth)}" for name, each in sorted(named.items())]
    bound_text = f"[{', '.join(bound)}]" if bound else ""
    digest = hashlib.blake2b(repr(_list_code(function.__code__)).encode(), digest_size=4).hexdigest()
    return f"{function.__module__}.{function.__qualname__}#{digest}{bound_text}"


def _list_code(code: types.CodeType) -> list[Any]:
    """Return what a code object does, without its file and line numbers."""
    constants = [
        _list_code(each) if isinstance(each, types.CodeType) else _describe_value(each) for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return [code.co_code.hex(), constants, names, code.co_argcount, code.co_kwonlyargcount, code.co_flags]


def _describe_value(value: Any, depth: int = 0) -> str:
    # Types are compared exactly: a user's subclass of int may have its own repr.
    if type(value) in _PLAIN_TYPES:
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
        # Sorted by their text: a set's own order changes with the hash seed.
        return f"{{{', '.join(sorted(_describe_value(each, depth + 1) for each in value))}}}"
    return describe_callable(value, depth) if callable(value) else _name_type(value)


def _describe_object(value: Any, depth: int = 0) -> str:
    """Describe an object by its type; a JAX wrapper also by the user's functions in it, another callable by what it does."""
    kind = type(value)
    if depth > _DEEPEST:
        return _name_type(value)
    if kind.__module__.partition(".")[0] == "jax":
        names = [name for name in sorted({*_own_fields(value), *getattr(kind, "__slots__", ())}) if name[:2] != "__"]
        return _describe_wrapper(_name_type(value), {name: getattr(value, name, None) for name in names}, depth + 1)
    call = inspect.getattr_static(kind, "__call__", None)
    if isinstance(call, types.FunctionType):
        return f"{_describe_owner(value, depth)} {describe_callable(call, depth + 1)}"
    if kind.__module__ == "operator":
        # Such as `itemgetter(0)`; this runs only code of the standard library.
        return f"{_name_type(value)}{_describe_value(value.__reduce__()[1], depth + 1)}"
    # Such as a NumPy ufunc. Nothing of a user's class is read, because that may run user code.
    return (
        f"{_name_type(value)} {value.__name__}" if kind.__module__ == "numpy" and callable(value) else _name_type(value)
    )


def _describe_owner(value: Any, depth: int) -> str:
    """Describe an object by its type, the functions that it holds, and the fields of a frozen dataclass, which never change.

    Its other fields may differ by rank.
    """
    kind = type(value)
    frozen = getattr(inspect.getattr_static(kind, "__dataclass_params__", None), "frozen", False)
    declared = inspect.getattr_static(kind, "__dataclass_fields__", {}) if frozen else {}
    held = {
        name: each
        for name, each in sorted(_own_fields(value).items())
        if name in declared or isinstance(each, types.FunctionType | functools.partial)
    }
    text = ", ".join(f"{name}={_describe_value(each, depth + 1)}" for name, each in held.items())
    return f"{_name_type(value)}({text})" if text else _name_type(value)


def _own_fields(value: Any) -> dict[str, Any]:
    """Return an object's own fields, read without running code of its class."""
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _describe_wrapper(name: str, fields: Mapping[str, Any], depth: int) -> str:
    """Describe the user's part of a JAX wrapper; another JAX object by its name and the values bound to it."""
    described = [each for _, each in sorted(fields.items()) if callable(each) or _holds_described(each)]
    text = ", ".join(_describe_value(each, depth) for each in described)
    return text if text and name.rpartition(".")[0].startswith(_JAX_WRAPPER_MODULES) else f"{name}({text})"


def _holds_described(value: Any) -> bool:
    return type(value) is tuple and any(type(each) in _PLAIN_TYPES or callable(each) for each in value)


def _name_type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def find_launched_programs(recorder: LaunchRecorder, seq: int) -> list[tuple[str, int, CompiledProgram]] | None:
    """Return fingerprint, launch count and program of what a cell launched on several ranks; None if another cell has run since."""
    if recorder.ended_seq != seq:
        return None
    counts: dict[str, int] = {}
    for row in recorder.ended_rows:
        counts[row.fingerprint] = counts.get(row.fingerprint, 0) + row.count
    programs = recorder.ended_programs
    # JAX may have dropped a program that C++ launched.
    return [(each, count, programs[each]) for each, count in counts.items() if programs[each] is not None]


@contextmanager
def forbid_launches(reason: str) -> Iterator[None]:
    """Refuse every launch of a program of several ranks in this thread: between cells no other rank would meet it."""
    _thread.refusal_reason = reason
    try:
        yield
    finally:
        _thread.refusal_reason = ""


def check_may_launch(name: str) -> None:
    """Check that launches are not refused in this thread.

    Raises:
        InvalidRequest: they are.
    """
    if _thread.refusal_reason:
        raise InvalidRequest(f"{name} would be launched: {_thread.refusal_reason}")


def ranks_of_devices(devices: Sequence[Any]) -> tuple[int, ...]:
    """Return the rank of each device."""
    return tuple(device.process_index for device in devices)


def format_program_name(unloaded: Any) -> str:
    """Format name and types, as `jit(add) f32[8] → f32[]`."""
    return f"{unloaded.name} {_format_types(unloaded.input_avals)} → {_format_types(unloaded.output_avals)}"


def _format_types(avals: Sequence[Any]) -> str:
    shown = [aval.str_short(short_dtypes=True) for aval in avals[:_SHOWN_TYPES]]
    return ", ".join([*shown, "…"] if len(avals) > _SHOWN_TYPES else shown) or "()"


def optimised_texts(xla_executable: Any, *, with_constants: bool = False) -> list[str] | None:
    """Return XLA's optimised text of a program, with large constants if `with_constants`; None if the plugin does not expose it."""
    try:
        return [
            _format_with_constants(module) if with_constants else module.to_string()
            for module in xla_executable.hlo_modules()
        ]
    except (AttributeError, RuntimeError):
        return None


def _format_with_constants(module: Any) -> str:
    """Format an optimised module with its large constants, which XLA otherwise leaves out."""
    make_options = getattr(sys.modules[type(module).__module__], "HloPrintOptions", None)
    if make_options is None:
        # A private name: without it the text has less detail, which is better than no text.
        return str(module.to_string())
    options = make_options()
    options.print_large_constants = True
    return str(module.to_string(options))
