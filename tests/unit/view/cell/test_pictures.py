"""Figures and tables of the ranks: side by side, as wide as they need, opened to their own size by a click, never cut."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import format_cell_html, format_rank_body
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import RankLocations
from tests.support.view_samples import PICTURE_SAMPLES, StrictPage, cell, drawn_table, failed, figure, frame, out, shown

PLOTLY = "application/vnd.plotly.v1+json"


def _above_figures(result: CellResult) -> StrictPage:
    """Return what stands above the figures that are drawn below."""
    return StrictPage(format_cell_html(result, cell_summary=replace(summarise_cell(result), figures_are_below=True)))


def _plotly(kind: str = "bar") -> dict[str, object]:
    return {
        "output_type": "display_data",
        "data": {PLOTLY: {"data": [{"type": kind}]}, "text/plain": "a figure"},
        "metadata": {},
    }


@pytest.mark.parametrize("name", PICTURE_SAMPLES)
def test_markup_is_closed_and_each_figure_is_stored_once(name: str) -> None:
    """No element stays open, and no figure is stored twice, in any view."""
    for view in ("fold", "tabs", "grid"):
        html = format_cell_html(PICTURE_SAMPLES[name], view=view, uid="mhnb-1")
        assert not StrictPage(html).unclosed
        sources = re.findall(r'src="([^"]*)"', html)
        assert len(set(sources)) == len(sources)


def test_figures_are_a_strip_with_ranks_above() -> None:
    """Figures that differ are in one line that wraps, each below its ranks and with a description; nothing repeats them."""
    html = format_cell_html(cell(*[[figure(rank % 2)] for rank in range(4)]))
    assert html.count("flex-wrap:wrap") == 1
    page = StrictPage(html)
    assert page.visible == "ranks 0-3 · 0.21 s · figures differ by rankranks 0,2ranks 1,3"
    assert [dict(a)["alt"] for tag, a in page.tags if tag == "img"] == ["figure of ranks 0,2", "figure of ranks 1,3"]
    assert "word for word" not in page.text


def test_long_lists_of_ranks_are_shortened_above_figures() -> None:
    """Above a figure of many ranks stand their number and a few of them; the tooltip has all."""
    html = format_cell_html(cell(*[[figure(rank % 3)] for rank in range(64)]))
    assert "22 ranks 0,3,6,9…63" in StrictPage(html).visible
    assert f'title="ranks {",".join(map(str, range(0, 64, 3)))}"' in html


def test_grid_has_one_cell_for_ranks_with_the_same_output() -> None:
    """Of 64 ranks with three figures a grid has three cells, also if one of the ranks has failed."""
    said = [[figure(rank % 3)] for rank in range(64)]
    html = format_cell_html(cell(*said), view="grid")
    assert html.count('class="mhnb-block"') == html.count("<img") == 3
    assert "the same as" not in html
    html = format_cell_html(cell(failed(0, said=said[0]), *said[1:]), view="grid")
    visible = StrictPage(html).visible
    assert visible.index("rank 0 ✗") < visible.index("21 ranks 1,4,7,10…61")


def test_of_many_tables_the_first_ones_are_seen() -> None:
    """A strip of tables shows eight, the outlier first, and has the others in a fold; a strip of figures shows all."""
    table = [[shown(text__html=f"<table><tr><td>only on {rank}</td></tr></table>")] for rank in range(12)]
    page = StrictPage(format_cell_html(cell(*table)))
    assert page.visible.count("only on") == 8
    assert page.visible.endswith("ranks 8-11: 4 more displays")
    assert page.text.count("only on") == 12
    figures = format_cell_html(cell(*[[figure(rank)] for rank in range(12)]))
    assert "more displays" not in figures
    assert figures.count("<img") == 12


def test_figure_that_differs_is_in_the_strip_and_marked() -> None:
    """Where one rank's figure differs it stands first, marked, beside the others', with hosts where they are known."""
    html = format_cell_html(PICTURE_SAMPLES["a figure that differs"], locations=RankLocations({2: "host1"}))
    assert StrictPage(html).visible == "ranks 0-3 · 0.21 s · rank 2 differsrank 2 host1 ≠ranks 0-1,3"
    assert html.count("mhnb-outlier") == 1
    assert html.count("flex-wrap:wrap") == 1


@pytest.mark.parametrize(("width", "opens"), [(540, False), (1800, True)])
def test_single_figure_opens_only_if_it_is_wide(width: int, opens: bool) -> None:  # noqa: FBT001
    """A figure that fits is an image as ever; a wide one opens to its own size."""
    assert ("<details" in format_cell_html(cell(*[[figure(width=width)]] * 2))) == opens


def test_small_figure_of_a_strip_has_nothing_to_open() -> None:
    """A figure that is drawn in its own size anyway does not open, also if only its metadata says how large it is drawn."""
    small = cell(*[[figure(rank, width=200)] for rank in range(2)])
    asked = cell(*[[{**figure(rank), "metadata": {"image/png": {"width": 200}}}] for rank in range(2)])
    assert "<details" not in format_cell_html(small) + format_cell_html(asked)
    assert "<details" in format_cell_html(cell(*[[figure(rank)] for rank in range(2)]))


@pytest.mark.parametrize("content", ["", "A", "iVBORw0KGgo=", "iVBORw0KGgoA", "é" * 40, "\n" * 100])
def test_malformed_image_is_accepted(content: str) -> None:
    """A rank may send anything as an image; it is stored as it is."""
    assert "<img" in format_cell_html(cell([shown(image__png=content)], [shown(image__png=content + "AAAA" * 400)]))


def test_grid_is_sized_by_its_content() -> None:
    """Cards of figures and tables are as wide as these; cards of text stay in columns, because their lines wrap."""
    text = format_cell_html(cell([out("a")], [out("b")]), view="grid")
    assert "grid-template-columns" in text
    for outputs in ([figure(1)], [frame(1)], [drawn_table()]):
        html = format_cell_html(cell(outputs, [out("b")]), view="grid")
        assert "grid-template-columns" not in html
        assert "flex-wrap:wrap" in html


def test_drawn_table_is_not_wrapped() -> None:
    """The lines of a table scroll, by keyboard too; the text around them is wrapped as before, and none is lost."""
    html = format_cell_html(PICTURE_SAMPLES["a wide drawn table"])
    (before, table) = re.findall(r"<pre[^>]*>.*?</pre>", html, flags=re.DOTALL)
    assert "white-space:pre-wrap" in before
    assert "prose" in before
    assert "tabindex" not in before
    assert "white-space:pre;" in table
    assert 'tabindex="0" role="group" aria-label="wide text"' in table
    assert table.count("\n") == 4


def test_narrow_drawn_table_takes_no_focus() -> None:
    """A table that fits everywhere is no stop for the keyboard."""
    assert "tabindex=" not in format_cell_html(cell(*[[drawn_table()]] * 2))


@pytest.mark.parametrize("said", ["a\n\n{}\n\nb\n", "{}", "\n\n{}\n{}\n\n\n", "a\n{}b\n\n\n{}"])
def test_blank_lines_around_a_table_are_kept(said: str) -> None:
    """A reader sees the same lines as in the text: a parser drops the first line end of each block."""
    text = said.replace("{}", drawn_table()["text"])
    html = format_rank_body(cell([out(text)]).ranks[0], RankLocations())
    assert not re.search(r"\n[ \t]*\n", html)
    seen = [_visible(block) for block in re.findall(r"<pre[^>]*>(.*?)</pre>", html, flags=re.DOTALL)]
    assert [line for block in seen for line in block] == _visible(text.removesuffix("\n"))


def _visible(html: str) -> list[str]:
    """Return the lines of a `<pre>` with this content, as browsers show them."""
    text = html.replace("&#10;", "\n")
    return text.removeprefix("\n").removesuffix("\n").split("\n") if text not in ("", "\n") else []


def test_colour_across_a_table_is_kept() -> None:
    """Where a colour begins above a table and ends below it, no line is wrapped and no element is cut."""
    html = format_cell_html(cell([out(f"\x1b[31mred\n{drawn_table()['text']}still\x1b[0m plain\n")]))
    assert not StrictPage(html).unclosed
    assert html.count("<pre") == 1
    assert "white-space:pre;" in html


def test_table_that_differs_is_complete_and_marked() -> None:
    """The differing rank's table is shown with all its lines, the other's line before its own, in text and as HTML."""
    result = PICTURE_SAMPLES["a drawn table that differs"]
    assert format_cell_text(result).splitlines()[1:8] == [
        "rank 2      │   ┏━━━━━━┳━━━━━━━━┳━━━━━━━━┓",
        "            │   ┃ loss ┃ step 0 ┃ step 1 ┃",
        "            │   ┡━━━━━━╇━━━━━━━━╇━━━━━━━━┩",
        "            │ - │ all  │  0.50  │  1.50  │   ← elsewhere",
        "            │ + │ all  │  0.75  │  1.75  │",
        "            │   └──────┴────────┴────────┘",
        "ranks 0-1,3 │ ┏━━━━━━┳━━━━━━━━┳━━━━━━━━┓",
    ]
    folded = format_cell_html(result).partition("each rank word for word")[0]
    assert "‹a›" not in folded
    assert folded.count("white-space:pre;") == 2


def test_wide_row_of_a_table_is_not_shortened() -> None:
    """A line of a table that differs is complete, however long it is."""
    said = [[drawn_table(0.75 if rank == 2 else 0.5, columns=30)] for rank in range(4)]
    lines = format_cell_text(cell(*said)).splitlines()
    (row,) = (line for line in drawn_table(0.75, columns=30)["text"].splitlines() if "0.75" in line)
    assert f"            │ + {row}" in lines
    assert not any(" … " in line for line in lines)


def test_figure_that_is_drawn_below_has_no_line_of_its_own() -> None:
    """Where the figure follows with its ranks nothing stands for it, neither alone nor below text; the text form has its line."""
    alone, after_text = cell([_plotly()], [_plotly()]), cell(*[[out("drawn\n"), _plotly()]] * 2)
    assert _above_figures(alone).visible == "ranks 0-1 · 0.21 s"
    assert _above_figures(after_text).visible == "ranks 0-1 · 0.21 sdrawn"
    assert "a plotly figure: bar · drawn below its cell" in StrictPage(format_cell_html(alone)).visible
    assert "a figure" in format_cell_text(alone)


def test_figures_that_differ_below_are_no_blocks() -> None:
    """Different figures of different ranks leave the line that says so; a rank with only a figure keeps its line beside text."""
    differ = cell([_plotly("bar")], [_plotly("pie")], [_plotly("bar")])
    assert _above_figures(differ).text == "ranks 0-2 · 0.21 s · rank 1 differs"
    mixed = _above_figures(cell([out("a\n")], [_plotly()])).visible
    assert "rank 1a plotly figure: bar · drawn below its cell" in mixed
