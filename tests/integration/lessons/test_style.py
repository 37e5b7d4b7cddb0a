"""The form of a lesson: a question, goals, a figure, prose, short cells and sentences, a failure, a prediction, an exercise, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mhnb.teach.exercise import Exercise, tasks
from tests.integration.lessons.book import Cell, Lesson, lessons, read_lesson

Rule = Callable[[Lesson], Iterator[str]]

CODE_LINES = 8
CODE_WIDTH = 100
SENTENCE_WORDS = 30
NOTICE = "**What to notice.**"
GOALS = (r"^\*\*You will learn\*\* to .+\.$", r"^\*\*Needs\*\* .+\.$", r"^\*\*Time\*\* \d+ minutes, .+\.$")
ABOUT_DEVICE_ORDER = ("meshes", "slices")
RUNS_ON_SLURM = ("capstone",)
"""Lessons whose script runs on several machines with CPU devices, where `jax.make_mesh` raises."""
_FIGURE = re.compile(r"!\[(.*?)\]\((.*?)\)", re.DOTALL)


def has_one_question(lesson: Lesson) -> Iterator[str]:
    """The first cell has the title with the file's number, and one question."""
    first = lesson.cells[0]
    if not first.source.startswith(f"# {lesson.number} · "):
        yield f"{first.id}: begin with '# {lesson.number} · '"
    if sum(cell.source.count("**Question:") for cell in lesson.cells) != 1 or "**Question:" not in first.source:
        yield f"{first.id}: ask exactly one **Question: ...** here"


def states_its_goals(lesson: Lesson) -> Iterator[str]:
    """The first cell says what is learnt, what it needs, and how many minutes it takes."""
    for form in GOALS:
        if not re.search(form, lesson.cells[0].source, re.MULTILINE):
            yield f"{lesson.cells[0].id}: no line {form}"


def shows_a_figure(lesson: Lesson) -> Iterator[str]:
    """There is a figure of this lesson, and each figure has a text of at least five words for those who do not see it."""
    figures = [found for cell in lesson.cells if cell.kind == "markdown" for found in _FIGURE.findall(cell.source)]
    if not any(file.startswith(f"img/{lesson.number}_") for _, file in figures):
        yield f"no figure img/{lesson.number}_..."
    yield from (f"{file}: {text!r} does not describe it" for text, file in figures if len(text.split()) < 5)


def notices_sparingly(lesson: Lesson) -> Iterator[str]:
    """At most one code cell in three is followed by what to notice, and no exercise: its feedback says what is right or wrong."""
    noticing = [cell.id for cell in lesson.cells if NOTICE in cell.source]
    if len(noticing) * 3 > len(lesson.code):
        yield f"{len(noticing)} times {NOTICE} for {len(lesson.code)} code cells"
    for before, cell in zip(lesson.cells, lesson.cells[1:], strict=False):
        if before.exercise and cell.source.startswith(NOTICE):
            yield f"{cell.id}: follows an exercise"


def marks_difficulty(lesson: Lesson) -> Iterator[str]:
    """Below the heading of an exercise is its difficulty, as the package has it."""
    known = {task.name: task.difficulty for task in tasks().values() if isinstance(task, Exercise)}
    for before, cell in zip(lesson.cells, lesson.cells[1:], strict=False):
        if cell.exercise and f"*{known[cell.exercise]}*" not in before.source.splitlines()[1:4]:
            yield f"{before.id}: no line *{known[cell.exercise]}* below the heading"


def has_a_prediction(lesson: Lesson) -> Iterator[str]:
    """There is at least one prediction."""
    if not [cell for cell in lesson.code if cell.id.startswith("predict-")]:
        yield "no prediction"


def links_out(lesson: Lesson) -> Iterator[str]:
    """The last cell has links to read more."""
    last = lesson.cells[-1]
    if not re.search(r"^\*\*Read more:\*\* .*\]\(https://", last.source, re.MULTILINE):
        yield f"{last.id}: no **Read more:** with a link"


