"""Answer requests about a rank's namespace: variables, hashes, completion and `?`.

Variables are described from metadata alone: no array is read, no user's `repr` is run, no backend is touched.
Completion and `?` neither read an array nor launch a program, whatever text is before the cursor.
A check describes what a name holds on this rank as hashes: for each array, those of the boxes on this rank. No collective is
joined. Only hashes leave the rank, and the text of short plain values.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import getattr_static, getdoc
from types import FunctionType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mhnb.adapters.jax_arrays import TransferError, check_readable, digest_of, host_copy, local_shards
from mhnb.adapters.numpy_arrays import raw_bytes
from mhnb.adapters.variables import check_tree, describe_briefly, describe_error, facts_of, format_plainly, type_name
from mhnb.core.variables import format_array
from mhnb.rank.guard.provenance import read_provenance
from mhnb.rank.jax_private import unwrap_array
from mhnb.sharding.boxes import describe_box

if TYPE_CHECKING:
    from IPython.core.oinspect import InspectorHookData

_UNREACHED_LEVEL = 99
"""A detail level above that of any request, so that IPython leaves `str(obj)` out."""


def complete(shell: Any, text: str, cursor: int) -> dict[str, Any]:
    """Complete code at `cursor` (in characters) like the shell without jedi.

    Returns:
        `matches`, and the range `start:end` of characters that they replace.
    """
    from IPython.core.completer import provisionalcompleter, rectify_completions

    cursor = max(0, min(cursor, len(text)))
    with provisionalcompleter(), _prepared_completer(shell) as completer:
        found = list(rectify_completions(text, completer.completions(text, cursor)))
    if not found:
        return {"matches": [], "start": cursor, "end": cursor}
    # Rectified completions all replace the same range.
    return {"matches": [match.text for match in found], "start": found[0].start, "end": found[0].end}


@contextmanager
def _prepared_completer(shell: Any) -> Iterator[Any]:
    """Prepare the completer: without jedi, and only with keys that are text."""
    completer = shell.Completer
    before = completer.use_jedi, completer.namespace, completer.global_namespace
    completer.use_jedi = False
    names = {name: value for name, value in list(shell.user_ns.items()) if type(name) is str}
    completer.namespace = completer.global_namespace = names
    try:
        yield completer
    finally:
        completer.use_jedi, completer.namespace, completer.global_namespace = before


def inspect(shell: Any, name: str, detail: int) -> dict[str, Any]:
    """Describe the object that a name refers to.

    Returns:
        `found`, and `data`, a mime bundle that always has text/plain when found.
    """
    owner, last = _find_owner(shell.user_ns, name)
    if isinstance(owner, jax.Array):
        text = _attribute_text(shell, owner, last, detail)
        return {"found": bool(text), "data": {"text/plain": text} if text else {}}
    obj = _read_attribute(owner, last) if "." in name else shell.user_ns.get(name)
    if isinstance(obj, jax.Array):
        return {"found": True, "data": {"text/plain": _format_rows(_describe_array(obj, detail))}}
    try:
        with _without_str(shell.inspector, obj):
            bundle = {} if owner is _NEEDS_COMPUTATION else shell.object_inspect_mime(name, detail_level=detail)
    except KeyError:
        bundle = {}
    return {"found": bool(bundle), "data": bundle}


_NEEDS_COMPUTATION = object()
"""Marks an owner that only a property's code could compute."""


def _find_owner(namespace: dict[str, Any], name: str) -> tuple[Any, str]:
    """Return the owner and name of the last attribute; run no property."""
    first, *rest = name.split(".")
    obj = namespace.get(first)
    if not rest:
        return None, first
    for part in rest[:-1]:
        if isinstance(obj, jax.Array) or isinstance(getattr_static(type(obj), part, None), property | cached_property):
            return _NEEDS_COMPUTATION, rest[-1]
        obj = getattr(obj, part, None)
    return obj, rest[-1]


def _read_attribute(owner: Any, attribute: str) -> Any:
    """Return an attribute's value; None if missing or computed."""
    if isinstance(getattr_static(type(owner), attribute, None), property | cached_property):
        return None
    return getattr(owner, attribute, None)


def _attribute_text(shell: Any, array: jax.Array, attribute: str, detail: int) -> str:
    """Describe an array's attribute from its class: reading it might compute something."""
    if (found := getattr_static(type(array), attribute, None)) is None:
        return ""
    is_property = isinstance(found, property)
    info = shell.inspector.info(found, oname=attribute, detail_level=detail)
    kind = "property" if is_property else info["definition"] or info["type_name"]
    parts = [f"{attribute}: {kind}, of jax.Array", info["source"] or info["docstring"] or ""]
    if info["file"]:
        parts.append(f"File: {info['file']}")
    return "\n\n".join(part for part in parts if part)


@contextmanager
def _without_str(inspector: Any, obj: object) -> Iterator[None]:
    """Stop the inspector's `str(obj)`, which runs code and reads arrays.

    Strings and plain numbers keep it. For containers and a few other values a text from metadata takes its place.
    """
    level, info, text = inspector.str_detail_level, inspector.info, format_plainly(obj)
    if not isinstance(obj, str | int | float | complex | None):
        inspector.str_detail_level = _UNREACHED_LEVEL
        inspector.info = lambda *args, **kwargs: {**info(*args, **kwargs), "string_form": text or None}
    try:
        yield
    finally:
        inspector.str_detail_level, inspector.info = level, info


