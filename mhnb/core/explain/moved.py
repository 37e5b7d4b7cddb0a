"""Names that JAX removed, each with its replacement. They are recognised by the error's text alone."""

from __future__ import annotations

import re

__all__ = ["find_removed_api"]

_REPLACEMENTS = {
    # Removed up to jax 0.12, with the replacements that JAX names in its changelog.
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map, which takes several trees",
    "jax.tree_leaves": "jax.tree.leaves",
    "jax.tree_flatten": "jax.tree.flatten",
    "jax.tree_unflatten": "jax.tree.unflatten",
    "jax.tree_structure": "jax.tree.structure",
    "jax.tree_transpose": "jax.tree.transpose",
    "jax.host_id": "jax.process_index",
    "jax.host_ids": "range(jax.process_count())",
    "jax.host_count": "jax.process_count",
    "jax.xla_computation": "jax.jit(f).lower(x)",
    "jax.device_put_sharded": "jax.device_put(x, NamedSharding(mesh, P('x'))) of the stacked parts",
    "jax.device_put_replicated": "jax.device_put(x, NamedSharding(mesh, P()))",
    "jax.sharding.PositionalSharding": "jax.sharding.NamedSharding(mesh, PartitionSpec(...))",
    "jax.sharding.use_mesh": "jax.set_mesh",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.array": "jax.Array",
    "jax.experimental.global_device_array": "jax.Array, made by jax.make_array_from_callback",
    "jax.experimental.host_callback": "jax.pure_callback, jax.experimental.io_callback and jax.debug.callback",
    "jax.experimental.maps": "jax.shard_map for xmap, jax.sharding.Mesh for Mesh",
    "jax.experimental.maps.xmap": "jax.shard_map",
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.experimental.pjit": "jax.jit, which takes in_shardings and out_shardings",
    "jax.experimental.shard_map": "jax.shard_map",
}
_MESSAGES = (
    (re.compile(r"module '(jax[\w.]*)' has no attribute '(\w+)'"), "AttributeError"),
    (re.compile(r"cannot import name '(\w+)' from '(jax[\w.]*)'"), "ImportError"),
    (re.compile(r"No module named '(jax[\w.]*)'"), "ModuleNotFoundError"),
    # since jax 0.9: a name that is about to be removed raises an error with its own text
    (re.compile(r"^(jax[\w.]*) (?:is|was|has been) (?:deprecated|removed)"), "AttributeError"),
)


def find_removed_api(ename: str, evalue: str) -> str | None:
    """Return the hint that names the replacement of a name that JAX removed; None for any other error.

    >>> find_removed_api("AttributeError", "module 'jax' has no attribute 'tree_map'")
    'jax.tree_map is gone from JAX; use jax.tree.map.'
    """
    for pattern, kind in _MESSAGES:
        found = pattern.search(evalue) if kind == ename else None
        if found is not None:
            parts = found.groups() if kind != "ImportError" else reversed(found.groups())
            name = ".".join(parts)
            return f"{name} is gone from JAX; use {_REPLACEMENTS[name]}." if name in _REPLACEMENTS else None
    return None
