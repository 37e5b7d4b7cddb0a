"""A communication budget: what a program may send, set beside what it sends.

Decides from plain values. Who measures them is an argument, so that a budget can be judged without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mhnb.teach.exercise import Differs

__all__ = ["Budget", "Measure", "Spent", "format_spent", "stay_within"]


class Spent(Protocol):
    """One collective of a program, as `mhnb.collectives` gives it."""

    @property
    def op(self) -> str:
        """Its HLO spelling, such as `all-reduce`."""

    @property
    def count(self) -> int:
        """How many of them the program has."""

    @property
    def nbytes_per_device(self) -> int:
        """Bytes on a device, all of them together."""


Measure = Callable[..., Sequence[Spent]]
"""Called with a function and its arguments; gives the collectives of the compiled program."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a program may send."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Op -> how many at most; an op that is not named may not occur."""
    nbytes_per_device: int | None = None
    """Bytes on a device, over all collectives; None for no limit."""


def stay_within(budget: Budget, measure: Measure, function: Any, *arguments: Any) -> str:
    """Measure a program and judge it.

    Raises:
        Differs: it sends more; the text says which collective, how many, how many bytes.
    """
    spent = measure(function, *arguments)
    for op in sorted({each.op for each in spent}):
        count = sum(each.count for each in spent if each.op == op)
        allowed = budget.counts.get(op, 0)
        if count > allowed:
            limit = f"expected {'none' if allowed == 0 else f'at most {allowed}'}"
            raise Differs(f"the program has {count} {op}, {limit}. It sends: {format_spent(spent)}")
    nbytes = sum(each.nbytes_per_device for each in spent)
    if budget.nbytes_per_device is not None and nbytes > budget.nbytes_per_device:
        raise Differs(
            f"the program moves {nbytes} bytes on a device, expected at most {budget.nbytes_per_device}. "
            f"It sends: {format_spent(spent)}"
        )
    return format_spent(spent)


def format_spent(spent: Sequence[Spent]) -> str:
    """Say in one line what a program sends."""
    rows = [f"{each.count} {each.op} of {each.nbytes_per_device} bytes on a device" for each in spent]
    return ", ".join(rows) or "nothing"
