"""A cell result as HTML that is stored in the notebook."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mhnb.core.output.results import RANK_STOPPED, CellResult, RankResult
from mhnb.types import RankError
from mhnb.view.cell.html import MAX_CELL_NBYTES, MAX_VERBATIM_NBYTES, View, format_cell_html
from mhnb.view.html import RankLocations
from tests.support.view_samples import (
    DEATH,
    StrictPage,
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

LOCATIONS = RankLocations({rank: f"host{rank}" for rank in range(64)}, {rank: f"rank{rank}.log" for rank in range(64)})
LINES = "one\ntwo\n"

VIEWS: tuple[View, ...] = ("fold", "tabs", "grid")

RESULTS = {
    "agree": cell(*[[out("said 0 1 2\n")]] * 3),
    "lines": cell(*[[out(f"{LINES}said {rank}\n")] for rank in range(3)]),
    "rows": cell(*[[out(f"said {rank}\n")] for rank in range(3)]),
    "error": cell([out("said 0")], failed(1, said=[out("said 1")]), [out("said 2")]),
    "two errors": cell(failed(0, "KeyError", said=[out("said 0")]), failed(1, said=[out("said 1")]), [out("said 2")]),
    "rich": cell(*[[shown(text__html=f"<p>said {rank}</p>", text__plain="no")] for rank in range(3)]),
    "many": cell(*[[out(f"{LINES}said {rank}\n")] for rank in range(40)]),
    "numbers": cell(*[[out(f"said {rank} loss {rank * 7 % 5}.25\n")] for rank in range(5)]),
    "outlier": cell(*[[out(f"said {rank} loss {int(rank == 3)}.25\n")] for rank in range(5)]),
}
DIFFERENT_WORDS = cell(*[[out(f"said {word}\n")] for word in "abc"])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["agree", "rows", "many"])
def test_first_line_has_cell_number_as_tooltip(name: str, view: View) -> None:
    """The first line has the cell's number as its tooltip, because other cells and `panel` refer to the cell by it."""
    result = replace(RESULTS[name], seq=12)
    assert '<div title="cell 12"' in format_cell_html(result, view=view, uid="mhnb-1", locations=LOCATIONS)
    shown = format_cell_html(replace(result, execution_count=7), view=view, uid="mhnb-1", locations=LOCATIONS)
    assert '<div title="In [7] · cell 12 of the cluster"' in shown


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_text_of_every_rank_survives_a_strict_page(result: CellResult, view: View) -> None:
    """Without style, script and input elements the markup is well-formed and contains all output of the ranks."""
    page = StrictPage(format_cell_html(result, view=view, uid="mhnb-1", locations=LOCATIONS))
    assert not page.unclosed
    for rank in result:
        assert re.search(rf"said[ 0-9]* {rank.rank}(?!\d)", page.text)


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_markup_has_no_elements_that_notebooks_remove(result: CellResult, view: View) -> None:
    """The markup has no headings (they would enter the table of contents), scripts, inputs, ids or `var()` in inline styles."""
    for tag, attributes in StrictPage(format_cell_html(result, view=view, uid="mhnb-1", locations=LOCATIONS)).tags:
        assert tag not in ("h1", "h2", "h3", "h4", "h5", "h6", "script", "input", "svg", "label")
        assert not {"id", "role"} & set(attributes)
        assert "var(" not in (attributes.get("style") or "")
        assert tag != "pre" or "font-family:monospace" in (attributes.get("style") or "")


def test_agreement_is_one_block_without_a_fold() -> None:
    """Equal output of all ranks is one block without a fold."""
    page = StrictPage(format_cell_html(RESULTS["agree"]))
    assert "details" not in [tag for tag, _ in page.tags]
    assert page.visible == "ranks 0-2 · 0.21 ssaid 0 1 2"


def test_outlier_is_visible_without_a_click() -> None:
    """Among many blocks the first outlier and the majority are open; the others show their last line, and are in the page."""
    odd = [[out(f"{LINES}odd {chr(97 + rank)}\n" * 9)] for rank in range(12)]
    page = StrictPage(format_cell_html(cell(*odd, *[[out("same\n")]] * 20)))
    assert page.visible.count("odd a") == 9
    assert "same" in page.visible
    assert page.visible.count("odd l") == 1
    assert page.text.count("odd l") == 10


