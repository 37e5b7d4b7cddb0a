"""Outputs of the ranks in a real JupyterLab: live, folded, rich, as tabs, in the panel, dark, untrusted, without a kernel."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from tests.support.axe import violations
from tests.support.lab import KernelMessage, Lab, LabPage, open_chromium, wait_until
from tests.support.leftovers import no_leftovers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.ranks, pytest.mark.requires_part("browser"), pytest.mark.timeout(600)]

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><circle cx="20" cy="15" r="9"/></svg>'
START = "%load_ext mhnb\n%mhjax start -n 4 --devices 1"
OWN = "%%mhjax\nimport jax, time\nme = jax.process_index()\nprint(f'process {me} of 4: local device {me}:0')"
ODD = "%%mhjax\nprint('loss', 0.731 if me == 2 else 0.312)"
NUMBERS = "%%mhjax\nprint('loss', 0.25 * me + 0.125, 'step 7')"
TABS = "%%mhjax --view tabs\nprint('word', 'abcd'[me])"
GRID = "%%mhjax --view grid\nprint('card', 'abcd'[me])"
ERROR = "%%mhjax\npass\nif me == 2:\n    raise ValueError('only here')\nx = 1"
LONG = "%%mhjax\nfor step in range(25):\n    print(f'rank {me} at step {step}', flush=True)\n    time.sleep(0.1)"
PANEL = "%mhjax show In[3]"
FORMULAS = "%%mhjax\nfrom IPython.display import HTML, SVG, Math, display\ntime.sleep(0.5)\nMath(rf'\\frac{{{me}}}{{7}} + \\alpha')"
PICTURES = "%%mhjax\nfrom PIL import Image\nImage.new('RGB', (40, 20), (90 * (me == 1), 120, 200))"
DRAWINGS = f"""%%mhjax
display(SVG('{SVG}'))
HTML(f'<table><tr><th>part</th></tr><tr><td><i>of rank</i> {{me}}</td></tr></table>')
"""
WIDGET = "%%mhjax\nimport ipywidgets\nipywidgets.IntSlider(value=3)"
BARS = "%%mhjax\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(20), desc='train'): time.sleep(0.02)"
RICH = (FORMULAS, PICTURES, DRAWINGS, WIDGET, BARS)
COMMENTED = "# above\n\n%%mhjax\nprint('below a comment')"
MISPLACED = "above_code = 1\n%%mhjax\nprint('below code')"
OWN_JAX = "import jax\nlen(jax.devices())"
HINTS = (COMMENTED, MISPLACED, OWN_JAX)
LOOP = "%%mhjax\nfor step in range(25):\n    print(f'rank {me} is at step {step}', flush=True)\n    time.sleep(0.1 + 0.01 * me)"
TRAINING = """%%mhjax
import mhnb
for step in range(25):
    mhnb.log(step, loss=1 / (1 + step))
    print(f"step {step} loss {1 / (1 + step):.4f}", flush=True)
    time.sleep(0.1)
"""
BLOCKED = "%%mhjax\nprint(f'it begins at place {me}')\nwhile True: time.sleep(0.01)"
BLOCKING = (BLOCKED, *(BLOCKED.replace("%%mhjax", f"%%mhjax --view {view}") for view in ("tabs", "grid")))
MANY = """
from mhnb.view.live.view import CellView
from tests.support.view_samples import cell, out
CellView().finish(cell(*[[out(f"rank {r} loss {1 / (1 + r % 9):.3f}\\n" if r != 40 else "rank 40 loss nan\\n")] for r in range(64)]))
"""
WITHOUT_RANKS = """
import time
from mhnb.view.live.view import CellView
from tests.support.view_samples import cell, out
view, began = CellView(), time.monotonic()
try:
    while True:
        time.sleep(0.1)
        view.update(cell([out("it runs\\n")], done=False, wall_s=time.monotonic() - began))
except KeyboardInterrupt:
    view.finish(cell([out("it ends\\n")]))
