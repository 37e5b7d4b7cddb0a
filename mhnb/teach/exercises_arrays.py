"""Exercises on devices, meshes and arrays: lessons 02 to 05.

Lesson 02 is local and global devices, 03 meshes and PartitionSpecs, 04 making global arrays, 05 loading data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.sharding.boxes import box_of_index
from mhnb.teach.check import (
    assert_equal,
    assert_fits,
    assert_global_array,
    assert_shards,
    assert_spec,
    call_answer,
    make_mesh,
)
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

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
        raise WrongAnswer(f"spec is a {type(spec).__name__}", expected="a PartitionSpec: P(...)")
    mesh = make_mesh((process.process_count, process.local_device_count), ("data", "model"))
    n = process.device_count
    try:
        boxes = jax.sharding.NamedSharding(mesh, spec).devices_indices_map((8, n))
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"spec {spec} does not fit float32[8,{n}] on this mesh: {error}") from None
    for ordinal, device in enumerate(jax.local_devices()):
        at = process.local_device_count * (process.rank or 0) + ordinal
        got = box_of_index(boxes[device], (8, n))
        if got != ((0, 8), (at, at + 1)):
            raise WrongAnswer(
                f"device {process.rank}:{ordinal} would hold rows {_format_range(got[0])} and columns {_format_range(got[1])}",
                expected=f"rows 0:8 and columns {at}:{at + 1}",
            )
    return "one full column on each device"


def _format_range(pair: tuple[int, int]) -> str:
    return f"{pair[0]}:{pair[1]}"


def _pairs_inside(process: ProcessInfo, mesh: Any) -> str:
    import jax

    if not isinstance(mesh, jax.sharding.Mesh):
        raise WrongAnswer(f"mesh is a {type(mesh).__name__}", expected="a jax.sharding.Mesh")
    assert_equal(dict(mesh.shape), {"row": process.device_count // 2, "pair": 2}, "the shape of the mesh")
    for number, row in enumerate(mesh.devices):
        owners = sorted({device.process_index for device in row})
        if len(owners) > 1:
            raise WrongAnswer(
                f"pair {number} has devices of ranks {owners[0]} and {owners[1]}", expected="both of one rank"
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


# -- lesson 02: local and global devices


def _n_devices_in_mesh(process: ProcessInfo, n_devices_in_mesh: Any) -> str:
    got = call_answer(n_devices_in_mesh, np.float32(0), what="of one argument")
    devices = _count_devices(process)
    shape, dtype = getattr(got, "shape", None), getattr(got, "dtype", None)
    if shape != () or dtype is None or str(dtype) != "float32":
        kind = f"{dtype}{list(shape)}" if dtype is not None and shape is not None else type(got).__name__
        raise WrongAnswer(f"it returns {kind}", expected="a float32 scalar, shape ()")
    if float(got) != devices:
        where = "this notebook, alone," if process.rank is None else "this cluster"
        raise WrongAnswer(
            f"it returns {float(got)}",
            expected=f"{float(devices)}: {where} has {devices} device{'s' * (devices > 1)}",
        )
    return f"{float(got)} with {devices} device{'s' * (devices > 1)} in total"


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
    if isinstance(positions, list) and positions and not isinstance(positions[0], int):
        raise WrongAnswer(
            f"positions holds {type(positions[0]).__name__}", expected="integers: positions in jax.devices()"
        )
    ids = [device.id for device in jax.local_devices()]
    hint = "A device's id is not its position: ids leave gaps between processes" if positions == ids != wanted else ""
    assert_equal(positions, wanted, "positions", hint=hint)
    return f"{process.local_device_count} positions on each rank, each position once"


def _owner_of(process: ProcessInfo, owner: Any) -> str:
    import jax

    for position, device in enumerate(jax.devices()):
        got = call_answer(owner, position, what="of one position")
        assert_equal(
            got, device.process_index, f"owner({position})", hint="Each device has its process index as an attribute"
        )
    return f"right for all {process.device_count} devices"


# -- lesson 04: making global arrays


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


# -- lesson 05: loading data


_RECORDS = 22


def _my_share(process: ProcessInfo, share: Any) -> str:
    if not isinstance(share, list):
        raise WrongAnswer(f"share is a {type(share).__name__}", expected="a list of record numbers")
    each = _RECORDS // process.process_count
    if len(share) != each:
        raise WrongAnswer(
            f"share has {len(share)} records",
            expected=f"{each} on every rank: {_RECORDS} records leave {_RECORDS % process.process_count} over, which no rank reads",
        )
    wanted = list(range(_RECORDS))[process.rank :: process.process_count][:each]
    assert_equal(share, wanted, "share", hint="Take every fourth record, beginning with the process index")
    return f"{each} records on every rank, each record once"


def _global_batch(process: ProcessInfo, batch: Any) -> str:
    import jax

    mesh = make_mesh((process.device_count,), ("data",))
    local = 2 * process.local_device_count
    for step in range(2):
        got = call_answer(batch, step, what="of the step number")
        begin = step * local * process.process_count
        first = np.arange(begin, begin + local * process.process_count, dtype=np.float32)
        wanted = np.stack([first, first + 0.5], axis=1)
        what = f"batch({step})"
        assert_global_array(got, wanted.shape, "float32", what, process)
        assert_spec(got, mesh, jax.sharding.PartitionSpec("data", None), what)
        assert_shards(got, wanted, what, process)
    return f"{local} rows from each rank in every batch"


def _steps_for_all(process: ProcessInfo, steps: Any) -> str:
    counts = [6, 5, 6, 4]
    got = int(steps) if hasattr(steps, "shape") and steps.shape == () else steps
    wanted = min(counts[rank % len(counts)] for rank in range(process.process_count))
    own = counts[(process.rank or 0) % len(counts)]
    hint = "That is this rank's own count; others have fewer" if got == own else "Take the smallest count of all ranks"
    assert_equal(got, wanted, "steps", hint=hint)
    return f"every rank stops after {wanted} batches"


TASKS = (
    Prediction(
        "shard_rows",
        "03",
        "float32[8,6] with P('data', None) on a mesh of data 4 and model 2: what is the shape of a shard?",
        ((2, 6), (2, 3), (4, 6), (8, 6)),
        "'data' has size 4, so each shard has 8 / 4 = 2 rows. None does not shard the columns.",
    ),
    Prediction(
        "shard_both",
        "03",
        "The same array with P('data', 'model'): what is the shape of a shard?",
        ((2, 6), (2, 3), (4, 3), (8, 3)),
        "'data' shards the rows 4 ways, 'model' the columns 2 ways.",
    ),
    Prediction(
        "shard_swapped",
        "03",
        "And with P('model', None)?",
        ((2, 6), (4, 6), (4, 3), (8, 3)),
        "The first entry is for dim 0: 'model' has size 2 and shards the rows 2 ways.",
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
        "Set spec so that on the mesh ('data', 'model') each device holds one full column of float32[8,8], in device order.",
        _columns_apart,
        hint="A dim that is not sharded has the entry None. If one entry names two axes, the first changes slowest.",
    ),
    Exercise(
        "pairs_inside",
        "03",
        "Make a mesh of shape (device_count // 2, 2) with axes 'row' and 'pair', so that both devices of each pair are on one host.",
        _pairs_inside,
        hint="jax.devices() lists the devices of a rank next to each other. Which dim of a reshape holds neighbours?",
    ),
    Exercise(
        "shard_shape",
        "03",
        "Write shard_shape(shape, axes, spec) with axes as a dict from axis to size, spec as a tuple of names, tuples or None.",
        _shard_shape,
        hint="Divide each dim by the sizes of all axes that its entry names.",
    ),
    Prediction(
        "count_all",
        "02",
        "4 hosts with 2 devices each. What does jax.device_count() return on rank 2?",
        (2, 4, 8),
        "device_count counts the devices of all processes, on every process.",
    ),
    Prediction(
        "count_local",
        "02",
        "And jax.local_device_count() on rank 2?",
        (2, 4, 8),
        "local_device_count counts the devices of this process.",
    ),
    Exercise(
        "n_devices_in_mesh",
        "02",
        "Return the number of all devices as a float32 scalar: 8.0 on 4 hosts with 2 devices each, 1.0 in the notebook alone.",
        _n_devices_in_mesh,
        side="both",
        hint="One function counts the devices of all processes, another only those of this process.",
    ),
    Exercise(
        "my_positions",
        "02",
        "Set positions to the list of positions of this rank's own devices in jax.devices().",
        _my_positions,
        hint="This rank's devices are in the list of all devices: find the position of each.",
    ),
    Exercise(
        "owner_of",
        "02",
        "Write owner(position): the process index of the rank that owns jax.devices()[position].",
        _owner_of,
        hint="Each device has its process index as an attribute.",
    ),
    Prediction(
        "addressable",
        "04",
        "x has shards on the devices of all 4 ranks. What is x.is_fully_addressable on rank 0?",
        (True, False),
        "A process can read only the shards on its own devices. An array on only these devices would be fully addressable.",
    ),
    Exercise(
        "from_callback",
        "04",
        "Make x, float32[8,4] of values 10 * row + column, sharded by rows over 'data', with make_array_from_callback.",
        _from_callback,
        hint="The callback gets the index of a shard, a tuple of slices. Return the values at this index.",
    ),
    Exercise(
        "from_local_columns",
        "04",
        "Make x with the values of the table, sharded by columns over 'data'; each rank passes its own column.",
        _from_local_columns,
        hint="Each rank passes one column: an array with all rows.",
    ),
    Exercise(
        "from_single_devices",
        "04",
        "Make x, float32[16], in which each device holds two values: its own position in jax.devices(), twice.",
        _from_single_devices,
        hint="Make a small array on each of this rank's devices, filled with the device's position in jax.devices().",
    ),
    Exercise(
        "all_of_it",
        "04",
        "Set y to the values of source, replicated on every device.",
        _all_of_it,
        hint="A spec that names no axis replicates the array.",
    ),
    Exercise(
        "fits",
        "04",
        "Make x, float32[64,32] of ones, so that no device holds more than 1024 bytes of it.",
        _fits,
        hint="One entry of a spec can name two axes, which shards a dim over all devices.",
    ),
    Exercise(
        "my_share",
        "05",
        "Set share to this rank's records out of 0 to 21: every fourth one, and the same number on every rank.",
        _my_share,
        hint="Begin at the process index, step by the process count, and leave the rest.",
    ),
    Exercise(
        "global_batch",
        "05",
        "Write batch(step): it returns a global array of 16 rows, of which each rank reads only its own 4.",
        _global_batch,
        hint="Each rank makes only its own rows. A step begins where the last batch of all ranks ended.",
    ),
    Exercise(
        "steps_for_all",
        "05",
        "Set steps to the smallest number of batches that any rank has.",
        _steps_for_all,
        hint="Take the smallest count of all ranks.",
    ),
)
