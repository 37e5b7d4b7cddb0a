"""The tables of `status` and `vars`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mhnb.core.variables import VariableInfo, VariableRow
from mhnb.types import DeviceRef, RankInfo
from mhnb.view.reports.show import show_status, show_vars
from mhnb.view.reports.status import (
    Status,
    format_status_html,
    format_status_text,
    format_table_html,
    format_vars_html,
    format_vars_text,
)
from tests.support.view_samples import RecordingScreen, StrictPage

STATUS = Status(
    "default · dead · generation 1",
    "dead",
    (
        RankInfo(0, "host0", pid=4711, log_path=Path("r0.log"), devices=(DeviceRef(0, 0), DeviceRef(0, 1))),
        RankInfo(1, "host1", log_path=Path("r1.log"), state="SIGKILL", devices=(DeviceRef(1, 0), DeviceRef(1, 1))),
    ),
    ("%mhjax restart",),
)
ROWS = (
    VariableRow(
        "x", (((0, 1, 2), VariableInfo("global", "Array", "", (8, 8), "float32", "P('data', None)", None, 32)),)
    ),
    VariableRow("seed", (((0, 1), VariableInfo("host", "int")),), missing=(2,)),
)


def test_status_has_a_line_per_rank() -> None:
    """Columns are aligned; a rank without a process has no pid."""
    assert format_status_text(STATUS) == (
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
    page = StrictPage(html := format_status_html(Status("default · dead", "dead", tuple(ranks))))
    assert re.findall(r"host\d+", page.visible) == [f"host{n}" for n in (40, 50, 0, 1, 2, 3, 4, 5)]
    assert "ranks 6-39,41-49,51-63 · alive" in page.visible
    assert set(re.findall(r"host\d+", page.text)) == {f"host{rank}" for rank in range(64)}
    assert page.unclosed == []
    assert html.count("<table") == 2
    assert "<details" not in format_status_html(Status("default · dead", "dead", tuple(ranks[:16])))


def test_status_of_remote_hosts_has_more_columns() -> None:
    """Memory and the last cell are shown if they are known."""
    first = RankInfo(0, "host0", "alpha", 24, Path("a:r0.log"), devices=(DeviceRef(0, 0),))
    second = RankInfo(1, "host1", "beta", 24, Path("b:r1.log"), devices=(DeviceRef(1, 0),), last_cell="11 ok")
    ranks = (replace(first, nbytes=3 << 28, last_cell="12 running"), second)
    assert format_status_text(Status("remote · running", "running", ranks)).splitlines()[1:] == [
        "rank  host         pid  state  devices     memory   last cell  log",
        "   0  host0 alpha   24  alive        1  768.0 MiB  12 running  a:r0.log",
        "   1  host1 beta    24  alive        1                  11 ok  b:r1.log",
    ]


def test_variables_show_their_shape_and_size() -> None:
    """A missing shape or size is an empty cell; a difference names the rank."""
    assert format_vars_text(ROWS).splitlines() == [
        "name  kind          shape     spec             bytes/device  differs",
        "x     global Array  f32[8,8]  P('data', None)          32 B",
        "seed  int                                                    missing on rank 2",
    ]


def test_differs_column_is_missing_if_ranks_agree() -> None:
    """The column is left out if the ranks agree, because an empty column without a heading would be unclear."""
    assert "differs" not in format_vars_text(ROWS[:1])
    assert "differs" not in format_vars_html(ROWS[:1])
    assert ">differs</th>" in format_vars_html(ROWS)


@pytest.mark.parametrize("html", [format_status_html(STATUS), format_vars_html(ROWS), format_vars_html(())])
def test_tables_are_well_formed(html: str) -> None:
    """Each table is valid HTML that is readable without a style sheet."""
    page = StrictPage(html)
    assert not page.unclosed
    assert page.visible


def test_tables_are_shown_in_both_forms() -> None:
    """The notebook gets HTML and everything else gets text."""
    screen = RecordingScreen()
    show_status(STATUS, screen)
    show_vars((), screen)
    assert [set(data) for _, data, _ in screen.calls] == [{"text/html", "text/plain"}] * 2
    assert screen.calls[1][1]["text/plain"] == "the ranks hold no variables yet"


def test_a_short_column_is_as_wide_as_its_widest_cell() -> None:
    """A long note beside a short column would otherwise break its words; the long column wraps."""
    html = format_table_html(["spec", ""], [["P()", "x" * 60], ["P('data', 'model')", ""]])
    assert html.count("white-space:nowrap") == 1
    assert "white-space:nowrap\">P('data', 'model')</td>" in html
