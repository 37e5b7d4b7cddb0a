"""Of a loop's lines the first and the last are shown, the others are in a fold, and no line is lost or moved."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.events import Stream
from mhnb.core.output.folding import group_outputs
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.output.results import CellResult, RankResult
from mhnb.view.cell.blocks import (
    LOG_HINT,
    Loop,
    arrange_items,
    block_items,
    find_loops,
    format_omitted_line,
    list_lines,
)
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.summary import find_outlier_ranks, summarise_cell
from mhnb.view.cell.text import MAX_TEXT_NBYTES, format_cell_text
from tests.support.metric_samples import log_curve
from tests.support.view_samples import StrictPage, cell, equal_loop, failed, figure, loop, out

_NUMBERS = st.sampled_from(["0", "1", "10", "0.5", "-1.5", "nan", "1e-5"])


def _cell(texts: Sequence[Sequence[str]]) -> CellResult:
    return cell(*[[out("".join(f"{line}\n" for line in lines))] for lines in texts])


def _log_loss(result: CellResult) -> CellResult:
    """Return the result of a cell that has logged a metric, too."""
    return replace(result, added=(log_curve([[3.0, 2.0, 1.0]] * len(result.ranks)),))


def _losses(count: int) -> list[str]:
    return [f"step {step} loss {3 - step / 100:.3f}" for step in range(count)]


def test_printed_loop_is_a_fold_beside_charts() -> None:
    """Where a metric was logged, the lines of a loop are in one fold, which says what they are; the text has them as ever."""
    printed = _cell([["begins", *_losses(40), "saved"]] * 4)
    logged = _log_loss(printed)
    page = StrictPage(format_cell_html(logged))
    assert "begins" in page.visible
    assert "40 printed lines · step 39 loss 2.610" in page.visible
    assert "saved" in page.visible
    assert "step 17 loss" not in page.visible
    assert "step 17 loss 2.830" in page.text
    assert LOG_HINT not in page.text
    assert format_cell_text(printed) in format_cell_text(logged)


@pytest.mark.parametrize(
    "lines",
    [
        _losses(3),
        [f"layer {at} has {2 * at} rows" for at in range(9)],
        [f"{at / 7:.3f} {at / 3:.3f}" for at in range(9)],
        ["loss 3.0", "nan seen", "loss 2.0", "retry", "loss 1.0"],
    ],
    ids=["three lines", "whole numbers", "numbers alone", "lines of other forms"],
)
def test_what_is_no_loop_of_a_metric_stays_open_beside_charts(lines: list[str]) -> None:
    """A few lines, tables and all else that was printed are seen without a click."""
    visible = StrictPage(format_cell_html(_log_loss(_cell([lines] * 4)))).visible
    assert [line for line in lines if line not in visible] == []


def test_loop_of_a_failed_cell_stays_open_beside_charts() -> None:
    """What was printed before an error may say why."""
    lines = "".join(f"{line}\n" for line in _losses(10))
    result = _log_loss(cell(*[failed(rank) for rank in range(4)]))
    ranks = tuple(replace(rank, outputs=(out(lines),)) for rank in result.ranks)
    assert "step 4 loss 2.960" in StrictPage(format_cell_html(replace(result, ranks=ranks))).visible


def test_ranks_that_differ_are_named_above_the_fold() -> None:
    """The number in which one rank is far from the others is shown beside charts, too."""
    values = [[3 - step / 100 + rank / 1000 + (rank == 2) for step in range(20)] for rank in range(4)]
    result = _log_loss(_cell([[f"step {step} loss {value:.3f}" for step, value in enumerate(of)] for of in values]))
    page = StrictPage(format_cell_html(result))
    assert "rank 2 ≠ step 19 loss 3.812" in page.visible
    assert "20 printed lines · step 19 loss ‹…›" in page.visible
    apart = _log_loss(_cell([_losses(20), [f"loss {value}" for value in values[2]]]))
    assert LOG_HINT not in StrictPage(format_cell_html(apart)).text


def _counts(result: CellResult) -> list[int]:
    """Return the number of lines of each loop, and 1 for every other line."""
    (block,) = group_outputs([((one.rank,), one.outputs) for one in result])
    return [len(item.lines) if isinstance(item, Loop) else 1 for item in find_loops(block_items(block))]


@given(
    st.lists(st.tuples(st.sampled_from(["step {} loss {}", "[{}/7] {:>8}", "a", "… 3 {} {}"]), st.integers(1, 50))),
    st.integers(1, 3),
    st.data(),
)
@pytest.mark.slow
def test_no_line_is_lost_or_moved(stretches: list[tuple[str, int]], ranks: int, data: st.DataObject) -> None:
    """Whatever is printed, the items in order are the block's lines, those of loops among them."""
    forms = [form for form, count in stretches for _ in range(count)]
    said = [
        ((rank,), [out("\n".join(form.format(*data.draw(st.tuples(_NUMBERS, _NUMBERS))) for form in forms)), figure()])
        for rank in range(ranks)
    ]
    for block in group_outputs(said):
        items = block_items(block)
        assert list_lines(find_loops(items)) == items


