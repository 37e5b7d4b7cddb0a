"""A cell result as text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mhnb.core.output.diff import DiffRow, DiffSpan
from mhnb.core.output.events import OutputEvent, OutputOmitted, Stream
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.output.results import CellResult, RankResult
from mhnb.types import RankError
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks import clip_unchanged
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import MAX_TEXT_NBYTES, format_cell_text
from mhnb.view.html import RankLocations
from tests.support.view_samples import (
    DEATH,
    after_a_failure,
    cell,
    failed,
    failed_in_a_helper,
    out,
    rank_died,
    shown,
    value,
    with_noise,
)


def test_agreement_is_one_block() -> None:
    """Equal output is shown once, below a short heading."""
    assert format_cell_text(cell(*[[out("a\n"), value("b")]] * 4)) == "ranks 0-3 · 0.21 s\n  a\n  b"


def test_outlier_is_shown_beside_its_label() -> None:
    """The labels form a column of equal width."""
    assert format_cell_text(cell(*[[out("loss 1\n")], [out("loss 2\nmore\n")], [out("loss 1\n")]])) == (
        "ranks 0-2 · 0.21 s · rank 1 differs\n"
        "rank 1    │   loss 2 ← 1 elsewhere\n"
        "          │ + more\n"
        "ranks 0,2 │ loss 1"
    )  # fmt: skip


def test_silent_ranks_are_named() -> None:
    """A rank without output is named too."""
    assert format_cell_text(cell([out("a")], [])).endswith("rank 1 │ (no output)")


def test_error_shows_line_message_and_hint() -> None:
    """An error shows heading, the cell's line, the message, the hint and the notes; then the output follows."""
    result = cell([], failed(1, hint="Make it fit."), [], notes=("The ranks are in step.",))
    assert format_cell_text(result) == (
        "ValueError on rank 1 · ranks 0,2 finished\n"
        "  cell 12, line 3:   x = x.reshape(7, -1)\n"
        "  ValueError: cannot reshape\n"
        "  → Make it fit.\n"
        "  The ranks are in step."
    )


def test_a_death_is_two_lines() -> None:
    """The report on a death is the verdict's two lines, without the ranks' own errors."""
    assert format_cell_text(rank_died()) == "\n  ".join(DEATH)


def test_what_the_cell_before_left_ends_the_status_line() -> None:
    """One short mark names the cell before, also if this cell has no output or failed."""
    mark = "   [cell 11 finished on rank 0 only: variables may differ]"
    assert format_cell_text(after_a_failure()) == f"ranks 0-3 · 0.21 s{mark}\n  2"
    assert format_cell_text(after_a_failure([], [])) == f"ranks 0-1 · 0.21 s{mark}"
    assert format_cell_text(after_a_failure(failed(0), [])).splitlines()[-1] == f"ranks 0-1 · 0.21 s{mark}"


def test_noise_is_a_suffix_of_the_first_line() -> None:
    """Library noise takes no line. Without a status line the heading of the failure has the suffix."""
    suffix = " · 2 lines of C++ libraries (Gloo 2) in the logs"
    result = with_noise([out("mine")], [out("mine")])
    assert format_cell_text(result) == f"ranks 0-1 · 0.21 s{suffix}\n  mine"
    ranks = (replace(failed(0), noise=result[0].noise), replace(result[1], outputs=()))
    assert (
        format_cell_text(replace(result, ranks=ranks)).splitlines()[0]
        == f"ValueError on rank 0 · rank 1 finished{suffix}"
    )
    assert format_cell_text(with_noise([], [])) == ""


def test_syntax_error_has_its_mark_below_the_line() -> None:
    """The mark stands below the cell's line, so the traceback, and the place in the message, would say nothing new."""
    code, traceback = (
        "x = = 3",
        ("  Cell In[7], line 2\n        x = = 3\n            ^\nSyntaxError: invalid syntax\n",),
    )
    error = RankError("SyntaxError", "invalid syntax (<cell 7>, line 2)", traceback, line=2, code=f"    {code}")
    text = format_cell_text(cell(RankResult(0, "error", error=error), []))
    assert text.splitlines() == [
        "SyntaxError on rank 0 · rank 1 finished",
        "  cell 12, line 2:   x = = 3",
        "                         ^",
        "  SyntaxError: invalid syntax",
    ]
    elsewhere = replace(error, evalue="invalid syntax (bad.py, line 1)", code="import bad")
    assert "bad.py" in format_cell_text(cell(RankResult(0, "error", error=elsewhere), []))
    assert "    ^" in format_cell_text(cell(RankResult(0, "error", error=elsewhere), []))


