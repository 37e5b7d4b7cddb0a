"""What lessons have recorded of other machines is what their compilers say."""

from __future__ import annotations

import pytest

from tests.integration.lessons import recorded_fits
from tests.integration.lessons.book import read_lesson
from tests.integration.lessons.recorded import LESSON, ask_compiler, ask_fit, format_table, read_fits, read_table


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


def test_both_fits_are_recorded() -> None:
    """Lesson 16 has an answer for GPUs and one for TPUs, each below its command."""
    assert [fit.machine for fit in read_fits()] == ["h100:4x2", "v5e:2x2*2"]
    assert [fit for fit in read_fits() if f"fit · step · {fit.machine} · mesh ({fit.mesh})" not in fit.text] == []


@pytest.mark.slow
@pytest.mark.requires_part("compilers")
@pytest.mark.timeout(300)
def test_recorded_fits_are_those_of_the_compilers() -> None:
    """The compilers for GPUs and TPUs estimate the step of lesson 16 as it is recorded there."""
    for fit in read_fits():
        actual = [line.rstrip() for line in ask_fit(fit).splitlines()]
        assert [line for line in fit.text.splitlines() if line not in ("...", *actual)] == [], "\n".join(actual)


@pytest.mark.soak
@pytest.mark.requires_part("compilers")
@pytest.mark.timeout(300)
def test_recorded_memory_is_that_of_the_compiler() -> None:
    """The compiler for GPUs needs the memory that lesson 17's table has, and the collectives of its text.

    That for TPUs is left out, because it takes minutes.
    """
    at, machine = recorded_fits.MACHINES.index("h100:4x2"), "h100:4x2"
    table = recorded_fits.read_table()
    lines = recorded_fits.ask_compilers([machine])
    sizes = [recorded_fits.format_size(variant, machine, row[at]) for variant, row in table.items()]
    assert [line for line in lines if "GiB" in line] == sizes
    text = "\n".join(cell.source for cell in read_lesson(recorded_fits.LESSON).cells)
    assert [line for line in lines if line.startswith("|") and line not in text] == []
