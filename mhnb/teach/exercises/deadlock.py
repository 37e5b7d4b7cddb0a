"""Lesson 07: the deadlock lab."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import assert_equal, call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]


def _log_from_one(process: ProcessInfo, report: Any) -> str:
    import jax

    mesh = jax.make_mesh((process.device_count,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for scale in (1, 2):
        values = scale * np.arange(process.device_count, dtype=np.float32)
        x = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
        got = call_answer(report, x, what="of a global array")
        assert_equal(
            got, f"sum {values.sum()}" if process.rank == 0 else None, f"report(x) with the sum {values.sum()}"
        )
    return "every rank computes, and rank 0 alone speaks"


def _any_rank(process: ProcessInfo, any_rank: Any) -> str:
    last = process.process_count - 1
    for raised, wanted in (({last}, True), (set(), False), (set(range(last + 1)), True)):
        got = call_answer(any_rank, process.rank in raised, what="of one flag")
        who = f"set on rank {last} only" if raised == {last} else "set on every rank" if raised else "set on no rank"
        assert_equal(bool(got), wanted, f"any_rank(flag), the flag {who},")
    return "all ranks give the same answer, whoever raised the flag"


def _pad_last(process: ProcessInfo, pad: Any) -> str:
    rows = np.full((4 - (process.rank or 0) % 3, 3), 1.0 + (process.rank or 0), np.float32)
    got = call_answer(pad, rows, what="of this rank's rows")
    if not isinstance(got, tuple) or len(got) != 2:
        raise WrongAnswer(f"pad gives a {type(got).__name__}, expected two values: the padded rows and the mask")
    padded, mask = (np.asarray(each) for each in got)
    n = len(rows)
    if padded.shape != (4, 3):
        raise WrongAnswer(
            f"the padded rows have shape {padded.shape}, expected (4, 3) from {n} rows: the same on every rank"
        )
    if not np.array_equal(padded[:n], rows) or padded[n:].any():
        raise WrongAnswer(f"the padded rows should be the {n} rows and then zeros, and are {padded.tolist()}")
    assert_equal(mask.astype(bool).tolist(), [i < n for i in range(4)], "the mask", hint="It tells rows from padding")
    return "four rows on every rank, and a mask that tells which are real"


TASKS = (
    Prediction(
        "after_the_hang",
        "07",
        "A collective hangs on rank 0 and is interrupted after some seconds. In which state is the cluster?",
        ("clean", "split", "tainted", "dead"),
        "The collective was abandoned. It is still queued on rank 0, and a later one could meet it.",
    ),
    Exercise(
        "log_from_one",
        "07",
        "Mend report(x): it returns 'sum ...' on rank 0 and None elsewhere, and no rank waits for ever.",
        _log_from_one,
    ),
    Exercise("any_rank", "07", "Write any_rank(flag): True on every rank as soon as one rank gives True.", _any_rank),
    Exercise(
        "pad_last",
        "07",
        "Write pad(rows): 4 rows on every rank, zeros below the real ones, and a mask of 4 truth values.",
        _pad_last,
    ),
)
