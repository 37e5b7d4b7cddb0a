"""Exercises on collectives: lessons 09 (explicit sharding) and 10 (shard_map)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.teach.check import Budget, assert_global_array, assert_shards, call_answer, check_budget, make_mesh
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

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


def _compare(mapped: Callable[..., Any], x: Any, wanted: np.ndarray, what: str, process: ProcessInfo) -> None:
    got = mapped(x)
    if got.shape != wanted.shape:
        n = process.device_count
        raise WrongAnswer(
            f"{what} has shape {_device_shape(got.shape, n)} per device", expected=f"{_device_shape(wanted.shape, n)}"
        )
    assert_shards(got, wanted, what, process)


def _device_shape(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (shape[0] // n, *shape[1:])


def _centered(process: ProcessInfo, centered: Any) -> str:
    values = np.arange(4 * process.device_count, dtype=np.float32) ** 2
    mapped, x = _map_over_devices(centered, values)
    _compare(mapped, x, values - values.mean(), "centered(piece)", process)
    return f"the mean of the result is 0; it runs {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=4), mapped, x)}"


def _ring_gather(process: ProcessInfo, gather: Any) -> str:
    n = process.device_count
    values = np.arange(3 * n, dtype=np.float32)
    mapped, x = _map_over_devices(gather, values)
    _compare(mapped, x, np.tile(values, n), "gather(piece)", process)
    budget = Budget({"collective-permute": n - 1}, nbytes_per_device=(n - 1) * 12)
    return f"every device has all shards in order; it runs {check_budget(budget, mapped, x)}"


def _own_share(process: ProcessInfo, share: Any) -> str:
    n = process.device_count
    partial = (np.arange(n * 2 * n, dtype=np.float32) % 13).reshape(n * 2 * n)
    mapped, x = _map_over_devices(share, partial)
    _compare(mapped, x, partial.reshape(n, 2 * n).sum(axis=0), "share(partial)", process)
    budget = Budget({"reduce-scatter": 1, "all-to-all": 1}, nbytes_per_device=8 * n)
    return f"each device has its own part of the sum; it runs {check_budget(budget, mapped, x)}"


# -- lesson 09: explicit sharding


def _sharded_array(process: ProcessInfo, values: np.ndarray, *spec: str | None) -> Any:
    import jax

    mesh = make_mesh((process.process_count, process.local_device_count), ("hosts", "inside"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _grade(process: ProcessInfo, function: Any, wanted: np.ndarray, arguments: tuple[Any, ...], budget: Budget) -> str:
    """Check the values, then the sharding in the type, then the communication."""
    import jax

    call_answer(callable, function, what="of two arrays")
    with jax.set_mesh(arguments[0].sharding.mesh):
        got = assert_global_array(jax.jit(function)(*arguments), wanted.shape, "float32", "the result", process)
        assert_shards(got, wanted, "the result", process)
        spec = jax.sharding.PartitionSpec("hosts", "inside")
        if got.sharding.spec != spec:
            raise WrongAnswer(
                f"the result is {jax.typeof(got)}", expected="rows sharded over hosts, columns over inside"
            )
        return f"{jax.typeof(got)}; it runs {check_budget(budget, function, *arguments)}"


def _add_typed(process: ProcessInfo, add: Any) -> str:
    n = process.device_count
    values = np.arange(n * n, dtype=np.float32).reshape(n, n)
    x, y = _sharded_array(process, values, "hosts", None), _sharded_array(process, 10 * values, None, "inside")
    return _grade(process, add, 11 * values, (x, y), Budget({}))


def _dot_typed(process: ProcessInfo, dot: Any) -> str:
    rng = np.random.default_rng(9)
    u = rng.integers(-3, 4, (2 * process.process_count, 16)).astype(np.float32)
    v = rng.integers(-3, 4, (16, 2 * process.local_device_count)).astype(np.float32)
    arguments = _sharded_array(process, u, "hosts", "inside"), _sharded_array(process, v, "inside", None)
    counts = {"reduce-scatter": 1, "all-reduce": 1, "all-to-all": 1}
    return _grade(process, dot, u @ v, arguments, Budget(counts, nbytes_per_device=32, nbytes_across_hosts=0))


TASKS = (
    Prediction(
        "shape_inside",
        "10",
        "x has 16 elements over 8 devices. Under shard_map with in_specs=P('i'), what shape does the function see?",
        ((16,), (8,), (4,), (2,)),
        "It is called with the shard of one device, and computes everything from that.",
    ),
    Exercise(
        "centered",
        "10",
        "Write centered(piece) for shard_map: the piece minus the mean of the whole array, with one all-reduce of 4 bytes.",
        _centered,
        hint="Reduce on the device first, so that each device contributes one number.",
    ),
    Exercise(
        "ring_gather",
        "10",
        "Write gather(piece) with lax.ppermute: all pieces in order on every device, with at most 7 messages of one piece each.",
        _ring_gather,
        hint="Pass on the piece that arrived last. After k steps, the piece comes from the device k positions away.",
    ),
    Exercise(
        "own_share",
        "10",
        "Write share(partial) for shard_map: the device's own eighth of the sum of all partial vectors.",
        _own_share,
        hint="One collective sums, and gives each device only its own part.",
    ),
    Prediction(
        "type_of_sum",
        "09",
        "a is float32[8@hosts,1] and b is float32[1,6@inside]. What is the type of a + b?",
        ("float32[8,6]", "float32[8@hosts,6]", "float32[8@hosts,6@inside]"),
        "A dim of size 1 is repeated. The dim of size 8 keeps the axis of a, the dim of size 6 that of b.",
    ),
    Exercise(
        "add_typed",
        "09",
        "Fix add(x, y): the sum of x, sharded over hosts, and y, sharded over inside, with no collective.",
        _add_typed,
        hint="Reshard both operands to the sharding of the result. A device that keeps only a part of its shard sends nothing.",
    ),
    Exercise(
        "dot_typed",
        "09",
        "Write dot(u, v): the product, rows over hosts and columns over inside, with at most 32 bytes per device.",
        _dot_typed,
        hint="Set the sharding of the result in the call that computes the product.",
    ),
)
