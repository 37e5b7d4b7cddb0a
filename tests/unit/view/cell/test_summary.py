"""The order in which a cell summary lists results."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from mhnb.core.output.results import RankResult
from mhnb.core.output.rich import find_figure_type
from mhnb.types import Output, RankError
from mhnb.view.cell.blocks import comparable_lines
from mhnb.view.cell.failures import ORDER_MISMATCH
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.summary import as_shown, clip_outputs, summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.sanitize import SCRIPTS_NOT_RUN
from tests.support.view_samples import cell, failed, out, shown, value


def test_outlier_comes_first() -> None:
    """Blocks that differ come before the majority's block."""
    seen = summarise_cell(cell([out("a")], [out("a")], [out("b")], [out("a")]))
    assert [block.ranks for block in seen.blocks] == [(2,), (0, 1, 3)]
    assert seen.difference == "rank 2 differs"


def test_without_a_majority_ranks_are_in_order() -> None:
    """Two ranks against two have no outlier."""
    seen = summarise_cell(cell([out("b")], [out("a")], [out("a")], [out("b")]))
    assert [block.ranks for block in seen.blocks] == [(0, 3), (1, 2)]
    assert (seen.difference, seen.outliers) == ("2 different outputs", frozenset())


def test_ranks_that_agree_have_no_difference() -> None:
    """Ranks that agree are one block, and no difference is reported."""
    seen = summarise_cell(cell([out("a")], [out("a")]))
    assert (len(seen.blocks), seen.difference, seen.heading) == (1, "", "ranks 0-1 · 0.21 s")


def test_silent_cell_has_an_empty_summary() -> None:
    """A cell without output has an empty summary."""
    assert summarise_cell(cell([], [])).is_empty


@pytest.mark.parametrize(
    ("ranks", "silent"),
    [
        ([[], []], True),
        ([[], [out("a")]], False),
        ([[], failed(1)], False),
        ([[], RankResult(1, "killed")], False),
        ([[], RankResult(1, "running")], False),
        ([[], RankResult(1, "ok", omitted_nbytes=9)], False),
    ],
)
def test_silent_result_has_an_empty_summary(ranks: list[Any], *, silent: bool) -> None:
    """A result with `is_silent` set has an empty summary, and a result with content does not set it."""
    result = cell(*ranks)
    assert result.is_silent == silent
    assert summarise_cell(result).is_empty or not silent
    assert not replace(result, notes=("one",)).is_silent
    assert not replace(result, done=False).is_silent


def test_print_on_one_rank_is_not_a_difference() -> None:
    """The usual `if rank == 0: print` is reported as output of one rank, not as a difference."""
    assert summarise_cell(cell([out("a")], [], [])).difference == "only rank 0 said something"
    assert summarise_cell(cell([], [out("a")])).difference == "only rank 1 said something"


def test_an_error_does_not_make_outputs_differ() -> None:
    """Output of a failed rank is grouped with equal output of other ranks."""
    seen = summarise_cell(cell([out("a")], failed(1, said=[out("a")]), [out("a")]))
    assert [block.ranks for block in seen.blocks] == [(0, 1, 2)]


def test_first_failure_comes_first() -> None:
    """The earliest failure comes first, whatever its rank's number is."""
    seen = summarise_cell(cell(failed(0, "KeyError", at_s=0.3), failed(1, at_s=0.1), []))
    assert [failure.kind for failure in seen.failures] == ["ValueError", "KeyError"]
    assert seen.failure_heading == "ValueError on rank 1 · KeyError on rank 0 · rank 2 finished"


def test_later_failures_are_sorted_by_rank() -> None:
    """Only the first failure's time matters; later ones are sorted by rank, then ranks without a traceback or left waiting."""
    late = [failed(0, "TypeError", at_s=0.9), failed(1, "KeyError", at_s=0.8), failed(2, "IndexError", at_s=0.5)]
    seen = summarise_cell(
        cell(*late, failed(3, at_s=0.1), failed(4, ORDER_MISMATCH, at_s=0.05), RankResult(5, "killed"))
    )
    assert [failure.ranks for failure in seen.failures] == [(3,), (0,), (1,), (2,), (5,), (4,)]
    assert seen.failure_heading.startswith("ValueError on rank 3 · TypeError on rank 0 · KeyError on rank 1 · ")


def test_equal_tracebacks_are_one_failure() -> None:
    """Ranks that failed in the same way are listed together."""
    assert [f.ranks for f in summarise_cell(cell(failed(0), failed(1), [], failed(3))).failures] == [(0, 1, 3)]


