"""Exercises of lessons 11 (training), 12 (dead rank) and 13 (srun)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from mhnb.core.export import translate_cell
from mhnb.teach.check import Budget, assert_equal, assert_global_array, assert_shards, call_answer, check_budget
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

_DIM = 6


def _mesh() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def _sharded_array(values: np.ndarray, *spec: str | None) -> Any:
    import jax

    sharding = jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _fixed_step(process: ProcessInfo, step: Any) -> str:
    import jax

    n = 2 * process.device_count
    w, x, y = _numbers(1, _DIM), _numbers(2, n, _DIM), _numbers(3, n)
    call_answer(callable, step, what="of w, x and y")
    arguments = _sharded_array(w), _sharded_array(x, "data"), _sharded_array(y, "data")
    got = assert_global_array(jax.jit(step)(*arguments), w.shape, "float32", "the new w", process)
    assert_shards(got, w - 0.1 * _gradient(w, x, y), "the new w", process)
    return f"the same w on every device; it runs {check_budget(Budget({'all-reduce': 1}), step, *arguments)}"


def _gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean squared error of a linear model."""
    wanted: np.ndarray = 2 * x.T @ (x @ w - y) / len(x)
    return wanted


def _accumulate_once(process: ProcessInfo, accumulate: Any) -> str:
    import jax

    n, parts = 2 * process.device_count, 4
    w, xs = _numbers(4, _DIM), _numbers(5, parts, n, _DIM)
    call_answer(callable, accumulate, what="of w and xs")
    spec: Any = jax.sharding.PartitionSpec
    mapped = jax.jit(
        # Without the check, the gradient of replicated parameters stays local to each device until the learner sums it.
        jax.shard_map(
            lambda w, xs: accumulate(w, xs)[None],
            mesh=_mesh(),
            in_specs=(spec(), spec(None, "data")),
            out_specs=spec("data"),
            check_vma=False,
        )
    )
    arguments = _sharded_array(w), _sharded_array(xs, None, "data")
    wanted = np.mean([_gradient(w, x, np.zeros(n, np.float32)) for x in xs], axis=0)
    got = mapped(*arguments)
    if got.shape != (process.device_count, _DIM):
        raise WrongAnswer(f"accumulate(w, xs) has shape {got.shape[1:]}", expected=f"{(_DIM,)}, the shape of w")
    assert_shards(got, np.tile(wanted, (process.device_count, 1)), "accumulate(w, xs)", process)
    budget = Budget({"all-reduce": 1}, nbytes_per_device=4 * _DIM)
    return f"the mean over devices and batches; it runs {check_budget(budget, mapped, *arguments)}"


def _split_params(process: ProcessInfo, spec_of: Any) -> str:
    import jax

    n, mesh = process.device_count, _mesh()
    for shape in ((16 * n, 3), (3, 16 * n), (2, 3, n), (n,), (n - 1,), (3, 5), ()):
        spec = call_answer(spec_of, shape, what="of a shape")
        if not isinstance(spec, jax.sharding.PartitionSpec):
            raise WrongAnswer(f"spec_of({shape}) is a {type(spec).__name__}", expected="a PartitionSpec: P(...)")
        try:
            shard_shape = jax.sharding.NamedSharding(mesh, spec).shard_shape(shape)
        except (ValueError, IndexError, KeyError) as error:
            raise WrongAnswer(f"spec_of({shape}) is {spec}, which does not fit: {str(error).splitlines()[0]}") from None
        can_split = any(size % n == 0 for size in shape)
        most = int(np.prod(shape)) * 4 // (n if can_split else 1)
        nbytes = int(np.prod(shard_shape)) * 4
        if nbytes > most:
            raise WrongAnswer(
                f"with spec_of({shape}), {spec}, a device holds {nbytes} bytes", expected=f"at most {most}"
            )
    return f"1/{n} on each device if a dim can be sharded, otherwise replicated"


