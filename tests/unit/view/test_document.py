"""A document as text and as HTML: each part in both forms, what only one form has, and text of users."""

from __future__ import annotations

from html import escape
from typing import get_args

import pytest

from mhnb.view import print_html as print_html_module
from mhnb.view import print_text as print_text_module
from mhnb.view.document import (
    Card,
    CardTone,
    Cell,
    Code,
    Columns,
    Document,
    Drawing,
    Drawn,
    FieldLook,
    Fields,
    Fold,
    Frame,
    Group,
    HeadedRows,
    InHtml,
    InText,
    Line,
    Part,
    Problem,
    Progress,
    Section,
    SortableTable,
    Span,
    Table,
    Tiles,
    Tone,
    without_empty_columns,
)
from mhnb.view.html import CHANGED_STYLE
from mhnb.view.print_html import KEY_SCRIPT, SORT_SCRIPT, print_html, print_parts
from mhnb.view.print_text import print_text

EVIL = "<script>alert('&')</script>"
ROWS = Table(["rank", "host"], [["0", "host0"], ["10", "host1"]])
CELL = "padding:1px 10px 1px 0"
TOP = f"vertical-align:baseline;{CELL}"
PLACE = "text-align:left;vertical-align:top;border:0;background:none;padding:0 1em 0 0"
COLUMN = "margin:0 24px 6px 0;min-width:0;max-width:100%"
SORT = f'onclick="{escape(SORT_SCRIPT)}" onkeydown="{escape(KEY_SCRIPT)}"'
TILE = "padding-left:8px;min-width:1em;font-variant-numeric:tabular-nums;margin-right:14px;display:inline-block"
WRAPPED = "white-space:pre-wrap;overflow-wrap:anywhere"
FIELD = "text-align:left;vertical-align:baseline;border:0;background:none;padding:1px 1em 1px 0"

