"""The live card of a running cell in a real browser, drawn from the frames that a kernel would send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mhnb import view
from mhnb.core.output.results import CellResult, RankResult
from mhnb.view.html import RankLocations
from mhnb.view.live.frame import MAX_BLOCKS, build_frame, frame_parts
from mhnb.view.live.widget import read_style
from tests.support.axe import violations
from tests.support.lab import open_chromium
from tests.support.metric_samples import training_cell
from tests.support.view_samples import cell, out, with_ranks_at_different_lines, with_states
from tests.unit.view.reports.test_hang import HANG, STOP_LINE, STOPPED

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

HANGING = replace(
    cell(*[[out(f"it begins at {rank}\n")] for rank in range(4)], done=False, wall_s=8.2),
    where=replace(HANG, memory_nbytes={rank: (300 + rank) * 2**20 for rank in range(4)}),
)
CALM = replace(HANGING, where=replace(HANG, waiting=(), absent=(), stuck=False, lines=dict.fromkeys(range(4), 4)))
LONG = cell(
    *[[out("".join(f"rank {rank} says {chr(97 + line) * (rank + 1)}\n" for line in range(12)))] for rank in range(64)],
    done=False,
    wall_s=8.2,
)

MOUNT = """async ([script, style, values]) => {
  const heard = {};
  window.sent = [];
  const model = {
    get: (name) => values[name], send: (message) => window.sent.push(message), off: () => {},
    on: (name, act) => { (heard[name] ??= []).push(act); },
  };
  window.put = (parts) => {
    const changed = Object.keys(parts).filter((name) => values[name] !== parts[name]);
    Object.assign(values, parts);
    for (const name of [...changed.map((name) => `change:${name}`), "change"]) (heard[name] ?? []).forEach((act) => act());
  };
  window.shift = 0;
  const add = (entries) => { for (const entry of entries) window.shift += entry.value; };
  const observer = new PerformanceObserver((list) => add(list.getEntries()));
  observer.observe({ type: "layout-shift", buffered: true });
  // Of all frames up to now: the page has drawn the last change once the frame after it begins.
  window.readShift = async () => {
    for (const _ of [1, 2]) await new Promise((done) => requestAnimationFrame(done));
    add(observer.takeRecords());
    return window.shift;
  };
  const sheet = document.createElement("style");
  sheet.textContent = style;
  document.head.append(sheet);
  const place = document.querySelector("#live");
  // A widget is not HTML of a document, whose lists JupyterLab indents.
  place.closest(".jp-OutputArea-output").classList.remove("jp-RenderedHTML", "jp-RenderedHTMLCommon");
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: place });
}"""
"""Draws the card with a model that has the values which a kernel would send; `put` sends others."""


def parts_of(snapshot: CellResult, **options: Any) -> dict[str, str]:
    """Return what a kernel would send."""
    hosts = {rank.rank: f"host{rank.rank // 4}" for rank in snapshot.ranks}
    return frame_parts(build_frame(snapshot, RankLocations(hosts, cluster="demo"), **options))


class Card:
    """A live card in JupyterLab's page elements and styles, as nbconvert writes them, with a text below it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def show(self, snapshot: CellResult, **options: Any) -> None:
        """Draw a new card."""
        live = Path(view.__file__).parent / "live"
        fixed = {"mode": "live", "placeholder": "mhnb-placeholder", "blocks": MAX_BLOCKS, "runs": True, "page": ""}
        values = fixed | parts_of(snapshot, **options)
        self.page.evaluate("document.querySelector('#live').replaceChildren()")
        self.page.evaluate(MOUNT, [(live / "panel.js").read_text(), read_style(), values])

    def update(self, snapshot: CellResult, **options: Any) -> None:
        """Send another frame."""
        self.page.evaluate("parts => put(parts)", parts_of(snapshot, **options))

    @property
    def chips(self) -> Locator:
        """The chips."""
        return self.page.locator(".mhnb-strip li")

    def button(self, name: str) -> Locator:
        """Return a button."""
        return self.page.get_by_role("button", name=name)

    def top_of(self, locator: Locator) -> float:
        """Return how far an element is below the viewport's top."""
        top: float = locator.evaluate("e => e.getBoundingClientRect().top")
        return top


def _open_page(browser: Browser, theme: str) -> Page:
    import nbformat
    from nbconvert import HTMLExporter

    output = nbformat.v4.new_output("display_data", {"text/html": '<div id="live"></div>', "text/plain": "x"})
    code = nbformat.v4.new_code_cell("1", outputs=[output])
    below = nbformat.v4.new_markdown_cell("below the cell\n\n" * 40)
    notebook = nbformat.v4.new_notebook(cells=[code, below])
    html, _ = HTMLExporter(template_name="lab", theme=theme).from_notebook_node(notebook)
    page = browser.new_page(viewport={"width": 748, "height": 700})
    # The page would load MathJax from the network.
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="commit")
    page.wait_for_selector("#live", state="attached")
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(browser: Browser) -> dict[str, Page]:
    """A page in either theme, 748 px wide: 700 px for the card."""
    return {theme: _open_page(browser, theme) for theme in ("light", "dark")}


