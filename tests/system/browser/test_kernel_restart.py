"""A restart of the kernel during a cell ends its ranks, and their output is kept."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.support.lab import Lab, open_chromium, wait_until
from tests.support.leftovers import processes_of, wait_for_end

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ranks,
    pytest.mark.requires_part("browser"),
    pytest.mark.timeout(480),
]

START = "%load_ext mhnb\n%mhjax start -n 2 --devices 1"
BLOCKING_CELL = """\
%%mhjax
import os, time, jax
from pathlib import Path
Path(f"stuck-{jax.process_index()}").write_text(str(os.getpid()))
print("said before the kernel went")
time.sleep(600)"""
PLACEHOLDER = "[class$=-placeholder]"


def notebook(*sources: str) -> str:
    """Return a notebook with these code cells as text."""
    empty: dict[str, object] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**empty, "id": f"cell-{i}", "source": source} for i, source in enumerate(sources)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}  # else Lab asks
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def blocked_pids(root: Path) -> list[int]:
    """Return the process ids of the ranks that have reached the blocking cell."""
    return [int(text) for path in root.glob("stuck-*") if (text := path.read_text())]


def test_kernel_restart_during_a_cell(leftovers: None, mhnb_home: Path, tmp_path: Path) -> None:
    """All processes of the cluster end within 10 s, the notebook keeps the ranks' output, and a new start works."""
    (tmp_path / "nb.ipynb").write_text(notebook(START, BLOCKING_CELL))
    with open_chromium() as browser, Lab(tmp_path) as lab, lab.page(browser) as page:
        page.open("nb.ipynb")
        page.start_cell(0)
        page.start_cell(1)
        wait_until(lambda: len(blocked_pids(tmp_path)) == 2, "both ranks are in the cell")
        ranks = [psutil.Process(pid) for pid in blocked_pids(tmp_path)]
        others = [p for p in cluster_processes(mhnb_home, ranks) if p not in ranks]
        placeholder = page.cell(1).locator(PLACEHOLDER)
        shown_placeholder = page.cell(1).locator(f"{PLACEHOLDER}:has-text('said before the kernel went')")
        wait_until(shown_placeholder.count, "the cell has a placeholder")
        assert not placeholder.is_visible()
        page.restart()
        alive = wait_for_end([*ranks, *others], 60)
        assert alive == []
        wait_until(placeholder.is_visible, "the placeholder shows, since the widget hears nothing any more")
        assert "no word from the kernel" in page.cell(1).inner_text()
        page.save()
        page.open("nb.ipynb")
        wait_until(placeholder.is_visible, "the placeholder was saved")
        assert "said before the kernel went" in placeholder.inner_text()
        assert "Error displaying widget" not in page.cell(1).inner_text()
        page.start_cell(0)
        page.wait_idle()
        assert "ready" in page.cell(0).locator(".jp-Cell-outputArea").inner_text()


def cluster_processes(home: Path, ranks: list[psutil.Process]) -> list[psutil.Process]:
    """Return the ranks and the processes between them and the kernel: the supervisor and its hub."""
    supervisors = {parent for rank in ranks if (parent := rank.parent()) is not None}
    cluster_family = {p for s in supervisors for p in (s, *s.children(recursive=True))}
    return [p for p in processes_of(home) if p in cluster_family]
