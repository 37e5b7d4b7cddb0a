"""What lessons show: answers, predictions, a lesson's bar, the table of lessons.

Values come from `mhnb.teach`, or from a rank's error and output. It knows no exercise.

A rank's answer is an error or a display with a text, so that equal answers are shown once and numbers that differ are listed by rank.
Colour is never the only cue: a right answer has a tick, one that is not right yet a half circle and the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mhnb.core.output.answers import Answer
from mhnb.core.ranks import pluralize
from mhnb.view.document import Card, CardTone, Document, Fields, Fold, InHtml, InText, Line, Part, Span

RIGHT_SIGN, NOT_YET_SIGN, MISSED_SIGN = "✓", "◐", "≠"
_DONE_SIGN, _UNTRIED_SIGN = "●", "○"
_LABELS = ("yours", "expected", "note", "hint")
_LABEL_WIDTH = max(map(len, _LABELS)) + 2
_INDENT = "  "
_MAX_OPEN_ROWS = 8


# -- an answer, as text


@dataclass(frozen=True, slots=True)
class Difference:
    """Why an answer is not right yet."""

    title: str
    """As `03.1 columns_apart`."""
    yours: str
    """What the answer is, or what is wrong with it."""
    expected: str = ""
    note: str = ""
    """More about the answer."""
    hint: str = ""
    """Where to look; shown on request."""


def format_difference(difference: Difference) -> str:
    """Format the text of a `NotYet`: the given and expected values.

    >>> print(format_difference(Difference("01.1 my_label", "label is 1", "'rank 0 of 4'", hint="It is a text.")))
    not yet · 01.1 my_label
      yours     label is 1
      expected  'rank 0 of 4'
      hint      It is a text.
    """
    fields = [(label, getattr(difference, label)) for label in _LABELS]
    return "\n".join([f"not yet · {difference.title}", *(_format_field(label, text) for label, text in fields if text)])


def _format_field(label: str, text: str) -> str:
    # Lines that follow are indented, so that none is mistaken for a field.
    continued = f"\n{_INDENT}{' ' * _LABEL_WIDTH}"
    return f"{_INDENT}{label:{_LABEL_WIDTH}}{continued.join(text.splitlines())}"


def parse_difference(text: str) -> Difference:
    r"""Parse a `NotYet`'s text; lines of numbers belong to the field above.

    >>> parse_difference("not yet · 01.1 my_label\n  yours     label is ‹a›\n  a  0: 1 · 1: 5\n  expected  'rank 0'").yours
    'label is ‹a›\na  0: 1 · 1: 5'
    """
    first, *lines = text.splitlines() or [""]
    fields: dict[str, list[str]] = {label: [] for label in _LABELS}
    current = fields["yours"]
    for line in lines:
        label = next((word for word in _LABELS if line.startswith(f"{_INDENT}{word:{_LABEL_WIDTH}}")), None)
        if label is not None:
            current = fields[label]
            current.append(line[len(_INDENT) + _LABEL_WIDTH :])
        else:
            current.append(line.removeprefix(_INDENT).removeprefix(" " * _LABEL_WIDTH))
    return Difference(first.removeprefix("not yet · "), *("\n".join(fields[label]) for label in _LABELS))


def format_hint_call(title: str) -> str:
    """Format the call that shows an exercise's hints.

    >>> format_hint_call("03.1 columns_apart")
    'mhnb.teach.hint("columns_apart")'
    """
    return f'mhnb.teach.hint("{title.partition(" ")[2]}")'


def format_right(title: str, feedback: str, shown: Sequence[str] = ()) -> str:
    """Format a right answer as text: its feedback, and what was shown.

    >>> print(format_right("03.1 columns_apart", "one whole column on each device", ["spec = P(None, 'data')"]))
    ✓ 03.1 columns_apart · one whole column on each device
      spec = P(None, 'data')
    """
    lines = [line for text in shown for line in text.splitlines()]
    return "\n".join([f"{RIGHT_SIGN} {title} · {feedback}", *(f"{_INDENT}{line}".rstrip() for line in lines)])


def format_raised(title: str, error_name: str) -> str:
    """Format in one line that the learner's own code raised an error.

    >>> format_raised("02.1 n_devices_in_mesh", "TypeError")
    'not yet · 02.1 n_devices_in_mesh · your code raised TypeError'
    """
    return f"not yet · {title} · your code raised {error_name}"


# -- an answer, as a card


def _build_title(title: str, note: str, *, is_right: bool) -> Line:
    number, _, name = title.partition(" ")
    state, sign = ("right", RIGHT_SIGN) if is_right else (f"{NOT_YET_SIGN} not yet", "")
    words = Span(f"{name} · {note}" if note else name, is_quiet=True)
    return Line(f"{state} · exercise {number}", "heading", beside=[words], sign=sign)


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One row of a card: what differs, and where."""

    where: str
    """As `ranks 1-3`; empty if there is one row, whose place is in the card's head."""
    difference: Difference