@pytest.fixture
def card(pages: dict[str, Page]) -> Card:
    """A card in the light theme."""
    pages["light"].evaluate("scrollTo(0, 0)")
    return Card(pages["light"])


@pytest.mark.parametrize("snapshot", [with_states(16), with_states(64), with_states(256)], ids=["16", "64", "256"])
def test_chips_take_at_most_eight_lines(card: Card, snapshot: CellResult) -> None:
    """Ranks that are all at different lines, in nine states, have at most eight lines of chips in 700 px."""
    card.show(snapshot)
    assert 690 <= card.page.locator(".mhnb-live").evaluate("e => e.clientWidth") <= 710
    assert card.page.locator(".mhnb-strip").evaluate("e => e.clientHeight") <= 8 * 24
    boxes = card.chips.evaluate_all("all => all.map(e => [e.clientHeight, e.getBoundingClientRect().right])")
    assert {height for height, _ in boxes} == {boxes[0][0]}
    assert max(right for _, right in boxes) <= 748


def test_the_missing_are_first_and_in_the_error_colour(card: Card) -> None:
    """Each state has a colour of its own, which no other has, and a sign; the hosts' colours are in no chip."""
    card.show(with_states(64))
    words = ["missing", "failed", "unknown", "waiting", "computing", "compiling", "running", "interrupted", "ended"]
    assert [next(word for word in words if word in chip) for chip in card.chips.all_inner_texts()] == words
    style = (
        "all => all.map(e => { const s = getComputedStyle(e); return [s.borderLeftColor, s.borderLeftStyle, s.color] })"
    )
    edges = dict(zip(words, card.chips.evaluate_all(style), strict=True))
    error = card.page.evaluate("getComputedStyle(document.body).getPropertyValue('--jp-error-color1')")
    missing_color = edges["missing"][2]
    probe = (
        f"() => {{ document.body.style.outlineColor = '{error}'; return getComputedStyle(document.body).outlineColor }}"
    )
    assert card.page.evaluate(probe) == missing_color == edges["missing"][0]
    assert [word for word in words if edges[word][2] == missing_color] == ["missing"]
    assert edges["computing"] == edges["compiling"] == edges["running"]
    assert len({tuple(edges[word][:2]) for word in words}) == 7


def test_stopped_rank_has_no_colour_of_an_alarm(card: Card) -> None:
    """The chip of a rank in the debugger differs from all others, and no text has the error colour."""
    card.show(replace(HANGING, where=STOPPED))
    assert card.chips.all_inner_texts()[0].split() == ["‖", "rank", "2", "stopped", "·", "line", "4"]
    assert STOP_LINE in card.page.locator(".mhnb-live").inner_text()
    style = "all => all.map(e => { const s = getComputedStyle(e); return [s.borderLeftColor, s.borderLeftStyle] })"
    stopped = card.chips.evaluate_all(style)[0]
    assert card.page.locator(".mhnb-bad").count() == 0
    card.show(with_states(64))
    assert stopped not in card.chips.evaluate_all(style)


def test_nothing_moves_when_the_buttons_appear(card: Card) -> None:
    """The buttons are offered after a second, in a place that they have had from the start."""
    young = replace(CALM, wall_s=0.5, where=None)
    card.show(young)
    assert card.button("Interrupt").count() == 0
    body = card.page.locator(".mhnb-blocks")
    before = card.top_of(body)
    card.page.evaluate("shift = 0")
    card.update(replace(young, wall_s=1.1))
    card.button("Interrupt").wait_for()
    card.update(CALM)
    assert "line 4" in card.page.locator(".mhnb-top").inner_text()
    assert card.top_of(body) == before
    assert card.page.evaluate("readShift()") == 0


def test_line_of_chips_keeps_its_place(card: Card) -> None:
    """Once ranks have differed the chips' line stays a while, so that output does not jump each time that they differ."""
    card.show(HANGING)
    card.update(replace(HANGING, where=replace(HANG, stuck=False, waiting=(), absent=())))
    before = card.top_of(card.page.locator(".mhnb-blocks"))
    card.update(CALM)
    assert card.chips.count() == 0
    assert card.top_of(card.page.locator(".mhnb-blocks")) == before


