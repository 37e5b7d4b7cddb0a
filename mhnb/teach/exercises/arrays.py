"""Lesson 04: making global arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import fits, global_array, shards_hold, spec_is
from mhnb.teach.exercise import Exercise, Here, Prediction

__all__ = ["TASKS"]


def _mesh(here: Here) -> Any:
    import jax

    return jax.make_mesh((here.process_count, here.local_device_count), ("data", "model"))


def _table(here: Here) -> np.ndarray:
    rows = np.arange(2 * here.process_count, dtype=np.float32)
    return rows[:, None] * 10 + np.arange(here.process_count, dtype=np.float32)


def _judge_table(here: Here, x: Any, spec: tuple[str | None, ...]) -> None:
    import jax

    wanted = _table(here)
    global_array(x, wanted.shape, "float32", "x", here)
    spec_is(x, _mesh(here), jax.sharding.PartitionSpec(*spec), "x")
    shards_hold(x, wanted, "x", here)


def _from_callback(here: Here, x: Any) -> str:
    _judge_table(here, x, ("data", None))
    return "every shard holds the rows of its box"


def _from_local_columns(here: Here, x: Any) -> str:
    _judge_table(here, x, (None, "data"))
    return "a column of each rank, in the order of the ranks"


def _from_single_devices(here: Here, x: Any) -> str:
    import jax

    wanted = np.repeat(np.arange(here.device_count, dtype=np.float32), 2)
    global_array(x, wanted.shape, "float32", "x", here)
    spec_is(x, _mesh(here), jax.sharding.PartitionSpec(("data", "model")), "x")
    shards_hold(x, wanted, "x", here)
    return "each device holds its own position, twice"


def _all_of_it(here: Here, y: Any) -> str:
    import jax

    wanted = _table(here)
    global_array(y, wanted.shape, "float32", "y", here)
    spec_is(y, _mesh(here), jax.sharding.PartitionSpec(), "y")
    shards_hold(y, wanted, "y", here)
    return "every device holds the whole array, and float(y[0, 0]) needs no communication"


def _fits(here: Here, x: Any) -> str:
    wanted = np.ones((64, 32), np.float32)
    limit_nbytes = wanted.nbytes // here.device_count
    global_array(x, wanted.shape, "float32", "x", here)
    fits(x, limit_nbytes, "x", here)
    shards_hold(x, wanted, "x", here)
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