"""
"""Runs in a kernel of its own until it is interrupted."""
PLACEHOLDER = "[class$=-placeholder]"
SOURCES = (START, OWN, ODD, NUMBERS, TABS, GRID, ERROR, LONG, MANY, PANEL, *RICH, *HINTS, LOOP, TRAINING, *BLOCKING)
ENDING = SOURCES.index(LOOP)
"""How many of them are run before the tests."""
TEXT_PER_RANK = {OWN: "process {} of 4", NUMBERS: "0.{}", LONG: "rank {} at step 24"}


@dataclass(frozen=True, slots=True)
class RunNotebook:
    """A notebook that was run in a page that is still open."""

    browser: Browser
    lab: Lab
    page: LabPage
    saved: Path

    def area(self, source: str) -> Any:
        """Return the output area of a cell."""
        return self.page.cell(SOURCES.index(source)).locator(".jp-Cell-outputArea")


@pytest.fixture(scope="module")
def ran(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunNotebook]:
    """Run every cell that ends by itself, and save."""
    root = tmp_path_factory.mktemp("outputs")
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    for source in (ERROR, MISPLACED):
        cells[SOURCES.index(source)].metadata["tags"] = ["raises-exception"]
    saved = root / "outputs.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), saved)
    with no_leftovers(mhnb_home), open_chromium() as browser, Lab(root) as lab, lab.page(browser) as page:
        page.open(saved.name)
        for index in range(ENDING):
            page.start_cell(index)
            page.wait_idle(limit_s=150)
        page.save()
        shutil.copy(saved, root / "kept.ipynb")
        yield RunNotebook(browser, lab, page, root / "kept.ipynb")


def test_rank_numbers_fold_to_one_line(ran: RunNotebook) -> None:
    """Four ranks are one line, and each rank's own text is a click away."""
    text = ran.area(OWN).inner_text()
    assert "process ‹rank› of 4: local device ‹rank›:0" in text
    assert "process 3 of 4" not in text
    seen = ran.page.readable(SOURCES.index(OWN))
    assert all(f"process {rank} of 4: local device {rank}:0" in seen for rank in range(4))


def test_differing_rank_is_shown_first(ran: RunNotebook) -> None:
    """The rank that differs is at the top, with the majority's value beside its own."""
    lines = ran.area(ODD).inner_text().splitlines()
    assert "rank 2 differs" in lines[0]
    assert "loss 0.731 ← 0.312 elsewhere" in lines[lines.index("rank 2 host2 ≠") + 1]


def test_numbers_are_a_table(ran: RunNotebook) -> None:
    """Every rank's value is visible without a click."""
    text = ran.area(NUMBERS).inner_text()
    assert "loss ‹a› step 7" in text
    assert all(value in text for value in ("0.125", "0.375", "0.625", "0.875"))


def test_a_tab_opens_by_keyboard(ran: RunNotebook) -> None:
    """Enter on a tab's name opens it without any script of mhnb."""
    area = ran.area(TABS)
    assert area.get_by_text("word c").is_hidden()
    area.locator("summary").nth(2).focus()
    ran.page.page.keyboard.press("Enter")
    assert area.get_by_text("word c").is_visible()
    assert area.get_by_text("word a").is_hidden()


def test_grid_cards_are_side_by_side(ran: RunNotebook) -> None:
    """A grid has four cards, at least two of them on one line."""
    boxes = [box for rank in range(4) if (box := ran.area(GRID).get_by_text(f"card {'abcd'[rank]}").bounding_box())]
    assert len(boxes) == 4
    assert len({box["y"] for box in boxes}) < 4


def test_error_links_to_its_line(ran: RunNotebook) -> None:
    """A click on the line number puts the cursor on the line that raised."""
    card = ran.area(ERROR)
    assert card.inner_text().splitlines()[0] == "✗ ValueError on rank 2 · ranks 0-1,3 finished"
    card.get_by_role("button", name="line 4").click()
    cursor_line = "() => getSelection().anchorNode?.parentElement.closest('.cm-line')?.textContent"
    assert ran.page.page.evaluate(cursor_line) == "    raise ValueError('only here')"


