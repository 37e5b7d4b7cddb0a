"""Exercises on the SPMD model: lessons 01, 06, 07 and 08.

Lesson 01 is one notebook, many Pythons; 06 same program, same order; 07 the deadlock lab; 08 reading collectives, on a
communication budget.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import Budget, assert_equal, call_answer, check_budget, make_mesh
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

_KIB = 1024


def _mesh(process: ProcessInfo) -> Any:
    """Return a mesh with one row per host, as in the lesson."""
    import jax

    devices = np.array(jax.devices()).reshape(process.process_count, process.local_device_count)
    return jax.sharding.Mesh(devices, ("data", "model"))


def _variance_in_one(process: ProcessInfo, variance: Any) -> str:
    import jax

    rng = np.random.default_rng(8)
    values = rng.integers(-4, 5, (process.device_count, 8)).astype(np.float32)
    sharding = jax.sharding.NamedSharding(_mesh(process), jax.sharding.PartitionSpec(("data", "model"), None))
    x = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
    call_answer(callable, variance, what="of a global array")
    got, wanted = float(jax.jit(variance)(x)), float(values.var())
    if not np.isclose(got, wanted, rtol=1e-4):
        raise WrongAnswer(
            f"variance(x) is {got:.6g}", expected=f"{wanted:.6g}, the mean of the squares minus the square of the mean"
        )
    return f"right; it runs {check_budget(Budget({'all-reduce': 1}, nbytes_per_device=8), variance, x)}"


def _stay_inside(process: ProcessInfo, x_spec: Any, w_spec: Any) -> str:
    mesh = _mesh(process)
    x = _abstract_array("x", (256, 128), mesh, x_spec)
    w = _abstract_array("w", (128, 64), mesh, w_spec)
    usage_text = check_budget(
        Budget({"all-reduce": 1, "all-gather": 1, "reduce-scatter": 1}, nbytes_across_hosts=0), _product, x, w
    )
    return f"at most 16 KiB of each per device; it runs {usage_text}, with nothing for another host"


def _product(x: Any, w: Any) -> Any:
    return x @ w


def _abstract_array(name: str, shape: tuple[int, ...], mesh: Any, spec: Any) -> Any:
    """Return an abstract sharded array of at most 16 KiB per device."""
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"{name}_spec is a {type(spec).__name__}", expected="a PartitionSpec: P(...)")
    try:
        sharding = jax.sharding.NamedSharding(mesh, spec)
        shard_shape = sharding.shard_shape(shape)
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"{name}_spec {spec} does not fit float32{list(shape)} on this mesh: {error}") from None
    nbytes = 4 * int(np.prod(shard_shape))
    if nbytes > 16 * _KIB:
        raise WrongAnswer(
            f"a device holds {nbytes} bytes of {name} ({tuple(shard_shape)} of {shape})",
            expected=f"at most {16 * _KIB}",
        )
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)


# -- lesson 07: the deadlock lab


def _log_from_one(process: ProcessInfo, report: Any) -> str:
    import jax

    mesh = make_mesh((process.device_count,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for scale in (1, 2):
        values = scale * np.arange(process.device_count, dtype=np.float32)
        x = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
        got = call_answer(report, x, what="of a global array")
        assert_equal(
            got, f"sum {values.sum()}" if process.rank == 0 else None, f"report(x) with the sum {values.sum()}"
        )
    return "every rank computes the sum, and rank 0 returns the text"


def _any_rank(process: ProcessInfo, any_rank: Any) -> str:
    last = process.process_count - 1
    for raised, wanted in (({last}, True), (set(), False), (set(range(last + 1)), True)):
        got = call_answer(any_rank, process.rank in raised, what="of one flag")
        where = f"set on rank {last} only" if raised == {last} else "set on every rank" if raised else "set on no rank"
        assert_equal(bool(got), wanted, f"any_rank(flag), with the flag {where},")
    return "all ranks return the same answer, whichever rank set the flag"


def _pad_last(process: ProcessInfo, pad: Any) -> str:
    rows = np.full((4 - (process.rank or 0) % 3, 3), 1.0 + (process.rank or 0), np.float32)
    got = call_answer(pad, rows, what="of this rank's rows")
    if not isinstance(got, tuple) or len(got) != 2:
        raise WrongAnswer(f"pad returns a {type(got).__name__}", expected="two values: the padded rows and the mask")
    padded, mask = (np.asarray(each) for each in got)
    n = len(rows)
    if padded.shape != (4, 3):
        raise WrongAnswer(
            f"the padded rows have shape {padded.shape}", expected=f"(4, 3) from {n} rows: the same on every rank"
        )
    if not np.array_equal(padded[:n], rows) or padded[n:].any():
        raise WrongAnswer(f"the padded rows are {padded.tolist()}", expected=f"the {n} rows, then zeros")
    assert_equal(
        mask.astype(bool).tolist(),
        [i < n for i in range(4)],
        "the mask",
        hint="It is True for rows and False for padding",
    )
    return "four rows on every rank, and a mask that marks the real ones"


# -- lesson 06: same program, same order


def _in_order(process: ProcessInfo, in_order: Any) -> str:
    del process
    for names in ({"sum", "max", "min"}, {"wq", "wk", "wv", "wo", "b1", "b2"}):
        got = call_answer(in_order, set(names), what="of a set of names")
        assert_equal(
            got, sorted(names), f"in_order of {len(names)} names", hint="Sorted, the order is the same in every process"
        )
    return "the same order in every process"


def _keys_apart(process: ProcessInfo, params_key: Any, data_key: Any) -> str:
    import jax

    same = jax.random.key(0)
    _assert_key(params_key, same, "params_key", "the key 0 itself: parameters begin equal on every rank")
    own = jax.random.fold_in(same, process.rank or 0)
    _assert_key(data_key, own, "data_key", f"the key 0 with {process.rank} folded in: every rank draws its own data")
    return "one key for all ranks, and one for each rank"


def _assert_key(key: Any, expected: Any, what: str, why: str) -> None:
    import jax

    if not isinstance(key, jax.Array) or key.shape != () or not jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise WrongAnswer(f"{what} is a {type(key).__name__}", expected="one key from jax.random.key")
    got, expected_data = (np.asarray(jax.random.key_data(each)).tolist() for each in (key, expected))
    if got != expected_data:
        raise WrongAnswer(f"{what} is {got}", expected=f"{expected_data}, {why}")


def _agreed_start(process: ProcessInfo, start: Any) -> str:
    got = int(start) if getattr(start, "shape", None) == () else start
    hint = (
        f"That is what rank {process.rank} drew itself"
        if got == 100 + 7 * (process.rank or 0) and process.rank
        else "Take what rank 0 drew"
    )
    assert_equal(got, 100, "start", hint=hint)
    return "every rank starts from what rank 0 drew"


# -- lesson 01: one notebook, many Pythons


def _my_label(process: ProcessInfo, label: Any) -> str:
    assert_equal(label, f"rank {process.rank} of {process.process_count}", "label")
    return "each rank has its own label"


def _log_once(process: ProcessInfo, log: Any) -> str:
    for text in ("loss 0.5", "loss 0.25"):
        got = call_answer(log, text, what="of one text")
        assert_equal(
            got,
            text if process.rank == 0 else None,
            f"log({text!r})",
            hint="Rank 0 returns the text, every other rank None",
        )
    return "rank 0 returns the text, the others None"


def _pull_each(process: ProcessInfo, labels: Any) -> str:
    del process
    if not isinstance(labels, list):
        raise WrongAnswer(
            f"the answer is a {type(labels).__name__}, {labels!r}", expected="a list with one label for each rank"
        )
    if len(labels) < 2:
        raise WrongAnswer(f"the list has {len(labels)} labels", expected="one for each rank")
    for rank, label in enumerate(labels):
        assert_equal(label, f"rank {rank} of {len(labels)}", f"the label of rank {rank}")
    return f"{len(labels)} labels, in rank order"


TASKS = (
    Prediction(
        "rows_times_whole",
        "08",
        "left is sharded by rows over all devices, and weights is replicated. How many collectives does left @ weights run?",
        (0, 1, 2),
        "Every device has its rows and all weights, so it computes its rows of the result without communication.",
    ),
    Exercise(
        "variance_in_one",
        "08",
        "Fix variance(x): the variance of all elements, with one all-reduce of at most 8 bytes per device.",
        _variance_in_one,
        hint="One all-reduce can carry two sums that do not depend on each other.",
    ),
    Exercise(
        "stay_inside",
        "08",
        "Choose x_spec and w_spec for x @ w: at most 16 KiB of each per device, and nothing sent to another host.",
        _stay_inside,
        hint="Which dim does the product sum over, and which mesh axis crosses hosts?",
    ),
    Prediction(
        "after_the_hang",
        "07",
        "A collective hangs on rank 0 and is interrupted after a few seconds. In which state is the cluster then?",
        ("clean", "split", "tainted", "dead"),
        "The collective was abandoned. It is still queued on rank 0, and could pair up with a later one.",
    ),
    Exercise(
        "log_from_one",
        "07",
        "Fix report(x): it returns 'sum ...' on rank 0 and None on the other ranks, and no rank waits forever.",
        _log_from_one,
        hint="The sum is a collective: every rank calls it. Only the returned value may depend on the rank.",
    ),
    Exercise(
        "any_rank",
        "07",
        "Write any_rank(flag): it returns True on every rank if at least one rank passes True.",
        _any_rank,
        hint="Every rank needs the flags of all ranks. Then each can decide on its own.",
    ),
    Exercise(
        "pad_last",
        "07",
        "Write pad(rows): it returns 4 rows on every rank, with zeros below the real ones, and a mask of 4 booleans.",
        _pad_last,
        hint="Count the missing rows first. The mask is True for each real row.",
    ),
    Exercise(
        "in_order",
        "06",
        "Write in_order(names): it returns the names of a set as a list, in the same order in every process.",
        _in_order,
        hint="A set has a different order in each process. Order the names by their own text.",
    ),
    Exercise(
        "keys_apart",
        "06",
        "Set params_key to the key 0 on every rank, and data_key to the key 0 with the process index folded in.",
        _keys_apart,
        hint="fold_in makes a new key from a key and a number.",
    ),
    Exercise(
        "agreed_start",
        "06",
        "Set start on every rank to the number that rank 0 drew.",
        _agreed_start,
        hint="Take what rank 0 drew.",
    ),
    Prediction(
        "where_it_lives",
        "01",
        "Every rank has run x = 1. Is there an x in the notebook?",
        (True, False),
        "A %%mhjax cell sets its variables on the ranks. The notebook is a separate process, which does not see them.",
    ),
    Exercise(
        "my_label",
        "01",
        "Set label to 'rank K of N' on each rank, such as 'rank 2 of 4'.",
        _my_label,
        hint="Two functions of JAX give the two numbers: `process_index` and `process_count`.",
    ),
    Exercise(
        "log_once",
        "01",
        "Write log(text): it returns the text on rank 0 and None on every other rank.",
        _log_once,
        hint="Only the returned value depends on the rank.",
    ),
    Exercise(
        "pull_each",
        "01",
        "Pull the label of every rank into the notebook, as a list.",
        _pull_each,
        side="notebook",
        hint="A flag of %mhjax pull returns each rank's own value.",
    ),
)
