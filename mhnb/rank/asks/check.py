"""What a name holds on this rank, as hashes: for each array the boxes that are here. No collective, nothing sent but hashes."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np

from mhnb.core.exchange.boxes import Box
from mhnb.core.exchange.variables import format_array
from mhnb.rank.asks.transfer_arrays import raw_bytes
from mhnb.rank.asks.transfer_jax import Unpullable, check_readable, digest_of, host_copy, local_shards
from mhnb.rank.guard.origins import origin_of

__all__ = ["describe_leaves"]


def describe_leaves(value: Any) -> list[dict[str, Any]]:
    """Describe each leaf of a pytree; see `core.check.compare_leaves` for the form."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    return [{"path": jax.tree_util.keystr(path), **_describe(leaf)} for path, leaf in leaves]


def _describe(leaf: Any) -> dict[str, Any]:
    try:
        if isinstance(leaf, jax.Array):
            check_readable(leaf)
            return _describe_jax(leaf)
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            kind = format_array(leaf.shape, str(leaf.dtype))
            return {"kind": kind, "boxes": [["", digest_of(raw_bytes(np.ascontiguousarray(leaf)))]]}
    except Unpullable as error:
        return {"kind": type(leaf).__name__, "boxes": [["", error.text]]}
    return {"kind": type(leaf).__name__, "boxes": [["", _digest_object(leaf)]]}


def _describe_jax(array: jax.Array) -> dict[str, Any]:
    kind = format_array(array.shape, str(array.dtype))
    own = array.is_fully_addressable
    boxes = [
        ["" if own else _box_text(box), digest_of(raw_bytes(host_copy(shard.data)))]
        for shard, box in local_shards(array)
    ]
    # A rank's own array in several copies: one is enough, unless they differ.
    told = {"kind": kind, "boxes": [list(box) for box in dict.fromkeys(map(tuple, boxes))]}
    return told if own else {**told, "origin": origin_of(array)}


def _box_text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box) or "whole"


def _digest_object(leaf: Any) -> str:
    try:
        return digest_of(memoryview(pickle.dumps(leaf)))
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code, which may raise anything
        # Its text is then all there is to compare.
        return digest_of(memoryview(f"{error!r} {leaf!r}".encode()))
