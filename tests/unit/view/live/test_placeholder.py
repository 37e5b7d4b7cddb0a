"""What a notebook contains of a cell that never finished."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mhnb.core.output.results import CellResult
from mhnb.types import Output
from mhnb.view.html import RankLocations
from mhnb.view.live.placeholder import format_widget_text, shows_all
from mhnb.view.live.view import CellView
from tests.support.view_samples import RecordingScreen, StrictPage, cell, failed, out
from tests.unit.view.reports.test_hang import HANG

LOGS = RankLocations(logs={0: "/logs/rank0.log", 1: "/logs/rank1.log"})


def running(wall_s: float, *said: str) -> CellResult:
    """Return a cell that runs on two ranks."""
    return cell(*[[out(text)] if text else [] for text in said or ("step 1\n", "step 1\n")], done=False, wall_s=wall_s)


def show(*snapshots: CellResult, screen: RecordingScreen | None = None) -> RecordingScreen:
    """Show the snapshots in a view, and return its screen."""
    screen = screen or RecordingScreen()
    view = CellView(screen=screen, uid="u", locations=LOGS)
    for snapshot in snapshots:
        view.update(snapshot)
    return screen


def placeholder_calls(screen: RecordingScreen, of: str = "u-placeholder") -> list[tuple[str, dict[str, str]]]:
    """Return the actions on the placeholder's display, or on the one below it."""
    return [(name, dict(data)) for name, data, display_id in screen.calls if display_id == of]


def test_widget_placeholder_says_where_the_output_is() -> None:
    """A file saved in the first seconds names the location of the output; without log files, none are mentioned."""
    said = format_widget_text(running(6.2), locations=LOGS)
    assert said.endswith(
        "saved while the cell ran; for all of its output: %mhjax show 12 (the kernel keeps its last 16 cells), "
        "or the log files in /logs"
    )
    assert format_widget_text(running(6.2)).endswith("(the kernel keeps its last 16 cells)")


def test_long_cell_has_a_placeholder_beside_its_widget() -> None:
    """The placeholder has the last lines once the buttons appear, in a form that needs no widget, and again if there is new output."""
    first, later = "".join(f"step {i}\n" for i in range(40)), "and more\n"
    early = [running(at / 10, first, first) for at in (2, 9, 10, 11, 19)]
    screen = show(*early, running(2.1, first + later, first), running(2.2, first + later, first))
    (made, begun), (renewed, data) = placeholder_calls(screen)
    assert (made, renewed) == ("show", "replace")
    for text in (StrictPage(begun["text/html"]).visible, begun["text/plain"]):
        assert "ranks 0-1 · running 1.0 s" in text
        assert "step 39" in text
        assert "saved while the cell ran" in text
        assert "/logs" in text
    assert "step 2\n" not in begun["text/html"]
    for text in (StrictPage(data["text/html"]).visible, data["text/plain"]):
        assert "ranks 0-1 · running 2.1 s" in text
        assert "and more" in text
    assert 'class="u-placeholder"' in data["text/html"]


def test_all_output_is_below_the_last_lines() -> None:
    """After a few seconds a second display has all output so far, collapsed, and hidden with the placeholder."""
    first, later = "".join(f"step {i}\n" for i in range(40)), "and more\n"
    screen = show(running(0.2), running(4.9, first), running(5.1, first), running(10.5, first + later, first))
    (made, data), (renewed, again) = placeholder_calls(screen, "u-placeholder-all")
    assert (made, renewed) == ("show", "replace")
    page = StrictPage(data["text/html"])
    assert page.unclosed == []
    assert page.visible == "all output so far, after 5.1 s"
    assert all(f"step {i}\n" in page.text for i in range(39))
    assert page.tags[0] == ("div", {"class": "u-placeholder"})
    assert data["text/plain"].startswith("all output so far, after 5.1 s\n")
    assert "step 0" in data["text/plain"]
    assert "and more" in again["text/plain"]


