"""A rank that leaves a loop's majority is shown by a curve, and its differences line by line are in a fold."""

from __future__ import annotations

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.cell.differences import split_differences
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from tests.support.view_samples import StrictPage, cell, loop_with_odd_rank, out


def _split(result: CellResult) -> list[tuple[int, bool]]:
    """Return the number of rows of each part of the odd block, and whether it is a loop's."""
    return [(len(part.rows), part.run is not None) for part in split_differences(summarise_cell(result).blocks[0])]


def test_parts_contain_every_row_in_order() -> None:
    """Rows before and after the loop stay as they are, and the loop's part begins where the rank left the others."""
    block = summarise_cell(loop_with_odd_rank()).blocks[0]
    parts = split_differences(block)
    assert [row for part in parts for row in part.rows] == list(block.rows)
    assert [part.run is not None for part in parts] == [False, True, False]
    run = parts[1].run
    assert run is not None
    assert run.count == 200
    assert parts[1].ranks == (0, 1, 2, 3)
    assert parts[1].start == 82


@pytest.mark.parametrize(("lines", "is_loop"), [(12, False), (13, True)])
def test_few_differences_are_all_shown(lines: int, is_loop: bool) -> None:  # noqa: FBT001  # a parameter
    """A curve stands for more than twelve lines that differ."""
    said = [[out("".join(f"step {at} loss {at + (rank == 1)}.5\n" for at in range(lines)))] for rank in range(3)]
    assert any(loop for _, loop in _split(cell(*said))) == is_loop


def test_text_shows_where_the_rank_left() -> None:
    """The curve is between what was the same and the first two and last five differences."""
    lines = [line.partition("│ ")[2] for line in format_cell_text(loop_with_odd_rank()).splitlines()[1:]]
    assert lines[0] == "… 82 lines as on ranks 0-1,3 …"
    assert lines[1].startswith("loss ‹b›  2.3200 ")
    assert lines[1].endswith(" over 200 lines, ranks 0-3; rank 2 0.6042 at the end")
    assert lines[2] == "step 81 loss 0.5742 ← 0.5554 elsewhere"
    assert lines[4] == "… 112 lines left out: all of it is in the log file …"
    assert lines[9] == "step 199 loss 0.6042 ← 0.1611 elsewhere"


def test_page_has_every_difference() -> None:
    """Seven differences are visible, all are in the page, and both blocks have a curve."""
    result = loop_with_odd_rank()
    page = StrictPage(format_cell_html(result))
    assert "… 112 lines more" in page.visible
    assert page.visible.count("elsewhere") == 7
    assert page.text.count("elsewhere") == 119
    assert all(f"{line} ←" in page.text for line in result[2].stdout.splitlines()[82:-1])
    assert [tag for tag, _ in page.tags].count("img") == 2


@pytest.mark.slow
def test_size_of_differences_is_bounded() -> None:
    """Thousands of differences are cut in the fold, where the log is named."""
    html = format_cell_html(loop_with_odd_rank(6000))
    assert len(html) < 1.2 * MAX_CELL_NBYTES
    assert "left out: all of it is in the log file" in StrictPage(html).text
