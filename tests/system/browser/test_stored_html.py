"""The stored HTML in a real browser: tabs switch without a script, and colours have contrast in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mhnb import view
from mhnb.core.variables import VariableInfo, VariableRow
from mhnb.sharding.layout import Layout
from mhnb.view.cell.html import format_cell_html, format_rank_body
from mhnb.view.document import Drawing
from mhnb.view.drawings.metrics import draw_card
from mhnb.view.html import HOST_COLORS, RankLocations
from mhnb.view.live.widget import read_style
from mhnb.view.print_html import print_html
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.metrics import build_card
from mhnb.view.reports.variables import build_vars
from tests.support.axe import contrast, violations
from tests.support.lab import wait_until
from tests.support.metric_samples import log_curve
from tests.support.parts import chromium
from tests.support.view_samples import (
    PICTURE_SAMPLES,
    after_a_failure,
    cell,
    failed,
    failed_in_a_helper,
    lesson_samples,
    out,
    rank_died,
    shown,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

THREE_RANKS = cell(*[[out(f"said by rank {rank}\n")] for rank in range(3)])


OUTPUTS = {
    "numbers": format_cell_html(cell(*[[out(f"loss {rank}.5 at {rank % 2}\n")] for rank in range(4)]), uid="mhnb-n"),
    "many": format_cell_html(cell(*[[out(f"rank {rank} loss {rank % 7}.5\n")] for rank in range(64)]), uid="mhnb-m"),
    "odd": format_cell_html(cell(*[[out(f"a\nloss {int(rank == 2)}.5\n")] for rank in range(4)]), uid="mhnb-o"),
    "error": format_cell_html(cell(failed(0), [out("x\n", "stderr")], failed(2, "OrderMismatch"))),
    "figures": format_cell_html(cell(*[[shown(image__png="A" * 900 + str(rank % 2) * 4)] for rank in range(4)])),
    "helper": format_cell_html(cell(failed_in_a_helper(0), [])),
    "death": format_cell_html(rank_died()),
    "carried": format_cell_html(after_a_failure()),
    "tabs": format_cell_html(THREE_RANKS, view="tabs", uid="mhnb-t"),
    "grid": format_cell_html(THREE_RANKS, view="grid"),
    **{name: format_cell_html(result) for name, result in PICTURE_SAMPLES.items()},
    "grid of figures": format_cell_html(PICTURE_SAMPLES["figures that differ"], view="grid"),
    "grid of frames": format_cell_html(PICTURE_SAMPLES["frames that differ"], view="grid"),
    **lesson_samples(),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    """An empty page without scripts, as in the strictest notebook viewers."""
    return browser.new_page(java_script_enabled=False)


def test_a_click_changes_the_tab(page: Page) -> None:
    """One tab is open at a time in a single row of tabs, and two cells do not affect each other."""
    first, second = (format_cell_html(THREE_RANKS, view="tabs", uid=uid) for uid in ("mhnb-a", "mhnb-b"))
    page.set_content(f"<div id='a'>{first}</div><div id='b'>{second}</div>")
    page.locator("#a summary").nth(2).click()
    assert [page.locator("#a pre").nth(rank).is_visible() for rank in range(3)] == [False, False, True]
    assert [page.locator("#b pre").nth(rank).is_visible() for rank in range(3)] == [True, False, False]
    tops = {box["y"] for rank in range(3) if (box := page.locator("#a summary").nth(rank).bounding_box())}
    assert len(tops) == 1


def test_without_its_style_sheet_the_tabs_are_a_list(page: Page) -> None:
    """In an untrusted notebook without <style> and name the tabs become a list whose blocks open one by one."""
    html = format_cell_html(THREE_RANKS, view="tabs", uid="mhnb-a")
    head, _, tail = html.partition("<style>")
    page.set_content(head + tail.partition("</style>")[2].replace(' name="mhnb-a"', ""))
    page.locator("summary").nth(1).click()
    assert [page.locator("pre").nth(rank).is_visible() for rank in range(3)] == [True, True, False]


def test_long_word_keeps_next_column_visible(page: Page) -> None:
    """In a narrow window the column after a long word is readable without scrolling, and its row stays low."""
    rows = (
        VariableRow("x", (((0,), VariableInfo("host", "Array", "", (8, 8), "float32", "P('data')", None, 32)),)),
        VariableRow("words", (((2,), VariableInfo("host", "x" * 60)),), missing=(0, 1, 3)),
    )
    page.set_viewport_size({"width": 620, "height": 500})
    page.set_content(f"<!doctype html><body style='font:13px sans-serif'>{print_html(build_vars(rows))}")
    cell_box = page.get_by_text("missing on ranks 0-1,3").bounding_box()
    assert cell_box is not None
    assert cell_box["x"] + cell_box["width"] <= 620
    assert cell_box["height"] < 8 * 18


def _untrusted(html: str) -> str:
    """Return the HTML as an untrusted notebook shows it: no style sheet, handlers, names or focus; inputs are disabled."""
    kept = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    kept = re.sub(r' (?:on\w+|name|role|tabindex|aria-[\w-]+|data-[\w-]+)="[^"]*"', "", kept)
    return kept.replace("<input", "<input disabled")


def test_line_number_is_a_button_only_where_it_works(page: Page) -> None:
    """Over the number is a button in a trusted cell of JupyterLab. Elsewhere the number is plain text, and there once."""
    html = format_cell_html(cell(failed(0)))
    button = page.get_by_role("button", name="cell 12, line 3")
    for number, (content, works) in enumerate(
        (
            (f'<div class="jp-Cell">{html}</div>', True),
            (f'<div class="jp-Cell">{_untrusted(html)}</div>', False),
            (html, False),
        )
    ):
        # A trusted cell above leaves its style sheet in the page.
        page.set_content(f"<!doctype html><div class='jp-Cell'>{html}</div><main>{content}</main>")
        main = page.locator("main")
        assert (number, main.locator("button").is_visible()) == (number, works)
        assert main.inner_text().count("cell 12, line 3") == 1
    page.set_content(f'<!doctype html><div class="jp-Cell">{html}</div>')
    text, over = page.locator("span:has(> .mhnb-jump)").bounding_box(), button.bounding_box()
    assert text is not None
    assert over is not None
    assert abs(over["width"] - text["width"]) <= 1
    assert abs(over["x"] - text["x"]) <= 1
    page.keyboard.press("Tab")
    assert button.evaluate("b => [document.activeElement === b, getComputedStyle(b).outlineStyle]") == [True, "solid"]


@pytest.mark.parametrize(("name", "width", "lines"), [("death", 1600, 2), ("carried", 700, 2), ("carried", 1600, 2)])
def test_short_reports_take_few_lines(page: Page, name: str, width: int, lines: int) -> None:
    """A death is two lines in a wide window. What the cell before left and the value are two lines in a narrow one too."""
    page.set_viewport_size({"width": width, "height": 500})
    page.set_content(f"<!doctype html><body style='font:13px/17px sans-serif'>{OUTPUTS[name]}")
    box = page.locator(".mhnb").bounding_box()
    assert box is not None
    assert box["height"] < (lines + 0.8) * 17


def test_untrusted_layout_opens_slice_by_slice(page: Page) -> None:
    """Each slice along a leading dim opens by a click and shows its colours, ranges, devices and hosts."""
    layout = Layout.of((8, 4, 6), {"data": 4, "model": 2}, "P('data', None, 'model')", devices_per_host=2)
    page.set_content(_untrusted(print_html(build_layout(layout, name="x", uid="mhnb-a"))))
    panes = page.locator(".pane")
    assert [panes.nth(at).locator("table").is_visible() for at in range(4)] == [True, False, False, False]
    panes.nth(2).locator("summary").click()
    tile = panes.nth(2).locator("td[title]").first
    assert tile.is_visible()
    assert (tile.inner_text(), tile.get_attribute("title")) == ("2:0", "[4:6, 0:4, 0:3] · 96 B · 2:0 (host2)")
    assert tile.evaluate("e => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("theme", ["#ffffff", "#111111"])
def test_tile_has_contrast_in_both_themes(page: Page, theme: str) -> None:
    """A tile sets no text colour, and the theme's own has a contrast of at least 4.5 to 1 over the tile's tint."""
    ink = "#111111" if theme == "#ffffff" else "#ffffff"
    layout = Layout.of((8, 8), {"data": 8}, "P('data')", devices_per_host=1)
    page.set_content(f'<body style="background:{theme};color:{ink}">{print_html(build_layout(layout))}</body>')
    tints = page.locator("td[title]").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(tints)) == len(HOST_COLORS)
    background, letters = (
        _rgb(f"rgb({int(c[1:3], 16)}, {int(c[3:5], 16)}, {int(c[5:], 16)})")[:3] for c in (theme, ink)
    )
    for tint in tints:
        *color, alpha = _rgb(tint)
        seen = [alpha * over + (1 - alpha) * under for over, under in zip(color, background, strict=True)]
        assert contrast(seen, letters) >= 4.5


def test_pointer_shows_the_value_of_a_chart(page: Page) -> None:
    """The value at the pointer is drawn at once, in sight and above the curve, without a script."""
    card = build_card(log_curve([[1 / (1 + at) for at in range(9)]] * 2), done=True)
    page.set_content(print_html([Drawing(draw_card(card))]))
    box = page.locator(".mhnb-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    shown = page.locator(".mhnb-points>i:hover")
    content, bottom = shown.evaluate(
        "e => { const style = getComputedStyle(e, '::after'); return [style.content, parseFloat(style.bottom)]; }"
    )
    assert (content, bottom) == ('"step 4: 0.2"', box["height"])


def test_error_has_contrast_in_dark_editor(page: Page) -> None:
    """VS Code lacks JupyterLab's variables, so on its dark background the error uses another red."""
    page.set_content(f'<body class="vscode-dark" style="background:#1f1f1f;color:#ccc">{OUTPUTS["error"]}</body>')
    letters = _rgb(page.locator(".mhnb-bad").first.evaluate("e => getComputedStyle(e).color"))
    assert contrast([31, 31, 31], letters[:3]) >= 4.5


