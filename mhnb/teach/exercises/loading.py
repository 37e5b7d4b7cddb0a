"""Lesson 05: loading data."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import call, global_array, shards_hold, spec_is, value_is
from mhnb.teach.exercise import Differs, Exercise, Here

__all__ = ["TASKS"]

_RECORDS = 22


def _my_share(here: Here, share: Any) -> str:
    if not isinstance(share, list):
        raise Differs(f"share is a {type(share).__name__}, expected a list of record numbers")
    each = _RECORDS // here.process_count
    if len(share) != each:
        raise Differs(
            f"share has {len(share)} records, expected {each} on every rank: "
            f"{_RECORDS} records leave {_RECORDS % here.process_count} over, which nobody reads"
        )
    wanted = list(range(_RECORDS))[here.rank :: here.process_count][:each]
    value_is(share, wanted, "share", hint="Take every fourth record, beginning with the process index")
    return f"{each} records on every rank, none twice"


def _global_batch(here: Here, batch: Any) -> str:
    import jax

    mesh = jax.make_mesh((here.device_count,), ("data",))
    local = 2 * here.local_device_count
    for step in range(2):
        got = call(batch, step, what="of the step's number")
        begin = step * local * here.process_count
        first = np.arange(begin, begin + local * here.process_count, dtype=np.float32)
        wanted = np.stack([first, first + 0.5], axis=1)
        what = f"batch({step})"
        global_array(got, wanted.shape, "float32", what, here)
        spec_is(got, mesh, jax.sharding.PartitionSpec("data", None), what)
        shards_hold(got, wanted, what, here)
    return f"{local} rows of each rank in every batch"


def _steps_for_all(here: Here, steps: Any) -> str:
    counts = [6, 5, 6, 4]
    got = int(steps) if hasattr(steps, "shape") and steps.shape == () else steps
    wanted = min(counts[rank % len(counts)] for rank in range(here.process_count))
    own = counts[(here.rank or 0) % len(counts)]
    hint = "That is this rank's own count; others have fewer" if got == own else "Take the smallest count of all ranks"
    value_is(got, wanted, "steps", hint=hint)
    return f"every rank stops after {wanted} batches"


TASKS = (
    Exercise(
        "my_share",
        "05",
        "Bind share to this rank's records out of 0 to 21, every fourth one, equally many on every rank.",
        _my_share,
    ),
    Exercise(
        "global_batch",
        "05",
        "Write batch(step): a global array of 16 rows, of which each rank reads only its own 4.",
        _global_batch,
    ),
    Exercise(
        "steps_for_all",
        "05",
        "Bind steps to the smallest number of batches that any rank has.",
        _steps_for_all,
    ),
)