def test_folded_outputs_show_their_last_line() -> None:
    """Of long different outputs one is open; the summaries of the others have the last line with text, or name a figure."""
    said = [[out("".join(f"{name} {name * at}\n" for at in range(1, 40)) + "\n \n")] for name in "abc"]
    said.append([*said[0][:1], out("x\n"), shown(image__png="A" * 40)])
    page = StrictPage(format_cell_html(cell(*said)))
    assert page.visible.count("\na a") == 38
    assert f"rank 1 b {'b' * 39}rank 2 c {'c' * 39}rank 3 (a figure)" in page.visible


def test_long_open_output_says_how_many_lines_it_has() -> None:
    """Beside the label of an output that scrolls is its number of lines, and beside folded tables their last row with text."""
    said = [[out("".join(f"{name} {name * at}\n" for at in range(1, 40)) + "└──┘\n")] for name in "abc"]
    html = format_cell_html(cell(*said))
    assert "rank 0 40 lines" in StrictPage(html).visible
    assert f"rank 1 b {'b' * 39}" in StrictPage(html).visible
    assert len(set(re.findall(r"min-width:([\d.]+)em", html))) == 1


def test_very_many_outputs_are_folded_twice() -> None:
    """Of more than 16 long outputs those in the middle are in one fold; all of them are in the page."""
    page = StrictPage(format_cell_html(cell(*[[out(f"{LINES}{chr(97 + rank) * 3}\n" * 9)] for rank in range(26)])))
    assert "ranks 15-24: 10 more outputs" in page.visible
    assert page.visible.count("ooo") == page.visible.count("zzz") == 1
    assert "ppp" not in page.visible
    assert page.text.count("ppp") == 10


def test_single_line_is_shown_beside_its_rank() -> None:
    """One line per rank needs no fold."""
    page = StrictPage(format_cell_html(DIFFERENT_WORDS, locations=LOCATIONS))
    assert "details" not in [tag for tag, _ in page.tags]
    assert "rank 1 host1said b" in page.visible


def test_a_host_has_a_colour_and_a_name() -> None:
    """Each host has a name beside its colour, because colour must not be the only cue."""
    html = format_cell_html(DIFFERENT_WORDS, locations=LOCATIONS)
    assert len(set(re.findall(r"border-left:3px solid (#\w+)", html))) == 3
    assert all(f"host{rank}" in html for rank in range(3))


def test_hosts_of_several_ranks_are_named_together() -> None:
    """Several hosts are named in the notation of schedulers; a block of all hosts needs no names."""
    page = StrictPage(
        format_cell_html(cell(*[[out("b" if rank in (1, 2) else "a")] for rank in range(5)]), locations=LOCATIONS)
    )
    assert "ranks 1-2 host[1-2] ≠" in page.visible


def test_short_outputs_are_all_open_only_if_they_are_few_lines_together() -> None:
    """64 outputs of a line each are rows beside their ranks; of 64 tables the first eight are open."""
    lines = [[out(f"{'abcdefgh'[rank % 8] * (2 + rank // 8)}\n")] for rank in range(64)]
    assert "<details" not in format_cell_html(cell(*lines))
    tables = [
        [out("".join(f"{'abcdefgh'[rank % 8] * (2 + rank // 8)}{line}\n" for line in "uvwxy"))] for rank in range(64)
    ]
    page = format_cell_html(cell(*tables))
    assert page.count("<details") == 65
    assert page.count('<details class="mhnb-block" open') == 8
    assert "ranks 15-62: 48 more outputs" in page


@pytest.mark.parametrize("view", ["tabs", "grid"])
def test_single_error_is_said_once(view: View) -> None:
    """The report says a single error; each rank of several errors has its own. A failed rank is first if it has output."""
    single = cell([out("a")], [out("a")], failed(2), [out("a")])
    message = "cannot reshape"
    assert format_cell_html(single, view=view).count(message) == format_cell_html(single).count(message) == 1
    several = cell([out("a")], failed(1, "KeyError"), failed(2, said=[out("b")]), [out("a")])
    assert format_cell_html(several, view=view).count(message) == 2 + 2
    page = StrictPage(format_cell_html(single, view=view)).visible
    assert page.index("rank 2 ✗") < page.index("ranks 0-1,3a") if view == "grid" else "rank 0a" in page