def _rgb(text: str) -> list[float]:
    return [float(part) for part in re.findall(r"[\d.]+", text)]


@pytest.mark.sample(6)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_exported_page_is_accessible(browser: Browser, name: str, theme: str) -> None:
    """axe finds no fault in any output of a page exported by nbconvert, in either theme."""
    import nbformat
    from nbconvert import HTMLExporter

    output = nbformat.v4.new_output("display_data", {"text/html": OUTPUTS[name], "text/plain": "x"})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    html, _ = HTMLExporter(template_name="lab", theme=theme).from_notebook_node(notebook)
    page = browser.new_page()
    # The page would load MathJax from the network.
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="commit")
    page.wait_for_selector(".mhnb", state="attached")
    assert violations(page, ".mhnb") == []
    page.close()


PANEL = """async (source) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const heard = {};
  const values = {
    kind: "result", view: "fold", number: 1, head: "cell 1", runs: false, page: "<details id='fold'><summary>ranks</summary>all</details>",
    ranks: [0, 1].map((rank) => ({ rank, host: "host", mark: "", differs: false, color: "" })),
  };
  const model = { get: (name) => values[name], on: (name, act) => { heard[name] = act; }, off: () => {}, send: () => {} };
  (await import(url)).default.render({ model, el: document.body });
  window.differ = (rank) => {
    values.ranks = values.ranks.map((one) => ({ ...one, differs: one.rank === rank }));
    heard["change:number"]();
  };
  window.run = (runs) => {
    values.runs = runs;
    heard["change:number"]();
  };
  window.answer = () => heard["msg:custom"]({ bodies: { 0: "said by 0", 1: "said by 1" } });
}"""


