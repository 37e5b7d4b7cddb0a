"""A result as HTML that is stored."""

from __future__ import annotations

import re

import pytest

from mhnb.core.results import CellResult, RankResult
from mhnb.view.html import MAX_BLOCK_NBYTES, MAX_CELL_NBYTES, View, format_cell_html
from mhnb.view.words import Places
from tests.view.samples import StrictPage, cell, failed, out, shown, value

PLACES = Places({rank: f"host{rank}" for rank in range(64)}, {rank: f"rank{rank}.log" for rank in range(64)})
LINES = "one\ntwo\n"

RESULTS = {
    "agree": cell(*[[out("said 0 1 2\n")]] * 3),
    "lines": cell(*[[out(f"{LINES}said {rank}\n")] for rank in range(3)]),
    "rows": cell(*[[out(f"said {rank}\n")] for rank in range(3)]),
    "error": cell([out("said 0")], failed(1, said=[out("said 1")]), [out("said 2")]),
    "two errors": cell(failed(0, "KeyError", said=[out("said 0")]), failed(1, said=[out("said 1")]), [out("said 2")]),
    "rich": cell(*[[shown(text__html=f"<p>said {rank}</p>", text__plain="no")] for rank in range(3)]),
    "many": cell(*[[out(f"{LINES}said {rank}\n")] for rank in range(40)]),
}


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_every_ranks_text_survives_a_strict_page(result: CellResult, view: View) -> None:
    """Without style, script and input elements all that the ranks said is still there, in well-formed markup."""
    page = StrictPage(format_cell_html(result, view=view, uid="mhnb-1", places=PLACES))
    assert not page.unclosed
    for rank in result:
        assert re.search(rf"said[ 0-9]* {rank.rank}(?!\d)", page.text)


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_markup_is_what_a_notebook_keeps(result: CellResult, view: View) -> None:
    """No headings (they would enter the table of contents), scripts, inputs or ids; no var() in an inline style."""
    for tag, attributes in StrictPage(format_cell_html(result, view=view, uid="mhnb-1", places=PLACES)).tags:
        assert tag not in ("h1", "h2", "h3", "h4", "h5", "h6", "script", "input", "svg", "label")
        assert not {"id", "role"} & set(attributes)
        assert "var(" not in (attributes.get("style") or "")
        assert tag != "pre" or "font-family:monospace" in (attributes.get("style") or "")


def test_agreement_is_one_block_without_a_fold() -> None:
    """Quiet when all is well."""
    page = StrictPage(format_cell_html(RESULTS["agree"]))
    assert "details" not in [tag for tag, _ in page.tags]
    assert page.visible == "ranks 0-2 · 0.21 ssaid 0 1 2"


def test_the_odd_one_out_is_seen_without_a_click() -> None:
    """Among many blocks the odd ones and the majority are open; the rest is closed, not gone."""
    odd = [[out(f"{LINES}odd {rank}\n")] for rank in range(12)]
    page = StrictPage(format_cell_html(cell(*odd, *[[out(f"{LINES}same\n")]] * 20)))
    assert "odd 0" in page.visible
    assert "same" in page.visible
    assert "odd 11" not in page.visible
    assert "odd 11" in page.text


def test_a_line_each_stands_beside_its_rank() -> None:
    """One line a rank needs no fold."""
    page = StrictPage(format_cell_html(RESULTS["rows"], places=PLACES))
    assert "details" not in [tag for tag, _ in page.tags]
    assert "rank 1 host1said 1" in page.visible


def test_a_host_has_a_colour_and_a_name() -> None:
    """The colour is never the only cue."""
    html = format_cell_html(RESULTS["rows"], places=PLACES)
    assert len(set(re.findall(r"border-left:3px solid (#\w+)", html))) == 3
    assert all(f"host{rank}" in html for rank in range(3))


def test_the_failure_is_on_top_and_its_traceback_folds() -> None:
    """Heading, line and message are seen; frames of JAX wait for a click, and none is lost."""
    page = StrictPage(format_cell_html(RESULTS["error"], places=PLACES))
    assert page.visible.startswith("ValueError on rank 1 · ranks 0,2 finishedcell 12, line 3:   x = x.reshape(7, -1)")
    assert "core.py" not in page.visible
    assert "core.py:7" in page.text


def test_equal_tracebacks_are_shown_once() -> None:
    """Four ranks, one traceback."""
    assert format_cell_html(cell(*map(failed, range(4)))).count("… 3 frames inside jax") == 1


def test_tabs_share_a_name_and_only_the_first_is_open() -> None:
    """The name makes them exclusive; it is the caller's, unique in the notebook."""
    page = StrictPage(format_cell_html(RESULTS["lines"], view="tabs", uid="mhnb-7"))
    tabs = [attributes for tag, attributes in page.tags if tag == "details"]
    assert [tab["name"] for tab in tabs] == ["mhnb-7"] * 3
    assert ["open" in tab for tab in tabs] == [True, False, False]


def test_a_tab_that_differs_is_marked() -> None:
    """The odd one is found without opening each tab."""
    html = format_cell_html(cell([out("a")], [out("b")], [out("a")]), view="tabs")
    assert re.findall(r"<b>(rank \d)</b>( ≠)?", html) == [("rank 0", ""), ("rank 1", " ≠"), ("rank 2", "")]


def test_what_is_stored_is_bounded() -> None:
    """A block, and all blocks together, stay below their limits; the log file is named."""
    page = "x" * 79 + "\n"
    one = format_cell_html(cell([out(page * 10000)]), places=PLACES)
    assert len(one) < 1.1 * MAX_BLOCK_NBYTES
    assert "all of it is in rank0.log" in one
    many = format_cell_html(cell(*[[out(f"{rank}\n{page * 10000}")] for rank in range(64)]))
    assert len(many) < 1.1 * MAX_CELL_NBYTES


def test_text_cannot_become_markup() -> None:
    """Names, messages and notes are escaped too."""
    result = cell(failed(0, "<b>Odd</b>", hint="<i>"), [out("<script>alert(1)</script>")], notes=("a <u> note",))
    html = format_cell_html(result, places=Places({0: "<h1>", 1: "<h1>"}))
    tags = {tag for tag, _ in StrictPage(html).tags}
    assert not tags & {"script", "i", "u", "h1"}


def test_silence_is_empty_but_for_a_badge() -> None:
    """Nothing to say, unless it must be told where the cell ran."""
    assert format_cell_html(cell([], [])) == ""
    assert "mhjax · ranks 0-1" in format_cell_html(cell([], []), badge=True)


def test_a_lost_rank_is_named_without_a_traceback() -> None:
    """The notes have the story."""
    page = StrictPage(format_cell_html(cell([value("1")], RankResult(1, "died"), notes=("rank 1 was killed.",))))
    assert page.visible.startswith("died on rank 1 · rank 0 finished")
    assert page.visible.endswith("rank 1 was killed.")
