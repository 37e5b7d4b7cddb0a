"""Draw what lessons show: an answer that is right or not yet, a prediction, the bar of a lesson and the table of all lessons.

Values come from `mhnb.teach`, or from a rank's error and output, whose texts this module writes and reads. It knows no exercise.

A rank's answer reaches the notebook as text, so that equal answers are shown once and numbers that differ are listed by rank.
Colour is never the only cue: a right answer has a tick, one that is not right yet a half circle and the words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from mhnb.core.ranks import pluralize
from mhnb.view.html import QUIET_STYLE, TICK_CLASS, wrap_html, wrap_in_scroller

RIGHT_SIGN, NOT_YET_SIGN, MISSED_SIGN = "✓", "◐", "≠"
_DONE_SIGN, _UNTRIED_SIGN = "●", "○"
_NOT_YET_COLOR, _RIGHT_COLOR, _OPEN_COLOR = "#e69f00", "#009e73", "#8c8c8c"
"""Colours of the line beside a card, never of text."""
_NOT_YET_TINT = "rgba(230,159,0,.12)"
_LABELS = ("yours", "expected", "note", "hint")
_LABEL_WIDTH = max(map(len, _LABELS)) + 2
_INDENT = "  "
_TITLE = re.compile(r"(✓|not yet ·) (?P<lesson>\d\d)\.(?P<number>\d+) (?P<name>\w+)(?: · (?P<rest>.*))?")
_MONO = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere"
_CELL = "text-align:left;vertical-align:baseline;border:0;background:none;padding:1px 1em 1px 0;font-size:1em"
_SUMMARY = "cursor:pointer;padding:3px 0"
"""High enough to be hit with a finger where two of them are below each other."""
_LINK = "color:inherit;text-decoration:underline"
"""A page's own colour of links may be readable on one background only."""
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
    """Format the text of a `NotYet`: the value that was given, and below it the one that was expected.

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
    r"""Read the text of a `NotYet`. Lines that list numbers by rank belong to the field above them.

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


def format_right(title: str, feedback: str, shown: Sequence[str] = ()) -> str:
    """Format a right answer as text: what is right about it, and below it what was shown.

    >>> print(format_right("03.1 columns_apart", "one whole column on each device", ["spec = P(None, 'data')"]))
    ✓ 03.1 columns_apart · one whole column on each device
      spec = P(None, 'data')
    """
    lines = [line for text in shown for line in text.splitlines()]
    return "\n".join([f"{RIGHT_SIGN} {title} · {feedback}", *(f"{_INDENT}{line}".rstrip() for line in lines)])


def format_raised(title: str, error_name: str) -> str:
    """Format in one line that the learner's own code raised; the error itself is shown as any other error.

    >>> format_raised("02.1 n_devices_in_mesh", "TypeError")
    'not yet · 02.1 n_devices_in_mesh · your code raised TypeError'
    """
    return f"not yet · {title} · your code raised {error_name}"


def find_answer(text: str) -> tuple[str, str, bool] | None:
    """Return the lesson, the exercise and whether it is right, if a text is an answer's; None for any other text.

    >>> find_answer("✓ 03.1 columns_apart · yes"), find_answer("✓ done")
    (('03', 'columns_apart', True), None)
    """
    found = _TITLE.match(text)
    return None if found is None else (found["lesson"], found["name"], text.startswith(RIGHT_SIGN))


# -- an answer, as HTML


Tone: TypeAlias = Literal["right", "not yet", "open"]


def _format_card(tone: Tone, body: str) -> str:
    color = {"right": _RIGHT_COLOR, "not yet": _NOT_YET_COLOR, "open": _OPEN_COLOR}[tone]
    tint = f";background-color:{_NOT_YET_TINT}" if tone == "not yet" else ""
    return f'<div style="border-left:4px solid {color}{tint};padding:3px 10px;margin:2px 0 4px">{body}</div>'


def _format_title_html(title: str, note: str, *, is_right: bool) -> str:
    number, _, name = title.partition(" ")
    state = f"{_format_sign(RIGHT_SIGN)} right" if is_right else f"{NOT_YET_SIGN} not yet"
    words = escape(f"{name} · {note}" if note else name, quote=False)
    quiet = f' <span style="{QUIET_STYLE}">{words}</span>'
    return f"<div><b>{state} · exercise {escape(number)}</b>{quiet}</div>"


def _format_sign(sign: str) -> str:
    # A font that lacks a sign is replaced by one whose glyph may be wider than its place.
    if sign != RIGHT_SIGN:
        return f'<span style="padding-right:.3em">{sign}</span>'
    return f'<span class="{TICK_CLASS}">{sign}</span>'


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One row of a card: what differs, and where."""

    where: str
    """As `ranks 1-3`; empty if there is one row, whose place is in the card's head."""
    difference: Difference


