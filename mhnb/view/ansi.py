r"""Convert terminal colours to HTML.

`core` has already resolved what `\r` and `\b` overwrite.
Colours become JupyterLab's own classes (`ansi-red-fg`), so that each theme can style them.
Written here because existing converters take a second or more to import (nbconvert, prompt_toolkit) or do not use these classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|$)|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]|$)")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")

_Color: TypeAlias = int | tuple[int, int, int] | None
"""A colour: 0-7 normal, 8-15 intense, or red, green and blue."""


@dataclass(frozen=True, slots=True)
class _Style:
    """The style of the next character."""

    fg: _Color = None
    bg: _Color = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False


_DEFAULT_STYLE = _Style()
_STYLE_CODES: dict[int, dict[str, bool]] = {
    1: {"bold": True}, 2: {"dim": True}, 3: {"italic": True}, 4: {"underline": True}, 7: {"inverse": True},
    22: {"bold": False, "dim": False}, 23: {"italic": False}, 24: {"underline": False}, 27: {"inverse": False},
}  # fmt: skip


def strip_ansi(text: str) -> str:
    r"""Remove every escape sequence.

    >>> strip_ansi("\x1b[31mred\x1b[0m")
    'red'
    """
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def ansi_to_html(text: str) -> str:
    r"""Escape text for HTML and turn its colours into spans.

    >>> ansi_to_html("a < \x1b[31mb\x1b[0m")
    'a &lt; <span class="ansi-red-fg">b</span>'
    """
    if "\x1b" not in text:
        return escape(text, quote=False)
    style, start = _DEFAULT_STYLE, 0
    runs: list[tuple[_Style, str]] = []
    for match in _ESCAPE.finditer(text):
        runs.append((style, text[start : match.start()]))
        start = match.end()
        if match[0].startswith("\x1b[") and match[0].endswith("m"):
            style = _apply(style, match[0][2:-1])
    runs.append((style, text[start:]))
    # IPython ends and begins a style at each token; one span for all of them is much smaller.
    return "".join(
        _format_span(style, "".join(text for _, text in same))
        for style, same in groupby((run for run in runs if run[1]), key=itemgetter(0))
    )


def _apply(style: _Style, parameters: str) -> _Style:
    codes = [int(code) if code.isdecimal() else 0 for code in parameters.replace(":", ";").split(";")]
    while codes:
        code = codes.pop(0)
        if code in (38, 48):
            color, codes = _parse_extended(codes)
            style = replace(style, fg=color) if code == 38 else replace(style, bg=color)
        else:
            style = _apply_one(style, code)
    return style


def _apply_one(style: _Style, code: int) -> _Style:
    if code == 0:
        return _DEFAULT_STYLE
    if code in _STYLE_CODES:
        return replace(style, **_STYLE_CODES[code])
    tens, ones = divmod(code, 10)
    if tens in (3, 9) and (ones < 8 or code == 39):
        return replace(style, fg=None if ones == 9 else ones + (8 if tens == 9 else 0))
    if tens in (4, 10) and (ones < 8 or code == 49):
        return replace(style, bg=None if ones == 9 else ones + (8 if tens == 10 else 0))
    return style


def _parse_extended(codes: list[int]) -> tuple[_Color, list[int]]:
    """Parse the rest of `38;5;N` or `38;2;R;G;B`."""
    if codes[:1] == [5] and len(codes) >= 2:
        return _palette(codes[1]), codes[2:]
    if codes[:1] == [2] and len(codes) >= 4:
        red, green, blue = (min(255, value) for value in codes[1:4])
        return (red, green, blue), codes[4:]
    return None, []


def _palette(index: int) -> _Color:
    """Return one of xterm's 256 colours: 16 named, 216 cube, 24 grey."""
    if index < 16:
        return index
    if index >= 232:
        grey = min(255, (index - 232) * 10 + 8)
        return grey, grey, grey
    red, green, blue = (index - 16) // 36, (index - 16) // 6 % 6, (index - 16) % 6
    return _cube_level(red), _cube_level(green), _cube_level(blue)


def _cube_level(step: int) -> int:
    return 55 + 40 * step if step else 0


def _format_span(style: _Style, text: str) -> str:
    if not text or style == _DEFAULT_STYLE:
        return escape(text, quote=False)
    classes, styles = _format_style(style)
    named = f' class="{" ".join(classes)}"' if classes else ""
    styled = f' style="{";".join(styles)}"' if styles else ""
    return f"<span{named}{styled}>{escape(text, quote=False)}</span>"


def _format_style(pen: _Style) -> tuple[list[str], list[str]]:
    fg, bg = (pen.bg, pen.fg) if pen.inverse else (pen.fg, pen.bg)
    if pen.bold and isinstance(fg, int) and fg < 8:
        fg += 8  # as JupyterLab does
    classes, styles = [], []
    for color, side, style in ((fg, "fg", "color"), (bg, "bg", "background-color")):
        if isinstance(color, int):
            classes.append(f"ansi-{_NAMES[color % 8]}{'-intense' if color >= 8 else ''}-{side}")
        elif color is not None:
            styles.append(f"{style}:rgb({color[0]},{color[1]},{color[2]})")
        elif pen.inverse:
            classes.append(f"ansi-default-inverse-{side}")
    styles += [style for on, style in _inline_styles(pen) if on]
    return classes, styles


def _inline_styles(style: _Style) -> tuple[tuple[bool, str], ...]:
    return (
        (style.bold, "font-weight:bold"),
        (style.dim, "opacity:.7"),
        (style.italic, "font-style:italic"),
        (style.underline, "text-decoration:underline"),
    )
