"""Describe a jax.Array as boxes of host memory: those that this rank holds, and which ranks hold the others.

Only existing shards are read. No program is launched, no collective is joined, no copy is left in the user's arrays.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mhnb.core.exchange.boxes import Box, box_shape
from mhnb.core.exchange.transfer import KEY_DATA_EXPRESSION, KEY_REFUSAL_CODE, ArrayDescription, LocalBox, Owners
from mhnb.core.exchange.variables import format_array
from mhnb.rank.asks.transfer_arrays import dtype_name, raw_bytes

__all__ = [
    "TransferError",
    "check_readable",
    "describe_array",
    "digest_of",
    "host_copy",
    "local_index_of",
    "local_shards",
    "shards_of",
]


class TransferError(Exception):
    """A value that cannot be sent. `code` and `text` become a `Refusal`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def check_readable(array: jax.Array) -> None:
    """Check that an array has bytes to send.

    Raises:
        Unpullable: the array is a tracer, is deleted, or has a dtype that NumPy does not have.
    """
    if isinstance(array, jax.core.Tracer):
        raise TransferError(
            "tracer", "holds a tracer that left its traced function. Return the value from that function instead"
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TransferError(
            KEY_REFUSAL_CODE,
            f"holds PRNG keys ({format_array(array.shape, str(array.dtype))}), for which NumPy has no type."
            f" On the ranks, make raw = {KEY_DATA_EXPRESSION}; then: %mhjax pull raw",
        )
    if array.is_deleted():
        raise TransferError(
            "deleted",
            f"holds an array {format_array(array.shape, str(array.dtype))} that has been deleted, most likely donated"
            " to a jitted function. Use that function's result, or make it again",
        )


def digest_of(data: memoryview) -> str:
    """Return a hash of bytes; equal hashes mean equal bytes."""
    # The fastest of hashlib's on processors with SHA instructions. A loop over pieces of 16 MB would gain nothing.
    return hashlib.sha256(data).hexdigest()[:32]


def local_index_of(device: jax.Device) -> int:
    """Return the index of a device among its rank's local devices."""
    devices: list[jax.Device] = jax.local_devices(backend=device.platform)
    return devices.index(device)


def host_copy(data: jax.Array) -> np.ndarray[Any, Any]:
    """Read a single-device array, without a copy if the device uses host memory."""
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
    """Describe an array and pass on the bytes of its local boxes, each distinct content of a box once.

    Args:
        array: an array that has passed `check_readable`.
        add_part: stores the bytes of a box and returns their number.
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


def local_shards(array: jax.Array) -> Iterator[tuple[Any, Box]]:
    """Yield each shard that this rank holds, with its box of the global array."""
    for shard in shards_of(array):
        box = _box(shard.index, array.shape)
        if box_shape(box) != shard.data.shape:
            raise TransferError(
                "shard",
                f"has a shard of shape {shard.data.shape} where its sharding says {box_shape(box)}. Make it again",
            )
        yield shard, box


def _list_owners(array: jax.Array) -> Owners:
    ranks: dict[Box, list[int]] = {}
    device: Any
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        ranks.setdefault(_box(index, array.shape), []).append(device.process_index)
    return tuple((box, tuple(sorted(ranks[box]))) for box in sorted(ranks))


def _box(index: Any, shape: tuple[int, ...]) -> Box:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
