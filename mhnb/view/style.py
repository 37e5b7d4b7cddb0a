"""The few looks that the HTML views share, and what each may use.

An untrusted notebook loses `<style>`, `name`, `role` and `aria-*`; inline styles stay, but not `var()`.
So inline styles carry what must survive and take no colour that only one theme can show;
`<style>` adds tabs and polish.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mhnb.view.words import Places

__all__ = ["ANSI_CSS", "QUIET", "RED", "TABS_CSS", "host_color", "wrap"]

QUIET = "opacity:.65"
RED = "#e0504a"
"""Reads on white and on black."""

_HOST_COLORS = ("#3f7fd0", "#d9822b", "#2f9e7a", "#c45fa4", "#8f6fd1", "#a3913b", "#3aa3c2", "#b3664a")
_SEVERAL = "#8c8c8c"
_DIGITS = re.compile(r"(\d+)$")

_CSS = ".mhnb pre{font-family:var(--jp-code-font-family,monospace)!important}.mhnb summary::marker{color:#8c8c8c}"
ANSI_CSS = "".join(
    f".mhnb .ansi-{name}-fg{{color:{value}}}.mhnb .ansi-{name}-intense-fg{{color:{value};font-weight:bold}}"
    for name, value in (
        ("red", "#d9534f"), ("green", "#2f9e5a"), ("yellow", "#b8860b"),
        ("blue", "#4a86d8"), ("magenta", "#b565b5"), ("cyan", "#2b9bab"),
    )
)  # fmt: skip
"""For pages that do not know JupyterLab's classes; its own rules are more specific and win."""

TABS_CSS = (
    "@supports selector(::details-content){{"
    ".{uid}{{display:flex;flex-wrap:wrap;gap:0 2px}}"
    ".{uid}>details{{display:contents}}"
    ".{uid}>details::details-content{{order:1;width:100%}}"
    ".{uid}>details>summary{{list-style:none;padding:2px 10px;border-bottom:2px solid transparent;opacity:.7}}"
    ".{uid}>details>summary::-webkit-details-marker{{display:none}}"
    ".{uid}>details[open]>summary{{border-bottom-color:var(--jp-brand-color1,#3f7fd0);opacity:1;pointer-events:none}}"
    ".{uid}>details>div{{border:0!important;padding-left:0!important;margin-left:0!important}}"
    "}}"
)
"""Turns the `<details>` inside `uid` into tabs. Without it they are a list that opens and closes."""


def host_color(places: Places, ranks: Sequence[int]) -> str:
    """The colour of the host that holds all of `ranks`; grey for several or none known."""
    host = places.host_of(ranks)
    if host is None:
        return _SEVERAL
    digits = _DIGITS.search(host)
    place = int(digits[1]) if digits else sum(map(ord, host))
    return _HOST_COLORS[place % len(_HOST_COLORS)]


def wrap(body: str, *, css: str = "") -> str:
    """Put a view's HTML into its frame, with the style sheet that it needs."""
    ansi = ANSI_CSS if "ansi-" in body else ""
    return f'<div class="mhnb"><style>{_CSS}{ansi}{css}</style>{body}</div>'
