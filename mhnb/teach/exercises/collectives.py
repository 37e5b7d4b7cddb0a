"""Lesson 08: reading collectives, on a communication budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.budget import Budget, check_budget
from mhnb.teach.compare import call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]

_KIB = 1024


def _mesh(process: ProcessInfo) -> Any:
    """Return a mesh with one row per host, as in the lesson."""
    import jax

    devices = np.array(jax.devices()).reshape(process.process_count, process.local_device_count)
    return jax.sharding.Mesh(devices, ("data", "model"))


def _variance_in_one(process: ProcessInfo, variance: Any) -> str:
    import jax

    rng = np.random.default_rng(8)
    values = rng.integers(-4, 5, (process.device_count, 8)).astype(np.float32)
    sharding = jax.sharding.NamedSharding(_mesh(process), jax.sharding.PartitionSpec(("data", "model"), None))
    x = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
    call_answer(callable, variance, what="of a global array")
    got, wanted = float(jax.jit(variance)(x)), float(values.var())
    if not np.isclose(got, wanted, rtol=1e-4):
        raise WrongAnswer(
            f"variance(x) is {got:.6g}, expected {wanted:.6g}, the mean of the squares less the square of the mean"
        )
    return f"right, and it sends {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=8), variance, x)}"


def _stay_inside(process: ProcessInfo, x_spec: Any, w_spec: Any) -> str:
    mesh = _mesh(process)
    x = _abstract_array("x", (256, 128), mesh, x_spec)
    w = _abstract_array("w", (128, 64), mesh, w_spec)
    usage_text = check_budget(
        Budget({"all-reduce": 1, "all-gather": 1, "reduce-scatter": 1}, nbytes_across_hosts=0), _product, x, w
    )
    return f"16 KiB of each on a device; it sends {usage_text}, nothing to another host"


def _product(x: Any, w: Any) -> Any:
    return x @ w


def _abstract_array(name: str, shape: tuple[int, ...], mesh: Any, spec: Any) -> Any:
    """Return the shape of a sharded array without creating it. The learner's spec may put at most 16 KiB of it on a device."""
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"{name}_spec is a {type(spec).__name__}, expected a PartitionSpec: P(...)")
    try:
        sharding = jax.sharding.NamedSharding(mesh, spec)
        shard_shape = sharding.shard_shape(shape)
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"{name}_spec {spec} does not fit float32{list(shape)} on this mesh: {error}") from None
    nbytes = 4 * int(np.prod(shard_shape))
    if nbytes > 16 * _KIB:
        raise WrongAnswer(
            f"a device holds {nbytes} bytes of {name} ({tuple(shard_shape)} of {shape}), expected at most {16 * _KIB}"
        )
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)


TASKS = (
    Prediction(
        "rows_times_whole",
        "08",
        "left has its rows split over all devices, weights is whole on each. How many collectives has left @ weights?",
        (0, 1, 2),
        "Every device has its rows and all weights, so it computes its rows of the result alone.",
    ),
    Exercise(
        "variance_in_one",
        "08",
        "Mend variance(x): the variance of all elements, with one all-reduce of at most 8 bytes a device.",
        _variance_in_one,
    ),
    Exercise(
        "stay_inside",
        "08",
        "Choose x_spec and w_spec for x @ w: at most 16 KiB of each on a device, and nothing to another host.",
        _stay_inside,
    ),
)