FORMS: dict[str, tuple[Document, str, str]] = {
    "a line": ([Line("two words")], "two words", "<div>two words</div>"),
    "an empty line": ([Line("")], "", "<div></div>"),
    "lines": ([Line("a"), Line("b", indent=1)], "a\n  b", '<div>a</div><div style="padding-left:1.5em">b</div>'),
    "code": (
        [Code("x = 1\n\nif x:\n    y", indent=4)],
        "    x = 1\n    \n    if x:\n        y",
        (
            '<div class="jp-RenderedText" style="padding:0"><pre style="font-family:monospace;margin:0;white-space:pre-wrap;'
            'word-break:normal;overflow-wrap:anywhere">x = 1\n&#10;if x:\n    y</pre></div>'
        ),
    ),
    "a table": (
        [ROWS],
        "rank  host\n   0  host0\n  10  host1",
        (
            '<div tabindex="0" style="overflow-x:auto"><table class="mhnb-table" style="border-collapse:collapse;margin:2px 0">'
            f'<tr><th scope="col" style="text-align:right;{CELL}">rank</th><th scope="col" style="text-align:left;{CELL}">host</th></tr>'
            f'<tr><td style="text-align:right;{CELL}">0</td><td style="text-align:left;{CELL};white-space:nowrap">host0</td></tr>'
            f'<tr><td style="text-align:right;{CELL};white-space:nowrap">10</td><td style="text-align:left;{CELL}">host1</td></tr>'
            "</table></div>"
        ),
    ),
    "a fold": (
        [Fold("2 more", [Line("a")], is_open=True)],
        "a",
        '<details open><summary style="cursor:pointer;opacity:.65">2 more</summary><div>a</div></details>',
    ),
    "a fold below a line": (
        [Fold(Line("all", "heading"), [Line("a")])],
        "all\na",
        '<details><summary style="cursor:pointer"><b class="mhnb-title">all</b></summary><div>a</div></details>',
    ),
    "a fold that is easy to hit": (
        [Fold(Line("all"), [Line("a")], is_high=True)],
        "all\na",
        '<details><summary style="cursor:pointer;padding:3px 0">all</summary><div>a</div></details>',
    ),
    "a line with a bar": (
        [Line("a", color="#0072b2")],
        "a",
        '<div style="border-left:3px solid #0072b2;padding-left:8px">a</div>',
    ),
    "progress": ([Progress("at work", 3, 8)], "at work", '<div>at work <progress max="8" value="3"></progress></div>'),
    "a share": ([Progress("half", 0.5, 1)], "half", '<div>half <progress max="1" value="0.500"></progress></div>'),
    "tiles": (
        [Tiles(["ab", "c"], ["red", "blue"])],
        "ab   c",
        (
            f'<div><div style="border-left:3px solid red;{TILE}">ab</div> '
            f'<div style="border-left:3px solid blue;{TILE}">c</div> </div>'
        ),
    ),
    "a group": ([Group([Line("a"), Line("b", indent=1)])], "  a\n    b", print_parts([Line("a"), Line("b", indent=1)])),
    "a heading with words beside it": (
        [Line("a", "heading", beside=[Span("b", gap=2), Span("c", is_quiet=True)])],
        "a  b c",
        '<div><b class="mhnb-title">a</b> b <span style="opacity:.65">c</span></div>',
    ),
    "a line of several": ([Line("a\n\nb")], "a\n\nb", "<div>a<br><br>b</div>"),
    "a tick": (
        [Line("a", "heading", sign="✓")],
        "✓ a",
        '<div><b class="mhnb-title"><span class="mhnb-right">✓</span> a</b></div>',
    ),
    "another sign": (
        [Line("", sign="≠", beside=[Span("a", is_strong=True)])],
        "≠ a",
        '<div><span style="padding-right:.3em">≠</span> <b>a</b></div>',
    ),
    "a line with code": (
        [Line("a", beside=[Span("f(x)", is_code=True), Span(", b", gap=0)])],
        "a f(x), b",
        f'<div>a <code style="{WRAPPED}">f(x)</code>, b</div>',
    ),
    "a link": (
        [Line("a", beside=[Span("b", link='#"')])],
        "a b",
        '<div>a <a href="#&quot;" style="color:inherit;text-decoration:underline">b</a></div>',
    ),
    "fields": (
        [Fields([("a", "1\n2", Span("b")), ("cd", "3", Span("e"))], ["", "n", "x"])],
        "    n    x\na   1\n2  b\ncd  3    e",
        (
            '<table class="mhnb-table" style="border-collapse:collapse;border:0;margin:3px 0"><tr style="background:none">'
            f'<td style="{FIELD}"></td><th scope="col" style="{FIELD}">n</th>'
            f'<th scope="col" style="{FIELD}">x</th></tr><tr style="background:none">'
            f'<th scope="row" style="{FIELD};opacity:.65;white-space:nowrap">a</th>'
            f'<td style="{FIELD};font-family:monospace;{WRAPPED}">1<br>2</td><td style="{FIELD}">b</td></tr>'
            f'<tr style="background:none"><th scope="row" style="{FIELD};opacity:.65;white-space:nowrap">cd</th>'
            f'<td style="{FIELD};font-family:monospace;{WRAPPED}">3</td><td style="{FIELD}">e</td></tr></table>'
        ),
    ),
    "a card": (
        [Card("right", [Line("a")], "b\nc")],
        "b\nc",
        (
            '<div class="mhnb-bar" style="border-left:3px solid #009e73;padding:3px 10px;margin:2px 0 4px;overflow-wrap:anywhere">'
            "<div>a</div></div>"
        ),
    ),
    "a table with a detail": (
        [Table(["", "n"], [[Cell("a", detail="why", is_open=True), Cell("1", is_strong=True)]], frozenset([1]))],
        "   n\na  1",
        (
            '<div tabindex="0" style="overflow-x:auto"><table class="mhnb-table" style="border-collapse:collapse;margin:2px 0">'
            f'<tr><td style="text-align:left;{TOP}"></td><th scope="col" style="text-align:right;{TOP};white-space:nowrap">n</th></tr>'
            f'<tr><td style="text-align:left;{TOP}"><details open><summary>a</summary>why</details></td>'
            f'<td style="text-align:right;{TOP};white-space:nowrap"><b>1</b></td></tr></table></div>'
        ),
    ),
    "rows below headings": (
        [HeadedRows([("waiting", ["a", "b"]), ("missing", ["c"])], ["end", "two words"], bad_heading="missing")],
        "waiting · a\n        · b\nmissing · c\nend · two words",
        (
            '<table class="mhnb-table" style="border-collapse:collapse;border:0;margin:0">'
            f'<tr style="background:none"><th scope="rowgroup" rowspan="2" style="{PLACE};white-space:nowrap">waiting</th>'
            f'<td style="{PLACE};{WRAPPED}">a</td></tr><tr style="background:none"><td style="{PLACE};{WRAPPED}">b</td></tr>'
            f'<tr class="mhnb-bad" style="background:none"><th scope="rowgroup" rowspan="1" style="{PLACE};white-space:nowrap">'
            f'missing</th><td style="{PLACE};{WRAPPED}">c</td></tr><tr style="background:none"><td colspan="2" style="{PLACE}">'
            'end · <span style="white-space:nowrap">two words</span></td></tr></table>'
        ),
    ),
    "a frame": (
        [Frame([Line("a")], is_alarm=True)],
        "a",
        (
            '<div class="mhnb-hang mhnb-bar" style="border-left:3px solid #e69f00;margin:3px 0;padding-left:8px;font-family:monospace">'
            "<div>a</div></div>"
        ),
    ),
    "a table to sort": (
        [SortableTable(["n", ""], [["1", "a"]], [[1, None]], frozenset([(0, 0)]))],
        "",
        (
            '<div tabindex="0" style="overflow-x:auto"><table class="mhnb-table" style="border-collapse:collapse"><thead><tr>'
            f'<th scope="col" style="text-align:right;{CELL}"><span role="button" tabindex="0" {SORT} title="sort">n</span></th>'
            f'<td></td></tr></thead><tbody><tr><td style="text-align:right;{CELL};'
            f'white-space:nowrap;{CHANGED_STYLE}" data-v="1">1</td>'
            f'<td style="text-align:left;{CELL};white-space:nowrap">a</td></tr></tbody>'
            "</table></div>"
        ),
    ),
    "columns": (
        [Columns([[Line("a")], [Line("b")]])],
        "a\nb",
        (
            f'<div style="display:flex;flex-wrap:wrap"><div style="{COLUMN}">{print_html([Line("a")])}</div>'
            f'<div style="{COLUMN}">{print_html([Line("b")])}</div></div>'
        ),
    ),
    "a problem": (
        [Problem("x", "too small", "JAX", "no")],
        "✗ x: too small\n  JAX: … no",
        (
            '<div style="margin:3px 0"><div class="mhnb-bad">✗ <b>x</b>: too small</div>'
            '<div style="opacity:.65">JAX: … no</div></div>'
        ),
    ),
    "a section": ([Section([Line("a")])], "a", print_html([Line("a")])),
    "a drawing": ([Drawing("<svg/>")], "", "<svg/>"),
    "text only": ([InText([Line("a")])], "a", ""),
    "drawn": ([Drawn(lambda: [Line("a"), Drawing("<svg/>")])], "", "<div>a</div><svg/>"),
    "HTML only": ([InHtml([Line("a")])], "", "<div>a</div>"),
}


