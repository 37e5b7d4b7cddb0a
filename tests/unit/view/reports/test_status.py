"""The status of a cluster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mhnb.types import DeviceRef, RankInfo
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.status import Status, build_status
from tests.support.view_samples import StrictPage

STATUS = Status(
    "default · dead · generation 1",
    "dead",
    (
        RankInfo(0, "host0", pid=4711, log_path=Path("r0.log"), devices=(DeviceRef(0, 0), DeviceRef(0, 1))),
        RankInfo(1, "host1", log_path=Path("r1.log"), state="SIGKILL", devices=(DeviceRef(1, 0), DeviceRef(1, 1))),
    ),
    ("%mhjax restart",),
)


def test_status_has_a_line_per_rank() -> None:
    """Columns are aligned; a rank without a process has no pid."""
    assert print_text(build_status(STATUS)) == (
        "default · dead · generation 1\n"
        "rank  host    pid  state    devices  log\n"
        "   0  host0  4711  alive          2  r0.log\n"
        "   1  host1        SIGKILL        2  r1.log\n"
        "%mhjax restart"
    )


def test_status_of_many_ranks_is_folded() -> None:
    """Of more than 16 ranks eight are seen without a click: first those that are not as most are."""
    ranks = [RankInfo(rank, f"host{rank}", log_path=Path("r.log")) for rank in range(64)]
    ranks[40] = replace(ranks[40], state="SIGKILL")
    ranks[50] = replace(ranks[50], last_cell="12 failed")
    page = StrictPage(html := print_html(build_status(Status("default · dead", "dead", tuple(ranks)))))
    assert re.findall(r"host\d+", page.visible) == [f"host{n}" for n in (40, 50, 0, 1, 2, 3, 4, 5)]
    assert "ranks 6-39,41-49,51-63 · alive" in page.visible
    assert set(re.findall(r"host\d+", page.text)) == {f"host{rank}" for rank in range(64)}
    assert page.unclosed == []
    few = print_html(build_status(Status("default · dead", "dead", tuple(ranks[:16]))))
    assert (html.count("<details"), few.count("<details")) == (1, 0)


def test_status_of_remote_hosts_has_more_columns() -> None:
    """Memory and the last cell are shown if they are known."""
    first = RankInfo(0, "host0", "alpha", 24, Path("a:r0.log"), devices=(DeviceRef(0, 0),))
    second = RankInfo(1, "host1", "beta", 24, Path("b:r1.log"), devices=(DeviceRef(1, 0),), last_cell="11 ok")
    ranks = (replace(first, nbytes=3 << 28, last_cell="12 running"), second)
    assert print_text(build_status(Status("remote · running", "running", ranks))).splitlines()[1:] == [
        "rank  host         pid  state  devices     memory   last cell  log",
        "   0  host0 alpha   24  alive        1  768.0 MiB  12 running  a:r0.log",
        "   1  host1 beta    24  alive        1                  11 ok  b:r1.log",
    ]


def test_failed_cell_and_folder_of_logs_stand_out() -> None:
    """On a page a cell that failed and a rank that has ended are marked, and the folder of the logs is said once."""
    folder = Path("/data/mhnb/default.4711.1/log")
    ranks = [
        RankInfo(rank, f"host{rank}", log_path=folder / f"rank{rank}.log", last_cell="In [3] ok") for rank in range(4)
    ]
    ranks[2] = replace(ranks[2], last_cell="In [3] error")
    ranks[3] = replace(ranks[3], state="SIGKILL", last_cell="In [3] interrupted")
    status = build_status(Status("default · dead", "dead", tuple(ranks)))
    html = print_html(status)
    assert re.findall(r'<span class="mhnb-bad">([^<]*)', html) == ["✗ In [3] error", "✗ SIGKILL"]
    page = StrictPage(html)
    assert page.text.count(str(folder)) == 1
    assert "rank2.log" in page.text
    assert print_text(status).count(str(folder)) == 4
    elsewhere = replace(ranks[1], log_path=Path("beta:/data/log/rank1.log"))
    html = print_html(build_status(Status("default · clean", "clean", (ranks[0], elsewhere))))
    assert str(folder / "rank0.log") in html