# -- lesson 12: when a rank dies


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
            raise WrongAnswer(f"pieces(x) returns a {type(got).__name__}", expected="a list of arrays")
        wanted = [np.asarray(shard.data) for shard in x.addressable_shards if shard.replica_id == 0]
        if not _same_pieces(got, wanted):
            raise WrongAnswer(
                f"for spec {x.sharding.spec} this rank writes {_format_pieces(got)}",
                expected=_format_pieces(wanted),
                hint="One of several equal copies is replica 0",
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
        read = sum(values[box].nbytes for box in requested)
        if read > needed:
            raise WrongAnswer(f"with spec {sharding.spec} this rank reads {read} bytes", expected=f"at most {needed}")
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
        assert_equal(int(got), wanted, f"common(saved), if {what},")
    return "all ranks continue from the newest step that every rank has"


# -- lesson 13: from notebook to srun


def _can_leave(process: ProcessInfo, source: Any) -> str:
    del process
    if not isinstance(source, str):
        raise WrongAnswer(f"source is a {type(source).__name__}", expected="the text of a cell")
    translated = translate_cell(source)
    if translated.refused:
        raise WrongAnswer(translated.refused[0])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(translated.text, "the exported cell", "exec"), {"_show": print})  # noqa: S102 the learner's own cell
    assert_equal(out.getvalue(), "45\n", "its output")
    return "plain Python, and it prints 45"


def _from_environment(process: ProcessInfo, arguments: Any) -> str:
    del process
    for rank in (0, 3):
        environ = {"MASTER_ADDR": "node7", "MASTER_PORT": "1234", "WORLD_SIZE": "4", "RANK": str(rank), "HOME": "/root"}
        got = call_answer(arguments, environ, what="of the environment")
        if not isinstance(got, dict):
            raise WrongAnswer(f"arguments(environ) returns a {type(got).__name__}", expected="a dict")
        wanted = {"coordinator_address": "node7:1234", "num_processes": 4, "process_id": rank}
        for name, value in wanted.items():
            assert_equal(got.get(name), value, f"{name} for RANK={rank}")
        if extra := sorted(set(got) - set(wanted)):
            raise WrongAnswer(f"initialize also gets {', '.join(extra)}", expected=f"only {', '.join(wanted)}")
    assert_equal(
        call_answer(arguments, {"HOME": "/root"}, what="of the environment"),
        {},
        "arguments(environ) without the four variables",
    )
    return "an address and two numbers; an empty dict if none of the variables is set"


TASKS = (
    Prediction(
        "rows_that_differ",
        "11",
        "Each of 4 processes draws 16 rows from jax.random.key(0). How many different rows does the batch of 64 have?",
        (64, 16, 4, 1),
        "The same key gives the same numbers in every process, so four processes did the work of one.",
    ),
    Exercise(
        "fixed_step",
        "11",
        "Correct fixed_step(w, x, y): it returns w minus 0.1 times the gradient of the mean squared error, with one all-reduce.",
        _fixed_step,
        hint="Under jit the batch is global: its mean is over all devices.",
    ),
    Exercise(
        "accumulate_once",
        "11",
        "Write accumulate(w, xs) for shard_map: the mean gradient over devices and batches, with one all-reduce.",
        _accumulate_once,
        hint="Add up on the device, and reduce once, after the loop.",
    ),
    Exercise(
        "split_params",
        "11",
        "Write spec_of(shape): the PartitionSpec over the axis data that gives each device as few bytes as possible.",
        _split_params,
        hint="Look for a dim that the number of devices divides.",
    ),
    Prediction(
        "ranks_left",
        "12",
        "Rank 2 of 4 is killed. How many ranks are alive when the cell has ended?",
        (4, 3, 1, 0),
        "The other ranks would wait forever for the dead one. JAX would stop them later; mhnb stops them at once.",
    ),
    Exercise(
        "each_piece_once",
        "12",
        "Write pieces(x): the shards that this rank writes, so that across all ranks each shard is written exactly once.",
        _each_piece_once,
        hint="One of several equal copies is replica 0.",
    ),
    Exercise(
        "read_own",
        "12",
        "Write restore(shape, sharding, read): the global array, reading no more than this rank's devices hold.",
        _read_own,
        hint="One function of JAX calls a reader only for the shards of this process.",
    ),
    Exercise(
        "common_step",
        "12",
        "Write common(saved): the largest step that every rank has saved.",
        _common_step,
        hint="A step counts if every rank has it. What do ranks with different numbers of steps exchange?",
    ),
    Prediction(
        "who_logs",
        "13",
        "Two plain processes run the script. How many of them print the line that begins with 'log:'?",
        (0, 1, 2),
        "Both run the same file, and the cell of rank 0 is inside an if.",
    ),
    Exercise(
        "can_leave",
        "13",
        "Write source, the text of a cell in plain Python that prints the sum of the numbers below 10.",
        _can_leave,
        side="notebook",
        hint="A script has no magics, and does not import mhnb.",
    ),
    Exercise(
        "from_environment",
        "13",
        "Write arguments(environ): it returns the arguments of initialize as a dict, from MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.",
        _from_environment,
        side="notebook",
        hint="The address has two parts, and the other two are numbers.",
    ),
)