@pytest.mark.parametrize("name", FORMS)
def test_part_has_two_forms(name: str) -> None:
    """Each part is printed as text and as HTML."""
    document, text, html = FORMS[name]
    assert (print_text(document), print_parts(document)) == (text, html)


TONES: dict[Tone, tuple[str, str]] = {
    "heading": ("a", '<div><b class="mhnb-title">a</b></div>'),
    "bad heading": ("a", '<div class="mhnb-bad"><b class="mhnb-title">a</b></div>'),
    "bad": ("a", '<div class="mhnb-bad">a</div>'),
    "quiet": ("a", '<div style="opacity:.65">a</div>'),
    "caption": ("a:", '<div style="opacity:.65">a</div>'),
    "advice": ("  a", '<div style="opacity:.65;padding-left:1em;white-space:pre-wrap">a</div>'),
    "code": ("a", f'<div style="font-family:monospace;{WRAPPED}">a</div>'),
    "below a card": ("a", '<div style="padding:2px 0 2px 14px">a</div>'),
}


@pytest.mark.parametrize("tone", TONES)
def test_line_has_a_tone(tone: Tone) -> None:
    """The tone of a line is seen in HTML, and that of some also in text."""
    document = [Line("a", tone)]
    assert (print_text(document), print_parts(document)) == TONES[tone]


