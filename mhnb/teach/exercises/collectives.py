"""Exercises of the lesson: reading collectives, on a communication budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    Budget,
    call_answer,
    check_budget,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

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
            f"variance(x) is {got:.6g}",
            expected=f"{wanted:.6g}, the variance of all elements",
            note="The variance is the mean of (x - m)², where m is the mean of all elements",
        )
    return f"right; it runs {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=8), variance, x)}"


def _stay_inside(process: ProcessInfo, x_spec: Any, w_spec: Any) -> str:
    mesh = _mesh(process)
    x = _abstract_array("x", (256, 128), mesh, x_spec)
    w = _abstract_array("w", (128, 64), mesh, w_spec)
    usage_text = check_budget(
        Budget({"all-reduce": 1, "all-gather": 1, "reduce-scatter": 1}, nbytes_across_hosts=0), _product, x, w
    )
    return f"at most 16 KiB of each per device; it runs {usage_text}, with nothing for another host"


def _product(x: Any, w: Any) -> Any:
    return x @ w


def _abstract_array(name: str, shape: tuple[int, ...], mesh: Any, spec: Any) -> Any:
    """Return an abstract sharded array of at most 16 KiB per device."""
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"{name}_spec is {name_kind(spec)}", expected="a PartitionSpec: P(...)")
    try:
        sharding = jax.sharding.NamedSharding(mesh, spec)
        shard_shape = sharding.shard_shape(shape)
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"{name}_spec {spec} does not fit float32{list(shape)} on this mesh: {error}") from None
    nbytes = 4 * int(np.prod(shard_shape))
    if nbytes > 16 * _KIB:
        raise WrongAnswer(
            f"a device holds {nbytes} bytes of {name} ({tuple(shard_shape)} of {shape})",
            expected=f"at most {16 * _KIB}",
            note="x has 128 KiB in all, and w has 32 KiB",
        )
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)


LESSON = Lesson(
    "11_collectives.ipynb",
    "Reading collectives, on a communication budget",
    (
        Prediction(
            "rows_times_whole",
            "left is sharded by rows over all devices, and weights is replicated. How many collectives does left @ weights run?",
            (0, 1, 2),
            "Every device has its rows and all weights, so it computes its rows of the result without communication.",
        ),
        Exercise(
            "variance_in_one",
            "the variance, in one message",
            "Fix variance(x): the variance of all elements, with one all-reduce of at most 8 bytes per device.",
            _variance_in_one,
            "medium",
            (
                "One all-reduce can carry two sums that do not depend on each other.",
                "The squares of the differences need the mean first. Look for two sums that need only x.",
                "Expand the square in the mean of (x - m)², and see which two means are left.",
            ),
        ),
        Exercise(
            "stay_inside",
            "stay inside the host",
            "Choose x_spec and w_spec for x @ w: at most 16 KiB of each per device, and nothing sent to another host.",
            _stay_inside,
            "hard",
            (
                "Which dim does the product sum over, and which mesh axis crosses hosts?",
                "An axis may cross hosts without a message if it shards a dim that is not summed over, such as the rows of x.",
                "16 KiB is an eighth of x, so x needs both axes. It is half of w, so one axis is enough there.",
            ),
        ),
    ),
)
