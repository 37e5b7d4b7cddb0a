"""The parts of `mhnb.teach` that need no rank: judging guesses, budgets, storing answers, reporting progress."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import mhnb.teach
from mhnb.cli.main import main
from mhnb.errors import InvalidRequest, NotYet
from mhnb.sharding.report import Collective
from mhnb.teach import hints as teach_hints
from mhnb.teach.check import Budget, check_budget
from mhnb.teach.exercise import RENAMED, Exercise, Prediction, WrongAnswer, find_task, lesson_of, task_names, tasks
from mhnb.teach.exercise import lessons as course
from mhnb.teach.predict import format_question
from mhnb.teach.progress import AnswerRecord, read_lesson_state, read_records, summarise_records, write_record
from tests.integration.lessons.book import Cell, all_answers, lessons, read_lesson, right_answer
from tests.support.source import ROOT

WRONG_ANSWERS = 3


def _store_answers(name: str, ranks: Sequence[int], **overrides: object) -> None:
    for rank in ranks:
        values: dict[str, object] = {"process_count": len(ranks), "right": True, "said": "", "answer": "42"}
        write_record(name, AnswerRecord(rank, **(values | overrides)))  # type: ignore[arg-type]


# -- the exercises


def test_every_task_is_in_its_lesson() -> None:
    """Each exercise has its cell `ex-NAME` in the lesson it names, each prediction `predict-NAME` and `reveal-NAME`."""
    cells = {(path.name, cell.id) for path in lessons() for cell in read_lesson(path).code}
    for name, task in tasks().items():
        wanted = [f"ex-{name}"] if isinstance(task, Exercise) else [f"predict-{name}", f"reveal-{name}"]
        assert [each for each in wanted if (lesson_of(task).file, each) not in cells] == []


def test_every_exercise_cell_has_its_task() -> None:
    """Every exercise in a lesson has a check."""
    posed = [cell.exercise for path in lessons() for cell in read_lesson(path).code if cell.exercise]
    assert [name for name in posed if name not in task_names(Exercise)] == []


def test_every_exercise_has_answers() -> None:
    """Each exercise has a right answer and at least three wrong ones, each with its own reason."""
    answers = all_answers()
    assert sorted(answers) == sorted(task_names(Exercise))
    assert [name for name, answer in answers.items() if len(answer.wrong) < WRONG_ANSWERS] == []
    assert [name for name, answer in answers.items() if not all(words for _, words in answer.wrong)] == []


def _own_lines(exercise: str, stub: str) -> list[str]:
    """Return the lines of a right answer that make it right."""
    lines = [line.strip() for line in right_answer(exercise).splitlines() if len(line.strip()) > 20]
    return [line for line in lines if line not in stub and "import" not in line and "teach" not in line]


def test_every_exercise_has_hints() -> None:
    """Each exercise has one to three hints, which are sentences and have no line of its right answer."""
    for task in tasks().values():
        if isinstance(task, Exercise):
            assert 1 <= len(task.hints) <= 3, task.name
            assert [hint for hint in task.hints if not hint.endswith((".", "?"))] == [], task.name
            assert [line for line in _own_lines(task.name, "") if line in " ".join(task.hints)] == [], task.name


def test_every_solution_belongs_to_an_exercise() -> None:
    """The package has the solution of each exercise and no other; the lessons run them."""
    folder = ROOT / "mhnb" / "teach" / "solutions"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(task_names(Exercise))


def test_a_solution_replaces_its_cell() -> None:
    """A solution has the imports of the cell that it replaces, so that it also runs on fresh ranks."""
    for cell in (cell for path in lessons() for cell in read_lesson(path).code if cell.exercise):
        imports = [line for line in cell.source.splitlines() if line.startswith(("import ", "from "))]
        assert [line for line in imports if line not in right_answer(str(cell.exercise)).splitlines()] == [], cell.id


def test_no_lesson_shows_a_solution() -> None:
    """No notebook has the lines of a right answer that are not in the exercise's own stub."""
    cells = [cell for path in lessons() for cell in read_lesson(path).cells]
    stubs = {cell.exercise: cell.source for cell in cells if cell.exercise}
    text = "\n".join(cell.source for cell in cells)
    for name in task_names(Exercise):
        assert [line for line in _own_lines(name, stubs[name]) if line in text] == [], name


