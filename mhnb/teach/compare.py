"""Assertions for exercises: compare the data of a rank with the expected data, and report device, index and both values.

Each one inspects only the data of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mhnb.teach.exercise import Differs, Here

__all__ = ["call", "fits", "global_array", "shards_hold", "spec_is", "value_is"]


def call(answer: Any, *arguments: Any, what: str) -> Any:
    """Call the learner's function. Its exceptions are not caught."""
    if not callable(answer):
        raise Differs(
            f"expected a function {what}, and got {type(answer).__name__}; pass the function itself, not its result"
        )
    return answer(*arguments)


def value_is(got: Any, wanted: Any, what: str, *, hint: str = "") -> None:
    """Check that two values are equal and of the same type: 8 is not 8.0."""
    if type(got) is not type(wanted) or got != wanted:
        raise Differs(f"{what} is {got!r}, expected {wanted!r}{_kinds(got, wanted)}{_after(hint)}")


def _kinds(got: Any, wanted: Any) -> str:
    same = type(got) is type(wanted) or got is None or wanted is None
    return "" if same else f" ({type(got).__name__}, not {type(wanted).__name__})"


def _after(hint: str) -> str:
    return f". {hint}" if hint else ""


def global_array(x: Any, shape: tuple[int, ...], dtype: str, what: str, here: Here) -> Any:
    """Check that x is a jax.Array of this shape and dtype on all devices of the cluster, and return it."""
    import jax

    if not isinstance(x, jax.Array):
        raise Differs(f"{what} should be a jax.Array and is {type(x).__module__.split('.')[0]} {type(x).__name__}")
    if len(x.sharding.device_set) != here.device_count:
        n = len(x.sharding.device_set)
        raise Differs(
            f"{what} is on {n} device{'s' * (n > 1)}, expected all {here.device_count}: it is no global array"
        )
    if (tuple(x.shape), str(x.dtype)) != (shape, dtype):
        raise Differs(f"{what} is {x.dtype}{list(x.shape)}, expected {dtype}{list(shape)}")
    return x


def spec_is(x: Any, mesh: Any, spec: Any, what: str) -> None:
    """Check that the array is sharded over the mesh as the PartitionSpec says; an equivalent spec is accepted."""
    import jax

    wanted = jax.sharding.NamedSharding(mesh, spec)
    if not x.sharding.is_equivalent_to(wanted, x.ndim):
        got = getattr(x.sharding, "spec", None)
        held = x.addressable_shards[0].data.shape
        raise Differs(
            f"{what} is sharded by {got}, {tuple(held)} on a device; expected {wanted.shard_shape(x.shape)} on a device"
        )


def shards_hold(x: Any, wanted: np.ndarray, what: str, here: Here) -> None:
    """Check that each shard of this process holds the expected values of its index."""
    for ordinal, shard in enumerate(_own_shards(x)):
        right = wanted[shard.index]
        got = np.asarray(shard.data)
        if got.shape != right.shape:
            raise Differs(f"{what} on device {here.rank}:{ordinal} has shape {got.shape}, expected {right.shape}")
        if not np.allclose(got, right, rtol=1e-5, atol=1e-6):
            at = tuple(int(each) for each in np.argwhere(~np.isclose(got, right, rtol=1e-5, atol=1e-6))[0])
            place = tuple((box.start or 0) + i for box, i in zip(shard.index, at, strict=True))
            raise Differs(
                f"{what} on device {here.rank}:{ordinal} holds {got[at]} at {_index(place)}, expected {right[at]}"
            )


def fits(x: Any, nbytes: int, what: str, here: Here) -> None:
    """Check that no device of this process holds more than `nbytes` bytes of the array."""
    for ordinal, shard in enumerate(_own_shards(x)):
        if shard.data.nbytes > nbytes:
            raise Differs(
                f"{what} takes {shard.data.nbytes} bytes on device {here.rank}:{ordinal}, expected at most {nbytes}; "
                f"its shard is {tuple(shard.data.shape)} of {tuple(x.shape)}"
            )


def _own_shards(x: Any) -> list[Any]:
    """Return the shards of this process, ordered by the local index of their device."""
    return sorted(x.addressable_shards, key=lambda shard: shard.device.id)


def _index(place: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, place)) + "]"
