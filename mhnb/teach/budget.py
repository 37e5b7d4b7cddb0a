"""A communication budget: what a program may send, set beside what it sends.

Decides from plain values. Who measures them is an argument, so that a budget can be judged without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mhnb.teach.exercise import Differs

__all__ = ["Budget", "Measure", "Spent", "format_spent", "measure", "stay_within"]


class Spent(Protocol):
    """One collective of a program, as `mhnb.collectives` gives it."""

    @property
    def op(self) -> str:
        """Its HLO spelling, such as `all-reduce`."""

    @property
    def times(self) -> int:
        """How often it runs in one launch."""

    @property
    def nbytes_per_device(self) -> int:
        """What a device puts in, each time."""

    @property
    def nbytes_across_hosts(self) -> int:
        """The part of it for another host, each time."""


Measure = Callable[..., Sequence[Spent]]
"""Called with a function and its arguments; gives the collectives of the compiled program."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a program may send in one launch."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Op -> how many at most; an op that is not named may not occur."""
    nbytes_per_device: int | None = None
    """Bytes that a device puts in, over all collectives; None for no limit."""
    nbytes_across_hosts: int | None = None
    """The part of them for another host; None for no limit."""


def measure(function: Any, *arguments: Any) -> Sequence[Spent]:
    """Compile a function and give its collectives; nothing is launched. On ranks, all of them call it."""
    from mhnb.rank.asks.lowering import collectives

    return collectives(function, *arguments)


def stay_within(budget: Budget, function: Any, *arguments: Any, measure: Measure = measure) -> str:
    """Measure a program and judge it; return what it sends.

    Raises:
        Differs: it sends more; the text says which collective, how many, how many bytes.
    """
    spent = measure(function, *arguments)
    sends = f"It sends: {format_spent(spent)}"
    for op in sorted({each.op for each in spent}):
        count = sum(each.times for each in spent if each.op == op)
        allowed = budget.counts.get(op, 0)
        if count > allowed:
            limit = f"expected {'none' if allowed == 0 else f'at most {allowed}'}"
            raise Differs(f"the program has {count} {op}, {limit}. {sends}")
    on_device = sum(each.times * each.nbytes_per_device for each in spent)
    across = sum(each.times * each.nbytes_across_hosts for each in spent)
    for nbytes, limit_nbytes, what in (
        (on_device, budget.nbytes_per_device, "from a device"),
        (across, budget.nbytes_across_hosts, "from a device to other hosts"),
    ):
        if limit_nbytes is not None and nbytes > limit_nbytes:
            raise Differs(f"the program sends {nbytes} bytes {what}, expected at most {limit_nbytes}. {sends}")
    return format_spent(spent)


def format_spent(spent: Sequence[Spent]) -> str:
    """Say in one line what a program sends."""
    rows = [f"{each.times} {each.op} of {each.nbytes_per_device} bytes" for each in spent]
    return ", ".join(rows) or "nothing"
