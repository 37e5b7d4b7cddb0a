"""Draw bars of memory, code to copy, and arrays below devices."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.view.html import STATE_COLORS
from mhnb.view.mime import format_pre

_BAR_COLOR = STATE_COLORS["running"]
_CELL_STYLE = "text-align:left;border:0;background:none;padding:1px 10px 1px 0"
_COPY_SCRIPT = (
    "getSelection().selectAllChildren(this.nextElementSibling);"
    "this.textContent=document.execCommand('copy')?'Copied':'Press Ctrl+C'"
)
COPY_CSS = (
    # Without its script, in a notebook that is not trusted, the button is not shown.
    ".mhnb .mhnb-copy{display:none}.mhnb .mhnb-copy[onclick]{display:inline-block;font:inherit;font-size:var(--mhnb-quiet);color:inherit;"
    "min-height:24px;padding:1px 8px;border:1px solid #8c8c8c;border-radius:2px;background:none;cursor:pointer}"
)
"""The style sheet of `draw_code`."""


def draw_bars(rows: Sequence[tuple[str, float, str]], *, is_over: bool) -> str:
    """Draw bars, each with a name, its share and words.

    Args:
        rows: the bars; the last is the sum of the others.
        is_over: whether the sum is too large.
    """
    colors = [*[_BAR_COLOR] * (len(rows) - 1), STATE_COLORS["failed"] if is_over else _BAR_COLOR]
    bars = "".join(_draw_bar(*row, color) for row, color in zip(rows, colors, strict=True))
    return f'<table style="border-collapse:collapse;margin:2px 0">{bars}</table>'


def _draw_bar(name: str, share: float, words: str, color: str) -> str:
    bar = f"width:{100 * share:.1f}%;min-width:1px;height:.8em;background:{color}"
    track = "width:14em;max-width:40vw;background:rgba(128,128,128,.2)"
    return (
        f'<tr style="background:none"><th scope="row" style="{_CELL_STYLE};font-weight:var(--mhnb-plain);font-family:monospace">'
        f'{escape(name)}</th><td style="{_CELL_STYLE}"><div style="{track}"><div style="{bar}"></div></div></td>'
        f'<td style="{_CELL_STYLE};white-space:nowrap">{escape(words)}</td></tr>'
    )


def draw_code(code: str) -> str:
    """Draw code below a button that copies it."""
    button = f'<button type="button" class="mhnb-copy" onclick="{_COPY_SCRIPT}">Copy</button>'
    return f"<b>Code</b> {button}{format_pre(code)}"


def draw_with_tips(html: str, *, is_map: bool = False) -> str:
    """Draw tiles, or a map of devices, above a place for words."""
    inner = f'<div class="lay" style="overflow-x:auto">{html}</div>' if is_map else html
    return f'<div class="tips">{inner}</div>'


def draw_beside(uid: str, devices: str, arrays: Sequence[str]) -> str:
    """Draw devices above arrays, linked inside an element of the class `uid`."""
    tables = "".join(f"<div>{array}</div>" for array in arrays)
    return f'<div class="{uid}">{devices}<div style="display:flex;flex-wrap:wrap;gap:0 32px">{tables}</div></div>'