def test_traceback_with_a_second_user_frame_is_shown() -> None:
    """A second user frame is shown with its lines; JAX frames are one line."""
    text = format_cell_text(cell(failed_in_a_helper(0)))
    assert "model.py:8" in text
    assert text.count("x = x.reshape(7, -1)") == 1, "the cell's line is above"
    assert "… 3 frames inside jax" in text
    assert "core.py" not in text


def test_innermost_line_of_the_users_cells_is_above_the_message() -> None:
    """An error in a function of an earlier cell has that cell's line above it, once, and the call below it."""
    frames = ("Cell In[4], line 2\n----> 2 loss_fn(v)\n", "Cell In[3], line 11, in call(h)\n---> 11 return dot(h)\n")
    error = RankError("TypeError", "no", (*frames, "TypeError: no"), line=2, code="loss_fn(v)")
    error = replace(error, inner_place="In [3], line 11", inner_code="    return dot(h)")
    text = format_cell_text(cell(RankResult(0, "error", error=error), []))
    assert text.splitlines()[1] == "  In [3], line 11:   return dot(h)"
    assert text.count("return dot(h)") == 1
    assert text.count("loss_fn(v)") == 1
    page = format_cell_html(cell(RankResult(0, "error", error=error), []))
    assert "In [3], line 11:   return dot(h)" in page
    assert 'class="mhnb-jump"' not in page, "the line is in another cell"


def test_color_adds_only_colours() -> None:
    """The coloured text without its ANSI codes equals the plain text."""
    result = cell([out("a")], failed(1), [out("b")])
    colored = format_cell_text(result, color=True)
    assert "\x1b[" in colored
    assert strip_ansi(colored) == format_cell_text(result)


def test_long_text_is_cut_and_names_the_log() -> None:
    """The stored text is bounded, whatever was printed."""
    log = "/log/rank0.log"
    text = format_cell_text(cell([out("x" * 79 + "\n")] * 9000), locations=RankLocations(logs={0: log}))
    assert len(text) < 1.2 * MAX_TEXT_NBYTES
    assert f"all of it is in {log}" in text


@pytest.mark.parametrize("count", [3_000, 30_000])
def test_omitted_lines_are_counted(count: int) -> None:
    """All omitted lines are counted, however many times the text was cut."""
    shown = format_cell_text(cell([out("".join(f"line {number}\n" for number in range(count)))])).splitlines()[1:]
    (note,) = [line for line in shown if "left out" in line]
    assert int(note.split()[1]) == count - (len(shown) - 1)


@pytest.mark.parametrize("length", [40_000, 300_000])
def test_both_ends_of_a_very_long_line_are_shown(length: int) -> None:
    """A very long line is cut in the middle, like long output; the lines around it stay."""
    text = format_cell_text(cell([out(f"head\n<{'y' * length}>\ntail\n")]))
    assert "  head\n  <yyy" in text
    assert "yyy>\n  tail" in text
    assert "left out …" in text
    assert len(text) < MAX_TEXT_NBYTES + 2000


def rank_with_output(*events: OutputEvent) -> RankResult:
    """Accumulate events as the notebook does, and return the rank's result."""
    accumulator = OutputAccumulator()
    accumulator.add(events)
    return RankResult(0, "ok", accumulator.outputs(), omitted_nbytes=accumulator.omitted_nbytes)


def test_missing_bytes_are_marked_where_they_are_missing() -> None:
    """The mark names the log that has the bytes, and nothing follows the last line."""
    result = cell(rank_with_output(Stream("stdout", "a\n"), OutputOmitted("stdout", 2048), Stream("stdout", "z\n")))
    lines = [
        line.strip() for line in format_cell_text(result, locations=RankLocations(logs={0: "r.log"})).splitlines()[1:]
    ]
    assert [line for line in lines if line] == [
        "a",
        "… 2,048 bytes of stdout left out: all of it is in r.log …",
        "z",
    ]


