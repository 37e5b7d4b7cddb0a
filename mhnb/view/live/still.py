"""Static replacement of a panel where its widget cannot exist: in a saved notebook without its kernel, nbconvert, GitHub.

A front end does not save a widget, and shows an error in its place. So this text is a display of its own before the widget's.
While the widget exists, a style hides the text.
"""

from __future__ import annotations

from html import escape

from mhnb.core.output.results import CellResult
from mhnb.view.cell.digest import format_heading
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.style import QUIET_STYLE, wrap_html
from mhnb.view.words import RankLocations

__all__ = ["WIDGET_TEXT", "format_replacement", "hide_missing_widget"]

WIDGET_TEXT = "mhjax · the panel itself; it needs its kernel"
"""The text of the widget's own display."""
_MISSING_WIDGET = ".jp-OutputArea-child:not(:has(.jp-OutputArea-output>*))"
"""If a widget does not exist, JupyterLab shows bare text about a missing one. This selects that output."""
_CSS = (
    # A panel whose widget exists shows everything itself.
    ".jp-OutputArea-child:has(.{uid}):has(+.jp-OutputArea-child .mhnb-panel),"
    ".jp-OutputArea-child:has(.{uid})+" + _MISSING_WIDGET + "{{display:none}}"
)


def hide_missing_widget(html: str, *, uid: str) -> str:
    """Add a style to a view directly below a widget. It hides what a front end shows in place of a missing widget.

    Args:
        html: the view, which contains all that a reader needs.
        uid: unique in the notebook; the class of the returned element.
    """
    return f'<div class="{uid}"><style>{_MISSING_WIDGET}:has(+.jp-OutputArea-child .{uid}){{display:none}}</style>{html}</div>'


def format_replacement(result: CellResult, locations: RankLocations, *, uid: str) -> dict[str, str]:
    """Format the static replacement."""
    line = (
        f"mhjax · panel over cell {result.seq} · {format_heading(result)} · it lives while its kernel does: "
        "run the cell again, then %mhjax panel brings it back"
    )
    page = format_cell_html(result, uid=f"{uid}-page", locations=locations)
    summary = f'<summary style="cursor:pointer;{QUIET_STYLE}">what it showed</summary>'
    collapsed = f"<details>{summary}{page}</details>" if page else ""
    body = f'<div class="{uid}"><div style="{QUIET_STYLE}">{escape(line, quote=False)}</div>{collapsed}</div>'
    text = format_cell_text(result, locations=locations)
    return {"text/html": wrap_html(body, css=_CSS.format(uid=uid)), "text/plain": f"{line}\n{text}".rstrip()}
