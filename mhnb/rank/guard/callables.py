"""Identity of the Python functions that programs call: code and bound values.

Equal functions have equal descriptions in every process. No code of a user's class runs: fields are read where they are stored.
The description is of one moment, when a program is compiled. What an object becomes later is not seen.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mhnb.core.guard.provenance import ANY
from mhnb.rank.guard.hashing import hash_bytes
from mhnb.rank.guard.provenance import read_tags

__all__ = ["per_rank"]

_DEEPEST, _LONGEST_VALUE, _LONGEST_TEXT = 8, 200, 1000
"""Most levels of values in values; characters of a plain value, and of a container or an object, from which a hash is shown."""
_MOST_ITEMS = 100_000
"""Most values that count in one callable: beyond that, only types do."""
_MOST_HASHED_NBYTES = 256 * 2**20
"""Of a larger array only evenly spaced rows count."""
_MOST_SHOWN_ELEMENTS = 4
_JAX_WRAPPER_MODULES = (
    "jax._src.buffer_callback",
    "jax._src.callback",
    "jax._src.custom_partitioning",
    "jax._src.debugging",
)
"""Modules of JAX whose functions and objects only wrap the user's."""
_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)
_COPIES: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    tuple: tuple.__iter__,
    list: list.copy,
    deque: deque.copy,
    dict: lambda container: dict.copy(container).items(),
    frozenset: frozenset.copy,
    set: set.copy,
}
"""How the items of a container are read, whatever a subclass defines."""
_VALUE_MODULES = ("datetime", "decimal", "fractions", "pathlib", "uuid", "zoneinfo")
"""Modules of the standard library whose objects are values with a complete `repr`."""
_FIELD_CLASSES = ("types.SimpleNamespace", "argparse.Namespace")
_STATELESS_MODULES = ("abc", "builtins", "collections", "contextlib", "dataclasses", "enum", "typing")
"""Modules of the standard library whose base classes add no fields."""
_VARIABLE_OPERATIONS = ("FAST", "DEREF", "CLOSURE", "CELL")


