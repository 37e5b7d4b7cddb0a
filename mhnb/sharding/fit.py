"""Whether a program fits a machine, and its time at best.

Three kinds of figures, kept apart:

* of the compiler: memory, and which collectives there are;
* counted from the compiled program: floating-point operations of products, bytes of memory and collectives, with the lengths of loops;
* estimated: times, from the figures of the chip. Computing, memory and communication each run at their peak. If they overlap fully,
  the step takes as long as the longest of them; if communication overlaps with nothing, as long as communication and the longer of the
  other two. Latency is not counted.

Time of a collective, as in "How to Scale Your Model" (https://jax-ml.github.io/scaling-book), chapters 3 and 12: inside a domain (a slice
of TPUs, the GPUs that NVLink connects) in rings or through a switch; between domains each device sends its part over the network, at
the same time. An all-gather of n devices with `payload` bytes each, m of them in a domain, takes the longer of
`payload (n/m)(m-1) / link` and `payload (n/m - 1) / network`. A reduce-scatter is an all-gather backwards, an all-reduce is both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from mhnb.sharding.boxes import parse_dtype
from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_cost import Cost
from mhnb.sharding.machines import Machine
from mhnb.sharding.report import Program, Report, group_stats


class PlannedArgument(NamedTuple):
    """An array argument of a call that is planned for another machine."""

    name: str
    """As the user typed it, with its place in a pytree: `state['w']`."""
    dtype: str
    shape: tuple[int, ...]
    spec: str
    shard_shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one device."""
        return prod(self.shard_shape) * parse_dtype(self.dtype).itemsize


class CompiledMemory(NamedTuple):
    """A program's memory by its compiler, in bytes of one device."""

    arguments: int
    outputs: int
    aliased: int
    """The part of the outputs that takes the place of donated arguments."""
    temporaries: int
    code: int

    @property
    def nbytes(self) -> int:
        """All that must be in the device's memory at one time."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one run on one device, each part at its peak."""

    compute: float
    memory: float
    communication: float

    @property
    def at_least(self) -> float:
        """Seconds if all three overlap fully."""
        return max(self.compute, self.memory, self.communication)

    @property
    def at_most(self) -> float:
        """Seconds if communication overlaps with nothing."""
        return max(self.compute, self.memory) + self.communication

    @property
    def bound_by(self) -> str:
        """The part that takes longest."""
        parts = {"compute": self.compute, "memory": self.memory, "communication": self.communication}
        return max(parts, key=parts.__getitem__)

    @property
    def peak_share(self) -> float:
        """Best share of the chip's peak, from 0 to 1."""
        return self.compute / self.at_least if self.at_least else 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A call, compiled for a machine."""

    name: str
    """Of the function."""
    machine: Machine
    mesh: tuple[tuple[str, int], ...]
    """Axes with their sizes."""
    arguments: tuple[PlannedArgument, ...]
    memory: CompiledMemory
    cost: Cost
    collectives: Report
    """Its bytes across hosts are those that leave a domain of the machine."""
    step: StepTime | None
    """None if the chip's figures are not known, or its compiler is not installed."""
    seconds: float
    """How long lowering and compiling took."""
    missing_compiler: str = ""
    """How to install the machine's compiler, if the CPU's partitioner took its place."""

    @property
    def available(self) -> int | None:
        """Bytes of a device for programs; None if unknown."""
        return self.machine.chip.available

    @property
    def missing(self) -> int:
        """Bytes that a device lacks; 0 if the program fits."""
        return 0 if self.available is None else max(0, self.memory.nbytes - self.available)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One mesh, with one set of specs, of a search."""

    mesh: tuple[tuple[str, int], ...]
    specs: str
    """The name of the rules; empty for the arguments' own specs."""
    fit: Fit | None = None
    """None if it was not compiled, or refused."""
    needed: int | None = None
    """Bytes of a device that it needs at least, if that is why there is no fit."""
    is_compiled: bool = True
    """Whether the compiler was asked."""
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits into the machine's memory."""
        return self.fit is not None and not self.fit.missing

    @property
    def sort_key(self) -> tuple[bool, bool, float, float, int]:
        """Order by the estimated time; those that do not fit are last."""
        if self.fit is None:
            return (True, True, 0.0, 0.0, self.needed or 0)
        step = self.fit.step
        times = (step.at_least, step.at_most) if step else (0.0, 0.0)
        return (not self.fits, False, *times, self.fit.memory.nbytes)


