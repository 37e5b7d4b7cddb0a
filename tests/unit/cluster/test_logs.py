"""The ends of the ranks' logs, read from files of this machine or named where they are on another one."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from mhnb.cluster.logs import RankLog, format_rank_logs, read_last_lines, read_rank_logs
from mhnb.errors import InvalidRequest
from mhnb.system.run_dir import RunRecord
from mhnb.types import RankInfo


def make_ranks(folder: Path, *, count: int = 3) -> list[RankInfo]:
    """Return ranks that have written ten lines each."""
    for rank in range(count):
        (folder / f"rank{rank}.log").write_text("".join(f"line {line} of {rank}\n" for line in range(10)))
    return [RankInfo(rank, f"host{rank}", log_path=folder / f"rank{rank}.log") for rank in range(count)]


@pytest.mark.parametrize("count", [1, 3, 10_000])
def test_last_lines_of_a_long_file(tmp_path: Path, count: int) -> None:
    """The last lines are complete, also if they are longer than a block that is read at once."""
    lines = [f"{number} {'x' * (number % 300)}" for number in range(5000)]
    path = tmp_path / "long.log"
    path.write_text("\n".join(lines) + "\n")
    assert list(read_last_lines(path, count)) == lines[-count:]


def test_line_without_an_end_is_included(tmp_path: Path) -> None:
    """A last line that is still being written is part of the end."""
    path = tmp_path / "a.log"
    path.write_text("first\nsecond")
    assert read_last_lines(path, 1) == ("second",)


def test_chosen_ranks_are_read(tmp_path: Path) -> None:
    """Only the chosen ranks are read, in rank order, and only so many lines."""
    logs = read_rank_logs(make_ranks(tmp_path), "0,2", 1)
    assert [(log.rank, log.lines) for log in logs] == [(0, ("line 9 of 0",)), (2, ("line 9 of 2",))]


def test_unknown_rank_is_refused(tmp_path: Path) -> None:
    """A rank that does not exist is an error."""
    with pytest.raises(InvalidRequest, match="rank 7"):
        read_rank_logs(make_ranks(tmp_path), "7")


def test_log_of_another_machine_is_named(tmp_path: Path) -> None:
    """The log of a rank on another machine is not read; its machine and path are shown instead."""
    ranks = [RankInfo(0, "a", log_path=Path("far:/tmp/rank0.log"))]
    assert read_rank_logs(ranks) == [RankLog(0, "far", Path("/tmp/rank0.log"), None)]
    assert format_rank_logs(read_rank_logs(ranks)) == ["rank 0 │ log on far: /tmp/rank0.log"]


def test_log_of_this_machine_is_read_by_its_name(tmp_path: Path) -> None:
    """A log that is named with this machine's own name is read."""
    make_ranks(tmp_path, count=1)
    ranks = [RankInfo(0, "a", log_path=Path(f"{platform.node()}:{tmp_path}/rank0.log"))]
    assert format_rank_logs(read_rank_logs(ranks, None, 1)) == ["rank 0 │ line 9 of 0"]


def test_record_of_another_notebook(tmp_path: Path) -> None:
    """The record of a cluster on this machine is enough to read the logs; a rank without a file is elsewhere."""
    (tmp_path / "log").mkdir()
    make_ranks(tmp_path / "log", count=1)
    record = RunRecord(
        run_dir=str(tmp_path),
        name="a",
        owner_pid=1,
        supervisor_pid=1,
        rank_pids=(1, None),
        is_detachable=True,
        location="2 hosts (a, b), profile ssh",
    )
    logs = read_rank_logs(record, None, 1)
    assert [log.lines for log in logs] == [("line 9 of 0",), None]
    assert logs[1].host == "2 hosts (a, b), profile ssh"


def test_prefixes_are_aligned() -> None:
    """Every line has a prefix of the same width; an empty log is named."""
    logs = [RankLog(2, "", Path("a"), ("x",)), RankLog(10, "", Path("b"), ()), RankLog(11, "", Path("c"), None)]
    assert format_rank_logs(logs) == ["rank  2 │ x", "rank 10 │ empty log: b", "rank 11 │ no log yet: c"]
