"""Recorded output played in a real JupyterLab in Chromium, to measure its cost for the page.

The page's cost is the longest task of its main thread, and every byte that its socket to the kernel receives.
JupyterLab's own work on a cell that prints for as long is measured beside it, because no view can be faster than that.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from tests.support.lab import Lab, LabPage, open_chromium
from tests.support.parts import chromium

if TYPE_CHECKING:
    from playwright.sync_api import WebSocket

__all__ = ["InPage", "play_in_lab"]

_LIMIT_S = 120.0
_SETTLE_MS = 1000.0
"""A page draws the last output of a cell after the kernel is idle."""
_WATCH = """() => { window.longTasks = [];
  new PerformanceObserver(all => all.getEntries().forEach(e => longTasks.push(e.duration))).observe({type: 'longtask'}) }"""
_TAKE = "() => { const all = window.longTasks; window.longTasks = []; return all }"


@dataclass(frozen=True, slots=True)
class InPage:
    """The cost of one cell for the page."""

    longest_task_ms: float
    """0 if no task took 50 ms, because browsers do not report shorter ones."""
    nbytes: int
    """Bytes received on the sockets to the server."""


def play_in_lab(*cells: str) -> list[InPage] | None:
    """Run cells one after the other in one page; None without Chromium. The first cell only loads what the others need."""
    if chromium() is None:
        return None
    sizes: list[int] = []

    def listen(channel: WebSocket) -> None:
        channel.on("framereceived", lambda frame: sizes.append(len(frame)))

    with (
        tempfile.TemporaryDirectory(prefix="mhnb-inlab-") as folder,
        open_chromium() as browser,
        Lab(Path(folder)) as lab,
    ):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, Path(folder) / "bench.ipynb")
        with lab.page(browser) as page:
            page.page.on("websocket", listen)
            page.open("bench.ipynb")
            page.page.evaluate(_WATCH)
            return [_play(page, at, sizes) for at in range(len(cells))][1:]


def _play(page: LabPage, at: int, sizes: list[int]) -> InPage:
    sizes.clear()
    page.page.evaluate(_TAKE)
    page.start_cell(at)
    page.wait_idle(limit_s=_LIMIT_S)
    page.page.wait_for_timeout(_SETTLE_MS)
    if "Traceback" in (output := page.cell(at).locator(".jp-Cell-outputArea").inner_text()):
        raise RuntimeError(f"cell {at} raised in JupyterLab:\n{output[-1500:]}")
    return InPage(max(page.page.evaluate(_TAKE), default=0.0), sum(sizes))