@dataclass(frozen=True, slots=True)
class Search:
    """The candidates of a search, the best one first."""

    candidates: tuple[Candidate, ...]
    count: int
    """How many there are, also of those that an interrupt left out."""
    seconds: float
    """How long the search took."""

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate that fits."""
        return next((each for each in self.candidates if each.fits), None)


def divide_devices(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to divide devices over some axes.

    >>> list(divide_devices(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if axes == 1:
        yield (count,)
        return
    for size in range(1, count + 1):
        if count % size == 0:
            for rest in divide_devices(count // size, axes - 1):
                yield (size, *rest)


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of a device's connections, in B/s."""

    inside: float
    """To devices of its domain, along one mesh axis."""
    network: float
    """To devices of other domains."""
    is_torus: bool
    """Whether only neighbours are connected inside a domain."""


def estimate_step(program: Program, cost: Cost, machine: Machine, domains: Sequence[Hashable]) -> StepTime | None:
    """Estimate a program's time; None if the chip's figures are unknown.

    Args:
        program: its collectives.
        cost: its products and bytes.
        machine: the chip, with its peaks and links.
        domains: the slice or NVLink domain of each position of the device assignment.
    """
    chip = machine.chip
    if not chip.flops or chip.bandwidth is None or machine.link is None or chip.network is None:
        return None
    links = Links(machine.link, chip.network, is_torus=chip.platform == "tpu")
    # A type without a figure of its own is computed as f32.
    compute = sum(flops / (chip.peak(dtype) or chip.peak("f32") or 1.0) for dtype, flops in cost.flops_by_dtype.items())
    communication = sum(one.times * time_collective(one, links, domains) for one in program.collectives)
    return StepTime(compute, cost.nbytes / chip.bandwidth, communication)


def time_collective(collective: HloCollective, links: Links, domains: Sequence[Hashable]) -> float:
    """Return the seconds of one run of a collective, without latency.

    >>> from mhnb.sharding.hlo_collectives import HloShape
    >>> gather = HloCollective("all-gather", "g", (HloShape("f32", (250_000,)),), (), groups=((0, 1, 2, 3),))
    >>> f"{time_collective(gather, Links(450e9, 50e9, is_torus=False), [0] * 4):.2e} s"  # 3 MB by NVLink
    '6.67e-06 s'
    """
    payload = collective.nbytes
    if collective.is_paired:
        moved = [(a, b) for a, b in collective.pairs if a != b]
        crosses = any(domains[a] != domains[b] for a, b in moved)
        return payload / (links.network if crosses else links.inside) if moved else 0.0
    times = (
        _time_group(collective.op, payload, size, same if crosses else size, links)
        for size, same, crosses in group_stats(collective.groups, tuple(domains))
    )
    return max(times, default=0.0)


def _time_group(op: str, payload: int, size: int, same: int, links: Links) -> float:
    """Return a group's seconds; `same` of its `size` share a domain."""
    parts = size / same
    if op.endswith("all-to-all"):
        # On a torus, what is for a distant chip passes all chips between; a switch connects any two.
        inside = payload * same / size * (same / 4 if links.is_torus else (same - 1) / same)
        return max(inside / links.inside, payload * (size - same) / size / links.network)
    if op == "collective-broadcast":
        return payload / (links.network if parts > 1 else links.inside)
    shard = payload if op == "all-gather" else payload / size
    gather = max(shard * parts * (same - 1) / links.inside, shard * (parts - 1) / links.network)
    return 2 * gather if op == "all-reduce" else gather