def build_not_yet(rows: Sequence[DifferenceRow], note: str = "") -> Document:
    """Build the card of an exercise that is not right yet.

    Args:
        rows: at least one, of one exercise.
        note: where it is not right yet, and where it is.
    """
    parts: list[Part] = [_build_title(rows[0].difference.title, note, is_right=False)]
    if len(rows) == 1:
        named = [(label, getattr(rows[0].difference, label)) for label in _LABELS if label != "hint"]
        parts.append(Fields([field for field in named if field[1]], look="word"))
    else:
        parts.append(_build_rows(rows[:_MAX_OPEN_ROWS]))
    if rest := rows[_MAX_OPEN_ROWS:]:
        more = Line(f"{len(rest)} more: {rest[0].where} to {rest[-1].where}")
        parts.append(Fold(more, [_build_rows(rest)], is_high=True))
    if hints := list(dict.fromkeys(row.difference.hint for row in rows if row.difference.hint)):
        call = f"More hints: {format_hint_call(rows[0].difference.title)}"
        parts.append(Fold(Line("hint"), [Line("\n".join([*hints, call]))], is_high=True))
    # Text cannot be folded, so it shows how to get a hint.
    asked = [replace(row.difference, hint=format_hint_call(row.difference.title)) for row in rows]
    texts = [
        text for row, difference in zip(rows, asked, strict=True) for text in (row.where, format_difference(difference))
    ]
    return [Card("not yet", parts, "\n".join(filter(None, texts)))]


def _build_rows(rows: Sequence[DifferenceRow]) -> Fields:
    cells = [
        (row.where, "\n".join(filter(None, (row.difference.yours, row.difference.note))), row.difference.expected)
        for row in rows
    ]
    return Fields(cells, ["", "yours", "expected"])


def build_answer(answer: Answer, first: str, below: Document = ()) -> Document:
    """Build an answer's card: its first line, then the parts `below`."""
    head = _build_title(answer.title, first.partition(f"{answer.title} · ")[2], is_right=answer.is_right)
    return [Card("right" if answer.is_right else "not yet", [head, *below], first)]


def build_right(title: str, feedback: str, shown: Sequence[str] = ()) -> Document:
    """Build the card of a right answer, with what was shown."""
    values = "\n".join(shown)
    below = [Line(values, "code")] if values else []
    return [Card("right", [_build_title(title, feedback, is_right=True), *below], format_right(title, feedback, shown))]


# -- predictions


def build_prediction(
    tone: CardTone, head: str, rows: Sequence[tuple[str, str]], below: str = "", *, text: str, fold: str = ""
) -> Document:
    """Build a prediction.

    Args:
        tone: right, not as predicted, or still open.
        head: the first line of the card, with its sign.
        rows: labels with their values.
        below: a text below the rows.
        text: what is shown where there are no cards.
        fold: what a click shows; empty for nothing.
    """
    parts: list[Part] = [Line(head, "heading")]
    if head[0] in (RIGHT_SIGN, MISSED_SIGN):
        sign, _, words = head.partition(" ")
        parts = [Line("", beside=[Span(words, is_strong=True)], sign=sign)]
    parts += [Fields(rows)] if rows else []
    parts += [Line(below)] if below else []
    parts += [Fold(Line("show it anyway"), [Line(fold)], is_high=True)] if fold else []
    return [Card(tone, parts, text)]


# -- the bar of a lesson, and the table of all


