"""What lessons show: answers that are right or not yet, in both forms, and how far a lesson is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mhnb.core.output.answers import ANSWER_MIME
from mhnb.core.output.results import RankResult
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.document import Card, Line, Span
from mhnb.view.print_html import print_html, print_parts
from mhnb.view.print_text import print_text
from mhnb.view.reports.lesson import (
    Difference,
    build_bar,
    build_prediction,
    build_progress,
    format_difference,
    parse_difference,
)
from tests.support.view_samples import LESSON_STATE, StrictPage, cell, failed, lesson_samples, not_yet, out, right

HINT = "A dim that is not cut has the entry None."


def _apart(*ranks: int) -> list[RankResult]:
    return [not_yet(r, f"device {r}:0 holds row {r + 5}, of {9 - r}", f"row {2 * r}", hint=HINT) for r in ranks]


@pytest.mark.parametrize(
    "difference",
    [
        Difference("03.1 a", "x is 1"),
        Difference("03.1 a", "x is 1", "2", "It sends nothing.", "Look there."),
        Difference("03.1 a", "x is [[1\n 2]]", "[[1\n 3]]", hint="two\nlines"),
        Difference("03.1 a", "x is\nexpected  me", "hint  there"),
    ],
)
def test_a_difference_survives_its_text(difference: Difference) -> None:
    """The notebook reads what a rank wrote, also values of several lines and values that look like a field."""
    assert parse_difference(format_difference(difference)) == difference


def test_an_answer_that_is_not_right_yet_is_no_error() -> None:
    """The card has the value beside the expected one and no traceback; the hint is there, and closed."""
    page = StrictPage(format_cell_html(cell(*(not_yet(r, "x is 1", "2", hint=HINT) for r in range(4)))))
    assert "◐ not yet · exercise 03.1 columns_apart · on ranks 0-3" in page.visible
    assert "yoursx is 1expected2" in page.visible
    assert HINT in page.text
    assert HINT not in page.visible
    assert not {"NotYet", "traceback", "✗"} & set(page.text.split())
    assert page.unclosed == []


def test_each_rank_has_a_row_if_they_differ() -> None:
    """Ranks are in their order, whichever failed first; a page folds the hint, and text has the call that shows it."""
    ranks = [replace(one, error=replace(one.error, at_s=1.0 - one.rank / 9)) for one in _apart(0, 1, 2) if one.error]
    text = format_cell_text(cell(*ranks)).splitlines()
    assert text[0] == "not yet · 03.1 columns_apart on ranks 0-2"
    assert [line for line in text if line.startswith("  rank")] == ["  rank 0", "  rank 1", "  rank 2"]
    assert [line for line in text if "hint" in line] == ['  hint  mhnb.teach.hint("columns_apart")']
    page = StrictPage(format_cell_html(cell(*ranks)))
    assert "rank 1device 1:0 holds row 6, of 8row 2" in page.visible
    assert page.text.count(HINT) == 1


def test_numbers_of_many_ranks_are_listed_below_their_line() -> None:
    """A template's numbers belong to the field that has it."""
    ranks = [not_yet(r, f"x is {r * 7 % 5}", "99") for r in range(16)]
    (failure,) = summarise_cell(cell(*ranks)).failures
    difference = parse_difference("\n".join(failure.message_lines))
    assert difference.yours.startswith("x is ‹a›\na  2 ranks 1,6,11 · ")
    assert difference.expected == "99"


def test_ranks_that_are_right_are_named() -> None:
    """A rank whose answer is right is named so; one that only ended is not."""
    text = format_cell_text(cell(right(0), not_yet(1, "x is 1", "2"), [out("no answer")]))
    assert text.splitlines()[0] == "not yet · 03.1 columns_apart on rank 1 · right on rank 0 · rank 2 finished"


def test_a_right_answer_is_not_repeated_below_the_card() -> None:
    """Ranks of which the card says all have no block below it; with a value that is shown, or other output, they have."""
    answers = [right(0), not_yet(1, "x is 1", "2"), not_yet(2, "x is 1", "2")]
    page = StrictPage(format_cell_html(cell(*answers)))
    assert "right on rank 0" in page.visible
    assert not any(word in page.visible for word in ("no output", "said something", "each device"))
    assert format_cell_text(cell(*answers)).splitlines()[-1] == "  expected  2"
    with_value = StrictPage(format_cell_html(cell(right(0, "yes", "spec = P('data')"), *answers[1:])))
    assert "spec = P('data')" in with_value.visible
    printed = replace(answers[1], outputs=(out("reads\n"), *answers[1].outputs))
    assert "reads" in StrictPage(format_cell_html(cell(answers[0], printed, answers[2]))).visible


def test_signs_are_apart_and_a_tick_is_green() -> None:
    """A tick is green where there is a style sheet; the sign of a wrong prediction does not touch the words."""
    html = format_cell_html(cell(right(0)))
    assert '<span class="mhnb-right">✓</span>' in html
    assert ".mhnb-right{color:color-mix(" in html
    title = Line("", sign="≠", beside=[Span("not as predicted · row_holders", is_strong=True)])
    assert build_prediction("open", "≠ not as predicted · row_holders", [], text="a") == [Card("open", [title], "a")]


def test_another_error_beside_it_is_reported_as_one() -> None:
    """If a rank raised something else, the cell has the report of a failure, with both."""
    text = format_cell_text(cell(not_yet(0, "x is 1", "2"), failed(1)))
    assert text.splitlines()[0] == "not yet on rank 0 · ValueError on rank 1"
    assert "✗" in StrictPage(format_cell_html(cell(not_yet(0, "x is 1", "2"), failed(1)))).visible


