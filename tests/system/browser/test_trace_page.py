"""The page that shows a timeline, in a browser: tracks, search, details and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mhnb.core.trace import TraceReport
from mhnb.system.trace import write_timeline
from mhnb.view.reports.trace import format_trace_page
from tests.support.lab import open_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": rank + 1, "tid": 0, "args": {"name": f"rank {rank} (host{rank})"}}
    for rank in range(2)
] + [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "cell"}},
    {"ph": "X", "name": "In [3]", "pid": 1, "tid": 1, "ts": 0.0, "dur": 9000.0},
    {"ph": "M", "name": "thread_name", "pid": 2, "tid": 100, "args": {"name": "device 0 collectives"}},
    {"ph": "X", "name": "all-reduce f32[8] over x", "pid": 2, "tid": 100, "ts": 100.0, "dur": 500.0, "args": {"line": "<b>"}},
    {"ph": "X", "name": "waits for rank 0", "pid": 2, "tid": 100, "ts": 100.0, "dur": 300.0},
    {"ph": "X", "name": "all-reduce f32[8] over x", "pid": 2, "tid": 100, "ts": 5000.0, "dur": 500.0},
]  # fmt: skip


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """The page of a timeline of two ranks, opened as a file and without a network."""
    write_timeline(tmp_path / "t.json.gz", EVENTS)
    report = TraceReport(3, "In [3]", "", "")
    text = format_trace_page(report, (tmp_path / "t.json.gz").read_bytes())
    (tmp_path / "t.html").write_text(text)
    with open_chromium() as browser:
        context = browser.new_context(offline=True)
        opened = context.new_page()
        opened.goto((tmp_path / "t.html").as_uri())
        yield opened
        context.close()


def test_timeline_is_searched_and_moved_by_keys(page: Page) -> None:
    """It opens without a network; the search goes from event to event, keys go along a track, and a click shows details."""
    details, found = page.locator("#details"), page.locator("#found")
    page.get_by_text("2 ranks, 2 tracks, 4 events in 9.00 ms.").wait_for()
    page.get_by_label("find").fill("ALL-reduce")
    page.get_by_role("button", name="next").click()
    assert found.inner_text() == "1 of 2"
    assert details.inner_text().splitlines() == [
        "all-reduce f32[8] over x",
        "rank 1 (host1) · device 0 collectives · at 100.0 µs · 500.0 µs · line: <b>",
    ]
    page.get_by_role("button", name="next").click()
    assert found.inner_text() == "2 of 2"
    assert "at 5.00 ms" in details.inner_text()
    chart = page.locator("#chart")
    chart.focus()
    page.keyboard.press("p")
    assert details.inner_text().startswith("waits for rank 0\nrank 1")
    for key in ("+", "-", "ArrowLeft", "ArrowRight", "0"):
        page.keyboard.press(key)
    # All is shown again: the cell's bar, in the first track, is from the labels to the right edge.
    box = chart.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 50)
    assert details.inner_text().startswith("In [3]\nrank 0 (host0) · cell · at 0.0 µs · 9.00 ms")
    page.get_by_label("find").fill("no such name")
    page.keyboard.press("Enter")
    assert found.inner_text() == "no event has that in its name"