def format_not_yet_html(rows: Sequence[DifferenceRow], note: str = "") -> str:
    """Format one exercise that is not right yet: each value beside the one that was expected, and the hints, closed.

    Args:
        rows: at least one, of one exercise.
        note: where it is not right yet, and where it is.
    """
    head = _format_title_html(rows[0].difference.title, note, is_right=False)
    if len(rows) == 1:
        body = _format_fields(rows[0].difference)
    else:
        body = _format_rows(rows[:_MAX_OPEN_ROWS])
        if len(rows) > _MAX_OPEN_ROWS:
            more = f"{len(rows) - _MAX_OPEN_ROWS} more: {rows[_MAX_OPEN_ROWS].where} to {rows[-1].where}"
            body += _format_fold(more, _format_rows(rows[_MAX_OPEN_ROWS:]))
    hints = list(dict.fromkeys(row.difference.hint for row in rows if row.difference.hint))
    hint = _format_fold("hint", _format_prose("\n".join(hints))) if hints else ""
    return _format_card("not yet", head + body + hint)


def _format_prose(text: str) -> str:
    return f"<div>{_escape_lines(text)}</div>"


def _escape_lines(text: str) -> str:
    # A blank line would end the HTML where a notebook is converted to Markdown.
    return escape(text, quote=False).replace("\n", "<br>")


def _format_fields(difference: Difference) -> str:
    named = (("yours", difference.yours), ("expected", difference.expected), ("note", difference.note))
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:bold">{label}</th>{_format_value(text)}</tr>'
        for label, text in named
        if text
    )
    return _format_table(rows)


def _format_rows(rows: Sequence[DifferenceRow]) -> str:
    heads = "".join(f'<th scope="col" style="{_CELL};font-weight:bold">{label}</th>' for label in ("yours", "expected"))
    body = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:bold;white-space:nowrap">{escape(row.where)}</th>'
        f"{_format_value(_yours_and_note(row.difference))}{_format_value(row.difference.expected)}</tr>"
        for row in rows
    )
    return _format_table(f'<tr style="background:none"><td style="{_CELL}"></td>{heads}</tr>{body}')


def _yours_and_note(difference: Difference) -> str:
    return "\n".join(filter(None, (difference.yours, difference.note)))


def _format_value(text: str) -> str:
    return f'<td style="{_CELL};{_MONO}">{_escape_lines(text)}</td>'


def _format_table(rows: str) -> str:
    return f'<table style="border-collapse:collapse;border:0;margin:3px 0;font-size:1em">{rows}</table>'


def _format_fold(label: str, inner: str) -> str:
    return f'<details><summary style="{_SUMMARY}">{escape(label)}</summary>{inner}</details>'


def format_answer_html(first: str, body: str) -> str:
    """Format an answer that a rank printed: its first line as the card's head, the other lines, already HTML, below it."""
    found = _TITLE.match(first)
    if found is None:
        return body
    is_right = first.startswith(RIGHT_SIGN)
    head = _format_title_html(
        f"{found['lesson']}.{found['number']} {found['name']}", found["rest"] or "", is_right=is_right
    )
    return _format_card("right" if is_right else "not yet", head + body)


def format_right_html(title: str, feedback: str, shown: Sequence[str] = ()) -> str:
    """Format a right answer: what is right about it, and below it what was shown."""
    values = _escape_lines("\n".join(shown))
    body = f'<div style="{_MONO}">{values}</div>' if values else ""
    return _format_card("right", _format_title_html(title, feedback, is_right=True) + body)


# -- predictions


def format_prediction_html(
    tone: Tone, head: str, rows: Sequence[tuple[str, str]], text: str = "", fold: str = ""
) -> str:
    """Format a prediction.

    Args:
        tone: right, not as predicted, or still open.
        head: the first line, with its sign.
        rows: labels with their values.
        text: below the rows.
        fold: what a click shows; empty for nothing.
    """
    fields = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:bold;white-space:nowrap">{escape(label)}</th>'
        f"{_format_value(value)}</tr>"
        for label, value in rows
    )
    sign, _, words = head.partition(" ") if head[0] in (RIGHT_SIGN, MISSED_SIGN) else ("", "", head)
    title = f"{_format_sign(sign)} <b>{escape(words)}</b>" if sign else f"<b>{escape(words)}</b>"
    parts = [f"<div>{title}</div>", _format_table(fields) if rows else ""]
    parts.append(_format_prose(text) if text else "")
    parts.append(_format_fold("show it anyway", _format_prose(fold)) if fold else "")
    return _format_card(tone, "".join(parts))


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
    def is_begun(self) -> bool:
        """Return whether anything was answered."""
        return any(task.state != "untried" for task in (*self.exercises, *self.predictions))


def format_dots(exercises: Sequence[TaskLine]) -> str:
    """Format one sign for each exercise: done, tried, not tried.

    >>> format_dots([TaskLine("a", "done", ""), TaskLine("b", "tried", ""), TaskLine("c", "untried", "")])
    '●◐○'
    """
    return "".join(_SIGNS[task.state] for task in exercises)


