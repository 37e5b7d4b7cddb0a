"""The result that a notebook's panel shows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.core.cell_name import NO_PLACE, CellPlace, parse_cell_argument
from mhnb.errors import NotStarted
from mhnb.magics.magics import parse_cell_flags
from mhnb.magics.session import Session, locations_from_cluster
from mhnb.view.html import RankLocations
from mhnb.view.live.view import CellView
from tests.support.view_samples import RecordingScreen, cell, out


def test_panel_separates_cells_of_two_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell number selects the result of the cluster in use, or otherwise of the cluster that has such a cell.

    Each cluster numbers its cells from 1.
    """
    opened: list[Any] = []

    class Panel:
        def __init__(self, result: Any, *_: object, **__: object) -> None:
            opened.append(result)

        def open(self) -> None:
            pass

        def close(self) -> None:
            pass

        def finish(self, *_: object) -> None:
            pass

    monkeypatch.setattr("mhnb.magics.session.ResultPanel", Panel)
    notebook = Session(shell=None)
    ran = {
        (name, seq): replace(cell([out(f"{name} {seq}")]), seq=seq)
        for name, seq in (("a", 1), ("a", 2), ("b", 3), ("a", 3), ("b", 1))
    }
    for (name, _), result in ran.items():
        notebook._store_result(name, result, RankLocations())
    for seq, expected in ((None, ("b", 1)), (1, ("b", 1)), (2, ("a", 2)), (3, ("b", 3))):
        assert notebook.open_panel(seq)
        assert opened[-1] is ran[expected]
    assert not notebook.open_panel(4)
    shown = replace(ran["a", 3], seq=6, execution_count=2)
    notebook._store_result("a", shown, RankLocations())
    for text, wanted in (("2", shown), ("In[2]", shown), ("cell 2", ran["a", 2]), ("6", shown), ("1", ran["a", 1])):
        assert notebook.open_panel(parse_cell_argument(text))
        assert opened[-1] is wanted, text
    assert not notebook.open_panel(parse_cell_argument("In[6]"))
    assert notebook.describe_results() == "In [2] and cells 1-3"
    assert not Session(shell=None).open_panel(None)


def test_panel_shows_the_cell_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subshell can open it while the cell blocks the main thread; then it follows the cell."""
    shown: list[Any] = []

    class Panel:
        def __init__(self, result: Any, *_: object, **__: object) -> None:
            shown.append(result)

        def open(self) -> None:
            pass

        def update(self, snapshot: Any, _: object) -> None:
            shown.append(snapshot)

        def finish(self, result: Any, _: object) -> None:
            shown.append(result)

    monkeypatch.setattr("mhnb.magics.session.ResultPanel", Panel)
    notebook = Session(shell=None)
    view = CellView(screen=RecordingScreen())
    first, second = (cell([out(text)], done=False, wall_s=1.0) for text in ("a", "a\nb"))
    update = notebook._make_snapshot_callback(view, RankLocations())
    update(replace(first, waiting="waiting for cell 11 to end"))
    assert not notebook.open_panel(None)
    update(first)
    assert notebook.open_panel(None)
    update(second)
    ended = cell([out("a\nb\nc")])
    notebook._forget_running(CellView(screen=RecordingScreen()))
    assert notebook._running is not None
    notebook._forget_running(view)
    notebook._store_result("a", ended, RankLocations())
    assert shown == [first, second, ended]
    assert notebook._running is None


def test_number_of_the_notebook_comes_before_that_of_the_cell_that_runs() -> None:
    """`panel 5` is `In [5]`, also while cell 5 of the cluster runs, which is `In [8]`."""
    notebook = Session(shell=None)
    earlier = replace(cell([out("a")]), seq=2, execution_count=5)
    running = replace(cell([out("b")], done=False, wall_s=1.0), seq=5, execution_count=8)
    notebook._store_result("a", earlier, RankLocations())
    notebook._make_snapshot_callback(CellView(screen=RecordingScreen()), RankLocations())(running)
    for text, wanted in (("5", earlier), ("cell 5", running), ("8", running), ("In[8]", running), ("2", earlier)):
        found = notebook._find_result(parse_cell_argument(text), notebook._running)
        assert found is not None
        assert found[0] is wanted, text


def test_place_of_a_cell_is_found_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that a subshell runs during the wait must not give its number to the one that waits."""
    order: list[str] = []

    def find_place(_: str) -> CellPlace:
        order.append("place")
        return NO_PLACE

    def wait(_: object) -> None:
        order.append("wait")
        raise NotStarted("there is no cluster")

    monkeypatch.setattr("mhnb.magics.session.wait_for_current", wait)
    with pytest.raises(NotStarted):
        Session(shell=None, find_place=find_place).run_cell("x = 1", parse_cell_flags(""))
    assert order == ["place", "wait"]


@pytest.mark.parametrize(
    ("session_name", "is_local", "folder"),
    [("/nb/train.ipynb", True, "/nb"), ("/nb/train.ipynb", False, ""), ("train.ipynb", True, ""), ("", True, "")],
)
def test_notebook_folder_comes_from_session_name(session_name: str, is_local: bool, folder: str) -> None:  # noqa: FBT001  # a case's value
    """The notebook's folder, from which JupyterLab opens logs, comes from an absolute session name.

    It is used only for a cluster on this machine.
    """
    shape = SimpleNamespace(is_local=is_local)
    cluster: Any = SimpleNamespace(ranks=(), name="demo", shape=shape)
    assert locations_from_cluster(cluster, {"JPY_SESSION_NAME": session_name}).notebook_dir == folder
    assert locations_from_cluster(cluster).notebook_dir == ""
