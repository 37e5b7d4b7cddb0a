"""Exercises of the lesson: from notebook to batch job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mhnb.core.ranks import pluralize
from mhnb.teach.check import assert_equal, call_answer, make_mesh
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_PER_PROCESS = 4
"""Records of a process in a batch."""


def _count_records(n_processes: int) -> int:
    """Count the records of an epoch, whose end parts of batches cross."""
    return 10 * n_processes + 2


def _order(epoch: int) -> np.ndarray:
    """Return the numbers of the records in the order of an epoch."""
    import jax

    return np.random.default_rng(100 + int(epoch)).permutation(_count_records(jax.process_count()))


def _records_of(process: ProcessInfo, records_of: Any) -> str:
    n, rank = process.process_count, process.rank or 0
    # The part of process r in step s is in row s * n + r.
    parts = np.concatenate([_order(epoch) for epoch in range(4)]).reshape(-1, _PER_PROCESS).tolist()
    # Not in order, as after a restart.
    for step in (1, 4, 0, 7, 3, 2):
        got = call_answer(records_of, step, _count_records(n), _PER_PROCESS * n, _order, what="of a step")
        numbers = np.asarray(got).tolist()
        what = f"for step {step} this process reads"
        if np.shape(got) != (_PER_PROCESS,):
            raise WrongAnswer(
                f"{what} {pluralize(np.size(got), 'record')}", expected=f"{_PER_PROCESS}, its part of the batch"
            )
        wanted = parts[step * n + rank]
        if numbers != wanted:
            other = divmod(parts.index(numbers), n) if numbers in parts else None
            note = f"These are the records of process {other[1]} in step {other[0]}" if other else ""
            raise WrongAnswer(f"{what} the records {numbers}", expected=f"{wanted}", note=note)
    return f"{_PER_PROCESS} records per step, and each record once in every epoch"


_PARAMS: tuple[tuple[str, tuple[int, ...], tuple[str | None, ...]], ...] = (
    ("embed", (32, 64), ()),
    ("qkv", (2, 64, 3, 8, 16), (None, None, None, "model")),
    ("out", (2, 8, 16, 64), (None, "model")),
    ("up", (2, 64, 256), (None, None, "model")),
    ("down", (2, 256, 64), (None, "model")),
    ("scale", (3, 64), ()),
    ("bias", (7,), ()),
    ("count", (), ()),
)
"""Name, shape and spec of each parameter."""


def _moment_spec(process: ProcessInfo, moment_spec: Any) -> str:
    import jax

    n = process.device_count
    before = after = 0
    for n_data, n_model in ((n // 2, 2), (2, n // 2)):
        mesh = make_mesh((n_data, n_model), ("data", "model"))
        for name, shape, names in _PARAMS:
            spec = jax.sharding.PartitionSpec(*names)
            got = call_answer(moment_spec, spec, shape, n_data, what="of a spec, a shape and a number")
            what = f"on {n_data} x {n_model} the spec for {name}, {shape},"
            held = 4 * _size(_shard_shape(got, shape, mesh, what))
            least = 4 * _size(_shard_shape(spec, shape, mesh, what))
            free = [dim for dim, size in enumerate(shape) if size % n_data == 0 and dim not in _taken(names)]
            budget = least // n_data if free else least
            _assert_kept(got, names, what)
            if held > budget:
                raise WrongAnswer(
                    f"{what} is {got}: each moment takes {held} bytes per device", expected=f"at most {budget}"
                )
            before, after = before + least, after + held
    return f"{after} bytes per device instead of {before}, for all shapes on both meshes"


def _taken(names: tuple[str | None, ...]) -> set[int]:
    return {dim for dim, name in enumerate(names) if name is not None}


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=int))


def _shard_shape(spec: Any, shape: tuple[int, ...], mesh: Any, what: str) -> tuple[int, ...]:
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"{what} is a {type(spec).__name__}", expected="a PartitionSpec: jax.P(...)")
    try:
        return tuple(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape))
    except (ValueError, IndexError, KeyError) as error:
        raise WrongAnswer(f"{what} is {spec}, which does not fit: {str(error).splitlines()[0]}") from None


def _assert_kept(spec: Any, names: tuple[str | None, ...], what: str) -> None:
    """Check that each axis is still on its dim, and alone there."""
    for dim in _taken(names):
        if dim >= len(spec) or spec[dim] != names[dim]:
            raise WrongAnswer(
                f"{what} is {spec}",
                expected=f"{names[dim]!r} alone on dim {dim}, as in the parameter",
                note="An update needs the moments where the parameter is; with another dim they are sent first",
            )


_NEEDED = ("weights", "velocity", "position")


def _needed(process: ProcessInfo, needed: Any) -> str:
    import jax

    spec: Any = jax.sharding.PartitionSpec
    mesh = make_mesh((process.device_count // 2, 2), ("data", "model"))
    rng = np.random.default_rng(3)

    def put(value: Any, *names: str | None) -> Any:
        return jax.make_array_from_callback(
            value.shape, jax.sharding.NamedSharding(mesh, spec(*names)), value.__getitem__
        )

    rows = 4 * process.device_count
    numbers = {name: rng.normal(size=(rows, 8)).astype(np.float32) for name in ("weights", "velocity", "gradient")}
    run = {name: put(value, "data", "model") for name, value in numbers.items()}
    run |= {"tokens": put(np.arange(2 * rows * 8, dtype=np.int32).reshape(2 * rows, 8), "data")}
    run |= {"loss": put(np.array(2.5, np.float32)), "position": put(np.array(12, np.int32))}
    got = call_answer(needed, dict(run), what="of a dict")
    if not isinstance(got, dict):
        raise WrongAnswer(f"needed(run) is a {type(got).__name__}", expected="a dict")
    _assert_complete(got, run, numbers)
    written, least = _written(got), _written({name: run[name] for name in _NEEDED})
    if written > least:
        extra = [name for name in got if name not in _NEEDED]
        raise WrongAnswer(
            f"this process writes {written} bytes", expected=f"at most {least}", note=f"Saved too: {', '.join(extra)}"
        )
    return "the arrays that the next step reads before it writes them, and no byte more"


def _assert_complete(got: Mapping[str, Any], run: Mapping[str, Any], numbers: Mapping[str, np.ndarray]) -> None:
    """Check that the dict has what the next step needs, unchanged."""
    velocity = float(numbers["velocity"][0, 0])
    lost = {
        "weights": "Without them the job begins anew",
        "velocity": f"After the restart it would be 0 in place of {velocity:.3f}, and no error says so",
        "position": "After the restart the job would train on the first tokens again",
    }
    for name in _NEEDED:
        if name not in got:
            raise WrongAnswer(f"the checkpoint has no {name}", expected="all that the next step needs", note=lost[name])
        if got[name] is not run[name]:
            kind = getattr(got[name], "dtype", type(got[name]).__name__)
            raise WrongAnswer(
                f"{name} is another array, {kind}",
                expected=f"the array of the run, {run[name].dtype}",
                note="Return the arrays of run themselves: a changed or rounded value cannot go on exactly",
            )


def _written(tree: Mapping[str, Any]) -> int:
    """Return the bytes of this process's shards with replica_id 0."""
    return sum(
        shard.data.nbytes
        for x in tree.values()
        for shard in getattr(x, "addressable_shards", ())
        if shard.replica_id == 0
    )


