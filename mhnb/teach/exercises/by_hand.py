"""Lesson 10: collectives by hand with shard_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.teach.budget import Budget, check_budget
from mhnb.teach.compare import assert_shards, call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]

_AXIS = "i"


def _line_mesh() -> Any:
    """Return a mesh with all devices on one axis, as in the lesson."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), (_AXIS,))


def _map_over_devices(body: Any, values: np.ndarray) -> tuple[Callable[..., Any], Any]:
    """Return the learner's function under shard_map, which concatenates the results of the devices, and a sharded input array."""
    import jax

    call_answer(callable, body, what="of a device's piece")
    mesh, spec = _line_mesh(), jax.sharding.PartitionSpec(_AXIS)
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return mapped, jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _compare(mapped: Callable[..., Any], x: Any, wanted: np.ndarray, what: str, process: ProcessInfo) -> None:
    got = mapped(x)
    if got.shape != wanted.shape:
        n = process.device_count
        raise WrongAnswer(
            f"{what} has shape {_device_shape(got.shape, n)} on a device, expected {_device_shape(wanted.shape, n)}"
        )
    assert_shards(got, wanted, what, process)


def _device_shape(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (shape[0] // n, *shape[1:])


def _centered(process: ProcessInfo, centered: Any) -> str:
    values = np.arange(4 * process.device_count, dtype=np.float32) ** 2
    mapped, x = _map_over_devices(centered, values)
    _compare(mapped, x, values - values.mean(), "centered(piece)", process)
    return (
        f"the mean of all is gone; it sends {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=4), mapped, x)}"
    )


def _ring_gather(process: ProcessInfo, gather: Any) -> str:
    n = process.device_count
    values = np.arange(3 * n, dtype=np.float32)
    mapped, x = _map_over_devices(gather, values)
    _compare(mapped, x, np.tile(values, n), "gather(piece)", process)
    budget = Budget({"collective-permute": n - 1}, nbytes_per_device=(n - 1) * 12)
    return f"every device has all pieces in order; it sends {check_budget(budget, mapped, x)}"


def _own_share(process: ProcessInfo, share: Any) -> str:
    n = process.device_count
    partial = (np.arange(n * 2 * n, dtype=np.float32) % 13).reshape(n * 2 * n)
    mapped, x = _map_over_devices(share, partial)
    _compare(mapped, x, partial.reshape(n, 2 * n).sum(axis=0), "share(partial)", process)
    budget = Budget({"reduce-scatter": 1, "all-to-all": 1}, nbytes_per_device=8 * n)
    return f"an eighth of the total each; it sends {check_budget(budget, mapped, x)}"


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
