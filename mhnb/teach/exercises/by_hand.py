"""Lesson 10: collectives by hand with shard_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.teach.budget import Budget, stay_within
from mhnb.teach.compare import call, shards_hold
from mhnb.teach.exercise import Differs, Exercise, Here, Prediction

__all__ = ["TASKS"]

_AXIS = "i"


def _line() -> Any:
    """Return a mesh with all devices on one axis, as in the lesson."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), (_AXIS,))


def _on_each(body: Any, values: np.ndarray) -> tuple[Callable[..., Any], Any]:
    """Return the learner's function under shard_map, which concatenates the results of the devices, and a sharded input array."""
    import jax

    call(callable, body, what="of a device's piece")
    mesh, spec = _line(), jax.sharding.PartitionSpec(_AXIS)
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return mapped, jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _compare(mapped: Callable[..., Any], x: Any, wanted: np.ndarray, what: str, here: Here) -> None:
    got = mapped(x)
    if got.shape != wanted.shape:
        n = here.device_count
        raise Differs(f"{what} has shape {_each(got.shape, n)} on a device, expected {_each(wanted.shape, n)}")
    shards_hold(got, wanted, what, here)


def _each(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (shape[0] // n, *shape[1:])


def _centered(here: Here, centered: Any) -> str:
    values = np.arange(4 * here.device_count, dtype=np.float32) ** 2
    mapped, x = _on_each(centered, values)
    _compare(mapped, x, values - values.mean(), "centered(piece)", here)
    return f"the mean of all is gone; it sends {stay_within(Budget({'all-reduce': 1}, nbytes_per_device=4), mapped, x)}"


def _ring_gather(here: Here, gather: Any) -> str:
    n = here.device_count
    values = np.arange(3 * n, dtype=np.float32)
    mapped, x = _on_each(gather, values)
    _compare(mapped, x, np.tile(values, n), "gather(piece)", here)
    budget = Budget({"collective-permute": n - 1}, nbytes_per_device=(n - 1) * 12)
    return f"every device has all pieces in order; it sends {stay_within(budget, mapped, x)}"


def _own_share(here: Here, share: Any) -> str:
    n = here.device_count
    partial = (np.arange(n * 2 * n, dtype=np.float32) % 13).reshape(n * 2 * n)
    mapped, x = _on_each(share, partial)
    _compare(mapped, x, partial.reshape(n, 2 * n).sum(axis=0), "share(partial)", here)
    budget = Budget({"reduce-scatter": 1, "all-to-all": 1}, nbytes_per_device=8 * n)
    return f"an eighth of the total each; it sends {stay_within(budget, mapped, x)}"


TASKS = (
    Prediction(
        "shape_inside",
        "10",
        "x has 16 elements over 8 devices. Under shard_map with in_specs=P('i'), which shape does the function see?",
        ((16,), (8,), (4,), (2,)),
        "It is called with the piece of one device. Everything it computes, it computes from that.",
    ),
    Exercise(
        "centered",
        "10",
        "Write centered(piece) for shard_map: the piece less the mean of the whole array, with one all-reduce of 4 bytes.",
        _centered,
    ),
    Exercise(
        "ring_gather",
        "10",
        "Write gather(piece) with lax.ppermute: all pieces in order on every device, with at most 7 messages of a piece.",
        _ring_gather,
    ),
    Exercise(
        "own_share",
        "10",
        "Write share(partial) for shard_map: the device's own eighth of the sum of all partial vectors.",
        _own_share,
    ),
)
