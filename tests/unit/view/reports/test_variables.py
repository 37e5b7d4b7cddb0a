"""The variables that the ranks hold, and the comparison of their values."""

from __future__ import annotations

import pytest

from mhnb.core.guard.value_check import CheckRow
from mhnb.core.variables import VariableInfo, VariableRow
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.variables import build_check, build_vars
from tests.support.view_samples import StrictPage

ROWS = (
    VariableRow(
        "x", (((0, 1, 2), VariableInfo("global", "Array", "", (8, 8), "float32", "P('data', None)", None, 32)),)
    ),
    VariableRow("seed", (((0, 1), VariableInfo("host", "int")),), missing=(2,)),
)


def test_variables_show_their_shape_and_size() -> None:
    """A missing shape or size is an empty cell; a difference names the rank."""
    assert print_text(build_vars(ROWS)).splitlines() == [
        "name  kind          shape     spec             bytes/device  differs",
        "x     global Array  f32[8,8]  P('data', None)          32 B",
        "seed  int                                                    missing on rank 2",
    ]


def test_differs_column_is_missing_if_ranks_agree() -> None:
    """The column is left out if the ranks agree, because an empty column without a heading would be unclear."""
    assert "differs" not in print_text(build_vars(ROWS[:1]))


def test_no_variables_have_a_sentence() -> None:
    """Ranks without variables have no empty table."""
    assert print_text(build_vars(())) == "the ranks hold no variables yet"


@pytest.mark.parametrize(
    ("same", "heading"),
    [
        ([False], "it differs"),
        ([False, True, True], "1 of 3 differs"),
        ([False, False, None], "2 of 3 differ"),
        ([True], ""),
    ],
)
def test_heading_counts_differing_arrays(same: list[bool | None], heading: str) -> None:
    """A single array is not counted, and equal arrays have no heading."""
    rows = [CheckRow(f"w{at}", "f32[2]", one, "told") for at, one in enumerate(same)]
    assert StrictPage(print_html(build_check(rows))).visible.startswith(f"{heading}nametypeon the ranksw")
    assert print_text(build_check(rows)).startswith("w")
