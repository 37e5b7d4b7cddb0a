"""Text as a terminal would show it."""

from __future__ import annotations

import random

import pytest

from mhnb.core.output.terminal import TerminalText


def shown(*pieces: str) -> str:
    """What is shown after these pieces."""
    text = TerminalText()
    for piece in pieces:
        text.add(piece)
    return text.read()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ntext", "plain\ntext"),
        ("10 %\r20 %", "20 %"),
        ("long line\rX", "Xong line"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("abc\r", "abc"),
        ("ab\bc", "ac"),
        ("\b\bx", "x"),
        ("done 1\rdone 2\nnext\n", "done 2\nnext\n"),
        ("first\nabc\rX", "first\nXbc"),
        ("working\r\x1b[Kok", "ok"),
        ("working\x1b[2K\rok", "ok"),
        ("abcdef\r\x1b[1Kx", "xbcdef"),
    ],
)
def test_moves(text: str, expected: str) -> None:
    """Carriage returns and backspaces move the cursor, erasures erase, and what follows overwrites."""
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        ("\x1b[31mab\x1b[0m\rX", "X\x1b[31mb\x1b[0m"),
        ("ab\r\x1b[32mX\x1b[0m", "\x1b[32mX\x1b[0mb"),
        ("\x1b[1m\x1b[31ma\rb", "\x1b[1m\x1b[31mb"),
    ],
)
def test_colours(text: str, expected: str) -> None:
    """A colour stays with the characters it was written with."""
    assert shown(text) == expected


def test_pieces_do_not_matter() -> None:
    """However the text is cut into pieces, the same is shown."""
    chance = random.Random(7)  # noqa: S311
    for _ in range(300):
        text = "".join(chance.choices(["a", "bc", "\n", "\r", "\b", "\x1b[31m", "\x1b[0m", "\x1b[K", " "], k=30))
        while "\r\n" in text:
            text = text.replace("\r\n", "\n")
        tokens, rest = [], text
        while rest:
            size = (
                4 if rest.startswith("\x1b[0m") else 5 if rest.startswith("\x1b[31") else 3 if rest[0] == "\x1b" else 1
            )
            tokens.append(rest[:size])
            rest = rest[size:]
        assert shown(*tokens) == shown(text)


def test_cut_hands_over_the_unfinished_line() -> None:
    """After a cut the unfinished line can still be overwritten, and together the parts show the whole."""
    text = TerminalText()
    text.add("one\n50 %")
    rest = text.cut()
    rest.add("\r99 %")
    assert (text.read(), rest.read()) == ("one\n", "99 %")


def test_length_follows_the_text() -> None:
    """The length is what is shown, not what was ever written."""
    text = TerminalText()
    for percent in range(100):
        text.add(f"\r{percent:3} %")
    assert len(text) == 5


def test_colours_do_not_pile_up() -> None:
    """A progress line that sets its colour anew each time does not grow."""
    text = TerminalText()
    for step in range(50_000):
        text.add(f"\r\x1b[32m{step:5}\x1b[39m")
    assert "49999" in text.read()
    assert len(text.read()) < 40
