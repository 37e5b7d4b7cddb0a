"""The two tables of the course: what it covers and where (coverage.md), and goals and minutes of each lesson (notebooks/README.md).

test_runs.py checks that the cells run, because it runs every lesson completely.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.lessons.book import NOTEBOOKS, lessons, read_lesson

COVERAGE = Path(__file__).with_name("coverage.md")
_ROW = re.compile(r"^\| (?!what \||-)(?P<topic>.+?) \| (?P<cells>[^|]+) \|$", re.MULTILINE)
_CELLS = re.compile(r"(?P<lesson>\w+) (?P<ids>`[\w-]+`(?:, `[\w-]+`)*)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of topics."""

    topic: str
    cells: str

    @property
    def cell_refs(self) -> list[tuple[str, str]]:
        """The lesson's name and the id of each cell."""
        return [(m["lesson"], i.strip("`")) for m in _CELLS.finditer(self.cells) for i in m["ids"].split(", ")]


def read_rows(text: str) -> list[Row]:
    """Parse the rows of the table."""
    return [Row(match["topic"], match["cells"].strip()) for match in _ROW.finditer(text)]


def faults(rows: list[Row], known: dict[str, set[str]]) -> Iterator[str]:
    """Find rows that name no cell, or a cell that does not exist.

    Args:
        rows: the rows of the table.
        known: a lesson's name -> the ids of its code cells.
    """
    for row in rows:
        if not row.cell_refs:
            yield f"{row.topic}: names no cell"
        for lesson, name in row.cell_refs:
            if name not in known.get(lesson, set()):
                yield f"{row.topic}: {lesson} has no code cell {name}"


def test_every_row_names_existing_cells() -> None:
    """Every row names code cells of the lessons."""
    rows = read_rows(COVERAGE.read_text(encoding="utf-8"))
    known = {path.stem[3:]: {cell.id for cell in read_lesson(path).code} for path in lessons()}
    assert len(rows) > 30
    assert list(faults(rows, known)) == []


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ("", "names no cell"),
        ("somewhere", "names no cell"),
        ("order `gone`", "no code cell gone"),
        ("deadlock `here`", "no code cell here"),
        ("order `here`, `gone`", "no code cell gone"),
    ],
)
def test_a_fault_is_found(cells: str, wrong: str) -> None:
    """A row without a cell or with a missing cell is found."""
    assert wrong in "\n".join(faults([Row("a topic", cells)], {"order": {"here"}}))


def test_a_good_row_passes() -> None:
    """A row that names existing cells has no fault."""
    assert list(faults([Row("a topic", "order `here`")], {"order": {"here"}})) == []


# -- goals and minutes


def _format_lesson(path: Path) -> str:
    """Return a lesson's row: its link, question, goals, prerequisites and minutes, as its first cell has them."""
    first = read_lesson(path).cells[0].source
    found = [
        re.search(form, first, re.MULTILINE)
        for form in (
            r"\*\*Question: (.+?)\*\*",
            r"^\*\*You will learn\*\* (to .+)\.$",
            r"^\*\*Needs\*\* (.+)\.$",
            r"^\*\*Time\*\* (\d+)",
        )
    ]
    return f"| [{path.name[:2]}]({path.name}) | {' | '.join(each[1] if each else 'missing' for each in found)} |"


def test_the_list_has_goals_and_minutes_of_each_lesson() -> None:
    """The rows of the list are what the lessons say in their first cells; MHNB_WRITE_DOCS=1 writes them."""
    readme = NOTEBOOKS / "README.md"
    text = readme.read_text(encoding="utf-8")
    rows = "\n".join(map(_format_lesson, lessons()))
    wanted = re.sub(r"(?:^\| \[\d\d\].*\n)+", lambda _: f"{rows}\n", text, flags=re.MULTILINE)
    if os.environ.get("MHNB_WRITE_DOCS"):
        readme.write_text(wanted, encoding="utf-8")
        return
    assert text == wanted
