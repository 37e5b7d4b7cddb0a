"""The preflight table, compared whole."""

from __future__ import annotations

from dataclasses import replace

from mhnb.core.preflight_facts import Column, Finding, PreflightReport, ReportCell
from mhnb.view.print_text import print_text
from mhnb.view.reports.preflight import build_preflight

_REPORT = PreflightReport(
    ("host0", "host1", "host2"),
    (
        Column("login", {0: ReportCell("ok"), 1: ReportCell("ok"), 2: ReportCell("failed", "failure")}),
        Column("jax", {0: ReportCell("0.10.2"), 1: ReportCell("0.10.2")}),
        Column("name→address", {0: ReportCell("10.77.0.1"), 1: ReportCell("127.0.1.1", "warning")}),
    ),
    (
        Finding("failure", "login", ("host2",), "host2: does not answer: <timed out>", "switch it on"),
        Finding("warning", "name→address", ("host1",), "host1's name resolves to loopback", "mhnb will use 10.77.0.2 instead"),
        Finding("note", "environment", ("host1",), "a note", "nothing to do"),
    ),
)  # fmt: skip
_TEXT = """\
preflight · 3 hosts · 1 failure, 1 warning
       login     jax     name→address
host0  ok        0.10.2  10.77.0.1
host1  ok        0.10.2  127.0.1.1 !
host2  failed ✗  ·       ·
✗ host2: does not answer: <timed out>
  switch it on
! host1's name resolves to loopback
  mhnb will use 10.77.0.2 instead
· a note
  nothing to do"""


def test_text_is_compared_whole() -> None:
    """There is a row per host with a mark at each problem, then each finding with its hint."""
    assert print_text(build_preflight(_REPORT)) == _TEXT


def test_duration_is_in_the_heading() -> None:
    """The duration follows the number of findings."""
    report = replace(_REPORT, duration_s=1.25)
    heading = "preflight · 3 hosts · 1 failure, 1 warning · 1.2 s"
    assert print_text(build_preflight(report)).splitlines()[0] == heading
