"""Lessons as notebooks: read them, fill in answers, run them with real ranks, and collect the output of each cell.

This module knows the structure of a lesson but not what it teaches.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from mhnb.teach.exercise import Exercise, find_task, read_solution
from tests.integration.lessons import answers
from tests.support.source import ROOT

__all__ = [
    "NOTEBOOKS",
    "Answer",
    "Cell",
    "Lesson",
    "EqualOutputs",
    "LessonRun",
    "equal_outputs",
    "all_answers",
    "expected_outputs",
    "lessons",
    "read_lesson",
    "right_answer",
    "run_lesson",
]

NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT_S = 120
RAISES = "raises-exception"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Answer:
    """Wrong answers to one exercise, each the complete source of its cell. The right one is in the package."""

    wrong: Sequence[tuple[str, str]]
    """Pairs of a source and the words that the feedback must contain, to check that the reason is right."""
    setup: str = ""
    """A cell that runs before all answers, if the exercise builds on an earlier one."""
    also_right: Sequence[str] = ()
    """Other right answers that a check could refuse, each the complete source of its cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a lesson, before it runs."""

    kind: str
    id: str
    source: str
    tags: tuple[str, ...] = ()

    @property
    def exercise(self) -> str | None:
        """The name of the exercise in this cell; None if it has no exercise."""
        return self.id.removeprefix("ex-") if self.id.startswith("ex-") else None

    @property
    def raises(self) -> bool:
        """Whether the cell should fail."""
        return RAISES in self.tags


@dataclass(frozen=True, slots=True)
class Lesson:
    """A notebook of the course."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def number(self) -> str:
        """The two digits at the start of the file's name."""
        return self.path.name[:2]

    @property
    def name(self) -> str:
        """The file's name without number and suffix."""
        return self.path.stem[3:]

    @property
    def code(self) -> tuple[Cell, ...]:
        """The lesson's code cells."""
        return tuple(cell for cell in self.cells if cell.kind == "code")


@dataclass(slots=True)
class LessonRun:
    """The outputs of a lesson's cells."""

    texts: dict[str, str] = field(default_factory=dict)
    """Cell id -> all its outputs as text."""
    failed: set[str] = field(default_factory=set)
    """Ids of cells that raised."""


def lessons() -> list[Path]:
    """Return the paths of all lessons, without the tour."""
    return sorted(path for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb") if not path.name.startswith("00"))


@cache
def read_lesson(path: Path) -> Lesson:
    """Read a lesson from its notebook."""
    import nbformat

    notebook: Any = nbformat.read(path, as_version=4)
    cells = [Cell(c.cell_type, c.id, c.source, tuple(c.metadata.get("tags", ()))) for c in notebook.cells]
    return Lesson(path, tuple(cells))


def _answer_modules() -> Iterator[Any]:
    for found in pkgutil.iter_modules(answers.__path__):
        yield importlib.import_module(f"{answers.__name__}.{found.name}")


def all_answers() -> dict[str, Answer]:
    """Return the answers to all exercises: `ANSWERS` of every module in tests/integration/lessons/answers."""
    return {name: answer for module in _answer_modules() for name, answer in module.ANSWERS.items()}


def expected_outputs() -> dict[tuple[str, str], Sequence[str]]:
    """Return the words that cells must show: `SAID` of every module, by lesson and cell id."""
    return {key: words for module in _answer_modules() for key, words in module.SAID.items()}


def right_answer(exercise: str) -> str:
    """Return the cell that `mhnb.teach.solution` shows."""
    task = find_task(exercise, Exercise)
    assert isinstance(task, Exercise)
    return read_solution(task)


EqualOutputs = tuple[str, str, tuple[str, ...]]
"""A lesson's name, a pattern with one group for whole lines, and the cells in which it must find the same text."""


def equal_outputs() -> list[EqualOutputs]:
    """Return what must be the same in several cells: `ALIKE` of every module that has it."""
    return [each for module in _answer_modules() for each in getattr(module, "ALIKE", [])]


def _cells_with_answers(lesson: Lesson) -> Iterator[Cell]:
    """Yield the code cells with answers: after each exercise its wrong answers, the right one, and the original cell again."""
    known = all_answers()
    for cell in lesson.code:
        if "%mhjax stop" in cell.source:
            yield Cell("code", "probe-state", "import mhnb\nmhnb.current().state")
        yield cell
        if cell.exercise is not None:
            yield from _answer_cells(cell, known[cell.exercise])
        elif cell.id.startswith("reveal-"):
            yield Cell("code", f"try-{cell.id}", _every_guess(cell))


def _answer_cells(cell: Cell, answer: Answer) -> Iterator[Cell]:
    if answer.setup:
        yield Cell("code", f"setup-{cell.exercise}", answer.setup)
    for number, (source, _) in enumerate(answer.wrong):
        yield Cell("code", f"wrong{number}-{cell.exercise}", source, (RAISES,))
    for number, source in enumerate(answer.also_right):
        yield Cell("code", f"right{number}-{cell.exercise}", source)
    yield Cell("code", f"right-{cell.exercise}", right_answer(str(cell.exercise)))
    yield Cell("code", f"again-{cell.exercise}", cell.source, (RAISES,))


def _every_guess(cell: Cell) -> str:
    """Return code that makes each possible guess in turn and reveals it with the lesson's own line."""
    reveal = cell.source.splitlines()[-1]
    name = cell.id.removeprefix("reveal-")
    lines = ["from mhnb.teach.exercise import tasks", f"for guess in tasks()[{name!r}].choices:"]
    # A guess that was revealed stays until it is forgotten.
    reset = f"    mhnb.teach.reset({name!r})"
    return "\n".join([*lines, reset, f"    mhnb.teach.predict({name!r}, guess)", f"    {reveal}"])


def run_lesson(lesson: Lesson) -> LessonRun:
    """Run a lesson with its answers filled in, in a separate kernel.

    Raises:
        CellExecutionError: a cell failed that should not.
    """
    import nbformat
    from nbclient import NotebookClient

    cells = list(_cells_with_answers(lesson))
    notebook: Any = nbformat.v4.new_notebook()
    for cell in cells:
        new_cell: Any = nbformat.v4.new_code_cell(cell.source, metadata={"tags": list(cell.tags)})
        notebook.cells.append(new_cell)
    replies: dict[int, str] = {}

    def record_reply(cell_index: int, execute_reply: dict[str, Any], **_: Any) -> None:
        replies[cell_index] = execute_reply["content"]["status"]

    client = NotebookClient(
        notebook,
        on_cell_executed=record_reply,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": os.environ["MHNB_HOME"]}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    client.execute()
    ran = LessonRun()
    for index, (cell, done) in enumerate(zip(cells, notebook.cells, strict=True)):
        ran.texts[cell.id] = _ANSI.sub("", "\n".join(_text(output) for output in done.outputs))
        # Not whether there is an error output: a cell whose answer is not right yet fails without a traceback.
        if replies[index] == "error":
            ran.failed.add(cell.id)
    return ran


_STYLE, _TAG = re.compile(r"<style>.*?</style>", re.DOTALL), re.compile(r"<[^>]*>")


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    # Besides the folded output, the HTML also has the output of each rank.
    page = unescape(_TAG.sub("", _STYLE.sub("", output.data.get("text/html", ""))))
    return f"{output.data.get('text/plain', '')}\n{page}"
