"""Describe what a name holds on this rank as hashes: for each array, those of the boxes on this rank.

No collective is joined. Only hashes leave the rank, and the text of short plain values.
"""

from __future__ import annotations

import pickle
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mhnb.core.exchange.boxes import Box
from mhnb.core.exchange.variables import format_array
from mhnb.rank.asks.transfer_arrays import raw_bytes
from mhnb.rank.asks.transfer_jax import TransferError, check_readable, digest_of, host_copy, local_shards
from mhnb.rank.guard.provenance import read_provenance
from mhnb.rank.jaxhooks import unwrap_array

__all__ = ["describe_leaves"]

_PLAIN_TYPES, _MAX_PLAIN_CHARS = (bool, int, float, complex, str), 40
"""Types whose short `repr` is sent instead of a hash because it says more, and the most characters of such a text."""


def describe_leaves(value: Any) -> list[dict[str, Any]]:
    """Describe each leaf of a pytree; see `core.guard.check.compare_leaves` for the form."""
    try:
        leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    except Exception as error:  # noqa: BLE001 - a container's own flattening may raise anything: keys that cannot be sorted
        return [
            {"path": "", "kind": type(value).__name__, **_unreadable(f"JAX cannot take it apart: {_first_line(error)}")}
        ]
    return [{"path": jax.tree_util.keystr(path), **_describe(leaf)} for path, leaf in leaves]


def _describe(leaf: Any) -> dict[str, Any]:
    kind = type(leaf).__name__
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
    except TransferError as error:
        return {"kind": kind, **_unreadable(error.text)}
    except Exception as error:  # noqa: BLE001 - the error of a failed computation whose result has not been read before
        return {"kind": kind, **_unreadable(f"it cannot be read: {_first_line(error)}")}
    if isinstance(leaf, FunctionType | type | jax.stages.Wrapped):
        return {"kind": kind, **_unreadable("it is code")}
    if isinstance(leaf, _PLAIN_TYPES) and len(text := repr(leaf)) <= _MAX_PLAIN_CHARS:
        return {"kind": kind, "boxes": [["", text]]}
    try:
        return {"kind": kind, "boxes": [["", digest_of(memoryview(pickle.dumps(leaf)))]]}
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code, which may raise anything
        return {"kind": kind, **_unreadable(_first_line(error))}


def _is_key(leaf: jax.Array) -> bool:
    return not isinstance(leaf, jax.core.Tracer) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _unreadable(why: str) -> dict[str, Any]:
    return {"boxes": [], "unread": why}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _describe_jax(array: jax.Array) -> dict[str, Any]:
    kind = format_array(array.shape, str(array.dtype))
    is_local = array.is_fully_addressable
    boxes = [
        ["" if is_local else _box_text(box), digest_of(raw_bytes(host_copy(shard.data)))]
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


def _box_text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box) or "whole"
