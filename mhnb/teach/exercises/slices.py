"""Exercises of the lesson: slices and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mhnb.sharding.mesh import format_axes
from mhnb.teach.check import assert_each_device_once, assert_equal, call_answer, name_kind
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


def _model_in_host(process: ProcessInfo, mesh: Any) -> str:
    import jax

    if not isinstance(mesh, jax.sharding.Mesh):
        raise WrongAnswer(f"mesh is {name_kind(mesh)}", expected="a jax.sharding.Mesh")
    inside, hosts = process.local_device_count, process.process_count
    axes, expected = format_axes(tuple(mesh.shape.items())), format_axes((("model", inside), ("data", hosts)))
    if axes != expected:
        raise WrongAnswer(f"the mesh has the axes {axes}", expected=expected)
    for number, line in enumerate(mesh.devices.T):
        owners = sorted({device.process_index for device in line})
        if len(owners) > 1:
            raise WrongAnswer(
                f"at data {number}, the devices along model belong to ranks {', '.join(map(str, owners))}",
                expected="all of one rank",
            )
    assert_each_device_once(mesh, process)
    return f"no line along model leaves its host, and data goes over all {hosts}"


@dataclass(frozen=True, slots=True)
class _Chip:
    """A recorded device, with the attributes that lesson 04 shows."""

    id: int
    process_index: int
    slice_index: int
    coords: tuple[int, int, int]
    # JAX's mesh functions read them, so an answer can call these functions.
    platform, device_kind, core_on_chip = "tpu", "TPU v5 lite", 0


def _make_chips(slice_count: int, per_slice: int) -> list[_Chip]:
    """Return the chips of some slices, with hosts of four.

    They have the ids that the compiler for TPUs gives them.
    """
    hosts = max(per_slice // 4, 1)
    return [
        _Chip(100_000 * (at + 1) + place, at * hosts + place // 4, at, (place % 2, place // 2, 0))
        for at in range(slice_count)
        for place in range(per_slice)
    ]


def _chip_lists() -> dict[str, list[_Chip]]:
    """Return lists of chips by description."""
    two, three = _make_chips(2, 8), _make_chips(3, 4)
    return {
        "the recorded chips": two,
        "the recorded chips in reverse": two[::-1],
        "chips of three slices in turn": [three[at + place] for place in range(4) for at in (0, 4, 8)],
        "chips whose ids are highest in slice 0": [
            _Chip(1000 - chip.id // 100_000 * 100 + chip.id % 100, chip.process_index, chip.slice_index, chip.coords)
            for chip in two
        ],
    }


def _rows_by_slice(process: ProcessInfo, rows_by_slice: Any) -> str:
    del process
    cases = _chip_lists()
    for what, chips in cases.items():
        got = call_answer(rows_by_slice, list(chips), what="of a list of chips")
        if not isinstance(got, np.ndarray):
            raise WrongAnswer(f"it returns {name_kind(got)}", expected="a NumPy array of ids")
        slices = sorted({chip.slice_index for chip in chips})
        assert_equal(got.shape, (len(slices), len(chips) // len(slices)), f"the shape for {what}")
        for row, at in zip(got.tolist(), slices, strict=True):
            _check_row(row, at, chips, what)
    return f"one row for each slice, for {len(cases)} lists"


def _check_row(row: Sequence[Any], number: int, chips: Sequence[_Chip], what: str) -> None:
    slice_of = {chip.id: chip.slice_index for chip in chips}
    if unknown := [each for each in row if each not in slice_of]:
        raise WrongAnswer(f"row {number} for {what} has {unknown[0]!r}", expected="the id of a chip in the list")
    if wrong := [each for each in row if slice_of[each] != number]:
        raise WrongAnswer(
            f"row {number} for {what} has chip {wrong[0]}, which is in slice {slice_of[wrong[0]]}",
            expected=f"only chips of slice {number}",
        )
    if len(set(row)) < len(row):
        raise WrongAnswer(f"row {number} for {what} has a chip twice", expected="each chip of the slice once")


_TWO_SLICES = np.array([[0] * 4 + [1] * 4, [2] * 4 + [3] * 4])
_CROSSINGS: tuple[tuple[Any, tuple[str, ...], tuple[str, ...]], ...] = (
    (np.array([[0, 0], [1, 1], [2, 2], [3, 3]]), ("data", "model"), ("data",)),
    (np.array([[0, 2], [0, 2], [1, 3], [1, 3]]), ("data", "model"), ("data", "model")),
    (_TWO_SLICES, ("data", "model"), ("data", "model")),
    (_TWO_SLICES // 2, ("data", "model"), ("data",)),
    (np.zeros((2, 4), int), ("data", "model"), ()),
    (np.arange(8).reshape(2, 2, 2) // 4 + 1, ("replica", "data", "model"), ("replica",)),
    (np.arange(4).reshape(1, 4), ("data", "model"), ("model",)),
    # The first and the last place are equal, and the differences add up to 0.
    (np.array([[0, 1, 1, 0]] * 2), ("data", "model"), ("model",)),
    # Three hosts of four devices: the first row is inside a host, and the second is not.
    (np.arange(12).reshape(4, 3) // 4, ("data", "model"), ("data", "model")),
)


def _crossing_axes(process: ProcessInfo, crossing: Any) -> str:
    del process
    for places, names, expected in _CROSSINGS:
        got = call_answer(crossing, places.copy(), names, what="of places and names")
        assert_equal(got, expected, f"crossing({places.tolist()}, {names})")
    return f"right for {len(_CROSSINGS)} meshes"


LESSON = Lesson(
    "04_slices.ipynb",
    "Slices and hosts",
    (
        Prediction(
            "hybrid_shape",
            "4 hosts with 2 devices each: what is the shape of create_hybrid_device_mesh((2, 1), (2, 2), process_is_granule=True)?",
            ((2, 1), (2, 2), (4, 2), (2, 1, 2, 2)),
            "The array has the two axes of the shapes. The size of each is the product of its two numbers: 2 × 2 and 1 × 2.",
        ),
        Prediction(
            "hybrid_row",
            "How many different hosts have a device in the first row of this array?",
            (1, 2, 4),
            "A row runs along the second axis, which has 1 device in each of 2 hosts. Communication along it always crosses the network.",
        ),
        Exercise(
            "model_in_host",
            "the first axis stays inside",
            "Make a mesh with the axes 'model' (2) and 'data' (4), so that both devices along 'model' are always in one host.",
            _model_in_host,
            "easy",
            (
                "The first shape has the devices that an axis has inside a host, the second the hosts that it goes over.",
                "An axis that stays inside a host has a 1 in the second shape.",
            ),
        ),
        Exercise(
            "rows_by_slice",
            "a row for each slice",
            "Write rows_by_slice(chips): a NumPy array of the chips' ids with one row for each slice, for a list in any order.",
            _rows_by_slice,
            "medium",
            (
                "Bring the chips of a slice together before you reshape.",
                "`sorted` takes a key. Count the slices in the list, because there may be more than two.",
            ),
        ),
        Exercise(
            "crossing_axes",
            "which axes cross?",
            "Write crossing(places, names): the names of the axes along which some line of devices has more than one place.",
            _crossing_axes,
            "hard",
            (
                "Go through the axes. An axis stays inside if all places are equal to their neighbours along it.",
                "NumPy's `diff` compares neighbours along an axis; look at all lines, not only at the first.",
            ),
        ),
    ),
)
