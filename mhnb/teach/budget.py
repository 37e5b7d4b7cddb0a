"""Communication budget: compare what a program sends with what it may send.

It works on plain values. The measuring function is an argument, so a budget can be checked without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mhnb.teach.exercise import WrongAnswer

__all__ = ["Budget", "Measure", "Usage", "check_budget", "format_usage", "measure"]


class Usage(Protocol):
    """One collective of a program, as `mhnb.collectives` returns it."""

    @property
    def op(self) -> str:
        """HLO name, such as `all-reduce`."""

    @property
    def times(self) -> int:
        """Number of executions in one launch."""

    @property
    def nbytes_per_device(self) -> int:
        """Bytes that a device contributes to each execution."""

    @property
    def nbytes_across_hosts(self) -> int:
        """The part of these bytes that goes to another host, for each execution."""


Measure = Callable[..., Sequence[Usage]]
"""Takes a function and its arguments; returns the collectives of the compiled program."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on what a program sends in one launch."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Maximum number per op. An op that is not listed is not allowed."""
    nbytes_per_device: int | None = None
    """Bytes that a device contributes, summed over all collectives; None for no limit."""
    nbytes_across_hosts: int | None = None
    """The part of these bytes that goes to another host; None for no limit."""


def measure(function: Any, *arguments: Any) -> Sequence[Usage]:
    """Compile a function without launching it and return its collectives. On ranks, all ranks must call it."""
    from mhnb.rank.asks.lowering import collectives

    return collectives(function, *arguments)


def check_budget(budget: Budget, function: Any, *arguments: Any, measure: Measure = measure) -> str:
    """Measure a program, compare it with a budget, and return a description of what it sends.

    Raises:
        Differs: the program sends more; the text names the collective, the count and the bytes.
    """
    usage = measure(function, *arguments)
    usage_text = f"It sends: {format_usage(usage)}"
    for op in sorted({each.op for each in usage}):
        count = sum(each.times for each in usage if each.op == op)
        allowed = budget.counts.get(op, 0)
        if count > allowed:
            limit = f"expected {'none' if allowed == 0 else f'at most {allowed}'}"
            raise WrongAnswer(f"the program has {count} {op}, {limit}. {usage_text}")
    on_device = sum(each.times * each.nbytes_per_device for each in usage)
    across = sum(each.times * each.nbytes_across_hosts for each in usage)
    for nbytes, limit_nbytes, what in (
        (on_device, budget.nbytes_per_device, "from a device"),
        (across, budget.nbytes_across_hosts, "from a device to other hosts"),
    ):
        if limit_nbytes is not None and nbytes > limit_nbytes:
            raise WrongAnswer(f"the program sends {nbytes} bytes {what}, expected at most {limit_nbytes}. {usage_text}")
    return format_usage(usage)


def format_usage(usage: Sequence[Usage]) -> str:
    """Describe in one line what a program sends."""
    rows = [f"{each.times} {each.op} of {each.nbytes_per_device} bytes" for each in usage]
    return ", ".join(rows) or "nothing"
