"""Communication report: bytes of a program's collectives, and their encoding.

It combines the compiled text (`hlo_collectives`) with facts from outside it: the hosts, the meshes, the lowered module.

Definitions, for the busiest device and one run of the collective:

* bytes/device: the payload, which is all that the device contributes (its operands). Zero if it is alone in its group.
* across hosts: the part of the payload that is for a device of another host, each byte counted once however many such
  devices need it. In a group of n with m on the device's own host: (n - m)/n if the payload is split into n parts (all-reduce,
  reduce-scatter, all-to-all), all of it if every device receives all of it (all-gather, collective-broadcast).
* sent in rings: what a bandwidth-optimal ring sends: all-reduce 2(n-1)/n, reduce-scatter and all-to-all (n-1)/n of the
  payload, all-gather (n-1) times the payload, broadcast and permute the payload. Sources: Patarasuk and Yuan, "Bandwidth
  optimal all-reduce algorithms for clusters of workstations" (2009), and `doc/PERFORMANCE.md` of nccl-tests.
  Of it across hosts: all of it if the next device of the ring is on another host (all-to-all: if the partner is).

The payload does not depend on the algorithm. XLA may choose another algorithm than rings, and does not report its choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TypeVar

import msgspec

from mhnb.sharding.hlo_collectives import HloCollective, NamedMesh, find_axes
from mhnb.sharding.hlo_groups import Groups
from mhnb.sharding.hlo_text import HloShape, SourceLine
from mhnb.sharding.shardy import Explanation, explain_collective

_Located = TypeVar("_Located", HloCollective, Explanation)
_SPLIT_OPS = ("all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per run, on the busiest device."""

    nbytes: int = 0
    """What it contributes."""
    nbytes_across_hosts: int = 0
    """The part of it that is for another host."""
    ring_nbytes: int = 0
    """What it sends in a ring algorithm."""
    ring_nbytes_across_hosts: int = 0
    """The part of that whose next device is on another host."""

    def maximum(self, other: Traffic) -> Traffic:
        """Return the larger of each."""
        return Traffic(
            max(self.nbytes, other.nbytes),
            max(self.nbytes_across_hosts, other.nbytes_across_hosts),
            max(self.ring_nbytes, other.ring_nbytes),
            max(self.ring_nbytes_across_hosts, other.ring_nbytes_across_hosts),
        )


def measure_traffic(collective: HloCollective, hosts: Sequence[Hashable]) -> Traffic:
    """Compute the bytes of one run of a collective.

    Args:
        collective: from `parse_collectives`.
        hosts: the host of each position of the device assignment.

    >>> from mhnb.sharding.hlo_collectives import HloShape
    >>> reduce = HloCollective("all-reduce", "r", (HloShape("f32", (128, 64)),), (), groups=((0, 1, 2, 3),))
    >>> measure_traffic(reduce, "abcd")
    Traffic(nbytes=32768, nbytes_across_hosts=24576, ring_nbytes=49152, ring_nbytes_across_hosts=49152)
    """
    total = Traffic()
    if collective.is_paired:
        for source, target in collective.pairs:
            if source != target:
                across = collective.nbytes if hosts[source] != hosts[target] else 0
                total = total.maximum(Traffic(collective.nbytes, across, collective.nbytes, across))
        return total
    # Groups spread over hosts in the same way move the same bytes, so only a few of many thousands are computed.
    for size, same, leaves in group_stats(collective.groups, tuple(hosts)):
        total = total.maximum(_measure_group(collective, size, same, is_cross_host=leaves))
    return total


@lru_cache(maxsize=1024)
def group_stats(groups: Groups, hosts: tuple[Hashable, ...]) -> frozenset[tuple[int, int, bool]]:
    """Return each kind of group: size, fewest per host, spans hosts."""
    return frozenset(_group_stat(group, hosts) for group in groups if len(group) > 1)


def _group_stat(group: Sequence[int], hosts: Sequence[Hashable]) -> tuple[int, int, bool]:
    """Return size, minimum members per host, and whether hosts are crossed."""
    group_hosts = [hosts[position] for position in group]
    return len(group), min(Counter(group_hosts).values()), len(set(group_hosts)) > 1