def test_loop_on_which_all_ranks_agree_is_folded_as_it_was_printed() -> None:
    """The lines around it, its first two and its last five are visible, all others are in a fold that counts them."""
    page = StrictPage(format_cell_html(equal_loop()))
    lines = equal_loop()[0].stdout.splitlines()
    assert [line for line in lines if line in page.visible] == [*lines[:3], *lines[-6:]]
    assert f"… 193 more lines · {LOG_HINT}" in page.visible
    assert all(line in page.text for line in lines)
    note = f"… 193 lines left out: all of it is in the log file … · {LOG_HINT}"
    shown = [line.strip() for line in format_cell_text(equal_loop()).splitlines()[1:]]
    assert shown == [*lines[:3], note, *lines[-6:]]


def test_loop_in_which_ranks_differ_has_every_value() -> None:
    """Seven lines are visible with every rank's numbers below them, and the page has those of all lines.

    Above them are the two numbers in which a rank is far from the others.
    """
    result = loop()
    page = StrictPage(format_cell_html(result))
    assert page.visible.count("step ") == 2 + 7
    for rank in result:
        rows = [line.split() for line in rank.stdout.splitlines()]
        assert all(f"{rank.rank}: {row[at]}" in page.text for row in rows for at in (3, 5))
        assert all(f"{rank.rank}: {row[at]}" in page.visible for row in (*rows[:2], *rows[-5:]) for at in (3, 5))
    text = format_cell_text(result).splitlines()
    assert sum(line.startswith("  step ") for line in text) == 7
    assert f"  … 193 lines left out: all of it is in the log file … · {LOG_HINT}" in text
    assert [line.split(" step")[0] for line in text if "≠ step" in line] == ["  rank 2 ≠"] * 2


@pytest.mark.parametrize(("form", "count"), [("layer {} norm 0.{}1", 24), ("{} {}7", 80), ("step {} loss 0.{}", 12)])
def test_lists_and_short_loops_stay_lines(form: str, count: int) -> None:
    """Equal lines that are a list to read, or few, are shown as they are."""
    result = cell(*[[out("".join(form.format(at, at * at % 10) + "\n" for at in range(count)))]] * 3)
    page = StrictPage(format_cell_html(result))
    assert result[0].stdout.strip() in page.visible
    assert "more lines" not in page.text


def test_where_a_fold_begins() -> None:
    """It needs 13 lines if ranks differ on them, and 41 if they agree; a form has other blanks where numbers are padded."""
    for count, expected in ((12, [1] * 12), (13, [13])):
        assert (
            _counts(_cell([[f"{at:4} loss {at + rank / 7:8.3f}" for at in range(count)] for rank in range(3)]))
            == expected
        )
    for count, expected in ((40, [1] * 40), (41, [41])):
        assert _counts(_cell([[f"{at:4} loss {at / 7:8.3f}" for at in range(count)]] * 3)) == expected


def test_the_only_line_that_differs_is_not_folded() -> None:
    """Among many equal lines the one on which ranks differ is between two folds, so that it is seen."""
    texts = [[f"step {at} loss {rank + 3 if at == 50 else 0.5 + at}" for at in range(100)] for rank in range(4)]
    assert _counts(_cell(texts)) == [50, 1, 49]
    page = StrictPage(format_cell_html(_cell(texts)))
    assert "step 50 loss ‹a›" in page.visible
    assert page.visible.count(LOG_HINT) == 1