def test_error_below_the_report_is_one_short_line(ran: RunNotebook) -> None:
    """JupyterLab shows the exception itself on red: one line, because the report above it has the rest."""
    box = ran.area(ERROR).locator(
        '[data-mime-type="application/vnd.jupyter.error"], .jp-RenderedText[data-mime-type*="stderr"]'
    )
    assert box.inner_text().strip() == "CellFailed: ValueError on rank 2; details above"
    frame = box.bounding_box()
    assert frame is not None
    assert frame["height"] < 2 * 17


def test_next_cell_names_the_one_before_in_its_status_line(ran: RunNotebook) -> None:
    """The cell after the one that failed on rank 2 says so on the line of its ranks, and has no line of its own for it."""
    area = ran.area(LONG)
    before = area.get_by_text("finished on ranks 0-1,3 only: variables may differ")
    heading = area.get_by_text(re.compile(r"ranks 0-3 · [\d.]+ s"))
    box, line = before.bounding_box(), heading.bounding_box()
    assert box is not None
    assert line is not None
    assert line["y"] <= box["y"] < box["y"] + box["height"] <= line["y"] + line["height"] + 1
    assert line["height"] < 2 * 17
    assert ran.area(NUMBERS).get_by_text("variables may differ").count() == 0


def test_long_cell_updates_its_widget(ran: RunNotebook) -> None:
    """The widget opens, receives updates at most ten times a second, and closes."""
    messages = _messages_of(ran.page.kernel_messages, "at step")
    states = [
        m.content["data"]["state"]
        for m in messages
        if m.msg_type == "comm_msg" and "state" in m.content.get("data", {})
    ]
    assert [m.msg_type for m in messages].count("comm_open") >= 1
    assert any("at step" in state.get("block_0", "") for state in states)
    assert len(states) < 90
    assert all(len(json.dumps(state)) < 20_000 for state in states)


MAX_SHIFT = 0.05
_OBSERVE_SHIFTS = """() => {
  window.shifts = [];
  window.ups = [];
  const note = (entries) => {
    // The result that replaces the live view may be lower.
    const runs = document.querySelector(".mhnb-live");
    for (const { value, sources } of entries) {
      window.shifts.push(value);
      const cells = sources.filter((one) => one.node?.classList?.contains("jp-Cell") && one.previousRect.height && one.currentRect.height);
      if (runs) window.ups.push(...cells.map((one) => one.currentRect.y - one.previousRect.y).filter((by) => by < -2));
    }
  };
  const observer = new PerformanceObserver((list) => note(list.getEntries()));
  observer.observe({ type: "layout-shift" });
  window.readShifts = async () => {
    for (const _ of [1, 2]) await new Promise((done) => requestAnimationFrame(done));
    note(observer.takeRecords());
    observer.disconnect();
    return [window.shifts, window.ups];
  };
}"""


def _observe_run(ran: RunNotebook, source: str, shown: str) -> tuple[list[float], list[float]]:
    """Run a cell, and return how much moved at a time from when its live view was shown, and how far other cells went up."""
    at = SOURCES.index(source)
    ran.page.start_cell(at)
    ran.page.cell(at).evaluate("cell => cell.scrollIntoView({ block: 'start' })")
    ran.area(source).locator(f".mhnb-live {shown}").first.wait_for(timeout=60_000)
    ran.page.page.evaluate(_OBSERVE_SHIFTS)
    ran.page.wait_idle(limit_s=60)
    ran.area(source).locator(".mhnb-live").wait_for(state="detached")
    shifts, ups = ran.page.page.evaluate("readShifts()")
    assert "step 24" in ran.page.readable(at)
    return shifts, ups


def test_nothing_jumps_while_a_training_cell_runs_and_ends(ran: RunNotebook) -> None:
    """Once the chart is there, what is below it moves little at a time, also when the result replaces the live view."""
    shifts, ups = _observe_run(ran, TRAINING, ".mhnb-metrics")
    assert max(shifts, default=0) <= MAX_SHIFT, shifts
    assert ups == []


def test_cells_below_a_live_view_do_not_move_up(ran: RunNotebook) -> None:
    """Ranks that print at different times are one block and several in turn, in the height that they have had."""
    _, ups = _observe_run(ran, LOOP, ".mhnb-blocks :text('step')")
    assert ups == []


