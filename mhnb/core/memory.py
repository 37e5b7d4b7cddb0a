"""Memory of the ranks' devices: reports, their comparison, and sharding advice.

Sizes are bytes. A rank reports metadata alone; nothing here reads an array.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct, structs

from mhnb.core.ranks import describe_ranks, format_ranks, group_ranks, pluralize
from mhnb.core.variables import format_array
from mhnb.errors import InvalidRequest, ShardingError
from mhnb.sharding.spec import Spec, format_spec, parse_spec

DEFAULT_TOP = 20
"""How many arrays a report shows if no number is given."""
MAX_REPORTED = 2000
"""Most arrays that a rank lists in its report; the rest are counted."""
MAX_FAILURE_ARRAYS = 200
"""The same for a report that is sent with an error."""
MAX_ALIASES = 8
SHARES_MEMORY = " (shares its memory)"
"""What follows the name of an array that has a part of another one's buffers."""
NO_STATISTICS = 'CPU devices report no memory statistics; "in use" is the sum of their live shards'

ArrayScope: TypeAlias = Literal["global", "local", "host"]
"""global: a jax.Array with parts on other ranks; local: a jax.Array on this rank's devices; host: a NumPy array."""

_Number: TypeAlias = int | None
_K = TypeVar("_K", bound=Hashable)


# -- what a rank reports


