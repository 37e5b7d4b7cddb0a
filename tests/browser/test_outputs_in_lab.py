"""Outputs of the ranks in a real JupyterLab: live, folded, in tabs, in the panel, dark, after the kernel and the trust are gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from tests.leftovers import no_leftovers
from tests.support.axe import violations
from tests.support.lab import Heard, Lab, LabPage, open_chromium, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.ranks, pytest.mark.requires_part("browser"), pytest.mark.timeout(600)]

START = "%load_ext mhnb\n%mhjax start -n 4 --devices 1"
OWN = "%%mhjax\nimport jax, time\nme = jax.process_index()\nprint(f'process {me} of 4: local device {me}:0')"
ODD = "%%mhjax\nprint('loss', 0.731 if me == 2 else 0.312)"
NUMBERS = "%%mhjax\nprint('loss', 0.25 * me + 0.125, 'step 7')"
TABS = "%%mhjax --view tabs\nprint('word', 'abcd'[me])"
GRID = "%%mhjax --view grid\nprint('card', 'abcd'[me])"
ERROR = "%%mhjax\nx = 1\nif me == 2:\n    raise ValueError('only here')"
LONG = "%%mhjax\nfor step in range(25):\n    print(f'rank {me} at step {step}', flush=True)\n    time.sleep(0.1)"
PANEL = "%mhjax panel 2"
BLOCKED = "%%mhjax\nprint('it begins')\nwhile True: time.sleep(0.01)"
MANY = """
from mhnb.view.live import CellView
from tests.view.samples import cell, out
CellView().finish(cell(*[[out(f"rank {r} loss {1 / (1 + r % 9):.3f}\\n" if r != 40 else "rank 40 loss nan\\n")] for r in range(64)]))
"""
SOURCES = (START, OWN, ODD, NUMBERS, TABS, GRID, ERROR, LONG, MANY, PANEL, BLOCKED)
EACH = {OWN: "process {} of 4", NUMBERS: "0.{}", LONG: "rank {} at step 24"}


@dataclass(frozen=True, slots=True)
class Ran:
    """A notebook that was run in a page that is still open."""

    browser: Browser
    lab: Lab
    page: LabPage
    saved: Path

    def area(self, source: str) -> Any:
        """What stands under a cell."""
        return self.page.cell(SOURCES.index(source)).locator(".jp-Cell-outputArea")


@pytest.fixture(scope="module")
def ran(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Run every cell but the blocked one, and save."""
    root = tmp_path_factory.mktemp("outputs")
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    cells[SOURCES.index(ERROR)].metadata["tags"] = ["raises-exception"]
    saved = root / "outputs.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), saved)
    with no_leftovers(mhnb_home), open_chromium() as browser, Lab(root) as lab, lab.page(browser) as page:
        page.open(saved.name)
        for index in range(len(SOURCES) - 1):
            page.begin_cell(index)
            page.wait_idle(limit_s=150)
        page.save()
        shutil.copy(saved, root / "kept.ipynb")
        yield Ran(browser, lab, page, root / "kept.ipynb")


def test_ranks_own_numbers_are_one_line(ran: Ran) -> None:
    """Four ranks, one line, and each rank's words behind a click."""
    text = ran.area(OWN).inner_text()
    assert "process ‹rank› of 4: local device ‹rank›:0" in text
    assert "process 3 of 4" not in text
    seen = ran.page.readable(SOURCES.index(OWN))
    assert all(f"process {rank} of 4: local device {rank}:0" in seen for rank in range(4))


def test_the_odd_rank_tells_how_it_differs(ran: Ran) -> None:
    """On top, with the majority's value beside its own."""
    lines = ran.area(ODD).inner_text().splitlines()
    assert "rank 2 differs" in lines[0]
    assert "loss 0.731 ← 0.312 elsewhere" in lines[lines.index("rank 2 host2 ≠") + 1]


def test_numbers_are_a_table(ran: Ran) -> None:
    """Every rank's value can be seen without a click."""
    text = ran.area(NUMBERS).inner_text()
    assert "loss ‹a› step 7" in text
    assert all(value in text for value in ("0.125", "0.375", "0.625", "0.875"))


def test_a_tab_opens_by_keyboard(ran: Ran) -> None:
    """Without any script of ours: Enter on the tab's name."""
    area = ran.area(TABS)
    assert area.get_by_text("word c").is_hidden()
    area.locator("summary").nth(2).focus()
    ran.page.page.keyboard.press("Enter")
    assert area.get_by_text("word c").is_visible()
    assert area.get_by_text("word a").is_hidden()


def test_a_grid_stands_side_by_side(ran: Ran) -> None:
    """Four cards, two of them at least on one line."""
    boxes = [box for rank in range(4) if (box := ran.area(GRID).get_by_text(f"card {'abcd'[rank]}").bounding_box())]
    assert len(boxes) == 4
    assert len({box["y"] for box in boxes}) < 4


def test_the_error_card_leads_to_the_line(ran: Ran) -> None:
    """A click puts the cursor on the line that raised."""
    card = ran.area(ERROR)
    assert card.inner_text().splitlines()[0] == "✗ ValueError on rank 2 · ranks 0-1,3 finished"
    card.get_by_role("button", name="line 3").click()
    at = "() => getSelection().anchorNode?.parentElement.closest('.cm-line')?.textContent"
    assert ran.page.page.evaluate(at) == "    raise ValueError('only here')"