def test_a_right_answer_has_a_card() -> None:
    """A tick and the word, what is right, and what was shown; numbers that differ by rank are in the same card."""
    ranks = [right(r, "each its own label", f"label = 'rank {r} of 4'") for r in range(4)]
    page = StrictPage(format_cell_html(cell(*ranks)))
    assert "✓ right · exercise 03.1 columns_apart · each its own label" in page.visible
    assert "label = 'rank ‹rank› of 4'" in page.visible
    assert format_cell_text(cell(*ranks)).splitlines()[1:] == [
        "  ✓ 03.1 columns_apart · each its own label",
        "    label = 'rank ‹rank› of 4'",
    ]


def test_head_of_an_answer_has_the_own_rank() -> None:
    """A rank's own number in what is right is a placeholder, as in any other line."""
    page = StrictPage(format_cell_html(cell(*(right(r, f"rank {r} holds row 3") for r in range(4)))))
    assert "columns_apart · rank ‹rank› holds row 3" in page.visible


@pytest.mark.parametrize("content", [None, "yes", {"title": 3}, {"title": "03.1 columns_apart", "is_right": "no"}])
def test_other_displays_are_no_answers(content: object) -> None:
    """A display with an answer's text, or any value under its type, is shown as the text that it is."""
    (output,) = right(0).outputs
    data = {"text/plain": output["data"]["text/plain"]} | ({} if content is None else {ANSWER_MIME: content})
    page = StrictPage(format_cell_html(cell([{**output, "data": data}])))
    assert "✓ 03.1 columns_apart · one whole column on each device" in page.visible
    assert "right · exercise" not in page.text


def test_printed_text_is_no_answer() -> None:
    """A line that a cell prints is never a card, whatever it says; text around an answer stays outside its card."""
    printed = cell(*[[out("✓ 03.1 columns_apart · yes\n")]] * 2)
    assert "right · exercise" not in StrictPage(format_cell_html(printed)).text
    ranks = [
        replace(right(r), outputs=(out("before\n"), *right(r).outputs, *right(r).outputs, out("after\n")))
        for r in (0, 1)
    ]
    page = StrictPage(format_cell_html(cell(*ranks)))
    assert page.visible.count("✓ right") == 2
    assert page.visible.index("before") < page.visible.index("✓ right") < page.visible.index("after")


def test_many_ranks_are_bounded() -> None:
    """Of many different answers the first eight are open, and the others are a click away."""
    texts = ("alpha", "beta", "gamma", "delta", "eta", "theta", "iota", "kappa", "mu", "nu")
    page = StrictPage(
        html := format_cell_html(cell(*(not_yet(r, f"x is {word}", "omega") for r, word in enumerate(texts))))
    )
    assert "x is kappa" in page.visible
    assert "2 more: rank 8 to rank 9" in page.visible
    assert "x is nu" in page.text
    assert "x is nu" not in page.visible
    assert len(html) < MAX_CELL_NBYTES


def test_text_is_escaped() -> None:
    """A value with markup is shown as text, in one block without blank lines."""
    html = format_cell_html(cell(not_yet(0, "x is '<b>'\n\nmore", "<i>", hint="<u>")))
    assert not any(tag in html for tag in ("'<b>'", "<i>", "<u>"))
    assert "\n\n" not in html


def test_the_bar_says_in_words_what_its_signs_show() -> None:
    """Signs and words for the exercises, the predictions, and the next exercise as a link."""
    assert print_text(bar := build_bar(LESSON_STATE)) == (
        "lesson 03 · ●◐○ 1 of 3 exercises · predictions 3 of 3 made, 1 right · next 03.2 pairs inside a host"
    )
    assert '<a href="#Exercise:-pairs-inside-a-host"' in print_parts(bar)
    assert print_text(build_bar(replace(LESSON_STATE, predictions=(), next_title=""))) == (
        "lesson 03 · ●◐○ 1 of 3 exercises · all done"
    )


def test_progress_is_a_table_with_details() -> None:
    """Each lesson is a row; what was begun, or is the only lesson, is listed below."""
    untouched = tuple(replace(line, state="untried") for line in LESSON_STATE.exercises)
    other = replace(LESSON_STATE, lesson="04", title="Arrays", exercises=untouched, predictions=())
    document = build_progress([LESSON_STATE, other])
    text = print_text(document).splitlines()
    assert text[0].startswith("03  Meshes and PartitionSpecs  ●◐○  1 of 3  3 of 3 made, 1 right  next 03.2")
    assert text[1].startswith("04  Arrays")
    assert {line.split()[0] for line in text[3:]} == {"03"}
    assert "04  columns_apart" in print_text(build_progress([other]))
    page = StrictPage(print_html(document))
    assert "1 of 6 exercises done" in page.visible
    assert "right on ranks 0-3" not in page.visible
    assert "right on ranks 0-3" in StrictPage(print_html(build_progress([LESSON_STATE]))).visible


@pytest.mark.parametrize("name", lesson_samples())
def test_samples_are_closed(name: str) -> None:
    """Every sample closes its elements, and uses no colour for text and no attribute that untrusted notebooks lose."""
    page = StrictPage(lesson_samples()[name])
    assert page.unclosed == []
    styles = [attributes.get("style") or "" for _, attributes in page.tags]
    assert not [style for style in styles if style.startswith("color:#") or "var(" in style]
