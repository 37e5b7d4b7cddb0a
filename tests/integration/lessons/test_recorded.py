"""The devices that lesson 04 has recorded are those of the compiler for TPUs."""

from __future__ import annotations

import pytest

from tests.integration.lessons.book import read_lesson
from tests.integration.lessons.recorded import LESSON, ask_compiler, format_table, read_table


def test_table_has_one_line_for_each_host() -> None:
    """The lesson's table is written as the compiler's devices would be."""
    rows = read_table()
    (cell,) = (cell for cell in read_lesson(LESSON).code if cell.id == "recorded")
    assert format_table(rows) in cell.source
    assert all(len({process for _, process, *_ in rows[at : at + 4]}) == 1 for at in range(0, len(rows), 4))


@pytest.mark.slow
@pytest.mark.requires_part("compilers")
def test_recorded_devices_are_those_of_the_compiler() -> None:
    """The compiler for TPUs describes the devices of two slices as the lesson's table does."""
    assert ask_compiler().rstrip("\n") == format_table(read_table())
