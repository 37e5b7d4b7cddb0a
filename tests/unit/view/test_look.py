"""The look of all views: sizes of text and colours of states are in one style sheet, and are readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import cbrt, dist
from pathlib import Path

import pytest

from mhnb import view
from mhnb.view.html import DIFFERS_TINT, HOST_COLORS, LOOK_CSS, QUIET_STYLE, STATE_COLORS
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


_SIGHT = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
}
"""What is seen of linear red, green and blue, as Machado et al. (2009) have measured."""


@pytest.mark.parametrize("sight", _SIGHT)
def test_colours_of_hosts_differ(sight: str) -> None:
    """Each two hosts differ, also for colour-blind users, by about as much as blue and purple of the same lightness."""
    near = [pair for pair in combinations(HOST_COLORS, 2) if dist(*(_perceive(color, sight) for color in pair)) < 0.1]
    assert near == []


def test_colour_of_a_host_is_not_that_of_a_state() -> None:
    """Users take no host for a failed one or one that has ended, and a bar is seen in both themes."""
    states = {name: _perceive(color, "normal") for name, color in STATE_COLORS.items()}
    for color in HOST_COLORS:
        assert [name for name, state in states.items() if dist(_perceive(color, "normal"), state) < 0.1] == []
        assert all(contrast(_read(color), paper) >= 3 for paper, *_ in _THEMES.values())


def _perceive(color: str, sight: str) -> tuple[float, ...]:
    """Return a colour in OKLab (Ottosson, 2020), where distances are those that are seen."""
    linear = [((value / 255 + 0.055) / 1.055) ** 2.4 for value in _read(color)]
    seen = [max(0.0, value) for value in _apply(_SIGHT[sight], linear)]
    cones = _apply(((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300)), seen)
    lab = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
    return tuple(_apply(lab, [cbrt(value) for value in cones]))


def _apply(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(one * other for one, other in zip(row, vector, strict=True)) for row in matrix]


def _read(color: str) -> list[float]:
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def _mix(over: Sequence[float], under: Sequence[float], share: float) -> list[float]:
    return [share * one + (1 - share) * other for one, other in zip(over, under, strict=True)]