def test_a_lost_rank_is_a_failure_without_error() -> None:
    """A lost rank without an exception is named by its outcome."""
    seen = summarise_cell(cell(RankResult(0, "died"), RankResult(1, "killed")))
    assert seen.failure_heading == "died on rank 0 · killed on rank 1"


def test_running_cell_names_the_ranks_it_waits_for() -> None:
    """The heading names only ranks that have not ended."""
    assert summarise_cell(cell([], RankResult(1, "ok"), [], done=False, wall_s=3.2)).heading == (
        "ranks 0-2 · running 3.2 s · waiting for ranks 0,2"
    )


def test_clipping_keeps_both_ends_and_figures() -> None:
    """The middle of the text is removed, with a note where the rest is; figures stay."""
    outputs = [out("a" * 60), shown(image__png="AAAA"), out("b" * 60), value("c" * 60)]
    clipped = clip_outputs(outputs, 40, where="rank0.log")
    assert clipped[0]["text"].startswith("a" * 20 + "\n… 140 B left out, all of it is in rank0.log …")
    assert clipped[1] == outputs[1]
    assert clipped[-1]["data"]["text/plain"] == "c" * 20
    assert len(clipped) == 3


def test_clipping_counts_bytes_that_the_rank_omitted() -> None:
    """A mark in the removed middle counts as the bytes it stands for, not as its own text."""
    mark = "\n[... 1,000 bytes of stdout left out; the rank's log file has them ...]\n"
    (clipped,) = clip_outputs([out("a" * 60 + mark + "b" * 60)], 40, where="rank0.log")
    assert clipped["text"] == "a" * 20 + "\n… 1.1 KiB left out, all of it is in rank0.log …\n" + "b" * 20


def test_clipping_does_not_change_short_outputs() -> None:
    """Outputs below the limit are not changed."""
    outputs = (out("a"), value("b"))
    assert clip_outputs(outputs, 2, where="x") == outputs


def test_text_that_was_not_compared_is_noted() -> None:
    """Ranks that differ in the middle of very long text look equal, so a note says how far they were compared."""
    lines = [f"line {n} of much text\n" for n in range(20_000)]
    other = [*lines[:10_000], "odd\n", *lines[10_001:]]
    notes = summarise_cell(cell([out("".join(lines))], [out("".join(other))])).output_notes
    assert any("only its beginning and end were compared" in note for note in notes)
    assert summarise_cell(cell(*[[out("".join(lines))]] * 2)).output_notes == ()


def test_rank_that_failed_without_output_is_not_an_outlier() -> None:
    """A rank that failed without output is not an outlier, because its error already explains the missing output."""
    seen = summarise_cell(cell([out("loaded\n")], [out("loaded\n")], failed(2), [out("loaded\n")]))
    assert seen.marked_outliers == frozenset()
    assert seen.difference == ""
    silent = summarise_cell(cell([out("loaded\n")], [], failed(2), [out("loaded\n")]))
    assert silent.difference == "only ranks 0,3 said something"
    spoke = summarise_cell(cell([out("loaded\n")], [out("loaded\n")], failed(2, said=[out("not so\n")])))
    assert (spoke.marked_outliers, spoke.difference) == (frozenset({2}), "rank 2 differs")


def test_finished_progress_bar_is_not_a_difference() -> None:
    """Finished progress bars do not count as a difference, because ranks are never equally fast."""
    bar = "epoch: 100%|██████████| 20/20 [00:00<00:00, {}.5it/s]\n"
    assert summarise_cell(cell(*[[out(bar.format(3 + r), "stderr")] for r in range(4)])).difference == ""
    html = format_cell_html(cell(*[[out(bar.format(3 + r), "stderr")] for r in range(4)]))
    assert "| all 20/20 · rank 0 [00:00&lt;00:00, 3.5it/s]" in html
    assert "  each 0:" not in html
    beside = [[out(bar.format(3 + r) + f"loss 0.{r + 3}\n", "stderr")] for r in range(4)]
    assert summarise_cell(cell(*beside)).difference == "numbers differ by rank"


