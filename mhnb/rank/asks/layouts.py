"""Convert JAX arrays, shardings and meshes to values of `mhnb.sharding`, from metadata alone. Nothing is launched."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from mhnb.core.exchange.boxes import Box, parse_dtype
from mhnb.errors import InvalidRequest
from mhnb.rank.asks.variables import describe_briefly
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.spec import parse_spec
from mhnb.values import DeviceRef

__all__ = [
    "device_ref",
    "has_layout",
    "is_global_array",
    "is_mesh",
    "read_layout",
    "read_mesh",
    "read_row",
    "read_tree",
]


def is_mesh(value: object) -> bool:
    """Return whether a value is a JAX mesh, with or without devices."""
    return isinstance(value, Mesh | AbstractMesh)


def has_layout(value: Any) -> bool:
    """Return whether a value is an array or a `ShapeDtypeStruct` whose sharding names devices."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return False
    sharding = value.sharding
    return sharding is not None and not isinstance(getattr(sharding, "mesh", None), AbstractMesh)


def is_global_array(value: object) -> bool:
    """Return whether a value is an array with shards on other ranks."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not value.is_fully_addressable


def read_layout(array: Any) -> Layout:
    """Return the layout of an array, also of a deleted one, or of a `ShapeDtypeStruct` that has a sharding.

    Raises:
        InvalidRequest: the value has no sharding with devices.
    """
    if not has_layout(array):
        raise InvalidRequest(
            f"layout needs a jax.Array, a ShapeDtypeStruct with a sharding, a pytree of them or a mesh, and got"
            f" {type(array).__name__}; for an array that does not exist: mhnb.layout(shape, mesh, spec)"
        )
    sharding: Any = array.sharding
    shape, dtype = tuple(array.shape), parse_dtype(array.dtype)
    if isinstance(sharding, NamedSharding):
        return Layout(shape, dtype, read_mesh(sharding.mesh), parse_spec(sharding.spec))
    placed = {device_ref(device): _box(index, shape) for device, index in sharding.devices_indices_map(shape).items()}
    return Layout(shape, dtype, placed=tuple(sorted(placed.items())))


def read_mesh(mesh: Any, *, devices_per_host: int | None = None) -> MeshShape:
    """Convert a mesh. The devices of an abstract mesh are assigned to hosts row by row, `devices_per_host` on each."""
    if isinstance(mesh, AbstractMesh):
        return MeshShape.row_major(dict(mesh.shape), devices_per_host=devices_per_host)
    return _read_mesh(mesh)


@lru_cache(maxsize=64)
def _read_mesh(mesh: Any) -> MeshShape:
    return MeshShape(tuple(mesh.shape.items()), tuple(map(device_ref, mesh.devices.flat)))


def device_ref(device: Any) -> DeviceRef:
    """Name a device, also another rank's, by its rank and its index among that rank's devices."""
    return _device_refs(device.client)[device.id]


@cache
def _device_refs(client: Any) -> dict[int, DeviceRef]:
    # Device ids do not contain this index: they differ between platforms.
    refs: dict[int, DeviceRef] = {}
    counts: dict[int, int] = {}
    for device in client.devices():
        ordinal = counts.get(device.process_index, 0)
        counts[device.process_index] = ordinal + 1
        refs[device.id] = DeviceRef(device.process_index, ordinal)
    return refs


def _box(index: Any, shape: tuple[int, ...]) -> Box:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def read_tree(value: Any) -> LayoutTree:
    """Return the layout of each leaf of a pytree; leaves that are not arrays are described in words.

    Raises:
        InvalidRequest: the pytree contains no array with a layout.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    tree = LayoutTree(tuple(read_row(jax.tree_util.keystr(path), leaf) for path, leaf in leaves))
    if all(row.layout is None for row in tree.rows):
        raise InvalidRequest(
            f"layout needs a jax.Array, a ShapeDtypeStruct with a sharding, a pytree of them or a mesh, and got"
            f" {type(value).__name__}; for an array that does not exist: mhnb.layout(shape, mesh, spec)"
        )
    return tree


def read_row(path: str, leaf: Any) -> LayoutRow:
    """Return the layout of one leaf, or a short description of a leaf without one."""
    if has_layout(leaf):
        return LayoutRow(path, read_layout(leaf), is_deleted=isinstance(leaf, jax.Array) and leaf.is_deleted())
    return LayoutRow(path, None, describe_briefly(leaf))
