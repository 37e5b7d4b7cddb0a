"""Format small tables as text and HTML, and those that the magics show: status, variables and the result of `%mhjax check`.

The check table shows for each array of a name whether the ranks hold the same, and where they differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from mhnb.core.guard.value_check import CheckRow
from mhnb.core.ranks import describe_ranks
from mhnb.core.variables import VariableRow
from mhnb.sharding.layout import format_nbytes
from mhnb.types import ClusterState, RankInfo
from mhnb.view.html import QUIET_STYLE, format_fold, name_hosts, wrap_html, wrap_in_scroller
from mhnb.view.mime import format_pre


@dataclass(frozen=True, slots=True)
class Status:
    """The content of `%mhjax status`."""

    heading: str
    """As `default · clean · generation 1 · 4 ranks × 2 CPU devices · guard lockstep`."""
    state: ClusterState
    ranks: tuple[RankInfo, ...]
    notes: tuple[str, ...] = ()


def format_table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align cells in columns: numbers to the right, text to the left.

    >>> print(format_table_text(["rank", "host"], [["0", "host0"], ["10", "host1"]]))
    rank  host
       0  host0
      10  host1
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = _right_columns(header, rows)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def format_table_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table that keeps its alignment without a style sheet."""
    right, unbroken = _right_columns(header, rows), find_widest_cells(rows)
    lines = [
        _format_row_html(header, right, set(), "th"),
        *(_format_row_html(line, right, unbroken[at], "td") for at, line in enumerate(rows)),
    ]
    return wrap_in_scroller(f'<table style="border-collapse:collapse;margin:2px 0">{"".join(lines)}</table>')


