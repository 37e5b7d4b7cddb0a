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
In a slice, a group that spans several axes uses the links of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_cost import Cost
from mhnb.sharding.hlo_groups import Groups
from mhnb.sharding.machines import Machine
from mhnb.sharding.report import Program, Report


class PlannedArgument(NamedTuple):
    """An array argument of a call that is planned for another machine."""

    name: str
    """As the user typed it, with its place in a pytree: `state['w']`."""
    dtype: str
    shape: tuple[int, ...]
    spec: str
    nbytes: int
    """Of one device."""


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
    axis_types: tuple[str, ...]
    """Such as `Explicit`, by axis."""
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
    """Connections of a program's devices; rates are in B/s of one device."""

    inside: float
    """To devices of its domain; in a slice of TPUs, both directions along one axis of a torus."""
    network: float
    """To devices of other domains."""
    domains: tuple[Hashable, ...]
    """The slice or NVLink domain of each position of the device assignment."""
    places: tuple[tuple[int, ...], ...] = ()
    """The chip's coordinates by position; empty if a switch connects a domain."""
    rings: tuple[int, ...] = ()
    """Chips along each axis of a slice; 0 if the axis has no wraparound."""

    def find_sides(self, group: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Return the number of a group's devices and their rate, by axis.

        These are the devices in its first domain, along each axis of the slice; without a slice they have one axis.

        >>> row = Links(9e10, 1e9, (0,) * 16, tuple((x, 0) for x in range(16)), rings=(16, 0))
        >>> row.find_sides(range(16)), row.find_sides(range(4)), row.find_sides(range(0, 16, 4))
        (((16, 90000000000.0),), ((4, 45000000000.0),), ((4, 22500000000.0),))
        """
        group = [position for position in group if self.domains[position] == self.domains[group[0]]]
        if not self.places:
            return ((len(group), self.inside),)
        lines = [sorted(set(line)) for line in zip(*map(self.places.__getitem__, group), strict=True)]
        if prod(map(len, lines)) != len(group):
            # JAX may lay a small mesh along a path with corners.
            return ((len(group), self.inside / 2),)
        sides = []
        for line, ring in zip(lines, self.rings, strict=False):  # a chip of a slice with two axes has three coordinates
            if len(line) > 1:
                # Groups between whose chips are others share the links with them; without wraparound a link carries one direction.
                gap = min(right - left for left, right in pairwise(line))
                sides.append((len(line), self.inside / gap / (1 if gap * len(line) == ring else 2)))
        return tuple(sides)


def estimate_step(
    program: Program, cost: Cost, machine: Machine, domains: Sequence[Hashable], places: Sequence[tuple[int, ...]] = ()
) -> StepTime | None:
    """Estimate a program's time; None if the chip's figures are unknown.

    Args:
        program: its collectives.
        cost: its products and bytes.
        machine: the chip, with its peaks and links.
        domains: the slice or NVLink domain of each position of the device assignment.
        places: the coordinates of the TPU chip at each position; empty on GPU.
    """
    chip = machine.chip
    if not chip.flops or chip.bandwidth is None or chip.link is None or chip.network is None:
        return None
    links = Links(chip.link, chip.network, tuple(domains), tuple(places), machine.rings)
    # A type without a figure of its own is computed as f32.
    compute = sum(flops / (chip.peak(dtype) or chip.peak("f32") or 1.0) for dtype, flops in cost.flops_by_dtype.items())
    communication = sum(one.times * time_collective(one, links) for one in program.collectives)
    return StepTime(compute, cost.nbytes / chip.bandwidth, communication)


def time_collective(collective: HloCollective, links: Links) -> float:
    """Return the seconds of one run of a collective, without latency.

    >>> from mhnb.sharding.hlo_collectives import HloShape
    >>> gather = HloCollective("all-gather", "g", (HloShape("f32", (250_000,)),), (), groups=((0, 1, 2, 3),))
    >>> f"{time_collective(gather, Links(450e9, 50e9, domains=(0,) * 4)):.2e} s"  # 3 MB by NVLink
    '6.67e-06 s'
    """
    if collective.is_paired:
        moved = [(links.domains[a], links.domains[b]) for a, b in collective.pairs if a != b]
        # XLA for TPU splits a gather into permutes of both directions, which run at the same time.
        rate = links.network if any(a != b for a, b in moved) else links.inside
        return collective.nbytes / rate if moved else 0.0
    times = (_time_group(collective, kind, links) for kind in _find_kinds(collective.groups, links))
    return max(times, default=0.0)


class _Kind(NamedTuple):
    """What groups that take the same time have in common."""

    size: int
    same: int
    """Members in one domain."""
    sides: tuple[tuple[int, float], ...]


@lru_cache(maxsize=1024)
def _find_kinds(groups: Groups, links: Links) -> frozenset[_Kind]:
    def find_kind(group: Sequence[int]) -> _Kind:
        return _Kind(len(group), min(Counter(links.domains[at] for at in group).values()), links.find_sides(group))

    return frozenset(find_kind(group) for group in groups if len(group) > 1)


def _time_group(collective: HloCollective, kind: _Kind, links: Links) -> float:
    op, payload, (size, same, sides) = collective.op, collective.nbytes, kind
    parts, rate = size / same, sum(rate for _, rate in sides)
    if op.endswith("all-to-all"):
        # In a torus, what is for a distant chip passes all chips between; a switch connects any two.
        slowest = (
            max((side / 4 / rate for side, rate in sides), default=0.0) if links.places else (same - 1) / same / rate
        )
        return max(payload * same / size * slowest, payload * (size - same) / size / links.network)
    if op == "collective-broadcast":
        return payload / (links.network if parts > 1 else rate)
    shard = payload if op == "all-gather" else payload / size
    gather = max(shard * parts * (same - 1) / rate if same > 1 else 0.0, shard * (parts - 1) / links.network)
    return 2 * gather if op == "all-reduce" else gather