@pytest.mark.parametrize("text", ["done\n", "".join(f"line {at}\n" for at in range(300))], ids=["short", "long"])
def test_rank_that_failed_without_output_is_in_the_report_alone(text: str) -> None:
    """It has no row, and the output of the others still names its ranks; a silent rank that did not fail keeps its row."""
    result = cell([out(text)], [], replace(failed(2), outputs=()), [out(text)])
    page = StrictPage(format_cell_html(result))
    assert page.visible.count("rank 2") == 1
    assert "rank 1(no output)" in page.visible
    alone = StrictPage(format_cell_html(cell([out(text)], replace(failed(1), outputs=()))))
    assert "no output" not in alone.visible
    assert "rank 0" in alone.visible.split("ranks 0-1")[1]


def test_own_rank_numbers_fold_and_stay_readable() -> None:
    """Output that differs only in the rank's own number is one line; each rank's own text opens with a click."""
    page = StrictPage(format_cell_html(RESULTS["rows"], locations=LOCATIONS))
    assert page.visible == "ranks 0-2 · 0.21 ssaid ‹rank›each rank word for word"
    assert all(f"said {rank}" in page.text for rank in range(3))


def test_numbers_are_a_table() -> None:
    """Numbers are a table with one column per rank, one row per number and a sparkline."""
    page = StrictPage(format_cell_html(RESULTS["numbers"], locations=LOCATIONS))
    assert "said ‹rank› loss ‹a›rank01234a0.252.254.251.253.25" in page.visible


def test_numbers_of_many_ranks_are_summarised_and_complete() -> None:
    """Minimum, median and maximum are visible; the values open with a click."""
    page = StrictPage(format_cell_html(cell(*[[out(f"loss {rank}.5")] for rank in range(64)])))
    assert "min 0.5 (rank 0) · median 31.5 · max 63.5 (rank 63)" in page.visible
    assert "40: 40.5" not in page.visible
    assert all(f"{rank}: {rank}.5" in page.text for rank in range(64))


def test_outlier_shows_the_majority_value() -> None:
    """The word that differs is marked, and the majority's word is shown beside it."""
    html = format_cell_html(RESULTS["outlier"], locations=LOCATIONS)
    assert "said ‹rank› loss 1.25 ← 0.25 elsewhere" in StrictPage(html).visible
    assert re.search(r'<b style="[^"]*underline[^"]*">1\.25</b>', html)


def test_a_figure_that_ranks_share_is_stored_once() -> None:
    """A figure that ranks share is stored once, even if their text differs."""
    figure = shown(image__png="A" * 5000)
    html = format_cell_html(cell([out("a"), figure], [out("b"), figure], [out("c"), shown(image__png="B" * 5000)]))
    assert html.count("A" * 5000) == 1
    assert html.count("B" * 5000) == 1
    assert "the same as on rank 0" in StrictPage(html).text


def test_a_grid_is_a_card_for_each_rank() -> None:
    """The grid shows one card per rank, side by side if there is room."""
    html = format_cell_html(RESULTS["lines"], view="grid", locations=LOCATIONS)
    assert html.count("border-top:3px solid") == 3
    assert "display:grid" in html


def test_waiting_rank_is_not_a_failure_of_its_own() -> None:
    """A guard mismatch after another rank's error is not a failure of its own, because it follows from that error."""
    page = StrictPage(
        format_cell_html(cell(failed(0, "OrderMismatch"), failed(1, at_s=0.2), failed(2, "OrderMismatch")))
    )
    assert page.visible.startswith("✗ ValueError on rank 1 · ranks 0,2 were left waitingcell 12, line 3")
    assert "ranks 0,2 waited at line 3:  x = x.reshape(7, -1)" in page.visible


def test_cell_line_is_a_button_that_leads_to_it() -> None:
    """The cell's line is a button without a script element. Its text is outside of the button, once, for strict pages.

    The front end counts lines from 0, and has the `%%mhjax` line too.
    """
    html = format_cell_html(cell(failed(0)))
    call = r'onclick="[^"]*\(this,2,&quot;x = x.reshape\(7, -1\)&quot;\)"'
    assert re.search(rf'>cell 12, line 3<button [^>]*aria-label="cell 12, line 3" {call}></button></span>:', html)
    assert StrictPage(html).text.count("cell 12, line 3") == 1


def test_button_is_hidden_without_its_style_sheet() -> None:
    """Only a style sheet reveals the button, and only if its script is there: otherwise it could do nothing."""
    html = format_cell_html(cell(failed(0)))
    assert re.search(r'<button type="button" class="mhnb-jump" style="display:none"', html)
    assert ".mhnb-jump[onclick]{" in html
    assert "mhnb-jump" not in format_cell_html(RESULTS["agree"]), "no bytes for it elsewhere"


