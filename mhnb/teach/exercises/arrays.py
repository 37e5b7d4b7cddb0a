"""Exercises of the lesson: making global arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_fits,
    assert_global_array,
    assert_shards,
    assert_spec,
    make_mesh,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo


def _mesh(process: ProcessInfo) -> Any:
    return make_mesh((process.process_count, process.local_device_count), ("data", "model"))


def _table_values(process: ProcessInfo) -> np.ndarray:
    rows = np.arange(2 * process.process_count, dtype=np.float32)
    return rows[:, None] * 10 + np.arange(process.process_count, dtype=np.float32)


def _grade_table(process: ProcessInfo, x: Any, spec: tuple[str | None, ...]) -> None:
    import jax

    wanted = _table_values(process)
    assert_global_array(x, wanted.shape, "float32", "x", process)
    assert_spec(x, _mesh(process), jax.sharding.PartitionSpec(*spec), "x")
    assert_shards(x, wanted, "x", process)


def _from_callback(process: ProcessInfo, x: Any) -> str:
    _grade_table(process, x, ("data", None))
    return "every shard holds the rows of its index"


def _from_local_columns(process: ProcessInfo, x: Any) -> str:
    _grade_table(process, x, (None, "data"))
    return "one column from each rank, in rank order"


def _from_single_devices(process: ProcessInfo, x: Any) -> str:
    import jax

    wanted = np.repeat(np.arange(process.device_count, dtype=np.float32), 2)
    assert_global_array(x, wanted.shape, "float32", "x", process)
    assert_spec(x, _mesh(process), jax.sharding.PartitionSpec(("data", "model")), "x")
    assert_shards(x, wanted, "x", process)
    return "each device holds its own position, twice"


def _all_of_it(process: ProcessInfo, y: Any) -> str:
    import jax

    wanted = _table_values(process)
    assert_global_array(y, wanted.shape, "float32", "y", process)
    assert_spec(y, _mesh(process), jax.sharding.PartitionSpec(), "y")
    assert_shards(y, wanted, "y", process)
    return "every device holds the whole array, and float(y[0, 0]) needs no communication"


def _fits(process: ProcessInfo, x: Any) -> str:
    wanted = np.ones((64, 32), np.float32)
    limit_nbytes = wanted.nbytes // process.device_count
    assert_global_array(x, wanted.shape, "float32", "x", process)
    assert_fits(x, limit_nbytes, "x", process)
    assert_shards(x, wanted, "x", process)
    return f"{limit_nbytes} bytes on every device"


LESSON = Lesson(
    "07_arrays.ipynb",
    "Making global arrays",
    (
        Prediction(
            "addressable",
            "x has shards on the devices of all 4 ranks. What is x.is_fully_addressable on rank 0?",
            (True, False),
            "A process can read only the shards on its own devices. An array on only these devices would be fully addressable.",
        ),
        Prediction(
            "held_kib",
            "An array of 512 KiB has the spec P(None, 'model'), on the mesh with data=4 and model=2. "
            "How many KiB do all 8 devices hold together?",
            (512, 1024, 2048, 4096),
            "The spec divides the columns in two and leaves out data, so each half is on 4 devices: 4 times 512 KiB.",
        ),
        Exercise(
            "from_callback",
            "from a callback",
            "Make x, float32[8,4] of values 10 * row + column, sharded by rows over 'data', with make_array_from_callback.",
            _from_callback,
            "easy",
            (
                "The callback gets the index of a shard, a tuple of slices. Return the values at this index.",
                "In the stub, rows and columns already are the row and column numbers of the shard.",
                "rows[:, None] is a column of numbers, so adding columns to it gives one value for each place.",
            ),
        ),
        Exercise(
            "from_local_columns",
            "from each rank's column",
            "Make x with the values of the table, sharded by columns over 'data'; each rank passes its own column.",
            _from_local_columns,
            "medium",
            (
                "Each rank passes one column, an array with all rows. JAX trusts that it is the rank's own.",
                "The number of the rank is the number of its column.",
                "Slice the column, as in table[:, a:b], so that what you pass still has two dims.",
            ),
        ),
        Exercise(
            "from_single_devices",
            "device by device",
            "Make x, float32[16], in which each device holds two values: its own position in jax.devices(), twice.",
            _from_single_devices,
            "hard",
            (
                "Make a small array on each of this rank's devices, filled with the device's position in jax.devices().",
                "jax.device_put(value, device) puts a value on one device, and jax.local_devices() are this rank's devices.",
                "jax.devices().index(device) is a device's position. The pieces have shape (2,), the global array (16,).",
            ),
        ),
        Exercise(
            "all_of_it",
            "replicated everywhere",
            "Set y to the values of source, replicated on every device.",
            _all_of_it,
            "easy",
            (
                "A spec that names no axis replicates the array.",
                "jax.device_put also takes a global array, and gives it another sharding.",
            ),
        ),
        Exercise(
            "fits",
            "it must fit",
            "Make x, float32[64,32] of ones, so that no device holds more than 1024 bytes of it.",
            _fits,
            "medium",
            (
                "Which mesh axis does the spec of by_rows leave out?",
                "One entry of a spec can name two axes, which shards a dim over all devices.",
            ),
        ),
    ),
)
