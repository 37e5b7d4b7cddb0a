"""What stands for a panel where it cannot live: in a saved notebook whose kernel is gone, in nbconvert, on GitHub.

A front end does not save a widget, and shows an error in its place. So these words are a display of their own before the widget's;
while the widget lives, a style of their own hides them.
"""

from __future__ import annotations

from html import escape

from mhnb.core.output.results import CellResult
from mhnb.view.cell.digest import heading
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.style import QUIET, wrap
from mhnb.view.words import Places

__all__ = ["LIVE_TEXT", "format_still", "hide_dead_widget"]

LIVE_TEXT = "mhjax · the panel itself; it needs its kernel"
"""The text of the widget's own display."""
_DEAD = ".jp-OutputArea-child:not(:has(.jp-OutputArea-output>*))"
"""For a widget that does not live JupyterLab writes bare words about a missing one."""
_CSS = (
    # A panel that lives says it all.
    ".jp-OutputArea-child:has(.{uid}):has(+.jp-OutputArea-child .mhnb-panel),"
    ".jp-OutputArea-child:has(.{uid})+" + _DEAD + "{{display:none}}"
)


def hide_dead_widget(html: str, *, uid: str) -> str:
    """Have a view that stands right below a widget hide what a front end writes in the widget's place once it is gone.

    Args:
        html: the view, which says by itself all that a reader needs.
        uid: unique in the notebook; the class of what is given back.
    """
    return f'<div class="{uid}"><style>{_DEAD}:has(+.jp-OutputArea-child .{uid}){{display:none}}</style>{html}</div>'


def format_still(result: CellResult, places: Places, *, uid: str) -> dict[str, str]:
    """Write it.

    Args:
        result: what the panel shows.
        places: where the ranks live.
        uid: unique in the notebook; the widget's display must follow this one at once.
    """
    line = (
        f"mhjax · panel over cell {result.seq} · {heading(result)} · it lives while its kernel does: "
        "run the cell again, then %mhjax panel brings it back"
    )
    page = format_cell_html(result, uid=f"{uid}-page", places=places)
    summary = f'<summary style="cursor:pointer;{QUIET}">what it showed</summary>'
    kept = f"<details>{summary}{page}</details>" if page else ""
    body = f'<div class="{uid}"><div style="{QUIET}">{escape(line, quote=False)}</div>{kept}</div>'
    text = format_cell_text(result, places=places)
    return {"text/html": wrap(body, css=_CSS.format(uid=uid)), "text/plain": f"{line}\n{text}".rstrip()}
