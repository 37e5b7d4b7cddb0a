"""Styles that the HTML views share, and what each may contain.

An untrusted notebook loses `<style>`, `name`, `role` and `aria-*`. Inline styles stay, but not `var()`.
So inline styles carry everything that is essential, and use no colour that only one theme can show.
`<style>` adds tabs and polish.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mhnb.view.words import RankLocations

__all__ = [
    "ANSI_CSS",
    "CHANGED_STYLE",
    "FAILED_COLOR",
    "GRID_CELL_STYLE",
    "GRID_STYLE",
    "QUIET_STYLE",
    "TABS_CSS",
    "host_color",
    "wrap_html",
]

QUIET_STYLE = "opacity:.65"
FAILED_COLOR = "#d55e00"
"""Colour of a line beside what failed, never of text, which would not be readable on both white and black."""
CHANGED_STYLE = "background-color:rgba(230,159,0,.25);text-decoration:underline;text-underline-offset:2px"
"""Style of a word that differs; underlined too, for users who do not see the colour."""
GRID_STYLE = "display:grid;grid-template-columns:repeat(auto-fill,minmax(14em,1fr));gap:6px;margin-top:3px"
GRID_CELL_STYLE = "border:1px solid rgba(128,128,128,.45);padding:3px 6px;min-width:0"

_HOST_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7f7fd5")
"""The colours of Okabe and Ito, which colour-blind users can distinguish. The host's name is shown beside them."""
_GREY = "#8c8c8c"
_DIGITS = re.compile(r"(\d+)$")

_CSS = (
    ".mhnb pre{font-family:var(--jp-code-font-family,monospace)!important}.mhnb summary::marker{color:#8c8c8c}"
    ".mhnb .mhnb-bad{color:var(--jp-error-color1,#c62828)}.vscode-dark .mhnb-bad{color:#f48771}"
    ".mhnb summary:focus-visible,.mhnb [tabindex]:focus-visible,.mhnb button:focus-visible"
    "{outline:2px solid var(--jp-brand-color1,#0072b2)!important;outline-offset:1px}"
)
ANSI_CSS = "".join(
    f".mhnb .ansi-{name}-fg{{color:{value}}}.mhnb .ansi-{name}-intense-fg{{color:{value};font-weight:bold}}"
    for name, value in (
        ("red", "#d9534f"), ("green", "#2f9e5a"), ("yellow", "#b8860b"),
        ("blue", "#4a86d8"), ("magenta", "#b565b5"), ("cyan", "#2b9bab"),
    )
)  # fmt: skip
"""For pages that do not have JupyterLab's classes; JupyterLab's own rules are more specific and take precedence."""

REPEATED_LINES_CSS = (
    ".mhnb .mhnb-run th,.mhnb .mhnb-run td{padding:0 .7em 0 0;border:0;background:none;text-align:right;font-weight:normal;"
    "vertical-align:top}.mhnb .mhnb-run th{opacity:.75}"
)
"""For tables of many cells, which would otherwise store the same style in each cell."""

TABS_CSS = (
    "@supports selector(::details-content){{"
    ".{uid}{{display:flex;flex-wrap:wrap;gap:0 2px}}"
    ".{uid}>details{{display:contents}}"
    ".{uid}>details::details-content{{order:1;width:100%}}"
    ".{uid}>details>summary{{list-style:none;padding:2px 10px;border-bottom:2px solid transparent}}"
    ".{uid}>details>summary::-webkit-details-marker{{display:none}}"
    ".{uid}>details[open]>summary{{border-bottom-color:var(--jp-brand-color1,#0072b2);font-weight:bold;pointer-events:none}}"
    ".{uid}>details>div{{border:0!important;padding-left:0!important;margin-left:0!important}}"
    # In forced-colors mode transparent borders are drawn, so every tab would look open.
    "@media (forced-colors:active){{.{uid}>details:not([open])>summary{{border-bottom-color:Canvas}}}}"
    "}}"
)
"""Turns the `<details>` inside `uid` into tabs. Without it they are a list of items that open and close."""


def host_color(locations: RankLocations, ranks: Sequence[int]) -> str:
    """Return the colour of the host that holds all of `ranks`; grey for several hosts or an unknown one."""
    host = locations.host_of(ranks)
    if host is None:
        return _GREY
    digits = _DIGITS.search(host)
    index = int(digits[1]) if digits else sum(map(ord, host))
    return _HOST_COLORS[index % len(_HOST_COLORS)]


def wrap_html(body: str, *, css: str = "") -> str:
    """Wrap a view's HTML in its outer element, with the style sheet that it needs."""
    ansi = ANSI_CSS if "ansi-" in body else ""
    repeated = REPEATED_LINES_CSS if "mhnb-run" in body else ""
    return f'<div class="mhnb"><style>{_CSS}{ansi}{repeated}{css}</style>{body}</div>'