def test_late_answer_does_not_change_the_fold(browser: Browser) -> None:
    """An answer for tabs or a grid that arrives after the return to the fold changes neither open blocks nor the focus."""
    page = browser.new_page()
    page.evaluate(PANEL, (Path(view.__file__).parent / "live" / "panel.js").read_text())
    page.get_by_role("radio", name="Grid").click()
    page.get_by_role("radio", name="Fold").click()
    page.locator("#fold summary").click()
    page.evaluate("answer()")
    assert page.locator("#fold").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.get_by_role("radio", name="Grid").click()
    assert page.locator(".mhnb-card").all_inner_texts() == ["rank 0 host\nsaid by 0", "rank 1 host\nsaid by 1"]
    page.close()


def test_panel_opens_differing_tab_until_one_is_selected(browser: Browser) -> None:
    """The tab of the differing rank opens, also for later results, until the user selects a tab, which then stays."""
    page = browser.new_page()
    page.evaluate(PANEL, (Path(view.__file__).parent / "live" / "panel.js").read_text())
    page.get_by_role("radio", name="Tabs").click()
    chosen = page.locator('[role="tab"][aria-selected="true"]')
    assert chosen.inner_text() == "rank 0"
    page.evaluate("differ(1)")
    assert chosen.inner_text() == "rank 1"
    page.get_by_role("tab", name="rank 1").click()
    page.evaluate("differ(0)")
    assert chosen.inner_text() == "rank 1"
    page.close()


