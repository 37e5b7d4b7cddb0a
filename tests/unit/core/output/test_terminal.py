"""Text as a terminal would show it."""

from __future__ import annotations

import random

import pytest

from mhnb.core.output.outputs import TerminalText


def render(*pieces: str) -> str:
    """Return what a terminal shows after these pieces."""
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
def test_cursor_moves_in_a_line(text: str, expected: str) -> None:
    """Carriage returns and backspaces move the cursor, erase sequences erase, and later text overwrites."""
    assert render(text) == expected


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
    assert render(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\nc\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2KA\nB\nC\n", "A\nB\nC\n"),
        ("line1\nline2\n\x1b[2A\x1b[JDONE1\nDONE2\n", "DONE1\nDONE2\n"),
        ("outer 0\n\rinner 50\x1b[A\router 1\n\rinner 99\x1b[A\n", "outer 1\ninner 99"),
        ("a\nb\nc\x1b[2Fx\x1b[Ey", "x\ny\nc"),
        ("abcd\x1b[3Dx\x1b[1Cy", "axcy"),
        ("abcdef\x1b[3Gx", "abxdef"),
        ("old\nframe\n\x1b[2J\x1b[Hnew", "new"),
        ("old\nframe\n\x1b[H\x1b[2J\x1b[3Jnew", "new"),
        ("a\nb\n\x1b[1;1HX", "X\nb"),
        ("one\x1b7 two\nmore\x1b8 TWO", "one TWO\nmore"),
        ("one\x1b[s two\nmore\x1b[u TWO", "one TWO\nmore"),
        ("abcdef\r\x1b[2X", "  cdef"),
        ("abcdef\r\x1b[2P", "cdef"),
        ("abcdef\r\x1b[2@", "  abcdef"),
        ("a\nb\x1b[Lx", "a\nx\nb"),
        ("a\nb\x1b[A\x1b[Mx", "x"),
        ("\x1b[?25lwork\x1b[?25h", "work"),
        ("\x1b]0;title\x07text\x1b]8;;http://a\x1b\\link", "textlink"),
        ("ab\tc\rX", "Xb      c"),
        ("漢字\x1b[3Gx", "漢x"),
        ("outer\n\rinner\x1b[A\n\r     \x1b[A\router\n", "outer\n"),
        ("10 %\r    \r", ""),
        ("\x1b[41m10 %\r    \r", "\x1b[41m    "),
        ("a\x1b[99999999999Cb", "a" + " " * 999 + "b"),
    ],
)
def test_cursor_moves_over_several_lines(text: str, expected: str) -> None:
    """Text drawn by moving the cursor ends as a terminal would show it."""
    assert render(text) == expected


def test_cursor_moves_up_at_most_one_screen() -> None:
    """Lines that have scrolled off the top stay unchanged, and the memory for the lines on the screen is limited."""
    lines = [f"line {at}" for at in range(1000)]
    changed = render("\n".join(lines), "\x1b[5000A\rX").splitlines()
    assert [at for at, line in enumerate(changed) if line != lines[at]] == [900]


def test_colour_ends_in_an_overwritten_line() -> None:
    """A colour that ends inside an overwritten line ends there."""
    assert render("\x1b[31mred\nab\rX\x1b[0m plain") == "\x1b[31mred\nX\x1b[0m plain"


@pytest.mark.parametrize(
    "text", ["a\r\nb\x1b[31mc\x1b[0m\r\n", "1\n2\n\x1b[2A\x1b[Jx\n", "\x1b]0;title\x1b\\a\x1b[?25lb"]
)
def test_a_sequence_may_come_in_pieces(text: str) -> None:
    """A sequence that is cut between two pieces is one sequence."""
    assert render(*text) == render(text)


def test_result_does_not_depend_on_pieces() -> None:
    """The result does not depend on how the text is cut into pieces."""
    rng = random.Random(7)  # noqa: S311
    parts = [
        "a",
        "bc",
        "\n",
        "\r",
        "\b",
        "\t",
        "\x1b[31m",
        "\x1b[0m",
        "\x1b[K",
        " ",
        "\x1b[A",
        "\x1b[2B",
        "\x1b[J",
        "\x1b7",
        "\x1b8",
    ]
    for _ in range(300):
        text = "".join(rng.choices(parts, k=30))
        ends = sorted(rng.sample(range(len(text)), 5))
        assert render(*(text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True))) == render(text)


def test_split_keeps_changeable_lines() -> None:
    """After a split the last lines can still be overwritten, and together the parts show the whole text."""
    text = TerminalText()
    text.add("".join(f"line {at}\n" for at in range(500)) + "50 %")
    rest = text.split()
    rest.add("\r99 %\x1b[A\rX")
    assert (text.read() + rest.read()).splitlines()[-3:] == ["line 498", "Xine 499", "99 %"]
    assert len(text) > 0


def test_length_follows_the_text() -> None:
    """The length is that of the displayed text, not of everything that was written."""
    text = TerminalText()
    for percent in range(100):
        text.add(f"\r{percent:3} %")
    assert len(text) == 5


def test_repeated_colours_do_not_accumulate() -> None:
    """A progress line that sets its colour each time does not grow."""
    text = TerminalText()
    for step in range(50_000):
        text.add(f"\r\x1b[32m{step:5}\x1b[39m")
    assert "49999" in text.read()
    assert len(text.read()) < 40


def test_new_colour_replaces_the_previous_one() -> None:
    """A line that sets another colour for each character stores one sequence per character, as a terminal does."""
    text = TerminalText()
    text.add("\r" + "".join(f"\x1b[38;5;{n}m\x1b[4{n % 8}mx" for n in range(200)))
    assert len(text.read()) < 200 * 30
    assert text.read().endswith("\x1b[38;5;199m\x1b[47mx")


def test_line_width_is_limited() -> None:
    """Repeatedly inserted blanks do not make a line wider than a terminal can be."""
    text = TerminalText()
    text.add("ab\r")
    for _ in range(200):
        text.add("\x1b[999@")
    assert len(text.read()) <= 1100
