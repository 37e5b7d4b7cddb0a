"""Exercises of the lesson: collectives by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mhnb.teach.check import (
    Budget,
    assert_shards,
    call_answer,
    check_budget,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_AXIS = "i"


def _line_mesh() -> Any:
    """Return the lesson's mesh: all devices on one axis."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), (_AXIS,))


def _map_over_devices(body: Any, values: np.ndarray) -> tuple[Callable[..., Any], Any]:
    """Return the learner's function under shard_map, and a sharded input array."""
    import jax

    call_answer(callable, body, what="of a device's shard")
    mesh, spec = _line_mesh(), jax.sharding.PartitionSpec(_AXIS)
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return mapped, jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A wrong result that learners often have."""

    values: np.ndarray
    yours: str
    """What such an answer does."""
    expected: str


def _compare(
    mapped: Callable[..., Any], x: Any, wanted: np.ndarray, what: str, process: ProcessInfo, *, mistake: _Mistake
) -> None:
    got = mapped(x)
    if _holds(got, mistake.values):
        raise WrongAnswer(mistake.yours, expected=mistake.expected)
    if got.shape != wanted.shape:
        n = process.device_count
        raise WrongAnswer(
            f"{what} has shape {_device_shape(got.shape, n)} per device", expected=f"{_device_shape(wanted.shape, n)}"
        )
    assert_shards(got, wanted, what, process)


def _holds(x: Any, values: np.ndarray) -> bool:
    """Return whether this process's shards hold these values."""
    return x.shape == values.shape and all(
        np.allclose(np.asarray(shard.data), values[shard.index]) for shard in x.addressable_shards
    )


def _device_shape(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (shape[0] // n, *shape[1:])


def _centered(process: ProcessInfo, centered: Any) -> str:
    values = np.arange(4 * process.device_count, dtype=np.float32) ** 2
    mapped, x = _map_over_devices(centered, values)
    pieces = values.reshape(process.device_count, -1)
    mistake = _Mistake(
        (pieces - pieces.mean(axis=1, keepdims=True)).ravel(),
        "each device subtracts the mean of its own piece",
        f"the mean of the whole array, {values.mean():g}, on every device",
    )
    _check_subtracted(mapped(x), values)
    _compare(mapped, x, values - values.mean(), "centered(piece)", process, mistake=mistake)
    return f"the mean of the result is 0; it runs {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=4), mapped, x)}"


def _check_subtracted(got: Any, values: np.ndarray) -> None:
    """Raise if all devices of this process subtract the same wrong number."""
    if got.shape != values.shape:
        return
    by = np.concatenate([values[shard.index] - np.asarray(shard.data) for shard in got.addressable_shards])
    if np.allclose(by, by[0]) and not np.isclose(by[0], values.mean()):
        raise WrongAnswer(f"every device subtracts {by[0]:g}", expected=f"the mean of all numbers, {values.mean():g}")


def _ring_gather(process: ProcessInfo, gather: Any) -> str:
    n = process.device_count
    values = np.arange(3 * n, dtype=np.float32)
    mapped, x = _map_over_devices(gather, values)
    mistake = _Mistake(
        np.repeat(values.reshape(n, -1), n, axis=0).ravel(),
        f"each device has its own piece {n} times",
        "the pieces of all devices",
    )
    _check_order(mapped(x), values, n)
    _compare(mapped, x, np.tile(values, n), "gather(piece)", process, mistake=mistake)
    budget = Budget({"collective-permute": n - 1}, nbytes_per_device=(n - 1) * 12)
    return f"every device has all shards in order; it runs {check_budget(budget, mapped, x)}"


def _check_order(got: Any, values: np.ndarray, n: int) -> None:
    """Raise if this process's devices have all numbers in another order."""
    if got.shape != (n * values.size,):
        return
    held = [np.asarray(shard.data) for shard in got.addressable_shards]
    if all((np.sort(each) == values).all() for each in held) and any((each != values).any() for each in held):
        raise WrongAnswer("each device has all pieces, in another order", expected="the order of the devices")


def _own_share(process: ProcessInfo, share: Any) -> str:
    n = process.device_count
    partial = (np.arange(n * 2 * n, dtype=np.float32) % 13).reshape(n * 2 * n)
    mapped, x = _map_over_devices(share, partial)
    total = partial.reshape(n, 2 * n).sum(axis=0)
    mistake = _Mistake(
        np.tile(total, n),
        f"every device has the whole sum, {2 * n} numbers",
        f"its own part, {total.size // n} numbers",
    )
    _compare(mapped, x, total, "share(partial)", process, mistake=mistake)
    budget = Budget({"reduce-scatter": 1, "all-to-all": 1}, nbytes_per_device=8 * n)
    return f"each device has its own part of the sum; it runs {check_budget(budget, mapped, x)}"


LESSON = Lesson(
    "12_by_hand.ipynb",
    "Collectives by hand",
    (
        Prediction(
            "shape_inside",
            "x has 16 elements over 8 devices. Under shard_map with in_specs=P('i'), what shape does the function see?",
            ((16,), (8,), (4,), (2,)),
            "It is called with the shard of one device, and computes everything from that.",
        ),
        Exercise(
            "centered",
            "the mean, by hand",
            "Write centered(piece) for shard_map: the piece minus the mean of the whole array, with one all-reduce of 4 bytes.",
            _centered,
            "medium",
            (
                "Reduce on the device first, so that each device contributes one number.",
                "All pieces have the same length, so the mean of their means is the mean of the whole array.",
                "The section on collectives has a function that takes the mean over the devices of an axis.",
            ),
        ),
        Exercise(
            "ring_gather",
            "an all-gather in a ring",
            "Write gather(piece) with lax.ppermute: all pieces in order on every device, with at most 7 messages.",
            _ring_gather,
            "hard",
            (
                "Pass on the piece that arrived last. After k steps, the piece comes from the device k positions away.",
                "Keep every piece that arrives in a list. Each device then has all pieces, but begins with its own.",
                "jnp.stack makes one array of the list. Compute where in it the piece of device 0, 1, ... 7 is, and index with that.",
            ),
        ),
        Exercise(
            "own_share",
            "a sum that stays sharded",
            "Write share(partial) for shard_map: the device's own eighth of the sum of all partial vectors.",
            _own_share,
            "medium",
            (
                "One collective sums, and gives each device only its own part.",
                "It is the first half of an all-reduce.",
                "It should split the dim that the vector has, and not add one for the devices.",
            ),
        ),
    ),
)
