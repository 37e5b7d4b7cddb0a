"""Exercises of the lesson: local and global devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import assert_equal, call_answer
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


def _n_devices_in_mesh(process: ProcessInfo, n_devices_in_mesh: Any) -> str:
    got = call_answer(n_devices_in_mesh, np.float32(0), what="of one argument")
    devices = _count_devices(process)
    shape, dtype = getattr(got, "shape", None), getattr(got, "dtype", None)
    if shape != () or dtype is None or str(dtype) != "float32":
        kind = f"{dtype}{list(shape)}" if dtype is not None and shape is not None else type(got).__name__
        raise WrongAnswer(
            f"it returns {kind}", expected="a float32 scalar, shape ()", note="jnp.float32 makes one from a number"
        )
    if float(got) != devices:
        where = "this notebook, alone," if process.rank is None else "this cluster"
        raise WrongAnswer(
            f"it returns {float(got)}",
            expected=f"{float(devices)}: {where} has {devices} device{'s' * (devices > 1)}",
            note=_name_count(process, got),
        )
    return f"{float(got)} with {devices} device{'s' * (devices > 1)} in total"


def _name_count(process: ProcessInfo, got: Any) -> str:
    """Describe what was counted instead, if that is known."""
    counts: dict[float, str] = {
        process.local_device_count: "the number of this rank's own devices",
        process.process_count: "the number of processes",
    }
    name = counts.get(float(got)) if process.rank is not None else None
    return f"That is {name}" if name else ""


def _count_devices(process: ProcessInfo) -> int:
    """Return the device count; in the notebook, import JAX for it."""
    if process.rank is not None:
        return process.device_count
    import jax

    return jax.device_count()


def _my_positions(process: ProcessInfo, positions: Any) -> str:
    import jax

    devices = jax.devices()
    wanted = [devices.index(device) for device in jax.local_devices()]
    if not isinstance(positions, list):
        raise WrongAnswer(f"positions is a {type(positions).__name__}", expected="a list of integers")
    if others := [each for each in positions if not isinstance(each, int | np.integer)]:
        raise WrongAnswer(
            f"positions holds {type(others[0]).__name__}", expected="integers: positions in jax.devices()"
        )
    note = ""
    if positions == [device.id for device in jax.local_devices()]:
        note = "A device's id is not its position: ids leave gaps between processes"
    elif positions == list(range(len(devices))):
        note = "These are the positions of all devices"
    # In any order, because the task names none.
    if sorted(positions) != wanted:
        assert_equal(positions, wanted, "positions", note=note)
    return f"{process.local_device_count} positions on each rank, each position once"


def _owner_of(process: ProcessInfo, owner: Any) -> str:
    import jax

    for position, device in enumerate(jax.devices()):
        got = call_answer(owner, position, what="of one position")
        note = (
            "The owner depends on the position, not on the rank that asks"
            if got == process.rank != device.process_index
            else ""
        )
        assert_equal(got, device.process_index, f"owner({position})", note=note)
    return f"right for all {process.device_count} devices"


LESSON = Lesson(
    "02_devices.ipynb",
    "Local and global devices",
    (
        Prediction(
            "count_all",
            "4 hosts with 2 devices each. What does jax.device_count() return on rank 2?",
            (2, 4, 8),
            "device_count counts the devices of all processes, on every process.",
        ),
        Prediction(
            "count_local",
            "And jax.local_device_count() on rank 2?",
            (2, 4, 8),
            "local_device_count counts the devices of this process.",
        ),
        Exercise(
            "n_devices_in_mesh",
            "count with one number",
            "Return the number of all devices as a float32 scalar: 8.0 on 4 hosts with 2 devices each, 1.0 in the notebook alone.",
            _n_devices_in_mesh,
            "easy",
            (
                "One function counts the devices of all processes, another only those of this process.",
                'The section "Count" calls both.',
                "Only the call inside `jnp.float32` is wrong.",
            ),
            side="both",
        ),
        Exercise(
            "my_positions",
            "your positions in the list",
            "Set positions to the list of positions of this rank's own devices in jax.devices().",
            _my_positions,
            "easy",
            (
                "This rank's devices are in the list of all devices: find the position of each.",
                "A Python list can find the position of an element itself: look for its method `index`.",
                "Go through `jax.local_devices()` in a list comprehension.",
            ),
        ),
        Exercise(
            "owner_of",
            "whose device is it?",
            "Write owner(position): the process index of the rank that owns jax.devices()[position].",
            _owner_of,
            "easy",
            (
                "The list of all devices is the same on every rank, so look at the device at that position.",
                "Each device has its process index as an attribute.",
                'The section "List them" reads that attribute of every device.',
            ),
        ),
    ),
)
