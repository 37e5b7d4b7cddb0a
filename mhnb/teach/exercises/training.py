"""Exercises of the lesson: training and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.teach.check import (
    Budget,
    assert_global_array,
    assert_shards,
    call_answer,
    check_budget,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_DIM = 6


def _mesh() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def _sharded_array(values: np.ndarray, *spec: str | None) -> Any:
    import jax

    sharding = jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _fixed_step(process: ProcessInfo, step: Any) -> str:
    import jax

    n = 2 * process.device_count
    w, x, y = _numbers(1, _DIM), _numbers(2, n, _DIM), _numbers(3, n)
    call_answer(callable, step, what="of w, x and y")
    arguments = _sharded_array(w), _sharded_array(x, "data"), _sharded_array(y, "data")
    got = assert_global_array(jax.jit(step)(*arguments), w.shape, "float32", "the new w", process)
    right = _gradient(w, x, y)
    _assert_shards(got, w - 0.1 * right, "the new w", process, lambda new: (w - new) / (0.1 * right))
    return f"the same w on every device; it runs {check_budget(Budget({'all-reduce': 1}), step, *arguments)}"


def _assert_shards(
    got: Any, expected: np.ndarray, what: str, process: ProcessInfo, divide: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Check this process's shards, and describe how a wrong gradient differs.

    Args:
        got: the learner's array.
        expected: its right values.
        what: its name in the feedback.
        process: the process in which it is checked.
        divide: divides the gradient in a shard by the right one.
    """
    try:
        assert_shards(got, expected, what, process)
    except WrongAnswer as wrong:
        ratios = np.stack([divide(np.asarray(shard.data)) for shard in got.addressable_shards])
        note = ""
        if np.allclose(ratios, ratios.flat[0], rtol=1e-3):
            note = f"Every number of your gradient is {ratios.flat[0]:.4g} times the right one"
        elif not np.allclose(ratios, ratios[0], rtol=1e-3):
            note = "Your gradient differs from device to device, so it is not added up over all of them"
        raise WrongAnswer(wrong.yours, expected=wrong.expected, note=note) from None


def _gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean squared error of a linear model."""
    wanted: np.ndarray = 2 * x.T @ (x @ w - y) / len(x)
    return wanted


def _accumulate_once(process: ProcessInfo, accumulate: Any) -> str:
    import jax

    n, parts = 2 * process.device_count, 4
    w, xs = _numbers(4, _DIM), _numbers(5, parts, n, _DIM)
    call_answer(callable, accumulate, what="of w and xs")
    spec: Any = jax.sharding.PartitionSpec
    mapped = jax.jit(
        # Without the check, the gradient of replicated parameters stays local to each device until the learner sums it.
        jax.shard_map(
            lambda w, xs: accumulate(w, xs)[None],
            mesh=_mesh(),
            in_specs=(spec(), spec(None, "data")),
            out_specs=spec("data"),
            check_vma=False,
        )
    )
    arguments = _sharded_array(w), _sharded_array(xs, None, "data")
    wanted = np.mean([_gradient(w, x, np.zeros(n, np.float32)) for x in xs], axis=0)
    got = mapped(*arguments)
    if got.shape != (process.device_count, _DIM):
        raise WrongAnswer(f"accumulate(w, xs) has shape {got.shape[1:]}", expected=f"{(_DIM,)}, the shape of w")
    tiled = np.tile(wanted, (process.device_count, 1))
    _assert_shards(got, tiled, "accumulate(w, xs)", process, lambda each: each[0] / wanted)
    budget = Budget({"all-reduce": 1}, nbytes_per_device=4 * _DIM)
    return f"the mean over devices and parts; it runs {check_budget(budget, mapped, *arguments)}"


def _split_params(process: ProcessInfo, spec_of: Any) -> str:
    import jax

    n, mesh = process.device_count, _mesh()
    for shape in ((16 * n, 3), (3, 16 * n), (2, 3, n), (2 * n, 2 * n), (n,), (n - 1,), (3, 5), ()):
        spec = call_answer(spec_of, shape, what="of a shape")
        can_split = any(size % n == 0 for size in shape)
        can = (
            f"A dim of {shape} can be divided evenly by {n}"
            if can_split
            else f"No dim of {shape} can be divided by {n}"
        )
        if not isinstance(spec, jax.sharding.PartitionSpec):
            raise WrongAnswer(f"spec_of({shape}) is {name_kind(spec)}", expected="a PartitionSpec: jax.P(...)")
        if sum("data" in (names if isinstance(names, tuple) else (names,)) for names in spec) > 1:
            raise WrongAnswer(f"spec_of({shape}) is {spec}", expected="the axis at most once: it divides one dim")
        try:
            shard_shape = jax.sharding.NamedSharding(mesh, spec).shard_shape(shape)
        except (ValueError, IndexError, KeyError) as error:
            raise WrongAnswer(
                f"spec_of({shape}) is {spec}, which does not fit: {str(error).splitlines()[0]}",
                note=can,
            ) from None
        most = int(np.prod(shape)) * 4 // (n if can_split else 1)
        nbytes = int(np.prod(shard_shape)) * 4
        if nbytes > most:
            raise WrongAnswer(
                f"with spec_of({shape}), {spec}, a device holds {nbytes} bytes",
                expected=f"at most {most}",
                note=can,
            )
    return f"1/{n} on each device if a dim can be sharded, otherwise replicated"


LESSON = Lesson(
    "13_training.ipynb",
    "Training and checkpoints",
    (
        Prediction(
            "rows_that_differ",
            "Each of 4 processes draws 16 rows from jax.random.key(0). How many different rows does the batch of 64 have?",
            (64, 16, 4, 1),
            "The same key gives the same numbers in every process, so four processes did the work of one. The shape is right, and a loss "
            "would decrease, so no message tells you. Fold the process index into the key, as in lesson 08.",
        ),
        Exercise(
            "fixed_step",
            "the printed step, fixed",
            "Correct fixed_step(w, x, y): it returns w minus 0.1 times the gradient of the mean squared error, with one all-reduce.",
            _fixed_step,
            "medium",
            (
                "Under jit the batch is global, so a mean over it is a mean over all devices.",
                "Compare the number of rows with the number of devices: by which of them must a sum of squares be divided?",
                "If the loss is a mean, its gradient needs no division at all.",
            ),
        ),
        Exercise(
            "accumulate_once",
            "accumulate, then send once",
            "Write accumulate(w, xs) for shard_map: the mean gradient over devices and parts, with one all-reduce.",
            _accumulate_once,
            "hard",
            (
                "A sum over devices may come after a sum over parts, because the order of additions does not matter.",
                "Add up the gradients on the device, and use one collective after the loop.",
                "Two means are wanted: over the devices, and over the parts.",
            ),
        ),
        Exercise(
            "split_params",
            "no device holds it all",
            "Write spec_of(shape): the PartitionSpec over the axis data that gives each device as few bytes as possible.",
            _split_params,
            "medium",
            (
                "Look for a dim that the number of devices divides.",
                "It may be any dim: a spec has None for those before it.",
                "Not every shape has such a dim. What is the spec of a replicated array?",
            ),
        ),
    ),
)
