"""Convert JAX arrays to layouts, and their shards to host memory.

Layouts are values of `mhnb.sharding`, made from metadata alone. Of an array, only the shards of this rank are read.
No program is launched, no collective is joined, no copy is left in the user's arrays.

Host labels of the ranks are as this process knows them. If `set_ranks_per_host` was not called, as in a script, each rank is a host.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from mhnb.adapters.numpy_arrays import dtype_name, raw_bytes
from mhnb.adapters.variables import check_tree, describe_briefly, describe_error
from mhnb.core.transfer import KEY_DATA_EXPRESSION, KEY_REFUSAL_CODE, ArrayDescription, LocalBox, Owners
from mhnb.core.variables import format_array
from mhnb.errors import InvalidRequest
from mhnb.sharding.boxes import Box, box_of_index, box_shape, parse_dtype
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree
from mhnb.sharding.mesh import MeshOrigin, MeshShape
from mhnb.sharding.spec import parse_spec
from mhnb.types import DeviceRef


class TransferError(Exception):
    """A value that cannot be sent. `code` and `text` become a `TransferRefusal`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def check_readable(array: jax.Array) -> None:
    """Check that an array has bytes to send.

    Raises:
        TransferError: the array is a tracer, is deleted, or has a dtype that NumPy does not have.
    """
    if isinstance(array, jax.core.Tracer):
        raise TransferError(
            "tracer", "holds a tracer that left its traced function. Return the value from that function instead"
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TransferError(
            KEY_REFUSAL_CODE,
            f"holds PRNG keys ({format_array(array.shape, str(array.dtype))}), for which NumPy has no type."
            f" On the ranks, run raw = {KEY_DATA_EXPRESSION}; then: %mhjax pull raw",
        )
    if array.is_deleted():
        raise TransferError(
            "deleted",
            f"holds an array {format_array(array.shape, str(array.dtype))} that has been deleted, most likely donated"
            " to a jitted function. Use that function's result, or create it again",
        )


def digest_of(data: memoryview) -> str:
    """Return a hash of bytes; equal hashes mean equal bytes."""
    # The fastest hash of hashlib on processors with SHA instructions. A loop over pieces of 16 MB would gain nothing.
    return hashlib.sha256(data).hexdigest()[:32]


def local_index_of(device: jax.Device) -> int:
    """Return the index of a device among its rank's local devices."""
    devices: list[jax.Device] = jax.local_devices(backend=device.platform)
    return devices.index(device)


def host_copy(data: jax.Array) -> np.ndarray[Any, Any]:
    """Read a single-device array; host memory is not copied."""
    # An array caches its NumPy form, so a GPU's data would stay on the host as long as the user's array lives.
    # Therefore the NumPy form is made from a second handle to the same buffer.
    handle = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
    return np.asarray(handle)


def describe_array(
    array: jax.Array,
    add_part: Callable[[memoryview], int],
    provenance_of: Callable[[object], tuple[int, str]],
    *,
    digest_local: bool,
) -> ArrayDescription:
    """Describe an array, and store the bytes of its local boxes.

    Args:
        array: an array that has passed `check_readable`.
        add_part: stores the bytes of a box and returns the part's number; called once for equal copies of a box.
        provenance_of: returns the provenance of an array, and a text that names its producer.
        digest_local: whether another rank holds a local array to compare with.
    """
    is_local = array.is_fully_addressable
    owners = _list_owners(array)
    copies = Counter({box: len(ranks) for box, ranks in owners})
    parts: dict[tuple[Box, str], int] = {}
    local_boxes = []
    for shard, box in local_shards(array):
        data = raw_bytes(host_copy(shard.data))
        needs_digest = copies[box] > 1 or (is_local and digest_local)
        digest = digest_of(data) if needs_digest else ""
        if (part := parts.get((box, digest))) is None:
            part = parts[box, digest] = add_part(data)
        local_boxes.append(LocalBox(box, local_index_of(shard.device), part, digest))
    return ArrayDescription(
        array.shape, dtype_name(array.dtype), "C", tuple(local_boxes), owners, not is_local, provenance_of(array)
    )


def shards_of(array: jax.Array) -> list[Any]:
    """Return the shards that this rank holds.

    since jax 0.10: if a process has one device, its copy of an array that every process has a copy of contains itself as its
    shard, and JAX's own list of shards raises.
    """
    devices = array.sharding.addressable_devices
    if len(devices) != 1 or not array.is_fully_replicated:
        return list(array.addressable_shards)
    (device,) = devices
    return [jax.Shard(device, array.sharding, array.shape, array.addressable_data(0))]


def find_shard(array: jax.Array, device: Any, _index: Any = None) -> Any:
    """Return the data of an array on a device of this rank."""
    return next(shard.data for shard in shards_of(array) if shard.device == device)


def local_shards(array: jax.Array) -> Iterator[tuple[Any, Box]]:
    """Yield each shard of this rank with its box in the array."""
    for shard in shards_of(array):
        box = box_of_index(shard.index, array.shape)
        if box_shape(box) != shard.data.shape:
            raise TransferError(
                "shard",
                f"has a shard of shape {shard.data.shape} but its sharding requires {box_shape(box)}. Create it again",
            )
        yield shard, box


def _list_owners(array: jax.Array) -> Owners:
    ranks: dict[Box, list[int]] = {}
    device: Any
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        ranks.setdefault(box_of_index(index, array.shape), []).append(device.process_index)
    return tuple((box, tuple(sorted(ranks[box]))) for box in sorted(ranks))


# -- layouts and meshes from metadata


def is_mesh(value: object) -> bool:
    """Return whether a value is a JAX mesh, with or without devices."""
    return isinstance(value, Mesh | AbstractMesh)


def has_layout(value: Any) -> bool:
    """Return whether a value is an array or `ShapeDtypeStruct` on devices."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return False
    sharding = value.sharding
    return sharding is not None and not isinstance(getattr(sharding, "mesh", None), AbstractMesh)


def is_global_array(value: object) -> bool:
    """Return whether a value is an array with shards on other ranks."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not value.is_fully_addressable


def read_layout(array: Any) -> Layout:
    """Return the layout of a (possibly deleted) array or a `ShapeDtypeStruct`.

    Raises:
        InvalidRequest: the value has no sharding with devices.
    """
    if not has_layout(array):
        raise InvalidRequest(
            "layout: expected a jax.Array, a ShapeDtypeStruct with a sharding, a pytree of them or a mesh; got"
            f" {type(array).__name__}. To draw an array that does not exist yet: mhnb.layout(shape, mesh, spec)"
        )
    sharding: Any = array.sharding
    shape, dtype = tuple(array.shape), parse_dtype(array.dtype)
    if isinstance(sharding, NamedSharding):
        return Layout(shape, dtype, read_mesh(sharding.mesh), parse_spec(sharding.spec))
    indices = sharding.devices_indices_map(shape)
    placed = {device_ref(device): box_of_index(index, shape) for device, index in indices.items()}
    return Layout(shape, dtype, placed=tuple(sorted(placed.items())), is_local=sharding.is_fully_addressable)


def read_mesh(mesh: Any, *, devices_per_host: int | None = None) -> MeshShape:
    """Convert a JAX mesh; an abstract one gets hosts row by row."""
    if isinstance(mesh, AbstractMesh):
        return MeshShape.row_major(dict(mesh.shape), devices_per_host=devices_per_host)
    return _read_mesh(mesh)


@lru_cache(maxsize=64)
def _read_mesh(mesh: Any) -> MeshShape:
    devices = list(mesh.devices.flat)
    slices = tuple(getattr(device, "slice_index", 0) for device in devices)
    has_all = len(devices) == devices[0].client.device_count()
    types = tuple(each.name for each in mesh.axis_types)
    origin = MeshOrigin(slices if len(set(slices)) > 1 else (), types, has_all_devices=has_all)
    return MeshShape(tuple(mesh.shape.items()), tuple(map(device_ref, devices)), origin)


def device_ref(device: Any) -> DeviceRef:
    """Return the rank of a device and its index on that rank."""
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


def read_tree(value: Any) -> LayoutTree:
    """Return the layout, or a short description, of each leaf.

    Raises:
        InvalidRequest: the pytree contains no array with a layout, or it cannot be flattened.
    """
    try:
        check_tree(value)
    except (Exception, SystemExit) as error:
        raise InvalidRequest(f"layout: the value cannot be flattened: {describe_error(error)}") from error
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    tree = LayoutTree(tuple(read_row(jax.tree_util.keystr(path), leaf) for path, leaf in leaves))
    if all(row.layout is None for row in tree.rows):
        raise InvalidRequest(
            "layout: expected a jax.Array, a ShapeDtypeStruct with a sharding, a pytree of them or a mesh; got"
            f" {type(value).__name__}. To draw an array that does not exist yet: mhnb.layout(shape, mesh, spec)"
        )
    return tree


def read_row(path: str, leaf: Any) -> LayoutRow:
    """Return the layout of a leaf, or a short description."""
    try:
        if has_layout(leaf):
            return LayoutRow(path, read_layout(leaf), is_deleted=isinstance(leaf, jax.Array) and leaf.is_deleted())
        return LayoutRow(path, None, describe_briefly(leaf))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a class may raise anything, also in `__class__`; one bad leaf must not hide the others
        return LayoutRow(path, None, f"cannot be described: {describe_error(error)}")


# -- host labels of the ranks


class _HostMap:
    ranks_per_host = 1


def set_ranks_per_host(ranks_per_host: int) -> None:
    """Set how many consecutive ranks of this cluster are on each host."""
    _HostMap.ranks_per_host = ranks_per_host


def host_label(rank: int) -> str:
    """Return the label of a rank's host, as the notebook shows it.

    >>> host_label(2)
    'host2'
    """
    return f"host{rank // _HostMap.ranks_per_host}"