TaskState: TypeAlias = Literal["done", "tried", "missed", "untried"]
"""A prediction is missed if the guess was another one than the value; that is final, but an exercise can be repeated."""
_SIGNS: dict[TaskState, str] = {
    "done": _DONE_SIGN,
    "tried": NOT_YET_SIGN,
    "missed": MISSED_SIGN,
    "untried": _UNTRIED_SIGN,
}


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One exercise or prediction, and how far it is."""

    name: str
    state: TaskState
    status: str
    """As `right on ranks 0-3`."""
    difficulty: str = ""
    """Of an exercise: easy, medium or hard."""
    tries: int = 0
    """Of an exercise: how often it was checked."""


@dataclass(frozen=True, slots=True)
class LessonState:
    """How far a lesson is."""

    lesson: str
    title: str
    exercises: tuple[TaskLine, ...]
    predictions: tuple[TaskLine, ...]
    next_title: str = ""
    """The next exercise, as `03.2 pairs inside a host`; empty if all are done."""
    next_link: str = ""
    """Where it is; empty if that is unknown."""

    @property
    def done(self) -> int:
        """Return the number of exercises that are done."""
        return sum(task.state == "done" for task in self.exercises)

    @property
    def tasks(self) -> tuple[TaskLine, ...]:
        """Return the predictions and the exercises."""
        return (*self.predictions, *self.exercises)

    @property
    def is_begun(self) -> bool:
        """Return whether anything was answered."""
        return any(task.state != "untried" for task in self.tasks)


def format_dots(exercises: Sequence[TaskLine]) -> str:
    """Format one sign for each exercise: done, tried, not tried.

    >>> format_dots([TaskLine("a", "done", ""), TaskLine("b", "tried", ""), TaskLine("c", "untried", "")])
    '●◐○'
    """
    return "".join(_SIGNS[task.state] for task in exercises)


def build_bar(state: LessonState) -> Document:
    """Build a lesson's bar: progress and the next exercise in one line.

    >>> from mhnb.view.print_text import print_text
    >>> state = LessonState("03", "", (TaskLine("a", "done", ""), TaskLine("b", "tried", "")), (), "03.2 b")
    >>> print_text(build_bar(state))
    'lesson 03 · ●◐ 1 of 2 exercises · next 03.2 b'
    """
    exercises = pluralize(len(state.exercises), "exercise")
    parts = [f"lesson {state.lesson}", f"{format_dots(state.exercises)} {state.done} of {exercises}"]
    if state.predictions:
        parts.append(f"predictions {_format_predictions(state)}")
    words = f"{' · '.join(parts)} · {'next' if state.next_title else ''}"
    return [Line(words.rstrip(), "below a card", beside=[_build_next(state)])]


def _build_next(state: LessonState) -> Span:
    return Span(state.next_title, link=state.next_link) if state.next_title else Span("all done")


def _format_predictions(state: LessonState) -> str:
    if not state.predictions:
        return ""
    states = [task.state for task in state.predictions]
    # Before the first reveal no number of right ones is known.
    right = f", {states.count('done')} right" if {"done", "missed"} & set(states) else ""
    return f"{len(states) - states.count('untried')} of {len(states)} made{right}"


def build_progress(states: Sequence[LessonState]) -> Document:
    """Build the table of lessons, with the tasks of lessons begun below.

    A single lesson counts as begun. In HTML a click shows the tasks of each lesson; those of a single lesson are open.
    """
    is_only = len(states) == 1
    begun = [state for state in states if state.is_begun or is_only]
    others = [state for state in states if state not in begun]
    tasks = [(state.lesson, task.name, task.difficulty, task.status) for state in begun for task in state.tasks]
    done, total = sum(state.done for state in states), sum(len(state.exercises) for state in states)
    heading = [] if is_only else [Line(f"{done} of {pluralize(total, 'exercise')} done", "heading")]
    gap = [Line("")] if tasks else []
    folds = [
        Fold(Line(f"lesson {state.lesson}: each prediction and exercise"), [_build_tasks(state)], is_only, is_high=True)
        for state in begun
    ]
    if others:
        label = Line("lessons not begun: each prediction and exercise")
        folds.append(Fold(label, [*map(_build_tasks, others)], is_high=True))
    rows = [
        (
            f"{state.lesson} {state.title}",
            f"{format_dots(state.exercises)} {state.done} of {len(state.exercises)}",
            _format_predictions(state) or "none",
            _build_next(state),
        )
        for state in states
    ]
    table = Fields(rows, ["lesson", "exercises", "predictions", "next"], "title")
    return [
        InText([Fields([*map(_list_words, states)]), *gap, Fields(tasks)]),
        InHtml([*heading, table, *folds]),
    ]


def _list_words(state: LessonState) -> Sequence[str]:
    done = f"{state.done} of {len(state.exercises)}"
    following = f"next {state.next_title}" if state.next_title else "all done"
    return state.lesson, state.title, format_dots(state.exercises), done, _format_predictions(state), following


def _build_tasks(state: LessonState) -> Fields:
    rows = [(f"{_SIGNS[task.state]} {task.name}", task.difficulty, task.status) for task in state.tasks]
    return Fields(rows, look="code")
