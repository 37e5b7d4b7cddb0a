"""`cluster.metrics`: files and tables of points."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mhnb.cluster.metrics import MetricTable, write_csv
from mhnb.core.metrics import MetricPoint
from mhnb.errors import InvalidRequest, MhnbError
from tests.support.metric_samples import log_curve, log_points


@pytest.fixture
def table() -> MetricTable:
    """Two points of each of two ranks."""
    return MetricTable(log_curve([[1.0, 0.5], [1.0, 0.25]]))


def test_table_is_a_value(table: MetricTable) -> None:
    """It has a length, names and rows, selects, and its text has counts."""
    assert (len(table), table.names) == (4, ("loss",))
    assert next(iter(table)) == MetricPoint(12, 0, 0.0, "loss", 1.0)
    assert [point.value for point in table.select(rank=1)] == [1.0, 0.25]
    assert repr(table) == "<Metrics: 4 points of loss, ranks 0-1, 1 cell>"
    assert "loss of each rank" in table._repr_html_()


def test_csv_is_returned_or_written(table: MetricTable, tmp_path: Path) -> None:
    """A file has the same text as without a path, and one that exists keeps its mode; it may be a link or a device, too."""
    path = tmp_path / "points of all.csv"
    path.touch(mode=0o664)
    path.chmod(0o664)
    assert table.to_csv(path) is None
    text = table.to_csv()
    assert path.read_text() == text
    assert text is not None
    assert text.splitlines()[-1] == "1,12,1,1,loss,0.25"
    assert path.stat().st_mode & 0o777 == 0o664
    (tmp_path / "link.csv").symlink_to(path)
    table.select(rank=1).to_csv(tmp_path / "link.csv")
    assert path.read_text() == table.select(rank=1).to_csv()
    assert table.to_csv("/dev/null") is None
    assert write_csv(table, path) == f"wrote {path}: 4 points of 1 metric"


def test_name_that_is_not_valid_text_is_written(tmp_path: Path) -> None:
    """Half a surrogate pair has no UTF-8; it is written as an escape."""
    path = tmp_path / "a.csv"
    MetricTable(log_points(lambda _: [("\ud800", 1, 1.0)], 1)).to_csv(path)
    assert path.read_text().splitlines()[1] == "1,12,0,1,\\ud800,1"


def test_file_that_cannot_be_written_is_named(table: MetricTable, tmp_path: Path) -> None:
    """The error has the path, the reason and what was expected."""
    path = tmp_path / "nowhere" / "a.csv"
    with pytest.raises(InvalidRequest) as refused:
        table.to_csv(path)
    assert str(refused.value) == f"'{path}': No such file or directory; expected a file that can be written"


def test_dataframe_has_a_column_per_field(table: MetricTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas gets the columns by name. Here a module of its name shows what it gets, because the suite does not install pandas."""
    pandas = ModuleType("pandas")
    pandas.DataFrame = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    frame = table.to_dataframe()
    assert list(frame) == ["generation", "cell", "rank", "step", "name", "value"]
    assert (frame["step"], frame["value"]) == ([0, 1, 0, 1], [1.0, 0.5, 1.0, 0.25])


def test_dataframe_without_pandas_is_explained(table: MetricTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it, and the way without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MhnbError, match=r"(?s)needs pandas.*Fix: %pip install pandas.*to_csv"):
        table.to_dataframe()
