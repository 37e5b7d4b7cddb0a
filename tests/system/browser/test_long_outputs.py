"""Loops and long outputs in a real browser: how high they are, and that nothing jumps while a cell runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mhnb import view
from mhnb.core.output.results import CellResult, RankResult
from mhnb.view.cell.html import format_cell_html
from mhnb.view.html import RankLocations
from mhnb.view.live.frame import build_frame, frame_parts
from mhnb.view.live.results_panel import build_panel_state
from mhnb.view.live.widget import read_style
from tests.support.lab import open_chromium
from tests.support.view_samples import (
    cell,
    different_outputs,
    equal_loop,
    loop,
    loop_with_odd_rank,
    odd_number,
    out,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

LIVE = Path(view.__file__).parent / "live"
PAGE = """<!doctype html><title>live</title><body style="margin:0;font:13px/1.3 sans-serif;{}">
<div style="height:100px">the cell's source</div><div id="cell"></div><div style="background:#8884">{}</div>"""
PANEL = """async ([source, state]) => {
  const values = { mode: "panel", number: 1, ...state };
  const heard = {};
  const model = { get: (name) => values[name], on: (name, act) => { heard[name] = act; }, off: () => {}, send: () => {} };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.body });
  heard["msg:custom"]({ bodies: { 0: "zero", 1: "one", 2: "two", 3: "three" } });
}"""
START = """async ([source, css, parts]) => {
  document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
  const heard = {};
  const values = { mode: "live", blocks: 24, placeholder: "placeholder", runs: true, page: "", ...parts };
  const model = {
    get: (name) => values[name], off: () => {}, send: () => {},
    on: (name, act) => { (heard[name] ??= []).push(act); },
  };
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.getElementById("cell") });
  await drawn();
  window.shifts = [];
  const note = (entries) => { window.shifts.push(...entries.map((one) => one.value)); };
  const observer = new PerformanceObserver((list) => note(list.getEntries()));
  observer.observe({ type: "layout-shift" });
  // Of all frames up to now: the page has drawn the last change once the frame after it begins.
  window.readShifts = async () => {
    await drawn();
    note(observer.takeRecords());
    return window.shifts;
  };
  window.update = async (parts) => {
    for (const [name, value] of Object.entries(parts)) {
      if (values[name] === value) continue;
      values[name] = value;
      for (const act of heard[`change:${name}`] ?? []) act();
    }
    await drawn();
  };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page as large as a cell's output in a common window."""
    page = browser.new_page(viewport={"width": 900, "height": 900})
    yield page
    page.close()


def _frames(result: CellResult, counts: range) -> list[dict[str, str]]:
    """Return the parts of the live view after so many lines; outliers are one line behind."""
    frames = []
    for count in counts:
        ranks = [
            RankResult(
                rank.rank, "running", (out("".join(rank.stdout.splitlines(keepends=True)[: count - rank.rank % 2])),)
            )
            for rank in result
        ]
        snapshot = replace(result, ranks=tuple(ranks), wall_s=2 + count / 10, done=False)
        frames.append(frame_parts(build_frame(snapshot)))
    return frames


@pytest.mark.parametrize("sample", ["loop", "equal", "odd"])
@pytest.mark.sample(1)
def test_nothing_jumps_while_a_loop_goes_on(page: Page, sample: str) -> None:
    """While a training loop prints, its view keeps its height, and what is below it does not move."""
    result = {"loop": loop, "equal": equal_loop, "odd": loop_with_odd_rank}[sample]()
    first, *rest = _frames(result, range(100, 201, 10))
    page.set_content(PAGE.format("", "the next cell<br>" * 40))
    page.evaluate(START, [(LIVE / "panel.js").read_text(), read_style(), first])
    heights = set()
    for parts in rest:
        page.evaluate("(parts) => update(parts)", parts)
        heights.add(page.locator("#cell").bounding_box()["height"])  # type: ignore[index]
    assert len(heights) == 1
    assert page.evaluate("readShifts()") == []


@pytest.mark.parametrize("lines", [50, 200, 2000])
@pytest.mark.sample(1)
def test_height_of_a_loop_does_not_depend_on_its_lines(page: Page, lines: int) -> None:
    """Seven lines with two numbers of four ranks take less than 500 px, whatever the number of lines."""
    page.set_content(PAGE.format("", "") + format_cell_html(loop(lines)))
    box = page.locator(".mhnb").bounding_box()
    assert box is not None
    assert box["height"] < 500


def test_long_different_outputs_fit_a_window(page: Page) -> None:
    """Four times 64 different lines take at most 700 px: one output is open at its end, and the others show their last line."""
    page.set_viewport_size({"width": 700, "height": 900})
    page.set_content(PAGE.format("", "") + format_cell_html(different_outputs()))
    box = page.locator(".mhnb").bounding_box()
    assert box is not None
    assert box["height"] <= 700
    assert page.locator("pre").nth(0).evaluate("(one) => one.closest('[tabindex]').scrollTop") == 0
    ends = page.locator("details > div").first.evaluate(
        "(one) => [one.getBoundingClientRect().bottom, one.querySelector('pre').getBoundingClientRect().bottom]"
    )
    assert abs(ends[0] - ends[1]) < 2
    folded = page.locator("details:not([open]) > summary")
    assert folded.all_inner_texts() == [
        "rank 1 beta line 63 of a63",
        "rank 2 gamma line 63 of m63",
        "rank 3 delta line 63 of t63",
    ]
    folded.nth(1).click()
    assert page.locator("details[open]").count() == 2


def test_long_last_line_is_one_line(page: Page) -> None:
    """The last line in a summary never wraps, however narrow the page is."""
    page.set_viewport_size({"width": 500, "height": 900})
    said = [[out("".join(f"{word} {at}\n" for at in range(20)) + f"{word} " * 60 + "\n")] for word in ("alpha", "beta")]
    page.set_content(PAGE.format("", "") + format_cell_html(cell(*said)))
    box = page.locator("details:not([open]) > summary").bounding_box()
    assert box is not None
    assert box["height"] < 28
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_folds_are_near_each_other_with_last_lines_in_a_column(page: Page) -> None:
    """Folded outputs are close to each other, high enough to hit, and their last lines begin below each other."""
    said = [[out("".join(f"{letter * 9} {at}\n" for at in range(20)))] for letter in "abcdefghijkl"]
    page.set_content(PAGE.format("", "") + format_cell_html(cell(*said)))
    boxes = page.locator("summary:has(.mhnb-last)").evaluate_all(
        """(all) => all.map((one) => [one.getBoundingClientRect().top, one.getBoundingClientRect().bottom,
            one.querySelector(".mhnb-last").getBoundingClientRect().left])"""
    )
    assert len(boxes) == 11
    assert all(24 <= bottom - top < 30 for top, bottom, _ in boxes)
    assert all(after[0] - before[1] < 4 for before, after in pairwise(boxes))
    assert len({left for _, _, left in boxes}) == 1


def test_panel_grid_begins_with_the_odd_rank(page: Page) -> None:
    """The card of the rank that differs is first, with its mark and its difference; the others keep their order."""
    state = build_panel_state(odd_number(), RankLocations(), uid="u", view="grid")
    page.evaluate(PANEL, [(LIVE / "panel.js").read_text(), state])
    assert page.locator(".mhnb-card").all_inner_texts() == [
        "rank 2 ≠\nloss 0.731 ← 0.312 elsewhere\ntwo",
        "rank 0\nzero",
        "rank 1\none",
        "rank 3\nthree",
    ]
    assert page.locator(".mhnb-outlier").count() == 1