def _format_predictions(state: LessonState) -> str:
    if not state.predictions:
        return ""
    states = [task.state for task in state.predictions]
    # Before the first reveal no number of right ones is known.
    right = f", {states.count('done')} right" if {"done", "missed"} & set(states) else ""
    return f"{len(states) - states.count('untried')} of {len(states)} made{right}"


def _bar_parts(state: LessonState) -> list[str]:
    total = len(state.exercises)
    parts = [f"lesson {state.lesson}", f"{format_dots(state.exercises)} {state.done} of {pluralize(total, 'exercise')}"]
    if state.predictions:
        parts.append(f"predictions {_format_predictions(state)}")
    return parts


def format_bar_text(state: LessonState) -> str:
    """Format the bar of a lesson as one line.

    >>> print(format_bar_text(LessonState("03", "", (TaskLine("a", "done", ""), TaskLine("b", "tried", "")), (), "03.2 b")))
    lesson 03 · ●◐ 1 of 2 exercises · next 03.2 b
    """
    return " · ".join([*_bar_parts(state), f"next {state.next_title}" if state.next_title else "all done"])


def format_bar_html(state: LessonState) -> str:
    """Format the bar of a lesson as one line, with a link to the next exercise if its place is known."""
    return f'<div style="padding:2px 0 2px 14px">{escape(" · ".join(_bar_parts(state)))} · {_format_next_html(state)}</div>'


def _format_next_html(state: LessonState) -> str:
    if not state.next_title:
        return "all done"
    title = escape(state.next_title)
    return "next " + (f'<a href="{escape(state.next_link)}" style="{_LINK}">{title}</a>' if state.next_link else title)


def wrap_lesson_html(*parts: str) -> str:
    """Join cards and a bar into one display."""
    return wrap_html("".join(parts))


def format_progress_text(states: Sequence[LessonState]) -> str:
    """Format the table of lessons, and below it the exercises and predictions of each lesson that was begun, or is the only one."""
    dots = max(len(state.exercises) for state in states)
    title = max(len(state.title) for state in states)
    made = max(len(_format_predictions(state)) for state in states)
    lines = []
    for state in states:
        done = f"{format_dots(state.exercises):{dots}}  {state.done} of {len(state.exercises)}"
        row = f"{state.lesson}  {state.title:{title}}  {done}  {_format_predictions(state):{made}}  {_format_next_text(state)}"
        lines.append(row.rstrip())
    listed = [state for state in states if state.is_begun or len(states) == 1]
    tasks = [(state.lesson, task) for state in listed for task in (*state.predictions, *state.exercises)]
    width = max((len(task.name) for _, task in tasks), default=0)
    lines += [""] if tasks else []
    return "\n".join([*lines, *(f"{lesson}  {task.name:{width}}  {task.status}" for lesson, task in tasks)])


def _format_next_text(state: LessonState) -> str:
    return f"next {state.next_title}" if state.next_title else "all done"


def format_progress_html(states: Sequence[LessonState]) -> str:
    """Format the table of lessons. The exercises and predictions of each open by a click; those of a single lesson are open."""
    heads = "".join(
        f'<th scope="col" style="{_CELL};font-weight:bold">{label}</th>'
        for label in ("lesson", "exercises", "predictions", "next")
    )
    rows = "".join(map(_format_progress_row, states))
    table = _format_table(f'<tr style="background:none">{heads}</tr>{rows}')
    total = sum(len(state.exercises) for state in states)
    done = sum(state.done for state in states)
    head = f"<div><b>{done} of {pluralize(total, 'exercise')} done</b></div>" if len(states) > 1 else ""
    begun = [state for state in states if state.is_begun or len(states) == 1]
    folds = "".join(_format_tasks(state, is_open=len(states) == 1) for state in begun)
    others = [state for state in states if state not in begun]
    if others:
        folds += _format_fold(
            "lessons not begun: each prediction and exercise", "".join(map(_format_task_table, others))
        )
    return wrap_html(f"{head}{wrap_in_scroller(table)}{folds}")


def _format_progress_row(state: LessonState) -> str:
    cells = (
        f"{format_dots(state.exercises)} {state.done} of {len(state.exercises)}",
        _format_predictions(state) or "none",
    )
    values = "".join(f'<td style="{_CELL};white-space:nowrap">{escape(text)}</td>' for text in cells)
    head = f'<th scope="row" style="{_CELL};font-weight:normal">{state.lesson} {escape(state.title)}</th>'
    return f'<tr style="background:none">{head}{values}<td style="{_CELL}">{_format_next_html(state).removeprefix("next ")}</td></tr>'


def _format_tasks(state: LessonState, *, is_open: bool) -> str:
    summary = f'<summary style="{_SUMMARY}">lesson {state.lesson}: each prediction and exercise</summary>'
    return f"<details{' open' if is_open else ''}>{summary}{_format_task_table(state)}</details>"


def _format_task_table(state: LessonState) -> str:
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:normal;font-family:monospace;white-space:nowrap">'
        f"{_SIGNS[task.state]} {escape(task.name)}</th>{_format_value(task.status)}</tr>"
        for task in (*state.predictions, *state.exercises)
    )
    return _format_table(rows)
