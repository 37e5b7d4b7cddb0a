"""Exercises of the lesson: same program, same order."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_equal,
    call_answer,
)
from mhnb.teach.exercise import Exercise, Lesson, ProcessInfo, WrongAnswer


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


LESSON = Lesson(
    "08_order.ipynb",
    "Same program, same order",
    (
        Exercise(
            "in_order",
            "one order for all",
            "Write in_order(names): it returns the names of a set as a list, in the same order in every process.",
            _in_order,
            "easy",
            ("A set has a different order in each process. Order the names by their own text.",),
        ),
        Exercise(
            "keys_apart",
            "two keys",
            "Set params_key to the key 0 on every rank, and data_key to the key 0 with the process index folded in.",
            _keys_apart,
            "easy",
            ("fold_in makes a new key from a key and a number.",),
        ),
        Exercise(
            "agreed_start",
            "agree with rank 0",
            "Set start on every rank to the number that rank 0 drew.",
            _agreed_start,
            "medium",
            ("Take what rank 0 drew.",),
        ),
    ),
)
