"""Every report says the same as text and as HTML, what only one form has aside."""

from __future__ import annotations

import re
from html import unescape

import pytest

from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from tests.support.view_gallery import reports, sharding_views

OTHER_FORM = {
    # Bars of characters are a picture, or a bar, in HTML.
    "a start", "stragglers", "trace", "metrics of all cells",
    # Whole lines are in a table or in tiles, and the text is in a fold.
    "the summary of a start", "status", "memory", "plan", "layout", "layout by slices", "mesh", "resharding",
    # A table with a title in its header, which HTML has above it.
    "collectives", "no collective",
}  # fmt: skip


@pytest.mark.parametrize("name", (reports(4) | sharding_views(4)).keys())
def test_html_has_what_the_text_has(name: str) -> None:
    """Every word of the text is in the HTML, in the same order but for what has another form."""
    document = (reports(4) | sharding_views(4))[name]
    words = re.findall(r"\w+", print_text(document))
    said = re.findall(r"\w+", unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", print_html(document))))
    assert len(words) > 3
    if name in OTHER_FORM:
        assert set(words) - set(said) <= {"over"}, "a chart names its steps in other words"
    else:
        found = iter(said)
        assert [word for word in words if word not in found] == []
