"""The table of `%mhjax check`: for each array of a name, whether the ranks hold the same, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.guard.check import CheckRow
from mhnb.view.mime import format_pre
from mhnb.view.style import wrap_html

__all__ = ["format_check_html", "format_check_text"]


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