def test_rank_that_leaves_a_loop_is_named() -> None:
    """The first lines on which it differs are above the loop, although these are in its fold, and the status line names it."""
    texts = [
        [f"rank {rank} at {at + rank / 7:.2f} loss {1.5 if rank == 2 and at > 9 else 0.5}" for at in range(40)]
        for rank in range(4)
    ]
    summary = summarise_cell(_cell(texts))
    assert summary.difference == "rank 2 differs: loss"
    assert find_outlier_ranks(summary).keys() == {2}
    page = StrictPage(format_cell_html(_cell(texts)))
    assert "rank 2 ≠ rank 2 at 10.29 loss 1.5 ← 0.5 elsewhere" in page.visible
    assert "… and 24 more numbers of rank 2, marked ≠" in page.visible


@pytest.mark.parametrize(("ranks", "begin"), [(4, 0), (4, 30), (16, 0), (16, 30)])
def test_rank_far_from_others_that_differ_a_little_is_named(ranks: int, begin: int) -> None:
    """Losses of ranks with data of their own are never equal. One rank that leaves the others is named all the same."""
    chance = random.Random(7)  # noqa: S311  # not for secrets
    texts = [
        [
            f"step {at} loss {1 / (at + 1) + chance.random() / 50 + 7 * (rank == 2 and at >= begin):.4f} on {8476 + rank * rank}"
            for at in range(60)
        ]
        for rank in range(ranks)
    ]
    result = _cell(texts)
    assert summarise_cell(result).difference == "rank 2 differs: loss"
    assert f"rank 2 ≠ step 59 loss {texts[2][59].split()[3]} ← " in StrictPage(format_cell_html(result)).visible
    with_others = _cell([text if rank != 2 else texts[3] for rank, text in enumerate(texts)])
    assert summarise_cell(with_others).difference == "numbers differ by rank"


@pytest.mark.parametrize("differs", [False, True])
def test_lines_between_loops_are_kept(differs: bool) -> None:  # noqa: FBT001
    """However long the loops are, what is printed between them is shown, and the loops stay apart."""
    words = ("one", "two", "three")
    texts = [
        [
            line
            for at, word in enumerate(words)
            for line in (
                *(f"epoch {at} step {step} loss {step / 7 + rank * differs:.4f}" for step in range(400)),
                f"validation after epoch {word}",
            )
        ]
        for rank in range(4)
    ]
    result = _cell(texts)
    for shown in (format_cell_text(result), StrictPage(format_cell_html(result)).visible):
        assert [word for word in words if f"validation after epoch {word}" in shown] == list(words)
        assert shown.count("… 393 ") == 3


