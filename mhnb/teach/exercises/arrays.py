"""Lesson 04: making global arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import assert_fits, assert_global_array, assert_shards, assert_spec
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo

__all__ = ["TASKS"]


def _mesh(process: ProcessInfo) -> Any:
    import jax

    return jax.make_mesh((process.process_count, process.local_device_count), ("data", "model"))


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
    return "every shard holds the rows of its box"


def _from_local_columns(process: ProcessInfo, x: Any) -> str:
    _grade_table(process, x, (None, "data"))
    return "a column of each rank, in the order of the ranks"


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


TASKS = (
    Prediction(
        "addressable",
        "04",
        "x has shards on the devices of all 4 ranks. What is x.is_fully_addressable on rank 0?",
        (True, False),
        "A process can read the shards of its own devices only.",
    ),
    Exercise(
        "from_callback",
        "04",
        "Make x, float32[8,4] with 10 * row + column in it, by rows over 'data', with make_array_from_callback.",
        _from_callback,
    ),
    Exercise(
        "from_local_columns",
        "04",
        "Make x with the values of the table, by columns over 'data'; each rank hands over its own column.",
        _from_local_columns,
    ),
    Exercise(
        "from_single_devices",
        "04",
        "Make x, float32[16], of which each device holds two values: its own position in jax.devices(), twice.",
        _from_single_devices,
    ),
    Exercise(
        "all_of_it",
        "04",
        "Bind y to the values of source, held whole by every device.",
        _all_of_it,
    ),
    Exercise(
        "fits", "04", "Make x, float32[64,32] of ones, so that no device holds more than 1024 bytes of it.", _fits
    ),
)
