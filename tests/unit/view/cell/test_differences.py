"""Of a rank that leaves a loop's majority the first and the last differences are shown, and the others are in a fold."""

from __future__ import annotations

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.cell.blocks import LOG_HINT
from mhnb.view.cell.differences import split_differences
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from tests.support.view_samples import StrictPage, cell, loop_with_odd_rank, out


def _split(result: CellResult) -> list[tuple[int, bool]]:
    """Return the number of rows of each part of the odd block, and whether it is a loop's."""
    return [(len(part.rows), part.is_loop) for part in split_differences(summarise_cell(result).blocks[0])]


def test_parts_contain_every_row_in_order() -> None:
    """Rows before and after the loop stay as they are, and the loop's part begins where the rank left the others."""
    block = summarise_cell(loop_with_odd_rank()).blocks[0]
    parts = split_differences(block)
    assert [row for part in parts for row in part.rows] == list(block.rows)
    assert [part.is_loop for part in parts] == [False, True, False]
    assert parts[1].start == 82


@pytest.mark.parametrize(("lines", "is_loop"), [(12, False), (13, True)])
def test_few_differences_are_all_shown(lines: int, is_loop: bool) -> None:  # noqa: FBT001  # a parameter
    """Up to twelve lines that differ are all shown."""
    said = [[out("".join(f"step {at} loss {at + (rank == 1)}.5\n" for at in range(lines)))] for rank in range(3)]
    assert any(loop for _, loop in _split(cell(*said))) == is_loop


def test_text_shows_where_the_rank_left() -> None:
    """The first two and the last five differences are shown, with the number of the others between them."""
    lines = [line.partition("│ ")[2] for line in format_cell_text(loop_with_odd_rank()).splitlines()[1:]]
    assert lines[0] == "… 82 lines as on ranks 0-1,3 …"
    assert lines[1] == "step 81 loss 0.5742 ← 0.5554 elsewhere"
    assert lines[3] == f"… 112 lines left out: all of it is in the log file … · {LOG_HINT}"
    assert lines[8] == "step 199 loss 0.6042 ← 0.1611 elsewhere"


def test_page_has_every_difference() -> None:
    """Seven differences are visible, and all are in the page."""
    result = loop_with_odd_rank()
    page = StrictPage(format_cell_html(result))
    assert f"… 112 lines more · {LOG_HINT}" in page.visible
    assert page.visible.count("elsewhere") == 7
    assert page.text.count("elsewhere") == 119
    assert all(f"{line} ←" in page.text for line in result[2].stdout.splitlines()[82:-1])


@pytest.mark.slow
def test_size_of_differences_is_bounded() -> None:
    """Thousands of differences are cut in the fold, where the log is named."""
    html = format_cell_html(loop_with_odd_rank(6000))
    assert len(html) < 1.2 * MAX_CELL_NBYTES
    assert "left out: all of it is in the log file" in StrictPage(html).text