def test_ends_of_loops_are_kept_where_many_ranks_share_the_room() -> None:
    """Of 33 ranks that print other words, each shows the first two and the last five lines of its loop in a terminal."""
    words = [chr(97 + rank % 26) * (1 + rank // 26) for rank in range(33)]
    text = format_cell_text(
        _cell([[f"{word} step {at} loss {at / 7:.4f} at a rate" for at in range(60)] for word in words])
    )
    for word in words:
        shown = re.findall(rf"│ {word} step (\d+) ", text)
        assert shown == ["0", "1", "55", "56", "57", "58", "59"]


@pytest.mark.parametrize("limit", [1_000, 100_000])
@pytest.mark.parametrize("shows_folded", [False, True])
def test_gap_in_a_loop_is_in_its_count(limit: int, shows_folded: bool) -> None:  # noqa: FBT001
    """Bytes that a rank left out in the middle of a loop are part of what the loop folds."""
    lines = [f"{at} lost {at / 7:.3f}\n" for at in range(100)]
    gap = "[... 12,345 bytes of stdout left out; the rank's log file has them ...]\n"
    (block,) = group_outputs([((0,), [out("".join([*lines, gap, *lines]))])])
    (found,) = arrange_items(block_items(block), limit, where="a.log", shows_folded=shows_folded)
    assert isinstance(found, Loop)
    note = format_omitted_line([line.text for line in found.folded], where="a.log")
    assert note == "… 193 lines and 12,345 bytes more left out: all of it is in a.log …"


def test_chance_does_not_make_a_rank_odd() -> None:
    """Where each rank differs from the others on some lines of a loop, none is named: each is marked where it differs."""
    texts = [[f"at {at + rank / 7:.2f} acc {0.9 if at % 4 == rank else 0.8}" for at in range(40)] for rank in range(4)]
    assert find_outlier_ranks(summarise_cell(_cell(texts))) == {}
    text = format_cell_text(_cell(texts))
    assert "elsewhere" not in text
    assert "0.9 ≠ rank 3 · 0.8 ranks 0-2" in text


def test_hint_is_given_once_in_a_block() -> None:
    """Of a loop in each epoch all are folded, and the first fold names mhnb.log."""
    texts = [
        [f"epoch {at // 20} step {at} loss {at + rank}.5" if at % 20 else "evaluated" for at in range(100)]
        for rank in range(2)
    ]
    page, text = StrictPage(format_cell_html(_cell(texts))), format_cell_text(_cell(texts))
    assert page.visible.count("… 12 more lines") == text.count("… 12 lines left out") == 5
    assert page.text.count(LOG_HINT) == text.count(LOG_HINT) == 1


@pytest.mark.parametrize("count", [3_000, 30_000])
def test_lines_beyond_the_limit_are_counted(count: int) -> None:
    """A fold opens to as many lines as are stored, with a note where others were left out, and counts all of them."""
    result = _cell([[f"step {at} loss {at / 7:.5f}" for at in range(count)]] * 3)
    html, text = format_cell_html(result), format_cell_text(result)
    page = StrictPage(html)
    assert len(html) < 1.2 * MAX_CELL_NBYTES
    assert f"… {count - 7} more lines · " in page.visible
    assert "left out: all of it is in the log file" not in page.visible
    assert ("left out: all of it is in the log file" in page.text) == (count > 3_000)
    assert f"… {count - 7} lines left out: " in text
    assert len(text.splitlines()) == 9


def test_bytes_that_the_notebook_never_had_are_in_the_count() -> None:
    """A loop whose middle a rank left out is one loop, and the text says how many bytes more are in the log."""
    accumulator = OutputAccumulator()
    lines = [f"step {at} loss {at / 7:.3f}\n" for at in range(100_000)]
    stretches = [Stream("stdout", "".join(lines[at : at + 1000])) for at in range(0, len(lines), 1000)]
    accumulator.add(stretches)
    rank = RankResult(0, "ok", accumulator.outputs(), omitted_nbytes=accumulator.omitted_nbytes)
    assert rank.omitted_nbytes > 0
    text = format_cell_text(cell(rank)).splitlines()
    assert [line.split()[1] for line in text[1:3] + text[4:]] == ["0", "1", *map(str, range(99_995, 100_000))]
    assert (
        f" lines and {rank.omitted_nbytes:,} bytes more left out: all of it is in the log file … · {LOG_HINT}"
        in text[3]
    )
    page = StrictPage(format_cell_html(cell(rank)))
    assert page.visible.count("step ") == 7
    assert page.visible.count("more lines") == 1


@pytest.mark.slow
def test_many_loops_leave_a_cell_small() -> None:
    """A loop per epoch, other words on each rank, or many short loops store little more than the limit of a cell's text."""
    epochs = [
        [f"epoch {at // 15} loss {1 / (1 + at) + rank / 1000:.5f}" if at % 16 else "evaluated" for at in range(5000)]
        for rank in range(4)
    ]
    words = [
        [f"{word * rank} step {at} loss {at / 7:.4f}" for at in range(600)] for rank, word in enumerate("abcd" * 4, 1)
    ]
    short = [[f"{'xy'[at // 13 % 2]} {at + rank}" for at in range(10_000)] for rank in range(2)]
    for texts in (epochs, words, short):
        assert len(format_cell_html(_cell(texts))) < 1.4 * MAX_CELL_NBYTES
        assert len(format_cell_text(_cell(texts))) < 1.4 * MAX_TEXT_NBYTES
