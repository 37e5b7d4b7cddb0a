"""Exercises of the lesson: same program, same order."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhnb.teach.check import (
    assert_equal,
    call_answer,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


def _in_order(process: ProcessInfo, in_order: Any) -> str:
    del process
    for names in ({"sum", "max", "min"}, {"wq", "wk", "wv", "wo", "b1", "b2"}):
        got = call_answer(in_order, set(names), what="of a set of names")
        note = "The order of a set depends on the hash seed of its process" if got == list(names) else ""
        assert_equal(got, sorted(names), f"in_order of {len(names)} names", note=note)
    return "the same order in every process"


def _keys_apart(process: ProcessInfo, params_key: Any, data_key: Any) -> str:
    import jax

    rank, same = process.rank or 0, jax.random.key(0)
    seed, folded = jax.random.key(rank), jax.random.fold_in(same, rank)
    got = _key_bits(params_key, "params_key")
    if got != _key_bits(same, ""):
        of_this_rank = got in (_key_bits(seed, ""), _key_bits(folded, ""))
        why = "depends on the number of this rank" if of_this_rank else "is not the key that the exercise names"
        raise WrongAnswer(f"params_key {why}", expected="one key for all ranks, so that parameters begin equal")
    got = _key_bits(data_key, "data_key")
    if got != _key_bits(folded, ""):
        why = {
            _key_bits(seed, ""): "has a seed of its own, so the key 0 does not decide it",
            # On rank 0 the seed is the same key, and this entry replaces the one above.
            _key_bits(same, ""): "is the same on every rank",
        }.get(got, "is not made from the key 0 and the number of this rank")
        note = "fold_in changes the key on rank 0, too" if rank == 0 and got == _key_bits(same, "") else ""
        raise WrongAnswer(f"data_key {why}", expected="a key for each rank, so that each draws its own data", note=note)
    return "one key for all ranks, and one for each rank"


def _key_bits(key: Any, name: str) -> tuple[int, ...]:
    import jax

    if not isinstance(key, jax.Array) or key.shape != () or not jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise WrongAnswer(
            f"{name} is {name_kind(key)}",
            expected="one key from jax.random.key",
            note="jax.random.PRNGKey makes keys of an older form" if getattr(key, "shape", None) == (2,) else "",
        )
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def _agreed_start(process: ProcessInfo, start: Any) -> str:
    got = int(start) if getattr(start, "shape", None) == () else start
    note = (
        f"That is what rank {process.rank} drew itself"
        if isinstance(got, int) and got == 100 + 7 * (process.rank or 0) and process.rank
        else "Every rank needs the number that rank 0 drew"
    )
    assert_equal(got, 100, "start", note=note)
    return "every rank starts from what rank 0 drew"


LESSON = Lesson(
    "08_order.ipynb",
    "Same program, same order",
    (
        Prediction(
            "two_orders",
            "With the guard off, rank 0 calls total and then top, and rank 1 calls top and then total. What does rank 0 get?",
            ((28, 7), (6, 3), (13, 22), "nothing: JAX raises an error", "nothing: both ranks wait forever"),
            "JAX compares neither the programs nor their order. What two ranks bring to a collective is combined, "
            "even if one of them is in another program.",
        ),
        Exercise(
            "in_order",
            "one order for all",
            "Write in_order(names): it returns the names of a set as a list in alphabetical order.",
            _in_order,
            "easy",
            (
                "A set has a different order in each process, so the order has to come from the names themselves.",
                "Strings can be compared with each other. Python has a built-in function that puts a set in order.",
            ),
        ),
        Exercise(
            "keys_apart",
            "two keys",
            "Set params_key to the key 0 on every rank, and data_key to the key 0 with the process index folded in.",
            _keys_apart,
            "easy",
            (
                "Decide for each of the two keys whether it may depend on the rank.",
                "jax.random.fold_in makes a new key from a key and a number. The number 0 changes the key, too.",
            ),
        ),
        Exercise(
            "agreed_start",
            "agree with rank 0",
            "Set start on every rank to the number that rank 0 drew.",
            _agreed_start,
            "medium",
            (
                "A rank cannot know what rank 0 drew, so the ranks have to communicate, and all of them must take part.",
                "The name of the function in multihost_utils begins with broadcast. It takes a NumPy value from every rank.",
                "The function returns an array on every rank; int makes a number of it.",
            ),
        ),
    ),
)