def _measure_group(collective: HloCollective, size: int, same: int, *, is_cross_host: bool) -> Traffic:
    payload, op = collective.nbytes, collective.op
    cut = _ceil(payload * (size - same), size) if is_cross_host else 0
    if op in _SPLIT_OPS:
        sent = _ceil(payload * (size - 1) * (2 if op == "all-reduce" else 1), size)
        ring_across = cut if op.endswith("all-to-all") else sent
        return Traffic(payload, cut, sent, ring_across if is_cross_host else 0)
    sent = payload * (size - 1) if op == "all-gather" else payload
    return Traffic(payload, payload if is_cross_host else 0, sent, sent if is_cross_host else 0)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def crosses_hosts(collective: HloCollective, hosts: Sequence[Hashable]) -> bool:
    """Return whether any of its bytes crosses hosts.

    >>> crosses_hosts(HloCollective("all-gather", "g", (), (), groups=((0, 1), (2, 3))), "aabb")
    False
    """
    if collective.is_paired:
        return any(hosts[source] != hosts[target] for source, target in collective.pairs)
    return any(leaves for _, _, leaves in group_stats(collective.groups, tuple(hosts)))


# -- the communication report


@dataclass(frozen=True, slots=True)
class Collective:
    """Equal collectives of a program; bytes per run on the busiest device."""

    op: str
    """As all-reduce, for both synchronous and asynchronous forms."""
    axes: tuple[str, ...]
    """The mesh axes that it runs along; empty if no mesh is known."""
    groups: Groups
    """Groups that communicate, as positions in the device assignment."""
    count: int | None
    """Runs per launch of the program; None if a loop's length is unknown."""
    nbytes_per_device: int
    """What a device contributes, per run."""
    nbytes_across_hosts: int
    """The part of it for another host, per run."""
    dtype: str
    """Dtype of the first array, with HLO's name."""
    source: SourceLine | None
    """The line of the program; None if the compiled text has none."""
    shape: str = ""
    """What a device receives, as `f32[128,64]`."""
    whole_axes: bool = True
    """Whether the groups span exactly these axes."""
    crosses: bool = False
    """Whether it communicates with another host."""
    times: int = 1
    """Runs per launch, with a loop of unknown length counted once."""
    at_most: bool = False
    """Whether it is in a branch that may not be executed, so that it may run less often."""
    is_async: bool = False
    """Whether it has separate start and done operations, so that it may overlap with computation."""
    is_estimate: bool = False
    """CPU sends 16-bit floats as f32, so the bytes are half elsewhere. Or the sizes are known only at run time."""
    ring_nbytes_per_device: int = 0
    """What a device sends in a ring algorithm."""
    ring_nbytes_across_hosts: int = 0
    """The part of that whose next device is on another host."""
    why: Explanation | None = None
    """The operation, its line, and the shardings stated before partitioning."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program from the view of one rank."""

    name: str
    """As `jit(step)`."""
    ranks: tuple[int, ...]
    """The rank of each position of the device assignment."""
    platform: str
    collectives: tuple[HloCollective, ...]
    meshes: tuple[NamedMesh, ...] = ()
    why: tuple[Explanation | None, ...] = ()
    """By collective; empty if no explanations were requested."""
    digest: str = ""
    """Digest of the lowered module: equal for equal programs; empty if the module is not available."""
    argument_types: str = ""
    """The types of its arguments, as `f32[8,4], f32[4]`."""

    def with_explanations(self, stablehlo: str) -> Program:
        """Return the program, explained by a lowered module with debug locations."""
        known: dict[object, Explanation] = {}
        for one in self.collectives:
            # An explanation depends on nothing else: a layer that is repeated is explained once.
            if (one.op_name, one.source) not in known:
                known[one.op_name, one.source] = explain_collective(one, stablehlo)
        return replace(self, why=tuple(known[one.op_name, one.source] for one in self.collectives))

    def with_files(self, rename: Callable[[str], str]) -> Program:
        """Return the program with other names of files in its locations."""

        def renamed(one: _Located) -> _Located:
            if one.source is None:
                return one
            return replace(one, source=one.source._replace(file=rename(one.source.file)))

        why = tuple(one and renamed(one) for one in self.why)
        return replace(self, collectives=tuple(map(renamed, self.collectives)), why=why)


@dataclass(frozen=True, slots=True)
class Report:
    """The collectives of one program."""

    name: str
    rows: tuple[Collective, ...]
    launches: int = 1
    """Number of times the program was launched; 1 if it was not run."""
    is_plain: bool = False
    """Whether the function was not jitted, so that the report is of the program that `jax.jit` would make of it."""
    printed: tuple[str, ...] = ()
    """Lines that the function printed while it was traced for this report."""

    @property
    def nbytes_per_device(self) -> int:
        """Total of all rows per launch."""
        return sum(row.times * row.nbytes_per_device for row in self.rows)

    @property
    def nbytes_across_hosts(self) -> int:
        """Total of all rows per launch."""
        return sum(row.times * row.nbytes_across_hosts for row in self.rows)

    @property
    def ring_nbytes(self) -> tuple[int, int]:
        """Return a device's ring bytes per launch: total and across hosts."""
        sent = sum(row.times * row.ring_nbytes_per_device for row in self.rows)
        return sent, sum(row.times * row.ring_nbytes_across_hosts for row in self.rows)


