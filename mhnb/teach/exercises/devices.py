"""Lesson 02: local and global devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import assert_equal, call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]


def _n_devices_in_mesh(process: ProcessInfo, n_devices_in_mesh: Any) -> str:
    got = call_answer(n_devices_in_mesh, np.float32(0), what="of one argument")
    devices = _count_devices(process)
    shape, dtype = getattr(got, "shape", None), getattr(got, "dtype", None)
    if shape != () or dtype is None or str(dtype) != "float32":
        kind = f"{dtype}{list(shape)}" if dtype is not None and shape is not None else type(got).__name__
        raise WrongAnswer(f"it gives {kind}, expected a scalar of float32, shape ()")
    if float(got) != devices:
        where = "this notebook, alone," if process.rank is None else "this cluster"
        raise WrongAnswer(
            f"it gives {float(got)}, expected {float(devices)}: {where} has {devices} device{'s' * (devices > 1)}"
        )
    return f"{float(got)} with {devices} device{'s' * (devices > 1)} in all"


def _count_devices(process: ProcessInfo) -> int:
    """Return the number of devices. The notebook uses JAX only from here on, because only the learner's function needs it."""
    if process.rank is not None:
        return process.device_count
    import jax

    return jax.device_count()


def _my_positions(process: ProcessInfo, positions: Any) -> str:
    import jax

    devices = jax.devices()
    wanted = [devices.index(device) for device in jax.local_devices()]
    if isinstance(positions, list) and positions and not isinstance(positions[0], int):
        raise WrongAnswer(
            f"positions holds {type(positions[0]).__name__}, expected whole numbers: positions in jax.devices()"
        )
    ids = [device.id for device in jax.local_devices()]
    hint = "A device's id is no position: ids leave gaps between processes" if positions == ids != wanted else ""
    assert_equal(positions, wanted, "positions", hint=hint)
    return f"{process.local_device_count} positions on each rank, none twice"


def _owner_of(process: ProcessInfo, owner: Any) -> str:
    import jax

    for position, device in enumerate(jax.devices()):
        got = call_answer(owner, position, what="of one position")
        assert_equal(got, device.process_index, f"owner({position})", hint="Ask the device: it knows its process index")
    return f"right for all {process.device_count} devices"


TASKS = (
    Prediction(
        "count_all",
        "02",
        "4 hosts with 2 devices each. What does jax.device_count() give on rank 2?",
        (2, 4, 8),
        "device_count counts the devices of all processes, wherever it is asked.",
    ),
    Prediction(
        "count_local",
        "02",
        "And jax.local_device_count() on rank 2?",
        (2, 4, 8),
        "local_device_count counts the devices that this process drives.",
    ),
    Exercise(
        "n_devices_in_mesh",
        "02",
        "Return the number of all devices as a float32 scalar: 8.0 on 4 hosts with 2 devices each, 1.0 in the notebook alone.",
        _n_devices_in_mesh,
        side="both",
    ),
    Exercise(
        "my_positions",
        "02",
        "Bind positions to the list of places that this rank's own devices have in jax.devices().",
        _my_positions,
    ),
    Exercise(
        "owner_of",
        "02",
        "Write owner(position): the process index of the rank that drives jax.devices()[position].",
        _owner_of,
    ),
)
