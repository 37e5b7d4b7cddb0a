"""Describe the variables of a rank from metadata.

No user's `repr` is run, and no backend is touched. Only arrays of a few elements are read, by `describe_briefly`.
"""

from __future__ import annotations

import itertools
import math
import types
from typing import Any

import jax
import numpy as np

from mhnb.core.messages import shorten_text
from mhnb.core.variables import VariableInfo, format_array
from mhnb.sharding.layout import format_device_count

_MAX_CHARS = 60
_MAX_NAME_CHARS = 200
_REPR_TYPES = (bool, float, complex, range, slice, type(None), type(Ellipsis))
_CONTAINER_TYPES = (dict, list, tuple, set, frozenset)
_SHARDING_TYPES = (
    jax.sharding.Mesh,
    jax.sharding.AbstractMesh,
    jax.sharding.NamedSharding,
    jax.sharding.PartitionSpec,
)
"""Their text is short, and reads no array."""
_MAX_ITEMS = 8
_MAX_ELEMENTS = 6
_MAX_DEPTH, _MAX_VALUES = 200, 1_000_000
"""Levels of a pytree, and values in it, counted as JAX counts them: an object that two containers share is two values."""
_CODE_TYPES = (
    types.ModuleType,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type(jax.jit(len)),
)


def user_names(namespace: dict[str, Any], hidden: dict[str, Any] | None = None) -> list[str]:
    """Return the user's names, sorted, without those that begin with `_`."""
    absent = object()
    hidden = hidden or {}
    # A cell can store anything under any key of its `globals()`.
    names = [name for name in list(namespace) if type(name) is str and name[:1] != "_"]
    return sorted(name for name in names if namespace[name] is not hidden.get(name, absent))


def describe_variables(namespace: dict[str, Any], hidden: dict[str, Any]) -> dict[str, VariableInfo]:
    """Describe the user's values, except code, which is the same everywhere."""
    found = {
        shorten_text(name, _MAX_NAME_CHARS): _facts_or_reason(namespace[name]) for name in user_names(namespace, hidden)
    }
    return {name: facts for name, facts in found.items() if facts is not None}