def test_failure_comes_first_with_collapsed_traceback() -> None:
    """Heading, line and message are visible; JAX frames open with a click, and no frame is lost."""
    page = StrictPage(format_cell_html(RESULTS["error"], locations=LOCATIONS))
    assert page.visible.startswith("✗ ValueError on rank 1 · ranks 0,2 finishedcell 12, line 3:   x = x.reshape(7, -1)")
    assert "core.py" not in page.visible
    assert "core.py:7" in page.text


def test_equal_tracebacks_are_shown_once() -> None:
    """Equal tracebacks of four ranks are shown once."""
    assert format_cell_html(cell(*map(failed, range(4)))).count("… 3 frames inside jax") == 1


def open_tabs(result: CellResult) -> list[bool]:
    """Return for each tab, in rank order, whether it is open."""
    page = StrictPage(format_cell_html(result, view="tabs"))
    return ["open" in attributes for tag, attributes in page.tags if tag == "details" and "name" in attributes]


def test_tab_of_outlier_is_open() -> None:
    """The first outlier's tab is open and tabs stay in rank order; if only some ranks printed, the first of those is open."""
    said = [[out("loss 9\n" if rank in (3, 4) else "loss 1\n")] for rank in range(6)]
    assert open_tabs(cell(*said)) == [False, False, False, True, False, False]
    assert open_tabs(cell([], [], [out("here")])) == [False, False, True]


def test_tab_of_failed_rank_is_open_without_outlier() -> None:
    """Without an outlier the failed rank's tab is open, because the error above the tabs is about that rank."""
    assert open_tabs(cell([out("a")], [out("a")], failed(2, said=[out("a")]))) == [False, False, True]


def test_tabs_share_a_name_and_only_the_first_is_open() -> None:
    """The tabs share the caller's `name`, unique in the notebook, which makes them exclusive; only the first is open."""
    page = StrictPage(format_cell_html(RESULTS["lines"], view="tabs", uid="mhnb-7"))
    tabs = [attributes for tag, attributes in page.tags if tag == "details"]
    assert [tab["name"] for tab in tabs] == ["mhnb-7"] * 3
    assert ["open" in tab for tab in tabs] == [True, False, False]


def test_a_tab_that_differs_is_marked() -> None:
    """A tab that differs is marked, so that it is found without opening each tab."""
    html = format_cell_html(cell([out("a")], [out("b")], [out("a")]), view="tabs")
    assert re.findall(r"<b>(rank \d)</b>( ≠)?", html) == [("rank 0", ""), ("rank 1", " ≠"), ("rank 2", "")]


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
@pytest.mark.parametrize("ranks", [1, 64])
@pytest.mark.sample(1)
@pytest.mark.slow
def test_stored_size_is_bounded(ranks: int, view: View) -> None:
    """All blocks together stay below the limit whatever was printed, and the log file is named with its path."""
    page = "x" * 79 + "\n"
    html = format_cell_html(
        cell(*[[out(f"{chr(97 + rank)}\n{page * 10000}")] for rank in range(ranks)]), view=view, locations=LOCATIONS
    )
    assert len(html) < 1.5 * MAX_CELL_NBYTES
    assert "log" in StrictPage(html).text


@pytest.mark.slow
def test_numbers_of_many_lines_are_bounded_too() -> None:
    """HTML of 64 ranks and 1,000 lines, each with a number of its own, stays below the limit."""
    said = [[out("".join(f"step {n} loss {(n * rank) % 97}.5\n" for n in range(1000)))] for rank in range(64)]
    assert len(format_cell_html(cell(*said), locations=LOCATIONS)) < 1.2 * MAX_CELL_NBYTES


@pytest.mark.slow
def test_much_text_is_not_stored_twice() -> None:
    """Each rank's own text is stored only if it is short; otherwise the log files are named."""
    html = format_cell_html(
        cell(*[[out(f"rank {rank}\n" + "word\n" * MAX_VERBATIM_NBYTES)] for rank in range(2)]), locations=LOCATIONS
    )
    assert "word for word: each rank's log file, as rank0.log" in StrictPage(html).visible