def test_line_of_chips_goes_when_ranks_agree(browser: Browser) -> None:
    """Three seconds after the last difference no row is blank."""
    page = browser.new_page()
    page.clock.install()
    page.set_content('<div class="jp-OutputArea-output"><div id="live"></div></div>')
    calm = Card(page)
    calm.show(CALM)
    before = calm.top_of(page.locator(".mhnb-blocks"))
    calm.update(HANGING)
    calm.update(CALM)
    assert calm.top_of(page.locator(".mhnb-blocks")) > before
    height = "e => e.offsetHeight"
    high = page.locator(".mhnb-live").evaluate(height)
    page.clock.run_for(3_500)
    assert calm.top_of(page.locator(".mhnb-blocks")) == before
    assert page.locator(".mhnb-live").evaluate(height) == high, "the cells below do not move up"
    page.close()


@pytest.mark.parametrize("layout", ["fold", "rows", "grid"])
def test_interrupt_is_in_sight_wherever_the_card_is(card: Card, layout: Any) -> None:
    """With 64 ranks of 12 lines each and Show all, Interrupt is in the viewport as long as a part of the card is."""
    card.show(LONG, view=layout)
    live = card.page.locator(".mhnb-live")
    height, top = live.evaluate("e => e.clientHeight"), card.top_of(live)
    assert height > 300
    for share in (0, 0.3, 0.6, 0.9):
        card.page.evaluate("y => scrollTo(0, y)", top + share * height)
        assert abs(card.top_of(live) + share * height) < 2
        box = card.button("Interrupt").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 700 - box["height"]
        assert card.button("Interrupt").evaluate(
            "e => { const b = e.getBoundingClientRect(); return document.elementFromPoint(b.x + 5, b.y + 5) === e }"
        )


def test_shown_ranks_scroll_inside_the_card(card: Card) -> None:
    """Show all makes the card no longer than the window; the keyboard reaches what is below, and an update keeps the place."""
    card.show(LONG, view="rows")
    assert card.page.locator(".mhnb-live").evaluate("e => e.clientHeight") < 700
    blocks = card.page.get_by_role("region", name="output of each rank")
    blocks.focus()
    place = blocks.evaluate(
        "e => { e.scrollTop = e.scrollHeight; const end = e.scrollTop; e.scrollTop = 0; return end }"
    )
    assert place > 0
    card.page.keyboard.press("End")
    # The browser scrolls in several steps, and the last one may be of one pixel.
    card.page.wait_for_function("end => document.querySelector('.mhnb-blocks').scrollTop === end", arg=place)
    card.update(replace(LONG, wall_s=9.2), view="rows")
    assert blocks.evaluate("e => [e.scrollTop, document.activeElement === e]") == [place, True]
    card.update(replace(LONG, wall_s=10.2), view="fold")
    assert blocks.count() == 0


def test_shadow_shows_that_ranks_are_beyond_the_edge(card: Card) -> None:
    """Where ranks are cut off, the edge has a shadow: below at first, above once the end is in sight."""
    card.show(LONG, view="rows")
    blocks = card.page.get_by_role("region", name="output of each rank")
    box = blocks.bounding_box()
    assert box is not None

    def strip(share: float) -> bytes:
        # Beside the text, left of the scrollbar. Lines need not begin at a whole pixel.
        y = ceil(box["y"] + share * (box["height"] - 6))
        return card.page.screenshot(clip={"x": box["x"] + box["width"] - 120, "y": y, "width": 60, "height": 4})

    plain = strip(0.5)
    assert strip(0) == plain
    assert strip(1) != plain
    blocks.evaluate("e => e.scrollTo(0, e.scrollHeight)")
    assert strip(0) != plain
    assert strip(1) == plain


def test_keyboard_reaches_the_buttons(card: Card) -> None:
    """Tab goes through the buttons and on to what scrolls, with a visible ring, and updates leave the focus where it is."""
    card.show(with_states(16), expanded=True)
    card.button("Where").focus()
    card.page.keyboard.press("Shift+Tab")
    reached: list[list[str]] = []
    for _ in range(4):
        card.update(with_states(16), expanded=True)
        card.update(replace(with_states(16), wall_s=9.0 + len(reached)), expanded=True)
        reached.append(
            card.page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.getAttribute('aria-label') ?? e.innerText, s.outlineStyle, s.outlineWidth] }"
            )
        )
        card.page.keyboard.press("Tab")
    assert reached == [[name, "solid", "2px"] for name in ("Interrupt", "Where", "Show all", "each rank")]


def test_where_lists_each_rank(card: Card) -> None:
    """The button is pressed while the list is shown, which has state, line, memory and host of each rank."""
    card.show(HANGING)
    assert card.button("Where").get_attribute("aria-pressed") == "false"
    card.button("Where").click()
    assert card.page.evaluate("sent") == [{"act": "where"}]
    card.update(HANGING, expanded=True)
    assert card.button("Where").get_attribute("aria-pressed") == "true"
    rows = card.page.get_by_role("region", name="each rank").locator("tr").all_inner_texts()
    assert [row.split() for row in rows[:2]] == [
        ["rank", "host", "state", "line", "memory"],
        ["2", "host0", "!", "missing", "3", "302.0", "MiB"],
    ]
    assert len(rows) == 5


