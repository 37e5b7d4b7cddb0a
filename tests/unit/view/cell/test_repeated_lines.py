"""Repeated lines are one template and one table per field, from which each rank's lines can be rebuilt."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.folding import group_outputs
from mhnb.core.output.results import CellResult
from mhnb.core.output.template import RANK_PLACEHOLDER, Slot
from mhnb.view.cell.blocks import (
    OWN_MARK,
    SLOT_MARK,
    BlockLine,
    RepeatedLines,
    block_items,
    build_tables,
    find_repeated_lines,
    format_table,
)
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from tests.support.view_samples import StrictPage, cell, out

LOSSES = [
    [f"step {step} loss {1 / (1 + step + rank):.4f} acc {0.1 * step:.2f}" for step in range(6)] for rank in range(4)
]
TEMPLATES = (
    "step {} loss {} acc {}",
    "[{}/7] {:>8} of {}",
    "loss={} rank {} {}",
    "a {}",
    "  {}\t{}  x {}",
    "nothing here",
    "",
)


def _cell(texts: Sequence[Sequence[str]]) -> CellResult:
    return cell(*[[out("\n".join(lines) + "\n")] for lines in texts])


def _repeated_items(texts: Sequence[Sequence[str]]) -> list[tuple[tuple[int, ...], list[object]]]:
    said = [((rank,), [out("\n".join(lines))]) for rank, lines in enumerate(texts)]
    return [(block.ranks, list(find_repeated_lines(block_items(block), block.ranks))) for block in group_outputs(said)]


def _rebuilt_lines(items: Sequence[object], at: int, rank: int) -> list[str]:
    """Rebuild a rank's lines, without their padding."""
    lines = []
    for item in items:
        if isinstance(item, RepeatedLines):
            for line in range(item.count):
                values = [column[line] for column in item.columns]
                lines.append(_fill(item.text, values, at))
        else:
            assert isinstance(item, BlockLine)
            lines.append(_fill(item.text, item.slots, at))
    return [_remove_spaces(line.replace(OWN_MARK, str(rank))) for line in lines]


def _fill(text: str, values: Sequence[str | Slot], at: int) -> str:
    for value in values:
        text = text.replace(SLOT_MARK, value if isinstance(value, str) else value.values[at], 1)
    return text


def _remove_spaces(line: str) -> str:
    return re.sub(r"\s", "", line)


_NUMBERS = st.sampled_from(["0", "1", "2", "10", "0.5", "-1.5", "nan", "1e-5"])


