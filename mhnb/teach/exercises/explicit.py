"""Exercises of the lesson: Auto, Explicit and Manual axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    Budget,
    assert_global_array,
    assert_shards,
    call_answer,
    check_budget,
    make_mesh,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


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
                f"the result is {jax.typeof(got)}",
                expected="rows sharded over hosts, columns over inside",
                note="Every device holds the whole result, which is always possible and costs most"
                if got.sharding.is_fully_replicated
                else "",
            )
        return f"{jax.typeof(got)}; it runs {check_budget(budget, function, *arguments)}"


def _add_typed(process: ProcessInfo, add: Any) -> str:
    n = process.device_count
    values = np.arange(n * n, dtype=np.float32).reshape(n, n)
    # y is whole on every device, because JAX's rule would solve the task if its columns were sharded over inside.
    x, y = _sharded_array(process, values, "hosts", None), _sharded_array(process, 10 * values)
    return _grade(process, add, 11 * values, (x, y), Budget({}))


def _dot_typed(process: ProcessInfo, dot: Any) -> str:
    rng = np.random.default_rng(9)
    u = rng.integers(-3, 4, (2 * process.process_count, 16)).astype(np.float32)
    v = rng.integers(-3, 4, (16, 2 * process.local_device_count)).astype(np.float32)
    arguments = _sharded_array(process, u, "hosts", "inside"), _sharded_array(process, v, "inside", None)
    counts = {"reduce-scatter": 1, "all-reduce": 1, "all-to-all": 1}
    return _grade(process, dot, u @ v, arguments, Budget(counts, nbytes_per_device=32, nbytes_across_hosts=0))


LESSON = Lesson(
    "06_explicit.ipynb",
    "Auto, Explicit, Manual",
    (
        Prediction(
            "type_of_sum",
            "a is float32[8@hosts,1] and b is float32[1,6@inside]. What is the type of a + b?",
            ("float32[8,6]", "float32[8@hosts,6]", "float32[8@hosts,6@inside]"),
            "A dim of size 1 is repeated. The dim of size 8 keeps the axis of a, the dim of size 6 that of b.",
        ),
        Exercise(
            "add_typed",
            "give the sharding of the result",
            "Fix add(x, y): the sum, rows over hosts and columns over inside, with no collective. x has its rows over hosts, y is whole.",
            _add_typed,
            "medium",
            (
                "A device that keeps only a part of what it holds sends nothing.",
                "So an operand can get a second axis in its spec for free, but it costs to remove one.",
                "Before the sum, give both operands the sharding that the result should have.",
            ),
        ),
        Exercise(
            "dot_typed",
            "the cheap product",
            "Write dot(u, v): the product, rows over hosts and columns over inside, with at most 32 bytes per device.",
            _dot_typed,
            "medium",
            (
                "A gathered operand has more bytes than a partial product: multiply first, and communicate after it.",
                "The call that computes the product can take the sharding of its result.",
            ),
        ),
    ),
)
