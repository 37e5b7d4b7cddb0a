"""Assertions for exercises: compare the data of a rank with the expected data, and report device, index and both values.

Each one inspects only the data of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mhnb.teach.exercise import ProcessInfo, WrongAnswer

__all__ = ["assert_equal", "assert_fits", "assert_global_array", "assert_shards", "assert_spec", "call_answer"]


def call_answer(answer: Any, *arguments: Any, what: str) -> Any:
    """Call the learner's function. Its exceptions are not caught."""
    if not callable(answer):
        raise WrongAnswer(
            f"expected a function {what}, and got {type(answer).__name__}; pass the function itself, not its result"
        )
    return answer(*arguments)


def assert_equal(got: Any, expected: Any, what: str, *, hint: str = "") -> None:
    """Check that two values are equal and of the same type: 8 is not 8.0."""
    if type(got) is not type(expected) or got != expected:
        raise WrongAnswer(
            f"{what} is {got!r}, expected {expected!r}{_format_type_difference(got, expected)}{_format_hint(hint)}"
        )


def _format_type_difference(got: Any, expected: Any) -> str:
    same = type(got) is type(expected) or got is None or expected is None
    return "" if same else f" ({type(got).__name__}, not {type(expected).__name__})"


def _format_hint(hint: str) -> str:
    return f". {hint}" if hint else ""


def assert_global_array(x: Any, shape: tuple[int, ...], dtype: str, what: str, process: ProcessInfo) -> Any:
    """Check that x is a jax.Array of this shape and dtype on all devices of the cluster, and return it."""
    import jax

    if not isinstance(x, jax.Array):
        raise WrongAnswer(f"{what} should be a jax.Array and is {type(x).__module__.split('.')[0]} {type(x).__name__}")
    if len(x.sharding.device_set) != process.device_count:
        n = len(x.sharding.device_set)
        raise WrongAnswer(
            f"{what} is on {n} device{'s' * (n > 1)}, expected all {process.device_count}: it is no global array"
        )
    if (tuple(x.shape), str(x.dtype)) != (shape, dtype):
        raise WrongAnswer(f"{what} is {x.dtype}{list(x.shape)}, expected {dtype}{list(shape)}")
    return x


def assert_spec(x: Any, mesh: Any, spec: Any, what: str) -> None:
    """Check that the array is sharded over the mesh as the PartitionSpec says; an equivalent spec is accepted."""
    import jax

    expected = jax.sharding.NamedSharding(mesh, spec)
    if not x.sharding.is_equivalent_to(expected, x.ndim):
        got = getattr(x.sharding, "spec", None)
        held = x.addressable_shards[0].data.shape
        raise WrongAnswer(
            f"{what} is sharded by {got}, {tuple(held)} on a device; expected {expected.shard_shape(x.shape)} on a device"
        )


def assert_shards(x: Any, expected: np.ndarray, what: str, process: ProcessInfo) -> None:
    """Check that each shard of this process holds the expected values of its index."""
    for ordinal, shard in enumerate(_local_shards(x)):
        expected_shard = expected[shard.index]
        got = np.asarray(shard.data)
        if got.shape != expected_shard.shape:
            raise WrongAnswer(
                f"{what} on device {process.rank}:{ordinal} has shape {got.shape}, expected {expected_shard.shape}"
            )
        if not np.allclose(got, expected_shard, rtol=1e-5, atol=1e-6):
            at = tuple(int(each) for each in np.argwhere(~np.isclose(got, expected_shard, rtol=1e-5, atol=1e-6))[0])
            index = tuple((box.start or 0) + i for box, i in zip(shard.index, at, strict=True))
            raise WrongAnswer(
                f"{what} on device {process.rank}:{ordinal} holds {got[at]} at {_format_index(index)}, expected {expected_shard[at]}"
            )


def assert_fits(x: Any, nbytes: int, what: str, process: ProcessInfo) -> None:
    """Check that no device of this process holds more than `nbytes` bytes of the array."""
    for ordinal, shard in enumerate(_local_shards(x)):
        if shard.data.nbytes > nbytes:
            raise WrongAnswer(
                f"{what} takes {shard.data.nbytes} bytes on device {process.rank}:{ordinal}, expected at most {nbytes}; "
                f"its shard is {tuple(shard.data.shape)} of {tuple(x.shape)}"
            )


def _local_shards(x: Any) -> list[Any]:
    """Return the shards of this process, ordered by the local index of their device."""
    return sorted(x.addressable_shards, key=lambda shard: shard.device.id)


def _format_index(index: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"
