"""Format a pytree's arrays as a table: text, and HTML whose columns can be sorted where scripts run."""

from __future__ import annotations

from html import escape

from mhnb.sharding.layout import LayoutRow, LayoutTree, format_device_count, format_dtype_and_shape, format_nbytes
from mhnb.view.boards.tables import NO_BREAK_STYLE, find_widest_cells, format_table_text, wrap_in_scroller
from mhnb.view.style import QUIET_STYLE, wrap_html

__all__ = ["format_tree_html", "format_tree_text"]

_HEADER = ("path", "array", "spec", "bytes", "bytes/device", "replication", "waste", "")
_NUMBERS = ("bytes", "bytes/device", "replication", "waste")
_MAX_ROWS = 300
"""Maximum number of rows in HTML, about 180 KB; `to_csv()` has all."""
_SORT_SCRIPT = (
    "var h=this.parentNode,n=h.cellIndex,t=h.closest('table').tBodies[0],u=h.getAttribute('aria-sort')!='ascending';"
    "h.parentNode.querySelectorAll('th').forEach(function(e){e.removeAttribute('aria-sort')});"
    "h.setAttribute('aria-sort',u?'ascending':'descending');"
    "function k(r){var c=r.cells[n],v=c.getAttribute('data-v');return v==null?c.textContent:+v}"
    "Array.from(t.rows).sort(function(a,b){var x=k(a),y=k(b);return (x<y?-1:x>y?1:0)*(u?1:-1)})"
    ".forEach(function(r){t.appendChild(r)})"
)
_KEY_SCRIPT = "if(event.key=='Enter'||event.key==' '){event.preventDefault();this.onclick()}"


def _cells(row: LayoutRow, tree: LayoutTree) -> tuple[str, ...]:
    layout = row.layout
    if layout is None:
        return row.path, row.kind, "", "", "", "", "", ""
    spec = str(layout.spec) if layout.spec is not None else format_device_count(layout)
    sizes = (format_nbytes(layout.nbytes), format_nbytes(layout.nbytes_per_device))
    waste = format_nbytes(layout.nbytes_waste) if layout.nbytes_waste else ""
    return row.path, format_dtype_and_shape(layout), spec, *sizes, f"{layout.replication:g}", waste, tree.remark(row)


def _sort_keys(row: LayoutRow) -> tuple[float | None, ...]:
    """Return what numeric columns sort by; None for text columns."""
    layout = row.layout
    if layout is None:
        return (None, None, None, -1, -1, -1, -1, None)
    return (None, None, None, layout.nbytes, layout.nbytes_per_device, layout.replication, layout.nbytes_waste, None)


def _format_totals(tree: LayoutTree) -> str:
    count = len(tree.layouts)
    words = [f"{count} array{'' if count == 1 else 's'}", format_nbytes(tree.nbytes)]
    words += [
        f"{format_nbytes(tree.nbytes_per_device)} a device",
        f"{format_nbytes(tree.nbytes_waste)} waste",
    ]
    return " · ".join(words)


def _format_tree_title(name: str, tree: LayoutTree) -> str:
    return f"{name}  {_format_totals(tree)}" if name else _format_totals(tree)


def format_tree_text(tree: LayoutTree, *, name: str = "", notes: tuple[str, ...] = ()) -> str:
    """Format the table as text; an arrow marks rows that stand out."""
    rows = [("→" if row.path in tree.fallen_back else "", *_cells(row, tree)) for row in tree.rows]
    return "\n".join([_format_tree_title(name, tree), format_table_text(("", *_HEADER), rows), *notes])


def format_tree_html(tree: LayoutTree, *, name: str = "", notes: tuple[str, ...] = ()) -> str:
    """Format the table as HTML; a click, Enter or Space on a heading sorts by it."""
    shown = tree.rows[:_MAX_ROWS]
    lines = [*notes]
    if len(tree.rows) > len(shown):
        lines.append(f"{len(tree.rows) - len(shown)} more rows: mhnb.layout(...).to_csv() has all")
    heads = "".join(_format_heading(word) for word in _HEADER)
    widest = find_widest_cells([_cells(row, tree) for row in shown])
    body = "".join(_format_tree_row(row, tree, widest[at]) for at, row in enumerate(shown))
    table = f'<table style="border-collapse:collapse"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    notes_html = "".join(f'<div style="{QUIET_STYLE}">{escape(note, quote=False)}</div>' for note in lines)
    return wrap_html(
        f"<div><b>{escape(_format_tree_title(name, tree), quote=False)}</b></div>{wrap_in_scroller(table)}{notes_html}"
    )


def _format_heading(word: str) -> str:
    if not word:
        return "<th></th>"
    act = f'role="button" tabindex="0" onclick="{escape(_SORT_SCRIPT)}" onkeydown="{escape(_KEY_SCRIPT)}"'
    side = "right" if word in _NUMBERS else "left"
    return (
        f'<th scope="col" style="text-align:{side};padding:1px 10px 1px 0"><span {act} title="sort">{word}</span></th>'
    )


def _format_tree_row(row: LayoutRow, tree: LayoutTree, unbroken: set[int]) -> str:
    is_marked = row.path in tree.fallen_back
    style = ' class="mhnb-bad" style="font-weight:bold"' if is_marked else ""
    cells = "".join(
        f'<td style="text-align:{"left" if value is None else "right"};padding:1px 10px 1px 0'
        f'{NO_BREAK_STYLE if column in unbroken else ""}"{_sort_attribute(value)}>{escape(cell, quote=False)}</td>'
        for column, (cell, value) in enumerate(zip(_cells(row, tree), _sort_keys(row), strict=True))
    )
    return f"<tr{style}>{cells}</tr>"


def _sort_attribute(value: float | None) -> str:
    return "" if value is None else f' data-v="{value}"'
