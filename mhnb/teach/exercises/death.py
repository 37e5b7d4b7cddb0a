"""Exercises of the lesson: when a rank dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_equal,
    assert_global_array,
    assert_shards,
    call_answer,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_SPECS = (("data", None), (None, "model"), ("data", "model"), (None, None))


def _sharding(process: ProcessInfo, *spec: str | None) -> Any:
    import jax

    devices = np.array(jax.devices()).reshape(process.process_count, process.local_device_count)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _values(process: ProcessInfo) -> np.ndarray:
    return np.arange(2 * process.device_count * process.local_device_count, dtype=np.float32).reshape(
        process.device_count, -1
    )


def _each_piece_once(process: ProcessInfo, pieces: Any) -> str:
    import jax

    values = _values(process)
    for spec in _SPECS:
        x = jax.make_array_from_callback(values.shape, _sharding(process, *spec), values.__getitem__)
        got = call_answer(pieces, x, what="of a global array")
        if not isinstance(got, list):
            raise WrongAnswer(f"pieces(x) returns {name_kind(got)}", expected="a list of arrays")
        wanted = [np.asarray(shard.data) for shard in x.addressable_shards if shard.replica_id == 0]
        if not _same_pieces(got, wanted):
            note = "Another rank, or another device of this one, writes a copy of it" if len(got) > len(wanted) else ""
            raise WrongAnswer(
                f"for spec {x.sharding.spec} this rank writes {_format_pieces(got)}",
                expected=_format_pieces(wanted),
                note=note,
            )
    return f"each shard once, for {len(_SPECS)} shardings"


def _same_pieces(got: list[Any], wanted: list[np.ndarray]) -> bool:
    ordered = [sorted(np.asarray(each).tolist() for each in pieces) for pieces in (got, wanted)]
    return ordered[0] == ordered[1]


def _format_pieces(pieces: list[Any]) -> str:
    shapes = [tuple(np.shape(each)) for each in pieces]
    return f"{len(pieces)} of shape {shapes[0]}" if shapes else "nothing"


def _read_own(process: ProcessInfo, restore: Any) -> str:
    values = _values(process)
    for spec in _SPECS:
        sharding = _sharding(process, *spec)
        requested: list[tuple[slice, ...]] = []
        x = call_answer(
            restore,
            values.shape,
            sharding,
            _recording_reader(values, requested),
            what="of a shape, a sharding and a reader",
        )
        assert_global_array(x, values.shape, "float32", f"the array with spec {sharding.spec}", process)
        if not x.sharding.is_equivalent_to(sharding, x.ndim):
            raise WrongAnswer(f"the array has {x.sharding}", expected=f"the given sharding, {sharding.spec}")
        assert_shards(x, values, f"the array with spec {sharding.spec}", process)
        needed = sum(shard.data.nbytes for shard in x.addressable_shards)
        read = sum(values[index].nbytes for index in requested)
        if read > needed:
            raise WrongAnswer(
                f"with spec {sharding.spec} this rank reads {read} bytes",
                expected=f"at most {needed}",
                note="The array is right, but its devices do not hold all that was read",
            )
    return "each rank reads only what its own devices hold"


def _recording_reader(values: Any, requested: list[tuple[slice, ...]]) -> Callable[[Any], Any]:
    def read(index: Any) -> Any:
        requested.append(index)
        return values[index]

    return read


def _common_step(process: ProcessInfo, common: Any) -> str:
    rank, last = process.rank or 0, process.process_count - 1
    cases = (
        ("every rank has 10 and 20", {10, 20}, 20),
        (f"rank {last} has only 10", {10} if rank == last else {10, 20}, 10),
        ("30 is on even ranks, 40 on odd ones", {5, 10, 40 if rank % 2 else 30}, 10),
    )
    for what, saved, wanted in cases:
        got = call_answer(common, set(saved), what="of a set of steps")
        if got is None:
            raise WrongAnswer(f"common(saved), if {what}, returns nothing", expected=f"{wanted}")
        note = "Another rank does not have that step" if got > wanted else ""
        assert_equal(int(got), wanted, f"common(saved), if {what},", note=note)
    return "all ranks continue from the newest step that every rank has"


LESSON = Lesson(
    "14_death.ipynb",
    "When a rank dies",
    (
        Prediction(
            "ranks_left",
            "Rank 2 of 4 is killed. How many ranks are alive when the cell has ended?",
            (4, 3, 1, 0),
            "A cluster is one program in many processes, and the others cannot go on without the dead one. "
            "JAX ends them once it notices; mhnb ends them at once.",
        ),
        Exercise(
            "each_piece_once",
            "each shard once",
            "Write pieces(x): the shards that this rank writes, so that across all ranks each shard is written exactly once.",
            _each_piece_once,
            "medium",
            (
                "Look at the shards of an array that is not split at all: every device has the same one. Who writes it?",
                "Each shard has a replica_id, and it differs between equal copies, also between those on two ranks.",
            ),
        ),
        Exercise(
            "read_own",
            "read no more than you need",
            "Write restore(shape, sharding, read): the global array, reading no more than this rank's devices hold.",
            _read_own,
            "medium",
            (
                "One function of JAX calls a reader only for the shards of this process. The lesson has used it.",
                "It takes a shape, a sharding and a function of an index, so read can be passed as it is.",
            ),
        ),
        Exercise(
            "common_step",
            "the latest step that all ranks have",
            "Write common(saved): the largest step that every rank has saved.",
            _common_step,
            "hard",
            (
                "A step counts if every rank has it. So each rank needs to know the steps of all the others.",
                "What the ranks exchange must have the same shape on all of them, but they have different numbers of steps.",
                "All steps are below 100, so 100 booleans say which ones a rank has. process_allgather gives them to all.",
            ),
        ),
    ),
)