def _messages_of(messages: list[KernelMessage], text: str) -> list[KernelMessage]:
    first = next(i for i, m in enumerate(messages) if m.msg_type == "execute_input" and text in m.content["code"])
    of_cell = [i for i, m in enumerate(messages) if m.parent_id == messages[first].parent_id]
    idle = next(i for i in of_cell if messages[i].content.get("execution_state") == "idle")
    return messages[first:idle]


def test_sixty_four_ranks_fit_a_screen(ran: RunNotebook) -> None:
    """64 ranks are one template and a summary, and the rank with a value that is not a number is named."""
    area = ran.area(MANY)
    assert "not a finite number on rank 40" in area.inner_text()
    assert (area.bounding_box() or {"height": 999})["height"] < 200


def test_panel_works_with_the_keyboard(ran: RunNotebook) -> None:
    """Layouts and tabs use a roving tab index: arrow keys move, and each group is one tab stop."""
    page, panel = ran.page.page, ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Fold").click()
    page.keyboard.press("ArrowRight")
    assert panel.get_by_role("radio", name="Tabs").get_attribute("aria-checked") == "true"
    tabs = panel.get_by_role("tab")
    assert tabs.count() == 4
    tabs.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    body = panel.get_by_role("tabpanel")
    body.get_by_text("loss 0.731").wait_for()
    assert [tabs.nth(rank).get_attribute("tabindex") for rank in range(4)] == ["-1", "-1", "0", "-1"]
    page.keyboard.press("Home")
    body.get_by_text("loss 0.312").wait_for()


def test_the_panel_finds_the_next_difference(ran: RunNotebook) -> None:
    """The button and the key n inside the panel both go to the next difference."""
    panel = ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Tabs").click()
    panel.get_by_role("tab", name="rank 0").click()
    panel.get_by_title("next difference (n)").click()
    assert panel.get_by_role("tab", name="rank 2").get_attribute("aria-selected") == "true"
    # Otherwise it may arrive while the fold is shown.
    panel.get_by_role("tabpanel").get_by_text("loss 0.731").wait_for()
    panel.get_by_role("radio", name="Fold").click()
    ran.page.page.keyboard.press("n")
    assert ran.page.page.evaluate("() => document.activeElement.classList.contains('mhnb-outlier')")


def test_the_panel_filters_and_searches(ran: RunNotebook) -> None:
    """The panel filters ranks, then counts and marks search hits. Keys typed there do not reach JupyterLab."""
    cells = ran.page.page.locator(".jp-Notebook .jp-Cell").count()
    panel = ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Grid").click()
    panel.get_by_label("ranks, like").press_sequentially("1-2")
    assert panel.locator(".mhnb-card").count() == 2
    panel.get_by_text("loss 0.731").first.wait_for()
    panel.get_by_label("search").press_sequentially("loss")
    # Each rank's own line, and above that of rank 2 how it differs.
    panel.get_by_text("3 found").wait_for()
    assert panel.locator("mark").count() == 3
    panel.get_by_label("search").press("Escape")
    panel.get_by_label("ranks, like").press("Escape")
    assert panel.locator(".mhnb-card").count() == 4
    assert ran.page.page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_copy_copies_the_open_tab(ran: RunNotebook) -> None:
    """Copy puts the text of the open tab on the clipboard, and nothing of another rank."""
    page, panel = ran.page.page, ran.area(PANEL).locator(".mhnb-panel")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("radio", name="Tabs").click()
    panel.get_by_role("tab", name="rank 2").click()
    panel.get_by_role("tabpanel").get_by_text("loss 0.731").wait_for()
    panel.get_by_role("button", name="Copy").click()
    panel.get_by_text("copied").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()").strip() == "loss 0.731"


def test_a_formula_of_a_rank_is_typeset(ran: RunNotebook) -> None:
    """JupyterLab typesets each rank's formula, also if the output replaced a live view."""
    formulas = ran.area(FORMULAS).locator("mjx-container:visible")
    formulas.nth(3).wait_for(timeout=60_000)
    assert formulas.count() == 4
    assert "$" not in ran.area(FORMULAS).inner_text()