def test_text_cannot_become_markup() -> None:
    """Host names, messages and notes are escaped as well as output."""
    result = cell(failed(0, "<b>Odd</b>", hint="<i>"), [out("<script>alert(1)</script>")], notes=("a <u> note",))
    html = format_cell_html(result, locations=RankLocations({0: "<h1>", 1: "<h1>"}))
    tags = {tag for tag, _ in StrictPage(html).tags}
    assert not tags & {"script", "i", "u", "h1"}


def test_silent_cell_shows_only_a_badge() -> None:
    """A cell without output shows nothing, unless a badge must say where the cell ran."""
    assert format_cell_html(cell([], [])) == ""
    assert "mhjax · ranks 0-1" in format_cell_html(cell([], []), badge=True)


def test_a_lost_rank_is_named_without_a_traceback() -> None:
    """A lost rank is named without a traceback, because the notes explain the loss."""
    page = StrictPage(format_cell_html(cell([value("1")], RankResult(1, "died"), notes=("rank 1 was killed.",))))
    assert page.visible.startswith("✗ died on rank 1 · rank 0 finishedrank 1 was killed.")


def test_a_death_is_two_lines() -> None:
    """The report on a death is the verdict's two lines: the ranks' own errors would say less, and the same again."""
    assert StrictPage(format_cell_html(rank_died())).text == f"✗ {''.join(DEATH)}"


def test_an_error_before_a_death_is_kept() -> None:
    """An error that the user's code raised on another rank before the death is shown below the death, with its kind."""
    died = rank_died()
    page = StrictPage(format_cell_html(replace(died, ranks=(failed(0), *died.ranks[1:]))))
    assert page.visible.startswith(f"✗ {''.join(DEATH)}rank 0 (first)cell 12, line 3:   x = x.reshape(7, -1)")
    assert "ValueError: cannot reshape" in page.visible


def test_loss_of_a_host_names_its_ranks() -> None:
    """The verdict names the host and the command, but not which ranks were on it; so the report adds them."""
    reason = "host1 (beta) is lost: it has not answered for 21 s"
    stopped = RankError(RANK_STOPPED, "stopped because a host was lost")
    ranks = [RankResult(0, "killed", error=stopped)]
    ranks += [RankResult(rank, "died", error=RankError("RankDied", reason)) for rank in (1, 2)]
    result = replace(cell(*ranks, [], notes=(reason, "%mhjax restart --replay")), state="dead")
    assert StrictPage(format_cell_html(result)).text == (
        f"✗ {reason}ranks 1-2 were lost with it, rank 0 was stopped with it. %mhjax restart --replayrank 3 had finished the cell"
    )


def test_notes_of_the_verdict_end_the_failure_report() -> None:
    """The verdict's note is the report's last line, quiet while the cluster is clean; output follows the report."""
    note = "the ranks are still in sync, but variables set in this cell may differ"
    result = cell([out("said")], failed(1, said=[out("said")]), notes=(note,))
    html = format_cell_html(result)
    assert StrictPage(html).visible.endswith(f"traceback{note}ranks 0-1 · 0.21 ssaid")
    assert f'<div style="white-space:pre-wrap;opacity:.65">{note}</div></div>' in html
    tainted = format_cell_html(replace(result, state="tainted"))
    assert f'<div style="white-space:pre-wrap">{note}</div></div>' in tainted, "it asks for something"


def test_several_errors_have_each_kind_once_in_the_body() -> None:
    """The label of one of several errors names the ranks; the message below it begins with the kind."""
    page = StrictPage(format_cell_html(RESULTS["two errors"]))
    assert "rank 0 (first)cell 12, line 3:" in page.visible
    assert page.visible.count("KeyError") == 2, "in the heading and before the message"


def test_open_traceback_leaves_out_the_cells_line() -> None:
    """A traceback is open if it has other frames of the user's. The frame of the line above is collapsed, not lost."""
    html = format_cell_html(cell(failed_in_a_helper(0), []))
    page = StrictPage(html)
    assert "model.py:8" in page.visible
    assert page.visible.count("x = x.reshape(7, -1)") == 1
    assert "… the cell's line, as above" in page.visible
    assert "In[1], line 3" in page.text
    closed = StrictPage(format_cell_html(cell(failed(0), [])))
    assert "as above" not in closed.text, "a traceback that is opened by hand begins with that frame"


