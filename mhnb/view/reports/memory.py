"""What the memory of the ranks' devices holds.

That is the report of `%mhjax memory`, and the card of a failed allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhnb.core.memory import (
    DEFAULT_TOP,
    ArrayMemory,
    ArrayRow,
    DeviceRow,
    FailureGroup,
    MemoryReport,
    merge_arrays,
    suggest_sharding,
)
from mhnb.core.ranks import describe_ranks, format_ranks, pluralize
from mhnb.core.variables import format_array
from mhnb.sharding.layout import format_device_count, format_nbytes
from mhnb.view.document import Code, Document, Group, Line, Part, Table, without_empty_columns
from mhnb.view.html import join_words

_DEVICE_HEADER = ("ranks", "memory of", "in use", "peak", "limit", "whole card", "")
_ARRAY_HEADER = ("array", "type", "per device", "total", "spec", "waste", "made by", "differs")
_OPTIONAL_COLUMNS = frozenset(("peak", "limit", "whole card", "", "spec", "waste", "made by", "differs"))
"""Columns that are left out if no row has a value in them."""
_OUTLIER = "◀ unlike most others"
_SHOWN_ALIASES = 3
_MAX_CARDS = 4
"""How many groups of ranks the card shows."""
FAILURE_TOP = 8
"""How many arrays the card of a failed allocation shows."""


# -- the report of all ranks


def build_memory(report: MemoryReport, top: int = DEFAULT_TOP) -> Document:
    """Build the report: the devices and processes, then the `top` largest arrays."""
    parts: list[Part] = [Line(_format_heading(report), "heading"), *_quiet(report.notes)]
    if report.devices:
        parts.append(_build_devices(report.devices))
    if report.arrays:
        parts += [
            Line("the largest arrays, by their bytes per device", "caption"),
            _build_arrays(report.arrays[:top]),
        ]
    rest = _format_rest(report.arrays[top:], *report.more)
    return [*parts, *_quiet(rest), *_build_advice([row.array for row in report.arrays])]


def _quiet(lines: Sequence[str]) -> list[Line]:
    return [Line(line, "quiet") for line in lines]


def _format_heading(report: MemoryReport) -> str:
    count = sum(row.array.count for row in report.arrays)
    arrays = pluralize(count + report.more[0], "array") if report.arrays else "no arrays"
    return f"{report.name} · memory · {describe_ranks(report.ranks)} · {arrays}"


def _format_rest(rest: Sequence[ArrayRow], more_count: int, more_nbytes: int) -> list[str]:
    count = sum(row.array.count for row in rest) + more_count
    nbytes = sum(row.nbytes_per_device for row in rest) + more_nbytes
    return [f"{pluralize(count, 'more array')}, {format_nbytes(nbytes)} per device in total"] if count else []


# -- devices


def _build_devices(devices: Sequence[DeviceRow]) -> Table:
    return without_empty_columns(_DEVICE_HEADER, [_device_cells(row) for row in devices], _OPTIONAL_COLUMNS)


def _device_cells(row: DeviceRow) -> tuple[str, ...]:
    least, most = map(format_nbytes, row.used)
    card = (
        ""
        if row.card_used is None or row.card_total is None
        else f"{format_nbytes(row.card_used)} of {format_nbytes(row.card_total)}"
    )
    return (
        format_ranks(row.ranks),
        _name_devices(row),
        least if least == most else f"{least} – {most}",
        "" if row.peak is None else format_nbytes(row.peak),
        "" if row.limit is None else format_nbytes(row.limit),
        card,
        _OUTLIER if row.is_outlier else "",
    )


def _name_devices(row: DeviceRow) -> str:
    if not row.ordinals:
        return "process"
    return f"{'device' if len(row.ordinals) == 1 else 'devices'} {format_ranks(row.ordinals)} ({row.kind})"


# -- arrays


def _build_arrays(arrays: Sequence[ArrayRow]) -> Table:
    return without_empty_columns(_ARRAY_HEADER, [_array_cells(row) for row in arrays], _OPTIONAL_COLUMNS)


def _array_cells(row: ArrayRow) -> tuple[str, ...]:
    array = row.array
    # All columns of a row are about the same ranks: the largest group.
    nbytes = array.nbytes_per_device * array.count
    return (
        _format_names(array),
        format_array(array.shape, array.dtype),
        "" if array.scope == "host" else format_nbytes(nbytes),
        format_nbytes(array.nbytes * array.count),
        _format_place_of_data(array),
        format_nbytes(array.waste * array.count) if array.waste else "",
        _format_maker(array),
        row.differs,
    )


def _format_names(array: ArrayMemory) -> str:
    """Format the names of an array: `x (also y, params['w'])`.

    >>> _format_names(ArrayMemory(("x", "y"), (2,), "float32", "local", 8, 8, 1))
    'x (also y)'
    """
    if not array.names:
        return "unnamed" if array.count == 1 else f"{array.count} unnamed"
    first, *others = array.names
    more = f", … {len(others) - _SHOWN_ALIASES} more" if len(others) > _SHOWN_ALIASES else ""
    return f"{first} (also {', '.join(others[:_SHOWN_ALIASES])}{more})" if others else first


def _format_place_of_data(array: ArrayMemory) -> str:
    if array.scope == "host":
        return "NumPy, host memory"
    where = f" in {array.memory_kind}" if array.memory_kind else ""
    if array.spec is not None:
        return f"{array.spec}{where}"
    return f"{format_device_count(array.device_count, array.holder)}{where}"


def _format_maker(array: ArrayMemory) -> str:
    if array.is_assignment:
        return f"assigned {array.place}"
    return " ".join(part for part in (array.program, array.place) if part)


# -- what could be sharded


def _build_advice(arrays: Sequence[ArrayMemory]) -> Iterator[Part]:
    """Build advice on sharding the array with the costliest replicas."""
    advice = suggest_sharding(arrays)
    if advice is None:
        return
    has = "each device has a full copy" if advice.is_whole else f"it has replicas along {advice.axis!r}"
    saved = format_nbytes(advice.saved)
    sentence = f"→ {advice.name}: {has}. Sharded along {advice.axis!r}, it would take {saved} less on each device"
    made = f"; shard it where it is made{f': {advice.place}' if advice.place else ''}"
    keepers = f", once {join_words(advice.keepers)} {'do' if len(advice.keepers) > 1 else 'does'} not hold it any more"
    yield Line(f"{sentence}{keepers if advice.code and advice.keepers else ''}{':' if advice.code else made}")
    if advice.code:
        yield Code(advice.code, indent=4)


_NO_ADVICE = "no named array here can be sharded along one more mesh axis"


# -- the card of a failed allocation


def build_shortage(groups: Sequence[FailureGroup]) -> Document:
    """Build the card of failed allocations: devices, largest arrays and advice."""
    parts: list[Part] = []
    for group in groups[:_MAX_CARDS]:
        parts.append(Line(_format_shortage_heading(group, is_only=len(groups) == 1), "heading"))
        parts.append(Group(_build_one_shortage(group)))
    ranks = [rank for group in groups[_MAX_CARDS:] for rank in group.ranks]
    more = [f"an allocation also failed on {describe_ranks(ranks)}, with other arrays in memory"] if ranks else []
    return [*parts, *_quiet(more)]


def _build_one_shortage(group: FailureGroup) -> Document:
    notes = _quiet(group.notes)
    if group.failure.problem:
        return [*notes, Line(group.failure.problem, "quiet")]
    memory = group.failure.memory
    rows = merge_arrays({group.ranks[0]: memory.arrays})
    tables = [table for table in (_build_devices(group.devices), _build_arrays(rows[:FAILURE_TOP])) if table.rows]
    rest = _format_rest(rows[FAILURE_TOP:], memory.more_count, memory.more_nbytes)
    if not rows:
        return [*notes, *tables, *_quiet([*rest, "no live arrays"])]
    advice = list(_build_advice(memory.arrays)) or _quiet([_NO_ADVICE])
    return [*notes, *tables, *_quiet(rest), *advice]


def _format_shortage_heading(group: FailureGroup, *, is_only: bool) -> str:
    failure = group.failure
    where = "host memory" if failure.is_host else "device memory"
    asked = "" if failure.requested is None else f" · {format_nbytes(failure.requested)} requested"
    ranks = "" if is_only and len(group.ranks) == 1 else f" on {describe_ranks(group.ranks)}"
    return f"{where} when the allocation failed{ranks}{asked}"