def test_ranks_of_a_metric_stay_open(card: Card) -> None:
    """The charts are a group with a name. A fold that the user opened by keyboard stays open, with the newer numbers in it."""
    card.show(training_cell(4, done=False))
    charts = card.page.get_by_role("group", name="metrics")
    fold = charts.locator("details", has_text="loss of each rank")
    fold.locator("summary").focus()
    card.page.keyboard.press("Enter")
    assert fold.locator("tr").count() == 5
    card.update(training_cell(3, done=False))
    assert fold.locator("tr").first.is_visible()
    assert fold.locator("tr").count() == 4
    assert not charts.locator("details", has_text="lr of each rank").locator("tr").first.is_visible()
    card.update(cell([], []))
    assert charts.count() == 0


def test_tooltip_stays_while_times_change(card: Card) -> None:
    """A chip that changes is the same element, which has all ranks and both ends of what differs in its tooltip."""
    card.show(with_states(64))
    first = card.chips.first.element_handle()
    later = with_states(64)
    assert later.where is not None
    memory = {rank: nbytes * 2 for rank, nbytes in later.where.memory_nbytes.items()}
    card.update(replace(later, where=replace(later.where, memory_nbytes=memory)))
    assert first.evaluate("e => e.isConnected")
    assert first.evaluate("e => e.title") == "ranks 1,10,19,28,37,46,55 · memory 614.0 MiB to 1.3 GiB"
    strip, head = card.page.locator(".mhnb-strip"), card.page.locator(".mhnb-top [role=status]")
    assert [part.get_attribute("aria-live") for part in (strip, head)] == ["off", "off"]


def test_buttons_go_when_the_kernel_is_silent(browser: Browser) -> None:
    """A kernel that says nothing for ten seconds obeys no button, so these are gone, and their place stays."""
    page = browser.new_page()
    page.clock.install()
    page.set_content('<div class="jp-OutputArea-output"><div id="live"></div></div>')
    silent = Card(page)
    silent.show(HANGING)
    before = silent.top_of(silent.chips.first)
    page.clock.run_for(10_500)
    assert silent.button("Interrupt").count() == 0
    assert "no word from the kernel" in page.locator(".mhnb-top").inner_text()
    assert silent.top_of(silent.chips.first) == before
    silent.update(replace(HANGING, wall_s=20.0))
    assert silent.button("Interrupt").is_visible()
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("snapshot", "options"),
    [
        (CALM, {}),
        (HANGING, {"expanded": True}),
        (with_states(64), {"expanded": True}),
        (LONG, {"view": "rows"}),
        (LONG, {"view": "grid"}),
        (with_ranks_at_different_lines(4, state="silent"), {}),
    ],
    ids=["calm", "hanging", "states", "rows", "grid", "unknown"],
)
@pytest.mark.sample(4)
def test_card_is_accessible(pages: dict[str, Page], theme: str, snapshot: CellResult, options: dict[str, Any]) -> None:
    """axe finds no fault in any form of the card, in either theme."""
    Card(pages[theme]).show(snapshot, **options)
    assert violations(pages[theme], ".mhnb-live") == []


def test_signs_remain_in_forced_colors(card: Card) -> None:
    """Where the system removes all colours, the styles of the borders and the signs still tell the states apart."""
    card.show(with_states(16))
    card.page.emulate_media(forced_colors="active")
    try:
        chips = card.chips.evaluate_all(
            "all => all.map(e => { const s = getComputedStyle(e), kind = e.className.split('mhnb-').at(-1);"
            " return [kind, s.borderLeftStyle, s.borderLeftWidth, e.innerText[0]] })"
        )
        found = {kind: (style, width, sign) for kind, style, width, sign in chips}
        assert found["absent"] == ("solid", "3px", "!")
        assert found["failed"] == ("double", "3px", "✗")
        assert found["waiting"] == ("dashed", "3px", "◌")
        assert found["unknown"] == ("dotted", "3px", "?")
        assert len({sign for _, _, sign in found.values()}) == len(found)
        assert violations(card.page, ".mhnb-live") == []
    finally:
        card.page.emulate_media(forced_colors="none")


def test_rank_that_ended_first_is_no_error(card: Card) -> None:
    """The heading has only what the chips do not say."""
    card.show(cell(RankResult(0, "ok", wall_s=0.5), [], done=False, wall_s=2.0))
    assert card.page.locator(".mhnb-top").inner_text().splitlines()[0] == "ranks 0-1 · running 2.0 s"
    assert card.chips.all_inner_texts() == ["●\nrank 1\nrunning", "✓\nrank 0\nended\n · 0.50 s"]
