"""Communication report: the cost of a program's collectives, by row, and their encoding between the ranks and the notebook.

It combines the compiled text (`hlo`) with facts from outside it: the hosts, the meshes, the lowered module.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from mhnb.sharding.axes import NamedMesh, find_axes
from mhnb.sharding.hlo import HloCollective
from mhnb.sharding.hlo_groups import Groups
from mhnb.sharding.hlo_module import SourceLine
from mhnb.sharding.hlo_shape import HloShape
from mhnb.sharding.traffic import crosses_hosts, measure_traffic
from mhnb.sharding.why import Explanation, explain_collective

__all__ = ["Collective", "Program", "Report", "make_report", "program_from_wire", "program_to_wire"]


@dataclass(frozen=True, slots=True)
class Collective:
    """Equal collectives of one program. Bytes are those of the busiest device in one run; `traffic` defines them."""

    op: str
    """As all-reduce, for synchronous and asynchronous forms alike."""
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
        """Return the program with an explanation of each collective, from the lowered module with debug locations."""
        known: dict[object, Explanation] = {}
        for one in self.collectives:
            # An explanation depends on nothing else: a layer that is repeated is explained once.
            if (one.op_name, one.source) not in known:
                known[one.op_name, one.source] = explain_collective(one, stablehlo)
        return replace(self, why=tuple(known[one.op_name, one.source] for one in self.collectives))


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
        """Return what a device sends in ring algorithms per launch, and the part of it that crosses hosts."""
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
    """Merge rows that differ only in their counts, in the order of the program."""
    joined: dict[Collective, tuple[int, int | None]] = {}
    for row in rows:
        key = replace(row, count=0 if row.count is not None else None, times=0)
        times, count = joined.get(key, (0, 0))
        joined[key] = times + row.times, None if count is None or row.count is None else count + row.count
    return (replace(key, times=times, count=count) for key, (times, count) in joined.items())


# -- encoding between the ranks and the notebook


def program_to_wire(program: Program) -> dict[str, Any]:
    """Encode a program for JSON; equal groups are written once.

    >>> program_to_wire(Program("jit(f)", (0, 1), "cpu", ()))["ranks"]
    (0, 1)
    """
    groups = list(dict.fromkeys(one.groups for one in program.collectives))
    numbers = {each: number for number, each in enumerate(groups)}
    return {
        "name": program.name,
        "ranks": program.ranks,
        "platform": program.platform,
        "groups": groups,
        "collectives": [[numbers[one.groups], *one.to_wire()] for one in program.collectives],
        "digest": program.digest,
        "takes": program.argument_types,
        "meshes": [[mesh.names, mesh.sizes, mesh.positions] for mesh in program.meshes],
        "why": [None if one is None else [one.written, one.before, one.after, one.is_kept] for one in program.why],
    }


def program_from_wire(wire: Mapping[str, Any]) -> Program:
    """Decode the result of `program_to_wire`.

    >>> program_from_wire(program_to_wire(Program("jit(f)", (0, 1), "cpu", ()))).platform
    'cpu'
    """
    groups = [tuple(tuple(group) for group in each) for each in wire["groups"]]
    collectives = tuple(HloCollective.from_wire(row, groups[number]) for number, *row in wire["collectives"])
    meshes = tuple(NamedMesh(tuple(names), tuple(sizes), tuple(order)) for names, sizes, order in wire["meshes"])
    why = tuple(
        None if row is None else Explanation(one.op_name, one.source, bool(row[0]), tuple(row[1]), row[2], bool(row[3]))
        for one, row in zip(collectives, wire["why"], strict=bool(wire["why"]))
    )
    digest_and_types = wire["digest"], wire["takes"]
    return Program(wire["name"], tuple(wire["ranks"]), wire["platform"], collectives, meshes, why, *digest_and_types)