@dataclass(frozen=True, slots=True)
class PerRank:
    """A host callback whose values belong to its rank.

    Equal functions are one callback, so JAX traces it once.
    """

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def per_rank(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that the values of a host callback belong to its rank.

    The guard refuses a program whose callback holds other values on another rank, for example other rows of the data. Pass the result
    to `jax.pure_callback` or `io_callback` instead: then only the callback's code is compared, and neither the values bound to it nor
    the arrays that the program computes. The cell says so.

    Args:
        callback: the function that the program calls.

    >>> per_rank(abs)(-2)
    2
    """
    return PerRank(callback)


class _Reader(NamedTuple):
    """The code that a value is bound to, and its name there."""

    code: types.CodeType
    variable: str


def describe_callable(value: Any) -> str:
    """Describe a callable identically in every process: name, code, bound values.

    Bound are closure, defaults, arguments of a partial, and the fields of a method's object that the method reads. Numbers, texts,
    arrays, containers of them and objects with fields count by value; any other object by its type.

    >>> import operator
    >>> describe_callable(functools.partial(operator.add, 2))
    'partial(_operator.add, 2)'
    """
    return _Describer().describe_callable(value, 0)


def describe_object(value: Any) -> str:
    """Describe an object as `describe_callable` describes one bound to a function."""
    return _Describer().describe_object(value, 0)


def returns_values(callback: Any, depth: int = 0) -> bool:
    """Return whether a host callback returns values; True if JAX hides it."""
    cells = _closure_variables(callback)
    if "result_avals" in cells:
        return bool(cells["result_avals"])
    inner = cells.get("callback_without_token")
    return inner is None or depth > _DEEPEST or returns_values(inner, depth + 1)


def is_per_rank(callback: Any) -> bool:
    """Return whether the user declared a host callback with `per_rank`."""
    for _ in range(_DEEPEST):
        cells = _closure_variables(callback)
        callback = cells.get("callback_without_token", cells.get("callback"))
        if not isinstance(callback, types.FunctionType):
            return isinstance(getattr(callback, "callback_func", None), PerRank)
    return False


def _closure_variables(function: Any) -> dict[str, Any]:
    """Return a function's closure variables by name, without empty cells."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the only way to find out
    except ValueError:
        return False
    return True


class _Describer:
    """Describes one callable. Each object in it is described once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, str]] = {}
        """Object and description by what identifies them: the object is kept, because another one could get its address."""
        self._items_left = _MOST_ITEMS

    def describe_callable(self, value: Any, depth: int, reader: _Reader | None = None) -> str:
        """Describe a callable that is bound to `reader`."""
        if depth > _DEEPEST:
            return type(value).__qualname__
        deeper, kind = depth + 1, type(value)
        if kind is PerRank:
            return f"per_rank {_describe_code(value.function)}"
        if issubclass(kind, functools.partial):
            return self._describe_partial(value, deeper)
        if kind is types.MethodType:
            reader = _make_reader(value.__func__, 0)
            owner = self._describe_once(value.__self__, deeper, reader, self._describe_owner)
            return f"{self.describe_callable(value.__func__, deeper)} of {owner}"
        if kind is types.FunctionType:
            return self._describe_once(value, deeper, None, self._describe_function)
        if issubclass(kind, type):
            return f"{value.__module__}.{value.__qualname__}"
        if (wrapped := _own_fields(value).get("__wrapped__")) is not None and not _has_fields(kind):
            return f"{kind.__qualname__}({self.describe_callable(wrapped, deeper)})"
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            return self._describe_builtin(value, deeper)
        return self.describe_object(value, deeper, reader)

    def _describe_partial(self, value: functools.partial[Any], depth: int) -> str:
        bound = [
            self.describe_value(each, depth, _make_reader(value.func, place)) for place, each in enumerate(value.args)
        ]
        bound += [f"{name}={self.describe_value(each, depth)}" for name, each in sorted(value.keywords.items())]
        return f"partial({', '.join([self.describe_callable(value.func, depth), *bound])})"

    def _describe_builtin(self, value: Any, depth: int) -> str:
        owner = value.__self__
        if owner is None or issubclass(type(owner), (types.ModuleType, type)):
            return f"{getattr(value, '__module__', None) or _name_type(owner)}.{value.__qualname__}"
        return f"{value.__qualname__} of {self.describe_value(owner, depth)}"

    def _describe_function(self, function: types.FunctionType, depth: int, _reader: _Reader | None) -> str:
        if function.__module__ in _JAX_WRAPPER_MODULES:
            name = f"{function.__module__}.{function.__qualname__}"
            return self._describe_wrapper(name, _closure_variables(function), depth)
        bound = [self.describe_value(each, depth) for each in function.__defaults__ or ()]
        bound += [
            f"{name}={self.describe_value(each, depth)}"
            for name, each in sorted((function.__kwdefaults__ or {}).items())
        ]
        bound += [
            f"{name}={self.describe_value(each, depth, _Reader(function.__code__, name))}"
            for name, each in sorted(_closure_variables(function).items())
        ]
        return _describe_code(function) + (f"[{', '.join(bound)}]" if bound else "")

    def describe_value(self, value: Any, depth: int, reader: _Reader | None = None) -> str:
        """Describe a value that is bound to `reader`."""
        self._items_left -= 1
        if (text := _describe_plain(value)) is not None:
            return text
        kind = type(value)
        if depth > _DEEPEST or (reader is not None and _is_only_written(value, reader)):
            return _name_type(value)
        if issubclass(kind, np.ndarray):
            return self._describe_array(value, depth)
        if issubclass(kind, tuple(_COPIES)):
            return self._describe_once(value, depth, None, self._describe_container)
        if _is_jax_array(value):
            return self._describe_jax_array(value, depth)
        describe = self.describe_callable if callable(value) else self.describe_object
        return describe(value, depth, reader)

    def _describe_once(
        self, value: Any, depth: int, reader: _Reader | None, describe: Callable[[Any, int, _Reader | None], str]
    ) -> str:
        """Describe an object that may contain itself, or be in several places."""
        key = (id(value), reader and (id(reader.code), reader.variable), describe.__name__)
        if key not in self._known:
            self._known[key] = value, f"{_name_type(value)} that contains this"
            self._known[key] = value, _shorten(describe(value, depth, reader), _LONGEST_TEXT)
        return self._known[key][1]

    def _describe_container(self, value: Any, depth: int, _reader: _Reader | None) -> str:
        kind = next(each for each in _COPIES if issubclass(type(value), each))
        # One step of Python's own: another thread may change the container meanwhile.
        items = list(_COPIES[kind](value))
        deeper, is_ordered, most = depth + 1, kind in (tuple, list, deque), max(self._items_left, 0)
        if (rest := len(items) - most) > 0:
            # The order of a set depends on the process, so only its size counts.
            items = items[:most] if is_ordered or kind is dict else []
        if kind is dict:
            texts = [f"{self.describe_value(k, deeper)}: {self.describe_value(v, deeper)}" for k, v in items]
        else:
            texts = [self.describe_value(each, deeper) for each in items]
        if not is_ordered:
            # Sorted by their text: a set's own order changes with the hash seed, and a dict's with the order of its making.
            texts.sort()
        texts += [f"{rest} more"] if rest > 0 else []
        opened, closed = "()" if kind is tuple else "[]" if is_ordered else "{}"
        name = "" if type(value) is kind else _name_type(value)
        return f"{name}{opened}{', '.join(texts)}{closed}"

    def _describe_array(self, array: np.ndarray[Any, Any], depth: int) -> str:
        # A subclass may define what its methods do.
        plain = np.ndarray.view(array, np.ndarray)
        kind = f"{plain.dtype}{list(plain.shape)}"
        if plain.dtype.hasobject or plain.dtype.kind == "T":
            return f"{kind} {self.describe_value(plain.tolist(), depth + 1)}"
        if plain.size <= _MOST_SHOWN_ELEMENTS and plain.dtype.kind in "biufc":
            return f"{kind} {plain.ravel().tolist()}"
        if plain.nbytes > _MOST_HASHED_NBYTES:
            plain = plain[:: -(-plain.nbytes // _MOST_HASHED_NBYTES)]
        return f"{kind} #{hash_bytes(np.ascontiguousarray(plain).reshape(-1).view(np.uint8)):016x}"

    def _describe_jax_array(self, array: Any, depth: int) -> str:
        import jax

        if isinstance(array, jax.core.Tracer) or array.is_deleted():
            return f"{array.dtype}{list(array.shape)}"
        dtypes: Any = jax.dtypes
        if dtypes.issubdtype(array.dtype, dtypes.prng_key):
            array = jax.random.key_data(array)
        if not (array.is_fully_addressable or array.is_fully_replicated):
            ((tag, _, _),) = read_tags([array])
            return f"{array.dtype}{list(array.shape)} tag {0 if tag == ANY else tag:x}"
        # If it is still computed, this waits. If the user forbids copies from devices, this one is not the program's.
        with jax.transfer_guard("allow"):
            whole = array.addressable_data(0) if array.is_fully_replicated else array
            return self._describe_array(np.asarray(whole), depth)

    def describe_object(self, value: Any, depth: int, reader: _Reader | None = None) -> str:
        """Describe an object by its type and the fields that count."""
        return self._describe_once(value, depth, reader, self._describe_object)

    def _describe_object(self, value: Any, depth: int, reader: _Reader | None) -> str:
        kind = type(value)
        if depth > _DEEPEST:
            return _name_type(value)
        if kind.__module__.partition(".")[0] == "jax":
            names = [
                name for name in sorted({*_own_fields(value), *getattr(kind, "__slots__", ())}) if name[:2] != "__"
            ]
            fields = {name: getattr(value, name, None) for name in names}
            return self._describe_wrapper(_name_type(value), fields, depth + 1)
        call = inspect.getattr_static(kind, "__call__", None)
        if isinstance(call, types.FunctionType):
            owner = self._describe_owner(value, depth, reader or _make_reader(call, 0))
            return f"{owner} {self.describe_callable(call, depth + 1)}"
        if kind.__module__ == "operator":
            # Such as `itemgetter(0)`; this runs only code of the standard library.
            return f"{_name_type(value)}{self.describe_value(value.__reduce__()[1], depth + 1)}"
        if kind.__module__ == "numpy" and callable(value):
            return f"{_name_type(value)} {value.__name__}"
        return self._describe_owner(value, depth, reader)

    def _describe_owner(self, value: Any, depth: int, reader: _Reader | None) -> str:
        """Describe an object by type and by the fields its reader reads.

        Fields of the standard library are state, such as locks, files and loggers: only functions in them count.
        """
        if issubclass(type(value), type):
            return f"{value.__module__}.{value.__qualname__}"
        if (plain := _describe_plain(value)) is not None:
            return plain
        has_fields = _has_fields(type(value))
        uses = _find_used_fields(reader, type(value)) if reader else None
        text = ", ".join(
            f"{name}={self.describe_value(each, depth + 1)}"
            for name, each in sorted(_all_fields(value).items())
            if (has_fields or type(each) in (types.FunctionType, functools.partial))
            and (uses is None or name in uses.read or (name in uses.written and type(each) not in _ADDED_TO))
        )
        return f"{_name_type(value)}({text})" if text else _name_type(value)

    def _describe_wrapper(self, name: str, fields: Mapping[str, Any], depth: int) -> str:
        """Describe the user's part of a JAX wrapper, or another JAX object."""
        described = [each for _, each in sorted(fields.items()) if callable(each) or _holds_described(each)]
        text = ", ".join(self.describe_value(each, depth) for each in described)
        return text if text and name.rpartition(".")[0].startswith(_JAX_WRAPPER_MODULES) else f"{name}({text})"


# -- parts of a description


def _describe_plain(value: Any) -> str | None:
    """Describe a value without parts; None if it has some."""
    # `isinstance` would ask the object for its class.
    kind, name = type(value), _name_type(value)
    module = kind.__module__.partition(".")[0]
    if issubclass(kind, enum.Enum):
        return f"{name}.{value.name}"
    if issubclass(kind, np.generic) and module == "numpy":
        return f"{name} {value.tobytes().hex()}"
    plain: Any
    for plain in _PLAIN_TYPES:
        if issubclass(kind, plain):
            # A user's subclass of int may have its own repr.
            text = plain.__repr__(value)
            return _shorten(text if kind is plain else f"{name} {text}", _LONGEST_VALUE)
    if kind is types.ModuleType:
        return f"module {value.__name__}"
    if kind in (bytearray, memoryview) or name == "array.array":
        return f"{name} #{hash_bytes(bytes(value)):016x}"
    is_value = kind is range or issubclass(kind, np.dtype) or module in _VALUE_MODULES
    return _shorten(repr(value), _LONGEST_VALUE) if is_value else None


def _shorten(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: longest // 2]}…#{digest}"


def _describe_code(function: Any) -> str:
    """Describe the code of a callable without the values bound to it."""
    while (inner := _find_inner(function)) is not None:
        function = inner
    if type(function) is types.FunctionType:
        digest = hashlib.blake2b(repr(_list_code(function.__code__)).encode(), digest_size=4).hexdigest()
        return f"{function.__module__}.{function.__qualname__}#{digest}"
    # Nothing of a user's object is read, because that may run user code.
    is_named = type(function).__module__ in ("builtins", "numpy")
    return f"{_name_type(function)} {function.__name__}" if is_named else _name_type(function)


def _find_inner(function: Any) -> Any:
    kind = type(function)
    if kind is PerRank:
        return function.function
    if issubclass(kind, functools.partial):
        return function.func
    if kind is types.MethodType:
        return function.__func__
    if kind is types.FunctionType or issubclass(kind, type):
        return None
    call = inspect.getattr_static(kind, "__call__", None)
    return call if isinstance(call, types.FunctionType) else _own_fields(function).get("__wrapped__")


def _list_code(code: types.CodeType) -> list[Any]:
    """Return what a code object does, without its file and line numbers."""
    constants = [
        _list_code(each) if isinstance(each, types.CodeType) else _Describer().describe_value(each, 0)
        for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return [code.co_code.hex(), constants, names, code.co_argcount, code.co_kwonlyargcount, code.co_flags]


def _is_jax_array(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and type(value).__module__.startswith("jax") and isinstance(value, jax.Array)


def _holds_described(value: Any) -> bool:
    return type(value) is tuple and any(type(each) in _PLAIN_TYPES or callable(each) for each in value)


def _name_type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# -- fields of objects


def _has_fields(kind: type) -> bool:
    """Return whether a type's fields count; not for stdlib, NumPy and JAX."""
    if f"{kind.__module__}.{kind.__qualname__}" in _FIELD_CLASSES:
        return True
    modules = {base.__module__.partition(".")[0] for base in kind.__mro__}.difference(_STATELESS_MODULES)
    return bool(modules) and not modules.intersection({*sys.stdlib_module_names, "jax", "jaxlib", "numpy"})


def _own_fields(value: Any) -> dict[str, Any]:
    """Return an object's own fields, read without running code of its class."""
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _all_fields(value: Any) -> dict[str, Any]:
    """Return an object's fields, in slots too."""
    # A copy: another thread may add a field meanwhile.
    fields = dict(_own_fields(value))
    for base in type(value).__mro__:
        for name, member in list(vars(base).items()):
            if isinstance(member, types.MemberDescriptorType):
                try:
                    fields.setdefault(name, member.__get__(value))
                except AttributeError:
                    # The slot is empty.
                    continue
    return fields


def _make_reader(function: Any, place: int) -> _Reader | None:
    """Return the reader of a function's argument at a position, or None."""
    code = function.__code__ if type(function) is types.FunctionType else None
    return _Reader(code, code.co_varnames[place]) if code is not None and place < code.co_argcount else None


class _Uses(NamedTuple):
    """The attributes of a variable that code uses."""

    read: set[str]
    written: set[str]
    """Those that it only adds to, as `table.count += 1` and `table.log.append(v)` do: they cannot change what it returns."""


def _find_used_fields(reader: _Reader, kind: type) -> _Uses | None:
    """Return the object's fields that code can use, or None for all.

    The code must use the object only as `table.name`. The methods that it calls are followed. If it passes the object on, all
    fields count.
    """
    if any(inspect.getattr_static(kind, name, None) is not default for name, default in _ATTRIBUTE_HOOKS.items()):
        return None
    found = _Uses(set(), set())
    pending, seen = [reader], {reader}
    while pending:
        uses = _find_uses(pending.pop())
        if uses is None:
            return None
        found.read.update(uses.read)
        found.written.update(uses.written)
        for name in uses.read | uses.written:
            member = inspect.getattr_static(kind, name, None)
            function = member.fget if type(member) is property else member
            if type(function) is types.FunctionType:
                following = _make_reader(function, 0)
                if following is None:
                    return None
                pending += [following] if following not in seen else []
                seen.add(following)
            elif hasattr(type(member), "__get__") and type(member) not in _HARMLESS_DESCRIPTORS:
                return None
    return found


_ATTRIBUTE_HOOKS = {"__getattr__": None, "__getattribute__": object.__getattribute__}
_READS_FRAMES = {"eval", "exec", "locals", "super", "vars"}
"""Functions that find a variable without naming it."""
_HARMLESS_DESCRIPTORS = (staticmethod, classmethod, types.MemberDescriptorType)
"""Members of a class that read no field but their own."""
_LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_ADDING_METHODS = {"add", "append", "appendleft", "clear", "extend", "insert", "update"}
"""Methods of containers that return nothing, whatever the container holds."""
_ADDED_TO = (int, float, complex, np.ndarray, list, set, dict, deque)


def _is_only_written(value: Any, reader: _Reader) -> bool:
    """Return whether code only adds to a container that it holds."""
    uses = _find_uses(reader) if type(value) in _COPIES else None
    return uses is not None and uses.read <= _ADDING_METHODS and not uses.written


def _find_uses(reader: _Reader) -> _Uses | None:
    """Return which attributes of a variable code uses; None for other uses."""
    code, variable = reader
    if not _READS_FRAMES.isdisjoint(code.co_names):
        return None
    steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    uses = _Uses(set(), set())
    for place, step in enumerate(steps):
        names: Sequence[Any] = step.argval if type(step.argval) is tuple else (step.argval,)
        if variable not in names or not any(part in step.opname for part in _VARIABLE_OPERATIONS):
            continue
        if not step.opname.startswith("LOAD") or names[-1] != variable or variable in names[:-1]:
            return None
        # `table.count += 1` copies the reference before it reads the attribute.
        is_added_to = steps[place + 1].opname == "COPY"
        one, other = steps[place + 1 + is_added_to], steps[place + 2 + is_added_to]
        if one.opname in _LOADS_ATTRIBUTE:
            is_written = is_added_to or (other.opname in _LOADS_ATTRIBUTE and other.argval in _ADDING_METHODS)
            (uses.written if is_written else uses.read).add(one.argval)
        elif one.opname != "STORE_ATTR":
            return None
    return uses