def test_a_long_cell_was_seen_while_it_ran(ran: Ran) -> None:
    """The widget opened, was sent parts, at most ten times a second, and was closed."""
    heard = _messages_of(ran.page.heard, "at step")
    states = [
        m.content["data"]["state"] for m in heard if m.msg_type == "comm_msg" and "state" in m.content.get("data", {})
    ]
    assert [m.msg_type for m in heard].count("comm_open") >= 1
    assert any("at step" in state.get("block_0", "") for state in states)
    assert len(states) < 45
    assert all(len(json.dumps(state)) < 20_000 for state in states)


def _messages_of(heard: list[Heard], text: str) -> list[Heard]:
    first = next(i for i, m in enumerate(heard) if m.msg_type == "execute_input" and text in m.content["code"])
    same = [i for i, m in enumerate(heard) if m.parent_id == heard[first].parent_id]
    idle = next(i for i in same if heard[i].content.get("execution_state") == "idle")
    return heard[first:idle]


def test_sixty_four_ranks_fit_a_screen(ran: Ran) -> None:
    """One template, a line of steps, and the rank that is not a number named."""
    area = ran.area(MANY)
    assert "not a finite number on rank 40" in area.inner_text()
    assert (area.bounding_box() or {"height": 999})["height"] < 200


def test_the_panel_is_worked_by_keyboard(ran: Ran) -> None:
    """Layouts and tabs are roving: arrows move, one tab stop each."""
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


def test_the_panel_finds_the_next_difference(ran: Ran) -> None:
    """The button, and the key n inside the panel."""
    panel = ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Tabs").click()
    panel.get_by_role("tab", name="rank 0").click()
    panel.get_by_title("next difference (n)").click()
    assert panel.get_by_role("tab", name="rank 2").get_attribute("aria-selected") == "true"
    panel.get_by_role("radio", name="Fold").click()
    ran.page.page.keyboard.press("n")
    assert ran.page.page.evaluate("() => document.activeElement.classList.contains('mhnb-odd')")


def test_the_panel_filters_and_searches(ran: Ran) -> None:
    """Some ranks; then words, counted and marked. Keys typed there do not reach Lab."""
    cells = ran.page.page.locator(".jp-Notebook .jp-Cell").count()
    panel = ran.area(PANEL).locator(".mhnb-panel")
    panel.get_by_role("radio", name="Grid").click()
    panel.get_by_label("ranks, like").press_sequentially("1-2")
    assert panel.locator(".mhnb-card").count() == 2
    panel.get_by_text("loss 0.731").wait_for()
    panel.get_by_label("search").press_sequentially("loss")
    panel.get_by_text("2 found").wait_for()
    assert panel.locator("mark").count() == 2
    panel.get_by_label("search").press("Escape")
    panel.get_by_label("ranks, like").press("Escape")
    assert panel.locator(".mhnb-card").count() == 4
    assert ran.page.page.locator(".jp-Notebook .jp-Cell").count() == cells


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_nothing_is_hard_to_read(ran: Ran, theme: str) -> None:
    """axe finds no fault in any output, in either theme."""
    ran.page.command("apputils:change-theme", theme=theme)
    ran.page.page.wait_for_function("t => document.body.dataset.jpThemeName === t", arg=theme)
    try:
        assert violations(ran.page.page, ".mhnb") == []
    finally:
        ran.page.command("apputils:change-theme", theme="JupyterLab Light")


def test_a_button_interrupts_a_cell_that_blocks(ran: Ran) -> None:
    """The stop button is not needed; the cell ends as interrupted, and the strip was there."""
    index = SOURCES.index(BLOCKED)
    ran.page.begin_cell(index)
    area = ran.page.cell(index).locator(".jp-Cell-outputArea")
    area.get_by_role("button", name="Interrupt").wait_for(timeout=60_000)
    assert area.locator(".mhnb-strip li").count() == 4
    assert violations(ran.page.page, ".mhnb-panel") == []
    area.get_by_role("button", name="Where").click()
    area.get_by_text("line 2:").first.wait_for(timeout=60_000)
    area.get_by_role("button", name="Interrupt").click()
    ran.page.wait_idle(limit_s=60)
    assert "interrupted" in area.inner_text().lower()
    assert "it begins" in area.inner_text()


def _readable(page: LabPage) -> None:
    for source, words in EACH.items():
        seen = page.readable(SOURCES.index(source))
        values = ("125", "375", "625", "875") if source == NUMBERS else range(4)
        assert [value for value in values if words.format(value) not in seen] == []
    assert "only here" in page.readable(SOURCES.index(ERROR))


def test_reopened_without_a_kernel(ran: Ran) -> None:
    """Every rank's words are there, and no broken widget but the panel's."""
    with ran.lab.page(ran.browser) as page:
        page.open(ran.saved.name, kernel=False)
        _readable(page)


def test_reopened_where_it_is_not_trusted(ran: Ran, tmp_path: Path) -> None:
    """Somebody else's JupyterLab takes styles, names and scripts away, and the words stay."""
    shutil.copy(ran.saved, tmp_path / "theirs.ipynb")
    with Lab(tmp_path) as lab, lab.page(ran.browser) as page:
        page.open("theirs.ipynb", kernel=False)
        _readable(page)


def test_pictures(ran: Ran, tmp_path: Path) -> None:
    """Each output can be taken as a picture, for whoever looks at them."""
    for index in range(1, len(SOURCES) - 1):
        ran.page.screenshot(tmp_path / f"{index}.png", cell=index)
    wait_until(lambda: len(list(tmp_path.glob("*.png"))) == len(SOURCES) - 2, "pictures are written")
