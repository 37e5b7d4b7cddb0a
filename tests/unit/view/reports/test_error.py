"""The card of an error."""

from __future__ import annotations

import re

import pytest

from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.error import build_error, summarize_error
from tests.support.view_samples import StrictPage

NOT_CLEAN = (
    "NotClean: this cell was not run, because `x` differs\n  Fix: %mhjax restart --replay (restores the variables)\n"
    "  Or: ask, then %mhjax accept\n  Help: %mhjax help not-clean"
)


def _code_of(text: str) -> list[str]:
    """Return the words of a card that look like code."""
    name = text.partition(":")[0]
    return re.findall(r"<code[^>]*>(.*?)</code>", print_html(build_error(name, text)))


def test_name_and_labels_are_bold() -> None:
    """The name is red, each step has a line with its label, and the words are those of the text."""
    html = print_html(build_error("NotClean", NOT_CLEAN))
    assert '<div class="mhnb-bad"><b class="mhnb-title">✗ NotClean</b></div>' in html
    assert re.findall(r"<b>(\w+:)</b>", html) == ["Fix:", "Or:", "Help:"]
    said = NOT_CLEAN.replace("NotClean: ", "✗ NotClean").replace("`", "")
    assert StrictPage(html).text.split("✗")[1] == re.sub(r"\n *", "", said).split("✗")[1]


def test_text_form_is_the_whole_text() -> None:
    """The text of the card is what a terminal prints."""
    assert print_text(build_error("NotClean", NOT_CLEAN)) == NOT_CLEAN


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (NOT_CLEAN, ["x", "%mhjax restart --replay", "%mhjax accept", "%mhjax help not-clean"]),
        ("UsageError: %%mhjax x = 3: flags only", ["%%mhjax x = 3"]),
        ("UsageError: no\n  Help: %%mhjax?", ["%%mhjax?"]),
        ("UsageError: use it in a %%mhjax cell, or with %mhjax pull x", ["%%mhjax", "%mhjax pull"]),
        ("E: no\n  Fix: %mhjax stop a, then run it again\n  Or: mhnb stop a", ["%mhjax stop a", "mhnb stop a"]),
        ("E: no\n  Fix: mhnb.log(1, x=2)", []),
    ],
)
def test_commands_look_like_code(text: str, code: list[str]) -> None:
    """Commands, and words between backquotes, are code; the words around them are not."""
    assert _code_of(text) == code


def test_cell_to_write_is_a_block_of_code() -> None:
    """The lines of a cell that the message shows are below each other."""
    html = print_html(build_error("UsageError", "UsageError: put it below:\n%%mhjax\nx  = 3"))
    assert re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL) == ["%%mhjax\nx  = 3"]


def test_drawn_lines_stay_aligned() -> None:
    """Lines whose blanks matter are one block, below the first line and above the steps."""
    html = print_html(build_error("E", "E: launch 3 differs\n  rank 0    jit(f)\n  ranks 1-3 jit(g)\n  Fix: sort"))
    assert re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL) == ["  rank 0    jit(f)\n  ranks 1-3 jit(g)"]
    assert html.index("</pre>") < html.index("<b>Fix:</b>")


def test_steps_of_a_long_message_are_seen() -> None:
    """The end of a long body is folded, and the steps below it are not; no word is lost."""
    body = "\n".join(f"    line {n}" for n in range(40))
    page = StrictPage(print_html(build_error("E", f"E: no\n{body}\n  Fix: wait")))
    assert "24 more lines" in page.visible
    assert "line 39" not in page.visible
    assert "Fix: wait" in page.visible
    assert "line 39" in page.text


@pytest.mark.parametrize(("first", "end"), [("word " * 40, "word …"), ("no /" + "a" * 99, "aa …"), ("below:", "below")])
def test_summary_is_one_short_line(first: str, end: str) -> None:
    """A long first line is cut at a word, or inside a long one; a colon at its end is left out."""
    short = summarize_error(f"{first}\nFix: this")
    assert len(short) <= 72
    assert short.endswith(end)
