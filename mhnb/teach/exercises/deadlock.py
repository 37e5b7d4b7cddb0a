"""Exercises of the lesson: the deadlock lab."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_equal,
    call_answer,
    make_mesh,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


def _log_from_one(process: ProcessInfo, report: Any) -> str:
    import jax

    mesh = make_mesh((process.device_count,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    values = [scale * np.arange(process.device_count, dtype=np.float32) for scale in (1, 2)]
    arrays = [jax.make_array_from_callback(each.shape, sharding, each.__getitem__) for each in values]
    # All calls come first: a rank that stopped at a wrong text would leave the other ranks waiting in the next call.
    texts = [call_answer(report, x, what="of a global array") for x in arrays]
    for got, x, total in zip(texts, arrays, [each.sum() for each in values], strict=True):
        local = sum(float(shard.data.sum()) for shard in x.addressable_shards)
        note = (
            "Every rank returned the text, so four lines would be printed"
            if process.rank and got is not None
            else "That is the sum of this rank's own shards"
            if got == f"sum {local}"
            else ""
        )
        wanted = f"sum {total}" if process.rank == 0 else None
        assert_equal(got, wanted, f"report(x) with the sum {total}", note=note)
    return "rank 0 returns the text, and the other ranks None"


def _any_rank(process: ProcessInfo, any_rank: Any) -> str:
    last = process.process_count - 1
    cases: tuple[tuple[set[int], bool], ...] = (({last}, True), (set(), False), (set(range(last + 1)), True))
    # All calls come first, as above.
    answers = [call_answer(any_rank, process.rank in raised, what="of one flag") for raised, _ in cases]
    for got, (raised, wanted) in zip(answers, cases, strict=True):
        if np.ndim(got):
            raise WrongAnswer(f"any_rank returns {name_kind(got)} of shape {np.shape(got)}", expected="one boolean")
        where = f"set on rank {last} only" if raised == {last} else "set on every rank" if raised else "set on no rank"
        note = (
            ""
            if got or process.rank in raised
            else "This rank's flag is not set, so the answer must come from the others"
        )
        assert_equal(bool(got), wanted, f"any_rank(flag), with the flag {where},", note=note)
    return "the right answer, whichever rank set the flag"


def _pad_last(process: ProcessInfo, pad: Any) -> str:
    rows = np.full((4 - (process.rank or 0) % 3, 3), 1.0 + (process.rank or 0), np.float32)
    rows[0] = 0  # a real row, so a mask cannot be made from the values
    got = call_answer(pad, rows, what="of this rank's rows")
    if not isinstance(got, tuple) or len(got) != 2:
        raise WrongAnswer(f"pad returns {name_kind(got)}", expected="two values: the padded rows and the mask")
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
        note="It is True for real rows, even for a row of zeros, and False for padding",
    )
    return "four rows on every rank, and a mask that marks the real ones"


LESSON = Lesson(
    "09_deadlock.ipynb",
    "The deadlock lab",
    (
        Prediction(
            "prints_of_b",
            "Rank 0 calls a sum over all ranks between print A and print B. The others skip the sum. How many ranks print B?",
            (0, 1, 3, 4),
            "JAX starts a program and returns before it has finished, which is called asynchronous dispatch. "
            "So rank 0 went on and printed B, too. It waits only where a value is needed, here at the end of the cell.",
        ),
        Exercise(
            "log_from_one",
            "report from one rank",
            "Fix report(x): it returns 'sum ...' on rank 0 and None on the other ranks, and no rank waits forever.",
            _log_from_one,
            "easy",
            (
                "The sum is a collective. Which ranks call it now, and which would have to?",
                "Move the sum out of the if, with float around it. Only the value that is returned may depend on the rank.",
            ),
        ),
        Exercise(
            "any_rank",
            "stop together",
            "Write any_rank(flag): it returns True on every rank if at least one rank passes True.",
            _any_rank,
            "medium",
            (
                "Every rank needs the flags of all ranks. Then each can decide on its own.",
                "process_allgather collects a NumPy value of every rank, and gives all of them to every rank.",
                "All ranks must call it, whatever their own flag is. So it cannot be inside an if on the flag.",
            ),
        ),
        Exercise(
            "pad_last",
            "pad the last batch",
            "Write pad(rows): it returns 4 rows on every rank, with zeros below the real ones, and a mask of 4 booleans.",
            _pad_last,
            "medium",
            (
                "Count the missing rows first, and make that many rows of zeros with the columns and the type of the others.",
                "np.concatenate puts rows below each other. The mask compares the position of each row with the number of real ones.",
            ),
        ),
    ),
)
