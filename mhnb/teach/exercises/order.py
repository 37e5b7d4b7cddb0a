"""Lesson 06: same program, same order."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.compare import call, value_is
from mhnb.teach.exercise import Differs, Exercise, Here

__all__ = ["TASKS"]


def _in_order(here: Here, in_order: Any) -> str:
    del here
    for names in ({"sum", "max", "min"}, {"wq", "wk", "wv", "wo", "b1", "b2"}):
        got = call(in_order, set(names), what="of a set of names")
        value_is(
            got, sorted(names), f"in_order of {len(names)} names", hint="Sorted, the order is the same in every process"
        )
    return "the same order in every process"


def _keys_apart(here: Here, params_key: Any, data_key: Any) -> str:
    import jax

    same = jax.random.key(0)
    _key_is(params_key, same, "params_key", "the key 0 itself: parameters begin equal on every rank")
    own = jax.random.fold_in(same, here.rank or 0)
    _key_is(data_key, own, "data_key", f"the key 0 with {here.rank} folded in: every rank draws its own data")
    return "one key for all, and one of each rank's own"


def _key_is(key: Any, wanted: Any, what: str, why: str) -> None:
    import jax

    if not isinstance(key, jax.Array) or key.shape != () or not jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise Differs(f"{what} is a {type(key).__name__}, expected one key of jax.random.key")
    got, right = (np.asarray(jax.random.key_data(each)).tolist() for each in (key, wanted))
    if got != right:
        raise Differs(f"{what} is {got}, expected {right}, {why}")


def _agreed_start(here: Here, start: Any) -> str:
    got = int(start) if getattr(start, "shape", None) == () else start
    hint = (
        f"That is what rank {here.rank} drew itself"
        if got == 100 + 7 * (here.rank or 0) and here.rank
        else "Take what rank 0 drew"
    )
    value_is(got, 100, "start", hint=hint)
    return "every rank starts from what rank 0 drew"


TASKS = (
    Exercise(
        "in_order",
        "06",
        "Write in_order(names): the names of a set as a list, in the same order in every process.",
        _in_order,
    ),
    Exercise(
        "keys_apart",
        "06",
        "Bind params_key, the key 0 on every rank, and data_key, the key 0 with the process index folded in.",
        _keys_apart,
    ),
    Exercise("agreed_start", "06", "Bind start on every rank to the number that rank 0 drew.", _agreed_start),
)