def test_the_course_is_that_of_the_notebooks() -> None:
    """Each lesson's title and file, and its tasks in their order with their headings, are those of its notebook."""
    assert [lesson.file for lesson in course().values()] == [path.name for path in lessons()]
    for path in lessons():
        lesson = read_lesson(path)
        known = course()[lesson.number]
        assert lesson.cells[0].source.splitlines()[0] == f"# {known.number} · {known.title}"
        above = zip(lesson.cells, lesson.cells[1:], strict=False)
        headings = {cell.exercise: text.source.splitlines()[0] for text, cell in above if cell.exercise}
        wanted = {exercise.name: f"## Exercise: {exercise.heading}" for exercise in known.exercises}
        assert list(headings.items()) == list(wanted.items())
        posed = [cell.id.partition("-")[2] for cell in lesson.code if cell.id.startswith(("ex-", "predict-"))]
        assert posed == [task.name for task in known.tasks]


TRUTHS: dict[str, object] = {
    "where_it_lives": False,
    "count_all": 8,
    "count_local": 2,
    "shard_rows": (2, 6),
    "shard_both": (2, 3),
    "shard_swapped": (4, 6),
    "row_holders": 2,
    "hybrid_shape": (4, 2),
    "hybrid_row": 2,
    "scattered_sums": (60, 64, 68, 72),
    "no_sender": (0, 0, 0, 0),
    "addressable": False,
    "held_kib": 2048,
    "batches_each": (3, 3, 2, 2),
    "never_read": 3000,
    "two_orders": (13, 22),
    "prints_of_b": 4,
    "rows_times_whole": 0,
    "type_of_sum": "float32[8@hosts,6@inside]",
    "shape_inside": (2,),
    "rows_that_differ": 16,
    "ranks_left": 0,
    "who_logs": 1,
    "ops_per_byte": 31,
    "batch_times_four": 1,
    "state_kib": 1536,
    "sums_per_block": 2,
    "permutes_in_training": 8,
    "ring_sends_kib": 56,
    "never_trained": 64,
    "first_copies": 1,
}
"""What each reveal shows; the lessons themselves are run elsewhere."""
_SPELLED = {"0": "0|zero|none", "1": "1|one|once", "2": "2|two|twice", "8": "8|eight", "16": "16|sixteen"}


def _find_giveaways(cells: Sequence[Cell], name: str) -> Iterator[str]:
    """Find text from a prediction to the note on its reveal that names the right choice, and not all the others too."""
    task = tasks()[name]
    assert isinstance(task, Prediction)
    ids = [cell.id for cell in cells]
    right = str(TRUTHS[name])
    pattern = _SPELLED.get(right, re.escape(right))
    for cell in cells[ids.index(f"predict-{name}") : ids.index(f"reveal-{name}") + 2]:
        named = all(str(choice) in cell.source.lower() for choice in task.choices)
        if cell.kind == "markdown" and re.search(rf"(?<![\w@])(?:{pattern})(?!\w)", cell.source) and not named:
            yield f"{cell.id}: {cell.source}"


def test_no_text_gives_a_prediction_away() -> None:
    """Between a prediction and its reveal, and in the note below that, no text has the right choice."""
    predictions = {name for name, task in tasks().items() if isinstance(task, Prediction)}
    assert set(TRUTHS) == predictions
    cells = {path.name: read_lesson(path).cells for path in lessons()}
    assert [
        text for name in sorted(predictions) for text in _find_giveaways(cells[lesson_of(tasks()[name]).file], name)
    ] == []


@pytest.mark.parametrize("text", ["Each box is there twice.", "So 2 devices.", "There are two."])
def test_a_giveaway_is_found(text: str) -> None:
    """The right number is found as digits and as a word."""
    cells = [
        Cell("code", "predict-row_holders", ""),
        Cell("markdown", "m", text),
        Cell("code", "reveal-row_holders", ""),
    ]
    assert list(_find_giveaways(cells, "row_holders")) == [f"m: {text}"]


def test_unknown_exercise_gets_a_suggestion() -> None:
    """A misspelt exercise is an error that names the likely one, and a prediction is not an exercise."""
    with pytest.raises(
        InvalidRequest, match=r"unknown exercise 'n_devices_in_mesch'\. Did you mean 'n_devices_in_mesh'"
    ):
        mhnb.teach.check("n_devices_in_mesch", 1)
    with pytest.raises(
        InvalidRequest, match=r"a prediction, not an exercise\n  Fix: call mhnb.teach.predict\('count_all'"
    ):
        mhnb.teach.check("count_all", 1)
    with pytest.raises(InvalidRequest, match="unknown prediction 'nothing'; expected "):
        find_task("nothing", Prediction)


