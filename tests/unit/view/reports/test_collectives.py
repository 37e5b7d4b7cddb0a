"""The communication report: the documented table, its marks, its reasons."""

from __future__ import annotations

import re
from dataclasses import replace

from mhnb.sharding.hlo_text import SourceLine
from mhnb.sharding.report import Collective, Report
from mhnb.sharding.shardy import Explanation
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.collectives import build_collectives

REDUCE = Collective(
    "all-reduce",
    ("data",),
    ((0, 2, 4, 6), (1, 3, 5, 7)),
    1,
    32768,
    24576,
    "f32",
    SourceLine("/src/model.py", 18, "step"),
    shape="f32[128,64]",
    crosses=True,
    ring_nbytes_per_device=49152,
    ring_nbytes_across_hosts=49152,
    why=Explanation(
        "jit(step)/dot_general", SourceLine("/src/model.py", 18), before=("P('data', None)", None), after="P()"
    ),
)
GATHER = replace(
    REDUCE,
    op="all-gather",
    axes=("model",),
    groups=((0, 1), (2, 3), (4, 5), (6, 7)),
    count=2,
    times=2,
    nbytes_per_device=8192,
    nbytes_across_hosts=0,
    source=SourceLine("/src/model.py", 12),
    shape="f32[64,64]",
    crosses=False,
    ring_nbytes_per_device=8192,
    ring_nbytes_across_hosts=0,
    why=None,
)
STEP = Report("jit(step)", (REDUCE, GATHER))

EXPECTED_TABLE = """\
jit(step)                    axis             count   bytes/device   across hosts   line
  all-reduce   f32[128,64]   data (hosts)         1       32.0 KiB       24.0 KiB   model.py:18
  all-gather   f32[64,64]    model (inside)       2        8.0 KiB            0 B   model.py:12
  total                                                   48.0 KiB       24.0 KiB"""


def test_table_matches_the_documented_form() -> None:
    """Each row describes one run; the total includes the number of runs."""
    assert print_text(build_collectives([STEP])) == EXPECTED_TABLE


def test_reason_is_below_its_row() -> None:
    """The reason gives the operation, the line, and both shardings if they are known."""
    lines = print_text(build_collectives([STEP], why=True)).splitlines()
    assert lines[2] == "      jit(step)/dot_general, model.py:18: P('data', None), not known → P()"
    assert len(lines) == len(EXPECTED_TABLE.splitlines()) + 1


def test_why_opens_every_row_in_html() -> None:
    """Without `why` the rows open with a click."""
    opened, closed = (print_html(build_collectives([STEP], why=why)) for why in (True, False))
    assert opened.count("<details open>") == closed.count("<details>") > 0
    assert "<details>" not in opened
    assert "<details open>" not in closed


def test_report_without_launches_has_no_legend() -> None:
    """Without columns there is nothing for a legend to explain."""
    assert "bytes/device" not in print_html(build_collectives([replace(STEP, rows=())]))
    legend = print_html(build_collectives([STEP]))
    assert "bytes/device: what one device contributes" in legend
    assert "a device sends 64.0 KiB in all, 48.0 KiB of it to another host" in legend


def test_launches_are_counted() -> None:
    """A program that a cell launched several times is shown per launch and in total."""
    text = print_text(build_collectives([replace(STEP, launches=10)]))
    assert text.startswith("jit(step), launched 10 times ")
    assert re.search(r"of 10 launches +480\.0 KiB +240\.0 KiB$", text)


def test_marks_are_explained_where_they_are_used() -> None:
    """Unknown loops, branches and estimates are marked, also in the totals, and each mark in use has a note."""
    loop, branch, cpu = replace(REDUCE, count=None), replace(REDUCE, at_most=True), replace(REDUCE, is_estimate=True)
    for row, cell, total, note in (
        (loop, " ?  ", "≥ 32.0 KiB", "?  in a loop whose length"),
        (branch, " ≤ 1  ", "≤ 32.0 KiB", "≤  in a branch"),
        (cpu, "≈ 32.0 KiB", "≈ 32.0 KiB", "≈  an estimate: CPU"),
    ):
        text = print_text(build_collectives([Report("jit(f)", (row,))]))
        head, _, last = text.rpartition("\n")
        assert cell in head
        assert total in head.splitlines()[-1]
        assert last.startswith(note)
    assert not re.search("[?≤≥≈]", EXPECTED_TABLE)


def test_unknown_values_are_stated() -> None:
    """A missing line, a missing mesh, part of an axis and an async pair are stated."""
    row = replace(REDUCE, source=None, axes=(), whole_axes=False, is_async=True)
    text = print_text(build_collectives([Report("jit(f)", (row, replace(REDUCE, whole_axes=False)))]))
    assert "all-reduce (async)" in text
    assert "groups of 4 (hosts)" in text
    assert "part of data (hosts)" in text
    assert "not known" in text


def test_empty_report_has_a_message() -> None:
    """A program without a collective, and no program at all, have a message."""
    assert print_text(build_collectives([Report("jit(f)", ())])) == "jit(f)  launches no collective"
    assert print_text(build_collectives([])) == "no program with a collective was launched"


def test_printed_lines_are_below_the_table() -> None:
    """Lines that a program printed while it was traced are shown as they are."""
    report = Report("jit(f)", (), printed=("a <b>", "c"))
    assert print_text(build_collectives([report])).splitlines()[-2:] == ["  a <b>", "  c"]