def test_stack_before_a_transformation_of_jax_is_folded() -> None:
    """Its message is that of the error, so the open traceback has the user's other frame alone."""
    line = "Cell In[12], line 3\n----> 3 loss(w)"
    traceback = (
        "JaxStackTraceBeforeTransformation         Traceback (most recent call last)",
        line,
        "JaxStackTraceBeforeTransformation: TypeError: bad\n\nThe preceding stack trace is the source\n\n--------------------",
        "\nThe above exception was the direct cause of the following exception:\n",
        "TypeError         Traceback (most recent call last)",
        "Cell In[12], line 5\n----> 5 step(w)",
        line,
        "TypeError: bad",
    )
    error = RankError("TypeError", "bad", traceback, line=3, code="loss(w)")
    page = StrictPage(format_cell_html(cell(*[replace(failed(rank), error=error) for rank in range(2)])))
    assert page.visible.count("bad") == 1
    assert "5 step(w)" in page.visible
    assert "source" not in page.visible
    assert "The preceding stack trace is the source" in page.text


def test_what_the_cell_before_left_is_in_the_status_line() -> None:
    """Quiet words name the cell before, in the status line; the whole sentence is its tooltip."""
    html = format_cell_html(after_a_failure())
    assert StrictPage(html).visible == "ranks 0-3 · 0.21 s · cell 11 finished on rank 0 only: variables may differ2"
    assert 'title="cell 11: FileExistsError on ranks 1-3 · rank 0 finished; the ranks are still in sync, but' in html
    assert StrictPage(html).text.count("cell 11") == 1


@pytest.mark.parametrize("view", VIEWS)
def test_cell_before_is_named_without_output_and_beside_a_failure(view: View) -> None:
    """The next cell names it whatever it did, because no later cell does."""
    words = "cell 11 finished on rank 0 only: variables may differ"
    for result in (after_a_failure([], []), after_a_failure(failed(0), []), after_a_failure([out("a")], [out("b")])):
        assert StrictPage(format_cell_html(result, view=view)).visible.count(words) == 1


def test_noise_is_a_tooltip_of_the_status_line() -> None:
    """Library noise takes no line: the tooltip counts it and has its first lines. Alone it does not create a display."""
    result = with_noise([out("mine\n")], [out("mine\n")])
    html = format_cell_html(result)
    assert StrictPage(html).text == "ranks 0-1 · 0.21 smine"
    assert (
        '<div title="cell 12\n2 lines of C++ libraries (Gloo 2), all of them in the log files:\n'
        'ranks 0-1: [Gloo] Rank ‹rank› is connected to 1 peer ranks."' in html
    )
    assert format_cell_html(with_noise([], [])) == ""
    many = replace(
        result, ranks=tuple(replace(rank, noise="".join(f"{n} {'x' * 400}\n" for n in range(50))) for rank in result)
    )
    assert len(format_cell_html(many)) < len(html) + 1000


def test_noise_of_a_failure_without_output_is_a_tooltip_of_its_heading() -> None:
    """Without a status line the report's heading has the tooltip."""
    result = with_noise([], [])
    html = format_cell_html(replace(result, ranks=(replace(failed(0), noise=result[0].noise), result[1])))
    assert re.search(
        r'<div title="cell 12\n2 lines of C\+\+ libraries[^"]*"><b class="mhnb-title mhnb-bad">✗ ValueError', html
    )


def test_all_noise_is_beside_the_output_word_for_word() -> None:
    """Where each rank's output is stored word for word, behind a click, the noise is too."""
    page = StrictPage(format_cell_html(with_noise([out("said 0\n")], [out("said 1\n")])))
    assert "Gloo" not in page.visible
    assert "2 lines of C++ libraries (Gloo 2)" in page.text
    assert "[Gloo] Rank ‹rank› is connected to 1 peer ranks." in page.text


def test_differing_figure_is_visible() -> None:
    """A differing figure is visible beside text that is nearly the majority's, and no figure is stored twice."""
    said = [[out(f"loss {int(rank == 2)}.5\n"), shown(image__png="AB"[rank == 2] * 5000)] for rank in range(4)]
    html = format_cell_html(cell(*said))
    folded = html.partition("each rank word for word")[0]
    assert folded.count("A" * 5000) == html.count("A" * 5000) == 1
    assert folded.count("B" * 5000) == html.count("B" * 5000) == 1