def test_rank_filter_shows_matching_cards(browser: Browser) -> None:
    """A filter of ranks switches from fold to cards, because the fold has all ranks; without a match there is a message."""
    page = browser.new_page()
    page.evaluate(PANEL, (Path(view.__file__).parent / "live" / "panel.js").read_text())
    pressed, ranks = page.get_by_role("radio", checked=True), page.get_by_label("ranks, like 0,2-3")
    assert pressed.inner_text() == "Fold"
    ranks.fill("1")
    assert pressed.inner_text() == "Grid"
    assert page.locator(".mhnb-card").count() == 1
    ranks.fill("7")
    for layout in ("Fold", "Tabs", "Grid"):
        page.get_by_role("radio", name=layout).click()
        assert page.locator(".mhnb-shown").inner_text() == "no rank matches 7"
        assert page.get_by_role("tab").count() == 0
    page.get_by_role("radio", name="Fold").click()
    ranks.fill("")
    assert pressed.inner_text() == "Fold"
    assert page.locator("#fold").is_visible()
    page.close()


def test_panel_reports_silent_kernel(browser: Browser) -> None:
    """A panel over a running cell reports a silent kernel, because its clock stops; over a finished cell it does not."""
    page = browser.new_page()
    page.clock.install()
    page.evaluate(PANEL, (Path(view.__file__).parent / "live" / "panel.js").read_text())
    head = page.locator(".mhnb-panel > .mhnb-quiet")
    page.clock.run_for(30_000)
    assert head.inner_text() == "cell 1"
    page.evaluate("run(true)")
    page.clock.run_for(9_000)
    page.evaluate("run(true)")
    page.clock.run_for(9_000)
    assert head.inner_text() == "cell 1"
    page.clock.run_for(2_000)
    assert head.inner_text() == "cell 1 · no word from the kernel since then"
    page.evaluate("run(false)")
    page.clock.run_for(30_000)
    assert head.inner_text() == "cell 1"
    page.close()


# -- figures and tables

_BOXES = "all => all.map(e => { const box = e.getBoundingClientRect(); return [box.x, box.y, box.width]; })"


def _show(page: Page, name: str, width: int, *, untrusted: bool = False) -> None:
    """Show an output in a page of this width, as JupyterLab would: in a sans-serif font, with small margins."""
    html = _untrusted(OUTPUTS[name]) if untrusted else OUTPUTS[name]
    page.set_viewport_size({"width": width, "height": 900})
    page.set_content(f"<!doctype html><body style='font:13px sans-serif;margin:8px'>{html}")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("untrusted", [False, True], ids=["trusted", "untrusted"])
@pytest.mark.parametrize(("width", "beside"), [(1600, 4), (1300, 4), (700, 2), (400, 1)])
def test_figures_are_a_strip(page: Page, width: int, beside: int, untrusted: bool) -> None:  # noqa: FBT001
    """Four figures are side by side on a wide page, and large enough on a narrow one; each has its ranks above it."""
    if untrusted and width == 1300:
        beside = 3  # The limit is a fixed width where there is no style sheet.
    _show(page, "figures that differ", width, untrusted=untrusted)
    boxes = page.locator("img").evaluate_all(_BOXES)
    assert sum(y == boxes[0][1] for _, y, _ in boxes) == beside
    assert min(wide for _, _, wide in boxes) >= 280
    for rank, (x, y, _) in enumerate(boxes):
        label = page.get_by_text(f"rank {rank}", exact=True).bounding_box()
        assert label is not None
        assert (round(label["x"]), label["y"] < y) == (round(x), True)


def test_few_figures_get_more_room(page: Page) -> None:
    """Two figures are in their own size where there is room for it."""
    _show(page, "a figure that differs", 1600)
    assert [wide for _, _, wide in page.locator("img").evaluate_all(_BOXES)] == [540, 540]


@pytest.mark.parametrize("name", ["figures that differ", "grid of figures"])
def test_figure_opens_to_its_own_size(page: Page, name: str) -> None:
    """A click, Enter or Space opens a figure of a strip to its own size, and the same again closes it."""
    _show(page, name, 1300)
    image, fold = page.locator("img").nth(1), page.locator("summary").nth(1)
    before = image.evaluate("e => e.width")
    assert before < 540
    for act in (image.click, lambda: fold.press("Enter"), lambda: fold.press("Space")):
        act()
        assert image.evaluate("e => e.width") == 540
        act()
        assert image.evaluate("e => e.width") == before