_TEMPORARY = ".orbax-checkpoint-tmp"


def _resume_step(process: ProcessInfo, resume_step: Any) -> str:
    is_first = process.rank == 0
    cases: tuple[tuple[str, list[str], int], ...] = (
        ("all see 4, 8 and a temporary 12", ["4", f"12{_TEMPORARY}", "8"], 8),
        ("all see 96 and 104", ["96", "104"], 104),
        ("only process 0 sees 12", ["8", "12"] if is_first else ["8", f"12{_TEMPORARY}"], 12),
        ("only the others see 12", ["8"] if is_first else ["8", "12"], 8),
        ("process 0 sees nothing", [] if is_first else ["4"], 0),
    )
    for what, names, wanted in cases:
        got = call_answer(resume_step, list(names), what="of a list of names")
        if not hasattr(got, "__int__"):
            raise WrongAnswer(f"resume_step(names), if {what}, is {got!r}", expected="a number")
        assert_equal(int(got), wanted, f"resume_step(names), if {what},")
    return "all processes go on from the step that process 0 has chosen"


def _first_difference(process: ProcessInfo, first_difference: Any) -> str:
    del process
    losses = np.array([3.75, 3.5, 3.25, 3.125, 3.0], np.float32)
    nearly = losses.copy()
    nearly[3] = np.nextafter(losses[3], np.float32(4))
    broken = losses.copy()
    broken[2:] = np.nan
    cases = (
        ("the same losses", losses, losses.copy(), None),
        ("losses that differ in the last bit of step 3", losses, nearly, 3),
        ("nan in both from step 2 on", broken, broken.copy(), None),
        ("nan in one of them from step 2 on", losses, broken, 2),
        ("other losses from the start", losses, losses + 1, 0),
        ("0.0 and -0.0, which are equal numbers with other bits", np.zeros(2, np.float32), -np.zeros(2, np.float32), 0),
    )
    for what, a, b, wanted in cases:
        got = call_answer(first_difference, a, b, what="of two arrays")
        assert_equal(got, wanted, f"first_difference(a, b) for {what}")
    return "the first step with other bits, or None"