def test_styles_of_the_tabs_are_not_for_the_placeholder() -> None:
    """A style is for the whole page, so the tabs of all output have another class than the placeholder."""
    same = "".join(f"step {i}\n" for i in range(20))
    screen = show(running(0.2), running(6.0, same, same, same, f"{same}more\n"))
    ((_, data),) = placeholder_calls(screen, "u-placeholder-all")
    assert re.search(r"\.u-placeholder-all\b", data["text/html"])
    assert not re.search(r"\.u-placeholder(?!-all)\b", data["text/html"])


@pytest.mark.parametrize(
    ("said", "is_all"),
    [
        (("", ""), True),
        (("a\nb\nc\n", "a\nb\nc\n"), True),
        (("place 0\n", "place 1\n"), True),
        (("place 0\na\n", "place 1\na\n"), False),
        (("a\n" * 20, "a\n" * 20), False),
        (("a" * 2000, "a" * 2000), False),
    ],
)
def test_short_output_is_not_shown_twice(said: tuple[str, str], is_all: bool) -> None:  # noqa: FBT001  # a case's value
    """The second display is for output that the last lines do not show completely: of ranks that differ they show only one."""
    snapshot = running(6.0, *said)
    assert shows_all(snapshot) == is_all
    screen = show(running(0.2), snapshot)
    assert len(placeholder_calls(screen, "u-placeholder-all")) == (0 if is_all else 1)
    lines = [line for text in said for line in text.splitlines()]
    shown_text = StrictPage(placeholder_calls(screen)[-1][1]["text/html"]).text
    assert (all(line in shown_text or line.startswith("place") for line in lines)) or not is_all


def test_rank_that_is_ahead_is_not_an_outlier() -> None:
    """A rank that is a line ahead is not an outlier, because at any moment one rank has printed more than another."""
    screen = show(running(0.2), running(6.0, "a\nb\n", "a\n"))
    for _, data in (*placeholder_calls(screen), *placeholder_calls(screen, "u-placeholder-all")):
        assert "differ" not in data["text/html"] + data["text/plain"]
        assert "≠" not in data["text/html"] + data["text/plain"]


@pytest.mark.slow
def test_placeholder_is_renewed_only_for_new_output() -> None:
    """The clock alone does not renew the placeholder, and renewals of all output become rarer the longer a cell runs."""
    screen = show(running(0.2), *[running(5 + at / 10) for at in range(600)])
    assert len(placeholder_calls(screen)) == 1
    text = [("".join(f"{line}\n" for line in range(at)),) * 2 for at in range(1, 300)]
    screen = show(running(0.2), *[running(5.0 + at, *said) for at, said in enumerate(text)])
    assert len(placeholder_calls(screen)) == 299
    assert 30 < len(placeholder_calls(screen, "u-placeholder-all")) < 45


@pytest.mark.parametrize("interval_s", [0.1, 0.3, 0.6, 1.0])
def test_placeholder_is_one_second_old_at_most(interval_s: float) -> None:
    """However often the ranks' output causes snapshots, each line is in the placeholder a second later."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u", locations=LOGS)
    view.update(running(0.2))
    said = ""
    for at in range(40):
        now = 1 + at * interval_s
        said += f"line {at} at {now:.3f}\n"
        view.update(running(now, said, said))
        newest = placeholder_calls(screen)[-1][1]["text/plain"].rpartition(" at ")[2].split()[0]
        assert now - float(newest) <= 0.6


def test_end_of_cell_empties_the_placeholder_before_the_widget_closes() -> None:
    """The emptied placeholder has neither height nor text in the saved file."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u", locations=LOGS)
    view.update(running(0.2))
    view.update(running(6.0))
    view.finish(cell([out("step 1\n")], [out("step 1\n")], wall_s=7.0))
    assert [(name, display_id) for name, _, display_id in screen.calls] == [
        ("open", "u"), ("show", "u-placeholder"), ("replace", "u-placeholder"), ("replace", "u"),
    ]  # fmt: skip
    assert placeholder_calls(screen)[-1][1] == {"text/html": "", "text/plain": ""}


