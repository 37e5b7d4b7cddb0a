"""Exercises of the lesson: a picture of each collective."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from mhnb.teach.check import (
    Budget,
    assert_equal,
    assert_shards,
    call_answer,
    check_budget,
    format_usage,
    measure,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_Held: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The numbers on device 0 and on device 1."""

_AFTER: Mapping[str, _Held] = {
    "all_to_all": ((1, 3), (2, 4)),
    "psum": ((4, 6), (4, 6)),
    "ppermute": ((3, 4), (1, 2)),
    "psum_scatter": ((4,), (6,)),
    "all_gather": ((1, 2, 3, 4), (1, 2, 3, 4)),
}
"""By function of jax.lax: what two devices hold after it that held 1, 2 and 3, 4. In the order of the letters of the task."""


def _name_collectives(process: ProcessInfo, names: Any) -> str:
    del process
    if not isinstance(names, dict):
        raise WrongAnswer(f"names is {name_kind(names)}", expected="a dict from letters to names")
    assert_equal(sorted(names, key=str), list("ABCDE"), "the list of letters")
    for letter, wanted in zip("ABCDE", _AFTER.values(), strict=True):
        name = names[letter]
        if name not in _AFTER:
            raise WrongAnswer(f"{letter} is {name!r}", expected=f"one of {', '.join(sorted(_AFTER))}")
        if _AFTER[name] != wanted:
            raise WrongAnswer(f"{letter}: {name} leaves {_format_held(_AFTER[name])}", expected=_format_held(wanted))
    return "each of the five in its place"


def _format_held(held: _Held) -> str:
    return " and ".join(f"{' '.join(map(str, numbers))} on device {device}" for device, numbers in enumerate(held))


def _map_over_devices(body: Any, values: np.ndarray) -> tuple[Callable[..., Any], Any]:
    """Return the learner's function under shard_map, and a sharded array."""
    import jax

    call_answer(callable, body, what="of a device's shard")
    mesh, spec = jax.make_mesh((jax.device_count(),), ("i",)), jax.P("i")
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    sharding = jax.NamedSharding(mesh, spec)
    return mapped, jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _compare(mapped: Callable[..., Any], x: Any, wanted: np.ndarray, what: str, process: ProcessInfo) -> None:
    got, n = mapped(x), process.device_count
    shape, wanted_shape = ((each.shape[0] // n, *each.shape[1:]) for each in (got, wanted))
    if shape != wanted_shape:
        raise WrongAnswer(f"{what} has shape {shape} per device", expected=f"{wanted_shape}")
    assert_shards(got, wanted, what, process)


def _sum_in_halves(process: ProcessInfo, total: Any) -> str:
    n = process.device_count
    values = (np.arange(n * 2 * n, dtype=np.float32) % 11).reshape(n, 2 * n)
    mapped, x = _map_over_devices(total, values.ravel())
    _compare(mapped, x, np.tile(values.sum(axis=0), n), "total(v)", process)
    found = measure(mapped, x)
    usage = format_usage(found)
    if count := sum(each.times for each in found if each.op == "all-reduce"):
        raise WrongAnswer(f"the program has {count} all-reduce", expected="none", note=f"It runs {usage}")
    # Other collectives may do it: two rings of permutes, or an all-to-all with a sum for the first half.
    sent = sum(each.times * each.ring_nbytes_per_device for each in found)
    limit = 2 * (n - 1) * values[0].nbytes // n
    if sent > limit:
        raise WrongAnswer(
            f"in a ring, a device sends {sent} bytes", expected=f"at most {limit}", note=f"It runs {usage}"
        )
    return f"it runs {usage}; in a ring, a device sends {sent} bytes"


def _turn_rows(process: ProcessInfo, turn: Any) -> str:
    n = process.device_count
    values = np.arange(4 * n * n, dtype=np.float32).reshape(2 * n, 2 * n)
    mapped, x = _map_over_devices(turn, values)
    _compare(mapped, x, values.T, "turn(rows)", process)
    return f"each device has two rows of the transpose; it runs {check_budget(Budget({'all-to-all': 1}), mapped, x)}"


LESSON = Lesson(
    "05_pictures.ipynb",
    "A picture of each collective",
    (
        Prediction(
            "scattered_sums",
            "Each device calls lax.psum_scatter(v, 'i', tiled=True). What do devices 0 to 3 hold then, one after the other?",
            ((6, 46, 86, 126), (60, 64, 68, 72), (60, 64, 68, 72) * 4),
            "The four vectors are added place by place, as in an all-reduce. Device k receives the sum of place k and no other.",
        ),
        Prediction(
            "no_sender",
            "No pair of the list sends to device 0. What does device 0 hold after lax.ppermute?",
            ((0, 1, 2, 3), (0, 0, 0, 0), (30, 31, 32, 33)),
            "A device to which no pair sends receives zeros. It is not an error, so a pair that is missing is easy to overlook.",
        ),
        Exercise(
            "name_collectives",
            "which collective is it?",
            "Name the function of jax.lax that turns the first line of the table into each of the lines A to E.",
            _name_collectives,
            "easy",
            (
                "Look first for the lines with a sum: two of the five functions add.",
                "Of the others, one leaves more numbers on each device than before, and one moves whole pieces.",
            ),
        ),
        Exercise(
            "sum_in_halves",
            "an all-reduce in two halves",
            "Write total(v): the sum of all devices' vectors, complete on every device, without an all-reduce.",
            _sum_in_halves,
            "medium",
            (
                "The picture of the ring shows two collectives, one after the other.",
                "After the first half, each device holds a part of the sum. The second half copies the parts to all.",
            ),
        ),
        Exercise(
            "turn_rows",
            "the transpose of a sharded matrix",
            "Write turn(rows): from a device's two rows of a matrix, its two rows of the transpose, with one all-to-all.",
            _turn_rows,
            "hard",
            (
                "Row k of the transpose is column k of the matrix. So each device needs two columns, of which it has two numbers each.",
                "Cut the columns apart with split_axis, and join the received parts so that whole columns are on one device.",
                "The columns on a device are then as long as the matrix, and two wide. What is left to do needs no communication.",
            ),
        ),
    ),
)
