"""Sessions with the debugger in the text of a lesson are real. A lesson is executed where no user types, so its cells have none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.lessons.book import Lesson, lessons, read_lesson
from tests.support.docs_pages import Block, is_same, normalize, parse_blocks, run_blocks


def _sessions(lesson: Lesson) -> Iterator[tuple[int, Block]]:
    """Yield each session with the index of the Markdown cell that shows it."""
    for index, cell in enumerate(lesson.cells):
        if cell.kind == "markdown":
            yield from ((index, block) for block in parse_blocks(cell.source) if block.typed)


_WITH_SESSION = [path for path in lessons() if any(_sessions(read_lesson(path)))]


@pytest.mark.ranks
@pytest.mark.timeout(480)
@pytest.mark.parametrize("path", _WITH_SESSION, ids=lambda path: path.stem)
def test_a_lesson_shows_a_real_session(path: Path, leftovers: None, answers_home: Path) -> None:
    """A new cell below the text, after all cells above it, gives the output that the text shows."""
    lesson = read_lesson(path)
    for index, session in _sessions(lesson):
        earlier = [Block(cell.source, "cell", None, (0, 0)) for cell in lesson.cells[:index] if cell.kind == "code"]
        actual = run_blocks([*earlier, session], answers_home)[-1]
        assert session.expected is not None
        if not is_same(session.expected, actual):
            assert normalize(actual) == normalize(session.expected), lesson.cells[index].id


def test_the_debugger_is_taught() -> None:
    """The lesson on deadlocks has a session."""
    assert [path.stem[3:] for path in _WITH_SESSION] == ["deadlock"]