def _format_row_html(line: Sequence[str], right: set[int], unbroken: set[int], tag: str) -> str:
    top = ";vertical-align:top" if any(len(cell) > _SHORT_CHARS for cell in line) else ""
    cells = (
        # A heading without text would be announced as one.
        _format_cell_html(
            cell, tag if cell else "td", is_right=column in right, is_unbroken=column in unbroken, top=top
        )
        for column, cell in enumerate(line)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _format_cell_html(cell: str, tag: str, *, is_right: bool, is_unbroken: bool, top: str) -> str:
    width = NO_BREAK_STYLE if is_unbroken else _LONG_STYLE if len(cell) > _SHORT_CHARS else ""
    style = f"text-align:{'right' if is_right else 'left'};padding:1px 10px 1px 0{top}{width}"
    return f'<{tag} style="{style}">{escape(cell, quote=False)}</{tag}>'


def find_widest_cells(rows: Sequence[Sequence[str]]) -> Mapping[int, set[int]]:
    """Return, by row, the columns whose longest cell is in that row, if that cell is short.

    Such a cell does not wrap, so that its column is wide enough. Otherwise a long cell beside the short ones would squeeze them.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for column, cells in enumerate(zip(*rows, strict=True)):
        longest = max(range(len(cells)), key=lambda at: len(cells[at]))
        if len(cells[longest]) <= _SHORT_CHARS:
            found[longest].add(column)
    return found


_MAX_OPEN_ROWS, _OPEN_ROWS = 16, 8
_Row = TypeVar("_Row")


def split_rows(rows: Sequence[_Row]) -> tuple[Sequence[_Row], Sequence[_Row]]:
    """Split many rows into those that are seen at once and those that a click shows; a few are all seen.

    >>> [len(part) for part in split_rows(range(16))], [len(part) for part in split_rows(range(64))]
    ([16, 0], [8, 56])
    """
    return (rows, rows[len(rows) :]) if len(rows) <= _MAX_OPEN_ROWS else (rows[:_OPEN_ROWS], rows[_OPEN_ROWS:])


def _right_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> set[int]:
    return {
        column
        for column in range(len(header))
        if rows and all(not row[column] or row[column][0].isdecimal() for row in rows) and any(r[column] for r in rows)
    }


NO_BREAK_STYLE = ";white-space:nowrap"
"""Style of a cell that `find_widest_cells` returned."""
_SHORT_CHARS = 32
_LONG_STYLE = ";overflow-wrap:anywhere;min-width:8em"
"""Style of a longer cell: it may break inside a word, but has a minimum width.

Otherwise one long word would push the following cells out of sight, or the cell would become a narrow strip.
"""
_STATUS_HEADER = ("rank", "host", "pid", "state", "devices", "memory", "last cell", "log")
_OPTIONAL_COLUMNS = ("memory", "last cell")
"""Columns that are left out if no rank has a value in them."""
_VARS_HEADER = ("name", "kind", "shape", "spec", "bytes/device", "differs")


def _build_status_table(status: Status) -> tuple[list[str], list[list[str]]]:
    hosts = name_hosts(status.ranks)
    cells = [_status_cells(rank, hosts[rank.rank]) for rank in status.ranks]
    shown = [
        at for at, name in enumerate(_STATUS_HEADER) if name not in _OPTIONAL_COLUMNS or any(line[at] for line in cells)
    ]
    return [_STATUS_HEADER[at] for at in shown], [[line[at] for at in shown] for line in cells]


def _status_cells(rank: RankInfo, host: str) -> tuple[str, ...]:
    pid, memory = "" if rank.pid is None else str(rank.pid), "" if rank.nbytes is None else format_nbytes(rank.nbytes)
    devices, log = str(len(rank.devices)), str(rank.log_path)
    return str(rank.rank), host, pid, rank.state, devices, memory, rank.last_cell, log


def format_status_text(status: Status) -> str:
    """Format the status as text."""
    return "\n".join([status.heading, format_table_text(*_build_status_table(status)), *status.notes])


def format_status_html(status: Status) -> str:
    """Format the status as HTML."""
    color = ' class="mhnb-bad"' if status.state in ("dead", "tainted", "split") else ""
    notes = "".join(f"<div>{escape(note, quote=False)}</div>" for note in status.notes)
    header, rows = _build_status_table(status)
    shown, rest = split_rows(_order_by_state(status.ranks))
    table = format_table_html(header, [rows[at] for at in shown])
    if rest:
        states = {status.ranks[at].state for at in rest}
        label = f"{describe_ranks(status.ranks[at].rank for at in rest)} · {', '.join(sorted(states))}"
        table += format_fold(label, format_table_html(header, [rows[at] for at in rest]))
    return wrap_html(f"<div{color}><b>{escape(status.heading, quote=False)}</b></div>{table}{notes}")


def _order_by_state(ranks: Sequence[RankInfo]) -> Sequence[int]:
    """Return the places of ranks, those in another state than most, or whose last cell ended otherwise, first if there are many."""
    if len(ranks) <= _MAX_OPEN_ROWS:
        return range(len(ranks))
    usual, _ = Counter(map(_state_of, ranks)).most_common(1)[0]
    return sorted(range(len(ranks)), key=lambda at: (_state_of(ranks[at]) == usual, at))


def _state_of(rank: RankInfo) -> tuple[str, str]:
    return rank.state, rank.last_cell


def _var_cells(row: VariableRow) -> tuple[str, ...]:
    shape = "" if row.shape is None else f"{row.dtype or ''}[{','.join(map(str, row.shape))}]"
    nbytes = "" if row.nbytes_per_device is None else format_nbytes(row.nbytes_per_device)
    return row.name, row.kind, shape, row.spec or "", nbytes, row.differs


def _build_vars_table(rows: Sequence[VariableRow]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Build the table, without the column of differences if nothing differs."""
    shown = len(_VARS_HEADER) - (not any(row.differs for row in rows))
    return _VARS_HEADER[:shown], [_var_cells(row)[:shown] for row in rows]


def format_vars_text(rows: Sequence[VariableRow]) -> str:
    """Format the variables that the ranks hold as text."""
    return format_table_text(*_build_vars_table(rows)) if rows else "the ranks hold no variables yet"


def format_vars_html(rows: Sequence[VariableRow]) -> str:
    """Format the variables that the ranks hold as HTML."""
    if not rows:
        return wrap_html(f'<span style="{QUIET_STYLE}">the ranks hold no variables yet</span>')
    return wrap_html(format_table_html(*_build_vars_table(rows)))


# -- `%mhjax check`


def format_check_text(rows: Sequence[CheckRow]) -> str:
    """Format the rows; those that differ come first, then those that cannot be compared.

    >>> print(format_check_text([CheckRow("w", "f32[2]", True, "value held by ranks 0-1: equal")]))
    w   f32[2]   value held by ranks 0-1: equal
    """
    ordered = sorted(rows, key=lambda row: (row.same is not False, row.same is True))
    names, kinds = max((len(row.name) for row in rows), default=0), max((len(row.kind) for row in rows), default=0)
    indent = " " * (names + kinds + 6)
    return "\n".join(
        f"{row.name:{names}}   {row.kind:{kinds}}   " + row.text.replace("\n", "\n" + indent) for row in ordered
    )


def format_check_html(rows: Sequence[CheckRow]) -> str:
    """Format the rows as HTML."""
    differing = sum(row.same is False for row in rows)
    summary = (
        "it differs" if len(rows) == 1 else f"{differing} of {len(rows)} {'differs' if differing == 1 else 'differ'}"
    )
    heading = f'<div class="mhnb-bad"><b>{summary}</b></div>' if differing else ""
    return wrap_html(f"{heading}{format_pre(format_check_text(rows))}")