@pytest.mark.parametrize(
    ("look", "style"),
    [
        ("word", ";opacity:.65"),
        ("words", ";opacity:.65;white-space:nowrap"),
        ("code", ";font-family:monospace;white-space:nowrap"),
        ("title", ""),
    ],
)
def test_fields_have_a_look(look: FieldLook, style: str) -> None:
    """Labels have the style of their look. Beside titles values do not wrap, and the table scrolls."""
    html = print_parts([Fields([("a", "1")], look=look)])
    assert f'<th scope="row" style="{FIELD}{style}">a</th>' in html
    assert (f'<td style="{FIELD};white-space:nowrap">' in html) == html.startswith("<div tabindex") == (look == "title")


@pytest.mark.parametrize(
    ("tone", "style"),
    [
        ("right", "#009e73;p"),
        ("open", "#8c8c8c;p"),
        ("failed", "#dd4a3d;p"),
        ("not yet", "#e69f00;background-color:rgba("),
    ],
)
def test_card_has_a_tone(tone: CardTone, style: str) -> None:
    """The line beside a card has the color of its tone; one that is not right yet has a tint as well."""
    assert f'style="border-left:3px solid {style}' in print_parts([Card(tone, [], "")])


@pytest.mark.parametrize(
    "part",
    [
        Line(EVIL),
        Problem(EVIL, EVIL, EVIL, EVIL),
        Line("", beside=[Span(EVIL)]),
        Fold(Line(EVIL), []),
        Progress(EVIL, 1, 2),
        Tiles([EVIL], ["red"]),
        Line(EVIL, "advice"),
        Table([EVIL], [[EVIL]]),
        Code(EVIL),
        SortableTable([EVIL], [[EVIL]], [[None]]),
        Fold(EVIL, [Line(EVIL)]),
        HeadedRows([(EVIL, [EVIL])], [EVIL, EVIL]),
        Table([""], [[Cell(EVIL, detail=EVIL)]], frozenset()),
        Fields([(EVIL, EVIL, Span(EVIL, link=EVIL))], [EVIL, "", ""]),
        Card("open", [Line(EVIL, "code")], EVIL),
    ],
)
def test_text_of_users_is_escaped(part: Part) -> None:
    """Names, messages and files of users are text wherever they stand, and the text form has them as they are."""
    assert "<script" not in print_html([part])
    assert "&lt;script&gt;" in print_html([part])
    assert EVIL in print_text([part]) or isinstance(part, SortableTable)


def test_every_part_is_printed_and_tested() -> None:
    """A new part has a function in each printer, and a row in this file."""
    shown = {type(part) for document, _, _ in FORMS.values() for part in document}
    assert set(get_args(Part)) == print_text_module._PRINTERS.keys() == print_html_module._PRINTERS.keys() == shown


def test_style_sheet_of_a_drawing_is_used() -> None:
    """That of a drawing in the HTML alone is in the style sheet of the view."""
    assert ".a{}</style>" in print_html([Line("a"), Drawn(lambda: [InHtml([Drawing("", ".a{}")])])])


def test_long_cells_may_wrap() -> None:
    """A long cell may break inside a word, its row is aligned at the top, and a header without text is no heading."""
    html = print_parts([Table(["name", ""], [["a", "x" * 33]])])
    assert "vertical-align:top;overflow-wrap:anywhere;min-width:8em" in html
    assert html.count("<th") == 1


def test_columns_without_a_value_are_left_out() -> None:
    """Only those that are optional."""
    assert without_empty_columns(["a", "b", "c"], [["1", "", ""], ["2", "", "3"]], ["b", "c"]) == Table(
        ["a", "c"], [["1", ""], ["2", "3"]]
    )
