"""The box of an `input()` that the kernel has cancelled, in JupyterLab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import Lab, LabPage, open_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser"), pytest.mark.timeout(480)]

SETUP = """\
import os, signal, threading
from IPython.display import display
from mhnb.view.live.input_box import InputBox
from mhnb.view.live.view import CellView
from mhnb.view.live.screen import detect_screen
from tests.support.view_samples import cell, out

def cancel(name):
    # A pipe, which ends nothing before it is written to.
    open(name).read()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def ask(name, view):
    os.mkfifo(name)
    threading.Thread(target=cancel, args=[name], daemon=True).start()
    if view is not None:
        view.suspend()
    try:
        input(name)
    except KeyboardInterrupt:
        if view is not None:
            view.close_input()
"""
WITH_WIDGET = """\
with CellView() as view:
    view.update(cell([out("begun\\n")], [], done=False, wall_s=6.0))
    ask("widget", view)
    view.finish(cell([out("ended\\n")], []))
"""
AFTER_MANY_OUTPUTS = """\
view = InputBox(detect_screen())
view.suspend()
for n in range(60):
    display(n)
ask("many", view)
"""
NEXT = "print('next', 1 + 1)"
BOX = "input.jp-Stdin-input"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


def write_notebook(path: Path, *sources: str) -> None:
    """Write a notebook with these code cells."""
    empty: dict[str, object] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**empty, "id": f"cell-{i}", "source": source} for i, source in enumerate(sources)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}  # else Lab asks
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


def box(page: LabPage, index: int) -> Locator:
    """Locate the box below a cell."""
    return page.cell(index).locator(BOX)


def cancel(page: LabPage, index: int, pipe: Path) -> None:
    """Let the kernel cancel the input of a cell, once its box is open."""
    box(page, index).wait_for()
    pipe.write_text("")


def run_next(page: LabPage, index: int) -> str:
    """Run a cell, and return what it printed."""
    page.start_cell(index)
    page.wait_idle()
    return page.cell(index).locator(".jp-Cell-outputArea").inner_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "name"), [(WITH_WIDGET, "widget"), (AFTER_MANY_OUTPUTS, "many")], ids=["widget", "many"]
)
def test_cancelled_input_leaves_no_box(browser: Browser, tmp_path: Path, source: str, name: str) -> None:
    """The box goes, half a line in it is not stored, the next cell runs without a dialog, and the file has no script."""
    write_notebook(tmp_path / "nb.ipynb", SETUP, source, NEXT)
    with Lab(tmp_path) as lab, lab.page(browser) as page:
        page.open("nb.ipynb")
        run_next(page, 0)
        page.start_cell(1)
        box(page, 1).fill("half a li")
        cancel(page, 1, tmp_path / name)
        box(page, 1).wait_for(state="detached")
        page.wait_idle()
        assert "next 2" in run_next(page, 2)
        assert page.page.locator(".jp-Dialog").count() == 0
        page.save()
    saved = (tmp_path / "nb.ipynb").read_text()
    assert "next 2" in saved
    assert "half a li" not in saved
    assert "application/javascript" not in saved


def test_interrupted_input_leaves_no_box(browser: Browser, tmp_path: Path) -> None:
    """The stop button makes JupyterLab run cells again, but it is the view that removes the box."""
    write_notebook(tmp_path / "nb.ipynb", SETUP, WITH_WIDGET, NEXT)
    with Lab(tmp_path) as lab, lab.page(browser) as page:
        page.open("nb.ipynb")
        run_next(page, 0)
        page.start_cell(1)
        box(page, 1).wait_for()
        page.interrupt()
        box(page, 1).wait_for(state="detached")
        page.wait_idle()
        assert "next 2" in run_next(page, 2)


def test_only_the_box_of_the_own_cell_is_removed(browser: Browser, tmp_path: Path) -> None:
    """The box of another cell stays, and the input of the cell behind is not answered."""
    left, own = "ask('left', None)", "ask('own', InputBox(detect_screen(), limit_s=60))"
    asking = "print('hello', input('who?'))"
    write_notebook(tmp_path / "nb.ipynb", SETUP, left, own, asking, NEXT)
    with Lab(tmp_path) as lab, lab.page(browser) as page:
        page.open("nb.ipynb")
        page._run("notebook:run-all-cells")
        cancel(page, 1, tmp_path / "left")
        cancel(page, 2, tmp_path / "own")
        box(page, 2).wait_for(state="detached")
        box(page, 3).fill("you")
        assert box(page, 1).count() == 1
        box(page, 3).press("Enter")
        page.wait_idle()
        assert "hello you" in page.cell(3).locator(".jp-Cell-outputArea").inner_text()
        assert "next 2" in page.cell(4).locator(".jp-Cell-outputArea").inner_text()
