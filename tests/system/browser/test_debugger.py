"""The debugger on the ranks in JupyterLab and Jupyter Notebook: the box in which the user types, below a cell that runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.debugger_cells import SETUP, STOPS_RANK_1, find_sums, sum_cell
from tests.support.lab import Lab, LabPage, open_chromium, wait_until
from tests.support.leftovers import no_leftovers
from tests.system.browser.test_kernel_restart import notebook

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ranks,
    pytest.mark.requires_part("browser"),
    pytest.mark.timeout(480),
]

START = "%load_ext mhnb\n%mhjax start -n 2 --devices 1"
SOURCES = (START, SETUP, STOPS_RANK_1, sum_cell(5), "%mhjax restart")
_START, _SETUP, _STOPS, _SUM, _RESTART = range(len(SOURCES))
_STOPPED = "rank 1 is stopped in the debugger at line 4"
_BOX = ".jp-OutputArea-stdin-item:not(.jp-OutputArea-stdin-hiding)"
"""The box with its prompt. A box whose line was typed is hidden at once, and removed half a second later."""


class Debugged:
    """A notebook in a browser with a cell whose rank 1 stops."""

    def __init__(self, page: LabPage) -> None:
        self.page = page
        self.box = page.cell(_STOPS).locator(f"{_BOX} input.jp-Stdin-input")
        self.prompt = page.cell(_STOPS).locator(f"{_BOX} .jp-Stdin-prompt")

    def set_up(self) -> None:
        """Define on new ranks what the cells need."""
        self.page.start_cell(_SETUP)
        self.page.wait_idle()
        assert find_sums(self.shown(_SETUP)) == [1]

    def shown(self, index: int) -> str:
        """Return the text below a cell, without what is folded."""
        return self.page.cell(index).locator(".jp-Cell-outputArea").inner_text().replace("\N{NO-BREAK SPACE}", " ")

    def stop(self) -> None:
        """Run the cell, and wait until the prompt says that rank 0 waits for rank 1."""
        self.page.start_cell(_STOPS)
        self.wait_for_box()
        self.wait_for_view("rank 0 waits for it")
        # An open box keeps its prompt. Few lines are typed, because the page folds all but the first 50 outputs of a cell.
        self.type("p 'now'")
        assert self.prompt.inner_text().rstrip().endswith("(stopped 1; waiting 0) >")

    def type(self, line: str) -> None:
        """Type a line into the box, and wait for the next one."""
        self.answer(line)
        self.wait_for_box()

    def wait_for_box(self) -> None:
        """Wait for the box. The cell must not end before."""
        wait_until(lambda: self.box.count() or not self.page.pending, "the box is there")
        assert self.box.count() == 1, self.shown(_STOPS)

    def answer(self, line: str) -> None:
        """Type a line into the box, and press Enter. The box is hidden as soon as the page has sent the line."""
        box = self.box.element_handle()
        assert box is not None
        box.fill(line)
        box.press("Enter")
        self.page.page.wait_for_function(
            "e => !e.isConnected || e.closest('.jp-OutputArea-stdin-hiding') !== null", arg=box
        )

    def wait_for_view(self, text: str) -> None:
        """Wait until the live view of the cell, or its stored form, shows a text."""
        found: Locator = self.page.cell(_STOPS).get_by_text(text)
        found.first.wait_for()

    def check_ended(self) -> None:
        """Check that the cell has ended with no box left, and that nothing keeps the user from running the next cell."""
        self.page.wait_idle()
        # Hidden boxes too: JupyterLab selects their cell once more when it removes them, and would run that one instead of the next.
        boxes = self.page.cell(_STOPS).locator(".jp-OutputArea-stdin-item")
        wait_until(lambda: boxes.count() == 0, "the box has gone")
        assert self.page.page.locator(".jp-Dialog").count() == 0

    def check_usable(self) -> None:
        """Check that the next cell runs and has the right value."""
        self.page.start_cell(_SUM)
        self.page.wait_idle()
        assert find_sums(self.shown(_SUM)) == [11]


@pytest.fixture(scope="module", params=["lab", "notebook"])
def one_debugged(
    own_environment: None, mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Debugged]:
    """One page of one front end, with 2 ranks."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "nb.ipynb").write_text(notebook(*SOURCES))
    with (
        no_leftovers(mhnb_home),
        open_chromium() as browser,
        Lab(folder, request.param) as lab,
        lab.page(browser) as page,
    ):
        page.open("nb.ipynb")
        page.start_cell(_START)
        page.wait_idle()
        debugged = Debugged(page)
        debugged.set_up()
        yield debugged