def test_many_lines_of_many_ranks_are_summarised_line_by_line() -> None:
    """A row has minimum, median and maximum; every value opens with a click."""
    said = [[out("".join(f"step {n}: {rank + n}.5\n" for n in range(20)))] for rank in range(30)]
    page = StrictPage(format_cell_html(cell(*said)))
    assert "min 1.5 (rank 0) · median 15.5 · max 30.5 (rank 29)" in page.visible
    assert "min 3.5 (rank 0) · median 17.5 · max 32.5 (rank 29)" not in page.visible
    assert "min 3.5 (rank 0) · median 17.5 · max 32.5 (rank 29)" in page.text
    assert "12: 15.5" not in page.visible
    assert "12: 15.5" in page.text


def test_a_note_keeps_its_lines() -> None:
    """A note keeps its line breaks, because launches, one line per side, would be unreadable in one line."""
    html = format_cell_html(cell((), (), notes=("launch 1 differs\n  rank 0  a\n  rank 1  b",)))
    assert 'white-space:pre-wrap">launch 1 differs\n  rank 0  a\n  rank 1  b</div>' in html


def test_long_outlying_line_is_cut_around_the_difference() -> None:
    """Only the text near the difference is shown, because the majority's line is shown whole, once."""
    words = " ".join(f"w{at}" for at in range(300))
    said = [[out(f"{words.replace('w150 ', 'odd ') if rank == 2 else words}\n")] for rank in range(4)]
    page = StrictPage(format_cell_html(cell(*said)))
    assert "w149 odd w151" in page.visible
    assert "← w150 elsewhere" in page.visible
    assert page.visible.count("w20 ") == page.visible.count("w290 ") == 1
    assert words in page.visible
    assert words.replace("w150 ", "odd ") in page.text, "word for word, behind a click"


def test_long_line_with_many_differences_is_cut_on_both_sides() -> None:
    """The majority's text below is cut at the same places, and a line that only the other ranks have is cut too."""
    words = " ".join(f"w{at}" for at in range(300))
    odd = words.replace("w50 ", "one ").replace("w200 ", "two ")
    said = [[out(f"{odd if rank == 2 else words}\nend\n")] for rank in range(4)]
    text = StrictPage(format_cell_html(cell(*said))).visible
    assert "w49 one w51" in text
    assert "w199 two w201" in text
    below = text.partition("←")[2].partition("elsewhere")[0]
    assert "w49 w50 w51" in below
    assert "w100" not in below
    assert text.count("w100 ") == 1
    lost = [[out("end\n" if rank == 2 else f"{words}\nend\n")] for rank in range(4)]
    text = StrictPage(format_cell_html(cell(*lost))).visible
    assert text.count("w100 ") == 1


@pytest.mark.parametrize(
    ("folder", "written"),
    [
        ("/nb", '<a href="logs/rank0.log" title="opens in JupyterLab">/nb/logs/rank0.log</a>'),
        ("/nb/logs/deeper", '<code style="user-select:all" title="a click selects it">/nb/logs/rank0.log</code>'),
        ("", '<code style="user-select:all" title="a click selects it">/nb/logs/rank0.log</code>'),
    ],
)
@pytest.mark.slow
def test_log_is_a_jupyterlab_link_or_a_path_to_copy(folder: str, written: str) -> None:
    """A browser opens no file from a server's page, so there is no `file:` link."""
    locations = RankLocations(logs={0: "/nb/logs/rank0.log"}, notebook_dir=folder)
    much = cell([out("a line\n" * 30_000)])
    mark = "\n[... 2,000 bytes of stdout left out; the rank's log file has them ...]\n"
    lost = cell(RankResult(0, "ok", (out(f"a{mark}z\n"),), omitted_nbytes=2000))
    for result in (much, lost):
        for view in VIEWS:
            html = format_cell_html(result, view=view, locations=locations)
            assert "file:" not in html
            assert "/nb/logs/rank0.log" in StrictPage(html).text
            assert (view != "fold" and result is much) or written in html


def test_long_list_of_hosts_is_a_count() -> None:
    """If every 16th of 256 ranks differs, the hosts are counted, because the ranks identify them."""
    locations = RankLocations({rank: f"host{rank}" for rank in range(256)})
    said = [[out("odd\n" if rank % 16 == 0 else "a\n")] for rank in range(256)]
    page = StrictPage(format_cell_html(cell(*said), locations=locations))
    assert "16 ranks 0,16,32,48…240 16 hosts ≠" in page.visible
    assert "240 hosts" in page.visible
