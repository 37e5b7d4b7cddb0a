"""Every lesson runs from top to bottom with real ranks and its answers. Outputs that never vary are compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from mhnb.teach.exercise import Exercise, Prediction, tasks
from mhnb.teach.progress import title_of
from tests.integration.lessons.book import (
    Cell,
    EqualOutputs,
    Lesson,
    LessonRun,
    all_answers,
    equal_outputs,
    expected_outputs,
    lessons,
    read_lesson,
    run_lesson,
)

_RANKS_DIFFER = re.compile(r"differs|different outputs|only ranks? ")
"""Words in the view for outputs that differ between ranks."""
OTHER_PYTHON_LESSONS = ("devices",)
"""Lessons that also run on the other line of Python and JAX."""


def _case(path: Path) -> object:
    return pytest.param(
        path, id=path.stem, marks=[pytest.mark.other_python] if path.stem[3:] in OTHER_PYTHON_LESSONS else []
    )


@pytest.mark.ranks
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", [_case(path) for path in lessons()])
@pytest.mark.sample(7)
def test_lesson(path: Path, leftovers: None, answers_home: Path) -> None:
    """Exactly the cells that should fail do, the answers are judged correctly, and the cluster is clean at the end."""
    lesson = read_lesson(path)
    ran = run_lesson(lesson)
    faults = [
        *_find_missing_failures(lesson, ran),
        *_find_missing_output(lesson, ran),
        *_find_unequal_outputs(lesson, ran, equal_outputs()),
        *_find_wrong_judgements(lesson, ran),
        *_find_wrong_reveals(lesson, ran),
    ]
    assert not faults, "\n".join(faults)
    assert "'clean'" in ran.texts["probe-state"]


def _find_missing_failures(lesson: Lesson, ran: LessonRun) -> list[str]:
    return [
        f"{cell.id}: was meant to fail and did not" for cell in lesson.code if cell.raises and cell.id not in ran.failed
    ]


def _find_missing_output(lesson: Lesson, ran: LessonRun) -> list[str]:
    return [
        f"{cell}: {words!r} is not in\n{ran.texts.get(cell, 'nothing: there is no such cell')}"
        for (name, cell), wanted in expected_outputs().items()
        if name == lesson.name
        for words in wanted
        if words not in _collapse_spaces(ran.texts.get(cell, ""))
    ]


def _find_unequal_outputs(lesson: Lesson, ran: LessonRun, expected: Sequence[EqualOutputs]) -> list[str]:
    """Find texts that a restart, a replay or a checkpoint did not restore."""
    faults = []
    for name, pattern, cells in expected:
        found = {cell: set(re.findall(pattern, ran.texts.get(cell, ""), re.MULTILINE)) for cell in cells}
        same = all(found.values()) and len(set().union(*found.values())) == 1
        if name == lesson.name and not same:
            faults.append(f"{', '.join(cells)}: one and the same {pattern!r} should be in each, and there is {found}")
    return faults


def _collapse_spaces(text: str) -> str:
    """Collapse runs of spaces, because columns are padded."""
    return " ".join(text.split())


def _as_fields(text: str) -> str:
    """Return a sentence such as `x is 1, expected 2` as it is shown in fields below each other, without the spaces of columns."""
    return _collapse_spaces(text).replace(", expected", " expected")


def _find_wrong_judgements(lesson: Lesson, ran: LessonRun) -> list[str]:
    """Find answers that are judged wrongly.

    A wrong answer must be refused for its own reason, every right one accepted on every rank, and the stub refused.
    """
    found = []
    for name in [cell.exercise for cell in lesson.code if cell.exercise is not None]:
        for number, (_, words) in enumerate(all_answers()[name].wrong):
            output = ran.texts[f"wrong{number}-{name}"]
            if f"wrong{number}-{name}" not in ran.failed or _as_fields(words) not in _as_fields(output):
                found.append(f"{name}: wrong answer {number} should be refused with {words!r}, and said\n{output}")
        for right in ("right", *(f"right{number}" for number in range(len(all_answers()[name].also_right)))):
            output = ran.texts[f"{right}-{name}"]
            if f"✓ {_title(name)} · " not in output or _RANKS_DIFFER.search(output):
                found.append(f"{name}: the {right} answer was not taken on every rank:\n{output}")
        if not any(words in ran.texts[f"ex-{name}"] for words in (f"not yet · {_title(name)}", "OrderMismatch")):
            found.append(f"{name}: the stub is not told apart from an answer:\n{ran.texts[f'ex-{name}']}")
    return found


def _title(exercise: str) -> str:
    task = tasks()[exercise]
    assert isinstance(task, Exercise)
    return title_of(task)


def _find_wrong_reveals(lesson: Lesson, ran: LessonRun) -> list[str]:
    """Find predictions without exactly one right guess, and reveals that do not report a missing guess."""
    found = []
    for name in [cell.id.removeprefix("reveal-") for cell in lesson.code if cell.id.startswith("reveal-")]:
        task = tasks()[name]
        assert isinstance(task, Prediction)
        output = ran.texts[f"try-reveal-{name}"]
        if output.count("which is right") != 1 or output.count("; it is ") != len(task.choices) - 1:
            found.append(f"{name}: one of {len(task.choices)} guesses should be right:\n{output}")
        if task.prompt not in ran.texts[f"predict-{name}"]:
            found.append(f"{name}: was not asked:\n{ran.texts[f'predict-{name}']}")
        if "no prediction was made" not in ran.texts[f"reveal-{name}"]:
            found.append(f"{name}: revealed without a guess:\n{ran.texts[f'reveal-{name}']}")
    return found


# -- the checks above can fail


_MADE_UP_LESSON = Lesson(
    Path("01_many_pythons.ipynb"),
    (Cell("code", "lost", "x", ("raises-exception",)), Cell("code", "ex-my_label", "...", ("raises-exception",))),
)


def _good_run() -> LessonRun:
    """Return the outputs of the made-up lesson without any fault."""
    wrong = {f"wrong{number}-my_label": words for number, (_, words) in enumerate(all_answers()["my_label"].wrong)}
    texts = {"ex-my_label": "not yet · 01.1 my_label on ranks 0-3", "right-my_label": "✓ 01.1 my_label · yes", **wrong}
    return LessonRun(texts, {"lost", "ex-my_label", *wrong})


def test_good_run_has_no_fault() -> None:
    """The checks find no fault in a good run."""
    assert [
        *_find_missing_failures(_MADE_UP_LESSON, _good_run()),
        *_find_wrong_judgements(_MADE_UP_LESSON, _good_run()),
    ] == []


@pytest.mark.parametrize(
    ("cell", "text", "fault"),
    [
        ("wrong0-my_label", "some other reason", "wrong answer 0 should be refused"),
        ("right-my_label", "not yet · 01.1 my_label", "not taken on every rank"),
        ("right-my_label", "✓ 01.1 my_label · yes\nonly rank 0 said something", "not taken on every rank"),
        ("ex-my_label", "✓ 01.1 my_label · yes", "the stub is not told apart"),
    ],
)
def test_wrong_judgement_is_found(cell: str, text: str, fault: str) -> None:
    """The checks find a wrong answer with another reason, a right one that a rank refuses, and a stub that passes."""
    ran = _good_run()
    ran.texts[cell] = text
    assert fault in "\n".join(_find_wrong_judgements(_MADE_UP_LESSON, ran))


def test_missing_failure_is_found() -> None:
    """The checks find a cell that should have failed and a wrong answer that passed."""
    ran = _good_run()
    ran.failed.clear()
    assert "lost: was meant to fail" in "\n".join(_find_missing_failures(_MADE_UP_LESSON, ran))
    assert "wrong answer 0 should be refused" in "\n".join(_find_wrong_judgements(_MADE_UP_LESSON, ran))


@pytest.mark.parametrize(
    ("after", "faults"), [("loss 0.5", 0), ("loss 0.7", 1), ("nothing", 1), ("loss 0.5, or loss 0.7", 1)]
)
def test_unrestored_output_is_found(after: str, faults: int) -> None:
    """The checks find a number that is different, missing or ambiguous after the restart."""
    ran = LessonRun({"before": "loss 0.5", "after": after})
    assert (
        len(_find_unequal_outputs(_MADE_UP_LESSON, ran, [("many_pythons", r"loss ([0-9.]+)", ("before", "after"))]))
        == faults
    )


def test_missing_output_is_found() -> None:
    """The checks find a cell that does not show a required text."""
    assert "'4 ranks × 2 CPU devices' is not in" in "\n".join(_find_missing_output(_MADE_UP_LESSON, _good_run()))