@given(
    st.lists(st.tuples(st.sampled_from(TEMPLATES), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(1, 20),
    st.data(),
)
@pytest.mark.slow
def test_lines_of_each_rank_can_be_rebuilt(blocks: list[tuple[str, int]], ranks: int, data: st.DataObject) -> None:
    """Whatever repeats, no line, number or rank is lost or put in another's position."""
    forms = [form for form, count in blocks for _ in range(count)]
    texts = [[form.format(*data.draw(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS))) for form in forms] for _ in range(ranks)]
    for block_ranks, items in _repeated_items(texts):
        for at, rank in enumerate(block_ranks):
            assert _rebuilt_lines(items, at, rank) == [_remove_spaces(line) for line in _displayed_lines(texts[rank])]


def _displayed_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines as a block shows them: without an empty last line."""
    return list(lines[:-1]) if len(lines) > 1 and not lines[-1] else list(lines)


@given(st.lists(st.lists(_NUMBERS, min_size=4, max_size=4), min_size=3, max_size=6), st.sampled_from([2, 5, 20]))
def test_every_value_is_in_the_tables_and_on_the_page(rows: list[list[str]], ranks: int) -> None:
    """Values are listed by rank if each rank has a column; for many ranks, by value or rank after minimum and maximum."""
    texts = [[f"step {step} loss {row[rank % 4]}" for step, row in enumerate(rows)] for rank in range(ranks)]
    for block_ranks, items in _repeated_items(texts):
        for run in (item for item in items if isinstance(item, RepeatedLines)):
            names = "abc"[: len(run.columns)]
            (loss,) = build_tables(run, block_ranks, names)
            slots = next(column for column in run.columns if isinstance(column[0], Slot))
            for row, slot in zip(loss.rows, slots, strict=True):
                assert isinstance(slot, Slot)
                if ranks <= 16:
                    assert row.values == tuple(value.strip() for value in slot.values)
                assert all(
                    value.strip() in (*row.values, *" ".join((*row.values, row.all_values)).split())
                    for value in slot.values
                )
            table_text = "\n".join(format_table(loss))
            page = StrictPage(format_cell_html(_cell(texts))).text
            for row in loss.rows:
                assert all(value in table_text and value in page for value in (*row.values, row.all_values))


def test_six_lines_of_two_numbers_are_six_rows() -> None:
    """The step names the row, each rank has a column, and a value that all ranks share (`acc`) is shown once per line."""
    assert format_cell_text(_cell(LOSSES)).splitlines()[:4] == [
        "ranks 0-3 · 0.21 s · numbers differ by rank",
        "  step ‹a› loss ‹b› acc ‹c›   × 6 lines",
        "    step  acc loss · rank      0      1      2      3",
        "       0 0.00             1.0000 0.5000 0.3333 0.2500",
    ]
    page = StrictPage(format_cell_html(_cell(LOSSES)))
    assert "step ‹a› loss ‹b› acc ‹c›   × 6 lines" in page.visible
    assert [tag for tag, _ in page.tags].count("table") == 1
    assert [tag for tag, _ in page.tags].count("tr") == 7


def test_rows_without_a_step_are_numbered() -> None:
    """Rows are numbered if no step can name them."""
    texts = [[f"loss {rank + line}" for line in (3, 5, 8)] for rank in range(2)]
    assert format_cell_text(_cell(texts)).splitlines()[1:] == [
        "  loss ‹a›   × 3 lines",
        "    line loss · rank 0 1",
        "       1             3 4",
        "       2             5 6",
        "       3             8 9",
    ]


def test_columns_without_words_of_their_own_keep_their_letters() -> None:
    """A column is headed by the words beside its number, or by its letter if there are none or another has the same."""
    texts = [[f"{3 * line}: loss {rank + line}.5 loss {rank * line}.5" for line in range(4)] for rank in range(2)]
    said = format_cell_text(_cell(texts)).splitlines()
    assert said[1] == "  ‹a›: loss ‹b› loss ‹c›   × 4 lines"
    assert said[2] == "    a b · rank   0   1"
    page = StrictPage(format_cell_html(_cell(LOSSES)))
    assert "× 6 linesstepaccloss · rank0123" in page.visible


def test_two_lines_are_not_a_table() -> None:
    """Two lines stay lines, because a table would not be shorter."""
    assert not any(
        isinstance(item, RepeatedLines)
        for _, items in _repeated_items([lines[:2] for lines in LOSSES])
        for item in items
    )


def test_single_differing_line_is_not_a_table() -> None:
    """A single differing line stays a line, because the user looks for it and a table of equal values would hide it."""
    texts = [[f"step {step} loss {rank if step == 50 else 7}" for step in range(100)] for rank in range(4)]
    ((_, items),) = _repeated_items(texts)
    assert not any(isinstance(item, RepeatedLines) for item in items)


def test_equal_lines_stay_outside_the_table() -> None:
    """Equal lines before the first and after the last difference stay outside the table if they are the majority."""
    texts = [[f"step {step} loss {10 * rank if 3 <= step < 7 else 7}" for step in range(20)] for rank in range(4)]
    ((_, items),) = _repeated_items(texts)
    assert [item.count if isinstance(item, RepeatedLines) else 1 for item in items] == [1] * 3 + [4] + [1] * 13


def test_outlying_value_is_marked_in_its_column() -> None:
    """A sign marks the value, and the digits stay aligned."""
    texts = [[f"t {'nan' if rank == 1 and line > 1 else line + 0.1 * rank}" for line in range(4)] for rank in range(3)]
    said = format_cell_text(_cell(texts)).splitlines()
    assert "not a finite number on rank 1" in said[0]
    assert said[-1].endswith(" 3.0 nan ≠ 3.2")
    assert StrictPage(format_cell_html(_cell(texts))).visible.count("nan\xa0≠") == 2


def test_own_rank_number_is_not_a_column() -> None:
    """A rank's own number is not a column, because every rank prints its own."""
    texts = [[f"rank {rank} step {step} loss {10 + rank * (step + 1)}" for step in range(3)] for rank in range(3)]
    assert f"rank {RANK_PLACEHOLDER} step ‹a› loss ‹b›   × 3 lines" in format_cell_text(_cell(texts))