def test_smallest_omitted_amount_of_the_ranks_is_shown() -> None:
    """The mark has the smallest amount and the ranks share a block, because the mark's number is not one of the user's."""
    ranks = [
        replace(
            rank_with_output(Stream("stdout", "a\n"), OutputOmitted("stdout", nbytes), Stream("stdout", "z\n")),
            rank=rank,
        )
        for rank, nbytes in enumerate((3_089_204, 2_523_274))
    ]
    text = format_cell_text(CellResult(1, "", tuple(ranks), 0.1, process_count=2))
    assert "… at least 2,523,274 bytes of stdout left out: all of it is in the log file …" in text
    assert "‹a›" not in text


def test_one_note_counts_all_missing_lines_and_bytes() -> None:
    """The note counts lines that are not shown and bytes that never arrived; the last line is the end of the output."""
    lines = [f"line {number}\n" for number in range(100_000)]
    rank = rank_with_output(*(Stream("stdout", "".join(lines[at : at + 1000])) for at in range(0, len(lines), 1000)))
    assert rank.omitted_nbytes > 0
    text = format_cell_text(cell(rank), locations=RankLocations(logs={0: "r.log"}))
    _, head, *shown, tail = text.splitlines()
    (note,) = [line for line in shown if "left out" in line]
    found = re.fullmatch(r"  … (\d+) lines and ([\d,]+) bytes more left out: all of it is in r\.log …", note)
    assert found is not None
    assert (head, tail) == ("  line 0", "  line 99999")
    assert int(found[2].replace(",", "")) == rank.omitted_nbytes
    # All lines except one mark. The notebook has the lines before and after the mark, including those that were cut.
    assert int(found[1]) == rank.stdout.count("\n") - 1 - (len(shown) + 1)


def test_silent_cell_shows_only_a_badge() -> None:
    """A cell without output shows nothing, unless a badge must say where the cell ran."""
    assert format_cell_text(cell([], [])) == ""
    assert format_cell_text(cell([], []), badge=True) == "mhjax · ranks 0-1 · 0.21 s"


def test_own_rank_numbers_fold() -> None:
    """Output that differs only in the rank's own number is one line."""
    result = cell(*[[out(f"process {rank} of 4: local devices {rank}:0 {rank}:1\n")] for rank in range(4)])
    assert format_cell_text(result) == "ranks 0-3 · 0.21 s\n  process ‹rank› of 4: local devices ‹rank›:0 ‹rank›:1"


def test_numbers_are_a_template_with_every_value() -> None:
    """Values are listed by rank, or by value if ranks share values."""
    result = cell(*[[out(f"loss {rank}.5, acc {rank % 2}\n")] for rank in range(4)])
    assert format_cell_text(result) == (
        "ranks 0-3 · 0.21 s · numbers differ by rank\n"
        "  loss ‹a›, acc ‹b›\n"
        "    a 0: 0.5 · 1: 1.5 · 2: 2.5 · 3: 3.5\n"
        "    b 0 ranks 0,2 · 1 ranks 1,3"
    )


def test_outlier_shows_the_differing_value() -> None:
    """An outlier's line shows the value that differs and the value elsewhere."""
    result = cell(*[[out(f"loss {0.731 if rank == 2 else 0.312}\n")] for rank in range(4)], wall_s=1.4)
    assert format_cell_text(result) == (
        "ranks 0-3 · 1.4 s · rank 2 differs\nrank 2      │ loss 0.731 ← 0.312 elsewhere\nranks 0-1,3 │ loss 0.312"
    )


def test_long_list_of_ranks_is_above_its_lines() -> None:
    """The list is above the lines and does not indent them, so text grows with the number of groups, not of ranks."""
    said = {ranks: cell(*[[out(f"{'ab'[rank % 2]}\nc\n")] for rank in range(ranks)]) for ranks in (64, 256)}
    even = ",".join(map(str, range(0, 64, 2)))
    assert format_cell_text(said[64]).splitlines()[1:4] == [f"ranks {even}", " │ a", " │ c"]
    assert [len(format_cell_text(result).splitlines()) for result in said.values()] == [7, 7]


