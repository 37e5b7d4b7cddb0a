"""The summary of a traced cell with its picture, and how its timeline is opened."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest
from msgspec import structs

from mhnb.core.trace import STATES, CollectiveTimes, RankTimes, TraceReport
from mhnb.view.drawings.timeline import FILLS
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.trace import build_trace, format_open_text, format_trace_page


def row(rank: int, **fields: object) -> RankTimes:
    """Make a rank that computed half of the time."""
    states = (None, *["compute"] * 120, *["communication"] * 60, *["waiting"] * 30, *["host"] * 29)
    return RankTimes(rank, 2.0, 1.0, 0.5, 0.3, 0.2, **({"states": states} | fields))  # type: ignore[arg-type]


REDUCE = CollectiveTimes("all-reduce f32[8] over x", "In [3], line 2", 20, 0.8, 0.3, "rank 2 (90%)")
REPORT = TraceReport(
    3, "In [7]", "/runs/trace", "/runs/trace/cell3.timeline.json.gz", (row(0), row(1)), (REDUCE,), 2.01, ("a note",)
)


def picture_of(html: str) -> str:
    """Return the picture in a page."""
    found = re.search(r"data:image/svg\+xml;base64,([^\"]+)", html)
    assert found is not None
    return base64.b64decode(found[1]).decode()


def test_text_has_a_bar_and_the_sums_of_each_rank() -> None:
    """The heading, a legend, a bar per rank, the table, the collectives, the notes, and where the timeline is."""
    assert print_text(build_trace(REPORT)).splitlines() == [
        "In [7] · trace of ranks 0-1 · 2.0 s",
        "█ compute   ▒ communication   ░ waiting   · host",
        f"rank 0 {'█' * 30}{'▒' * 15}{'░' * 8}{'·' * 7}",
        f"rank 1 {'█' * 30}{'▒' * 15}{'░' * 8}{'·' * 7}",
        "rank      compute  communication       waiting          host  total",
        "   0  1.0 s (50%)   0.50 s (25%)  0.30 s (15%)  0.20 s (10%)  2.0 s",
        "   1  1.0 s (50%)   0.50 s (25%)  0.30 s (15%)  0.20 s (10%)  2.0 s",
        "collective                line            runs    time  waiting  last",
        "all-reduce f32[8] over x  In [3], line 2    20  0.80 s   0.30 s  rank 2 (90%)",
        "a note",
        "timeline: /runs/trace/cell3.timeline.json.gz",
        "%mhjax trace open says how to look at it",
    ]


def test_html_has_a_picture_with_words_for_it() -> None:
    """The picture is an image with a text; its colors are in the legend; the table beside it has the sums."""
    html = print_html(build_trace(REPORT))
    assert re.search(r'<img alt="What each rank did in In \[7\], 2.0 s:[^"]+"', html)
    picture = picture_of(html)
    ET.fromstring(picture)  # noqa: S314 - our own
    for state in STATES[:-1]:
        assert FILLS[state] in picture
        assert f"background-color:{FILLS[state]}" in html
        assert f">{state}</span>" in html
    assert "<svg" not in html


def test_time_that_was_not_recorded_has_a_column() -> None:
    """Only if there is some."""
    some = RankTimes(1, 2.0, 1.0, 0.5, 0.3, 0.1, 0.1, states=("compute", "not recorded"))
    report = TraceReport(3, "In [7]", "", "", (row(0), some), (), 2.0)
    text, html = print_text(build_trace(report)), print_html(build_trace(report))
    assert "· host   ? not recorded" in text
    assert f"rank 1 {'█' * 30}{'?' * 30}" in text
    assert re.search(r"0 ms \(0%\) +2.0 s\n.* 0.10 s \(5%\) +0.10 s \(5%\) +2.0 s$", text)
    assert 'fill="none"' in picture_of(html)
    assert picture_of(html).count('fill="url(#waiting)"') == 1
    assert "not recorded" not in print_text(build_trace(REPORT)) + print_html(build_trace(REPORT))


def test_names_are_escaped() -> None:
    """Names of cells, collectives and files are the user's."""
    evil = "<script>alert(1)</script>"
    collective = CollectiveTimes(evil, evil, 1, 0.1, 0.0, "")
    html = print_html(build_trace(TraceReport(1, evil, evil, evil, (row(0),), (collective,), 1.0, (evil,))))
    assert "<script>" not in html
    assert "<script>" not in picture_of(html)


def test_rank_without_a_trace_is_in_the_table() -> None:
    """It has no bar, and the table says that it was not traced."""
    gone = RankTimes(1, 0.0, 0.0, 0.0, 0.0, 0.0, problem="it died")
    report = TraceReport(3, "In [7]", "", "", (row(0), gone), (), 2.0)
    text = print_text(build_trace(report))
    assert "rank 1 " not in text
    assert text.splitlines()[-1].split() == ["1", "not", "traced"]
    assert "timeline" not in text


def test_trace_that_could_not_be_written_says_why() -> None:
    """Without ranks there is only the reason."""
    report = TraceReport(3, "In [7]", "/full", "", notes=("the trace could not be written: [Errno 28] No space left",))
    assert print_text(build_trace(report)).splitlines() == ["In [7] · no trace", report.notes[0]]


def test_many_ranks_and_collectives_are_summed_up() -> None:
    """The picture has 32 ranks, and the table the longest collectives and a row for the others."""
    collectives = tuple(CollectiveTimes(f"all-reduce f32[{n}]", "", 2, 0.1, 0.01, "") for n in range(30))
    report = TraceReport(3, "In [7]", "", "", tuple(map(row, range(64))), collectives, 2.0)
    html, text = print_html(build_trace(report)), print_text(build_trace(report))
    assert picture_of(html).count("<text") == 32 + 2
    assert "32 other ranks are in the table and in the timeline" in html
    assert re.search(r"22 other collectives +44 +2.2 s   0.22 s", text)
    assert len(re.findall(r"(?m)^ +\d+  1.0 s", text)) == 64


def test_a_rank_that_is_unlike_the_others_is_drawn() -> None:
    """Of 64 ranks 32 are drawn, among them the one that computed longer."""
    ranks = (*map(row, range(60)), structs.replace(row(60), compute_s=1.2, waiting_s=0.1), *map(row, range(61, 64)))
    text = print_text(build_trace(TraceReport(3, "In [7]", "", "", ranks, (), 2.0)))
    assert re.search(r"(?m)^rank +60\b", text)
    assert not re.search(r"(?m)^rank +61\b", text)


@pytest.mark.parametrize("has_xprof", [True, False])
def test_way_to_open_works_without_a_network(has_xprof: bool) -> None:  # noqa: FBT001
    """The page, the file for Perfetto, and XProf with its command."""
    text = format_open_text(REPORT, "/runs/cell3.timeline.html", has_xprof=has_xprof)
    assert "/runs/trace/cell3.timeline.json.gz" in text
    assert "without a network: /runs/cell3.timeline.html" in text
    assert "xprof --logdir /runs/trace" in text
    assert ("pip install xprof" in text) is not has_xprof


def test_page_has_all_that_it_needs() -> None:
    """The page loads nothing, and a name cannot end its script."""
    evil = TraceReport(1, "</script><b>", "", "", (row(0),))
    page = format_trace_page(evil, b"packed")
    assert "src=" not in page
    assert "http" not in page
    assert "@TITLE@" not in page
    assert "@DATA@" not in page
    assert page.count("</script>") == 3
    assert base64.b64encode(b"packed").decode() in page