def uses_public_names(lesson: Lesson) -> Iterator[str]:
    """No cell imports a private module of mhnb, or makes the mesh that JAX's guide warns against, but where this is the subject."""
    for cell in lesson.code:
        for module in re.findall(r"^\s*(?:from|import) (mhnb[\w.]*)", cell.source, re.MULTILINE):
            if module not in ("mhnb", "mhnb.teach"):
                yield f"{cell.id}: imports {module}"
        if "Mesh(np.array(jax.devices())" in cell.source and lesson.name not in (*ABOUT_DEVICE_ORDER, *RUNS_ON_SLURM):
            yield f"{cell.id}: use jax.make_mesh"


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
    has_a_prediction,
    has_an_exercise,
    has_short_cells,
    has_short_sentences,
    links_out,
    marks_difficulty,
    names_its_cells,
    notices_sparingly,
    shows_a_figure,
    states_its_goals,
    uses_public_names,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", lessons(), ids=lambda path: path.stem)
def test_every_lesson_follows_the_rule(path: Path, rule: Rule) -> None:
    """Every lesson follows the rule."""
    found = list(rule(read_lesson(path)))
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


_TITLE = """# 01 · Good

**Question: why?**

![One box and one arrow beside it.](img/01_good.svg)

**You will learn** to see.

**Needs** NumPy.

**Time** 5 minutes, of which the cells run 1."""
GOOD = (
    Cell("markdown", "title", _TITLE),
    Cell("code", "lost", "x", ("raises-exception",)),
    Cell("markdown", "lost-after", NOTICE),
    Cell("code", "predict-a", "x"),
    Cell("markdown", "label-before", "## Exercise: a label\n\n*easy*\n\nWrite it."),
    Cell("code", "ex-my_label", 'a = ...\nmhnb.teach.check("my_label", a)', ("raises-exception",)),
    Cell("markdown", "stop-before", "So."),
    Cell("code", "stop", "%mhjax stop"),
    Cell("markdown", "stop-after", "**Read more:** [the guide](https://docs.jax.dev)"),
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
        (has_one_question, 0, Cell("markdown", "title", _TITLE.replace("# 01", "# 02"))),
        (has_one_question, 0, Cell("markdown", "title", "# 01 · Good")),
        (has_one_question, 2, Cell("markdown", "more", NOTICE + " **Question: and why?**")),
        (ends_clean, 7, Cell("code", "stop", "%mhjax status")),
        (explains_each_cell, 0, Cell("code", "title", "1")),
        (explains_each_cell, 2, Cell("code", "lost-after", "1")),
        (fails_on_purpose, 1, Cell("code", "lost", "x")),
        (fails_on_purpose, 5, Cell("code", "ex-a", 'a = ...\nmhnb.teach.check("a", a)')),
        (has_a_prediction, 3, Cell("code", "a", "x")),
        (has_an_exercise, 5, Cell("code", "a", "x")),
        (has_an_exercise, 5, Cell("code", "ex-a", 'mhnb.teach.check("b", a)')),
        (has_an_exercise, 1, Cell("code", "b", 'mhnb.teach.check("b", a)')),
        (has_short_cells, 1, Cell("code", "lost", "x\n" * 9)),
        (has_short_cells, 1, Cell("code", "lost", "")),
        (has_short_cells, 1, Cell("code", "lost", "x" * 101)),
        (has_short_sentences, 0, Cell("markdown", "title", "word " * 31)),
        (links_out, 8, Cell("markdown", "stop-after", "Next: [02](02_devices.ipynb).")),
        (marks_difficulty, 4, Cell("markdown", "label-before", "## Exercise: a label\n\n*hard*")),
        (names_its_cells, 1, Cell("code", "title", "x")),
        (names_its_cells, 1, Cell("code", "2f6d0a1b", "x")),
        (notices_sparingly, 4, Cell("markdown", "label-before", NOTICE)),
        (notices_sparingly, 6, Cell("markdown", "label-after", NOTICE)),
        (shows_a_figure, 0, Cell("markdown", "title", "# 01 · Good")),
        (shows_a_figure, 2, Cell("markdown", "more", "![short](img/01_good.svg)")),
        (states_its_goals, 0, Cell("markdown", "title", _TITLE.replace("**Time**", "Time"))),
        (states_its_goals, 0, Cell("markdown", "title", _TITLE.replace("to see", "sight"))),
        (uses_public_names, 1, Cell("code", "lost", "from mhnb.transport.addresses import free_port")),
        (uses_public_names, 1, Cell("code", "lost", 'Mesh(np.array(jax.devices()), ("i",))')),
    ],
)
def test_a_fault_is_found(rule: Rule, index: int, bad: Cell) -> None:
    """Each rule finds the fault in a lesson in which one cell breaks it."""
    assert list(rule(_lesson(*GOOD[:index], bad, *GOOD[index + 1 :])))
