"""Terminal colours as HTML."""

from __future__ import annotations

import pytest

from mhnb.view.ansi import ansi_to_html, strip_ansi


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a<b & c", "a&lt;b &amp; c"),
        ("\x1b[31mred\x1b[39m.", '<span class="ansi-red-fg">red</span>.'),
        ("\x1b[1;32mok\x1b[0m", '<span class="ansi-green-intense-fg" style="font-weight:bold">ok</span>'),
        ("\x1b[31m<b>", '<span class="ansi-red-fg">&lt;b&gt;</span>'),
        ("\x1b[94mblue", '<span class="ansi-blue-intense-fg">blue</span>'),
        ("\x1b[30;43mmark\x1b[39;49m", '<span class="ansi-black-fg ansi-yellow-bg">mark</span>'),
        ("\x1b[38;5;208mx\x1b[0m", '<span style="color:rgb(255,135,0)">x</span>'),
        ("\x1b[38;5;244mx", '<span style="color:rgb(128,128,128)">x</span>'),
        ("\x1b[48;2;1;2;3mx", '<span style="background-color:rgb(1,2,3)">x</span>'),
        ("\x1b[7mx\x1b[27my", '<span class="ansi-default-inverse-fg ansi-default-inverse-bg">x</span>y'),
        ("\x1b[2K\x1b[1Aup", "up"),
        ("\x1b]8;;http://a\x07link\x1b]8;;\x07", "link"),
        ("\x1b[38;5mx", "x"),
        ("cut \x1b[3", "cut "),
        (
            "\x1b[30;43mf\x1b[39;49m\x1b[30;43m(\x1b[39;49m\x1b[31m)",
            '<span class="ansi-black-fg ansi-yellow-bg">f(</span><span class="ansi-red-fg">)</span>',
        ),
    ],
)
def test_colours_become_front_end_classes(text: str, html: str) -> None:
    """Each colour is a class or an inline style, other sequences are removed, and text is escaped."""
    assert ansi_to_html(text) == html


def test_stripped_text_has_no_escape() -> None:
    """Stripping keeps only the text."""
    assert strip_ansi("\x1b[1;31mred\x1b[0m \x1b[38;5;28;01mfor\x1b[39;00m") == "red for"
