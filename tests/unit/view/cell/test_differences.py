"""Of a rank that leaves a loop's majority the first and the last differences are shown, and the others are in a fold."""

from __future__ import annotations

import re

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.cell.blocks import LOG_HINT
from mhnb.view.cell.differences import split_differences
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import MAX_TEXT_NBYTES, format_cell_text
from tests.support.view_samples import StrictPage, cell, loop_with_odd_rank, out


def _split(result: CellResult) -> list[tuple[int, bool]]:
    """Return the number of rows of each part of the outlier's block, and whether it is a loop's."""
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
    assert f"… 112 more lines · {LOG_HINT}" in page.visible
    assert page.visible.count("elsewhere") == 7
    assert page.text.count("elsewhere") == 119
    assert all(f"{line} ←" in page.text for line in result[2].stdout.splitlines()[82:-1])


def test_lines_with_two_differences_stay_whole() -> None:
    """A line that differs in two numbers is shown with the others' line below it; the fold counts lines of the rank."""
    said = [
        [out("".join(f"step {at} loss {at + 9 * (rank == 2)}.5 acc {at + 3 * (rank == 2)}.25\n" for at in range(20)))]
        for rank in range(4)
    ]
    lines = [line.partition("│ ")[2] for line in format_cell_text(cell(*said)).splitlines()[1:] if "rank 2" not in line]
    odd = [line for line in format_cell_text(cell(*said)).splitlines() if "elsewhere" in line]
    assert len(odd) == 7
    note = next(line for line in lines if "left out" in line)
    assert note.startswith("… 13 lines left out")


def test_size_of_many_differing_loops_is_bounded() -> None:
    """Of hundreds of loops in which a rank differs, the first and the last are shown."""
    epochs = [
        [
            out(
                "".join(
                    f"epoch {epoch} step {step} loss {step + (rank == 2)}.5\n"
                    if step < 13
                    else f"done {chr(97 + epoch % 26)}\n"
                    for epoch in range(300)
                    for step in range(14)
                )
            )
        ]
        for rank in range(4)
    ]
    html, text = format_cell_html(cell(*epochs)), format_cell_text(cell(*epochs))
    assert len(html) < 2 * MAX_CELL_NBYTES
    assert len(text) < 2 * MAX_TEXT_NBYTES
    for shown in (StrictPage(html).text, text):
        assert "epoch 0 step 1 loss 2.5 ← 1.5 elsewhere" in shown
        assert "epoch 299 step 12 loss 13.5 ← 12.5 elsewhere" in shown
    note = next(line for line in text.splitlines() if "left out" in line and "mhnb.log" not in line)
    assert 0 < int(note.partition("… ")[2].split()[0]) < 300 * 14


@pytest.mark.parametrize("ranks", [4, 24])
def test_lines_between_differing_loops_are_kept(ranks: int) -> None:
    """However long the loops are in which ranks differ, the ends of each are shown, and what stands between them."""
    odd = {2} if ranks == 4 else set(range(6))
    said = [
        [
            out(
                "begin\n"
                + "".join(
                    f"{word} step {at} the {'other' if rank in odd else 'usual'} loss {at + rank * (rank in odd)}.5 of this rank\n"
                    for word in ("train", "validation", "test")
                    for at in range(200)
                )
                + "end\n"
            )
        ]
        for rank in range(ranks)
    ]
    for shown in (format_cell_text(cell(*said)), StrictPage(format_cell_html(cell(*said))).text):
        for word in ("train", "validation", "test"):
            assert re.search(rf"{word} step 0 the other loss|{word} step 0 .* elsewhere", shown)
            assert re.search(rf"{word} step 199 the other loss|{word} step 199 .* elsewhere", shown)


@pytest.mark.slow
def test_size_of_differences_is_bounded() -> None:
    """Thousands of differences are cut in the fold, where the log is named."""
    html = format_cell_html(loop_with_odd_rank(6000))
    assert len(html) < 1.2 * MAX_CELL_NBYTES
    assert "left out: all of it is in the log file" in StrictPage(html).text