@pytest.mark.parametrize(
    "ends",
    [
        ["8/8 [00:00<00:00, 264208.13it/s]"] + ["8/8 [00:00<00:00, 250406.21it/s]"] * 3,
        ["8/8 [00:08<00:00,  1.02s/it]"] + ["8/8 [00:08<00:00,  1.00it/s]"] * 3,
        ["8/8 [1:00:00<00:00, 450.00s/it]"] + ["8/8 [59:59<00:00, 449.88s/it]  "] * 3,
    ],
    ids=["rate", "unit", "hours"],
)
def test_bars_of_equally_fast_ranks_are_merged_with_the_others(ends: list[str]) -> None:
    """Ranks whose bars are equal by chance are no majority from which the others differ."""
    said = cell(*[[out(f"train: 100%|██████████| {end}\n", "stderr")] for end in ends])
    assert (summarise_cell(said).difference, len(summarise_cell(said).blocks)) == ("", 1)
    assert format_cell_text(said).count("train") == 1


def test_equal_progress_of_most_ranks_is_not_a_majority() -> None:
    """While bars move, a rank that is one step behind does not differ from the others."""
    bar = "train:  {0}%|████▏     | {0}/100 [00:04<00:05, {1}it/s]"
    seen = summarise_cell(cell(*[[out(bar.format(41 if rank == 2 else 42, 9), "stderr")] for rank in range(4)]))
    assert (seen.difference, len(seen.blocks)) == ("", 1)


def test_values_beside_bars_still_count() -> None:
    """The name of a bar, and a value on another line, separate ranks as before."""
    bar = "epoch {}: 100%|██████████| 8/8 [00:00<00:00, {}it/s]\n"
    named = [[out(bar.format(3 if rank == 1 else 4, 5 + rank), "stderr")] for rank in range(4)]
    assert summarise_cell(cell(*named)).difference == "rank 1 differs"
    beside = [[out(bar.format(3, 5 + rank) + f"loss {2 if rank == 1 else 1}.5\n", "stderr")] for rank in range(4)]
    assert summarise_cell(cell(*beside)).difference == "rank 1 differs"


@pytest.mark.parametrize(
    ("texts", "difference"),
    [
        (("on {'a', 'b'}", "on {'b', 'a'}"), "order differs by rank"),
        (("in /tmp/tmp4z4rv05h", "in /tmp/tmp__l0tpmu"), "names differ by rank"),
        (("in /tmp/tmp4z4rv05h of {'a', 'b'}: 7", "in /tmp/tmp__l0tpmu of {'b', 'a'}: 8"), "numbers differ by rank"),
    ],
)
def test_status_line_names_what_differs(texts: tuple[str, str], difference: str) -> None:
    """The status line names what differs within the block that ranks share, numbers first."""
    assert summarise_cell(cell(*[[out(text)] for text in texts])).difference == difference


def test_progress_bars_do_not_hide_a_difference() -> None:
    """The position of a progress bar at a print is arbitrary, so only the line that one rank alone has is a difference."""
    bar = "train: {}%|███       | {}/100"

    def said(rank: int) -> list[Output]:
        lines = [bar.format(20 + rank, 20 + rank), "step 0", bar.format(100, 100), *(["extra"] if rank == 3 else [])]
        return [out("\n".join(lines) + "\n")]

    (odd, _) = summarise_cell(cell(*map(said, range(4)))).blocks
    assert [(row.kind, row.here) for row in odd.rows if row.kind != "same"] == [("added", "extra")]


def test_difference_is_named_by_its_kind() -> None:
    """A differing table is reported as a display and not as a figure."""
    tables = [[shown(text__plain="<HTML>", text__html=f"<table><td>{word}</td></table>")] for word in "ab"]
    assert summarise_cell(cell(*tables)).difference == "displays differ by rank"
    drawn = [[shown(text__plain="<Figure>", image__png=word)] for word in "ab"]
    assert summarise_cell(cell(*drawn)).difference == "figures differ by rank"


def test_outlier_rows_show_other_numbers_without_letters() -> None:
    """Letters name rows of the others' table and count on from line to line, so an outlier's rows do not use them."""
    seen = summarise_cell(cell(*[[out("used 1 GB" if rank == 3 else f"used {700 + rank} MB")] for rank in range(4)]))
    assert seen.blocks[0].rows[0].there == "used ‹…› MB"
    two = summarise_cell(cell(*[[out("a odd\nb odd" if r == 3 else f"a {70 + r}\nb {80 + r} x")] for r in range(4)]))
    assert comparable_lines(two.blocks[1].output_group) == [("stdout", "a ‹a›"), ("stdout", "b ‹a› x")]


