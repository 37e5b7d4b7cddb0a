"""From JAX's arrays, shardings and meshes to values of the sharding wing. Metadata alone: no data is read, nothing launched."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from mhnb.errors import InvalidRequest
from mhnb.rank.asks.variables import shorten
from mhnb.sharding.boxes import Box
from mhnb.sharding.dtypes import parse_dtype
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.spec import parse_spec
from mhnb.sharding.tree import LayoutRow, LayoutTree
from mhnb.values import DeviceRef

__all__ = ["device_ref", "has_layout", "is_global", "is_mesh", "read_layout", "read_mesh", "read_row", "read_tree"]


def is_mesh(value: object) -> bool:
    """Whether it is a mesh of JAX's, with devices or without."""
    return isinstance(value, Mesh | AbstractMesh)


def has_layout(value: Any) -> bool:
    """Whether it is an array, or the promise of one, with a sharding that names devices."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return False
    sharding = value.sharding
    return sharding is not None and not isinstance(getattr(sharding, "mesh", None), AbstractMesh)


def is_global(value: object) -> bool:
    """Whether it is an array with parts on other ranks."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not value.is_fully_addressable


def read_layout(array: Any) -> Layout:
    """Say where an array lies, a deleted one too, or a ShapeDtypeStruct that has a sharding.

    Raises:
        InvalidRequest: it has no sharding with devices.
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
    """Read a mesh; the devices of an abstract one are laid over hosts of `devices_per_host`, row by row."""
    if isinstance(mesh, AbstractMesh):
        return MeshShape.row_major(dict(mesh.shape), devices_per_host=devices_per_host)
    return _read_mesh(mesh)


@lru_cache(maxsize=64)
def _read_mesh(mesh: Any) -> MeshShape:
    return MeshShape(tuple(mesh.shape.items()), tuple(map(device_ref, mesh.devices.flat)))


def device_ref(device: Any) -> DeviceRef:
    """Name a device, also another rank's, by rank and place among that rank's devices."""
    return _refs(device.client)[device.id]


@cache
def _refs(client: Any) -> dict[int, DeviceRef]:
    # Ids say nothing about the place: they differ between platforms.
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
    """Say of each leaf of a pytree where it lies; what is no array is named.

    Raises:
        InvalidRequest: there is no array with a layout in it.
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
    """Say of one leaf where it lies, or what it is instead."""
    if has_layout(leaf):
        return LayoutRow(path, read_layout(leaf), is_deleted=isinstance(leaf, jax.Array) and leaf.is_deleted())
    return LayoutRow(path, None, shorten(leaf))