# -- check, outside the ranks


def test_answer_in_the_notebook(answers_home: Path) -> None:
    """The notebook refuses an answer to an exercise for the ranks, and judges and stores an answer to its own exercise."""
    with pytest.raises(InvalidRequest, match="Fix: add %%mhjax as the first line"):
        mhnb.teach.check("my_positions", [0, 1])
    with pytest.raises(NotYet, match="the label of rank 1 is 'rank 0 of 2'") as wrong:
        mhnb.teach.check("pull_each", ["rank 0 of 2"] * 2)
    assert str(wrong.value).splitlines() == [
        "not yet · 01.3 pull_each",
        "  yours     the label of rank 1 is 'rank 0 of 2'",
        "  expected  'rank 1 of 2'",
        "  hint      A flag of %mhjax pull returns each rank's own value.",
    ]
    assert (wrong.value.exercise, wrong.value.rank) == ("pull_each", None)
    assert [record.right for record in read_records("pull_each")] == [False]
    mhnb.teach.check("pull_each", ["rank 0 of 2", "rank 1 of 2"])
    assert [record.right for record in read_records("pull_each")] == [True]


def test_wrong_number_of_answers_is_refused(answers_home: Path) -> None:
    """For a wrong number of answers the error names the answers that the exercise expects."""
    with pytest.raises(InvalidRequest, match=r"pull_each takes 1 answer \(labels\); got 2"):
        mhnb.teach.check("pull_each", 1, 2)