@pytest.fixture
def debugged(one_debugged: Debugged) -> Iterator[Debugged]:
    """The page, which each test leaves without a box and with usable ranks."""
    yield one_debugged
    one_debugged.check_ended()
    one_debugged.check_usable()


@pytest.mark.sample(1)
def test_user_types_into_the_box(debugged: Debugged) -> None:
    """The box shows the ranks and takes pdb's commands, whose answers are below the cell; `q` ends the cell."""
    debugged.stop()
    debugged.type("p me, 'of rank one'")
    wait_until(lambda: "(1, 'of rank one')\n" in debugged.shown(_STOPS), "the answer is shown")
    assert re.search(r"rank 1 \(stopped 1; waiting 0\) > +p me, 'of rank one'\n", debugged.shown(_STOPS))
    debugged.answer("q")
    debugged.wait_for_view("interrupted")
    wait_until(lambda: _STOPPED not in debugged.shown(_STOPS), "the live view is replaced by the result")


@pytest.mark.sample(1)
def test_long_session_is_folded_below_complete_results(debugged: Debugged) -> None:
    """The page folds what follows about 25 typed lines, but no result; a click shows the rest."""
    debugged.stop()
    for number in range(25):
        debugged.type(f"p 'answer', {number}")
    debugged.answer("q")
    debugged.check_ended()
    shown = debugged.shown(_STOPS)
    assert all(f"rank {rank} host{rank}" in shown for rank in (0, 1))
    assert "('answer', 10)" in shown
    assert "details above" not in shown
    debugged.page.cell(_STOPS).get_by_text("Show more outputs").click()
    wait_until(lambda: "details above" in debugged.shown(_STOPS), "the end of the session is shown")
    assert "('answer', 24)" in debugged.shown(_STOPS)


@pytest.mark.sample(1)
def test_live_view_goes_on_beside_the_box(debugged: Debugged) -> None:
    """While the user types, the live view says who has stopped and who waits, and its updates leave the typed text alone."""
    debugged.stop()
    debugged.wait_for_view(_STOPPED)
    debugged.wait_for_view("rank 0 waits for it")
    shown = debugged.shown(_STOPS)
    assert shown.index(_STOPPED) < shown.index("rank 1 stopped\n"), "the live view is above what the debugger prints"
    debugged.box.press_sequentially("p m")
    messages = len(debugged.page.kernel_messages)

    def is_updated() -> bool:
        debugged.page.page.wait_for_timeout(20)
        return any(m.msg_type == "comm_msg" for m in debugged.page.kernel_messages[messages:])

    wait_until(is_updated, "the live view is updated")
    assert debugged.box.input_value() == "p m"
    debugged.box.press_sequentially("e")
    debugged.box.press("Enter")
    wait_until(lambda: re.search(r"> +p me\s+1\n", debugged.shown(_STOPS)), "the answer is shown")
    debugged.wait_for_box()
    debugged.answer("c")
    debugged.page.wait_idle()
    assert find_sums(debugged.shown(_STOPS)) == [1]


def _press_stop(debugged: Debugged) -> None:
    debugged.page.interrupt()


def _press_interrupt_of_the_card(debugged: Debugged) -> None:
    debugged.page.cell(_STOPS).get_by_role("button", name="Interrupt").click()


@pytest.mark.sample(1)
@pytest.mark.parametrize("interrupt", [_press_stop, _press_interrupt_of_the_card], ids=["stop button", "card"])
def test_interrupt_removes_the_box(debugged: Debugged, interrupt: Callable[[Debugged], None]) -> None:
    """The stop button and the button of the live view end the cell while the box is open, and the box goes with it."""
    debugged.stop()
    debugged.wait_for_view(_STOPPED)
    interrupt(debugged)
    debugged.wait_for_view("CellInterrupted")


@pytest.mark.sample(1)
def test_box_goes_when_a_rank_dies(debugged: Debugged) -> None:
    """If a rank is killed while the box is open, the box goes, the cell names the rank, and the ranks can be restarted."""
    debugged.stop()
    debugged.type("p 'pid', __import__('os').getpid()")
    found: list[re.Match[str]] = []

    def has_pid() -> bool:
        found.extend(re.finditer(r"\('pid', (\d+)\)", debugged.shown(_STOPS)))
        return bool(found)

    wait_until(has_pid, "the process id is shown")
    os.kill(int(found[0][1]), signal.SIGKILL)
    debugged.check_ended()
    assert "rank 1" in debugged.shown(_STOPS)
    debugged.page.start_cell(_RESTART)
    debugged.page.wait_idle()
    debugged.set_up()