def test_wide_figure_opens_and_scrolls(page: Page) -> None:
    """A figure wider than the page opens to its own size, which scrolls in its own box."""
    _show(page, "a wide figure", 700)
    image = page.locator("img")
    assert image.evaluate("e => e.width") <= 700
    image.click()
    assert image.evaluate("e => e.width") == 1800
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.locator("details").evaluate("e => e.scrollTo(2000, 0)")
    assert page.locator("details").evaluate("e => e.scrollLeft") > 1000


@pytest.mark.parametrize(
    ("name", "last", "box"),
    [
        ("a wide frame", "th:has-text('column 39')", "[tabindex]"),
        ("a wide drawn table", "pre[tabindex]", "pre[tabindex]"),
    ],
)
def test_wide_table_scrolls_by_keyboard(page: Page, name: str, last: str, box: str) -> None:
    """A table wider than the page loses no column: Tab and the arrow keys scroll it in its own box."""
    _show(page, name, 700)
    scroller = page.locator(box).first
    size = "e => [e.scrollWidth > e.clientWidth, e.getBoundingClientRect().right <= innerWidth]"
    assert scroller.evaluate(size) == [True, True]
    assert page.locator(last).count() == 1
    page.keyboard.press("Tab")
    assert scroller.evaluate("e => e === document.activeElement")
    page.keyboard.press("End")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    wait_until(lambda: scroller.evaluate("e => e.scrollLeft > 0"), "the table scrolls")


def test_lines_of_a_drawn_table_are_not_wrapped(page: Page) -> None:
    """Each line of a drawn table is one line of the page, also on a narrow one; the text above it is wrapped."""
    _show(page, "a wide drawn table", 700)
    heights = page.locator("pre").evaluate_all("all => all.map(e => e.clientHeight)")
    assert heights[0] > 2 * 13
    assert heights[1] < 5 * 20


def test_frames_are_as_wide_as_they_need(page: Page) -> None:
    """Narrow tables of ranks are side by side, complete, in the fold and in a grid."""
    for name in ("frames that differ", "grid of frames"):
        _show(page, name, 1600)
        boxes = page.locator("table").evaluate_all(_BOXES)
        assert len({y for _, y, _ in boxes}) == 1
        hidden = page.locator("table").evaluate_all(
            "all => all.map(e => e.parentElement.scrollWidth > e.parentElement.clientWidth)"
        )
        assert not any(hidden)


FIGURES_IN_PANEL = """async (source) => {
  const html = document.body.innerHTML;
  document.body.innerHTML = "";
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const heard = {};
  const values = {
    mode: "panel", view: "grid", number: 1, head: "cell 1", runs: false, page: html,
    ranks: [0, 1, 2, 3].map((rank) => ({ rank, host: "", mark: "", differs: false, color: "" })),
  };
  const model = { get: (name) => values[name], on: (name, act) => { heard[name] = act; }, off: () => {}, send: () => {} };
  (await import(url)).default.render({ model, el: document.body });
  window.answer = (bodies) => heard["msg:custom"]({ bodies });
}"""


def test_grid_of_a_panel_is_sized_by_its_content(browser: Browser) -> None:
    """Figures in a panel's grid are side by side and open to their own size; "Expand" opens folds only."""
    live = Path(view.__file__).parent / "live"
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_content(OUTPUTS["figures that differ"])
    page.evaluate(FIGURES_IN_PANEL, (live / "panel.js").read_text())
    page.add_style_tag(content=read_style())
    result = PICTURE_SAMPLES["figures that differ"]
    bodies = {str(rank.rank): format_rank_body(rank, RankLocations(), may_shrink=True) for rank in result}
    page.evaluate("(bodies) => answer(bodies)", bodies)
    images = page.locator("img")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    boxes = images.evaluate_all(_BOXES)
    assert len({y for _, y, _ in boxes}) == 1
    assert min(wide for _, _, wide in boxes) > 280
    images.first.click()
    assert images.first.evaluate("e => e.width") == 540
    page.get_by_role("radio", name="Fold").click()
    page.get_by_role("button", name="Expand").or_(page.get_by_role("button", name="Collapse")).click()
    assert page.locator("details[open]").count() == 0
    page.close()