def test_a_full_disk_does_not_stop_a_check(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that cannot be stored is judged anyway, with a warning to the learner."""
    (answers_home / "lessons").write_text("no folder")
    mhnb.teach.check("pull_each", ["rank 0 of 2", "rank 1 of 2"])
    captured = capsys.readouterr()
    assert "✓ 01.3 pull_each · 2 labels" in captured.out
    assert "was not saved" in captured.err


def test_the_notebook_counts_its_own_devices(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """n_devices_in_mesh is right without ranks too, where it counts the devices of this process."""
    import jax

    mhnb.teach.check("n_devices_in_mesh", lambda dummy: jax.numpy.float32(jax.device_count()) + 0 * dummy)
    assert f"✓ 02.1 n_devices_in_mesh · {float(jax.device_count())} with" in capsys.readouterr().out


def test_error_of_the_answer_is_shown_and_stored(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error in the answer itself passes through unchanged, below a line that says so; the answer is stored as not right."""

    def broken(dummy: object) -> float:
        raise ZeroDivisionError("mine\nand more")

    with pytest.raises(ZeroDivisionError, match="mine"):
        mhnb.teach.check("n_devices_in_mesh", broken)
    (record,) = read_records("n_devices_in_mesh")
    assert (record.right, record.said) == (False, "ZeroDivisionError: mine")
    said = capsys.readouterr().out
    assert said.startswith("not yet · 02.1 n_devices_in_mesh · your code raised ZeroDivisionError\nlesson 02 · ◐○○")
    assert "def broken(dummy" in record.answer


# -- predictions


def test_guess_is_stored_and_revealed(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A guess is stored without a judgement, and can be changed; the reveal shows the guess, the value and the reason."""
    mhnb.teach.predict("count_all", 4)
    mhnb.teach.predict("count_all", 2)
    output = capsys.readouterr().out
    assert "saved · count_all: 4" in output
    assert "saved · count_all: 2" in output
    assert "8" not in output
    mhnb.teach.reveal("count_all", 8)
    assert capsys.readouterr().out.startswith("≠ you said 2; it is 8.\ndevice_count counts")


def test_a_revealed_guess_stays(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the reveal another guess changes nothing, and the question shows what was revealed; a reset begins anew."""
    mhnb.teach.predict("count_all", 2)
    mhnb.teach.reveal("count_all", 8)
    capsys.readouterr()
    for again in (lambda: mhnb.teach.predict("count_all", 8), lambda: mhnb.teach.predict("count_all")):
        again()
        assert "≠ you said 2; it is 8.\nThe answer was revealed, so this guess is final." in capsys.readouterr().out
        assert [record.answer for record in read_records("count_all")] == ["2"]
    mhnb.teach.reset("count_all")
    mhnb.teach.predict("count_all", 8)
    mhnb.teach.reveal("count_all", 8)
    assert "✓ you said 8, which is right." in capsys.readouterr().out


def test_reset_takes_a_task_or_a_lesson(answers_home: Path) -> None:
    """A lesson's number forgets the answers to its tasks only; an unknown name is refused."""
    for name in ("my_label", "n_devices_in_mesh", "owner_of"):
        _store_answers(name, range(2))
    mhnb.teach.reset("devices")
    assert [len(read_records(name)) for name in ("my_label", "n_devices_in_mesh", "owner_of")] == [2, 0, 0]
    with pytest.raises(
        InvalidRequest, match=r"unknown exercise, prediction or lesson 'my_lable'\. Did you mean 'my_label'"
    ):
        mhnb.teach.reset("my_lable")


def test_reset_of_all_lessons(answers_home: Path) -> None:
    """All answers are forgotten on request only; without a name the error says how to."""
    _store_answers("my_label", range(2))
    _store_answers("owner_of", range(2))
    with pytest.raises(InvalidRequest, match=r"or all=True\n  Fix: mhnb\.teach\.reset\(all=True\)"):
        mhnb.teach.reset()
    with pytest.raises(InvalidRequest, match="or all=True"):
        mhnb.teach.reset("my_label", all=True)
    assert len(read_records("my_label")) == 2
    mhnb.teach.reset(all=True)
    assert [path for path in answers_home.rglob("*") if path.is_file()] == []


def test_hints_come_one_by_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call shows one more hint, and the last one says how to see a solution."""
    exercise = replace(_exercise("owner_of"), hints=("Look.", "Look closer."))
    monkeypatch.setattr(teach_hints, "find_task", lambda *_: exercise)
    monkeypatch.setattr(teach_hints, "title_of", lambda _: "02.3 owner_of")
    for _ in range(3):
        mhnb.teach.hint("owner_of")
    first, second, third = capsys.readouterr().out.split("02.3 owner_of · ")[1:]
    assert first == "easy · hint 1 of 2\n  1. Look.\nRun it again for 1 more hint.\n"
    assert second.startswith(
        "easy · hint 2 of 2\n  1. Look.\n  2. Look closer.\nThese are all the hints; mhnb.teach.solution("
    )
    assert third == second


def test_a_solution_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """A solution is printed as the whole cell, with the magic on its first line; a prediction has none."""
    mhnb.teach.solution("my_label")
    assert capsys.readouterr().out.startswith("%%mhjax\nimport mhnb.teach\nlabel = ")
    with pytest.raises(InvalidRequest, match="a prediction, not an exercise"):
        mhnb.teach.solution("count_all")


def test_a_guess_must_be_a_choice(answers_home: Path) -> None:
    """A guess that is not one of the choices is refused, and the error lists them."""
    with pytest.raises(InvalidRequest, match="expected one of 2, 4, 8; got 'many'"):
        mhnb.teach.predict("count_all", "many")


def test_unstored_guess_is_reported(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a full disk the learner sees a warning on stdout, because after a click no error would be visible."""
    (answers_home / "lessons").write_text("no folder")
    mhnb.teach.predict("count_all", 8)
    assert "count_all: this answer was not saved" in capsys.readouterr().out
    mhnb.teach.reveal("count_all", 8)
    assert "no prediction was made; it is 8" in capsys.readouterr().out


def test_a_question_has_a_text_form(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where buttons are unavailable, the question is printed with its choices and what to type."""
    mhnb.teach.predict("count_all")
    output = capsys.readouterr().out
    task = tasks()["count_all"]
    assert isinstance(task, Prediction)
    assert output.strip() == format_question(task)
    assert "mhnb.teach.predict('count_all', 2)" in output


# -- stored answers


def test_records_of_an_earlier_attempt_are_left_out(answers_home: Path) -> None:
    """After an attempt on four ranks and one on two, only the records of the two are read, with the notebook's own."""
    _store_answers("n_devices_in_mesh", range(4), right=False)
    for path in (answers_home / "lessons" / "n_devices_in_mesh").glob("*"):
        os.utime(path, ns=(1, 1))
    _store_answers("n_devices_in_mesh", range(2))
    write_record("n_devices_in_mesh", AnswerRecord(None, 1, False, "gives 8.0", "42"))
    assert [(each.rank, each.right) for each in read_records("n_devices_in_mesh")] == [
        (None, False),
        (0, True),
        (1, True),
    ]


def test_answers_under_a_former_name_count(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers that are stored under the former name of an exercise are read, recalled and deleted by either name."""
    _store_answers("mended_step", range(2))
    assert [record.rank for record in read_records("fixed_step")] == [0, 1]
    mhnb.teach.recall("mended_step")
    assert capsys.readouterr().out == "42\n"
    _store_answers("fixed_step", [0], answer="43")
    assert [record.answer for record in read_records("fixed_step")] == ["43"]
    mhnb.teach.reset("mended_step")
    assert read_records("fixed_step") == []


def test_former_name_finds_the_exercise() -> None:
    """A former name of an exercise finds it, and is not a name of another one."""
    assert {name: find_task(name, Exercise).name for name in RENAMED} == RENAMED
    assert not set(RENAMED) & set(tasks())


def test_truncated_record_counts_as_not_answered(answers_home: Path) -> None:
    """A record that a full disk has cut short counts as not answered, and the others are still read."""
    _store_answers("my_label", range(2))
    (answers_home / "lessons" / "my_label" / "rank0.json").write_text('{"rank": 0, "proc')
    assert [record.rank for record in read_records("my_label")] == [1]


def _record(rank: int | None, right: bool | None, said: str = "") -> AnswerRecord:  # noqa: FBT001
    return AnswerRecord(rank, 4, right, said, "")


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ([], "not tried"),
        ([_record(rank, True) for rank in range(4)], "right on ranks 0-3"),
        ([_record(0, True), _record(2, True)], "right on ranks 0,2 · not tried on ranks 1,3"),
        ([_record(0, True), _record(1, False, "gives 2")], "not yet on rank 1: gives 2 · right on rank 0"),
        ([_record(r, False, "gives 2") for r in range(4)], "not yet on ranks 0-3: gives 2"),
        ([_record(0, False, "a"), _record(1, False, "b")], "not yet on rank 0: a · also not yet on rank 1"),
        ([_record(None, True)], "right in this notebook"),
        ([_record(None, None)], "predicted, not revealed"),
    ],
)
def test_records_are_summarised_in_one_line(records: list[AnswerRecord], line: str) -> None:
    """One line shows where an answer is right, where and why it is not, and which ranks have not answered."""
    assert summarise_records(records) == line


def _exercise(name: str) -> Exercise:
    task = tasks()[name]
    assert isinstance(task, Exercise)
    return task


def test_the_state_of_a_lesson(answers_home: Path) -> None:
    """An exercise is done if every rank is right, whatever was tried in the notebook; the next one is behind the last answer."""
    _store_answers("n_devices_in_mesh", range(4))
    write_record("n_devices_in_mesh", AnswerRecord(None, 1, False, "gives 8.0", "42"))
    _store_answers("my_positions", range(4), right=False, said="is []")
    write_record("my_positions", AnswerRecord(1, 4, True, "", "42"))
    write_record("count_all", AnswerRecord(None, 1, False, "you said 2; it is 8.", "2"))
    state = read_lesson_state(course()["02"], after=_exercise("my_positions"))
    assert [line.state for line in (*state.exercises, *state.predictions)] == [
        "done",
        "tried",
        "untried",
        "missed",
        "untried",
    ]
    assert (state.next_title, state.next_link) == ("02.3 whose device is it?", "")
    assert (
        read_lesson_state(course()["02"], after=_exercise("owner_of")).next_title == "02.2 your positions in the list"
    )


def test_the_next_exercise_is_a_link_in_its_own_notebook_only(answers_home: Path) -> None:
    """The link is the heading's anchor if the notebook's file has that heading."""
    lesson = next(path for path in lessons() if path.name.startswith("02"))
    other = next(path for path in lessons() if path.name.startswith("03"))
    links = [
        read_lesson_state(course()["02"], environment={**os.environ, "JPY_SESSION_NAME": str(path)}).next_link
        for path in (lesson, other, answers_home / "gone.ipynb")
    ]
    assert links == ["#Exercise:-count-with-one-number", "", ""]


def test_progress_and_recall(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Earlier answers of any process are listed by `progress` and printed by `recall`."""
    _store_answers("my_label", range(4), answer="label = 'mine'")
    mhnb.teach.progress("01")
    output = capsys.readouterr().out
    assert "my_label        easy  right on ranks 0-3" in output
    assert "pull_each       easy  not tried" in output
    assert "01  One notebook, many Pythons  ●○○  1 of 3  0 of 1 made  next 01.2 one rank logs" in output
    assert "n_devices_in_mesh" not in output
    mhnb.teach.progress()
    output = capsys.readouterr().out
    assert "15  From notebook to srun" in output
    assert "n_devices_in_mesh" not in output
    mhnb.teach.recall("my_label")
    assert capsys.readouterr().out == "label = 'mine'\n"
    with pytest.raises(InvalidRequest, match="log_once has not been answered yet"):
        mhnb.teach.recall("log_once")
    with pytest.raises(InvalidRequest, match="unknown lesson '99'; expected 01"):
        mhnb.teach.progress("99")


def test_progress_as_json(answers_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher gets what is done, how often it was tried on ranks and in the notebook, and the predictions."""
    for right in (False, True):
        _store_answers("n_devices_in_mesh", range(4), right=right, said="8.0")
    write_record("n_devices_in_mesh", AnswerRecord(None, 1, False, "gives 8.0", "42"))
    mhnb.teach.predict("count_all", 2)
    mhnb.teach.reveal("count_all", 8)
    capsys.readouterr()
    (lesson,) = json.loads(mhnb.teach.progress("devices", as_json=True) or "")
    assert capsys.readouterr().out == ""
    assert (lesson["lesson"], lesson["title"]) == ("02", "Local and global devices")
    count, positions, _ = lesson["exercises"]
    assert (count["name"], count["difficulty"], count["done"], count["tries"]) == ("n_devices_in_mesh", "easy", True, 3)
    assert (positions["done"], positions["tries"], positions["status"]) == (False, 0, "not tried")
    assert lesson["predictions"] == [
        {"name": "count_all", "made": True, "right": False},
        {"name": "count_local", "made": False, "right": None},
    ]
    assert main(["progress", "02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [lesson]
    assert main(["progress"]) == 0
    assert "n_devices_in_mesh  easy  not yet in this notebook" in capsys.readouterr().out
    assert main(["progress", "deadlok"]) == 1
    assert "Did you mean 'deadlock'" in capsys.readouterr().err


# -- a budget


def _sent(op: str, times: int, nbytes_per_device: int, nbytes_across_hosts: int = 0) -> Collective:
    return Collective(op, (), (), times, nbytes_per_device, nbytes_across_hosts, "f32", None, times=times)


BUDGET = Budget({"all-reduce": 1}, nbytes_per_device=512, nbytes_across_hosts=128)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([_sent("all-gather", 1, 64)], "1 all-gather, expected none. It runs 1 all-gather of 64 bytes"),
        ([_sent("all-reduce", 2, 64)], "2 all-reduce, expected at most 1"),
        ([_sent("all-reduce", 1, 8), _sent("all-reduce", 1, 8)], "2 all-reduce, expected at most 1"),
        ([_sent("all-reduce", 1, 1024)], "each device contributes 1024 bytes, expected at most 512"),
        ([_sent("all-reduce", 1, 512, 129)], "each device contributes 129 bytes for other hosts, expected at most 128"),
    ],
)
def test_excess_over_budget_is_named(sent: list[Collective], words: str) -> None:
    """The error names the collective, the count or the bytes over the budget, and all that is sent."""
    with pytest.raises(WrongAnswer) as caught:
        check_budget(BUDGET, print, 1, measure=lambda *_: sent)
    assert words in str(caught.value)


def test_within_the_budget() -> None:
    """Within the budget the result describes what is sent, even if it is nothing."""
    sent = [_sent("all-reduce", 1, 512, 128)]
    assert check_budget(BUDGET, print, measure=lambda *_: sent) == "1 all-reduce of 512 bytes"
    assert check_budget(BUDGET, print, measure=lambda *_: []) == "no collective"


def test_a_budget_counts_every_run() -> None:
    """A collective in a loop counts as often as it runs, with its bytes each time."""
    twice = [_sent("all-reduce", 2, 300)]
    with pytest.raises(WrongAnswer, match="each device contributes 600 bytes, expected at most 512"):
        check_budget(Budget({"all-reduce": 2}, nbytes_per_device=512), print, measure=lambda *_: twice)