LESSON = Lesson(
    "19_capstone.ipynb",
    "Capstone: from notebook to batch job",
    (
        Prediction(
            "never_trained",
            "How many of the 512 records of the epoch does the job never train on?",
            (0, 32, 64, 128),
            "Two batches of 32 were made and not yet used when the step was saved. They were lost with the process, and a job that begins "
            "behind them never makes them again. So the position to save is that of the training, not that of the loader.",
        ),
        Prediction(
            "first_copies",
            "On how many of the four ranks is a shard of `up` with replica_id 0?",
            (1, 2, 4),
            "The axis model is inside a host, so the two devices of rank 0 have both parts, and their copies are those with replica_id 0. "
            "If only these copies were written, rank 0 would write the whole array, and the others would wait for it.",
        ),
        Exercise(
            "records_of",
            "the records of a step",
            "Write records_of(step, n_records, n_batch, order): the records that this process reads for a step.",
            _records_of,
            "medium",
            (
                "At which place of the endless sequence does this process begin?",
                "Before it are `step` batches, and the parts of the processes with a smaller index.",
                "Place p is in epoch `p // n_records`; decide it for each record, because a part may cross the border.",
            ),
        ),
        Exercise(
            "moment_spec",
            "moments need no copies",
            "Write moment_spec(spec, shape, n_data): the spec of a parameter, with data added on a dim that is free.",
            _moment_spec,
            "hard",
            (
                "A spec may be shorter than the shape; the dims that it does not name are free, too.",
                "Make a list of one name or None for each dim, and look for a None whose size n_data divides.",
                "Put the name into the list, stop the loop there, and make a spec of the list.",
            ),
        ),
        Exercise(
            "needed",
            "save what is needed, and no more",
            "Write needed(run): the dict of the arrays that a job needs to go on exactly.",
            _needed,
            "easy",
            (
                "What does the next step read before it writes it?",
                "What can be computed or read again from the position need not be saved.",
            ),
        ),
        Exercise(
            "resume_step",
            "one decision for all",
            "Write resume_step(names): the newest complete step that process 0 sees, on every process.",
            _resume_step,
            "medium",
            (
                "A complete checkpoint has only digits in its name; compare them as numbers.",
                "multihost_utils has a function that sends a value of process 0 to all.",
                "All processes must call it, whatever they see.",
            ),
        ),
        Exercise(
            "first_difference",
            "where do two runs part?",
            "Write first_difference(a, b): the first index at which the bits of two float32 arrays differ, or None.",
            _first_difference,
            "medium",
            (
                "A tolerance finds what is far apart, and == says that nan is not nan.",
                "`view` shows the bits of an array as numbers of another type of the same size.",
                "An int32 has as many bits as a float32.",
            ),
            side="notebook",
        ),
    ),
)