def _facts_or_reason(value: object) -> VariableInfo | None:
    """Describe a value, or why it cannot be described; None for code."""
    try:
        return None if _is_code(value) else facts_of(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the summary
        # Flattening a pytree runs its class's code, which may raise anything; one bad value must not hide the others.
        text = _truncate(f"cannot be described: {describe_error(error)}", 0)
        return VariableInfo("host", type_name(value), text)


_get_type_name = type.__dict__["__name__"].__get__


def type_name(value: object) -> str:
    """Return a value's class name, shortened, without running code of the class."""
    return shorten_text(str.__str__(_get_type_name(type(value))), _MAX_NAME_CHARS)


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, even if its `str` raises."""
    name = type_name(error)
    try:
        return f"{name}: {error}".partition("\n")[0]
    except (Exception, SystemExit) as broken:  # noqa: BLE001 - named in place of the text
        return f"{name}, whose text raises {type_name(broken)}"


def facts_of(value: object) -> VariableInfo:
    """Describe a value without reading it."""
    if isinstance(value, jax.core.Tracer):
        return VariableInfo("host", "Tracer", "left its traced function", tuple(value.shape), str(value.dtype))
    if isinstance(value, jax.Array):
        return _array_facts(value)
    if isinstance(value, np.ndarray):
        return VariableInfo("host", "ndarray", "", value.shape, value.dtype.name)
    summary = summarize(value)
    arrays, nbytes = _arrays_within(value)
    if arrays:
        summary += f"{', ' if summary else ''}{arrays} array{'s' if arrays > 1 else ''}"
    return VariableInfo(
        "host",
        type_name(value),
        summary,
        nbytes_per_device=nbytes if arrays else None,
    )


def summarize(value: object) -> str:
    """Format a plain value, mesh or container's size; empty for other values."""
    if isinstance(value, str | bytes):
        return _truncate(repr(value[:_MAX_CHARS]), len(value))
    if type(value) is int:
        return repr(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if type(value) in _REPR_TYPES or isinstance(value, np.number | np.bool_):
        return _truncate(repr(value), 0)
    if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return ", ".join(f"{axis} {size}" for axis, size in value.shape.items())
    if isinstance(value, _CONTAINER_TYPES):
        # Use the type's own length: a subclass may have user code in `__len__`.
        kind: Any = next(kind for kind in _CONTAINER_TYPES if isinstance(value, kind))
        size = kind.__len__(value)
        return f"{size} item{'' if size == 1 else 's'}"
    return ""


def describe_briefly(value: object) -> str:
    """Describe a value briefly, to distinguish it from another rank's."""
    if isinstance(value, np.ndarray):
        shown = value.size <= _MAX_ELEMENTS and value.dtype.kind in "biufc"
        return format_array(value.shape, value.dtype.name) + (_truncate(f" {value.tolist()!r}", 0) if shown else "")
    facts = facts_of(value)
    if facts.shape is not None and facts.dtype is not None:
        return f"{facts.place} {format_array(facts.shape, facts.dtype)}{_format_tiny(value)}"
    if facts.summary and not isinstance(value, _CONTAINER_TYPES):
        return facts.summary
    return f"{facts.type} of {facts.summary}" if facts.summary else facts.type


def format_plainly(value: object, *, depth: int = 3) -> str:
    """Format a value in one line: `{'w': f32[8,4] P('x'), 'step': 3}`.

    Args:
        value: any value.
        depth: levels of containers that are shown.

    Returns:
        Empty string for a value of a class whose text only its own code could give.
    """
    kind = type(value)
    if kind is np.ndarray:
        return describe_briefly(value)
    if isinstance(value, jax.Array):
        facts = facts_of(value)
        assert facts.shape is not None
        return " ".join(filter(None, (format_array(facts.shape, facts.dtype or ""), facts.spec, facts.summary)))
    if kind in _SHARDING_TYPES or kind is types.ModuleType or isinstance(value, np.dtype):
        return _truncate(str(value), 0)
    if kind in (int, str, bytes, *_REPR_TYPES) or isinstance(value, np.number | np.bool_):
        return summarize(value)
    if kind not in _CONTAINER_TYPES:
        return ""
    return _format_items(value, depth) if depth else "…"


def _format_items(container: Any, depth: int) -> str:
    shown = [_format_item(item, container, depth) for item in itertools.islice(container, _MAX_ITEMS)]
    body = ", ".join([*shown, *(["…"] if len(container) > _MAX_ITEMS else [])])
    if isinstance(container, list):
        return f"[{body}]"
    if isinstance(container, tuple):
        return f"({body}{',' if len(container) == 1 else ''})"
    text = f"{{{body}}}" if container or isinstance(container, dict) else ""
    return f"frozenset({text})" if isinstance(container, frozenset) else text or "set()"


def _format_item(item: object, container: Any, depth: int) -> str:
    def format_one(value: object) -> str:
        return format_plainly(value, depth=depth - 1) or f"<{type_name(value)}>"

    return f"{format_one(item)}: {format_one(container[item])}" if isinstance(container, dict) else format_one(item)


def _format_tiny(value: object) -> str:
    """Return a tiny local array's content; empty for other values."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return ""
    if value.size > _MAX_ELEMENTS or not value.is_fully_addressable or value.is_deleted():
        return ""
    # The types of PRNG keys have no kind.
    if len(value.sharding.device_set) > 1 or getattr(value.dtype, "kind", "key") not in "biufc":
        return ""
    return _truncate(f" {np.asarray(value).tolist()!r}", 0)


def _truncate(text: str, length: int) -> str:
    return text if length <= _MAX_CHARS and len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"


def _is_code(value: object) -> bool:
    if isinstance(value, _CODE_TYPES):
        return True
    # Include custom_vjp and other function wrappers. Only the instance's own dict is read: a `__getattr__` may do
    # anything.
    return callable(value) and "__wrapped__" in getattr(value, "__dict__", ())


def _array_facts(array: jax.Array) -> VariableInfo:
    sharding: Any = array.sharding
    named = isinstance(sharding, jax.sharding.NamedSharding)
    return VariableInfo(
        "local" if array.is_fully_addressable else "global",
        "Array",
        " ".join(filter(None, (_describe_holder(sharding), "deleted" if array.is_deleted() else ""))),
        array.shape,
        str(array.dtype),
        _format_spec(sharding.spec) if named else None,
        tuple((str(axis), size) for axis, size in sharding.mesh.shape.items()) if named else None,
        _nbytes_per_device(array),
    )


def find_holder(sharding: Any) -> int | None:
    """Return the other rank that holds a whole array, or None."""
    ranks = set() if sharding.is_fully_addressable else {device.process_index for device in sharding.device_set}
    return ranks.pop() if len(ranks) == 1 else None


def _describe_holder(sharding: Any) -> str:
    holder = find_holder(sharding)
    return "" if holder is None else f"on {format_device_count(len(sharding.device_set), holder)}"


def _format_spec(spec: jax.sharding.PartitionSpec) -> str:
    return "P(" + ", ".join(map(repr, spec)) + ")"


def _nbytes_per_device(array: jax.Array) -> int:
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def check_tree(value: object) -> None:
    """Check that JAX can flatten a value, before JAX gets it.

    since jax 0.10: an error in the middle of a flattening takes a level of the interpreter's recursion limit for each level of
    the pytree, until every later call of the process fails. A single level takes none.

    Raises:
        ValueError: the value contains itself, has too many levels or values, or a dict with keys that cannot be sorted.
        Exception: a class in it raised this when it was flattened.
    """
    flatten = jax.tree_util.default_registry.flatten_one_level
    path: dict[int, object] = {}
    pending = [iter((value,))]
    leaf_types: set[type] = set()
    count = 0
    while pending:
        for each in pending[-1]:
            count += 1
            if count > _MAX_VALUES:
                raise ValueError(f"the value has more than {_MAX_VALUES:,} parts")
            if type(each) in leaf_types:
                continue
            if (node := flatten(each)) is None:
                leaf_types.add(type(each))
                continue
            if id(each) in path:
                raise ValueError("the value contains itself")
            if len(path) == _MAX_DEPTH:
                raise ValueError(f"the value has more than {_MAX_DEPTH} levels")
            path[id(each)] = each
            pending.append(iter(node[0]))
            break
        else:
            pending.pop()
            if path:
                path.popitem()


def _arrays_within(value: object) -> tuple[int, int]:
    """Count the arrays in a pytree and their bytes per device."""
    if jax.tree_util.all_leaves([value]):
        return 0, 0
    try:
        check_tree(value)
    except ValueError:
        if type(value) not in _CONTAINER_TYPES:
            raise
        # A plain container that is not a pytree: it contains itself, or has keys that cannot be sorted.
        return 0, 0
    leaves = jax.tree_util.tree_leaves(value)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)]
    return len(arrays), sum(map(_nbytes_per_device, arrays))
