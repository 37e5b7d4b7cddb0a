"""Show what the memory of the ranks' devices holds, as text and as HTML.

That is the report of `%mhjax memory`, and the card of a failed allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

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
from mhnb.sharding.layout import format_nbytes
from mhnb.view.html import QUIET_STYLE, join_words, wrap_html
from mhnb.view.mime import format_pre
from mhnb.view.reports.tables import format_table_html, format_table_text

_Table = tuple[Sequence[str], list[Sequence[str]]]
_DEVICE_HEADER = ("ranks", "memory of", "in use", "peak", "limit", "whole card", "")
_ARRAY_HEADER = ("array", "type", "a device", "in all", "spec", "waste", "made by", "differs")
_OPTIONAL_COLUMNS = frozenset(("peak", "limit", "whole card", "", "spec", "waste", "made by", "differs"))
"""Columns that are left out if no row has a value in them."""
_OUTLIER = "◀ unlike most others"
_SHOWN_ALIASES = 3
_MAX_CARDS = 4
"""How many groups of ranks the card shows."""
FAILURE_TOP = 8
"""How many arrays the card of a failed allocation shows."""


# -- the report of all ranks


def format_memory_text(report: MemoryReport, top: int = DEFAULT_TOP) -> str:
    """Format the report as text: the devices and processes, then the largest arrays."""
    lines = [_format_heading(report), *report.notes, *_table_text(_device_table(report.devices))]
    if report.arrays:
        lines += ["the largest arrays, by their bytes on a device:", *_table_text(_array_table(report.arrays[:top]))]
    return "\n".join([*lines, *_format_rest(report, top), *_format_advice([row.array for row in report.arrays])])


def format_memory_html(report: MemoryReport, top: int = DEFAULT_TOP) -> str:
    """Format the report as HTML."""
    parts = [f"<div><b>{escape(_format_heading(report), quote=False)}</b></div>"]
    parts += [_format_quiet(note) for note in report.notes]
    if report.devices:
        parts.append(format_table_html(*_device_table(report.devices)))
    if report.arrays:
        parts.append(_format_quiet("the largest arrays, by their bytes on a device"))
        parts.append(format_table_html(*_array_table(report.arrays[:top])))
    parts += [_format_quiet(line) for line in _format_rest(report, top)]
    parts += [_advice_html(list(_format_advice([row.array for row in report.arrays])))]
    return wrap_html("".join(parts))


def _format_quiet(line: str) -> str:
    return f'<div style="{QUIET_STYLE}">{escape(line, quote=False)}</div>'


def _format_heading(report: MemoryReport) -> str:
    count = sum(row.array.count for row in report.arrays)
    arrays = pluralize(count + report.more[0], "array") if report.arrays else "no arrays"
    return f"{report.name} · memory · {describe_ranks(report.ranks)} · {arrays}"


def _format_rest(report: MemoryReport, top: int) -> list[str]:
    rest = report.arrays[top:]
    count = sum(row.array.count for row in rest) + report.more[0]
    nbytes = sum(row.nbytes_per_device for row in rest) + report.more[1]
    return (
        [f"{count} more {'array' if count == 1 else 'arrays'}, {format_nbytes(nbytes)} in all on a device"]
        if count
        else []
    )


def _table_text(table: _Table) -> list[str]:
    header, rows = table
    return format_table_text(header, rows).splitlines() if rows else []


def _without_empty_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> _Table:
    shown = [
        column
        for column, name in enumerate(header)
        if name not in _OPTIONAL_COLUMNS or any(row[column] for row in rows)
    ]
    return [header[column] for column in shown], [[row[column] for column in shown] for row in rows]


# -- devices


def _device_table(devices: Sequence[DeviceRow]) -> _Table:
    return _without_empty_columns(_DEVICE_HEADER, [_device_cells(row) for row in devices])


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


def _array_table(arrays: Sequence[ArrayRow]) -> _Table:
    return _without_empty_columns(_ARRAY_HEADER, [_array_cells(row) for row in arrays])


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
    return f"{'1 device' if array.device_count == 1 else f'{array.device_count} devices'}{where}"


def _format_maker(array: ArrayMemory) -> str:
    if array.is_assignment:
        return f"assigned {array.place}"
    return " ".join(part for part in (array.program, array.place) if part)


# -- what could be sharded


def _format_advice(arrays: Sequence[ArrayMemory]) -> Iterator[str]:
    """Yield a sentence about the array whose replicas take the most on each device, and a line of code that shards it, if any does."""
    advice = suggest_sharding(arrays)
    if advice is None:
        return
    has = "each device has a full copy" if advice.is_whole else f"it has replicas along {advice.axis!r}"
    saved = format_nbytes(advice.saved)
    sentence = f"→ {advice.name}: {has}. Sharded along {advice.axis!r}, it would take {saved} less on each device"
    made = f"; shard it where it is made{f': {advice.place}' if advice.place else ''}"
    keepers = f", once {join_words(advice.keepers)} {'do' if len(advice.keepers) > 1 else 'does'} not hold it any more"
    yield f"{sentence}{keepers if advice.code and advice.keepers else ''}{':' if advice.code else made}"
    if advice.code:
        yield f"    {advice.code}"


_NO_ADVICE = "→ no named array here has replicas along a mesh axis that divides one of its dims"


def _advice_html(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    sentence, *code = lines
    return f"<div>{escape(sentence, quote=False)}</div>{''.join(format_pre(line.strip()) for line in code)}"


# -- the card of a failed allocation


def format_shortage_text(groups: Sequence[FailureGroup]) -> Iterator[str]:
    """Yield the lines of the card: what was asked for, the devices, the largest arrays, and what could be sharded."""
    for group in groups[:_MAX_CARDS]:
        yield _format_shortage_heading(group, is_only=len(groups) == 1)
        yield from (f"  {line}" for line in group.notes)
        if group.failure.problem:
            yield f"  {group.failure.problem}"
            continue
        yield from (f"  {line}" for line in _table_text(_device_table(group.devices)))
        rows = _merge_own_arrays(group)
        yield from (f"  {line}" for line in _table_text(_array_table(rows[:FAILURE_TOP])))
        yield from (f"  {line}" for line in _format_shortage_end(group, rows))
    yield from _format_other_groups(groups)


def format_shortage_html(groups: Sequence[FailureGroup]) -> str:
    """Format the card as HTML, without an outer element."""
    cards = [_format_one_shortage(group, is_only=len(groups) == 1) for group in groups[:_MAX_CARDS]]
    return "".join([*cards, *map(_format_quiet, _format_other_groups(groups))])


def _format_other_groups(groups: Sequence[FailureGroup]) -> list[str]:
    """Name the ranks whose reports are not shown."""
    ranks = [rank for group in groups[_MAX_CARDS:] for rank in group.ranks]
    return [f"an allocation also failed on {describe_ranks(ranks)}, with other arrays in memory"] if ranks else []


def _format_one_shortage(group: FailureGroup, *, is_only: bool) -> str:
    parts = [f"<div><b>{escape(_format_shortage_heading(group, is_only=is_only), quote=False)}</b></div>"]
    parts += [_format_quiet(line) for line in group.notes]
    if group.failure.problem:
        return "".join([*parts, _format_quiet(group.failure.problem)])
    rows = _merge_own_arrays(group)
    for table in (_device_table(group.devices), _array_table(rows[:FAILURE_TOP])):
        if table[1]:
            parts.append(format_table_html(*table))
    lines = list(_format_shortage_end(group, rows))
    advice = [line for line in lines if line.startswith(("→", "    "))]
    parts += [_format_quiet(line) for line in lines if line not in advice]
    is_general = advice == [_NO_ADVICE]
    parts += ["".join(map(_format_quiet, advice)) if is_general else _advice_html(advice)]
    return "".join(parts)


def _format_shortage_heading(group: FailureGroup, *, is_only: bool) -> str:
    failure = group.failure
    where = "host memory" if failure.is_host else "device memory"
    asked = "" if failure.requested is None else f" · {format_nbytes(failure.requested)} was asked for"
    ranks = "" if is_only and len(group.ranks) == 1 else f" on {describe_ranks(group.ranks)}"
    return f"{where} when the allocation failed{ranks}{asked}"


def _merge_own_arrays(group: FailureGroup) -> Sequence[ArrayRow]:
    return merge_arrays({group.ranks[0]: group.failure.memory.arrays})


def _format_shortage_end(group: FailureGroup, rows: Sequence[ArrayRow]) -> Iterator[str]:
    memory = group.failure.memory
    rest = rows[FAILURE_TOP:]
    count = sum(row.array.count for row in rest) + memory.more_count
    nbytes = sum(row.nbytes_per_device for row in rest) + memory.more_nbytes
    if count:
        yield f"{count} more {'array' if count == 1 else 'arrays'}, {format_nbytes(nbytes)} in all on a device"
    if not rows:
        yield "no live arrays"
        return
    advice = list(_format_advice(memory.arrays))
    yield from advice or [_NO_ADVICE]
