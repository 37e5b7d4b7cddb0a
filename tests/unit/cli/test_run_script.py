"""`mhnb run`: how a script is run on the ranks, as far as no ranks are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mhnb.cli.run_script import read_script, run_script
from mhnb.core.output.results import CellResult, RankResult
from mhnb.view.live.view import CellView


class FakeCluster:
    """Records the cells that it is given; each of them succeeds."""

    name = "run-1"
    ranks = ()

    def __init__(self) -> None:
        self.cells: list[dict[str, Any]] = []

    def run(self, source: str, **arguments: Any) -> CellResult:
        self.cells.append({"source": source, **arguments})
        return CellResult(len(self.cells), source, (RankResult(0, "ok"),), 0.1)


def test_script_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """A byte order mark, which some editors write, is not part of the script, as in Python."""
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfprint('\xc3\xa4')\n")
    assert read_script(str(tmp_path / "a.py")) == "print('ä')\n"


def test_view_makes_room_for_the_debugger() -> None:
    """At `breakpoint()` in a terminal the user types where the view draws, so the view is suspended."""
    cluster: Any = FakeCluster()
    assert run_script(cluster, "train.py", "breakpoint()", []) == 0
    script = cluster.cells[1]
    assert script["source"] == "breakpoint()"
    assert isinstance(script["console"], CellView)
    assert script["on_snapshot"].__self__ is script["console"]