def test_long_equal_parts_of_an_outlier_are_counted() -> None:
    """Equal parts are counted, because the majority's block below shows them."""
    said = "".join(f"line {word}\n" for word in "abcdef")
    text = format_cell_text(cell([out(said)], [out(said)], [out(said + "more\n")]))
    assert "rank 2    │ … 6 lines as on ranks 0-1 …\n          │ + more" in text


def test_progress_bars_of_several_ranks_are_one() -> None:
    """The bar shows minimum, median and maximum, followed by each rank's text."""
    bar = "train:  {}%|████▏     | {}/100 [00:04<00:05, 9it/s]"
    text = format_cell_text(cell(*[[out(bar.format(40 + rank, 40 + rank), "stderr")] for rank in range(3)]))
    assert "  train: 40-42 % |████████            | min 40/100 (rank 0) · median 41 % · max 42/100 (rank 2)\n" in text
    assert "    each 0: 40/100 [00:04<00:05, 9it/s] · 1: 41/100" in text


def test_value_that_is_not_finite_is_in_the_heading() -> None:
    """A value that is not a finite number is in the heading, so that the user need not read the values to find it."""
    text = format_cell_text(cell([out("loss 1.5")], [out("loss nan")], [out("loss 2.5")]))
    assert text.splitlines()[0].endswith("rank 1 differs: loss · not a finite number on rank 1")


def test_long_outlying_line_is_cut_around_the_difference() -> None:
    """Only the text near the difference is shown, because the majority's line is shown whole, once."""
    words = " ".join(f"w{at}" for at in range(300))
    said = [[out(f"{words.replace('w150 ', 'odd ') if rank == 2 else words}\n")] for rank in range(4)]
    text = format_cell_text(cell(*said))
    assert "w149 odd w151" in text
    assert "← w150 elsewhere" in text
    assert text.count("w20 ") == text.count("w290 ") == 1
    assert words in text


def test_long_line_with_many_differences_is_cut_on_both_sides() -> None:
    """The majority's text below is cut at the same places, and a line that only the other ranks have is cut too."""
    words = " ".join(f"w{at}" for at in range(300))
    odd = words.replace("w50 ", "one ").replace("w200 ", "two ")
    said = [[out(f"{odd if rank == 2 else words}\nend\n")] for rank in range(4)]
    text = format_cell_text(cell(*said))
    assert "w49 one w51" in text
    assert "w199 two w201" in text
    below = text.partition("←")[2].partition("elsewhere")[0]
    assert "w49 w50 w51" in below
    assert "w100" not in below
    assert text.count("w100 ") == 1
    lost = [[out("end\n" if rank == 2 else f"{words}\nend\n")] for rank in range(4)]
    text = format_cell_text(cell(*lost))
    assert text.count("w100 ") == 1


def test_long_unchanged_line_keeps_its_ends() -> None:
    """An unchanged line among differing ones keeps its beginning and end instead of being shortened to nothing."""
    same = DiffRow("changed", "stdout", (DiffSpan(" ".join(f"w{at}" for at in range(100))),))
    (span,) = clip_unchanged(same)
    assert span.here.startswith("w0 w1 w2 ")
    assert span.here.endswith(" w98 w99")
    assert len(span.here) < 100


def test_number_with_other_padding_stays_in_the_line() -> None:
    """Only the differing number is listed per rank, not its neighbour with other padding."""
    text = format_cell_text(cell([out("x [0.1  1.5]\n")], [out("x [0.123 1.5]\n")]))
    assert text.splitlines()[1:] == ["  x [‹a›  1.5]", "    a 0: 0.1 · 1: 0.123"]


def test_first_line_of_a_table_is_below_its_rank() -> None:
    """A label in the first line of a table would shift its head; text of one line is beside the label."""
    tables = [f"   step  rank\n0     0     {rank}" for rank in (0, 1)]
    result = cell(*([shown(text__html=f"<table>{table}</table>", text__plain=table)] for table in tables))
    lines = format_cell_text(result).splitlines()[1:]
    assert lines == [
        "  rank 0:",
        "     step  rank",
        "  0     0     0",
        "  rank 1:",
        "     step  rank",
        "  0     0     1",
    ]
    short = cell(*([shown(text__html=f"<b>{rank}</b>", text__plain=f"b {rank}")] for rank in (0, 1)))
    assert format_cell_text(short).splitlines()[1:] == ["  rank 0: b 0", "  rank 1: b 1"]
