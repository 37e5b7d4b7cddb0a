"""The look of all views: sizes of text and colours of states are in one style sheet, and are readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mhnb import view
from mhnb.view.html import DIFFERS_TINT, LOOK_CSS, QUIET_STYLE, STATE_COLORS
from tests.support.axe import contrast

_FOLDER = Path(view.__file__).parent
_OTHER_RULES = {
    "sanitize.py": "the names of what users may style",
    "ansi.py": "the bold of users' own text",
}
_DATA_COLORS = {"drawings": "series of charts and of traces, which are no states"}
_THEMES = {
    "light": ((255, 255, 255), (33, 33, 33), "#d32f2f", (245, 245, 245)),
    "dark": ((17, 17, 17), (255, 255, 255), "#f44336", (33, 33, 33)),
}
"""JupyterLab's paper, ink, error colour, and stripe of tables."""


def _list_sources() -> Iterator[tuple[str, str]]:
    for path in sorted([*_FOLDER.rglob("*.py"), *_FOLDER.rglob("*.css")]):
        yield path.relative_to(_FOLDER).as_posix(), path.read_text(encoding="utf-8").replace(LOOK_CSS, "")


def test_text_has_three_sizes_and_two_weights() -> None:
    """No view sets a size or a weight of text other than by the names of the style sheet."""
    found = [
        (name, value.strip())
        for name, source in _list_sources()
        if name not in _OTHER_RULES
        for value in re.findall(r"font(?:-size|-weight)?:([^;}\"]+)", source)
        if not re.fullmatch(r"\s*(var\(--mhnb-(title|body|quiet|strong|plain)\)|inherit|normal|bold)\s*", value)
    ]
    assert found == []
    sizes = re.findall(r"font-size:([^;}]+)", LOOK_CSS)
    assert set(sizes) == {"var(--mhnb-title)", "var(--mhnb-body)", "var(--mhnb-quiet)", "inherit"}


def test_colours_of_states_are_in_one_place() -> None:
    """No other file spells the colour of a state, so that no state can have two."""
    spelled = {
        (name, color)
        for name, source in _list_sources()
        if name != "html.py" and name.partition("/")[0] not in _DATA_COLORS
        # What stands in for a colour of the page is no state.
        for color in re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--jp-[^)]*\)", "", source))
        if color in STATE_COLORS.values()
    }
    assert spelled == set()
    assert len(set(STATE_COLORS.values())) == len(STATE_COLORS)


@pytest.mark.parametrize("theme", _THEMES)
def test_text_is_readable_in_both_themes(theme: str) -> None:
    """Errors, ticks, quiet text and words that differ have a contrast of 4.5 to 1, quiet text also on a table's stripe."""
    paper, ink, error, stripe = _THEMES[theme]
    quiet = float(QUIET_STYLE.partition(":")[2])
    tint = [float(number) for number in re.findall(r"[\d.]+", DIFFERS_TINT)]
    tinted = _mix(tint[:3], paper, tint[3])
    shown = {
        "error": contrast(_read(error), paper),
        "tick": contrast(_mix(_read(STATE_COLORS["ended"]), ink, 0.7), paper),
        "quiet": contrast(_mix(ink, paper, quiet), paper),
        "quiet on a stripe": contrast(_mix(ink, stripe, quiet), stripe),
        "differs": contrast(ink, tinted),
    }
    assert {name: ratio for name, ratio in shown.items() if ratio < 4.5} == {}


@pytest.mark.parametrize(("error", "paper"), [("#c62828", (255, 255, 255)), ("#f48771", (31, 31, 31))])
def test_error_is_readable_without_a_theme(error: str, paper: Sequence[float]) -> None:
    """Pages without JupyterLab's variables, and VS Code's dark ones, have a red of their own."""
    assert error in LOOK_CSS
    assert contrast(_read(error), paper) >= 4.5


def _read(color: str) -> list[float]:
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def _mix(over: Sequence[float], under: Sequence[float], share: float) -> list[float]:
    return [share * one + (1 - share) * other for one, other in zip(over, under, strict=True)]