def _describe_array(array: jax.Array, detail: int) -> list[tuple[str, str]]:
    """Return the lines about an array, each with its heading."""
    facts = facts_of(array)
    rows = [
        ("Type", f"jax.Array, {facts.place}"),
        ("Value", describe_briefly(array).removeprefix(facts.place + " ")),
    ]
    if facts.spec is not None and facts.mesh is not None:
        axes = ", ".join(f"{axis} {size}" for axis, size in facts.mesh)
        rows.append(("Sharding", f"{facts.spec} on mesh ({axes})"))
    if facts.nbytes_per_device is not None:
        rows.append(("Memory", f"{facts.nbytes_per_device} B per device"))
    if detail:
        rows.append(("Docstring", getdoc(jax.Array) or ""))
    return rows


def _format_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Align rows as IPython's inspector does."""
    width = max(len(head) for head, _ in rows) + 2
    return "\n".join(f"{head}:\n{text}" if "\n" in text else f"{head + ':':<{width}}{text}" for head, text in rows)


def describe_arrays_in_cells(inspector: Any) -> None:
    """Make `x?` describe arrays as requests do, plus a local array's numbers."""

    def describe(seen: InspectorHookData) -> list[tuple[str, str]] | None:
        array = seen.obj
        if not isinstance(array, jax.Array):
            return None
        rows, text = _describe_array(array, seen.detail_level), seen.info_dict["string_form"]
        if text and array.is_fully_addressable and not array.is_deleted():
            rows.insert(len(rows) - bool(seen.detail_level), ("String form", text))
        return rows

    inspector.mime_hooks = {**inspector.mime_hooks, "text/plain": describe}


# -- describe a name's value by hashes


_PLAIN_TYPES, _MAX_PLAIN_CHARS = (bool, int, float, complex, str), 40
"""Types whose short `repr` is sent instead of a hash because it says more, and the most characters of such a text."""


def describe_leaves(value: Any) -> list[dict[str, Any]]:
    """Describe each leaf of a pytree; see `core.guard.value_check.compare_leaves` for the form."""
    try:
        check_tree(value)
        leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a container's own flattening may raise anything: keys that cannot be sorted
        why = f"it cannot be flattened: {describe_error(error)}"
        return [{"path": "", "kind": type_name(value), **_unreadable(why)}]
    return [{"path": jax.tree_util.keystr(path), **_describe(leaf)} for path, leaf in leaves]


def _describe(leaf: Any) -> dict[str, Any]:
    kind = type_name(leaf)
    try:
        if isinstance(leaf, jax.Array):
            # Read the plain numbers behind keys. To request them from JAX would launch a program.
            array = unwrap_array(leaf) if _is_key(leaf) else leaf
            kind = format_array(leaf.shape, str(leaf.dtype))
            check_readable(array)
            return {**_describe_jax(array), "kind": kind}
        if type(leaf) is np.ndarray and leaf.dtype != object:
            kind = format_array(leaf.shape, str(leaf.dtype))
            return {"kind": kind, "boxes": [["", digest_of(raw_bytes(np.ascontiguousarray(leaf)))]]}
        if isinstance(leaf, FunctionType | type | jax.stages.Wrapped):
            return {"kind": kind, **_unreadable("it is code")}
        if isinstance(leaf, _PLAIN_TYPES) and len(text := repr(leaf)) <= _MAX_PLAIN_CHARS:
            return {"kind": kind, "boxes": [["", text]]}
        return {"kind": kind, "boxes": [["", digest_of(memoryview(pickle.dumps(leaf)))]]}
    except TransferError as error:
        return {"kind": kind, **_unreadable(error.text)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reading may raise the error of a failed computation, and pickling anything
        return {"kind": kind, **_unreadable(describe_error(error))}


def _is_key(leaf: jax.Array) -> bool:
    return not isinstance(leaf, jax.core.Tracer) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _unreadable(why: str) -> dict[str, Any]:
    return {"boxes": [], "unread": why}


def _describe_jax(array: jax.Array) -> dict[str, Any]:
    kind = format_array(array.shape, str(array.dtype))
    is_local = array.is_fully_addressable
    boxes = [
        ["" if is_local else describe_box(box), digest_of(raw_bytes(host_copy(shard.data)))]
        for shard, box in local_shards(array)
    ]
    # Copies of a local array: one is enough, unless they differ.
    description = {"kind": kind, "boxes": [list(box) for box in dict.fromkeys(map(tuple, boxes))]}
    return (
        description if is_local else {**description, "origin": read_provenance(array), "placed": _hash_placement(array)}
    )


def _hash_placement(array: jax.Array) -> str:
    """Hash the assignment of a global array's boxes to devices."""
    boxes: dict[Any, Any] = dict(array.sharding.devices_indices_map(array.shape))
    return digest_of(memoryview(repr(sorted((device.id, str(index)) for device, index in boxes.items())).encode()))
