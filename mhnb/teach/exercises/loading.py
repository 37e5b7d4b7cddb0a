"""Exercises of the lesson: loading data."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_equal,
    assert_global_array,
    assert_shards,
    assert_spec,
    call_answer,
    make_mesh,
)
from mhnb.teach.exercise import Exercise, Lesson, ProcessInfo, WrongAnswer

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


LESSON = Lesson(
    "10_loading.ipynb",
    "Loading data",
    (
        Exercise(
            "my_share",
            "equal shares",
            "Set share to this rank's records out of 0 to 21: every fourth one, and the same number on every rank.",
            _my_share,
            "easy",
            ("Begin at the process index, step by the process count, and leave the rest.",),
        ),
        Exercise(
            "global_batch",
            "a batch from all ranks",
            "Write batch(step): it returns a global array of 16 rows, of which each rank reads only its own 4.",
            _global_batch,
            "medium",
            ("Each rank makes only its own rows. A step begins where the last batch of all ranks ended.",),
        ),
        Exercise(
            "steps_for_all",
            "how many steps?",
            "Set steps to the smallest number of batches that any rank has.",
            _steps_for_all,
            "medium",
            ("Take the smallest count of all ranks.",),
        ),
    ),
)
