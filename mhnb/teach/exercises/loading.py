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
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_RECORDS = 22


def _my_share(process: ProcessInfo, share: Any) -> str:
    if not isinstance(share, list):
        raise WrongAnswer(f"share is {name_kind(share)}", expected="a list of record numbers")
    each = _RECORDS // process.process_count
    if len(share) != each:
        raise WrongAnswer(
            f"share has {len(share)} records",
            expected=f"{each} on every rank: {_RECORDS} records leave {_RECORDS % process.process_count} over, which no rank reads",
            note="Ranks with fewer records make fewer steps, and this one would wait for them"
            if len(share) == each + 1
            else "",
        )
    wanted = list(range(_RECORDS))[process.rank :: process.process_count][:each]
    assert_equal(list(share), wanted, "share", note="Take every fourth record, beginning with the process index")
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
        assert_shards(got, wanted, what, process, note=_note_on_first_row(got, local, process))
    return f"{local} rows from each rank in every batch"


def _note_on_first_row(batch: Any, local: int, process: ProcessInfo) -> str:
    """Say whose record is in the first row of this rank."""
    record = round(float(min(np.asarray(shard.data)[0, 0] for shard in batch.addressable_shards)))
    step, place = divmod(record, local * process.process_count)
    return f"The first row of this rank is record {record}, which is for rank {place // local} in batch({step})"


def _steps_for_all(process: ProcessInfo, steps: Any) -> str:
    counts = [6, 5, 6, 4]
    got = int(steps) if hasattr(steps, "shape") and steps.shape == () else steps
    wanted = min(counts[rank % len(counts)] for rank in range(process.process_count))
    note = "The ranks with the fewest batches end first, so the number must come from all ranks"
    assert_equal(got, wanted, "steps", note=note)
    return f"every rank stops after {wanted} batches"


LESSON = Lesson(
    "10_loading.ipynb",
    "Loading data",
    (
        Prediction(
            "batches_each",
            "22 records are divided over 4 ranks with shard, and each rank makes local batches of 2. "
            "How many batches do ranks 0, 1, 2 and 3 make?",
            ((2, 2, 2, 2), (3, 3, 2, 2), (3, 3, 3, 2), (3, 3, 3, 3)),
            "Ranks 0 and 1 have six records, which are three batches. Ranks 2 and 3 have five, and drop the last one.",
        ),
        Prediction(
            "never_read",
            "4 ranks shuffle 10,000 records, each from a random state of its own, and each takes a quarter. "
            "About how many records does no rank take?",
            (0, 1000, 3000, 7500),
            "Each rank leaves a record out with probability 3/4, and the ranks do not know of each other: 0.75 ** 4 is 0.32. "
            "About a quarter of the records are taken twice or more.",
        ),
        Exercise(
            "my_share",
            "equal shares",
            "Set share to this rank's records out of 0 to 21: every fourth one, and the same number on every rank.",
            _my_share,
            "easy",
            (
                "22 is not a multiple of 4. How many records do the ranks with the fewest have?",
                "Every rank keeps that many records, and leaves out the rest.",
                "That number is the number of records divided by the number of ranks, rounded down.",
            ),
        ),
        Exercise(
            "global_batch",
            "a batch from all ranks",
            "Write batch(step): it returns a global array of 16 rows, of which each rank reads only its own 4.",
            _global_batch,
            "medium",
            (
                "Each rank makes only its own rows, so the first row depends on the rank.",
                "Each step begins where the global batch of the step before it ended.",
                "Within a batch, this rank's rows come after the rows of all ranks with a smaller number.",
            ),
        ),
        Exercise(
            "steps_for_all",
            "how many steps?",
            "Set steps to the smallest number of batches that any rank has.",
            _steps_for_all,
            "medium",
            (
                "A rank knows only its own count, so the ranks have to communicate before they can compare.",
                "Every rank must take part: gather the counts of all ranks first.",
                "process_allgather takes a NumPy array and returns an array with one entry for each rank.",
            ),
        ),
    ),
)