def test_own_rank_number_is_not_a_difference() -> None:
    """A rank's own number is not a difference if only the line before it differs."""
    seen = summarise_cell(cell(*[[out(f"in {'ms' if rank == 0 else 'us'}\n{rank}\n")] for rank in range(4)]))
    assert [row.kind for row in seen.blocks[0].rows] == ["changed", "same"]


def test_error_that_did_not_end_the_cell_stays_in_the_output() -> None:
    """An error of a `__repr__` stays in the output, where IPython showed it in place of the value."""
    shown = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]}
    (block,) = summarise_cell(cell([out("a\n"), shown], [out("a\n"), shown])).blocks
    assert comparable_lines(block.output_group) == [("stdout", "a"), ("stderr", "ValueError: no")]
    odd = replace(RankResult(0, "ok", (shown,)), error=RankError("ValueError", "no"))
    html = format_cell_html(cell(odd, odd), view="grid")
    assert (html.count("ValueError: no"), "✗" in html) == (1, False)


def test_marker_characters_in_output_are_replaced() -> None:
    """Marker characters in the output are replaced, because Unicode defines them for no text."""
    (block,) = summarise_cell(cell([out("x \ufdd0 \ufdd1 y")], [out("x \ufdd0 \ufdd1 y")])).blocks
    assert comparable_lines(block.output_group) == [("stdout", "x \ufffd \ufffd y")]


# of flax 0.12.8 with treescope 0.1.10, shortened
_STREAMED = (
    """<script> (()=>{ customElements.define("treescope-container", TreescopeContainer); })(); </script>
<treescope-container class="treescope_out_{0}" style="display:block"></treescope-container> <treescope-run-here>
<script type="application/octet-stream"> const root = document.getElementsByClassName( "treescope_out_{0}"); </script>
</treescope-run-here>""",
    '<div style="display:none"> <script type="application/octet-stream" >{0}</script> <treescope-run-here></div>',
)


def _streamed(name: str, text: str) -> list[Output]:
    return [shown(text__html=html.replace("{0}", name), text__plain=text) for html in _STREAMED]


def test_display_that_needs_scripts_is_its_text() -> None:
    """A display that only scripts can draw is shown as text with a note; ranks whose displays differ only in names agree."""
    names = ("ea8ce7f93ce448f7b2f16383b915abaa", "bb030eeb66dc4add8186281cb724d488")
    result = cell(*(_streamed(name, f"Linear( # Param: 10\n  rank={rank}\n)") for rank, name in enumerate(names)))
    assert format_cell_text(result).splitlines() == [
        "ranks 0-1 · 0.21 s",
        "  Linear( # Param: 10",
        "    rank=‹rank›",
        "  )",
        f"  ({SCRIPTS_NOT_RUN})",
    ]
    html = unescape(format_cell_html(result, uid="u"))
    assert html.count("Linear( # Param: 10") == 3  # for both, and for each word for word
    assert SCRIPTS_NOT_RUN in html


def test_display_that_needs_scripts_keeps_its_figure() -> None:
    """A figure, or an image, that comes with HTML of scripts only is shown instead of it."""
    scripts = "<div id='a'></div><script>draw()</script>"
    image = as_shown(RankResult(0, "ok", (shown(text__html=scripts, text__plain="fig", image__png="AAAA"),)))
    assert image.outputs[0]["data"].keys() == {"text/plain", "image/png"}
    plot = {"text/html": scripts, "text/plain": "Figure()", "application/vnd.plotly.v1+json": {"data": []}}
    assert find_figure_type(plot) == "application/vnd.plotly.v1+json"
    assert find_figure_type({**plot, "text/html": "<b>a figure</b>"}) is None


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\n<iframe\n src='http://x/y'></iframe>", "<iframe\n src='http://x/y'></iframe>"),
    ],
)
def test_html_of_unknown_value_is_its_source(html: str, text: str) -> None:
    """Where the text only says that there is HTML, the source says more."""
    output = shown(text__html=html, text__plain="<IPython.core.display.HTML object>")
    (converted,) = as_shown(RankResult(0, "ok", (output,))).outputs
    assert converted["data"] == {"text/plain": f"{text}\n({SCRIPTS_NOT_RUN})"}


@pytest.mark.parametrize(
    "html", ["<b>1</b><script>x</script>", "<img src='a'><script>x</script>", "<p>x</p>", "<i></i>"]
)
def test_html_that_shows_something_stays(html: str) -> None:
    """HTML stays if it shows something without its scripts, or has none."""
    result = RankResult(0, "ok", (shown(text__html=html, text__plain="x"),))
    assert as_shown(result) is result
