"""`mhnb trace`: the summaries of traced cells that a run directory holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.cli.main import main
from mhnb.cluster import flight, reports
from mhnb.core.trace import RankTimes, TraceReport
from mhnb.system.trace import default_trace_folder, make_trace_folder, timeline_path, write_summary, write_timeline


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a cluster with two traces, as `find_recorded_runs` finds it."""
    for module in (flight, reports):
        monkeypatch.setattr(module, "find_recorded_runs", lambda _, name: [tmp_path] if name == "demo" else [])
    folder = default_trace_folder(tmp_path)
    make_trace_folder(folder, is_private=True)
    times = RankTimes(0, 1.0, 0.5, 0.0, 0.0, 0.5)
    for seq, name, count in ((9, "cell 9", None), (12, "In [7]", 7)):
        path = timeline_path(folder, f"cell{seq}")
        write_timeline(path, [{"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 5}])
        write_summary(
            folder, f"cell{seq}", TraceReport(seq, name, str(folder), str(path), (times,), execution_count=count)
        )
    (folder / "cell13.summary.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("cell", "shown"), [(None, "In [7]"), ("7", "In [7]"), ("In[7]", "In [7]"), ("9", "cell 9"), ("cell 9", "cell 9")]
)
def test_trace_of_a_cell_is_printed(
    run_dir: Path, capsys: pytest.CaptureFixture[str], cell: str | None, shown: str
) -> None:
    """The last one by default; a summary that is being written is left out."""
    assert run_dir.is_dir()
    assert main(["trace", "demo", *([cell] if cell else [])]) == 0
    out = capsys.readouterr().out
    other = {"In [7]", "cell 9"} - {shown}
    assert out.startswith(f"{shown} · trace of rank 0")
    (page,) = default_trace_folder(run_dir).glob("*.html")
    assert str(page) in out
    assert page.stat().st_mode & 0o077 == 0
    assert out.endswith(f"other traced cells: {other.pop()}\n")


def test_missing_trace_is_an_error_that_names_those_there_are(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown cluster, a cluster without a trace, a word that is no cell, and a cell that was not traced."""

    def read_error(*words: str) -> str:
        assert main(["trace", *words]) == 1
        return capsys.readouterr().err

    assert "unknown cluster 'nope'" in read_error("nope")
    assert "expected open, or a cell, such as In[7] or 7. Traced: cell 9, In [7]" in read_error("demo", "x")
    assert "8 was not traced. Traced: cell 9, In [7]" in read_error("demo", "8")
    for path in default_trace_folder(run_dir).glob("*.gz"):
        path.unlink()
    assert "cell12.timeline.json.gz: No such file or directory; expected the timeline" in read_error("demo")
    for path in default_trace_folder(run_dir).iterdir():
        path.unlink()
    assert "no cell was traced yet" in read_error("demo")


def test_each_run_numbers_its_own_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell of an earlier run is found although a later one has a cell of that number, and its run is named."""
    runs = [tmp_path / "main.4711.2", tmp_path / "main.4711.1"]
    for module in (flight, reports):
        monkeypatch.setattr(module, "find_recorded_runs", lambda *_: runs)
    for run, count in zip(runs, (25, 22), strict=True):
        folder = default_trace_folder(run)
        make_trace_folder(folder, is_private=True)
        write_summary(folder, "cell3", TraceReport(3, f"In [{count}]", str(folder), "", execution_count=count))
    assert main(["trace", "demo", "22"]) == 0
    assert "of an earlier run: main.4711.1" in capsys.readouterr().out
    assert main(["trace", "demo"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("In [25] · no trace")
    assert "earlier run" not in out


def test_trace_without_a_timeline_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files could not be written: the summary is shown, and `open` has the reason."""
    for module in (flight, reports):
        monkeypatch.setattr(module, "find_recorded_runs", lambda *_: [tmp_path])
    folder = default_trace_folder(tmp_path)
    make_trace_folder(folder, is_private=True)
    write_summary(
        folder, "cell3", TraceReport(3, "In [3]", "/full", "", notes=("the disk is full",), execution_count=3)
    )
    assert main(["trace", "demo"]) == 0
    assert "the disk is full" in capsys.readouterr().out
    assert main(["trace", "demo", "open"]) == 1
    assert "In [3] has no timeline. the disk is full" in capsys.readouterr().err