@pytest.mark.parametrize(
    ("source", "size", "count"), [(PICTURES, (40, 20), 2), (DRAWINGS, (40, 30), 1)], ids=["png", "svg"]
)
def test_a_picture_of_a_rank_is_drawn(ran: RunNotebook, source: str, size: tuple[int, int], count: int) -> None:
    """A picture is drawn in its own size, and equal ones once."""
    sizes = "all => all.map(e => [e.naturalWidth, e.naturalHeight])"
    # A picture that was just redrawn has no size before it is decoded.
    wait_until(
        lambda: ran.area(source).locator("img:visible").evaluate_all(sizes) == [list(size)] * count, "they are drawn"
    )


def test_html_of_a_rank_is_drawn(ran: RunNotebook) -> None:
    """HTML is drawn as HTML, for every rank."""
    cells = ran.area(DRAWINGS).locator("td:has(i)")
    assert set(cells.evaluate_all("all => all.map(e => e.textContent)")) == {f"of rank {rank}" for rank in range(4)}


def test_widget_of_a_rank_is_text_with_a_reason(ran: RunNotebook) -> None:
    """A widget is shown as its text with one line about the reason, once for all ranks, and not as a broken widget."""
    text = ran.area(WIDGET).inner_text()
    assert text.count("IntSlider(value=3)") == 1
    assert text.count("the browser cannot reach a widget on a rank") == 1
    assert ran.area(WIDGET).locator(".jupyter-widgets").count() == 0


def test_progress_bars_are_one_line_of_text(ran: RunNotebook) -> None:
    """`tqdm.auto` draws text on ranks, and four bars are shown as one line."""
    text = ran.area(BARS).inner_text()
    assert text.count("train: 100 %") == text.count("train") == 1
    assert "all 20/20 · rank 0 [" in text
    assert ran.area(BARS).locator(".jupyter-widgets, progress").count() == 0


def test_cell_below_a_comment_runs_on_the_ranks(ran: RunNotebook) -> None:
    """A comment may stand above `%%mhjax`; code above it is refused, with what to do."""
    assert ran.area(COMMENTED).inner_text().splitlines()[-1].strip() == "below a comment"
    refused = ran.area(MISPLACED).inner_text()
    assert "this line must be the first of its cell" in refused
    assert "Put the code above it into a cell of its own" in refused


def test_plain_cell_with_jax_has_a_grey_line(ran: RunNotebook) -> None:
    """One line below the value says whose JAX it is, in the theme's own colour, only fainter, and on one line in a wide page."""
    line = ran.area(OWN_JAX).get_by_text("this is the notebook's own JAX (")
    assert line.count() == 1
    assert line.evaluate("e => getComputedStyle(e).opacity") == "0.65"
    assert line.bounding_box()["height"] < 30


def test_forced_colours_leave_a_second_cue(ran: RunNotebook) -> None:
    """Where the system removes all colours, borders, signs, underlines and weight still carry their meaning."""
    page, panel = ran.page.page, ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Tabs").click()
    style = "(e, name) => getComputedStyle(e)[name]"
    page.emulate_media(forced_colors="active")
    try:
        odd = ran.area(ODD).locator(".mhnb-outlier").first
        assert (odd.evaluate(style, "borderLeftStyle"), odd.evaluate(style, "borderLeftWidth")) == ("double", "3px")
        assert "≠" in odd.inner_text()
        assert odd.locator("b", has_text="0.731").evaluate(style, "textDecorationLine") == "underline"
        buttons = panel.locator("button:visible, input:visible").all()
        assert [b.inner_text() for b in buttons if b.evaluate(style, "borderTopWidth") == "0px"] == []
        chosen, other = (panel.locator(f'[role="tab"][aria-selected="{on}"]').first for on in ("true", "false"))
        assert [tab.evaluate(style, "borderBottomWidth") for tab in (chosen, other)] == ["3px", "1px"]
        stored = ran.area(TABS).locator("details")
        lines = {
            tab.get_attribute("open"): tab.locator("summary").evaluate(style, "borderBottomColor")
            for tab in stored.all()
        }
        assert len(lines) == len(set(lines.values())) == 2
        assert violations(page, ".mhnb") == []
    finally:
        page.emulate_media(forced_colors="none")


