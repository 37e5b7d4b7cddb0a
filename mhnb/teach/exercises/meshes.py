"""Lesson 03: meshes and PartitionSpecs."""

from __future__ import annotations

from typing import Any

from mhnb.teach.compare import assert_equal, call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]

_CASES = (
    ((8, 6), ("data", None)),
    ((8, 6), (None, "model")),
    ((8, 6), ("data", "model")),
    ((8, 6), ("model", None)),
    ((16, 6), (("data", "model"), None)),
    ((8, 6), (None, None)),
)


def _columns_apart(process: ProcessInfo, spec: Any) -> str:
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"spec is a {type(spec).__name__}, expected a PartitionSpec: P(...)")
    mesh = jax.make_mesh((process.process_count, process.local_device_count), ("data", "model"))
    n = process.device_count
    try:
        boxes = jax.sharding.NamedSharding(mesh, spec).devices_indices_map((8, n))
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"spec {spec} does not fit float32[8,{n}] on this mesh: {error}") from None
    for ordinal, device in enumerate(jax.local_devices()):
        at = process.local_device_count * (process.rank or 0) + ordinal
        got = tuple(box.indices(size)[:2] for box, size in zip(boxes[device], (8, n), strict=True))
        if got != ((0, 8), (at, at + 1)):
            raise WrongAnswer(
                f"device {process.rank}:{ordinal} would hold rows {_format_range(got[0])} and columns {_format_range(got[1])}, "
                f"expected rows 0:8 and columns {at}:{at + 1}"
            )
    return "one whole column on each device"


def _format_range(pair: tuple[int, int]) -> str:
    return f"{pair[0]}:{pair[1]}"


def _pairs_inside(process: ProcessInfo, mesh: Any) -> str:
    import jax

    if not isinstance(mesh, jax.sharding.Mesh):
        raise WrongAnswer(f"mesh is a {type(mesh).__name__}, expected a jax.sharding.Mesh")
    assert_equal(dict(mesh.shape), {"row": process.device_count // 2, "pair": 2}, "the shape of the mesh")
    for number, row in enumerate(mesh.devices):
        owners = sorted({device.process_index for device in row})
        if len(owners) > 1:
            raise WrongAnswer(
                f"pair {number} has devices of ranks {owners[0]} and {owners[1]}, expected both of one rank"
            )
    return "both devices of each pair belong to one rank"


def _shard_shape(process: ProcessInfo, shard_shape: Any) -> str:
    del process
    axes = {"data": 4, "model": 2}
    for shape, spec in _CASES:
        wanted = tuple(size // _partition_count(entry, axes) for size, entry in zip(shape, spec, strict=True))
        got = call_answer(shard_shape, shape, axes, spec, what="of a shape, axes and a spec")
        assert_equal(got, wanted, f"shard_shape({shape}, {axes}, {spec})")
    return f"{len(_CASES)} shapes"


def _partition_count(entry: Any, axes: dict[str, int]) -> int:
    named = () if entry is None else (entry,) if isinstance(entry, str) else entry
    product = 1
    for name in named:
        product *= axes[name]
    return product


TASKS = (
    Prediction(
        "shard_rows",
        "03",
        "float32[8,6] with P('data', None) on a mesh of data 4 and model 2: which shape has a shard?",
        ((2, 6), (2, 3), (4, 6), (8, 6)),
        "'data' has size 4 and cuts 8 rows into 4; None leaves the columns whole.",
    ),
    Prediction(
        "shard_both",
        "03",
        "The same array with P('data', 'model'): which shape has a shard?",
        ((2, 6), (2, 3), (4, 3), (8, 3)),
        "'data' cuts the rows into 4, 'model' the columns into 2.",
    ),
    Prediction(
        "shard_swapped",
        "03",
        "And with P('model', None)?",
        ((2, 6), (4, 6), (4, 3), (8, 3)),
        "The first entry is for dim 0: 'model' has size 2 and cuts the rows into 2.",
    ),
    Prediction(
        "row_holders",
        "03",
        "With P('data', None), how many devices hold row 0?",
        (1, 2, 4, 8),
        "An axis that the spec does not name, here 'model', makes replicas: both devices of a host hold the same rows.",
    ),
    Exercise(
        "columns_apart",
        "03",
        "Bind spec so that on the mesh ('data', 'model') each device holds one whole column of float32[8,8], in device order.",
        _columns_apart,
    ),
    Exercise(
        "pairs_inside",
        "03",
        "Make a mesh of shape (device_count // 2, 2) with axes 'row' and 'pair', in which each pair is inside one host.",
        _pairs_inside,
    ),
    Exercise(
        "shard_shape",
        "03",
        "Write shard_shape(shape, axes, spec) with axes as a dict from axis to size, spec as a tuple of names, tuples or None.",
        _shard_shape,
    ),
)
