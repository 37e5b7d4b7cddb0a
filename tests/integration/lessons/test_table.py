"""The table in notebooks/README.md: each topic of the course names the cells that show it, and these cells exist.

test_runs.py checks that the cells run, because it runs every lesson completely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.lessons.book import NOTEBOOKS, lessons, read_lesson

TABLE = NOTEBOOKS / "README.md"
_ROW = re.compile(r"^\| (?!what \||-)(?P<box>.+?) \| (?P<cells>[^|]+) \|$", re.MULTILINE)
_CELL = re.compile(r"\[(?P<number>\d\d)\]\((?P<file>[\w.]+)\) (?P<ids>`[\w-]+`(?:, `[\w-]+`)*)")
_FUTURE = re.compile(r"comes with lessons? (?P<numbers>\d\d(?:, \d\d)*)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    topic: str
    cells: str

    @property
    def cell_refs(self) -> list[tuple[str, str, str]]:
        """Lesson number, file and id of each cell."""
        return [
            (m["number"], m["file"], i.strip("`")) for m in _CELL.finditer(self.cells) for i in m["ids"].split(", ")
        ]

    @property
    def future_lessons(self) -> list[str]:
        """The lessons that are still to come."""
        found = _FUTURE.search(self.cells)
        return found["numbers"].split(", ") if found else []


def read_rows(text: str) -> list[Row]:
    """Parse the rows of the table."""
    return [Row(match["box"], match["cells"].strip()) for match in _ROW.finditer(text)]


def faults(rows: list[Row], known: dict[str, set[str]]) -> Iterator[str]:
    """Find rows that name nothing, a cell that does not exist, or an existing lesson as still to come.

    Args:
        rows: the rows of the table.
        known: a lesson's file -> the ids of its code cells.
    """
    numbers = {file[:2] for file in known}
    for row in rows:
        if not row.cell_refs and not row.future_lessons:
            yield f"{row.topic}: names no cell"
        for number, file, name in row.cell_refs:
            if name not in known.get(file, set()):
                yield f"{row.topic}: {file} has no code cell {name}"
            if number != file[:2]:
                yield f"{row.topic}: {number} is not the number of {file}"
        yield from (
            f"{row.topic}: lesson {number} is there; name its cells"
            for number in row.future_lessons
            if number in numbers
        )


def test_every_row_names_existing_cells() -> None:
    """Every row names code cells of the lessons, or lessons that are still to come."""
    rows = read_rows(TABLE.read_text(encoding="utf-8"))
    known = {path.name: {cell.id for cell in read_lesson(path).code} for path in lessons()}
    assert len(rows) > 30
    assert list(faults(rows, known)) == []


def test_every_lesson_is_listed() -> None:
    """The list above the table links to every lesson."""
    text = TABLE.read_text(encoding="utf-8")
    assert [path.name for path in lessons() if f"]({path.name})" not in text] == []


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ("", "names no cell"),
        ("somewhere", "names no cell"),
        ("[01](01_a.ipynb) `gone`", "no code cell gone"),
        ("[01](01_b.ipynb) `here`", "no code cell here"),
        ("[02](01_a.ipynb) `here`", "not the number"),
        ("[01](01_a.ipynb) `here`, `gone`", "no code cell gone"),
        ("comes with lesson 01", "lesson 01 is there"),
    ],
)
def test_a_fault_is_found(cells: str, wrong: str) -> None:
    """A row without a cell, with a missing cell, or with an outdated future lesson is found."""
    assert wrong in "\n".join(faults([Row("a box", cells)], {"01_a.ipynb": {"here"}}))


@pytest.mark.parametrize(
    "cells", ["[01](01_a.ipynb) `here`", "comes with lessons 08, 10", "[01](01_a.ipynb) `here`; comes with lesson 08"]
)
def test_a_good_row_passes(cells: str) -> None:
    """A row that names existing cells or future lessons has no fault."""
    assert list(faults([Row("a box", cells)], {"01_a.ipynb": {"here"}})) == []