def test_reduced_motion_stops_animations(ran: RunNotebook) -> None:
    """Nothing moves in mhnb's outputs for users who asked for reduced motion, even if a style sheet of the page animates."""
    page = ran.page.page
    page.evaluate("""() => { const sheet = document.createElement('style'); sheet.id = 'moving';
      sheet.textContent = '@keyframes m { to { opacity: .5 } } .mhnb-panel button { animation: m 9s infinite }';
      document.head.append(sheet) }""")
    moving = "document.querySelector('.mhnb-panel').getAnimations({subtree: true}).length"
    try:
        # The test waits, because a style sheet takes effect in a later frame.
        page.wait_for_function(f"{moving} > 0")
        page.emulate_media(reduced_motion="reduce")
        page.wait_for_function(f"{moving} === 0")
    finally:
        page.emulate_media(reduced_motion="no-preference")
        page.evaluate("() => document.getElementById('moving').remove()")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_outputs_are_accessible(ran: RunNotebook, theme: str) -> None:
    """axe finds no fault in any output, in either theme."""
    ran.page.command("apputils:change-theme", theme=theme)
    ran.page.page.wait_for_function("t => document.body.dataset.jpThemeName === t", arg=theme)
    try:
        assert violations(ran.page.page, ".mhnb") == []
    finally:
        ran.page.command("apputils:change-theme", theme="JupyterLab Light")


def test_button_interrupts_a_blocking_cell(ran: RunNotebook) -> None:
    """The Interrupt button ends a blocked cell without the stop button, and each rank is listed on request."""
    index = SOURCES.index(BLOCKED)
    ran.page.start_cell(index)
    area = ran.page.cell(index).locator(".jp-Cell-outputArea")
    area.get_by_role("button", name="Interrupt").wait_for(timeout=60_000)
    assert violations(ran.page.page, ".mhnb-panel") == []
    area.get_by_role("button", name="Where").click()
    area.get_by_text("line 3:").first.wait_for(timeout=60_000)
    assert area.get_by_role("region", name="each rank").locator("tr").count() == 5
    # An element that scrolls, or could, would hold the buttons instead of the window.
    holding = """e => { const found = [];
      for (let p = e.parentElement; p && !p.matches('.jp-WindowedPanel-outer'); p = p.parentElement)
        if (!['visible', 'clip'].includes(getComputedStyle(p).overflowY)) found.push(p.className);
      return found }"""
    assert area.locator(".mhnb-top").evaluate(holding) == []
    area.get_by_role("button", name="Interrupt").click()
    ran.page.wait_idle(limit_s=60)
    assert "interrupted" in area.inner_text().lower()
    assert "it begins" in area.inner_text()