def test_placeholder_is_emptied_without_a_result() -> None:
    """After an exception in the notebook itself, the last snapshot replaces the widget, once."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u", locations=LOGS)
    view.update(running(0.2))
    view.update(running(6.0))
    view.__exit__(RuntimeError, RuntimeError("x"), None)
    assert [name for name, _ in placeholder_calls(screen)] == ["show", "replace"]
    assert screen.calls[-1][0] == "replace"
    assert screen.calls[-1][2] == "u"


def test_silent_cell_has_a_placeholder_once() -> None:
    """The placeholder is all that a file has of a silent cell, because a file contains no widget."""
    screen = show(running(0.2, "", ""), running(1.1, "", ""), running(60.0, "", ""), running(90.0, "", ""))
    ((_, data),) = placeholder_calls(screen)
    assert "ranks 0-1 · running 1.1 s" in StrictPage(data["text/html"]).visible
    late = show(running(0.2, "", ""), running(60.0, "", ""), running(90.0, "", ""))
    assert len(placeholder_calls(late)) == 1


def test_placeholder_hides_the_error_of_a_missing_widget() -> None:
    """Every placeholder hides the error that JupyterLab would otherwise show above it permanently."""
    for _, data in placeholder_calls(show(running(0.2), running(1.0), running(6.0))):
        assert ":has(+.jp-OutputArea-child .u-placeholder){display:none}" in data["text/html"]


def test_placeholder_of_a_silent_cell_has_its_hang_report() -> None:
    """The placeholder of a silent cell has its hang report, so that a user who restarts the kernel finds the reason."""
    screen = show(running(0.2, "", ""), running(1.0, "", ""), replace(running(9.0, "", ""), where=HANG))
    _, (_, data) = placeholder_calls(screen)
    assert "missing       · rank 2 in sleep" in data["text/plain"]
    assert "waiting 6.2 s" in StrictPage(data["text/html"]).visible


def test_placeholder_of_a_hang_is_not_renewed_each_second() -> None:
    """The times in its hang report alone change it only now and then."""
    hanging = [replace(running(float(at), "", ""), where=HANG) for at in range(9, 69)]
    screen = show(running(0.2, "", ""), running(1.0, "", ""), *hanging)
    assert len(placeholder_calls(screen)) == 1 + 60 // 5


def test_placeholder_shows_a_failed_rank() -> None:
    """A failed rank is shown although others still run."""
    others = running(6.0)
    screen = show(running(0.2), replace(others, ranks=(others.ranks[0], replace(failed(1), rank=1))))
    ((_, data),) = placeholder_calls(screen)
    assert "ValueError" in StrictPage(data["text/html"]).visible
    assert "ValueError" in data["text/plain"]


@pytest.mark.slow
def test_placeholder_of_long_output_has_beginning_and_end() -> None:
    """The placeholder has a limit, because the thread that waits for the ranks builds it."""
    much: list[Output] = [out("".join(f"line {i}\n" for i in range(200_000)))]
    snapshot = cell(*[much] * 8, done=False, wall_s=6.0)
    screen = show(replace(snapshot, wall_s=0.2), snapshot)
    ((_, data),) = placeholder_calls(screen, "u-placeholder-all")
    assert len(data["text/html"]) < 200_000
    assert "line 0\n" in data["text/html"]
    assert "line 199999" in data["text/html"]
    assert "left out" in data["text/html"]


def test_widget_that_cannot_hide_a_placeholder_has_none() -> None:
    """Without a widget that can hide it there is no placeholder, because the output would be shown twice."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u", locations=LOGS)
    view.update(running(0.2))
    screen.boxes[0].hides_placeholder = False
    view.update(running(6.0))
    assert placeholder_calls(screen) == []