def make_report(program: Program, hosts: Mapping[int, Hashable], *, launches: int = 1) -> Report:
    """Build the report of a program.

    Args:
        program: as reported by one rank.
        hosts: the host of each rank.
        launches: how often it was launched.

    >>> gather = HloCollective("all-gather", "g", (HloShape("f32", (8,)),), (HloShape("f32", (16,)),), ((0, 1),))
    >>> make_report(Program("jit(f)", (0, 1), "cpu", (gather, gather)), {0: "a", 1: "b"}).rows[0].count
    2
    """
    hosts_by_position = tuple(hosts[rank] for rank in program.ranks)
    why = program.why or (None,) * len(program.collectives)
    rows = [
        _make_row(one, because, program, hosts_by_position)
        for one, because in zip(program.collectives, why, strict=True)
    ]
    return Report(program.name, tuple(_merge(rows)), launches)


def _make_row(one: HloCollective, why: Explanation | None, program: Program, hosts: Sequence[Hashable]) -> Collective:
    group_axes, traffic = find_axes(one.groups, program.meshes), measure_traffic(one, hosts)
    return Collective(
        one.op,
        group_axes.axes,
        one.groups,
        None if one.has_unknown_loop else one.times,
        traffic.nbytes,
        traffic.nbytes_across_hosts,
        one.results[0].dtype if one.results else "",
        one.source,
        shape=_format_shapes(one.results),
        whole_axes=group_axes.spans_whole_axes,
        crosses=crosses_hosts(one, hosts),
        times=one.times,
        at_most=one.is_conditional,
        is_async=one.is_async,
        is_estimate=(one.is_widened and program.platform == "cpu") or one.op == "ragged-all-to-all",
        ring_nbytes_per_device=traffic.ring_nbytes,
        ring_nbytes_across_hosts=traffic.ring_nbytes_across_hosts,
        why=why,
    )


def _format_shapes(shapes: Iterable[HloShape]) -> str:
    """Format what a device receives: `f32[8]`, `4 × f32[2]`, `f32[8] + s32[4]`."""
    runs = [(shape, len(list(same))) for shape, same in groupby(map(str, shapes))]
    return " + ".join(shape if count == 1 else f"{count} × {shape}" for shape, count in runs)


def _merge(rows: Iterable[Collective]) -> Iterable[Collective]:
    """Merge rows that differ only in counts, in program order."""
    joined: dict[Collective, tuple[int, int | None]] = {}
    for row in rows:
        key = replace(row, count=0 if row.count is not None else None, times=0)
        times, count = joined.get(key, (0, 0))
        joined[key] = times + row.times, None if count is None or row.count is None else count + row.count
    return (replace(key, times=times, count=count) for key, (times, count) in joined.items())


# -- encoding between the ranks and the notebook


class WireProgram(msgspec.Struct, frozen=True):
    """A program as sent by ranks, with equal groups stored once."""

    program: Program
    """Its collectives have no groups."""
    groups: tuple[Groups, ...]
    group_numbers: tuple[int, ...]
    """For each collective, the position of its groups in `groups`."""


def program_to_wire(program: Program) -> WireProgram:
    """Return the form in which a program is sent.

    >>> program_to_wire(Program("jit(f)", (0, 1), "cpu", ())).program.ranks
    (0, 1)
    """
    groups = list(dict.fromkeys(one.groups for one in program.collectives))
    numbers = {each: number for number, each in enumerate(groups)}
    bare = tuple(replace(one, groups=()) for one in program.collectives)
    return WireProgram(
        replace(program, collectives=bare), tuple(groups), tuple(numbers[one.groups] for one in program.collectives)
    )


def program_from_wire(wire: WireProgram) -> Program:
    """Return the program of `program_to_wire`.

    >>> program_from_wire(program_to_wire(Program("jit(f)", (0, 1), "cpu", ()))).platform
    'cpu'
    """
    numbered = zip(wire.program.collectives, wire.group_numbers, strict=True)
    collectives = tuple(replace(one, groups=wire.groups[number]) for one, number in numbered)
    return replace(wire.program, collectives=collectives)