@pytest.fixture
def running(ran: RunNotebook, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The live view of a cell that blocks. The widget hides its placeholder, which has the same text."""
    ran.page.start_cell(SOURCES.index(request.param))
    area = ran.area(request.param).locator(".mhnb-panel")
    try:
        area.get_by_role("button", name="Show all").wait_for(timeout=60_000)
        yield area
    finally:
        # The page is shared, so a cell that keeps running would fail all other tests.
        area.get_by_role("button", name="Interrupt").click()
        ran.page.wait_idle(limit_s=60)


@pytest.mark.parametrize("running", [BLOCKED], indirect=True)
def test_show_all_shows_each_rank_while_a_cell_blocks(running: Any) -> None:
    """A click on Show all unfolds the output per rank, and another click folds it again."""
    running.get_by_text("it begins at place ‹rank›").wait_for(timeout=60_000)
    assert running.get_by_text("it begins at place 3").count() == 0
    button = running.get_by_role("button", name="Show all")
    button.click()
    for rank in range(4):
        running.get_by_text(f"it begins at place {rank}").wait_for(timeout=60_000)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    running.get_by_text("it begins at place ‹rank›").wait_for(timeout=60_000)


@pytest.mark.parametrize("running", [BLOCKING[1]], indirect=True)
def test_tabs_work_while_the_cell_runs(running: Any) -> None:
    """Tabs show one rank at a time, the keyboard selects it, and Show all removes the tabs."""
    tab = running.get_by_role("tab", name="rank 3")
    tab.wait_for(timeout=60_000)
    shown = running.get_by_role("tabpanel")
    assert (running.get_by_role("tab").count(), shown.count()) == (4, 1)
    assert shown.inner_text() == "it begins at place 0"
    running.get_by_role("tab", name="rank 0").press("End")
    assert shown.inner_text() == "it begins at place 3"
    assert tab.get_attribute("aria-selected") == "true"
    assert violations(running.page, ".mhnb-panel") == []
    running.get_by_role("button", name="Show all").click()
    running.get_by_text("it begins at place ‹rank›").wait_for(timeout=60_000)
    assert running.get_by_role("tab").count() == 0


@pytest.mark.parametrize("running", [BLOCKING[2]], indirect=True)
def test_grid_is_shown_while_the_cell_runs(running: Any) -> None:
    """The cards of a grid are side by side."""
    cards = running.locator(".mhnb-card")
    cards.nth(3).wait_for(timeout=60_000)
    assert [card.inner_text().splitlines()[-1] for card in cards.all()] == [f"it begins at place {r}" for r in range(4)]
    assert len({round(card.bounding_box()["y"]) for card in cards.all()}) < 4
    assert violations(running.page, ".mhnb-panel") == []


def test_page_that_is_reloaded_during_a_cell_shows_its_placeholder(ran: RunNotebook) -> None:
    """It has no live view, but the stop button works, and the result replaces the placeholder when the cell ends."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(WITHOUT_RANKS)]
    path = ran.lab.root / "reloaded.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    with ran.lab.page(ran.browser) as page:
        page.open(path.name)
        page.start_cell(0)
        area, placeholder = page.cell(0).locator(".jp-Cell-outputArea"), page.cell(0).locator(PLACEHOLDER)
        placeholder.wait_for(state="attached")
        page.save()
        page.open(path.name, idle=False)
        placeholder.get_by_text("it runs").wait_for()
        assert "widget" not in area.inner_text()
        page.interrupt()
        panel = area.locator(".mhnb-panel")
        panel.get_by_text("it ends").wait_for()
        assert "only the output from while the cell ran" in panel.inner_text()
        assert not placeholder.is_visible()
        assert panel.get_by_role("button").count() == 0
        assert violations(page.page, ".mhnb-panel") == []
        page.save()
        page.open(path.name)
        panel.get_by_text("it ends").wait_for()


def _assert_readable(page: LabPage) -> None:
    for source, words in TEXT_PER_RANK.items():
        seen = page.readable(SOURCES.index(source))
        values = ("125", "375", "625", "875") if source == NUMBERS else range(4)
        assert [value for value in values if words.format(value) not in seen] == []
    assert "only here" in page.readable(SOURCES.index(ERROR))


def test_reopened_without_a_kernel(ran: RunNotebook) -> None:
    """Without a kernel every rank's output is there, and no widget is broken except the panel's."""
    with ran.lab.page(ran.browser) as page:
        page.open(ran.saved.name, kernel=False)
        _assert_readable(page)


def test_reopened_untrusted(ran: RunNotebook, tmp_path: Path) -> None:
    """A JupyterLab that does not trust the file removes styles, names and scripts, and all text stays."""
    shutil.copy(ran.saved, tmp_path / "theirs.ipynb")
    with Lab(tmp_path) as lab, lab.page(ran.browser) as page:
        page.open("theirs.ipynb", kernel=False)
        _assert_readable(page)


def test_outputs_can_be_saved_as_pictures(ran: RunNotebook, tmp_path: Path) -> None:
    """Each output can be saved as a picture for inspection."""
    for index in range(1, ENDING):
        ran.page.screenshot(tmp_path / f"{index}.png", cell=index)
    wait_until(lambda: len(list(tmp_path.glob("*.png"))) == ENDING - 1, "pictures are written")
