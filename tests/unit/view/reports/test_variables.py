"""The comparison of values between ranks, as HTML."""

from __future__ import annotations

import pytest

from mhnb.core.guard.value_check import CheckRow
from mhnb.view.reports.status import format_check_html
from tests.support.view_samples import StrictPage


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
    page = StrictPage(format_check_html(rows))
    assert page.visible.startswith(f"{heading}w")
