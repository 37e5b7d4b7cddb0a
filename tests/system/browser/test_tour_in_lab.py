"""The tour in a real JupyterLab: what a user sees while it runs, and what the file contains afterwards.

The tour runs once for this module, with one cell added that takes a while.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lab import ROOT, KernelMessage, Lab, LabPage, open_chromium
from tests.support.leftovers import no_leftovers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ranks,
    pytest.mark.requires_part("browser"),
    pytest.mark.timeout(300),
]

RANKS = range(4)
TOUR = ROOT / "notebooks" / "00_tour.ipynb"
LONG = "%%mhjax\nimport time\nprint('long cell on rank', jax.process_index(), flush=True)\ntime.sleep(1.5)"
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, slots=True)
class TourRun:
    """The tour after Run All: the live page and the saved file."""

    browser: Browser
    lab: Lab
    page: LabPage
    saved: Path

    def index(self, text: str) -> int:
        """Return the position of the code cell that contains the text."""
        cells = json.loads(self.saved.read_text())["cells"]
        return next(i for i, c in enumerate(cells) if c["cell_type"] == "code" and text in "".join(c["source"]))


def with_long_cell(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the tour with a long cell before the last code cell, which stops the cluster."""
    last = max(i for i, cell in enumerate(notebook["cells"]) if cell["cell_type"] == "code")
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "long",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": LONG,
    }
    return {**notebook, "cells": [*notebook["cells"][:last], cell, *notebook["cells"][last:]]}


@pytest.fixture(scope="module")
def ran(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TourRun]:
    """Run the whole tour once in a JupyterLab, save it, and keep the page open."""
    root = tmp_path_factory.mktemp("lab")
    saved = root / TOUR.name
    saved.write_text(json.dumps(with_long_cell(json.loads(TOUR.read_text()))))
    with no_leftovers(mhnb_home), open_chromium() as browser, Lab(root) as lab, lab.page(browser, scale=2) as page:
        page.open(saved.name)
        page.run_all(limit_s=150)
        page.save()
        yield TourRun(browser, lab, page, saved)


def text_per_rank(words: str) -> list[str]:
    """Return what the tour's cells print with each rank's own number."""
    return [f"{words} {rank}" for rank in RANKS]


def test_every_rank_is_visible(ran: TourRun) -> None:
    """The output of each of the four ranks is readable below the cell that lists the devices."""
    seen = ran.page.readable(ran.index("jax.local_devices()"))
    assert [words for words in text_per_rank("process index") if f"{words} of 4" not in seen] == []


def test_sum_is_equal_on_every_rank(ran: TourRun) -> None:
    """The sum over all devices is shown as 2016 for ranks 0 to 3, also after the cell in which rank 2 raised."""
    for text in ("def total(shard)", "psum again"):
        seen = ran.page.readable(ran.index(text))
        assert "2016.0" in seen
        assert "0-3" in seen


def test_the_layout_and_the_collectives_are_drawn(ran: TourRun) -> None:
    """The layout shows each device with its host, and the report shows one all-reduce with its bytes in and across hosts."""
    layout = ran.page.cell(ran.index("%mhjax layout x")).locator(".jp-Cell-outputArea").inner_text()
    assert [word for word in ("0:0", "3:1", "host0", "host3", "32 B per device") if word not in layout] == []
    report = ran.page.cell(ran.index("%mhjax collectives add(x)")).locator(".jp-Cell-outputArea").inner_text()
    assert [word for word in ("all-reduce", "data, model (hosts)", "4 B", "3 B", "line 3") if word not in report] == []


def test_the_failing_rank_is_named_without_a_click(ran: TourRun) -> None:
    """The cell that raises only on rank 2 names the rank and the error without a click."""
    seen = ran.page.cell(ran.index("reshape(7, -1)")).locator(".jp-Cell-outputArea").inner_text()
    assert "rank 2" in seen
    assert "ValueError" in seen


def test_a_widget_was_open_while_the_long_cell_ran(ran: TourRun) -> None:
    """A comm_open reached the page between the start of the long cell and its end."""
    during = messages_of_cell(ran.page.kernel_messages, "long cell on rank")
    assert "comm_open" in [message.msg_type for message in during]


def messages_of_cell(messages: list[KernelMessage], text: str) -> list[KernelMessage]:
    """Return the messages from a cell's execute_input to its idle."""
    first = next(i for i, m in enumerate(messages) if m.msg_type == "execute_input" and text in m.content["code"])
    of_cell = [i for i, m in enumerate(messages) if m.parent_id == messages[first].parent_id]
    idle = next(i for i in of_cell if messages[i].content.get("execution_state") == "idle")
    return messages[first:idle]


def test_no_widget_is_in_the_saved_file(ran: TourRun) -> None:
    """The saved notebook has every rank's text, and no widget view or widget state."""
    text = ran.saved.read_text()
    assert WIDGET not in text
    assert "widgets" not in json.loads(text)["metadata"]
    assert [words for words in text_per_rank("long cell on rank") if words not in text] == []


def assert_readable(page: LabPage, ran: TourRun) -> None:
    """Check what every reader of the saved file must find."""
    seen = page.readable(ran.index("jax.local_devices()")) + page.readable(ran.index("long cell on rank"))
    wanted = text_per_rank("process index") + text_per_rank("long cell on rank")
    assert [words for words in wanted if words not in seen] == []
    whole = page.page.locator(".jp-Notebook").inner_text()
    assert [text for text in ("model not found", "Loading widget", "Error displaying widget") if text in whole] == []


def test_reopened_without_a_kernel(ran: TourRun) -> None:
    """The saved tour, opened again with no kernel in the same JupyterLab, shows every rank's output."""
    again = ran.saved.with_name("again.ipynb")
    shutil.copy(ran.saved, again)
    with ran.lab.page(ran.browser) as page:
        page.open(again.name, kernel=False)
        assert_readable(page, ran)


@pytest.mark.soak
def test_reopened_untrusted(ran: TourRun, tmp_path: Path) -> None:
    """The saved tour, opened in another JupyterLab that does not trust it, shows every rank's output."""
    shutil.copy(ran.saved, tmp_path / "theirs.ipynb")
    with Lab(tmp_path) as lab, lab.page(ran.browser) as page:
        page.open("theirs.ipynb", kernel=False)
        assert_readable(page, ran)
