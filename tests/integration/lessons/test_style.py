"""The form of a lesson: one question, prose around each cell, short cells, short sentences, a failure, an exercise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.lessons.book import Cell, Lesson, lessons, read_lesson

Rule = Callable[[Lesson], Iterator[str]]

CODE_LINES = 8
CODE_WIDTH = 100
SENTENCE_WORDS = 30
NOTICE = "**What to notice.**"


def has_one_question(lesson: Lesson) -> Iterator[str]:
    """The first cell has the title with the file's number, and one question."""
    first = lesson.cells[0]
    if not first.source.startswith(f"# {lesson.number} · "):
        yield f"{first.id}: begin with '# {lesson.number} · '"
    if sum(cell.source.count("**Question:") for cell in lesson.cells) != 1 or "**Question:" not in first.source:
        yield f"{first.id}: ask exactly one **Question: ...** here"


def explains_each_cell(lesson: Lesson) -> Iterator[str]:
    """Each code cell has prose before it."""
    for before, cell in zip((None, *lesson.cells), lesson.cells, strict=False):
        if cell.kind == "code" and (before is None or before.kind != "markdown"):
            yield f"{cell.id}: no prose before it"


def has_short_cells(lesson: Lesson) -> Iterator[str]:
    """A code cell has 1 to 8 lines of at most 100 characters, not counting the magic, the check and empty lines."""
    for cell in lesson.code:
        lines = [line for line in cell.source.splitlines() if line.strip() and not _is_uncounted(line)]
        if len(lines) > CODE_LINES:
            yield f"{cell.id}: {len(lines)} lines"
        yield from (f"{cell.id}: a line of {len(line)} characters" for line in lines if len(line) > CODE_WIDTH)
        if not cell.source.strip():
            yield f"{cell.id}: is empty"


def _is_uncounted(line: str) -> bool:
    return line.startswith(("%%mhjax", "mhnb.teach.check", "import mhnb.teach"))


def fails_on_purpose(lesson: Lesson) -> Iterator[str]:
    """At least one cell other than an exercise fails on purpose; a cell that should fail has a tag."""
    if not [cell for cell in lesson.code if cell.raises and cell.exercise is None]:
        yield "no deliberate failure"
    for cell in lesson.code:
        if cell.exercise is not None and not cell.raises:
            yield f"{cell.id}: an exercise is not solved yet: tag it raises-exception"


def has_an_exercise(lesson: Lesson) -> Iterator[str]:
    """There is at least one exercise, and a cell `ex-NAME` ends with the check of that name."""
    if not [cell for cell in lesson.code if cell.exercise]:
        yield "no exercise"
    for cell in lesson.code:
        wanted = f'mhnb.teach.check("{cell.exercise}", '
        if cell.exercise and not cell.source.splitlines()[-1].startswith(wanted):
            yield f"{cell.id}: should end with {wanted}...)"
        if cell.exercise is None and "mhnb.teach.check(" in cell.source:
            yield f"{cell.id}: checks an exercise, and should be named ex-NAME"


def ends_clean(lesson: Lesson) -> Iterator[str]:
    """The last code cell stops the cluster."""
    if lesson.code[-1].source != "%mhjax stop":
        yield f"{lesson.code[-1].id}: the last code cell should be %mhjax stop"


def names_its_cells(lesson: Lesson) -> Iterator[str]:
    """Cell ids are unique words, because the table and the tests refer to them."""
    ids = [cell.id for cell in lesson.cells]
    yield from (f"{name}: twice" for name in sorted({name for name in ids if ids.count(name) > 1}))
    yield from (
        f"{name}: looks like chance; give it a word" for name in ids if re.fullmatch(r"[0-9a-f]{8}(-.*)?", name)
    )


def has_short_sentences(lesson: Lesson) -> Iterator[str]:
    """A sentence has at most 30 words."""
    for cell in lesson.cells:
        if cell.kind == "markdown":
            for sentence in _sentences(cell):
                if len(sentence.split()) > SENTENCE_WORDS:
                    yield f"{cell.id}: {len(sentence.split())} words: {sentence[:80]}..."


def _sentences(cell: Cell) -> list[str]:
    prose = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
    prose = "\n".join(line for line in prose.splitlines() if not line.startswith("|"))
    return re.split(r"(?<=[.?!:;])\s|\n\n", prose)


RULES: tuple[Rule, ...] = (
    has_one_question,
    ends_clean,
    explains_each_cell,
    fails_on_purpose,
    has_an_exercise,
    has_short_cells,
    has_short_sentences,
    names_its_cells,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", lessons(), ids=lambda path: path.stem)
def test_every_lesson_follows_the_rule(path: Path, rule: Rule) -> None:
    """Every lesson follows the rule."""
    found = list(rule(read_lesson(path)))
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


GOOD = (
    Cell("markdown", "title", "# 01 · Good\n\n**Question: why?**"),
    Cell("code", "lost", "x", ("raises-exception",)),
    Cell("markdown", "lost-after", NOTICE),
    Cell("code", "ex-a", 'a = ...\nmhnb.teach.check("a", a)', ("raises-exception",)),
    Cell("markdown", "a-after", "So."),
    Cell("code", "stop", "%mhjax stop"),
)


def _lesson(*cells: Cell) -> Lesson:
    return Lesson(Path("01_good.ipynb"), cells)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_good_lesson_passes(rule: Rule) -> None:
    """A correct lesson breaks no rule."""
    assert list(rule(_lesson(*GOOD))) == []


@pytest.mark.parametrize(
    ("rule", "index", "bad"),
    [
        (has_one_question, 0, Cell("markdown", "title", "# 02 · Good\n\n**Question: why?**")),
        (has_one_question, 0, Cell("markdown", "title", "# 01 · Good")),
        (has_one_question, 2, Cell("markdown", "more", NOTICE + " **Question: and why?**")),
        (ends_clean, 5, Cell("code", "stop", "%mhjax status")),
        (explains_each_cell, 0, Cell("code", "title", "1")),
        (explains_each_cell, 2, Cell("code", "lost-after", "1")),
        (fails_on_purpose, 1, Cell("code", "lost", "x")),
        (fails_on_purpose, 3, Cell("code", "ex-a", 'a = ...\nmhnb.teach.check("a", a)')),
        (has_an_exercise, 3, Cell("code", "a", "x")),
        (has_an_exercise, 3, Cell("code", "ex-a", 'mhnb.teach.check("b", a)')),
        (has_an_exercise, 1, Cell("code", "b", 'mhnb.teach.check("b", a)')),
        (has_short_cells, 1, Cell("code", "lost", "x\n" * 9)),
        (has_short_cells, 1, Cell("code", "lost", "")),
        (has_short_cells, 1, Cell("code", "lost", "x" * 101)),
        (has_short_sentences, 0, Cell("markdown", "title", "word " * 31)),
        (names_its_cells, 1, Cell("code", "title", "x")),
        (names_its_cells, 1, Cell("code", "2f6d0a1b", "x")),
    ],
)
def test_a_fault_is_found(rule: Rule, index: int, bad: Cell) -> None:
    """Each rule finds the fault in a lesson in which one cell breaks it."""
    assert list(rule(_lesson(*GOOD[:index], bad, *GOOD[index + 1 :])))