class DeviceMemory(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The memory of one of a rank's devices."""

    ordinal: int
    """Its index among the rank's devices."""
    kind: str
    """As JAX names it, such as `cpu` or `NVIDIA H100 80GB HBM3`."""
    used: int
    peak: _Number = None
    """Most bytes that were in use at once; None if the device does not report it."""
    limit: _Number = None
    """Bytes that JAX may use; None if the device does not report it."""
    is_sum: bool = False
    """Whether `used` is the sum of the live shards, because the device reports no statistics."""
    card_used: _Number = None
    """Bytes of the whole card that all processes use; None if that is unknown."""
    card_total: _Number = None


class ArrayMemory(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A live array on one rank, or several equal unnamed ones."""

    names: tuple[str, ...]
    """As expressions of the notebook, the shortest first, such as `params['w']`; empty if no name leads to it."""
    shape: tuple[int, ...]
    dtype: str
    """As NumPy names it."""
    scope: ArrayScope
    nbytes: int
    """Bytes of the whole array, once."""
    nbytes_per_device: int
    """Bytes on each device that holds a part of it; the largest if they differ."""
    device_count: int
    """Devices of all ranks that hold a part of it."""
    spec: str | None = None
    """The PartitionSpec as `P('data', None)`; None without a named sharding."""
    mesh: tuple[tuple[str, int], ...] = ()
    """Axes of the mesh in order, with their sizes; empty without a named sharding."""
    memory_kind: str = ""
    """Such as `pinned_host`; empty for the device's own memory."""
    program: str = ""
    """The program that made it; empty if that is unknown."""
    place: str = ""
    """The line that made it, or that assigned its name, as `In [3], line 2`; empty if that is unknown."""
    is_assignment: bool = False
    """Whether `place` is only where its name was assigned."""
    count: int = 1
    """How many arrays with these facts there are; more than 1 without a name, or for `acc[0..2]`."""
    holder: int | None = None
    """The other rank whose devices hold all of it; None if there are several, or it is the own rank."""
    code_names: tuple[str, str, str] = ("jax.NamedSharding", "jax.P", "")
    """The user's names of NamedSharding, PartitionSpec and its mesh; the last is empty without a variable for the mesh."""

    @property
    def held_nbytes(self) -> int:
        """Bytes on all devices together."""
        return max(self.nbytes, self.nbytes_per_device * self.device_count)

    @property
    def waste(self) -> int:
        """Bytes that replicas take: those on all devices, less one copy."""
        return self.held_nbytes - self.nbytes


class RankMemory(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The memory of one rank."""

    devices: tuple[DeviceMemory, ...] = ()
    arrays: tuple[ArrayMemory, ...] = ()
    """The largest ones, by bytes on a device."""
    more_count: int = 0
    """How many smaller arrays are not listed."""
    more_nbytes: int = 0
    """Their bytes on a device."""
    host_nbytes: _Number = None
    """Resident memory of the rank's process; None if the system does not report it."""
    problems: tuple[str, ...] = ()
    """What could not be read, each a sentence with its reason."""


class AllocationFailure(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A failed allocation on one rank, with what the memory held then."""

    requested: _Number = None
    """Bytes that were asked for; None if the message does not say so."""
    is_host: bool = False
    """Whether memory of the host was asked for, by NumPy or Python."""
    memory: RankMemory = RankMemory()
    problem: str = ""
    """Why there is no report; empty if there is one."""


class FailedAllocations(dict[int, AllocationFailure]):
    """A cell's failed allocations that caused ranks' latest errors, by rank."""


# -- the bytes that a message names


_UNITS = {
    unit: 1024**power for power, prefix in enumerate(("", "K", "M", "G", "T", "P", "E")) for unit in
    ((f"{prefix}iB", f"{prefix}B", prefix) if prefix else ("B", "bytes", "byte"))
}  # fmt: skip
_REQUESTED = re.compile(
    r"(?:allocating|[Aa]ttempting to allocate|trying to allocate|[Uu]nable to allocate|[Ff]ailed to allocate(?: request for)?"
    r"|[Aa]llocate)\s+(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTPE]?i?B|bytes?|[KMGTPE])\b"
)


def parse_requested_nbytes(text: str) -> int | None:
    """Return the requested bytes in an XLA or NumPy message, or None.

    >>> parse_requested_nbytes("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.")
    70368744177664
    >>> parse_requested_nbytes("Out of memory while trying to allocate 1.50GiB.")
    1610612736
    >>> parse_requested_nbytes("no") is None
    True
    """
    found = _REQUESTED.search(text[:4096])
    if found is None:
        return None
    return int(float(found["number"]) * _UNITS[found["unit"]])


# -- the reports of all ranks


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Devices, or processes, whose memory is about the same."""

    ranks: tuple[int, ...]
    ordinals: tuple[int, ...]
    """Indices of the devices on each of these ranks; empty for the memory of the ranks' processes."""
    kind: str
    used: tuple[int, int]
    """The least and the most."""
    peak: _Number = None
    """The most of all."""
    limit: _Number = None
    card_used: _Number = None
    card_total: _Number = None
    is_outlier: bool = False
    """Whether most others are alike, and these are not."""


@dataclass(frozen=True, slots=True)
class ArrayRow:
    """One named array on several ranks, or unnamed arrays with equal facts."""

    groups: tuple[tuple[tuple[int, ...], ArrayMemory], ...]
    """Ranks with equal facts, never empty: the largest group first, then by first rank."""
    missing: tuple[int, ...] = ()
    """Ranks in the report that do not have it."""

    @property
    def array(self) -> ArrayMemory:
        """The facts of most ranks."""
        return self.groups[0][1]

    @property
    def nbytes_per_device(self) -> int:
        """Most bytes on one device; several unnamed arrays are added up."""
        return max(array.nbytes_per_device * array.count for _, array in self.groups)

    @property
    def differs(self) -> str:
        """Which ranks differ, in words; empty if all have the same."""
        ranks, array = self.groups[0]
        if len(self.missing) > len(ranks) and len(self.groups) == 1:
            return f"only on {describe_ranks(ranks)}"
        words = [f"missing on {describe_ranks(self.missing)}"] if self.missing else []
        words += [
            f"{_describe_difference(other, array)} on {describe_ranks(ranks)}" for ranks, other in self.groups[1:]
        ]
        return "; ".join(words)


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a cluster's devices, and how its ranks compare."""

    name: str
    """Of the cluster."""
    ranks: Mapping[int, RankMemory]
    """What each rank reported."""

    @cached_property
    def devices(self) -> tuple[DeviceRow, ...]:
        """Rows of devices and processes: similar ones together, then each other one."""
        return (*_group_devices(self.ranks), *_group_processes(self.ranks))

    @cached_property
    def arrays(self) -> tuple[ArrayRow, ...]:
        """The arrays, the most bytes on a device first."""
        cut = {rank: memory.arrays[-1].nbytes_per_device for rank, memory in self.ranks.items() if memory.more_count}
        return merge_arrays({rank: memory.arrays for rank, memory in self.ranks.items()}, cut)

    @property
    def more(self) -> tuple[int, int]:
        """Number of unlisted arrays, and their bytes per device; maximum over ranks."""
        return (
            max((memory.more_count for memory in self.ranks.values()), default=0),
            max((memory.more_nbytes for memory in self.ranks.values()), default=0),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """How the numbers were found, and what could not be read."""
        has_sum = any(device.is_sum for memory in self.ranks.values() for device in memory.devices)
        problems: dict[str, list[int]] = {}
        for rank, memory in sorted(self.ranks.items()):
            for problem in memory.problems:
                problems.setdefault(problem, []).append(rank)
        lines = [f"{describe_ranks(ranks)}: {problem}" for problem, ranks in problems.items()]
        return (*([NO_STATISTICS] if has_sum else []), *lines)


def report_values(report: MemoryReport) -> dict[str, Any]:
    """Convert a report to the JSON values of `mhnb memory --json`."""
    return {
        "name": report.name,
        "ranks": [
            {
                "rank": rank,
                "process_bytes": memory.host_nbytes,
                "devices": [structs.asdict(device) for device in memory.devices],
                "arrays": [structs.asdict(array) | {"waste": array.waste} for array in memory.arrays],
                "more_count": memory.more_count,
                "more_nbytes": memory.more_nbytes,
                "problems": list(memory.problems),
            }
            for rank, memory in sorted(report.ranks.items())
        ],
    }


def parse_top(top: int, argument: str = "--top") -> int:
    """Return the number of arrays to show.

    Raises:
        InvalidRequest: it is not positive.
    """
    if top < 1:
        raise InvalidRequest(
            f"{argument} {top}: expected how many arrays to show, from 1\n  Fix: {argument} {DEFAULT_TOP}, or leave it out"
        )
    return top


def _describe_difference(other: ArrayMemory, usual: ArrayMemory) -> str:
    if other.count != usual.count:
        return f"{other.count} of them"
    kind = f"in {other.memory_kind}" if other.memory_kind else ""
    devices = "" if other.device_count == usual.device_count else f"on {pluralize(other.device_count, 'device')}"
    return " ".join(filter(None, (format_array(other.shape, other.dtype), other.spec, kind, devices)))


# -- group devices


_TOLERANCE, _TOLERANCE_NBYTES = 0.02, 1 << 20
_PROCESS_TOLERANCE, _PROCESS_TOLERANCE_NBYTES = 0.25, 64 << 20
"""Processes with the same work differ more than devices do."""


def _group_devices(ranks: Mapping[int, RankMemory]) -> list[DeviceRow]:
    kinds: dict[tuple[str, _Number], dict[tuple[int, int], DeviceMemory]] = {}
    for rank, memory in sorted(ranks.items()):
        for device in memory.devices:
            kinds.setdefault((device.kind, device.limit), {})[rank, device.ordinal] = device
    rows = []
    for (kind, limit), found in kinds.items():
        used = {key: device.used for key, device in found.items()}
        groups = _group_near(used, _TOLERANCE, _TOLERANCE_NBYTES)
        is_majority = len(groups[0]) * 2 > len(found)
        for at, keys in enumerate(groups if is_majority else sorted(groups)):
            rows += [
                _make_device_row(kind, limit, same, found, is_outlier=is_majority and at > 0)
                for same in _split_by_ordinals(keys)
            ]
    return rows


def _make_device_row(
    kind: str,
    limit: _Number,
    keys: Sequence[tuple[int, int]],
    found: Mapping[tuple[int, int], DeviceMemory],
    *,
    is_outlier: bool,
) -> DeviceRow:
    same = [found[key] for key in keys]
    return DeviceRow(
        tuple(sorted({rank for rank, _ in keys})),
        tuple(sorted({ordinal for _, ordinal in keys})),
        kind,
        (min(device.used for device in same), max(device.used for device in same)),
        _maximum(device.peak for device in same),
        limit,
        _maximum(device.card_used for device in same),
        _maximum(device.card_total for device in same),
        is_outlier,
    )


def _split_by_ordinals(keys: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Split devices into parts with the same indices on every rank."""
    ordinals: dict[int, list[int]] = {}
    for rank, ordinal in keys:
        ordinals.setdefault(rank, []).append(ordinal)
    parts: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, own in ordinals.items():
        parts.setdefault(tuple(own), []).extend((rank, ordinal) for ordinal in own)
    return list(parts.values())


def _group_processes(ranks: Mapping[int, RankMemory]) -> list[DeviceRow]:
    used = {rank: memory.host_nbytes for rank, memory in sorted(ranks.items()) if memory.host_nbytes is not None}
    if not used:
        return []
    alike, *others = _group_near(used, _PROCESS_TOLERANCE, _PROCESS_TOLERANCE_NBYTES)
    is_majority = len(alike) * 2 > len(used)
    return [
        DeviceRow(
            tuple(sorted(keys)),
            (),
            "process",
            (min(used[key] for key in keys), max(used[key] for key in keys)),
            is_outlier=is_majority and keys is not alike,
        )
        for keys in (alike, *others)
    ]


def _group_near(used: Mapping[_K, int], share: float, nbytes: int) -> list[list[_K]]:
    """Group keys with numbers near their median, then the others likewise.

    >>> _group_near({0: 100, 1: 101, 2: 900, 3: 901, 4: 100}, 0.02, 1)
    [[0, 1, 4], [2, 3]]
    """
    groups, rest = [], dict(used)
    while rest:
        middle = sorted(rest.values())[(len(rest) - 1) // 2]
        limit = max(share * middle, nbytes)
        groups.append([key for key, number in rest.items() if abs(number - middle) <= limit])
        for key in groups[-1]:
            del rest[key]
    return groups


def _maximum(numbers: Iterable[_Number]) -> _Number:
    return max((number for number in numbers if number is not None), default=None)


# -- group arrays


def merge_arrays(
    ranks: Mapping[int, Sequence[ArrayMemory]], cut: Mapping[int, int] = MappingProxyType({})
) -> tuple[ArrayRow, ...]:
    """Merge the ranks' arrays by name, and unnamed ones by equal facts.

    Several arrays of a rank may have one name, such as the locals of a function that calls itself: they are merged in their
    order. Equal items of a list are one row.

    Args:
        ranks: the arrays of each rank, the largest first.
        cut: of each rank that has more arrays than it lists, the bytes on a device of the smallest that it lists: a smaller one is
            not called missing there.

    >>> x = ArrayMemory(("x",), (2,), "float32", "local", 8, 8, 1)
    >>> merge_arrays({0: [x], 1: []})[0].missing
    (1,)
    """
    by_key: dict[Hashable, dict[int, ArrayMemory]] = {}
    for rank, arrays in sorted(ranks.items()):
        counts: Counter[Hashable] = Counter()
        for array in arrays:
            key = _name_key(array)
            by_key.setdefault((key, counts[key]), {})[rank] = array
            counts[key] += 1
    rows = _fold_items(_merge_row(found, sorted(ranks), cut) for found in by_key.values())
    return tuple(sorted(rows, key=lambda row: (-row.nbytes_per_device, row.array.names[:1], row.groups[0][0])))


def _name_key(array: ArrayMemory) -> Hashable:
    if array.names:
        return array.names[0]
    return (array.shape, array.dtype, array.spec, array.mesh, array.memory_kind, array.program, array.place)


def _merge_row(found: Mapping[int, ArrayMemory], ranks: Sequence[int], cut: Mapping[int, int]) -> ArrayRow:
    groups = group_ranks({rank: _size_key(array) for rank, array in found.items()})
    largest = max(array.nbytes_per_device for array in found.values())
    absent = (rank for rank in ranks if rank not in found and largest > cut.get(rank, 0))
    # Only the ranks that do not hold a part of it say which rank holds it all.
    shown = (
        next((found[rank] for rank in same if found[rank].holder is not None), found[same[0]]) for same, _ in groups
    )
    return ArrayRow(tuple(zip((same for same, _ in groups), shown, strict=True)), tuple(absent))


_ITEM = re.compile(r"(?P<before>.*\[)(?P<index>\d+)(?P<after>\](?:(?!\[\d+\]).)*)")
"""The name of an item of a list: what is before and after its last index."""


def _fold_items(rows: Iterable[ArrayRow]) -> list[ArrayRow]:
    """Fold equal items of one list into one row."""
    lists: dict[Hashable, dict[int, ArrayRow]] = {}
    for at, row in enumerate(rows):
        array = row.array
        item = _ITEM.fullmatch(array.names[0]) if len(array.names) == 1 else None
        if item is None or len(row.groups) > 1 or row.missing or array.count > 1:
            lists[at] = {0: row}
        else:
            same = (item["before"], item["after"], row.groups[0][0], _size_key(array), array.program, array.place)
            # Two of one name, in locals of a function that calls itself, are rows of their own.
            if lists.setdefault(same, {}).setdefault(int(item["index"]), row) is not row:
                lists[at] = {0: row}
    return [_fold_list(found) if len(found) > 1 else next(iter(found.values())) for found in lists.values()]


def _fold_list(found: Mapping[int, ArrayRow]) -> ArrayRow:
    ((ranks, array),) = next(iter(found.values())).groups
    indices = format_ranks(sorted(found)).replace("-", "..")
    name = _ITEM.sub(lambda item: f"{item['before']}{indices}{item['after']}", array.names[0])
    return ArrayRow(((ranks, structs.replace(array, names=(name,), count=len(found))),))


def _size_key(array: ArrayMemory) -> Hashable:
    return (
        array.shape,
        array.dtype,
        array.spec,
        array.mesh,
        array.memory_kind,
        array.nbytes_per_device,
        array.device_count,
        array.count,
    )


# -- what could be sharded


@dataclass(frozen=True, slots=True)
class ShardingAdvice:
    """An array with replicas along a mesh axis that divides a dim."""

    name: str
    """An expression of the notebook."""
    aliases: tuple[str, ...]
    """Other names of it."""
    place: str
    """Where it was made; empty if that is unknown."""
    axis: str
    axis_size: int
    spec: str
    """The PartitionSpec that would shard it along the axis, too."""
    saved: int
    """Bytes that this would save on each device."""
    is_whole: bool
    """Whether each device has a full copy now."""
    code_names: tuple[str, str, str] = ("jax.NamedSharding", "jax.P", "")
    """As those of the array."""

    @property
    def code(self) -> str:
        """A statement that shards it; empty if its name may be unassignable."""
        if _ASSIGNABLE.fullmatch(self.name) is None:
            return ""
        names = [self.name, *(name for name in self.aliases if _ASSIGNABLE.fullmatch(name))]
        named_sharding, partition_spec, mesh = self.code_names
        spec = self.spec.replace("P(", f"{partition_spec}(", 1)
        sharding = f"{named_sharding}({mesh or f'{self.name}.sharding.mesh'}, {spec})"
        call = f"{' = '.join(names)} = jax.device_put("
        line = f"{call}{self.name}, {sharding})"
        return line if len(line) <= _MAX_CODE_CHARS else f"{call}\n    {self.name}, {sharding}\n)"

    @property
    def keepers(self) -> tuple[str, ...]:
        """Other names that still hold the old array after `code` runs."""
        return tuple(name for name in self.aliases if not self.code or _ASSIGNABLE.fullmatch(name) is None)


_MAX_CODE_CHARS = 80
"""A longer line would wrap in a narrow notebook."""
_ASSIGNABLE = re.compile(r"[^\W_]\w*(?:\['[^'\\]*'\])*")
"""A variable, or what a dict of it holds under a text. Of other expressions it is not known whether they can be assigned to."""


def suggest_sharding(arrays: Iterable[ArrayMemory]) -> ShardingAdvice | None:
    """Suggest a sharding for the array that saves most memory, or None.

    >>> w = ArrayMemory(("w",), (8, 6), "float32", "global", 192, 192, 4, "P()", (("data", 4),))
    >>> suggest_sharding([w]).code
    "w = jax.device_put(w, jax.NamedSharding(w.sharding.mesh, jax.P('data')))"
    """
    found = [advice for array in arrays if (advice := _suggest_for(array)) is not None]
    return max(found, key=lambda advice: advice.saved, default=None)


def _suggest_for(array: ArrayMemory) -> ShardingAdvice | None:
    if array.spec is None or not array.names or array.memory_kind or array.names[0].endswith(SHARES_MEMORY):
        return None
    try:
        spec = parse_spec(array.spec)
    except (ShardingError, InvalidRequest):
        # A spec that leaves a dim to the compiler.
        return None
    if spec.unreduced:
        return None
    sizes = dict(array.mesh)
    free = sorted(
        (axis for axis, size in array.mesh if size > 1 and axis not in spec.axes), key=lambda axis: -sizes[axis]
    )
    dims = [*spec.dims, *[()] * (len(array.shape) - len(spec.dims))]
    # A dim that is whole, before one that has axes.
    order = sorted(range(len(dims)), key=lambda dim: bool(dims[dim]))
    for axis in free:
        for dim in order:
            size = array.shape[dim]
            if size and size % (prod(sizes[one] for one in dims[dim]) * sizes[axis]) == 0:
                dims[dim] = (*dims[dim], axis)
                return ShardingAdvice(
                    array.names[0],
                    tuple(name for name in array.names[1:] if not name.endswith(SHARES_MEMORY)),
                    array.place,
                    axis,
                    sizes[axis],
                    format_spec(Spec(_without_end(dims))),
                    (array.nbytes_per_device - array.nbytes_per_device // sizes[axis]) * array.count,
                    not any(spec.dims),
                    array.code_names,
                )
    return None


def _without_end(dims: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    end = len(dims)
    while end and not dims[end - 1]:
        end -= 1
    return tuple(dims[:end])


# -- failed allocations of several ranks


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Ranks where one allocation failed with the same arrays in memory."""

    ranks: tuple[int, ...]
    failure: AllocationFailure
    """Of the first of these ranks; `devices` has the numbers of all."""
    devices: tuple[DeviceRow, ...]
    """The memory of the devices of all of these ranks, and of their processes."""
    notes: tuple[str, ...] = ()


_SMALL_SHARE = 0.01
"""Arrays that take less than this part of the largest one do not tell two reports apart: garbage differs at random."""


def group_failures(failures: Mapping[int, AllocationFailure]) -> tuple[FailureGroup, ...]:
    """Group ranks with equal requests and large arrays; largest group first."""
    groups = []
    for ranks, _ in group_ranks({rank: _failure_key(failure) for rank, failure in failures.items()}):
        report = MemoryReport("", {rank: failures[rank].memory for rank in ranks})
        groups.append(FailureGroup(ranks, failures[ranks[0]], report.devices, report.notes))
    return tuple(groups)


def _failure_key(failure: AllocationFailure) -> Hashable:
    arrays = failure.memory.arrays
    limit = _SMALL_SHARE * max((array.nbytes_per_device * array.count for array in arrays), default=0)
    large = (array for array in arrays if array.nbytes_per_device * array.count >= limit)
    return (
        failure.requested,
        failure.is_host,
        failure.problem,
        tuple((array.names[:1], array.place, _size_key(array)) for array in large),
    )
