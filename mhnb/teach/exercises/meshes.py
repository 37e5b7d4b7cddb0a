"""Exercises of the lesson: meshes and PartitionSpecs."""

from __future__ import annotations

from typing import Any

from mhnb.sharding.boxes import box_of_index
from mhnb.teach.check import (
    assert_each_device_once,
    assert_equal,
    call_answer,
    make_mesh,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_CASES = (
    ((8, 6), ("data", None), "An entry divides its own dim, and None divides nothing"),
    ((8, 6), (None, "model"), "The first entry is for the first dim, whatever it is"),
    ((8, 6), ("data", "model"), ""),
    ((8, 6), ("model", None), "Look up the size of an axis by its name, not by its place"),
    # 32, because 4 and 2 should not give the same shape when they are added instead of multiplied.
    (
        (32, 6),
        (("data", "model"), None),
        "An entry that is a tuple divides the dim by the product of the sizes of its axes",
    ),
    ((8, 6), (None, None), ""),
)
"""A shape, a spec, and where to look if the answer is wrong."""


def _columns_apart(process: ProcessInfo, spec: Any) -> str:
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"spec is {name_kind(spec)}", expected="a PartitionSpec: P(...)")
    if len(spec) > 2:
        raise WrongAnswer(f"spec has {len(spec)} entries", expected="at most 2, one for each dim")
    mesh = make_mesh((process.process_count, process.local_device_count), ("data", "model"))
    n = process.device_count
    try:
        indices = jax.sharding.NamedSharding(mesh, spec).devices_indices_map((8, n))
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"spec {spec} does not fit float32[8,{n}] on this mesh: {error}") from None
    for ordinal, device in enumerate(jax.local_devices()):
        at = process.local_device_count * (process.rank or 0) + ordinal
        got = box_of_index(indices[device], (8, n))
        if got != ((0, 8), (at, at + 1)):
            raise WrongAnswer(
                f"device {process.rank}:{ordinal} would hold rows {_format_range(got[0])} and columns {_format_range(got[1])}",
                expected=f"rows 0:8 and columns {at}:{at + 1}",
                note=_find_spec_fault(got),
            )
    return "one full column on each device"


def _find_spec_fault(got: tuple[tuple[int, int], ...]) -> str:
    """Return where to look, from what a device would hold."""
    (first, last), (start, stop) = got
    if last - first < 8:
        return "The first entry of a spec is for the rows, and they should stay whole"
    if stop - start > 1:
        return "A column is on several devices, because an axis of the mesh is not in the spec"
    return "In a tuple of names, the first axis changes slowest: compare it with the order of the devices in the mesh"


def _format_range(pair: tuple[int, int]) -> str:
    return f"{pair[0]}:{pair[1]}"


def _pairs_inside(process: ProcessInfo, mesh: Any) -> str:
    import jax

    if not isinstance(mesh, jax.sharding.Mesh):
        raise WrongAnswer(f"mesh is {name_kind(mesh)}", expected="a jax.sharding.Mesh")
    wanted = {"row": process.device_count // 2, "pair": 2}
    assert_equal(
        dict(mesh.shape), wanted, "the shape of the mesh", note="The first name is for the first dim of the grid"
    )
    for number, row in enumerate(mesh.devices):
        owners = sorted({device.process_index for device in row})
        if len(owners) > 1:
            raise WrongAnswer(
                f"pair {number} has devices of ranks {owners[0]} and {owners[1]}", expected="both of one rank"
            )
    assert_each_device_once(mesh, process)
    return "both devices of each pair belong to one rank"


def _shard_shape(process: ProcessInfo, shard_shape: Any) -> str:
    del process
    axes = {"data": 4, "model": 2}
    for shape, spec, note in _CASES:
        wanted = tuple(size // _partition_count(entry, axes) for size, entry in zip(shape, spec, strict=True))
        got = call_answer(shard_shape, shape, axes, spec, what="of a shape, axes and a spec")
        assert_equal(
            got,
            wanted,
            f"shard_shape({shape}, {axes}, {spec})",
            note=note if isinstance(got, tuple) else "A shape is a tuple",
        )
    return f"{len(_CASES)} shapes"


def _partition_count(entry: Any, axes: dict[str, int]) -> int:
    named = () if entry is None else (entry,) if isinstance(entry, str) else entry
    product = 1
    for name in named:
        product *= axes[name]
    return product


LESSON = Lesson(
    "03_meshes.ipynb",
    "Meshes and PartitionSpecs",
    (
        Prediction(
            "shard_rows",
            "float32[8,6] with P('data', None) on a mesh of data 4 and model 2: what is the shape of a shard?",
            ((2, 6), (2, 3), (4, 6), (8, 6)),
            "'data' has size 4, so each shard has 8 / 4 = 2 rows. None does not shard the columns.",
        ),
        Prediction(
            "shard_both",
            "The same array with P('data', 'model'): what is the shape of a shard?",
            ((2, 6), (2, 3), (4, 3), (8, 3)),
            "'data' shards the rows 4 ways, 'model' the columns 2 ways.",
        ),
        Prediction(
            "shard_swapped",
            "And with P('model', None)?",
            ((2, 6), (4, 6), (4, 3), (8, 3)),
            "The first entry is for dim 0: 'model' has size 2 and shards the rows 2 ways.",
        ),
        Prediction(
            "row_holders",
            "With P('data', None), how many devices hold row 0?",
            (1, 2, 4, 8),
            "An axis that the spec does not name, here 'model', makes replicas: both devices of a host hold the same rows.",
        ),
        Exercise(
            "columns_apart",
            "a column for each device",
            "Set spec so that on the mesh ('data', 'model') each device holds one full column of float32[8,8], in device order.",
            _columns_apart,
            "easy",
            (
                "A dim that stays whole has the entry None.",
                "Eight columns for eight devices need both axes in the entry of the columns.",
                "The devices of a host are neighbours along 'model', so 'model' should change fastest: the last name does.",
            ),
        ),
        Exercise(
            "pairs_inside",
            "pairs inside a host",
            "Make a mesh of shape (device_count // 2, 2) with axes 'row' and 'pair', so that both devices of each pair are on one host.",
            _pairs_inside,
            "medium",
            (
                "jax.devices() lists the devices of a rank next to each other.",
                "Which dim of a reshaped array holds neighbours of the list, the first or the last?",
            ),
        ),
        Exercise(
            "shard_shape",
            "the shape of a shard, by hand",
            "Write shard_shape(shape, axes, spec) with axes as a dict from axis to size, spec as a tuple of names, tuples or None.",
            _shard_shape,
            "medium",
            (
                "Divide each dim by the sizes of all axes that its entry names.",
                "Turn each entry into a tuple of names first: None into an empty one, a name into a tuple of one.",
                "Then every dim is divided by the product of the sizes in its tuple, which is 1 for an empty one.",
            ),
        ),
    ),
)
